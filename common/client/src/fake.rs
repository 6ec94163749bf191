//! In-process nodes for tests, built from the generated traits: a leader of everything, which a test can bend by hooks.
//!
//! What holds: records go through the real wire and are real batches. Deliberately absent: replication.

mod log;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_server::{ClusterService, ClusterServiceServer};
use highwater_proto::v1::log_service_server::{LogService, LogServiceServer};
use highwater_types::{
    ClusterId, Endpoint, ErrorCode, LeaderEpoch, NodeId, NodeRecord, PartitionIndex, PartitionRecord,
    Program, ReplicationError, TopicId, TopicIdPartition, TopicName, TopicPartition, TopicProperties,
    TopicRecord,
};
use highwater_wire::cluster::{cluster_head, decode_node, encode_node, encode_topic};
use highwater_wire::error::encode_error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::{Client, ClientConfig};
pub(crate) use log::FakeLog;

/// What a hook may answer instead of the node.
pub(crate) type Hook<M, R> = Box<dyn FnMut(&M) -> Option<Result<R, Status>> + Send>;

#[derive(Default)]
pub(crate) struct FakeState {
    pub(crate) topics: Vec<v1::Topic>,
    pub(crate) nodes: BTreeMap<i32, NodeRecord>,
    pub(crate) logs: BTreeMap<(String, i32), FakeLog>,
    pub(crate) on_produce: Option<Hook<v1::ProduceRequest, v1::ProduceResponse>>,
    /// Answers a Produce instead of the node, but after it has appended.
    pub(crate) on_produced: Option<Hook<v1::ProduceResponse, v1::ProduceResponse>>,
    pub(crate) on_fetch: Option<Hook<v1::FetchRequest, v1::FetchResponse>>,
    pub(crate) on_create: Option<Hook<v1::CreateTopicRequest, v1::CreateTopicResponse>>,
    pub(crate) on_cluster: Option<Hook<v1::DescribeClusterRequest, v1::DescribeClusterResponse>>,
    /// How many calls of each kind arrived.
    pub(crate) calls: BTreeMap<&'static str, u32>,
    pub(crate) renewals: u64,
}

/// A node that leads every partition of its topics.
pub(crate) struct FakeNode {
    pub(crate) endpoint: Endpoint,
    pub(crate) cluster: ClusterId,
    inner: Arc<Inner>,
    _server: AbortOnDropHandle<()>,
}

struct Inner {
    id: NodeId,
    cluster: ClusterId,
    state: Mutex<FakeState>,
    /// Rises with every change of topics, nodes or logs.
    version: watch::Sender<u64>,
}

impl FakeNode {
    pub(crate) async fn start(id: i32) -> Self {
        Self::of_cluster(id, ClusterId::random()).await
    }

