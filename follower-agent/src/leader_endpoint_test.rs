//! The gRPC end point against a served LogService.

use bytes::Bytes;
use highwater_node::grpc::{GrpcServer, Listener};
use highwater_proto::v1;
use highwater_proto::v1::log_service_server::{LogService, LogServiceServer};
use highwater_types::{PartitionIndex, TopicId};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use super::*;

/// Answers a Fetch by so many bytes, or not at all.
struct Leader {
    bytes: Option<usize>,
}

fn topic() -> TopicId {
    "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap()
}

#[tonic::async_trait]
impl LogService for Leader {
    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        let Some(bytes) = self.bytes else { return std::future::pending().await };
        let result = v1::FetchPartitionResult {
            topic_id: topic().to_string(),
            partition: Some(0),
            high_watermark: Some(0),
            log_start_offset: Some(0),
            log_end_offset: Some(0),
            records: Bytes::from(vec![0; bytes]),
            ..Default::default()
        };
        Ok(Response::new(v1::FetchResponse {
            partitions: vec![result],
            received_ns: Some(0),
            answered_ns: Some(0),
            ..Default::default()
        }))
    }

    async fn produce(&self, _: Request<v1::ProduceRequest>) -> Result<Response<v1::ProduceResponse>, Status> {
        unreachable!("a follower does not produce")
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let asked = request.into_inner();
        assert_eq!(asked.replica_id, Some(2));
        let answer = |partition: v1::ListOffsetsPartition| {
            assert_eq!(partition.current_leader_epoch, Some(0), "under the epoch (design.md 3)");
            let offset = if partition.position() == v1::OffsetPosition::Earliest { 5 } else { 50 };
            v1::ListOffsetsPartitionResult {
                topic_id: partition.topic_id,
                partition: partition.partition,
                offset: Some(offset),
                ..Default::default()
            }
        };
        let partitions = asked.partitions.into_iter().map(answer).collect();
        Ok(Response::new(v1::ListOffsetsResponse { partitions }))
    }

    async fn offsets_for_leader_epoch(
        &self,
        _: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Result<Response<v1::OffsetsForLeaderEpochResponse>, Status> {
        unreachable!("a follower finds divergence by its fetch")
    }
}

fn options() -> CallOptions {
    CallOptions {
        node: NodeId::new(2).unwrap(),
        timeout: Duration::from_millis(500),
        transport: TransportOptions::default(),
    }
}

async fn leader(bytes: Option<usize>) -> (GrpcLeader, CancellationToken) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let endpoint = listener.address().into();
    let server =
        GrpcServer::new(&[]).await.unwrap().add_service(LogServiceServer::new(Leader { bytes })).await;
    let stop = CancellationToken::new();
    tokio::spawn(server.serve(listener, stop.clone()));
    (GrpcLeader::new(endpoint, options()), stop)
}

fn request() -> FetchRequest {
    FetchRequest {
        cluster: None,
        replica: NodeId::new(2),
        repair: false,
        session_id: 0,
        session_epoch: -1,
        max_wait: Duration::ZERO,
        min_bytes: 1,
        max_bytes: 1 << 20,
        partitions: Vec::new(),
        forgotten: Vec::new(),
    }
}

fn partition() -> TopicIdPartition {
    TopicIdPartition::new(topic(), PartitionIndex::new(0).unwrap())
}

/// buck2#583 and others: a limit of 4 MiB on the message refused answers that obeyed a limit of 4 MiB on the records.
#[tokio::test]
async fn a_first_batch_of_the_largest_size_fits_beside_everything_else() {
    let (leader, _stop) = leader(Some((8 << 20) + (1 << 20))).await;
    let answer = leader.fetch(request(), 8 << 20, None).await.unwrap();
    assert_eq!(answer.partitions[0].outcome.as_ref().unwrap().records.len(), 9 << 20);
}

#[tokio::test]
async fn an_answer_above_the_limit_is_told_apart_from_a_failed_call() {
    let (leader, _stop) = leader(Some(3 << 20)).await;
    let failure = leader.fetch(request(), 1 << 20, None).await.unwrap_err();
    assert!(matches!(&failure, FetchFailure::TooLarge(text) if text.contains("limit")), "{failure:?}");
    assert!(leader.fetch(request(), 4 << 20, None).await.is_ok(), "the connection is good");
}

#[tokio::test]
async fn a_leader_that_does_not_answer_ends_by_the_deadline() {
    let (leader, _stop) = leader(None).await;
    let FetchFailure::Call(failure) = leader.fetch(request(), 0, None).await.unwrap_err() else { panic!() };
    assert_eq!((failure.kind, failure.reached), (FailureKind::Deadline, Reached::Unknown));
}

#[tokio::test]
async fn a_port_where_nobody_listens_refuses() {
    let address = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap().address();
    let leader = GrpcLeader::new(address.into(), options());
    let FetchFailure::Call(failure) = leader.fetch(request(), 0, None).await.unwrap_err() else { panic!() };
    assert_eq!(failure.reached, Reached::Refused, "{failure}");
    assert_eq!(leader.range(partition(), LeaderEpoch::FIRST).await, Err(ErrorCode::LeaderNotAvailable));
}

#[tokio::test]
async fn the_range_is_asked_for_in_one_call_under_the_epoch() {
    let (leader, _stop) = leader(None).await;
    let range = leader.range(partition(), LeaderEpoch::FIRST).await.unwrap();
    assert_eq!((range.log_start.get(), range.log_end.get()), (5, 50));
}
