//! A state: three nodes, the record in the store, what is under way, and what may still happen. Parts are shared between states
//! until one of them changes.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use highwater_coordination::CasOutcome;
use highwater_protocol::fetch::FetchPartition;
use highwater_protocol::follower::{AnswerFacts, FetchPosition, FollowerPartition};
use highwater_protocol::leader::LeaderPartition;
use highwater_types::{
    Incarnation, IsrMember, LeaderEpoch, MonotonicTime, NodeId, OffsetAndEpoch, PartitionEpoch,
    PartitionIndex, PartitionRecord, TopicId, TopicIdPartition,
};

use super::NODES;
use super::bounds::Bounds;
use super::log_twin::LogTwin;
use crate::core_sim::{Batch, History};

/// Incarnations of one node are numbered from this times its id on.
const INCARNATIONS: u64 = 32;

/// Milliseconds between two actions as followers count them: longer than any wait.
const MILLIS_PER_STEP: u64 = 1000;

/// One answer on its way.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) position: FetchPosition,
    pub(super) facts: AnswerFacts,
    /// The records, where it has some.
    pub(super) batches: Vec<Batch>,
}

/// Work on a follower's log that was decided and not done yet.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Append { generation: u64, batches: Vec<Batch> },
    Truncate { generation: u64, at: OffsetAndEpoch },
    Renew { generation: u64 },
}

/// A replica that follows.
#[derive(Clone, Debug)]
pub(super) struct Follows {
    pub(super) core: FollowerPartition,
    /// The answer to its last fetch.
    pub(super) answer: Option<Answer>,
    /// Answers that come late, or again.
    pub(super) late: Vec<Answer>,
    pub(super) work: VecDeque<Work>,
    /// It waits for the leader's range, under this generation.
    pub(super) question: Option<u64>,
}

/// A replica that leads, or believes so.
#[derive(Clone, Debug)]
pub(super) struct Leads {
    pub(super) core: LeaderPartition,
    /// The record by which it leads.
    pub(super) record: Arc<PartitionRecord>,
    /// Its own clock, which began with the leadership.
    pub(super) now: MonotonicTime,
    /// Incarnations of followers that it told to renew.
    pub(super) retired: BTreeSet<(NodeId, Incarnation)>,
}

/// A candidate that does not know whether it was elected.
#[derive(Clone, Debug)]
pub(super) struct Stands {
    pub(super) proposal: Arc<PartitionRecord>,
    pub(super) expected: PartitionEpoch,
}

/// What a node does with its log.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Nobody has it open.
    Idle,
    Follows(Box<Follows>),
    Leads(Box<Leads>),
    Stands(Stands),
}

/// A node: its log, and which of its programs has it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) log: LogTwin,
    pub(super) role: Role,
    /// How many incarnations it has had.
    pub(super) born: u64,
    /// Raised whenever the log is opened.
    pub(super) serial: u64,
    /// How often its programs have started.
    pub(super) starts: u64,
    /// Requests that it sent since.
    pub(super) sent: u64,
}

/// A compare-and-swap on its way.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) node: usize,
    /// For which opening of the log.
    pub(super) serial: u64,
    pub(super) new: Arc<PartitionRecord>,
    pub(super) expected: PartitionEpoch,
    /// What came of it, where the store has it.
    pub(super) outcome: Option<CasOutcome<Arc<PartitionRecord>>>,
    /// Nobody waits for it; it may still be made.
    pub(super) abandoned: bool,
}

/// A fetch that arrives late.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) serial: u64,
    pub(super) position: FetchPosition,
    pub(super) request: FetchPartition,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) bounds: Bounds,
    /// What may still happen.
    pub(super) left: Bounds,
    pub(super) record: Arc<PartitionRecord>,
    /// Leaders of before, whom an agent may still believe in.
    pub(super) former: Arc<Vec<(NodeId, LeaderEpoch)>>,
    pub(super) nodes: [Arc<Node>; NODES],
    pub(super) writes: Arc<Vec<Write>>,
    pub(super) requests: Arc<Vec<Request>>,
    pub(super) history: Arc<History>,
    pub(super) steps: u64,
}

impl State {
    /// All nodes have an empty log; nobody has it open. Either the partition is new, or whoever led epoch 0 has resigned.
    pub(super) fn new(bounds: Bounds) -> Self {
        let id = TopicId::from_kafka_text("AAAAAAAAAAAAAAAAAAAAAQ").expect("a topic's id");
        let partition = PartitionIndex::new(0).expect("the first partition");
        let replicas = (0..NODES).map(node_id).collect();
        let mut record = PartitionRecord::new(TopicIdPartition::new(id, partition), replicas);
        if !bounds.is_new {
            record.leader_epoch = Some(LeaderEpoch::FIRST);
            let member = |node| IsrMember { node: node_id(node), incarnation: incarnation(node, 0) };
            record.isr = (0..NODES).map(member).collect();
        }
        let highest_epoch = record.leader_epoch;
        let node = |node| {
            let log = LogTwin { highest_epoch, ..LogTwin::new(incarnation(node, 0)) };
            Arc::new(Node { log, role: Role::Idle, born: 1, serial: 0, starts: 1, sent: 0 })
        };
        Self {
            bounds,
            left: bounds,
            record: Arc::new(record),
            former: Arc::default(),
            nodes: std::array::from_fn(node),
            writes: Arc::default(),
            requests: Arc::default(),
            history: Arc::default(),
            steps: 0,
        }
    }