    pub(crate) async fn of_cluster(id: i32, cluster: ClusterId) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let inner = Arc::new(Inner {
            id: NodeId::new(id).unwrap(),
            cluster: cluster.clone(),
            state: Mutex::default(),
            version: watch::Sender::new(1),
        });
        let log = LogServiceServer::from_arc(Arc::clone(&inner)).max_decoding_message_size(64 << 20);
        let serve = Server::builder()
            .add_service(log)
            .add_service(ClusterServiceServer::from_arc(Arc::clone(&inner)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(tokio::spawn(async move { serve.await.unwrap() }));
        Self { endpoint, cluster, inner, _server: server }
    }

    pub(crate) fn client(&self) -> Client {
        let mut config = ClientConfig::new(vec![self.endpoint.clone()]);
        config.retry_timeout = Duration::from_secs(20);
        Client::new(config).unwrap()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FakeState> {
        self.inner.state.lock().unwrap()
    }

    /// Makes what was changed in the state visible to long polls.
    pub(crate) fn publish(&self) {
        self.inner.version.send_modify(|version| *version += 1);
    }

    pub(crate) fn calls(&self, kind: &'static str) -> u32 {
        self.state().calls.get(kind).copied().unwrap_or(0)
    }

    /// Adds a topic whose partitions are led at `leader` in `epoch`.
    pub(crate) fn add_topic(&self, name: &str, partitions: i32, leader: &Endpoint, epoch: i32) -> TopicName {
        let topic = TopicRecord {
            id: TopicId::random(),
            name: name.parse().unwrap(),
            partitions,
            properties: TopicProperties::default(),
            deleted: false,
        };
        self.put_topic(&topic, &led(&topic, epoch, u64::try_from(epoch).unwrap()), leader);
        topic.name
    }

    pub(crate) fn put_topic(&self, topic: &TopicRecord, partitions: &[PartitionRecord], leader: &Endpoint) {
        let message = encode_topic(topic, partitions, |_| Some(leader.clone()));
        let mut state = self.state();
        state.topics.retain(|known| known.topic_id != message.topic_id);
        state.topics.push(message);
        for partition in partitions {
            state.logs.entry((topic.name.to_string(), partition.partition.get())).or_default();
        }
        drop(state);
        self.publish();
    }

    /// Puts a batch with its own offsets at the end of a log.
    pub(crate) fn append_raw(&self, topic: &str, partition: i32, batch: &[u8]) {
        let mut state = self.state();
        let log = state.logs.get_mut(&(topic.to_owned(), partition)).unwrap();
        log.batches.push(Bytes::copy_from_slice(batch));
        drop(state);
        self.publish();
    }
}

/// The records of partitions that node 1 leads.
pub(crate) fn led(topic: &TopicRecord, epoch: i32, version: u64) -> Vec<PartitionRecord> {
    let one = |index| {
        let id = TopicIdPartition::new(topic.id, PartitionIndex::new(index).unwrap());
        let mut record = PartitionRecord::new(id, vec![NodeId::new(1).unwrap()]);
        record.leader = NodeId::new(1);
        record.leader_epoch = LeaderEpoch::new(epoch);
        record.partition_epoch = highwater_types::PartitionEpoch::new(version);
        record
    };
    (0..topic.partitions).map(one).collect()
}

pub(crate) fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic.parse().unwrap(), PartitionIndex::new(partition).unwrap())
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    fn arrived(&self, kind: &'static str) {
        *self.state().calls.entry(kind).or_default() += 1;
    }

    fn append(&self, asked: &v1::ProducePartition) -> v1::ProducePartitionResult {
        let mut state = self.state();
        let index = asked.partition.unwrap();
        let mut result = v1::ProducePartitionResult {
            topic: asked.topic.clone(),
            partition: Some(index),
            ..Default::default()
        };
        let Some(log) = state.logs.get_mut(&(asked.topic.clone(), index)) else {
            result.error = Some(unknown_topic());
            return result;
        };
        match log.append(&asked.records) {
            Ok((first, last)) => (result.base_offset, result.last_offset) = (Some(first), Some(last)),
            Err(error) => result.error = Some(encode_error(&error)),
        }
        drop(state);
        self.version.send_modify(|version| *version += 1);
        result
    }

    fn read(&self, asked: &v1::FetchPartition) -> v1::FetchPartitionResult {
        let state = self.state();
        let (index, from) = (asked.partition.unwrap(), asked.fetch_offset.unwrap());
        let mut result = v1::FetchPartitionResult {
            topic: asked.topic.clone(),
            partition: Some(index),
            ..Default::default()
        };
        let Some(log) = state.logs.get(&(asked.topic.clone(), index)) else {
            result.error = Some(unknown_topic());
            return result;
        };
        if from < log.start || from > log.end() {
            let error = ReplicationError::new(ErrorCode::OffsetOutOfRange, format!("offset {from}"));
            result.error = Some(encode_error(&error));
            return result;
        }
        let max_bytes = usize::try_from(asked.partition_max_bytes.unwrap()).unwrap();
        result.high_watermark = Some(log.end());
        result.log_start_offset = Some(log.start);
        result.log_end_offset = Some(log.end());
        result.records = log.read(from, max_bytes);
        result
    }
}

