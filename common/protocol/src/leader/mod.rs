//! The leader's side of one partition: progress of its followers, the in-sync set, the high watermark.
//!
//! A value of this type is one leadership: it is made when the epoch has been taken, and thrown away when the leadership
//! ends. What holds after every event:
//!
//! - `log_start ≤ high_watermark ≤ log_end`; under `fsync` the high watermark is also ≤ the leader's flushed end.
//! - Only fetches of this leader epoch, by assigned replicas and their current incarnation, count (S60, S64).
//! - The high watermark never falls, and never passes what a member of the maximal in-sync set acknowledged.
//! - At most one change of the in-sync set is under way.
//!
//! Monotone: `log_end`, `flushed_end` (a leader does not truncate), `high_watermark`, each follower's acknowledged offset
//! per incarnation, the partition epoch. Deliberately absent: election, liveness.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use highwater_types::units::counted;
use highwater_types::{
    Durability, ErrorCode, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionEpoch,
    PartitionRecord, ReplicationError,
};

use crate::fetch::{LogFacts, PartitionFacts};

mod commit;
mod description;
#[cfg(any(test, feature = "test-util"))]
mod essence;
mod fetch;
mod follower_progress;
mod high_watermark;
mod in_sync_replicas;
mod isr_change;

pub use description::FollowerRow;
#[cfg(any(test, feature = "test-util"))]
pub use essence::{FollowerOfLeader, LeaderEssence, PendingIsr};
pub use follower_progress::{Answered, Presence};
pub use in_sync_replicas::{IsrOutcome, IsrProposal};

use follower_progress::FollowerProgress;
use high_watermark::HighWatermark;
use in_sync_replicas::InSyncReplicas;

/// Settings of a leader partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderConfig {
    /// Whether only flushed offsets count.
    pub durability: Durability,
    /// `min.insync.replicas`.
    pub min_insync_replicas: u32,
    /// `replica.lag.time.max.ms`: how long a follower may trail and count as caught up (S50).
    pub replica_lag_time_max: Duration,
    /// `replica.hw.propagation.ms`: how often followers are told of a new high watermark at most.
    pub high_watermark_propagation: Duration,
    /// How long to wait before an in-sync set change of unknown outcome is proposed again.
    pub isr_retry: Duration,
}

/// What a leadership begins with.
#[derive(Clone, Debug)]
pub struct LeaderStart {
    /// This node.
    pub node: NodeId,
    /// The record by which it leads: leader = `node`, with an epoch and `node` in the in-sync set.
    pub record: PartitionRecord,
    /// The first retained offset.
    pub log_start: Offset,
    /// The log end, which is where the leadership's epoch begins (S36).
    pub log_end: Offset,
    /// How far the log is flushed: opening a log flushes it, so normally its end.
    pub flushed_end: Offset,
    /// The high watermark that this replica knows.
    pub high_watermark: Offset,
}

/// What the caller owes after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderEffect {
    /// Consumers may read further and appends up to here are committed: wake who waits for that.
    HighWatermarkAdvanced(Offset),
    /// Followers parked with an older high watermark are to be looked at (case I of the delayed fetch).
    TellFollowers(Offset),
    /// Write this in-sync set by compare-and-swap and report by [`LeaderPartition::on_isr_outcome`].
    ProposeIsr(IsrProposal),
    /// A newer record changed the in-sync set.
    IsrChanged(Vec<IsrMember>),
    /// A newer record names another leadership: stop leading. Nothing counts any more.
    Superseded,
}

/// Where an `acks=all` append stands (S61).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStatus {
    /// Every in-sync replica holds it.
    Committed,
    /// Not yet.
    Pending,
    /// The in-sync set is now too small: the records are in the log, but it is not known whether they stay.
    NotEnoughReplicas,
    /// The leadership is over: the outcome is unknown.
    LeadershipLost,
}

/// One leadership of one partition.
#[derive(Clone, Debug)]
pub struct LeaderPartition {
    node: NodeId,
    config: LeaderConfig,
    epoch: LeaderEpoch,
    epoch_start: Offset,
    replicas: Vec<NodeId>,
    /// How many of them a reassignment adds.
    adding: usize,
    log_start: Offset,
    log_end: Offset,
    flushed_end: Offset,
    high_watermark: HighWatermark,
    isr: InSyncReplicas,
    followers: BTreeMap<NodeId, FollowerProgress>,
    /// When lag was looked at last; absent while every member of the in-sync set holds everything.
    lag_watched: Option<MonotonicTime>,
    is_over: bool,
    effects: VecDeque<LeaderEffect>,
}

