//! A3: directories that our log wrote, as a leader and as a follower, pass Kafka's own DumpLogSegments: every batch and
//! record with `--deep-iteration`, and the indexes with its sanity check.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]

#[path = "kafka_reads_ours/logs.rs"]
mod logs;
#[path = "kafka_reads_ours/verdict.rs"]
mod verdict;

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use highwater_client::{Client, ClientConfig, Producer, ProducerConfig, ProducerRecord};
use highwater_records::{Compression, Header};
use highwater_types::{NodeId, Program, TopicName, TopicProperties};
use highwater_wire::admin::{CreateTopic, Placement};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::kafka_dump::KafkaDump;
use system_tests::{log_dump, wait};

use logs::{
    Node, adopted, followed, led, recovered, truncated, with_a_log_start, with_foreign_batches, with_gaps,
    with_odd_timestamps,
};
use verdict::{assert_kafka_agrees, files, kafka};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const TOPIC: &str = "served";
/// Several requests of several batches for each codec.
const RECORDS_PER_CODEC: usize = 400;
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn kafka_reads_every_kind_of_log_that_we_write() {
    let nodes = [
        led(),
        followed(),
        truncated(),
        recovered(),
        with_a_log_start(),
        with_odd_timestamps(),
        with_foreign_batches(),
        with_gaps(),
        adopted(),
    ];
    for node in &nodes {
        node.close();
    }
    assert_kafka_agrees(&nodes.each_ref().map(Node::partition));
}

#[test]
fn kafka_would_complain_of_a_wrong_index_and_a_wrong_byte() {
    let leader = led();
    leader.close();
    let indexes = files(&leader.partition(), &["index"]);
    let mut bytes = fs::read(&indexes[0]).unwrap();
    bytes[7] ^= 1;
    fs::write(&indexes[0], &bytes).unwrap();
    let Some(verdict) = kafka(&indexes[..1], &[]) else { return };
    assert!(!verdict.complaints.is_empty(), "a position that is off by one");

    let logs = files(&leader.partition(), &["log"]);
    let mut bytes = fs::read(&logs[0]).unwrap();
    bytes[100] ^= 1;
    fs::write(&logs[0], &bytes).unwrap();
    let Some(verdict) = kafka(&logs[..1], &[]) else { return };
    let dump = KafkaDump::parse(&verdict.printed).unwrap();
    assert!(dump.logs[&logs[0]].batches.iter().any(|batch| !batch.is_valid));
}

async fn pair() -> (Cluster, Client) {
    let cluster = Plan::new().program(LEADER.0, LEADER.1).program(AGENT.0, AGENT.1).start().await;
    let client = Client::new(ClientConfig::new(vec![cluster.bootstrap().parse().unwrap()])).unwrap();
    wait::until("the agent's registration", wait::SOON, async || {
        (client.describe_cluster().await.ok()?.nodes.len() == 2).then_some(())
    })
    .await;
    let properties = TopicProperties {
        segment_bytes: 64 << 10,
        index_interval_bytes: 512,
        min_insync_replicas: 1,
        ..TopicProperties::default()
    };
    let nodes = [LEADER.0, AGENT.0].map(|node| NodeId::new(node).unwrap());
    let create = CreateTopic {
        name: TOPIC.parse().unwrap(),
        partitions: 1,
        placement: Placement::Nodes(nodes.to_vec()),
        properties,
    };
    client.create_topic(&create).await.unwrap();
    (cluster, client)
}

/// Produces with every codec at the same time, so that their batches lie side by side in the log.
async fn produce(client: &Client, round: i32) {
    let topic: TopicName = TOPIC.parse().unwrap();
    let codecs = Compression::ALL.into_iter().map(|compression| {
        let (client, topic) = (client.clone(), topic.clone());
        tokio::spawn(async move {
            let config = ProducerConfig { compression, batch_bytes: 2000, ..ProducerConfig::default() };
            let producer = Producer::new(client, config).unwrap();
            for number in 0..RECORDS_PER_CODEC {
                let text = |what: &str| Bytes::from(format!("{what} {compression:?} {round} {number}"));
                let header = Header { key: "n".to_owned(), value: (number % 2 == 0).then(|| text("header")) };
                let record = ProducerRecord {
                    key: (number % 3 != 0).then(|| text("key")),
                    value: (number % 5 != 0).then(|| text("value ").repeat(5).into()),
                    headers: vec![header; number % 3],
                    ..ProducerRecord::default()
                };
                producer.send(&topic, record).await.unwrap();
            }
            producer.flush().await.unwrap();
        })
    });
    for codec in codecs.collect::<Vec<_>>() {
        codec.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_reads_what_the_programs_wrote_under_load() {
    let (mut cluster, client) = pair().await;
    for round in 0..3 {
        produce(&client, round).await;
        // Each start is a leadership of its own.
        cluster.server_mut(LEADER).kill();
        cluster.start_and_wait(LEADER).await;
    }
    produce(&client, 3).await;
    wait::until("the follower", CAUGHT_UP_WITHIN, async || {
        let rows = client.describe_replication(&[]).await.ok()?.rows;
        let [row] = rows.as_slice() else { return None };
        (row.in_sync && row.acknowledged_offset == row.leader_end_offset).then_some(())
    })
    .await;
    for server in [AGENT, LEADER] {
        cluster.server_mut(server).terminate(wait::SOON).await;
    }
    let partitions = [LEADER, AGENT].map(|(node, _)| cluster.data_dir(node).join(format!("{TOPIC}-0")));
    log_dump::assert_identical(&partitions.each_ref().map(|partition| partition.as_path()));
    let written = log_dump::dump(&partitions[1]).1;
    let epochs: Vec<i32> = written.leader_epochs.iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, [0, 1, 2, 3]);
    assert!(written.segments.len() >= 4, "several segments");
    assert_kafka_agrees(&partitions);
}