fn unknown_topic() -> v1::PartitionError {
    encode_error(&ReplicationError::new(ErrorCode::UnknownTopicOrPartition, "no such topic"))
}

#[tonic::async_trait]
impl LogService for Inner {
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        self.arrived("fetch");
        let message = request.into_inner();
        let hooked = self.state().on_fetch.as_mut().and_then(|hook| hook(&message));
        if let Some(answer) = hooked {
            return answer.map(Response::new);
        }
        let mut changes = self.version.subscribe();
        let read = || message.partitions.iter().map(|p| self.read(p)).collect::<Vec<_>>();
        let mut partitions = read();
        if partitions.iter().all(|p| p.error.is_none() && p.records.is_empty()) {
            let wait = Duration::from_millis(message.max_wait_ms.unwrap().into());
            drop(tokio::time::timeout(wait, changes.changed()).await);
            partitions = read();
        }
        Ok(Response::new(v1::FetchResponse {
            partitions,
            received_ns: Some(0),
            answered_ns: Some(0),
            ..Default::default()
        }))
    }

    async fn produce(
        &self,
        request: Request<v1::ProduceRequest>,
    ) -> Result<Response<v1::ProduceResponse>, Status> {
        self.arrived("produce");
        let message = request.into_inner();
        let hooked = self.state().on_produce.as_mut().and_then(|hook| hook(&message));
        if let Some(answer) = hooked {
            return answer.map(Response::new);
        }
        let partitions = message.partitions.iter().map(|p| self.append(p)).collect();
        let answer = v1::ProduceResponse { partitions, ..Default::default() };
        let hooked = self.state().on_produced.as_mut().and_then(|hook| hook(&answer));
        hooked.unwrap_or(Ok(answer)).map(Response::new)
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let state = self.state();
        let one = |asked: v1::ListOffsetsPartition| {
            let log = state.logs.get(&(asked.topic.clone(), asked.partition.unwrap())).unwrap();
            let offset = match asked.position() {
                v1::OffsetPosition::Earliest => Some(log.start),
                v1::OffsetPosition::Latest => Some(log.end()),
                v1::OffsetPosition::Unspecified => None,
            };
            let (topic, partition) = (asked.topic, asked.partition);
            v1::ListOffsetsPartitionResult { topic, partition, offset, ..Default::default() }
        };
        let partitions = request.into_inner().partitions.into_iter().map(one).collect();
        Ok(Response::new(v1::ListOffsetsResponse { partitions }))
    }

    async fn offsets_for_leader_epoch(
        &self,
        _request: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Result<Response<v1::OffsetsForLeaderEpochResponse>, Status> {
        Err(Status::unimplemented("no client asks for it"))
    }
}

#[tonic::async_trait]
impl ClusterService for Inner {
    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Result<Response<v1::DescribeClusterResponse>, Status> {
        self.arrived("describe_cluster");
        let message = request.into_inner();
        let hooked = self.state().on_cluster.as_mut().and_then(|hook| hook(&message));
        if let Some(answer) = hooked {
            return answer.map(Response::new);
        }
        let mut changes = self.version.subscribe();
        if message.known_version == Some(*changes.borrow_and_update()) {
            let wait = Duration::from_millis(message.max_wait_ms.unwrap_or(0).into());
            drop(tokio::time::timeout(wait, changes.changed()).await);
        }
        let version = *changes.borrow();
        let mut answer = cluster_head(Some(&self.cluster), version, self.id, Program::LeaderSvc);
        if message.known_version != Some(version) {
            let state = self.state();
            answer.unchanged = false;
            answer.topics = state.topics.clone();
            answer.nodes = state.nodes.values().map(encode_node).collect();
        }
        Ok(Response::new(answer))
    }

