//! leader-svc and follower-agent in this process, and raw clients of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails here shows where")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_log::OsStorage;
use highwater_log::checkpoint::CheckpointFile;
use highwater_node::config::{CommonSettings, Settings, Sources, load};
use highwater_node::grpc::Listener;
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::WallTime;
use system_tests::proxy::Proxy;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How long anything may take that only has to happen at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// The nodes of one cluster, with their directories and their store.
pub(crate) struct Cluster {
    root: tempfile::TempDir,
    leaders: BTreeMap<i32, Running>,
}

struct Running {
    address: SocketAddr,
    channel: Channel,
    stop: CancellationToken,
    task: JoinHandle<Result<(), String>>,
}

/// A running follower-agent. It stops when it is dropped.
pub(crate) struct Following(Running);

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Running {
    async fn stop(mut self) {
        self.stop.cancel();
        let begun = Instant::now();
        (&mut self.task).await.expect("no panic").expect("it ends well");
        assert!(begun.elapsed() < Duration::from_secs(5), "stopped within {:?}", begun.elapsed());
    }
}

fn settings<S: Settings>(
    root: &Path,
    node: i32,
    listen: SocketAddr,
    own: &[(&'static str, &str)],
) -> (CommonSettings, S) {
    let keys = [CommonSettings::KEYS, S::KEYS].concat();
    let mut flags: Vec<(&'static str, String)> = vec![
        ("node.id", node.to_string()),
        ("data.dir", root.join(format!("data-{node}")).display().to_string()),
        ("coordination", format!("file:{}", root.join("store").display())),
        ("listen", listen.to_string()),
    ];
    flags.extend(own.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let values = load(&keys, &Sources { flags, ..Sources::default() }).unwrap();
    (CommonSettings::from_values(&values).unwrap(), S::from_values(&values).unwrap())
}

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

pub(crate) async fn free_address() -> SocketAddr {
    Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap().address()
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), leaders: BTreeMap::new() }
    }

    /// Starts the leader-svc of a node.
    pub(crate) async fn lead(&mut self, node: i32) {
        self.lead_at(node, "127.0.0.1:0".parse().unwrap()).await;
    }

    pub(crate) async fn lead_at(&mut self, node: i32, address: SocketAddr) {
        self.lead_as(node, address, &[]).await;
    }

    /// Starts the leader-svc of a node behind a proxy: others are told the proxy's address.
    pub(crate) async fn lead_behind_proxy(&mut self, node: i32) -> Proxy {
        let address = free_address().await;
        let proxy = Proxy::start(address).await;
        self.lead_as(node, address, &[("advertise", &proxy.address().to_string())]).await;
        proxy
    }

    async fn lead_as(&mut self, node: i32, address: SocketAddr, own: &[(&'static str, &str)]) {
        let own = [&[("leader.stagger.ms", "100ms")], own].concat();
        let (common, own) = settings(self.root.path(), node, address, &own);
        let service = leader_svc::build(leader_svc::Config { common, own }).await.unwrap();
        let (address, stop) = (service.address(), CancellationToken::new());
        let ended = stop.clone();
        let task = tokio::spawn(async move { service.run(ended).await.map_err(|e| e.to_string()) });
        self.leaders.insert(node, Running { address, channel: channel(address), stop, task });
    }

    pub(crate) async fn stop_leader(&mut self, node: i32) {
        self.leaders.remove(&node).expect("it runs").stop().await;
    }

    /// Starts the follower-agent of a node.
    pub(crate) async fn follow(&mut self, node: i32, own: &[(&'static str, &str)]) -> Following {
        let address = "127.0.0.1:0".parse().unwrap();
        let (common, own) = settings(self.root.path(), node, address, own);
        let agent = follower_agent::build(follower_agent::Config { common, own }).await.unwrap();
        let (address, stop) = (agent.address(), CancellationToken::new());
        let ended = stop.clone();
        let task = tokio::spawn(async move { agent.run(ended).await.map_err(|e| e.to_string()) });
        Following(Running { address, channel: channel(address), stop, task })
    }

    pub(crate) fn address(&self, node: i32) -> SocketAddr {
        self.leaders[&node].address
    }

    pub(crate) fn data_dir(&self, node: i32) -> PathBuf {
        self.root.path().join(format!("data-{node}"))
    }

    /// The segments of a replica, by name.
    pub(crate) fn log_bytes(&self, node: i32, partition: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.data_dir(node).join(partition)).unwrap();
        let segments = entries.filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            name.ends_with(".log").then(|| (name, std::fs::read(&path).unwrap()))
        });
        segments.collect()
    }

    /// The high watermark that a replica would begin with after a crash.
    pub(crate) fn checkpointed(&self, node: i32, partition: &str) -> Option<i64> {
        let read = CheckpointFile::read(&OsStorage, &self.data_dir(node).join(partition)).unwrap();
        read.into_state().map(|state| state.high_watermark.offset.get())
    }

    fn any(&self) -> Channel {
        self.leaders.values().next().expect("a leader-svc runs").channel.clone()
    }

    pub(crate) async fn create(
        &self,
        name: &str,
        partitions: i32,
        replicas: &[i32],
        properties: &[(&str, &str)],
    ) {
        // The preferred leader is the first replica of every partition.
        let properties = properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let request = v1::CreateTopicRequest {
            topic: name.to_owned(),
            partitions: Some(partitions),
            replicas: replicas.to_vec(),
            properties,
            ..Default::default()
        };
        // A node that has just started has perhaps not registered yet.
        eventually(async || ClusterServiceClient::new(self.any()).create_topic(request.clone()).await.ok())
            .await;
    }

    pub(crate) async fn delete(&self, name: &str) {
        let topic = v1::TopicSelector { topic: name.to_owned(), topic_id: String::new() };
        let request = v1::DeleteTopicRequest { topic: Some(topic) };
        ClusterServiceClient::new(self.any()).delete_topic(request).await.unwrap();
    }

    async fn describe(&self, name: &str) -> Option<v1::Topic> {
        let topic = v1::TopicSelector { topic: name.to_owned(), topic_id: String::new() };
        let request = v1::DescribeTopicsRequest { topics: vec![topic] };
        let answer = ClusterServiceClient::new(self.any()).describe_topics(request).await.unwrap();
        let one = answer.into_inner().topics.remove(0);
        if one.error.is_some() { None } else { one.topic }
    }

    /// Waits until the in-sync set of every partition is this.
    pub(crate) async fn until_in_sync(&self, name: &str, nodes: &[i32]) {
        eventually(async || {
            let topic = self.describe(name).await?;
            let is_whole = |partition: &v1::Partition| {
                let mut isr: Vec<_> = partition.isr.iter().filter_map(|member| member.node_id).collect();
                isr.sort_unstable();
                isr == nodes
            };
            topic.partitions.iter().all(is_whole).then_some(())
        })
        .await;
    }

    /// What node 1 knows that a follower has acknowledged.
    pub(crate) async fn acknowledged(&self, topic: &str, partition: i32, follower: i32) -> Option<i64> {
        let request = v1::DescribeReplicationRequest::default();
        let channel = self.leaders[&1].channel.clone();
        let answer = ReplicationServiceClient::new(channel).describe_replication(request).await.unwrap();
        let led = answer.into_inner().partitions;
        let led = led.into_iter().find(|led| led.topic == topic && led.partition == Some(partition)).unwrap();
        led.followers.iter().find(|row| row.replica_id == Some(follower)).unwrap().acknowledged_offset
    }

    /// Produces a batch of small records to node 1; the offset of the first.
    pub(crate) async fn produce(
        &self,
        topic: &str,
        partition: i32,
        acks: v1::Acks,
        count: usize,
    ) -> Result<i64, String> {
        produced(produce(self.leaders[&1].channel.clone(), topic, partition, acks, count).await)
    }

    /// Produces a batch of one record of this size to node 1.
    pub(crate) async fn produce_bytes(
        &self,
        topic: &str,
        partition: i32,
        acks: v1::Acks,
        bytes: usize,
    ) -> Result<i64, String> {
        let records = batch(&[vec![b'x'; bytes]]);
        produced(send(self.leaders[&1].channel.clone(), topic, partition, acks, records).await)
    }

    /// Produces as soon as somebody leads.
    pub(crate) async fn produce_until_taken(
        &self,
        topic: &str,
        partition: i32,
        acks: v1::Acks,
        count: usize,
    ) {
        eventually(async || self.produce(topic, partition, acks, count).await.ok()).await;
    }
}

fn produced(answer: Result<v1::ProducePartitionResult, Status>) -> Result<i64, String> {
    let result = answer.map_err(|status| status.to_string())?;
    match result.error {
        Some(error) => Err(format!("{error:?}")),
        None => Ok(result.base_offset.unwrap()),
    }
}

fn batch(values: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        builder.append(WallTime::from_millis(1_700_000_000_000), Some(b"key"), Some(value), &[]).unwrap();
    }
    builder.build().unwrap().to_vec()
}

