//! A leader that says what the test tells it to say: a real gRPC server whose answers to a follower come from a script,
//! and which keeps every request with its time of arrival. And the store in which such a leader leads.
//!
//! What must hold: a request that the script does not answer is parked, as an idle leader would park it, so that a
//! follower under test never spins because of the fake.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use highwater_coordination::{Coordination as _, FileCoordination, FileOptions, register_endpoint};
use highwater_proto::v1;
use highwater_proto::v1::log_service_server::{LogService, LogServiceServer};
use highwater_types::{
    ClusterId, Endpoint, Incarnation, IsrMember, LeaderEpoch, NodeId, PartitionIndex, PartitionRecord,
    Program, TopicId, TopicIdPartition, TopicName, TopicProperties, TopicRecord,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Messages of any size pass: what a test wants to send is not limited by the fake.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// What to do with a request.
#[derive(Debug)]
pub enum Answer<T> {
    /// Answer it.
    Give(T),
    /// Fail the whole call.
    Fail(Status),
    /// Never answer; the caller's deadline ends the call.
    Never,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Arrived<T> {
    /// When.
    pub at: Instant,
    /// What.
    pub request: T,
}

/// The script for one kind of call: from the request, and how many came before, to an answer; `None` parks it.
type Script<Q, A> = Box<dyn FnMut(&Q, usize) -> Option<Answer<A>> + Send>;

struct Line<Q, A> {
    script: Script<Q, A>,
    arrived: Vec<Arrived<Q>>,
}

impl<Q: Clone, A> Line<Q, A> {
    fn silent() -> Mutex<Self> {
        Mutex::new(Self { script: Box::new(|_, _| None), arrived: Vec::new() })
    }

    fn take(&mut self, request: Q) -> Option<Answer<A>> {
        let before = self.arrived.len();
        let answer = (self.script)(&request, before);
        self.arrived.push(Arrived { at: Instant::now(), request });
        answer
    }
}

struct Lines {
    fetch: Mutex<Line<v1::FetchRequest, v1::FetchResponse>>,
    epochs: Mutex<Line<v1::OffsetsForLeaderEpochRequest, v1::OffsetsForLeaderEpochResponse>>,
    offsets: Mutex<Line<v1::ListOffsetsRequest, v1::ListOffsetsResponse>>,
}

/// A scripted leader. It stops listening when dropped.
pub struct FakeLeader {
    address: SocketAddr,
    lines: Arc<Lines>,
    server: JoinHandle<()>,
}

impl std::fmt::Debug for FakeLeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeLeader").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FakeLeader {
    /// Listens at `address`. Until a script is given, every request is parked.
    pub async fn start(address: SocketAddr) -> Self {
        let lines =
            Arc::new(Lines { fetch: Line::silent(), epochs: Line::silent(), offsets: Line::silent() });
        let service = LogServiceServer::new(Fake(Arc::clone(&lines)))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let serving =
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { serving.await.expect("the fake serves until it is dropped") });
        Self { address, lines, server }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers Fetches by this script.
    pub fn on_fetch(
        &self,
        script: impl FnMut(&v1::FetchRequest, usize) -> Option<Answer<v1::FetchResponse>> + Send + 'static,
    ) {
        lock(&self.lines.fetch).script = Box::new(script);
    }

    /// Answers the next Fetches by these answers, in order, and parks those after.
    pub fn script_fetches(&self, answers: impl IntoIterator<Item = Answer<v1::FetchResponse>>) {
        let mut answers = answers.into_iter().collect::<Vec<_>>().into_iter();
        self.on_fetch(move |_, _| answers.next());
    }

    /// Answers OffsetsForLeaderEpoch by this script.
    pub fn on_epochs(
        &self,
        script: impl FnMut(
            &v1::OffsetsForLeaderEpochRequest,
            usize,
        ) -> Option<Answer<v1::OffsetsForLeaderEpochResponse>>
        + Send
        + 'static,
    ) {
        lock(&self.lines.epochs).script = Box::new(script);
    }

    /// Answers ListOffsets by this script.
    pub fn on_offsets(
        &self,
        script: impl FnMut(&v1::ListOffsetsRequest, usize) -> Option<Answer<v1::ListOffsetsResponse>>
        + Send
        + 'static,
    ) {
        lock(&self.lines.offsets).script = Box::new(script);
    }

    /// Every Fetch so far.
    #[must_use]
    pub fn fetches(&self) -> Vec<Arrived<v1::FetchRequest>> {
        lock(&self.lines.fetch).arrived.clone()
    }

    /// Every OffsetsForLeaderEpoch so far.
    #[must_use]
    pub fn epoch_requests(&self) -> Vec<Arrived<v1::OffsetsForLeaderEpochRequest>> {
        lock(&self.lines.epochs).arrived.clone()
    }

    /// Every ListOffsets so far.
    #[must_use]
    pub fn offset_requests(&self) -> Vec<Arrived<v1::ListOffsetsRequest>> {
        lock(&self.lines.offsets).arrived.clone()
    }

    /// For every Fetch so far that named the partition: where it read, what it acknowledged, and of which epoch it said
    /// its last record is.
    #[must_use]
    pub fn positions(&self, topic_id: TopicId, partition: i32) -> Vec<Position> {
        let topic_id = topic_id.to_string();
        let fetches = self.fetches();
        let named = fetches.iter().flat_map(|fetch| &fetch.request.partitions);
        named
            .filter(|asked| asked.topic_id == topic_id && asked.partition == Some(partition))
            .map(|asked| Position {
                fetch_offset: asked.fetch_offset.expect("a follower says where it reads"),
                acknowledged: asked
                    .acknowledged_offset
                    .or(asked.fetch_offset)
                    .expect("a follower acknowledges"),
                last_epoch: asked.last_fetched_epoch,
            })
            .collect()
    }
}

impl Drop for FakeLeader {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// What one Fetch said about one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Where it read.
    pub fetch_offset: i64,
    /// What it acknowledged: said apart, or where it read.
    pub acknowledged: i64,
    /// The epoch of its last record; `None` for an empty log.
    pub last_epoch: Option<i32>,
}

struct Fake(Arc<Lines>);

#[tonic::async_trait]
impl LogService for Fake {
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        let request = request.into_inner();
        let max_wait = Duration::from_millis(request.max_wait_ms.unwrap_or(500).into());
        let answer = lock(&self.0.fetch).take(request.clone());
        match answer {
            Some(answer) => carry_out(answer).await,
            None => {
                sleep(max_wait).await;
                Ok(Response::new(nothing_new(&request)))
            }
        }
    }

    async fn offsets_for_leader_epoch(
        &self,
        request: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Result<Response<v1::OffsetsForLeaderEpochResponse>, Status> {
        let answer = lock(&self.0.epochs).take(request.into_inner());
        carry_out(answer.unwrap_or(Answer::Never)).await
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let answer = lock(&self.0.offsets).take(request.into_inner());
        carry_out(answer.unwrap_or(Answer::Never)).await
    }

    async fn produce(&self, _: Request<v1::ProduceRequest>) -> Result<Response<v1::ProduceResponse>, Status> {
        Err(Status::unimplemented("a scripted leader takes no records"))
    }
}

async fn carry_out<T>(answer: Answer<T>) -> Result<Response<T>, Status> {
    match answer {
        Answer::Give(answer) => Ok(Response::new(answer)),
        Answer::Fail(status) => Err(status),
        Answer::Never => std::future::pending().await,
    }
}

/// The answer of a leader that has nothing new for any partition of the request.
#[must_use]
pub fn nothing_new(request: &v1::FetchRequest) -> v1::FetchResponse {
    let partitions = request.partitions.iter().map(|asked| v1::FetchPartitionResult {
        high_watermark: asked.high_watermark,
        log_start_offset: asked.log_start_offset,
        log_end_offset: asked.fetch_offset,
        ..answer_for(asked)
    });
    v1::FetchResponse {
        session_id: Some(0),
        partitions: partitions.collect(),
        received_ns: Some(0),
        answered_ns: Some(0),
        ..Default::default()
    }
}

/// A result for the partition that `asked` names, to be filled in.
#[must_use]
pub fn answer_for(asked: &v1::FetchPartition) -> v1::FetchPartitionResult {
    v1::FetchPartitionResult {
        topic: asked.topic.clone(),
        topic_id: asked.topic_id.clone(),
        partition: asked.partition,
        ..Default::default()
    }
}

/// A topic that a fake leader leads.
#[derive(Debug, Clone)]
pub struct LedTopic {
    /// Its name.
    pub name: TopicName,
    /// How many partitions it has.
    pub partitions: i32,
    /// The leader epoch of each.
    pub leader_epoch: i32,
    /// The replicas; the fake leader's node is the first, and alone in sync.
    pub replicas: Vec<i32>,
    /// Its properties.
    pub properties: TopicProperties,
}

/// Writes into a `file` store that `leader`, of the first replica's node, leads a new topic; returns the topic's id.
pub async fn lead(store: &Path, leader: SocketAddr, topic: LedTopic) -> TopicId {
    let store = FileCoordination::open(store, FileOptions::default()).await.expect("the store opens");
    store.ensure_cluster_id(ClusterId::random()).await.expect("the store can be written");
    let replicas: Vec<NodeId> =
        topic.replicas.iter().map(|id| NodeId::new(*id).expect("a node id")).collect();
    let node = *replicas.first().expect("a topic has replicas");
    register_endpoint(&store, node, Program::LeaderSvc, &Endpoint::from(leader))
        .await
        .expect("the store can be written");
    let id = TopicId::random();
    let partition = |index| TopicIdPartition::new(id, PartitionIndex::new(index).expect("an index"));
    let records = (0..topic.partitions).map(|index| PartitionRecord::new(partition(index), replicas.clone()));
    let record = TopicRecord {
        id,
        name: topic.name,
        partitions: topic.partitions,
        properties: topic.properties,
        deleted: false,
    };
    let created =
        store.create_topic(record, records.clone().collect()).await.expect("the store can be written");
    assert!(created.committed().is_some(), "the topic is new");
    for new in records {
        let led = PartitionRecord {
            leader: Some(node),
            leader_epoch: LeaderEpoch::new(topic.leader_epoch),
            isr: vec![IsrMember { node, incarnation: Incarnation::new(1).expect("not 0") }],
            ..new.clone()
        };
        let outcome = store.swap_partition(led, new.partition_epoch).await.expect("the store can be written");
        assert!(outcome.committed().is_some(), "nobody else changes the record");
    }
    id
}

/// Raises the leader epoch of a partition by one, as a new leadership of the same leader would.
pub async fn lead_again(store: &Path, partition: TopicIdPartition) {
    let store = FileCoordination::open(store, FileOptions::default()).await.expect("the store opens");
    let view = store.refresh().await.expect("the store can be read");
    let current = PartitionRecord::clone(view.partition(partition).expect("the partition is known"));
    let epoch = current.leader_epoch.expect("it was led").get();
    let next = PartitionRecord { leader_epoch: LeaderEpoch::new(epoch + 1), ..current.clone() };
    let outcome =
        store.swap_partition(next, current.partition_epoch).await.expect("the store can be written");
    assert!(outcome.committed().is_some(), "nobody else changes the record");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "fake_leader_test.rs"]
mod tests;