    async fn describe_topics(
        &self,
        request: Request<v1::DescribeTopicsRequest>,
    ) -> Result<Response<v1::DescribeTopicsResponse>, Status> {
        self.arrived("describe_topics");
        let state = self.state();
        let one = |asked: v1::TopicSelector| {
            let topic = state.topics.iter().find(|t| t.topic == asked.topic).cloned();
            let error = topic.is_none().then(unknown_topic);
            v1::TopicDescription { error, topic }
        };
        let topics = request.into_inner().topics.into_iter().map(one).collect();
        Ok(Response::new(v1::DescribeTopicsResponse { cluster_id: self.cluster.to_string(), topics }))
    }

    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        self.arrived("create_topic");
        let message = request.into_inner();
        let hooked = self.state().on_create.as_mut().and_then(|hook| hook(&message));
        hooked.unwrap_or_else(|| Err(Status::unimplemented("no hook"))).map(Response::new)
    }

    async fn adopt_topic(
        &self,
        _request: Request<v1::AdoptTopicRequest>,
    ) -> Result<Response<v1::AdoptTopicResponse>, Status> {
        Err(Status::unimplemented("no test adopts"))
    }

    async fn delete_topic(
        &self,
        _request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        Err(Status::unimplemented("no test deletes"))
    }

    async fn elect_leader(
        &self,
        _request: Request<v1::ElectLeaderRequest>,
    ) -> Result<Response<v1::ElectLeaderResponse>, Status> {
        Err(Status::unimplemented("no test elects"))
    }

    async fn reassign_replicas(
        &self,
        _request: Request<v1::ReassignReplicasRequest>,
    ) -> Result<Response<v1::ReassignReplicasResponse>, Status> {
        Err(Status::unimplemented("no test moves replicas"))
    }

    async fn cancel_reassignment(
        &self,
        _request: Request<v1::CancelReassignmentRequest>,
    ) -> Result<Response<v1::CancelReassignmentResponse>, Status> {
        Err(Status::unimplemented("no test moves replicas"))
    }

    async fn list_reassignments(
        &self,
        _request: Request<v1::ListReassignmentsRequest>,
    ) -> Result<Response<v1::ListReassignmentsResponse>, Status> {
        Err(Status::unimplemented("no test moves replicas"))
    }

    async fn set_replication_throttle(
        &self,
        _request: Request<v1::SetReplicationThrottleRequest>,
    ) -> Result<Response<v1::SetReplicationThrottleResponse>, Status> {
        Err(Status::unimplemented("no test throttles"))
    }

    async fn clear_replication_throttle(
        &self,
        _request: Request<v1::ClearReplicationThrottleRequest>,
    ) -> Result<Response<v1::ClearReplicationThrottleResponse>, Status> {
        Err(Status::unimplemented("no test throttles"))
    }

    async fn register_agent(
        &self,
        request: Request<v1::RegisterAgentRequest>,
    ) -> Result<Response<v1::RegisterAgentResponse>, Status> {
        self.arrived("register_agent");
        let caller = highwater_wire::Caller::decode(request.metadata())?;
        let asked = highwater_wire::admin::decode_register(&caller, &request.into_inner())?;
        let mut state = self.state();
        let stands = state.nodes.get(&asked.node.get()).cloned();
        let written = asked.record.as_ref().map(|record| {
            let current = stands.as_ref().map_or(0, |stands| stands.version);
            (record.version == current).then(|| NodeRecord { version: current + 1, ..record.clone() })
        });
        if let Some(Some(record)) = &written {
            state.nodes.insert(asked.node.get(), record.clone());
        }
        state.renewals += u64::from(asked.counter.is_some());
        let counter = state.renewals;
        let liveness = v1::Liveness {
            node_id: Some(asked.node.get()),
            program: v1::Program::FollowerAgent.into(),
            counter: Some(counter),
        };
        let node = state.nodes.get(&asked.node.get()).map(encode_node);
        assert!(node.as_ref().is_none_or(|node| decode_node(node).is_ok()));
        Ok(Response::new(v1::RegisterAgentResponse {
            cluster_id: self.cluster.to_string(),
            written: written.map(|written| written.is_some()),
            node,
            liveness: if asked.counter.is_some() { vec![liveness] } else { Vec::new() },
        }))
    }
}
