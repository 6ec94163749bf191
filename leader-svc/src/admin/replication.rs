//! ReplicationService: how far each follower is, from the cores of the partitions led here, and records for people.

use std::sync::Arc;

use highwater_node::Clocks;
use highwater_proto::v1;
use highwater_proto::v1::replication_service_server::ReplicationService;
use highwater_protocol::leader::FollowerRow;
use highwater_serving::calls::{self, Answer};
use highwater_serving::registry::resolve_topic;
use highwater_serving::{HostedReplica as _, PartitionHost, Registry};
use highwater_types::{ErrorCode, MonotonicTime, Offset, ReplicationError, TopicId};
use highwater_wire::fetch::encode_lost;
use highwater_wire::lag::encode_lag_cause;
use highwater_wire::loss::encode_loss;
use highwater_wire::{admin, status};
use tonic::{Request, Response, Status};

use crate::partition::LedPartition;

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct ReplicationApi {
    pub(crate) host: Arc<Registry<LedPartition>>,
    pub(crate) clocks: Clocks,
}

#[tonic::async_trait]
impl ReplicationService for ReplicationApi {
    async fn describe_replication(
        &self,
        request: Request<v1::DescribeReplicationRequest>,
    ) -> Answer<v1::DescribeReplicationResponse> {
        let asked = admin::decode_selection(&request.into_inner().topics)?;
        let view = self.host.view();
        let topics: Vec<TopicId> = asked
            .iter()
            .map(|topic| resolve_topic(&view, topic).map(|record| record.id))
            .collect::<Result<_, _>>()
            .map_err(|e| status::from_error(&e))?;
        let now = self.clocks.monotonic.now();
        let mut led = self.host.online();
        led.retain(|partition| topics.is_empty() || topics.contains(&partition.id().topic_id));
        led.sort_by(|a, b| (a.topic(), a.id().partition).cmp(&(b.topic(), b.id().partition)));
        Ok(Response::new(v1::DescribeReplicationResponse {
            node_id: Some(self.host.node().get()),
            partitions: led.iter().map(|partition| describe(partition, now)).collect(),
        }))
    }

    async fn describe_fetchers(
        &self,
        _: Request<v1::DescribeFetchersRequest>,
    ) -> Answer<v1::DescribeFetchersResponse> {
        // This program follows nothing.
        Ok(Response::new(v1::DescribeFetchersResponse {
            node_id: Some(self.host.node().get()),
            fetchers: Vec::new(),
            unassigned: Vec::new(),
        }))
    }

    async fn pause_replica(&self, _: Request<v1::PauseReplicaRequest>) -> Answer<v1::PauseReplicaResponse> {
        Err(agent_needed())
    }

    async fn resume_replica(
        &self,
        _: Request<v1::ResumeReplicaRequest>,
    ) -> Answer<v1::ResumeReplicaResponse> {
        Err(agent_needed())
    }

    async fn read_records(
        &self,
        request: Request<v1::ReadRecordsRequest>,
    ) -> Answer<v1::ReadRecordsResponse> {
        calls::read_decoded(Arc::clone(&self.host) as _, request).await
    }
}

/// The answer to what only a program that follows can do.
fn agent_needed() -> Status {
    let what = "this is a leader-svc, which follows nothing; ask the node's follower-agent";
    status::from_error(&ReplicationError::new(ErrorCode::InvalidRequest, what))
}

fn describe(partition: &LedPartition, now: MonotonicTime) -> v1::LedPartition {
    let (replica, record) = (partition.replica(), partition.record());
    let positions = replica.log().positions();
    let followers = replica.describe(now);
    v1::LedPartition {
        topic: partition.topic().to_string(),
        topic_id: partition.id().topic_id.to_string(),
        partition: Some(partition.id().partition.get()),
        leader_epoch: Some(replica.epoch().get()),
        partition_epoch: Some(record.partition_epoch.get()),
        log_start_offset: Some(positions.log_start.get()),
        log_end_offset: Some(positions.log_end.get()),
        flushed_offset: Some(positions.flushed.get()),
        high_watermark: Some(replica.high_watermark().get()),
        size_bytes: Some(positions.size),
        followers: followers.iter().map(|(row, bytes)| describe_follower(row, *bytes)).collect(),
        loss: replica.log().unclean_loss().as_ref().map(encode_loss),
        lost: replica.lost_ranges().into_iter().map(encode_lost).collect(),
    }
}

fn describe_follower(row: &FollowerRow, lag_bytes: Option<u64>) -> v1::FollowerProgress {
    let state = match (row.in_sync, row.acknowledged) {
        (true, _) => v1::ReplicaState::InSync,
        (false, Some(_)) => v1::ReplicaState::CatchingUp,
        (false, None) => v1::ReplicaState::Unknown,
    };
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    v1::FollowerProgress {
        replica_id: Some(row.node.get()),
        incarnation: row.incarnation.map(|incarnation| incarnation.to_string()),
        state: state.into(),
        in_sync: Some(row.in_sync),
        log_end_offset: row.fetch_offset.map(Offset::get),
        acknowledged_offset: row.acknowledged.map(Offset::get),
        high_watermark: row.high_watermark.map(Offset::get),
        lag_records: row.lag_records,
        lag_bytes,
        lag_ms: row.lag_time.map(millis),
        last_fetch_age_ms: row.last_fetch_age.map(millis),
        cause: encode_lag_cause(row.cause).into(),
    }
}
