//! A node: one disk, and the two programs that share it. Each program is a process of its own on the simulated disk, with
//! its own view of the store, and either can die, stop and start alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_log::storage::sim::{SimDisk, SimStorage};
use highwater_log::{BufferPool, LogConfig, PartitionLocks, Storage};
use highwater_protocol::fetch::FetchPartition;
use highwater_protocol::follower::FetchPosition;
use highwater_replica::{
    AskOffsets, FollowerReplica, FollowerStep, FollowerWork, FreshIncarnation, LeaderReplica, Refill,
    ReplicaPlace,
};
use highwater_types::{
    Incarnation, NodeId, Offset, PartitionIndex, PartitionRecord, TopicId, TopicIdPartition, TopicPartition,
};
use uuid::Uuid;

use super::producers::Waiting;
use super::scenario::PartitionPlan;
use super::shadow::Shadow;
use super::standing::Standing;

/// Which program of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    LeaderSvc,
    Agent,
}

/// Whether a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    Down,
    Up,
    /// Stopped by a signal: it does nothing, and holds what it holds.
    Paused,
}

/// A process, at times.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) storage: SimStorage,
    pub(super) locks: PartitionLocks,
    pub(super) running: Running,
    /// The version of each partition's record that this program has seen; its view never goes back.
    pub(super) known: Vec<usize>,
}

impl Program {
    fn new(storage: SimStorage, partitions: usize) -> Self {
        let locks = PartitionLocks::simulated(&storage);
        Self { storage, locks, running: Running::Down, known: vec![0; partitions] }
    }

    fn restart_as(&mut self, storage: SimStorage) {
        *self = Self::new(storage, self.known.len());
    }

    pub(super) fn is_up(&self) -> bool {
        self.running == Running::Up
    }
}

/// A fetch that waits at a leader for something to answer.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) from: (usize, u64),
    pub(super) position: FetchPosition,
    pub(super) request: FetchPartition,
}

/// A partition that this node leads.
#[derive(Debug)]
pub(super) struct Leads {
    pub(super) replica: LeaderReplica<SimStorage>,
    /// Which opening of a log this is, in the whole run.
    pub(super) serial: u64,
    /// When the leadership began, in milliseconds of the run.
    pub(super) since: u64,
    pub(super) record: PartitionRecord,
    /// Whether a reader met damage.
    pub(super) damaged: bool,
    /// The segment in which a reader met a bad batch that is not on record.
    pub(super) rot: Option<Offset>,
    /// Incarnations that were told that they were replaced.
    pub(super) retired: BTreeSet<(NodeId, Incarnation)>,
    /// Followers of which it heard that they are dead, have failed or were paused.
    pub(super) absent: BTreeSet<NodeId>,
    pub(super) parked: Vec<Parked>,
    /// Produced under `acks=all`, not answered yet.
    pub(super) waiting: Vec<Waiting>,
}

/// A partition that this node's leader-svc has to do with.
#[derive(Debug, Default)]
pub(super) enum Led {
    #[default]
    Not,
    Stands(Box<Standing>),
    Leads(Box<Leads>),
}

/// A partition that this node's agent follows.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) replica: FollowerReplica<SimStorage>,
    pub(super) serial: u64,
    pub(super) work: VecDeque<FollowerWork>,
    pub(super) question: Option<AskOffsets>,
    /// A damaged range on its way back.
    pub(super) refill: Option<Refill>,
}

impl Followed {
    pub(super) fn take(&mut self, step: FollowerStep) {
        self.work.extend(step.work);
        self.question = step.ask_offsets.or(self.question);
    }
}

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) disk: SimDisk,
    boot: u128,
    pub(super) leader_svc: Program,
    pub(super) agent: Program,
    pub(super) led: Vec<Led>,
    pub(super) followed: Vec<Option<Box<Followed>>>,
    pub(super) shadows: Vec<Shadow>,
    /// What each replica acknowledged in a request, with which incarnation: a start must find it again.
    pub(super) acknowledged: Vec<Option<(Incarnation, Offset)>>,
    /// An older copy of the disk.
    pub(super) copy: Option<(u64, SimDisk)>,
    /// How often its programs have started.
    pub(super) starts: u64,
    /// Each replica's incarnation, as last seen from outside; `None` when its disk is gone.
    pub(super) incarnations: Vec<Option<Incarnation>>,
    /// Whether a flush of this disk has failed: what is lost then may be on record as lost.
    pub(super) flush_failed: bool,
    /// Whether a segment of this disk was lost: likewise.
    pub(super) segment_lost: bool,
    /// Whether a start died while it wrote the disk's identity. Its 17 bytes are torn here, as no real disk tears them: the disk is
    /// then a foreign one.
    pub(super) identity_torn: bool,
    /// Its power goes soon, in one of so many steps.
    pub(super) doomed: Option<u64>,
    /// Its power goes soon after a log has been opened here.
    pub(super) doomed_when_open: bool,
    /// Whether a person paused each replica; that ends with the agent.
    pub(super) suspended: Vec<bool>,
    /// From when on each partition's leadership may be handed over for a move, in milliseconds of the run.
    pub(super) moves_from: Vec<u64>,
    /// Partitions whose leadership this leader-svc has handed over because its own log is damaged: once each.
    pub(super) handed_over: BTreeSet<usize>,
    /// Segments in which readers met a bad batch before the leadership was handed over: they go on record.
    pub(super) rot_met: BTreeMap<usize, Offset>,
}

pub(super) fn data_dir() -> &'static Path {
    Path::new("/data")
}

pub(super) fn node_id(index: usize) -> NodeId {
    let raw = i32::try_from(index).expect("few nodes") + 1;
    NodeId::new(raw).expect("positive")
}

