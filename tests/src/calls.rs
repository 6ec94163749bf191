//! Raw calls of a program, as a foreign client would make them, for tests about single answers.
//!
//! What must hold: a call that fails, or an answer that lacks what was asked for, fails the test at once; nothing is
//! retried except where a name says `until`. Deliberately absent: the client library, which hides single answers.

use std::collections::BTreeMap;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_records::{BatchBuilder, Compression, batches};
use highwater_types::WallTime;
use tonic::transport::Channel;

use crate::cluster::Server;
use crate::wait;

/// What a test asks for is not limited by its client.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// The services of one program.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Reading and writing.
    pub log: LogServiceClient<Channel>,
    /// The cluster and its topics.
    pub cluster: ClusterServiceClient<Channel>,
    /// Looking at replication.
    pub replication: ReplicationServiceClient<Channel>,
}

impl Calls {
    /// Calls of a server; the connection is made at the first one.
    #[must_use]
    pub fn of(server: &Server) -> Self {
        Self::over(server.channel())
    }

    /// Calls over a connection.
    #[must_use]
    pub fn over(channel: Channel) -> Self {
        Self {
            log: LogServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            cluster: ClusterServiceClient::new(channel.clone()),
            replication: ReplicationServiceClient::new(channel),
        }
    }

    /// Waits until the server knows so many nodes: only those can have replicas.
    pub async fn until_nodes(&self, count: usize) {
        wait::until(&format!("{count} nodes"), wait::SOON, async || {
            let request = v1::DescribeClusterRequest::default();
            let answer = self.cluster.clone().describe_cluster(request).await.ok()?.into_inner();
            (answer.nodes.len() == count).then_some(())
        })
        .await;
    }

    /// Creates a topic with replicas on these nodes and waits until each of its partitions has a leader.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        replicas: &[i32],
        properties: &[(&str, &str)],
    ) -> v1::Topic {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let request = v1::CreateTopicRequest {
            topic: name.to_owned(),
            partitions: Some(partitions),
            replicas: replicas.to_vec(),
            properties: properties.iter().map(owned).collect(),
            ..Default::default()
        };
        self.cluster.clone().create_topic(request).await.expect("the topic can be created");
        self.until_led(name).await
    }

    /// Waits until each partition of a topic has a leader, as this server knows.
    pub async fn until_led(&self, name: &str) -> v1::Topic {
        wait::until(&format!("leaders of {name}"), wait::SOON, async || {
            let topic = self.topic(name).await?;
            let led = |partition: &v1::Partition| partition.leader_id.is_some();
            (!topic.partitions.is_empty() && topic.partitions.iter().all(led)).then_some(topic)
        })
        .await
    }

    /// A topic by its name, if the server knows it.
    pub async fn topic(&self, name: &str) -> Option<v1::Topic> {
        let topics = vec![v1::TopicSelector { topic: name.to_owned(), ..Default::default() }];
        let request = v1::DescribeTopicsRequest { topics };
        let answer = self.cluster.clone().describe_topics(request).await.ok()?.into_inner();
        let described = answer.topics.into_iter().next()?;
        described.topic.filter(|_| described.error.is_none())
    }

    /// Produces to one partition; its part of the answer.
    pub async fn produce(&self, acks: v1::Acks, to: v1::ProducePartition) -> v1::ProducePartitionResult {
        let request = v1::ProduceRequest { acks: acks.into(), partitions: vec![to], ..Default::default() };
        let answer = self.log.clone().produce(request).await.expect("Produce is answered").into_inner();
        answer.partitions.into_iter().next().expect("one partition was produced to")
    }

    /// Appends batches with `acks=1`; the offset of the first record. Waits for the leadership, not for followers.
    pub async fn append(&self, topic: &str, partition: i32, records: Vec<u8>) -> i64 {
        wait::until(&format!("an append to {topic}-{partition}"), wait::SOON, async || {
            let result = self.produce(v1::Acks::Leader, to(topic, partition, records.clone())).await;
            match code(result.error.as_ref()) {
                None => Some(result.base_offset.expect("an acknowledged offset is told")),
                Some(
                    v1::ErrorCode::LeaderNotAvailable
                    | v1::ErrorCode::NotLeaderOrFollower
                    | v1::ErrorCode::ReplicaNotAvailable,
                ) => None,
                Some(_) => panic!("{topic}-{partition}: {:?}", result.error),
            }
        })
        .await
    }

    /// One Fetch.
    pub async fn fetch(&self, request: v1::FetchRequest) -> v1::FetchResponse {
        self.log.clone().fetch(request).await.expect("Fetch is answered").into_inner()
    }

    /// A consumer's Fetch of one partition without waiting; that partition's part of the answer.
    pub async fn fetch_one(&self, topic: &str, partition: i32, offset: i64) -> v1::FetchPartitionResult {
        let request = v1::FetchRequest {
            max_wait_ms: Some(0),
            partitions: vec![from(topic, partition, offset)],
            ..Default::default()
        };
        self.fetch(request).await.partitions.into_iter().next().expect("one partition was asked for")
    }

    /// The partitions of a topic that this leader-svc leads, with a row per follower.
    pub async fn rows(&self, topic: &str) -> Vec<v1::LedPartition> {
        let topics = vec![v1::TopicSelector { topic: topic.to_owned(), ..Default::default() }];
        let request = v1::DescribeReplicationRequest { topics };
        let answer = self.replication.clone().describe_replication(request).await;
        answer.expect("DescribeReplication is answered").into_inner().partitions
    }

    /// The fetch loops of an agent.
    pub async fn fetchers(&self) -> v1::DescribeFetchersResponse {
        let answer = self.replication.clone().describe_fetchers(v1::DescribeFetchersRequest {}).await;
        answer.expect("DescribeFetchers is answered").into_inner()
    }

    /// What this agent follows, by topic and partition.
    pub async fn followed(&self) -> BTreeMap<(String, i32), v1::FollowedPartition> {
        let described = self.fetchers().await;
        let looped = described.fetchers.into_iter().flat_map(|fetcher| fetcher.partitions);
        let all = looped.chain(described.unassigned);
        all.map(|followed| ((followed.topic.clone(), followed.partition.unwrap_or(-1)), followed)).collect()
    }

    /// Waits until an agent's logs of a topic end at `end`, and its high watermark is there too.
    pub async fn until_followed_to(&self, topic: &str, partitions: i32, end: i64) {
        wait::until(&format!("{topic} to be followed to {end}"), wait::SOON, async || {
            let followed = self.followed().await;
            let there = |index| {
                let partition = followed.get(&(topic.to_owned(), index));
                partition.is_some_and(|p| p.log_end_offset == Some(end) && p.high_watermark == Some(end))
            };
            (0..partitions).all(there).then_some(())
        })
        .await;
    }

    /// The same for one partition.
    pub async fn until_end(&self, topic: &str, partition: i32, end: i64) {
        wait::until(&format!("{topic}-{partition} to be followed to {end}"), wait::SOON, async || {
            let followed = self.followed().await;
            let found = followed.get(&(topic.to_owned(), partition))?;
            (found.log_end_offset == Some(end) && found.high_watermark == Some(end)).then_some(())
        })
        .await;
    }

    /// Waits until every follower of a topic's partitions is in sync and has everything.
    pub async fn until_in_sync(&self, topic: &str, followers: usize) {
        wait::until(&format!("{followers} followers of {topic} in sync"), wait::SOON, async || {
            self.are_in_sync(topic, followers).await.then_some(())
        })
        .await;
    }

    /// Whether this leads the topic, and so many followers of each partition are in sync and have everything.
    pub async fn are_in_sync(&self, topic: &str, followers: usize) -> bool {
        let rows = self.rows(topic).await;
        let done = |row: &v1::LedPartition| {
            row.followers.len() == followers
                && row.high_watermark == row.log_end_offset
                && row.followers.iter().all(|follower| {
                    follower.in_sync == Some(true) && follower.acknowledged_offset == row.log_end_offset
                })
        };
        !rows.is_empty() && rows.iter().all(done)
    }
}

