//! A replica that leads: appends, flushes, serves reads, and lets the core decide what is committed.
//!
//! What must hold: nothing is served before the epoch is noted in the checkpoint and begins in the log, both durably (S36,
//! design.md 6.5). Writing is in `writing`, answering in `serving`.

use std::sync::Arc;
use std::time::Duration;

use highwater_log::{Log, LogConfig, Storage};
use highwater_protocol::leader::{
    CommitStatus, FollowerRow, IsrOutcome, LeaderConfig, LeaderEffect, LeaderPartition, LeaderStart,
};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{
    ErrorCode, Incarnation, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionEpoch,
    PartitionRecord, ReplicationError, TopicIdPartition,
};
use parking_lot::Mutex;

use crate::append_history::AppendHistory;
use crate::producers::Producers;
use crate::{OpenReplica, ReplicaError, ReplicaFacts, ReplicaPlace};

mod serving;
mod writing;

pub use writing::Placed;

/// How to lead.
#[derive(Clone, Debug)]
pub struct Leading {
    /// The core's settings.
    pub config: LeaderConfig,
    /// This node.
    pub node: NodeId,
    /// The record by which it leads, as it was written by compare-and-swap.
    pub record: PartitionRecord,
}

/// A replica that leads.
#[derive(Debug)]
pub struct LeaderReplica<S: Storage> {
    place: ReplicaPlace<S>,
    node: NodeId,
    epoch: LeaderEpoch,
    epoch_start: Offset,
    /// The incarnation that is in the in-sync set.
    stood_with: Incarnation,
    log: Arc<Log<S>>,
    /// Held while an append is written and reported, so that reports come in order.
    appending: Mutex<()>,
    core: Mutex<LeaderPartition>,
    history: Mutex<AppendHistory>,
    /// Taken for itself, or while `appending` is held.
    producers: Mutex<Producers>,
}

impl<S: Storage> OpenReplica<S> {
    /// Takes up the leadership that the record names. The epochs are noted in the checkpoint and the epoch begins in the log,
    /// both durably, before anything is served under it (S36, S45, design.md 6.5). A lost tail is passed over, so that its
    /// offsets are not given to other records (design.md 2). *Blocks.* On an error the replica is closed and its lock freed.
    ///
    /// # Errors
    /// [`ReplicaError::Refused`] when the record does not make this replica the leader or the directory has seen a higher
    /// epoch; else what the disk says.
    pub fn lead(self, leading: Leading, now: MonotonicTime) -> Result<LeaderReplica<S>, ReplicaError> {
        let log = Arc::clone(&self.log);
        let lead = self.try_lead(leading, now);
        if lead.is_err() {
            drop(log.abandon());
        }
        lead
    }

    fn try_lead(self, leading: Leading, now: MonotonicTime) -> Result<LeaderReplica<S>, ReplicaError> {
        let Leading { config, node, record } = leading;
        let refused = |why: &str| ReplicationError::new(ErrorCode::FencedLeaderEpoch, why);
        let epoch = record.leader_epoch.ok_or_else(|| refused("the record has no leader epoch"))?;
        if self.log.highest_epochs().0.is_some_and(|seen| seen > epoch) {
            return Err(refused("the directory has seen a higher leader epoch").into());
        }
        let looks_again = !is_planted(PlantedFault::IncarnationReadBeforeLock)
            && !is_planted(PlantedFault::ElectBeforeLock);
        if looks_again && !record.is_electable(node, self.incarnation()) {
            return Err(refused("this incarnation is not in the in-sync set").into());
        }
        self.log.note_epochs(Some(epoch), record.partition_epoch)?;
        self.log.confirm_incarnation()?;
        self.log.pass_over_lost_tail()?;
        let producers = Producers::load(&self.log)?;
        let epoch_start = if is_planted(PlantedFault::NoEpochAtLeaderStart) {
            self.log.log_end()
        } else {
            self.log.assign_epoch(epoch)?
        };
        let positions = self.log.positions();
        assert!(
            epoch_start == positions.log_end || is_planted(PlantedFault::EpochReused),
            "the epoch is new, and nobody has appended in it"
        );
        let start = LeaderStart {
            node,
            record,
            log_start: positions.log_start,
            log_end: positions.log_end,
            flushed_end: positions.flushed,
            high_watermark: self.found_high_watermark().offset,
        };
        let core = LeaderPartition::new(config, start, now)?;
        Ok(LeaderReplica {
            place: self.place,
            node,
            epoch,
            epoch_start,
            stood_with: self.log.incarnation(),
            log: self.log,
            appending: Mutex::new(()),
            core: Mutex::new(core),
            history: Mutex::new(AppendHistory::default()),
            producers: Mutex::new(producers),
        })
    }
}

