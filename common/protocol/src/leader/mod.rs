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
//! per incarnation, the partition epoch. Deliberately absent: shrinking by lag, election, liveness.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use highwater_types::{
    Durability, ErrorCode, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionRecord,
    ReplicationError,
};

use crate::fetch::{
    FetchPartition, LogFacts, PartitionFacts, ReadPlan, Requester, check_leadership, plan_read,
};

mod description;
mod follower_progress;
mod high_watermark;
mod in_sync_replicas;

pub use description::{FollowerRow, LagCause};
pub use in_sync_replicas::{IsrOutcome, IsrProposal};

use follower_progress::{Arrival, FollowerProgress};
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
    log_start: Offset,
    log_end: Offset,
    flushed_end: Offset,
    high_watermark: HighWatermark,
    isr: InSyncReplicas,
    followers: BTreeMap<NodeId, FollowerProgress>,
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
            replicas: record.replicas,
            log_start,
            log_end,
            flushed_end,
            high_watermark: HighWatermark::new(high_watermark.clamp(log_start, log_end), propagation),
            isr: InSyncReplicas::new(record.isr, record.partition_epoch),
            followers: BTreeMap::new(),
            is_over: false,
            effects: VecDeque::new(),
        };
        partition.reconcile_followers(now);
        partition.advance_high_watermark(now);
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
        let times = [self.high_watermark.next_news(), self.isr.retry_at()];
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
        Err(ReplicationError::new(
            ErrorCode::NotEnoughReplicas,
            format!("{have} replicas are in sync, min.insync.replicas asks for {need}"),
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

    /// A follower's fetch arrived: checks it in order (S18 from the epoch on), counts what it acknowledges, and says what to
    /// read. `log` is the caller's snapshot, taken before. Call it on arrival only, never for a parked fetch (S25); what a
    /// parked fetch reads is [`Self::plan_follower_read`].
    ///
    /// # Errors
    /// The codes of [`check_leadership`] and [`plan_read`]; `UnknownLeaderEpoch` for a replica that is not assigned (yet)
    /// (S20), `StaleIncarnation` (S64), `InvalidRequest` when a field that a follower must send is missing or false.
    pub fn on_follower_fetch(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        let before = self.high_watermark();
        let outcome = self.check_follower_fetch(follower, request, log, now);
        let code = match &outcome {
            Ok(plan) if plan.diverging.is_none() => {
                self.advance_high_watermark(now);
                self.maybe_expand(now);
                None
            }
            Ok(_) => Some(None),
            Err(error) => Some(Some(error.code)),
        };
        if let Some(code) = code
            && let Some(progress) = self.followers.get_mut(&follower)
        {
            progress.on_refused(code, now);
        }
        debug_assert!(self.high_watermark() >= before, "a fetch never takes the high watermark back");
        outcome.map(|mut plan| {
            plan.snapshot.high_watermark = self.high_watermark();
            plan
        })
    }

    /// What a parked follower fetch reads when it is answered: the same checks, nothing is counted (S25).
    ///
    /// # Errors
    /// As [`Self::on_follower_fetch`].
    pub fn plan_follower_read(
        &self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
    ) -> Result<ReadPlan, ReplicationError> {
        let requester = Requester::Follower(follower);
        let facts = self.facts(*log);
        check_leadership(requester, request, &facts)?;
        if !self.replicas.contains(&follower) {
            return Err(not_assigned(follower));
        }
        plan_read(requester, request, &facts)
    }

    /// What a consumer's fetch reads (S26).
    ///
    /// # Errors
    /// The codes of [`check_leadership`] and [`plan_read`].
    pub fn plan_consumer_read(
        &self,
        request: &FetchPartition,
        log: &LogFacts<'_>,
    ) -> Result<ReadPlan, ReplicationError> {
        let facts = self.facts(*log);
        check_leadership(Requester::Consumer, request, &facts)?;
        if self.is_over {
            return Err(ReplicationError::new(
                ErrorCode::NotLeaderOrFollower,
                "this node leads the partition no more",
            ));
        }
        plan_read(Requester::Consumer, request, &facts)
    }

    /// Records up to `log_end` (exclusive) are in the log.
    pub fn on_append(&mut self, log_end: Offset, now: MonotonicTime) {
        debug_assert!(log_end >= self.log_start, "an end is not before the start");
        self.log_end = self.log_end.max(log_end);
        if self.config.durability == Durability::PageCache {
            self.advance_high_watermark(now);
        }
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
        if self.is_over || record.partition_epoch <= self.isr.partition_epoch() {
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
        self.reconcile_followers(now);
        if before != self.isr.committed() {
            self.effects.push_back(LeaderEffect::IsrChanged(self.isr.committed().to_vec()));
        }
        self.advance_high_watermark(now);
        self.maybe_expand(now);
        debug_assert!(
            self.isr.committed().iter().any(|m| m.node == self.node),
            "the leader is in the set (LeaderInIsr)"
        );
        self.check_bounds();
    }

    /// The store answered a proposal. Report the record that was written by [`Self::on_record`] as well.
    pub fn on_isr_outcome(&mut self, outcome: &IsrOutcome, now: MonotonicTime) {
        if !self.is_over {
            self.isr.on_outcome(outcome, now, self.config.isr_retry);
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

    /// Time passed: tells followers of a high watermark, proposes a change of unknown outcome again.
    pub fn on_tick(&mut self, now: MonotonicTime) {
        if self.is_over {
            return;
        }
        self.tell_followers(now);
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

    // === rules ===

    fn check_follower_fetch(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        if follower == self.node {
            return Err(invalid("replica_id is the leader's own: a node does not follow itself"));
        }
        let Some(incarnation) = request.incarnation else {
            return Err(invalid("a follower's fetch needs its incarnation"));
        };
        if request.current_leader_epoch.is_none() {
            return Err(invalid("a follower's fetch needs current_leader_epoch"));
        }
        if request.acknowledged_offset.is_none() && self.config.durability == Durability::Fsync {
            return Err(invalid("acknowledged_offset is mandatory where durability is fsync"));
        }
        let acknowledged = request.acknowledged();
        if acknowledged > request.fetch_offset {
            return Err(invalid("acknowledged_offset is above fetch_offset"));
        }
        check_leadership(Requester::Follower(follower), request, &self.facts(*log))?;
        let Some(progress) = self.followers.get_mut(&follower) else { return Err(not_assigned(follower)) };
        progress.admit(incarnation).map_err(|code| {
            ReplicationError::new(code, format!("incarnation {incarnation} of node {follower} was replaced"))
        })?;
        let plan = self.plan_follower_read(follower, request, log)?;
        let Some(progress) = self.followers.get_mut(&follower) else { return Err(not_assigned(follower)) };
        if let Some(at) = plan.diverging {
            // The follower would cut what it acknowledged in this leadership: it has to renew first (design.md 6.3).
            if progress.acknowledged().is_some_and(|held| at.offset < held) {
                progress.retire();
                return Err(ReplicationError::new(
                    ErrorCode::StaleIncarnation,
                    format!(
                        "cutting to {} loses what incarnation {incarnation} acknowledged; renew it",
                        at.offset
                    ),
                ));
            }
            return Ok(plan);
        }
        progress.on_fetch(&Arrival {
            now,
            incarnation,
            acknowledged,
            fetch_offset: request.fetch_offset,
            log_start: request.log_start,
            high_watermark: request.high_watermark,
            paused: request.paused,
            leader_end: plan.snapshot.log_end,
        });
        Ok(plan)
    }

    /// S57 and S58 over what is acknowledged now (S60, S62), then tells who waits.
    fn advance_high_watermark(&mut self, now: MonotonicTime) {
        if self.is_over || self.check_min_isr().is_err() {
            return;
        }
        let own = match self.config.durability {
            Durability::Fsync => self.flushed_end,
            Durability::PageCache => self.log_end,
        };
        let members = self.isr.maximal().map(|member| {
            if member.node == self.node {
                return Some(own);
            }
            self.followers.get(&member.node).and_then(|p| p.acknowledged_as(member.incarnation))
        });
        let bound = self.config.replica_lag_time_max;
        let joining = self.followers.iter().filter(|(node, progress)| {
            !self.isr.maximal_has_node(**node) && progress.is_caught_up(self.log_end, now, bound)
        });
        let joining = joining.filter_map(|(_, progress)| progress.acknowledged()).map(Some);
        // A follower may have acknowledged what this core has not been told of yet: never past the own log end.
        let bounds: Vec<_> = members.chain(joining).chain([Some(own.min(self.log_end))]).collect();
        if self.high_watermark.advance(bounds) {
            let value = self.high_watermark();
            if let Some(LeaderEffect::HighWatermarkAdvanced(queued)) = self.effects.back_mut() {
                *queued = value;
            } else {
                self.effects.push_back(LeaderEffect::HighWatermarkAdvanced(value));
            }
        }
        self.tell_followers(now);
        self.check_bounds();
    }

    fn tell_followers(&mut self, now: MonotonicTime) {
        if self.high_watermark.propagate(now) {
            self.effects.push_back(LeaderEffect::TellFollowers(self.high_watermark.propagated()));
        }
    }

    /// S52 and design.md 6.3: takes every follower that qualifies into the set, replacing an older incarnation of it.
    fn maybe_expand(&mut self, now: MonotonicTime) {
        if self.is_over || self.isr.is_change_pending() {
            return;
        }
        let mut isr = self.isr.committed().to_vec();
        for node in &self.replicas {
            let Some(member) = self.followers.get(node).and_then(|p| self.joining_member(*node, p, now))
            else {
                continue;
            };
            match isr.iter_mut().find(|m| m.node == *node) {
                Some(entry) => *entry = member,
                None => isr.push(member),
            }
        }
        if isr != self.isr.committed() {
            let proposal = self.isr.propose(isr);
            self.effects.push_back(LeaderEffect::ProposeIsr(proposal));
        }
        self.check_bounds();
    }

    fn joining_member(
        &self,
        node: NodeId,
        progress: &FollowerProgress,
        now: MonotonicTime,
    ) -> Option<IsrMember> {
        let incarnation = progress.incarnation()?;
        let acknowledged = progress.acknowledged()?;
        let reached = acknowledged >= self.high_watermark() && acknowledged >= self.epoch_start;
        let alive = progress.is_fetching(now, self.config.replica_lag_time_max);
        (reached && alive).then_some(IsrMember { node, incarnation })
    }

    /// `max(1, min(min ISR, replicas))` (S58, design.md 6.12).
    fn effective_min_isr(&self) -> usize {
        let wanted = usize::try_from(self.config.min_insync_replicas).unwrap_or(usize::MAX);
        wanted.min(self.replicas.len()).max(1)
    }

    /// One progress per assigned replica but this node, none for others.
    fn reconcile_followers(&mut self, now: MonotonicTime) {
        let (node, replicas) = (self.node, &self.replicas);
        self.followers.retain(|id, _| replicas.contains(id));
        for id in replicas.iter().filter(|id| **id != node) {
            let in_sync = self.isr.maximal_has_node(*id);
            self.followers.entry(*id).or_insert_with(|| FollowerProgress::at_leader_start(in_sync, now));
        }
        debug_assert!(!self.followers.contains_key(&node), "a leader does not follow itself");
        debug_assert!(self.followers.len() <= self.replicas.len(), "progress of assigned replicas only");
    }

    fn end(&mut self) {
        self.is_over = true;
        self.effects.retain(|effect| !matches!(effect, LeaderEffect::ProposeIsr(_)));
        debug_assert!(self.next_deadline().is_none(), "nothing is due after the end");
        self.check_bounds();
    }

    fn check_bounds(&self) {
        let high_watermark = self.high_watermark();
        debug_assert!(self.log_start <= high_watermark, "log start {} > HW {high_watermark}", self.log_start);
        debug_assert!(high_watermark <= self.log_end, "HW {high_watermark} > log end {}", self.log_end);
        debug_assert!(self.flushed_end <= self.log_end, "flushed beyond the log end");
    }
}

fn invalid(message: &str) -> ReplicationError {
    ReplicationError::new(ErrorCode::InvalidRequest, message)
}

fn not_assigned(follower: NodeId) -> ReplicationError {
    ReplicationError::new(
        ErrorCode::UnknownLeaderEpoch,
        format!("node {follower} is not an assigned replica as far as this leader knows"),
    )
}

#[cfg(test)]
#[path = "fetch_test.rs"]
mod fetch_tests;
#[cfg(test)]
#[path = "high_watermark_walk_test.rs"]
mod high_watermark_tests;
#[cfg(test)]
#[path = "isr_test.rs"]
mod isr_tests;