/// A partition of a Produce with whole batches.
#[must_use]
pub fn to(topic: &str, partition: i32, records: Vec<u8>) -> v1::ProducePartition {
    v1::ProducePartition {
        topic: topic.to_owned(),
        partition: Some(partition),
        records: records.into(),
        ..Default::default()
    }
}

/// A partition of a consumer's Fetch.
#[must_use]
pub fn from(topic: &str, partition: i32, offset: i64) -> v1::FetchPartition {
    v1::FetchPartition {
        topic: topic.to_owned(),
        partition: Some(partition),
        fetch_offset: Some(offset),
        ..Default::default()
    }
}

/// A batch of `count` records whose values have `size` bytes each, of which no two neighbours are alike.
///
/// # Panics
/// When the batch would be larger than one can be.
#[must_use]
pub fn batch(count: usize, size: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None);
    for n in 0..count {
        let value = vec![u8::try_from(n % 251).expect("below 251"); size];
        builder.append(WallTime::from_millis(1000), None, Some(&value), &[]).expect("a small batch");
    }
    builder.build().expect("a batch has records").to_vec()
}

/// First and last offset, record count and leader epoch (-1: none) of each batch.
///
/// # Panics
/// When the bytes are not whole batches with right CRCs.
#[must_use]
pub fn shape(records: &[u8]) -> Vec<(i64, i64, i32, i32)> {
    let seen = batches(records).map(|batch| {
        let batch = batch.expect("whole batches");
        assert!(batch.crc_ok(), "the CRC at {} is wrong", batch.base_offset());
        let epoch = batch.leader_epoch().map_or(-1, |epoch| epoch.get());
        (batch.base_offset().get(), batch.last_offset().get(), batch.record_count(), epoch)
    });
    seen.collect()
}

/// The code of an error in an answer.
///
/// # Panics
/// When it is none that the protocol has.
#[must_use]
pub fn code(error: Option<&v1::PartitionError>) -> Option<v1::ErrorCode> {
    error.map(|error| v1::ErrorCode::try_from(error.code).expect("a code of the protocol"))
}
