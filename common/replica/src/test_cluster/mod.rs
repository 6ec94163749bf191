//! A cluster in one thread for tests: replicas of one partition on simulated disks, a store that is one record, and messages
//! that may be late, lost, or out of order.
//!
//! It drives [`LeaderReplica`] and [`FollowerReplica`] as the services do, and holds after each step what must hold
//! (`check`). The whole simulation, with shrinking and hand-over, is another crate's.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use highwater_log::storage::sim::{SimDisk, SimStorage};
use highwater_log::{BufferPool, Log, LogConfig, OnDamage, PartitionLocks, ReadLimits, Storage};
use highwater_protocol::follower::{BackoffConfig, FollowerConfig};
use highwater_protocol::leader::LeaderConfig;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{
    Durability, Incarnation, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionIndex,
    PartitionRecord, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use uuid::Uuid;

use crate::{
    AskOffsets, FollowerReplica, FollowerStep, FollowerWork, FreshIncarnation, LeaderReplica, Leading, Now,
    OpenReplica, ReplicaPlace,
};

mod check;
mod network;

pub(crate) use network::Message;

/// What a machine runs.
pub(crate) enum Role {
    Down,
    Leader(Box<LeaderReplica<SimStorage>>),
    Follower(Box<FollowerSide>),
}

/// A follower with what a program keeps beside it.
pub(crate) struct FollowerSide {
    pub(crate) replica: FollowerReplica<SimStorage>,
    pub(crate) work: VecDeque<FollowerWork>,
    pub(crate) question: Option<AskOffsets>,
}

impl FollowerSide {
    pub(crate) fn take(&mut self, step: FollowerStep) {
        self.work.extend(step.work);
        self.question = step.ask_offsets.or(self.question);
    }
}

/// A node: a disk and, at times, a process.
pub(crate) struct Machine {
    pub(crate) node: NodeId,
    pub(crate) disk: SimDisk,
    pub(crate) storage: SimStorage,
    pub(crate) role: Role,
    /// Raised by every start: messages to an earlier life are lost.
    pub(crate) life: u64,
    boot: u128,
    /// What it acknowledged, with which incarnation: a restart must find it again.
    pub(crate) acknowledged: Option<(Incarnation, Offset)>,
}

/// The cluster.
pub(crate) struct Cluster {
    pub(crate) machines: Vec<Machine>,
    pub(crate) record: PartitionRecord,
    pub(crate) messages: Vec<Message>,
    pub(crate) durability: Durability,
    pub(crate) min_isr: u32,
    now: u64,
    produced: u64,
    incarnations: Arc<AtomicU64>,
    /// Everything that was ever below a leader's high watermark, byte for byte.
    committed: Vec<u8>,
    committed_end: Offset,
}

pub(crate) fn node(index: usize) -> NodeId {
    NodeId::new(i32::try_from(index).unwrap() + 1).unwrap()
}

fn topic_id() -> TopicId {
    "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap()
}

pub(crate) fn partition() -> TopicIdPartition {
    TopicIdPartition::new(topic_id(), PartitionIndex::new(0).unwrap())
}

/// A batch of `records` records whose values are of this number.
pub(crate) fn batch(number: u64, records: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for record in 0..records {
        let value = format!("record {record} of batch {number}");
        builder.append(WallTime::from_millis(1_000), None, Some(value.as_bytes()), &[]).unwrap();
    }
    builder.build().unwrap().freeze()
}

/// Every byte below `upper`, from the log's start.
pub(crate) fn bytes_below<S: Storage>(log: &Log<S>, upper: Offset) -> Vec<u8> {
    let mut all = Vec::new();
    let mut from = log.log_start();
    loop {
        let read = log
            .read(from, ReadLimits { max_bytes: 1 << 20, min_one_batch: true, upper, checked: true })
            .unwrap();
        if read.batches == 0 {
            return all;
        }
        all.extend_from_slice(&read.records);
        from = read.next;
    }
}

impl Cluster {
    /// Machines that have never run, and the record of a new partition.
    pub(crate) fn new(seed: u64, machines: usize, durability: Durability) -> Self {
        let machines = (0..machines).map(|index| {
            let disk = SimDisk::new(seed.wrapping_mul(31).wrapping_add(index as u64));
            let storage = disk.process();
            storage.create_dir_all(&data_dir()).unwrap();
            storage.sync_dir(&PathBuf::from("/")).unwrap();
            let (node, boot) = (node(index), 1 + ((index as u128) << 32));
            Machine { node, disk, storage, role: Role::Down, life: 0, boot, acknowledged: None }
        });
        let machines: Vec<_> = machines.collect();
        let replicas = machines.iter().map(|m| m.node).collect();
        Self {
            machines,
            record: PartitionRecord::new(partition(), replicas),
            messages: Vec::new(),
            durability,
            min_isr: 1,
            now: 0,
            produced: 0,
            incarnations: Arc::new(AtomicU64::new(1)),
            committed: Vec::new(),
            committed_end: Offset::ZERO,
        }
    }

    /// Machine 0 leads epoch 0, the others follow.
    pub(crate) fn leading(machines: usize, durability: Durability) -> Self {
        let mut cluster = Self::new(7, machines, durability);
        assert!(cluster.lead(0, |_| true));
        for index in 1..machines {
            cluster.follow(index, index as u64);
        }
        cluster
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            monotonic: MonotonicTime::from_millis(self.now),
            wall: WallTime::from_millis(1_000_000 + i64::try_from(self.now).unwrap()),
        }
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        self.now += millis;
    }

    pub(crate) fn leader(&self, index: usize) -> &LeaderReplica<SimStorage> {
        let Role::Leader(leader) = &self.machines[index].role else {
            panic!("machine {index} does not lead")
        };
        leader
    }

    pub(crate) fn follower(&self, index: usize) -> &FollowerReplica<SimStorage> {
        let Role::Follower(side) = &self.machines[index].role else {
            panic!("machine {index} does not follow")
        };
        &side.replica
    }

    pub(crate) fn is_down(&self, index: usize) -> bool {
        matches!(self.machines[index].role, Role::Down)
    }

    pub(crate) fn log(&self, index: usize) -> Option<Arc<Log<SimStorage>>> {
        match &self.machines[index].role {
            Role::Down => None,
            Role::Leader(leader) => Some(Arc::clone(leader.log())),
            Role::Follower(side) => Some(side.replica.log()),
        }
    }

    // === processes ===

    fn place(&self, index: usize) -> ReplicaPlace<SimStorage> {
        let incarnations = Arc::clone(&self.incarnations);
        let fresh: FreshIncarnation =
            Arc::new(move || Incarnation::new(incarnations.fetch_add(1, Ordering::SeqCst)).unwrap());
        let name = "topic".parse().unwrap();
        ReplicaPlace {
            storage: self.machines[index].storage.clone(),
            data_dir: data_dir(),
            partition: TopicPartition::new(name, partition().partition),
            topic_id: topic_id(),
            // Small segments, so that cuts and crashes meet their edges.
            config: LogConfig { durability: self.durability, segment_bytes: 1024, ..LogConfig::default() },
            boot_id: Uuid::from_u128(self.machines[index].boot),
            read_buffers: BufferPool::new(1 << 20),
            fresh_incarnation: fresh,
        }
    }

    /// Opens the log of a machine that is down; `None` when its disk fails meanwhile.
    pub(crate) fn open(&mut self, index: usize) -> Option<OpenReplica<SimStorage>> {
        assert!(self.is_down(index), "one program at a time");
        self.machines[index].life += 1;
        let locks = PartitionLocks::simulated(&self.machines[index].storage);
        let lock = locks.try_lock(partition()).ok()?.expect("nobody else has the lock");
        let open = self.place(index).open(lock, OnDamage::RenewIncarnation, self.now().wall).ok()?;
        self.check_opened(index, &open);
        Some(open)
    }

    /// Stands for election and leads when it may: the record goes to the next epoch, with the set that `keep` picks.
    pub(crate) fn lead(&mut self, index: usize, keep: impl Fn(&IsrMember) -> bool) -> bool {
        let node = self.machines[index].node;
        let Some(open) = self.open(index) else { return false };
        let me = IsrMember { node, incarnation: open.incarnation() };
        let mut record = self.record.clone();
        let seen = open.report().highest_leader_epoch;
        if record.is_new() {
            record.isr = vec![me];
        } else if record.is_electable(node, me.incarnation) {
            record.isr.retain(|m| *m == me || keep(m));
        } else {
            drop(open.close());
            return false;
        }
        record.leader = Some(node);
        record.leader_epoch =
            Some(record.leader_epoch.max(seen).map_or(LeaderEpoch::FIRST, LeaderEpoch::next));
        record.partition_epoch = record.partition_epoch.next();
        self.record = record.clone();
        let config = self.leader_config();
        if let Ok(leader) = open.lead(Leading { config, node, record }, self.now().monotonic) {
            self.machines[index].acknowledged = None;
            self.machines[index].role = Role::Leader(Box::new(leader));
        }
        true
    }

    /// Follows the recorded leader; with none, or itself recorded, it stays down.
    pub(crate) fn follow(&mut self, index: usize, seed: u64) {
        let (Some(leader), Some(leader_epoch)) = (self.record.leader, self.record.leader_epoch) else {
            return;
        };
        if leader == self.machines[index].node {
            return;
        }
        let Some(open) = self.open(index) else { return };
        let partition_epoch = self.record.partition_epoch;
        let following =
            crate::Following { config: self.follower_config(), leader, leader_epoch, partition_epoch, seed };
        if let Ok(replica) = open.follow(following) {
            let side = FollowerSide { replica, work: VecDeque::new(), question: None };
            self.machines[index].role = Role::Follower(Box::new(side));
        }
    }

    /// `kill -9`: what was written stays, flushed or not.
    pub(crate) fn kill(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        machine.role = Role::Down;
        machine.storage = machine.storage.crash_process();
    }

    /// The machine loses power: what was not flushed may be gone, in part or as a whole.
    pub(crate) fn lose_power(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        machine.role = Role::Down;
        machine.storage = machine.storage.power_loss();
        machine.boot += 1;
    }

    /// Stops in order; the lock is free afterwards.
    pub(crate) fn stop(&mut self, index: usize) {
        match std::mem::replace(&mut self.machines[index].role, Role::Down) {
            Role::Down => {}
            Role::Leader(leader) => drop(leader.close()),
            Role::Follower(side) => drop(side.replica.close()),
        }
    }

    // === settings ===

    fn leader_config(&self) -> LeaderConfig {
        LeaderConfig {
            durability: self.durability,
            min_insync_replicas: self.min_isr,
            replica_lag_time_max: Duration::from_secs(30),
            high_watermark_propagation: Duration::from_millis(10),
            isr_retry: Duration::from_millis(100),
        }
    }

    fn follower_config(&self) -> FollowerConfig {
        FollowerConfig {
            durability: self.durability,
            max_bytes: 400,
            read_ahead_bytes: 1000,
            backoff: BackoffConfig {
                first: Duration::from_millis(10),
                max: Duration::from_millis(200),
                max_attempts: 20,
            },
        }
    }

    /// Appends a batch on a leader; a failed append ends its process.
    pub(crate) fn produce(&mut self, index: usize, records: usize) {
        self.produced += 1;
        let now = self.now();
        let input = batch(self.produced, records);
        if self.leader(index).append(&[input], now.wall, now.monotonic).is_err() {
            self.kill(index);
        }
    }
}

fn data_dir() -> PathBuf {
    PathBuf::from("/data")
}