impl<S: Storage> LeaderReplica<S> {
    // === getters ===

    /// The partition.
    pub const fn id(&self) -> TopicIdPartition {
        self.place.id()
    }

    /// The leading node.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// This leadership's epoch.
    pub const fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// Where the epoch begins in the log.
    pub const fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    /// This replica's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.log.incarnation()
    }

    /// The log, for reads that no method here covers (damage, size, configuration).
    pub const fn log(&self) -> &Arc<Log<S>> {
        &self.log
    }

    /// What it says about itself now.
    pub fn facts(&self) -> ReplicaFacts {
        let core = self.core.lock();
        let snapshot = self.log.snapshot();
        ReplicaFacts {
            leader_epoch: self.epoch,
            is_leader: !core.is_over(),
            high_watermark: core.high_watermark(),
            positions: snapshot.positions,
            epochs: snapshot.epochs,
        }
    }

    /// The high watermark (exclusive).
    pub fn high_watermark(&self) -> Offset {
        self.core.lock().high_watermark()
    }

    /// The log end (exclusive).
    pub fn log_end(&self) -> Offset {
        self.log.log_end()
    }

    /// The committed in-sync set.
    pub fn isr(&self) -> Vec<IsrMember> {
        self.core.lock().isr().to_vec()
    }

    /// Whether the leadership ended.
    pub fn is_over(&self) -> bool {
        self.core.lock().is_over()
    }

    /// Whether the in-sync set is large enough for `acks=all` (S61).
    ///
    /// # Errors
    /// `NotEnoughReplicas` with both numbers.
    pub fn check_min_isr(&self) -> Result<(), ReplicationError> {
        self.core.lock().check_min_isr()
    }

    /// Whether writes are taken though this node cannot renew its liveness (design.md 6.7).
    ///
    /// # Errors
    /// `LeaderNotAvailable` names the member of the in-sync set that has not fetched within `patience`.
    pub fn check_followed(&self, now: MonotonicTime, patience: Duration) -> Result<(), ReplicationError> {
        self.core.lock().check_followed(now, patience)
    }

    /// Where an `acks=all` append that ends at `end` stands.
    pub fn commit_status(&self, end: Offset) -> CommitStatus {
        self.core.lock().commit_status(end)
    }

    /// A row per follower, with its lag in bytes where that is known: an estimate by the log's index.
    pub fn describe(&self, now: MonotonicTime) -> Vec<(FollowerRow, Option<u64>)> {
        let rows = self.core.lock().describe(now);
        let end = self.log.log_end();
        let with_bytes = rows.into_iter().map(|row| {
            let bytes = row.acknowledged.map(|from| self.bytes_between(from, end));
            (row, bytes)
        });
        with_bytes.collect()
    }

    /// When [`Self::on_tick`] has something to do next, if anything.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.core.lock().next_deadline()
    }

    // === coordination, time ===

    /// A record was seen, or written by this leader.
    pub fn on_record(&self, record: &PartitionRecord, now: MonotonicTime) {
        self.core.lock().on_record(record, now);
    }

    /// The store answered a proposal against the version `expected`; report the record that was written by
    /// [`Self::on_record`] as well.
    pub fn on_isr_outcome(&self, expected: PartitionEpoch, outcome: &IsrOutcome, now: MonotonicTime) {
        self.core.lock().on_isr_outcome(expected, outcome, now);
    }

    /// The topic's properties changed.
    pub fn on_config(&self, config: LeaderConfig, log: LogConfig, now: MonotonicTime) {
        self.log.set_config(log);
        self.core.lock().on_config(config, now);
    }

    /// As [`LeaderPartition::is_followed_by`](highwater_protocol::leader::LeaderPartition::is_followed_by).
    pub fn is_followed_by(&self, node: NodeId) -> bool {
        self.core.lock().is_followed_by(node)
    }

    /// A follower's connection closed and its port refuses connections: it leaves the in-sync set at once where that is
    /// allowed (design.md 6.6).
    pub fn on_follower_gone(&self, follower: NodeId, now: MonotonicTime) {
        self.core.lock().on_follower_gone(follower, now);
    }

    /// As [`LeaderPartition::on_follower_still_gone`](highwater_protocol::leader::LeaderPartition::on_follower_still_gone).
    pub fn on_follower_still_gone(&self, follower: NodeId, now: MonotonicTime) {
        self.core.lock().on_follower_still_gone(follower, now);
    }

    /// Time passed.
    pub fn on_tick(&self, now: MonotonicTime) {
        self.core.lock().on_tick(now);
    }

    /// What the caller owes after any of the above; empty when there is nothing.
    pub fn drain_effects(&self) -> Vec<LeaderEffect> {
        let mut core = self.core.lock();
        std::iter::from_fn(|| core.poll_effect()).collect()
    }
}
