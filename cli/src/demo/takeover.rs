//! Kills the node that leads the first partition in the middle of the input, shows who leads instead, and starts the node
//! again.
//!
//! What holds: a first part of the input is acknowledged before, a second part is sent while the killed node's partitions have
//! no leader, a third part after they have one again; the last record of each part is the sender's to wait at. An input of
//! fewer records than parts has some of them empty.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use highwater_client::{Client, DescribedTopic};
use highwater_types::{LeaderEpoch, NodeId, PartitionIndex, TopicName};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::nodes::Nodes;
use super::{report, say};
use crate::load::Progress;
use crate::outcome::CommandError;

/// How long the first part may take until it is acknowledged; then the node is killed all the same.
const FIRST_PART_BOUND: Duration = Duration::from_secs(120);
/// How long the other nodes may take to lead everything.
const TAKEOVER_BOUND: Duration = Duration::from_secs(30);
/// How often it is looked whether they do.
const POLL: Duration = Duration::from_millis(10);

/// Where the sender waits for what happens to the nodes.
#[derive(Debug)]
pub(super) struct Stages {
    /// Records of the whole input.
    records: u64,
    /// Records that were handed over so far.
    sent: Cell<u64>,
    killed: CancellationToken,
    taken_over: CancellationToken,
    /// No more is sent, whether all was or not.
    sender_ended: CancellationToken,
}

impl Stages {
    /// For an input of so many records.
    pub(super) fn new(records: u64) -> Self {
        Self {
            records,
            sent: Cell::new(0),
            killed: CancellationToken::new(),
            taken_over: CancellationToken::new(),
            sender_ended: CancellationToken::new(),
        }
    }

    /// To be called after each record; waits where what comes next belongs to another part.
    pub(super) async fn sent_one(&self) {
        self.sent.set(self.sent.get().saturating_add(1));
        if self.sent.get() == self.part(2) {
            self.killed.cancelled().await;
        }
        if self.sent.get() == self.part(3) {
            self.taken_over.cancelled().await;
        }
    }

    /// To be held by the sender; when it is dropped, nothing more will be sent.
    pub(super) fn end_of_sending(&self) -> DropGuard {
        self.sender_ended.clone().drop_guard()
    }

    /// So many quarters of the input, rounded up.
    fn part(&self, quarters: u64) -> u64 {
        self.records.saturating_mul(quarters).div_ceil(4)
    }

    /// Without anybody to take over, there is nothing to wait for.
    pub(super) fn skip(&self) {
        self.killed.cancel();
        self.taken_over.cancel();
    }
}

/// What a killed node led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Killed {
    /// The node.
    pub(super) node: NodeId,
    /// The partitions that it led, and in which epoch.
    pub(super) led: BTreeMap<PartitionIndex, LeaderEpoch>,
}

impl Killed {
    /// The leader of the topic's first partition.
    fn of(topic: &DescribedTopic) -> Option<Self> {
        let node = topic.partitions.first()?.record.leader?;
        let records = topic.partitions.iter().map(|partition| &partition.record);
        let its = records.filter(|record| record.leader == Some(node));
        let led = its.filter_map(|record| Some((record.partition, record.leader_epoch?))).collect();
        Some(Self { node, led })
    }
}

/// A leadership after the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Successor {
    pub(super) partition: PartitionIndex,
    pub(super) node: NodeId,
    pub(super) epoch: LeaderEpoch,
    /// The epoch in which the killed node led.
    pub(super) before: LeaderEpoch,
    /// From the kill until it was seen.
    pub(super) after: Duration,
}

/// Kills the leader once the first part is acknowledged, and has it back once the others lead. `None`: the sending ended
/// before there was anything to kill for.
pub(super) async fn take_over(
    nodes: &Nodes,
    client: &Client,
    topic: &TopicName,
    progress: &Progress,
    stages: &Stages,
    out: &mut dyn Write,
) -> Result<Option<Killed>, CommandError> {
    let first_part = async {
        while progress.records() < stages.part(1) {
            tokio::time::sleep(POLL).await;
        }
    };
    let first_part = tokio::time::timeout(FIRST_PART_BOUND, first_part);
    if stages.sender_ended.run_until_cancelled(first_part).await.is_none() {
        return Ok(None);
    }
    let failed = |e| CommandError::cluster(format!("describe topic {topic}"), e);
    let Some(killed) = Killed::of(&*client.describe_topic(topic).await.map_err(failed)?) else {
        return Err(CommandError::Failed(format!("nobody leads {topic}-0")));
    };
    say(out, report::kill(topic, &killed, progress.records()))?;
    nodes.kill(killed.node);
    let (at, sent) = (Instant::now(), stages.sent.get());
    progress.begin_to_measure_pauses();
    stages.killed.cancel();

    let successors = successors(client, topic, &killed, at);
    let timed_out =
        |_| CommandError::Failed(format!("not every partition has a leader after {TAKEOVER_BOUND:?}"));
    let successors = tokio::time::timeout(TAKEOVER_BOUND, successors).await.map_err(timed_out)??;
    say(out, report::successors(topic, &killed, &successors, stages.sent.get().saturating_sub(sent)))?;
    stages.taken_over.cancel();

    nodes.start_again(killed.node).await?;
    say(out, report::started_again(&killed))?;
    Ok(Some(killed))
}

/// Waits until other nodes lead everything that the killed one led.
async fn successors(
    client: &Client,
    topic: &TopicName,
    killed: &Killed,
    at: Instant,
) -> Result<Vec<Successor>, CommandError> {
    let mut found: BTreeMap<PartitionIndex, Successor> = BTreeMap::new();
    loop {
        let described = client.describe_topic(topic).await;
        let described = described.map_err(|e| CommandError::cluster(format!("describe topic {topic}"), e))?;
        let after = at.elapsed();
        for successor in new_leaders(&described, killed, after) {
            found.entry(successor.partition).or_insert(successor);
        }
        if found.len() == killed.led.len() {
            return Ok(found.into_values().collect());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Who leads in an epoch above that of the killed node.
fn new_leaders<'a>(
    topic: &'a DescribedTopic,
    killed: &'a Killed,
    after: Duration,
) -> impl Iterator<Item = Successor> + 'a {
    topic.partitions.iter().filter_map(move |partition| {
        let record = &partition.record;
        let before = *killed.led.get(&record.partition)?;
        let (node, epoch) = (record.leader?, record.leader_epoch?);
        (epoch > before).then_some(Successor { partition: record.partition, node, epoch, before, after })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_part_of_the_input_waits_for_what_comes_before_it() {
        for records in [1, 2, 3, 7, 1000] {
            let stages = Stages::new(records);
            let send = async {
                for _ in 0..records {
                    stages.sent_one().await;
                }
            };
            let happen = async {
                tokio::task::yield_now().await;
                let before = stages.sent.get();
                stages.killed.cancel();
                tokio::task::yield_now().await;
                let meanwhile = stages.sent.get();
                stages.taken_over.cancel();
                (before, meanwhile)
            };
            let ((), (before, meanwhile)) = tokio::join!(send, happen);
            assert_eq!((before, meanwhile), (stages.part(2), stages.part(3)), "{records}");
            assert_eq!(stages.sent.get(), records);
        }
    }

    #[tokio::test]
    async fn without_a_takeover_nothing_waits() {
        let stages = Stages::new(8);
        stages.skip();
        for _ in 0..8 {
            stages.sent_one().await;
        }
        assert_eq!(stages.sent.get(), 8);
    }
}