impl LeaderPartition {
    /// Begins the leadership that `start.record` names. The caller has assigned the epoch in the log (S36) and holds its
    /// lock.
    ///
    /// # Errors
    /// `NotLeaderOrFollower` when the record does not name `start.node` as the leader of an epoch and a member of the set.
    pub fn new(
        config: LeaderConfig,
        start: LeaderStart,
        now: MonotonicTime,
    ) -> Result<Self, ReplicationError> {
        let LeaderStart { node, record, log_start, log_end, flushed_end, high_watermark } = start;
        let epoch = record
            .leader_epoch
            .filter(|_| record.leader == Some(node) && record.isr_member(node).is_some())
            .ok_or_else(|| {
                ReplicationError::new(
                    ErrorCode::NotLeaderOrFollower,
                    "the record does not name this node as the leader",
                )
            })?;
        debug_assert!(log_start <= log_end, "a log begins before it ends");
        debug_assert!(flushed_end <= log_end, "what is flushed was appended");
        let propagation = config.high_watermark_propagation;
        let mut partition = Self {
            node,
            config,
            epoch,
            epoch_start: log_end,
            adding: record.adding.len(),
            replicas: record.replicas,
            log_start,
            log_end,
            flushed_end,
            high_watermark: HighWatermark::new(high_watermark.clamp(log_start, log_end), propagation),
            isr: InSyncReplicas::new(record.isr, record.partition_epoch),
            followers: BTreeMap::new(),
            lag_watched: None,
            is_over: false,
            effects: VecDeque::new(),
        };
        partition.reconcile_followers(now);
        partition.advance_high_watermark(now);
        partition.maybe_change_isr(now);
        Ok(partition)
    }

    // === getters ===

    /// This leadership's epoch.
    #[must_use]
    pub const fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// Where the epoch begins in the log.
    #[must_use]
    pub const fn epoch_start(&self) -> Offset {
        self.epoch_start
    }

    /// The log end (exclusive).
    #[must_use]
    pub const fn log_end(&self) -> Offset {
        self.log_end
    }

    /// How far the log is flushed (exclusive).
    #[must_use]
    pub const fn flushed_end(&self) -> Offset {
        self.flushed_end
    }

    /// The high watermark (exclusive): consumers read up to it.
    #[must_use]
    pub const fn high_watermark(&self) -> Offset {
        self.high_watermark.value()
    }

    /// The high watermark as far as parked followers are to be told of it; trails by at most the propagation time.
    #[must_use]
    pub const fn propagated_high_watermark(&self) -> Offset {
        self.high_watermark.propagated()
    }

    /// The committed in-sync set.
    #[must_use]
    pub fn isr(&self) -> &[IsrMember] {
        self.isr.committed()
    }

    /// Whether no other node is in the in-sync set, or may be in it by a change of unknown outcome.
    #[must_use]
    pub fn is_alone_in_sync(&self) -> bool {
        self.isr.maximal().all(|member| member.node == self.node)
    }

    /// Whether `node` is in sync and has fetched in this leadership, under the incarnation that the in-sync set names: as far as
    /// anybody knows it can lead.
    #[must_use]
    pub fn is_followed_by(&self, node: NodeId) -> bool {
        let member = self.isr.committed().iter().find(|member| member.node == node);
        let progress = self.followers.get(&node);
        member
            .zip(progress)
            .is_some_and(|(member, progress)| progress.acknowledged_as(member.incarnation).is_some())
    }

    /// The version of the newest record seen.
    #[must_use]
    pub const fn partition_epoch(&self) -> PartitionEpoch {
        self.isr.partition_epoch()
    }

    /// Whether a change of the in-sync set is under way.
    #[must_use]
    pub const fn is_isr_change_pending(&self) -> bool {
        self.isr.is_change_pending()
    }

