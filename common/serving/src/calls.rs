//! The calls that both programs answer alike, from the request as it arrives to the answer as it leaves: decode, answer,
//! encode. Statuses are made in `wire` only.

use std::sync::Arc;
use std::time::Duration;

use highwater_node::grpc::Deadline;
use highwater_proto::v1;
use highwater_types::{ClusterId, PartitionRecord};
use highwater_wire::reassign::AddedReplica;
use highwater_wire::{Caller, admin, offsets, read_records, status};
use tonic::{Request, Response, Status};

use crate::describe::ClusterDescriber;
use crate::host::PartitionHost;

/// What a call ends with.
pub type Answer<T> = Result<Response<T>, Status>;

/// Who calls, by the metadata; a contradiction with the body is refused where that is decoded.
///
/// # Errors
/// `INVALID_ARGUMENT`: the metadata cannot be read.
pub fn caller_of<T>(request: &Request<T>) -> Result<Caller, Status> {
    Ok(Caller::decode(request.metadata())?)
}

/// When the call must be answered.
#[must_use]
pub fn deadline_of<T>(request: &Request<T>) -> Option<Deadline> {
    request.extensions().get::<Deadline>().copied()
}

/// Refuses what is meant for another cluster.
///
/// # Errors
/// `FAILED_PRECONDITION`: it names another one.
pub fn check_cluster(asked: Option<&ClusterId>, own: &ClusterId) -> Result<(), Status> {
    match asked {
        Some(asked) if asked != own => Err(status::wrong_cluster(asked, own)),
        Some(_) | None => Ok(()),
    }
}

/// DescribeCluster.
///
/// # Errors
/// `UNAVAILABLE`: this node does not hold its session (design.md 6.8).
pub async fn describe_cluster(
    describer: &ClusterDescriber,
    request: Request<v1::DescribeClusterRequest>,
) -> Answer<v1::DescribeClusterResponse> {
    let deadline = deadline_of(&request);
    let request = request.into_inner();
    let wait = Duration::from_millis(request.max_wait_ms.unwrap_or(0).into());
    let described = describer.describe_cluster(request.known_version, wait, deadline).await;
    Ok(Response::new(described.map_err(|e| status::from_error(&e))?))
}

/// DescribeTopics.
///
/// # Errors
/// `INVALID_ARGUMENT`: what is asked for cannot be a topic.
pub fn describe_topics(
    describer: &ClusterDescriber,
    request: Request<v1::DescribeTopicsRequest>,
) -> Answer<v1::DescribeTopicsResponse> {
    let asked = admin::decode_selection(&request.into_inner().topics)?;
    Ok(Response::new(describer.describe_topics(&asked)))
}

/// ListReassignments; `progress` adds what this program knows beside the records.
///
/// # Errors
/// `INVALID_ARGUMENT`: what is asked for cannot be a topic. `NOT_FOUND`: it is none.
pub fn list_reassignments(
    describer: &ClusterDescriber,
    request: Request<v1::ListReassignmentsRequest>,
    progress: impl Fn(&PartitionRecord, &mut [AddedReplica]),
) -> Answer<v1::ListReassignmentsResponse> {
    let asked = admin::decode_selection(&request.into_inner().topics)?;
    let moving = describer.reassignments(&asked, progress).map_err(|e| status::from_error(&e))?;
    Ok(Response::new(moving))
}

/// ListOffsets.
///
/// # Errors
/// `INVALID_ARGUMENT`: the request cannot be read. What is wrong with one partition stands in its answer.
pub async fn list_offsets(
    host: Arc<dyn PartitionHost>,
    request: Request<v1::ListOffsetsRequest>,
) -> Answer<v1::ListOffsetsResponse> {
    let caller = caller_of(&request)?;
    let request = offsets::decode_list_request(&caller, request.into_inner())?;
    let answers = crate::offsets::list_offsets(host, request).await;
    Ok(Response::new(offsets::encode_list_response(answers)))
}

/// OffsetsForLeaderEpoch.
///
/// # Errors
/// `INVALID_ARGUMENT`: the request cannot be read. What is wrong with one partition stands in its answer.
pub fn offsets_for_leader_epoch(
    host: &dyn PartitionHost,
    request: Request<v1::OffsetsForLeaderEpochRequest>,
) -> Answer<v1::OffsetsForLeaderEpochResponse> {
    let caller = caller_of(&request)?;
    let request = offsets::decode_epoch_request(&caller, request.into_inner())?;
    let answers = crate::offsets::offsets_for_leader_epoch(host, request);
    Ok(Response::new(offsets::encode_epoch_response(answers)))
}

/// ReadRecords.
///
/// # Errors
/// The request cannot be read, or the partition cannot be.
pub async fn read_decoded(
    host: Arc<dyn PartitionHost>,
    request: Request<v1::ReadRecordsRequest>,
) -> Answer<v1::ReadRecordsResponse> {
    let wanted = read_records::decode_request(&request.into_inner())?;
    let read = crate::read_records::read_records(host, wanted).await.map_err(|e| status::from_error(&e))?;
    Ok(Response::new(read_records::encode_response(read)))
}
