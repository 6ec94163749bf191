//! A leader-svc in this process, on a directory of its own, and raw clients of it.
#![allow(dead_code, reason = "each test file uses another part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails here shows where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use highwater_node::config::{CommonSettings, Settings as _, Sources, load};
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_records::{BatchBuilder, Compression, batches};
use highwater_serving::FetchPurgatory;
use highwater_types::WallTime;
use leader_svc::config::LeaderSettings;
use leader_svc::{BuildError, Config, build};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// How long anything may take that only has to happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Node {
    pub(crate) channel: Channel,
    pub(crate) log: LogServiceClient<Channel>,
    pub(crate) cluster: ClusterServiceClient<Channel>,
    pub(crate) replication: ReplicationServiceClient<Channel>,
    pub(crate) purgatory: Arc<FetchPurgatory>,
    pub(crate) stop: CancellationToken,
    pub(crate) running: JoinHandle<Result<(), BuildError>>,
}

pub(crate) fn config(root: &Path, node: i32, settings: &[(&'static str, &str)]) -> Config {
    let keys = [CommonSettings::KEYS, LeaderSettings::KEYS].concat();
    let mut flags: Vec<(&'static str, String)> = vec![
        ("node.id", node.to_string()),
        ("data.dir", root.join(format!("data-{node}")).display().to_string()),
        ("coordination", format!("file:{}", root.join("store").display())),
        ("leader.stagger.ms", "100ms".to_owned()),
        ("listen", "127.0.0.1:0".to_owned()),
    ];
    flags.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let values = load(&keys, &Sources { flags, ..Sources::default() }).unwrap();
    Config {
        common: CommonSettings::from_values(&values).unwrap(),
        own: LeaderSettings::from_values(&values).unwrap(),
    }
}

pub(crate) async fn start(root: &Path) -> Node {
    start_as(root, 1, &[]).await
}

pub(crate) async fn start_as(root: &Path, node: i32, settings: &[(&'static str, &str)]) -> Node {
    try_start(root, node, settings).await.unwrap()
}

pub(crate) async fn try_start(
    root: &Path,
    node: i32,
    settings: &[(&'static str, &str)],
) -> Result<Node, BuildError> {
    let service = build(config(root, node, settings)).await?;
    let channel = Endpoint::from_shared(format!("http://{}", service.address())).unwrap().connect_lazy();
    let (purgatory, stop) = (Arc::clone(service.purgatory()), CancellationToken::new());
    let running = tokio::spawn(service.run(stop.clone()));
    const LARGE: usize = 64 << 20;
    Ok(Node {
        log: LogServiceClient::new(channel.clone())
            .max_decoding_message_size(LARGE)
            .max_encoding_message_size(4 * LARGE),
        cluster: ClusterServiceClient::new(channel.clone()),
        replication: ReplicationServiceClient::new(channel.clone()),
        channel,
        purgatory,
        stop,
        running,
    })
}

impl Node {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }

    /// Creates a topic and waits until this node leads all of its partitions.
    pub(crate) async fn create(&self, request: v1::CreateTopicRequest) -> v1::Topic {
        let topic = self.cluster.clone().create_topic(request).await.unwrap().into_inner().topic.unwrap();
        self.leads(&topic.topic).await
    }

    /// Creates a topic of one partition, on this node only.
    pub(crate) async fn topic(&self, name: &str, properties: &[(&str, &str)]) -> v1::Topic {
        let properties = properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.create(v1::CreateTopicRequest { topic: name.into(), properties, ..Default::default() }).await
    }

    /// Waits until every partition of a topic has a leader that serves.
    pub(crate) async fn leads(&self, topic: &str) -> v1::Topic {
        eventually(async || {
            let described = self.describe(topic).await?;
            for partition in &described.partitions {
                let mut fetch = fetch_request(topic, 0);
                fetch.partitions[0].partition = partition.partition;
                fetch.max_wait_ms = Some(0);
                let result = self.fetch(fetch).await.partitions.remove(0);
                if result.error.is_some() {
                    return None;
                }
            }
            // What was described above may be older than the leaderships that answered.
            self.describe(topic).await
        })
        .await
    }

    pub(crate) async fn describe(&self, topic: &str) -> Option<v1::Topic> {
        let selector = v1::TopicSelector { topic: topic.into(), topic_id: String::new() };
        let request = v1::DescribeTopicsRequest { topics: vec![selector] };
        let mut answer = self.cluster.clone().describe_topics(request).await.unwrap().into_inner();
        let one = answer.topics.remove(0);
        if one.error.is_some() { None } else { one.topic }
    }

    pub(crate) async fn fetch(&self, request: v1::FetchRequest) -> v1::FetchResponse {
        self.log.clone().fetch(request).await.unwrap().into_inner()
    }

    /// Fetches one partition, without waiting.
    pub(crate) async fn fetch_one(&self, topic: &str, offset: i64) -> v1::FetchPartitionResult {
        let mut request = fetch_request(topic, offset);
        request.max_wait_ms = Some(0);
        self.fetch(request).await.partitions.remove(0)
    }

    pub(crate) async fn produce(
        &self,
        topic: &str,
        acks: v1::Acks,
        records: Vec<u8>,
    ) -> v1::ProducePartitionResult {
        let request = produce_request(topic, acks, records);
        self.log.clone().produce(request).await.unwrap().into_inner().partitions.remove(0)
    }

    /// Produces and must succeed; the offset of the first record.
    pub(crate) async fn append(&self, topic: &str, records: Vec<u8>) -> i64 {
        let result = self.produce(topic, v1::Acks::Leader, records).await;
        assert_eq!(result.error, None);
        result.base_offset.unwrap()
    }

    /// Waits until so many fetches are parked.
    pub(crate) async fn until_parked(&self, count: usize) {
        eventually(async || (self.purgatory.parked() == count).then_some(())).await;
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
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn fetch_partition(topic: &str, offset: i64) -> v1::FetchPartition {
    v1::FetchPartition {
        topic: topic.into(),
        partition: Some(0),
        fetch_offset: Some(offset),
        ..Default::default()
    }
}

/// A consumer's fetch of partition 0.
pub(crate) fn fetch_request(topic: &str, offset: i64) -> v1::FetchRequest {
    v1::FetchRequest { partitions: vec![fetch_partition(topic, offset)], ..Default::default() }
}

pub(crate) fn produce_request(topic: &str, acks: v1::Acks, records: Vec<u8>) -> v1::ProduceRequest {
    let partition = v1::ProducePartition {
        topic: topic.into(),
        partition: Some(0),
        records: records.into(),
        ..Default::default()
    };
    v1::ProduceRequest { acks: acks.into(), partitions: vec![partition], ..Default::default() }
}

/// A batch of `count` records whose values have `size` bytes each.
pub(crate) fn batch(count: usize, size: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None);
    for n in 0..count {
        let value = vec![u8::try_from(n % 251).unwrap(); size];
        builder.append(WallTime::from_millis(1000), None, Some(&value), &[]).unwrap();
    }
    builder.build().unwrap().to_vec()
}

/// Base offset, record count and leader epoch of each batch.
pub(crate) fn shape(records: &[u8]) -> Vec<(i64, i32, i32)> {
    batches(records)
        .map(|b| b.unwrap())
        .map(|b| (b.base_offset().get(), b.record_count(), b.leader_epoch().map_or(-1, |e| e.get())))
        .collect()
}

pub(crate) fn code(error: &Option<v1::PartitionError>) -> Option<v1::ErrorCode> {
    error.as_ref().map(|error| v1::ErrorCode::try_from(error.code).unwrap())
}

pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}