/// The index of a node.
pub(super) fn index_of(id: NodeId) -> usize {
    usize::try_from(id.get()).expect("positive") - 1
}

pub(super) fn partition_id(partition: usize) -> TopicIdPartition {
    let topic = TopicId::new(Uuid::from_u128(0x4869_6768_7761_7465_7200 + partition as u128));
    TopicIdPartition::new(topic.expect("not zero"), PartitionIndex::new(0).expect("not negative"))
}

/// An empty disk with a data directory.
pub(super) fn empty_disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let storage = disk.process();
    storage.create_dir_all(data_dir()).expect("a new disk works");
    storage.sync_dir(Path::new("/")).expect("a new disk works");
    disk
}

impl Node {
    pub(super) fn new(index: usize, disk: SimDisk, partitions: usize) -> Self {
        Self {
            id: node_id(index),
            boot: 1 + ((index as u128) << 64),
            leader_svc: Program::new(disk.process(), partitions),
            agent: Program::new(disk.process(), partitions),
            disk,
            led: (0..partitions).map(|_| Led::Not).collect(),
            followed: (0..partitions).map(|_| None).collect(),
            shadows: (0..partitions).map(|_| Shadow::default()).collect(),
            acknowledged: vec![None; partitions],
            copy: None,
            starts: 0,
            incarnations: vec![None; partitions],
            flush_failed: false,
            segment_lost: false,
            identity_torn: false,
            doomed: None,
            doomed_when_open: false,
            suspended: vec![false; partitions],
            moves_from: vec![0; partitions],
            handed_over: BTreeSet::new(),
            rot_met: BTreeMap::new(),
        }
    }

    pub(super) fn program(&self, which: Which) -> &Program {
        match which {
            Which::LeaderSvc => &self.leader_svc,
            Which::Agent => &self.agent,
        }
    }

    pub(super) fn program_mut(&mut self, which: Which) -> &mut Program {
        match which {
            Which::LeaderSvc => &mut self.leader_svc,
            Which::Agent => &mut self.agent,
        }
    }

    pub(super) fn leads(&self, partition: usize) -> Option<&Leads> {
        match &self.led[partition] {
            Led::Leads(leads) => Some(leads),
            Led::Not | Led::Stands(_) => None,
        }
    }

    pub(super) fn leads_mut(&mut self, partition: usize) -> Option<&mut Leads> {
        match &mut self.led[partition] {
            Led::Leads(leads) => Some(leads),
            Led::Not | Led::Stands(_) => None,
        }
    }

    /// `kill -9`: what was written stays, flushed or not.
    pub(super) fn kill(&mut self, which: Which) {
        let program = self.program_mut(which);
        let storage = program.storage.crash_process();
        program.restart_as(storage);
        match which {
            Which::LeaderSvc => {
                self.handed_over.clear();
                self.rot_met.clear();
                self.led.iter_mut().for_each(|led| *led = Led::Not);
            }
            Which::Agent => {
                self.suspended.fill(false);
                self.followed.iter_mut().for_each(|followed| *followed = None);
            }
        }
    }

    /// Loses power: what was not flushed may be gone, in part or as a whole.
    pub(super) fn lose_power(&mut self) {
        self.disk.power_loss();
        (self.doomed, self.doomed_when_open) = (None, false);
        self.boot += 1;
        self.run_on(self.disk.clone());
    }

    /// Another disk is in the machine, which was switched off for that.
    pub(super) fn swap_disk(&mut self, disk: SimDisk) {
        self.boot += 1;
        self.incarnations.iter_mut().for_each(|incarnation| *incarnation = None);
        self.run_on(disk);
    }

    fn run_on(&mut self, disk: SimDisk) {
        self.suspended.fill(false);
        self.handed_over.clear();
        self.rot_met.clear();
        self.led.iter_mut().for_each(|led| *led = Led::Not);
        self.followed.iter_mut().for_each(|followed| *followed = None);
        self.shadows.iter_mut().for_each(|shadow| *shadow = Shadow::default());
        self.leader_svc.restart_as(disk.process());
        self.agent.restart_as(disk.process());
        self.disk = disk;
    }

    /// Where a replica lies, for one of the programs.
    pub(super) fn place(
        &self,
        which: Which,
        partition: usize,
        plan: &PartitionPlan,
        incarnations: &Arc<AtomicU64>,
    ) -> ReplicaPlace<SimStorage> {
        let id = partition_id(partition);
        let name = format!("topic{partition}").parse().expect("a name");
        ReplicaPlace {
            storage: self.program(which).storage.clone(),
            data_dir: PathBuf::from(data_dir()),
            partition: TopicPartition::new(name, id.partition),
            topic_id: id.topic_id,
            // Small segments, so that cuts and crashes meet their edges.
            config: LogConfig {
                durability: plan.durability,
                segment_bytes: plan.segment_bytes,
                segment_index_bytes: 240,
                index_interval_bytes: 200,
                retention_ms: None,
                retention_bytes: plan.retention.then_some(1500),
                ..LogConfig::default()
            },
            boot_id: Uuid::from_u128(self.boot),
            read_buffers: BufferPool::new(1 << 20),
            fresh_incarnation: fresh_incarnations(incarnations),
        }
    }
}

/// New incarnations of a run, in order.
pub(super) fn fresh_incarnations(counter: &Arc<AtomicU64>) -> FreshIncarnation {
    let counter = Arc::clone(counter);
    Arc::new(move || Incarnation::new(counter.fetch_add(1, Ordering::Relaxed)).expect("counts from 1"))
}