pub(crate) async fn produce(
    channel: Channel,
    topic: &str,
    partition: i32,
    acks: v1::Acks,
    count: usize,
) -> Result<v1::ProducePartitionResult, Status> {
    let values: Vec<_> = (0..count).map(|number| format!("record number {number}").into_bytes()).collect();
    send(channel, topic, partition, acks, batch(&values)).await
}

async fn send(
    channel: Channel,
    topic: &str,
    partition: i32,
    acks: v1::Acks,
    records: Vec<u8>,
) -> Result<v1::ProducePartitionResult, Status> {
    let partition = v1::ProducePartition {
        topic: topic.to_owned(),
        partition: Some(partition),
        records: records.into(),
        ..Default::default()
    };
    let request = v1::ProduceRequest { acks: acks.into(), partitions: vec![partition], ..Default::default() };
    let mut request = tonic::Request::new(request);
    request.set_timeout(Duration::from_secs(20));
    let answer = LogServiceClient::new(channel).produce(request).await?;
    Ok(answer.into_inner().partitions.remove(0))
}

/// A consumer's fetch of partition 0.
pub(crate) async fn fetch(
    channel: Channel,
    topic: &str,
    offset: i64,
    max_wait: Duration,
) -> Result<v1::FetchPartitionResult, Status> {
    let asked = v1::FetchPartition {
        topic: topic.to_owned(),
        partition: Some(0),
        fetch_offset: Some(offset),
        ..Default::default()
    };
    let max_wait_ms = Some(u32::try_from(max_wait.as_millis()).unwrap());
    let request = v1::FetchRequest { max_wait_ms, partitions: vec![asked], ..Default::default() };
    Ok(LogServiceClient::new(channel).fetch(request).await?.into_inner().partitions.remove(0))
}

