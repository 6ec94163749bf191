//! Our side: a leader-svc that holds the data, and a follower-agent that starts empty in each round.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use highwater_client::{Client, ClientConfig, Producer, ProducerConfig, ProducerRecord};
use highwater_types::{Durability, Endpoint, NodeId, Program, TopicName, TopicProperties};
use highwater_wire::admin::{CreateTopic, Placement};
use highwater_wire::produce::Acks;
use rand::{RngExt as _, SeedableRng as _};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::{log_dump, wait};

use crate::measure::{Measured, Subject, log_bytes, watch};
use crate::{Data, TOPIC};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);

/// A pair with a filled leader.
pub(crate) struct Ours {
    cluster: Cluster,
    client: Client,
    durability: Durability,
    target: u64,
}

impl Ours {
    /// Starts the leader and fills it.
    pub(crate) async fn start(durability: Durability, data: &Data) -> Self {
        let mut cluster = Plan::new().program(LEADER.0, LEADER.1).program(AGENT.0, AGENT.1).start().await;
        let endpoint: Endpoint = cluster.bootstrap().parse().expect("an address");
        let client = Client::new(ClientConfig::new(vec![endpoint])).expect("there is a bootstrap address");
        // A topic can have a replica on a node that is known; the agent runs during rounds only.
        wait::until("the agent's registration", wait::SOON, async || {
            (client.describe_cluster().await.ok()?.nodes.len() == 2).then_some(())
        })
        .await;
        cluster.server_mut(AGENT).terminate(wait::SOON).await;
        let topic: TopicName = TOPIC.parse().expect("a topic's name");
        let nodes = [LEADER.0, AGENT.0].map(|node| NodeId::new(node).expect("a node's id"));
        let properties = TopicProperties { durability, ..TopicProperties::default() };
        let placement = Placement::Nodes(nodes.to_vec());
        let create = CreateTopic { name: topic.clone(), partitions: 1, placement, properties };
        client.create_topic(&create).await.expect("the topic is created");
        fill(&client, &topic, data).await;
        let mut ours = Self { cluster, client, durability, target: 0 };
        ours.target = log_bytes(&ours.directory(LEADER));
        ours
    }

    /// One catch-up of an empty follower.
    pub(crate) async fn round(&mut self) -> Measured {
        self.cluster.start(AGENT);
        let directory = self.directory(AGENT);
        let id = |server| self.cluster.server(server).process().id();
        let subject =
            Subject { leader: id(LEADER), follower: id(AGENT), directory: &directory, target: self.target };
        let measured = watch(&subject, async || self.is_acknowledged().await).await;
        self.cluster.server_mut(AGENT).terminate(wait::SOON).await;
        log_dump::assert_identical(&[&self.directory(LEADER), &directory]);
        fs::remove_dir_all(self.cluster.data_dir(AGENT.0)).expect("the agent has stopped");
        fs::create_dir_all(self.cluster.data_dir(AGENT.0)).expect("a directory can be made");
        measured
    }

    /// Whether the follower holds everything as the durability demands. In the page cache is where the files are.
    async fn is_acknowledged(&self) -> bool {
        if self.durability == Durability::PageCache {
            return true;
        }
        let rows = self.client.describe_replication(&[]).await.expect("the leader answers").rows;
        rows.iter().all(|row| row.acknowledged_offset == row.leader_end_offset)
    }

    fn directory(&self, server: ServerId) -> PathBuf {
        self.cluster.data_dir(server.0).join(format!("{TOPIC}-0"))
    }
}

/// Writes the data in batches as large as Kafka's producer makes them.
async fn fill(client: &Client, topic: &TopicName, data: &Data) {
    let config =
        ProducerConfig { acks: Acks::Leader, batch_bytes: data.batch_bytes, ..ProducerConfig::default() };
    let producer = Producer::new(client.clone(), config).expect("the buffer holds a batch");
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    for _ in 0..data.records {
        let value: Vec<u8> = (0..data.record_bytes).map(|_| random.random_range(b'A'..=b'Z')).collect();
        let record = ProducerRecord::of_value(Bytes::from(value));
        producer.send(topic, record).await.expect("the record is taken");
    }
    producer.flush().await.expect("everything is delivered");
}