    /// Whether the leadership ended: superseded or resigned.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// When [`Self::on_tick`] has something to do next, if anything.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        let times = [self.high_watermark.next_news(), self.isr.retry_at(), self.next_lag_watch()];
        if self.is_over { None } else { times.into_iter().flatten().min() }
    }

    /// Whether the in-sync set is large enough for `acks=all` (S61).
    ///
    /// # Errors
    /// `NotEnoughReplicas` with both numbers.
    pub fn check_min_isr(&self) -> Result<(), ReplicationError> {
        let (have, need) = (self.isr.certain_size(), self.effective_min_isr());
        if have >= need {
            return Ok(());
        }
        let have = counted(have as u64, "replica");
        Err(ReplicationError::new(
            ErrorCode::NotEnoughReplicas,
            format!("{have} in sync, min.insync.replicas asks for {need}"),
        ))
    }

    /// Where an `acks=all` append that ends at `end` stands.
    #[must_use]
    pub fn commit_status(&self, end: Offset) -> CommitStatus {
        if self.high_watermark() >= end {
            CommitStatus::Committed
        } else if self.is_over {
            CommitStatus::LeadershipLost
        } else if self.check_min_isr().is_err() {
            CommitStatus::NotEnoughReplicas
        } else {
            CommitStatus::Pending
        }
    }

    /// The facts that the checks of a fetch are made on, with the caller's snapshot of the log.
    #[must_use]
    pub const fn facts<'a>(&self, log: LogFacts<'a>) -> PartitionFacts<'a> {
        PartitionFacts {
            leader_epoch: self.epoch,
            is_leader: !self.is_over,
            high_watermark: self.high_watermark.value(),
            log,
        }
    }

    // === events ===

    /// Records up to `log_end` (exclusive) are in the log.
    pub fn on_append(&mut self, log_end: Offset, now: MonotonicTime) {
        debug_assert!(log_end >= self.log_start, "an end is not before the start");
        self.log_end = self.log_end.max(log_end);
        if self.config.durability == Durability::PageCache {
            self.advance_high_watermark(now);
        }
        self.watch_lag(now);
        self.check_bounds();
    }

    /// Everything below `flushed_end` is on the disk.
    pub fn on_flushed(&mut self, flushed_end: Offset, now: MonotonicTime) {
        debug_assert!(flushed_end <= self.log_end, "what is flushed was appended, and reported first");
        self.flushed_end = self.flushed_end.max(flushed_end.min(self.log_end));
        if self.config.durability == Durability::Fsync {
            self.advance_high_watermark(now);
        }
        self.check_bounds();
    }

    /// Retention or a deletion moved the log start, which stays below the high watermark (design.md 2).
    pub fn on_log_start(&mut self, log_start: Offset) {
        debug_assert!(log_start <= self.high_watermark(), "only committed records are deleted");
        self.log_start = self.log_start.max(log_start);
        self.check_bounds();
    }

    /// A record of this partition was seen, from the store's view or as written by this leader. Old ones change nothing.
    pub fn on_record(&mut self, record: &PartitionRecord, now: MonotonicTime) {
        if self.is_over {
            return;
        }
        if record.partition_epoch <= self.isr.partition_epoch() {
            let was_news = self.isr.on_record(&record.isr, record.partition_epoch);
            debug_assert!(!was_news, "a read of an old record decides nothing");
            return;
        }
        if record.leader != Some(self.node) || record.leader_epoch != Some(self.epoch) {
            self.end();
            self.effects.push_back(LeaderEffect::Superseded);
            return;
        }
        let before = self.isr.committed().to_vec();
        self.isr.on_record(&record.isr, record.partition_epoch);
        record.replicas.clone_into(&mut self.replicas);
        self.adding = record.adding.len();
        self.reconcile_followers(now);
        if before != self.isr.committed() {
            self.effects.push_back(LeaderEffect::IsrChanged(self.isr.committed().to_vec()));
        }
        self.advance_high_watermark(now);
        self.maybe_change_isr(now);
        debug_assert!(
            self.isr.committed().iter().any(|m| m.node == self.node),
            "the leader is in the set (LeaderInIsr)"
        );
        self.check_bounds();
    }

    /// The store answered a proposal against the version `expected`; an answer to an earlier one changes nothing (S56). Report
    /// the record that was written by [`Self::on_record`] as well.
    pub fn on_isr_outcome(&mut self, expected: PartitionEpoch, outcome: &IsrOutcome, now: MonotonicTime) {
        if !self.is_over {
            self.isr.on_outcome(expected, outcome, now, self.config.isr_retry);
        }
        self.check_bounds();
    }

    /// The topic's properties changed (`min.insync.replicas`); durability never does.
    pub fn on_config(&mut self, config: LeaderConfig, now: MonotonicTime) {
        debug_assert_eq!(config.durability, self.config.durability, "durability is fixed at creation");
        self.config = config;
        self.advance_high_watermark(now);
        self.check_bounds();
    }

    /// Time passed: tells followers of a high watermark, takes out who lags, proposes a change of unknown outcome again.
    pub fn on_tick(&mut self, now: MonotonicTime) {
        if self.is_over {
            return;
        }
        self.tell_followers(now);
        self.look_for_lag(now);
        if let Some(proposal) = self.isr.repropose(now) {
            self.effects.push_back(LeaderEffect::ProposeIsr(proposal));
        }
        self.check_bounds();
    }

    /// Ends the leadership from this side: a stop, a hand-over, a failed disk. Nothing counts afterwards.
    pub fn resign(&mut self) {
        self.end();
    }

    /// The next effect to execute; `None` = drained.
    pub fn poll_effect(&mut self) -> Option<LeaderEffect> {
        self.effects.pop_front()
    }
}

#[cfg(test)]
mod leader_test_support;
