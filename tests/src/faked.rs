//! A real follower-agent, of node 2, below a fake leader, of node 1, that answers from fake logs: the topic `t`.

use std::net::SocketAddr;

use highwater_types::{PartitionIndex, Program, TopicId, TopicIdPartition, TopicProperties};

use crate::calls::Calls;
use crate::cluster::{Cluster, Plan, ServerId};
use crate::fake_leader::{FakeLeader, LedTopic, lead, lead_again};
use crate::fake_log::FakeLogs;
use crate::log_files::LogBytes;
use crate::ports;

/// The agent.
pub const AGENT: ServerId = (2, Program::FollowerAgent);

/// See the module.
#[derive(Debug)]
pub struct Faked {
    /// The agent's cluster.
    pub cluster: Cluster,
    /// The leader.
    pub fake: FakeLeader,
    /// What it answers from, unless a test gives it another script.
    pub logs: FakeLogs,
    /// The topic.
    pub topic: TopicId,
}

impl Faked {
    /// The topic's partitions are led in `leader_epoch`; nothing runs yet but the fake.
    pub async fn new(partitions: i32, leader_epoch: i32, properties: TopicProperties) -> Self {
        let plan = Plan::new().program(2, Program::FollowerAgent);
        Self::planned(plan, ports::loopback(), partitions, leader_epoch, properties).await
    }

    /// The same with an agent as planned.
    pub async fn planned(
        plan: Plan,
        leader: SocketAddr,
        partitions: i32,
        leader_epoch: i32,
        properties: TopicProperties,
    ) -> Self {
        let fake = FakeLeader::start(leader).await;
        let cluster = plan.without_starting();
        let name = "t".parse().expect("a name");
        let topic = LedTopic { name, partitions, leader_epoch, replicas: vec![1, 2], properties };
        let topic = lead(&cluster.coordination_dir(), leader, topic).await;
        let logs = FakeLogs::default();
        logs.serve(&fake, topic);
        Self { cluster, fake, logs, topic }
    }

    /// Starts the agent and waits until it serves.
    pub async fn start_agent(&mut self) -> Calls {
        self.cluster.start_and_wait(AGENT).await;
        Calls::of(self.cluster.agent(2))
    }

    /// The leader leads a partition in its next epoch.
    pub async fn lead_again(&self, partition: i32) {
        let index = PartitionIndex::new(partition).expect("an index");
        lead_again(&self.cluster.coordination_dir(), TopicIdPartition::new(self.topic, index)).await;
    }

    /// Where the agent has a partition.
    #[must_use]
    pub fn directory(&self, partition: i32) -> std::path::PathBuf {
        self.cluster.data_dir(2).join(format!("t-{partition}"))
    }

    /// What the agent has of a partition.
    #[must_use]
    pub fn log(&self, partition: i32) -> LogBytes {
        LogBytes::read(&self.directory(partition))
    }
}