/// Offset and value of the records of partition 0, as the answering program shows them to people.
pub(crate) async fn records_of(channel: Channel, topic: &str, from: i64) -> Vec<(i64, String)> {
    let request = v1::ReadRecordsRequest {
        topic: topic.to_owned(),
        partition: Some(0),
        offset: Some(from),
        ..Default::default()
    };
    let answer = ReplicationServiceClient::new(channel).read_records(request).await.unwrap().into_inner();
    answer.records.into_iter().map(|record| (record.offset.unwrap(), record.value_text.unwrap())).collect()
}

pub(crate) async fn is_serving(channel: Channel) -> bool {
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    answer.into_inner().status() == ServingStatus::Serving
}

impl Following {
    pub(crate) async fn stop(self) {
        self.0.stop().await;
    }

    /// Ends it as a crash does: nothing is flushed or marked clean any more.
    pub(crate) async fn kill(mut self) {
        self.0.task.abort();
        (&mut self.0.task).await.expect_err("it was aborted");
    }

    pub(crate) fn channel(&self) -> Channel {
        self.0.channel.clone()
    }

    pub(crate) async fn describe(&self) -> v1::DescribeFetchersResponse {
        let request = v1::DescribeFetchersRequest {};
        ReplicationServiceClient::new(self.channel()).describe_fetchers(request).await.unwrap().into_inner()
    }

    /// A partition in one of its loops.
    pub(crate) async fn partition(&self, topic: &str, partition: i32) -> Option<v1::FollowedPartition> {
        let rows = self.describe().await.fetchers.into_iter().flat_map(|fetcher| fetcher.partitions);
        rows.into_iter().find(|row| row.topic == topic && row.partition == Some(partition))
    }

    /// A partition that no loop fetches, because it has failed.
    pub(crate) async fn failed(&self, topic: &str, partition: i32) -> Option<v1::FollowedPartition> {
        let is_it = |row: &v1::FollowedPartition| {
            row.topic == topic && row.partition == Some(partition) && row.state() == v1::FetchState::Failed
        };
        self.describe().await.unassigned.into_iter().find(is_it)
    }

    pub(crate) async fn until_log_end(&self, topic: &str, partition: i32, end: i64) {
        eventually(async || {
            self.partition(topic, partition).await.filter(|row| row.log_end_offset == Some(end))
        })
        .await;
    }

    pub(crate) async fn until_high_watermark(&self, topic: &str, partition: i32, end: i64) {
        eventually(async || {
            self.partition(topic, partition).await.filter(|row| row.high_watermark == Some(end))
        })
        .await;
    }
}

/// Looks until `look` finds something.
pub(crate) async fn eventually<T>(look: impl AsyncFn() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "it did not happen within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