    pub(super) fn node(&mut self, node: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[node])
    }

    pub(super) fn leads(&self, node: usize) -> Option<&Leads> {
        match &self.nodes[node].role {
            Role::Leads(leads) => Some(leads.as_ref()),
            Role::Idle | Role::Follows(_) | Role::Stands(_) => None,
        }
    }

    pub(super) fn follows(&self, node: usize) -> Option<&Follows> {
        match &self.nodes[node].role {
            Role::Follows(follows) => Some(follows.as_ref()),
            Role::Idle | Role::Leads(_) | Role::Stands(_) => None,
        }
    }

    /// The time by which followers decide: each action comes after every wait of before.
    pub(super) const fn follower_time(&self) -> MonotonicTime {
        MonotonicTime::from_millis(self.steps * MILLIS_PER_STEP)
    }
}

impl Node {
    pub(super) fn leads(&mut self) -> Option<(&mut Leads, &mut LogTwin)> {
        match &mut self.role {
            Role::Leads(leads) => Some((leads.as_mut(), &mut self.log)),
            Role::Idle | Role::Follows(_) | Role::Stands(_) => None,
        }
    }

    pub(super) fn follows(&mut self) -> Option<(&mut Follows, &mut LogTwin)> {
        match &mut self.role {
            Role::Follows(follows) => Some((follows.as_mut(), &mut self.log)),
            Role::Idle | Role::Leads(_) | Role::Stands(_) => None,
        }
    }

    /// Takes a fresh incarnation, durably.
    pub(super) fn renew(&mut self, node: usize) {
        self.log.incarnation = incarnation(node, self.born);
        self.born += 1;
    }
}

/// Answers whether one more was left, and takes it.
pub(super) fn spend(left: &mut u8) -> bool {
    let had = *left > 0;
    *left = left.saturating_sub(1);
    had
}

pub(super) fn node_id(node: usize) -> NodeId {
    i32::try_from(node).ok().and_then(NodeId::new).expect("a node's index is its id")
}

pub(super) fn node_index(node: NodeId) -> usize {
    usize::try_from(node.get()).expect("a node's id is its index")
}

/// A node's incarnation, by number.
pub(super) fn incarnation(node: usize, number: u64) -> Incarnation {
    assert!(number < INCARNATIONS, "that many incarnations are not expected of these bounds");
    Incarnation::new((node as u64 + 1) * INCARNATIONS + number).expect("not zero")
}

/// Whose incarnation it is, and which.
pub(super) fn incarnation_parts(incarnation: Incarnation) -> (usize, u64) {
    let raw = incarnation.get();
    let node = usize::try_from(raw / INCARNATIONS - 1).expect("a node's index");
    (node, raw % INCARNATIONS)
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "    {}", record_text(&self.record))?;
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "\n    n{index} {}", node_text(node))?;
        }
        for write in self.writes.iter() {
            let fate = match (&write.outcome, write.abandoned) {
                (Some(CasOutcome::Committed(_)), _) => "made, not told",
                (Some(CasOutcome::Conflict(_)), _) => "in conflict, not told",
                (None, true) => "may be made late",
                (None, false) => "under way",
            };
            let expected = write.expected.get();
            write!(
                f,
                "\n    write of n{} against v{expected}, {fate}: {}",
                write.node,
                record_text(&write.new)
            )?;
        }
        for late in self.requests.iter() {
            let ask = &late.request;
            let (at, held) = (ask.fetch_offset, ask.acknowledged());
            write!(f, "\n    late fetch n{}→n{} from {at} holding {held}", late.from, late.to)?;
        }
        Ok(())
    }
}

fn record_text(record: &PartitionRecord) -> String {
    let member = |m: &IsrMember| format!("n{}i{}", m.node, incarnation_parts(m.incarnation).1);
    let isr: Vec<_> = record.isr.iter().map(member).collect();
    let leader = record.leader.map_or_else(|| "nobody".to_owned(), |leader| format!("n{leader}"));
    let epoch = record.leader_epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
    format!("record v{}: {leader} leads e{epoch}, ISR {}", record.partition_epoch.get(), isr.join(" "))
}

fn node_text(node: &Node) -> String {
    let log = &node.log;
    let batch = |b: &Batch| format!("{}@e{}", b.crc, b.epoch.map_or(-1, LeaderEpoch::get));
    let batches: Vec<_> = log.batches.iter().map(batch).collect();
    let epochs: Vec<_> = log.epochs.entries().iter().map(|e| format!("e{}:{}", e.epoch, e.start)).collect();
    let held = format!(
        "i{} [{}] flushed {} epochs {}",
        incarnation_parts(log.incarnation).1,
        batches.join(" "),
        log.flushed,
        epochs.join(" ")
    );
    match &node.role {
        Role::Idle => format!("idle     {held} HW on file {}", log.high_watermark.0),
        Role::Stands(_) => format!("stands   {held}"),
        Role::Follows(follows) => {
            let core = &follows.core;
            let essence = core.essence();
            format!(
                "follows  {held} HW {} of n{} e{} {}, {} late, {} to do",
                core.high_watermark(),
                core.leader(),
                core.leader_epoch(),
                essence.phase,
                follows.late.len(),
                follows.work.len()
            )
        }
        Role::Leads(leads) => {
            let core = &leads.core;
            let row = |f: highwater_protocol::leader::FollowerOfLeader| {
                format!(
                    "n{}:{}",
                    f.node,
                    f.acknowledged.map_or_else(|| "?".to_owned(), |held| held.to_string())
                )
            };
            let rows: Vec<_> = core.essence(leads.now).followers.into_iter().map(row).collect();
            let isr: Vec<_> = core.isr().iter().map(|m| format!("n{}", m.node)).collect();
            let pending = if core.is_isr_change_pending() { ", a change pending" } else { "" };
            let (hw, epoch) = (core.high_watermark(), core.epoch());
            format!("leads e{epoch} {held} HW {hw} ISR {}{pending} held {}", isr.join(" "), rows.join(" "))
        }
    }
}
