//! The follower's side of one partition: where it reads, what it does with an answer, how it cuts and how it fails.
//!
//! ```text
//!   own log            queued for append      asked for next
//!   log_start ... flushed_end ... log_end ......... queued_end ──▶ leader's log end
//!                 `fsync` acknowledges up to flushed_end, `page-cache` up to log_end
//! ```
//!
//! What holds after every event:
//!
//! - `log_start ≤ high_watermark ≤ log_end ≤ queued_end`, `flushed_end ≤ log_end`, acknowledged ≤ log_end.
//! - An answer is applied only if fetch offset, last fetched epoch, leader epoch, incarnation and *generation* are still
//!   those sent (design.md 5, stricter than S5). A truncation, a new epoch or a restart raises the generation, so it voids
//!   every answer and every queued append that is under way.
//! - The high watermark falls only by truncation; log start follows it (design.md 2).
//! - Failures: the leader's, which may pass, are retried without end; the own ones a bounded number of times, then the
//!   partition stays failed until a new epoch or a person's resume.
//!
//! Deliberately absent: bytes, checks of batches, requests. The caller makes requests from [`FetchIntent`], feeds answers to
//! [`FollowerPartition::on_answer`], and does to the log what the returned [`FollowerAction`] says, in order.

use std::collections::VecDeque;
use std::ops::Range;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{
    Durability, ErrorCode, Incarnation, LeaderEpoch, MonotonicTime, NodeId, Offset, ReplicationError,
};

use crate::fetch::LostRange;

mod answer;
mod backoff;
#[cfg(any(test, feature = "test-util"))]
mod essence;
mod failure;
mod fetch_plan;
mod leadership;
mod log_events;
mod loss;
mod outcome;
mod position;
mod truncation;

pub use answer::{AnswerFacts, BatchSpan, LeaderOffsets};
pub use backoff::{Backoff, BackoffConfig};
#[cfg(any(test, feature = "test-util"))]
pub use essence::FollowerEssence;
pub use failure::FailureReason;
pub use fetch_plan::FetchPlan;
pub use outcome::{CutPlan, FollowerAction, FollowerEffect, PartitionFetchState};
pub use position::{FetchAsk, FetchIntent, FetchPosition};
pub use truncation::cut_point;

/// Settings of a follower partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerConfig {
    /// Whether only flushed offsets are acknowledged.
    pub durability: Durability,
    /// `replica.fetch.max.bytes`: soft cap per partition and answer.
    pub max_bytes: u32,
    /// How many bytes may wait for their append before the partition pauses. In bytes.
    pub read_ahead_bytes: u64,
    /// `replica.fetch.backoff.ms` and its limits.
    pub backoff: BackoffConfig,
}

/// What the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The first retained offset.
    pub log_start: Offset,
    /// The log end (exclusive).
    pub log_end: Offset,
    /// How far it is flushed (exclusive).
    pub flushed_end: Offset,
    /// The newest entry of the epoch cache.
    pub last_epoch: Option<LeaderEpoch>,
}

/// What a follower begins with.
#[derive(Clone, Debug)]
pub struct FollowerStart {
    /// Who leads.
    pub leader: NodeId,
    /// In which epoch.
    pub leader_epoch: LeaderEpoch,
    /// The highest leader epoch that the directory has seen (design.md 6.5).
    pub highest_epoch: Option<LeaderEpoch>,
    /// This replica's incarnation.
    pub incarnation: Incarnation,
    /// Its log.
    pub log: LogState,
    /// Its high watermark.
    pub high_watermark: Offset,
    /// The leader epoch under which it learnt that; `None` = before the first.
    pub high_watermark_epoch: Option<LeaderEpoch>,
    /// Ranges of acknowledged records that are damaged or gone here, in order (design.md 2).
    pub damage: Vec<Range<Offset>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Fetching,
    Truncating,
    /// Waits for the leader's offsets.
    ResolvingRange,
    Failed {
        reason: FailureReason,
        retry_at: Option<MonotonicTime>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Delay {
    until: MonotonicTime,
    reason: FailureReason,
}

/// A replica that follows.
#[derive(Clone, Debug)]
pub struct FollowerPartition {
    config: FollowerConfig,
    leader: NodeId,
    leader_epoch: LeaderEpoch,
    incarnation: Incarnation,
    phase: Phase,
    delay: Option<Delay>,
    generation: u64,
    log_version: u64,
    log_start: Offset,
    /// The log start that was asked for and not reported yet, if it is higher.
    log_start_asked: Offset,
    log_end: Offset,
    flushed_end: Offset,
    queued_end: Offset,
    queued_bytes: u64,
    last_fetched_epoch: Option<LeaderEpoch>,
    high_watermark: Offset,
    /// The newest leader epoch whose leader told at least that (design.md 6.5).
    high_watermark_epoch: Option<LeaderEpoch>,
    /// The newest unclean election on record.
    unclean_epoch: Option<LeaderEpoch>,
    /// The newest high watermark that the leader told for the current position, before it is clamped to the own log.
    heard_high_watermark: Offset,
    leader_log_start: Option<Offset>,
    leader_log_end: Option<Offset>,
    /// What is damaged or gone here, in order.
    damage: Vec<Range<Offset>>,
    /// What the leader of this epoch has lost, in order.
    leader_lost: Vec<LostRange>,
    /// The highest offset acknowledged in this leader epoch by a request that was sent.
    acknowledged_sent: Option<Offset>,
    /// The same, by a request that the leader may have counted: one that it found to differ acknowledged nothing (S24).
    acknowledged_counted: Option<Offset>,
    /// The position at which a cut or an out-of-range was last answered. Being there again means that it changed nothing.
    settled_at: Option<(Offset, Option<LeaderEpoch>)>,
    fetch_backoff: Backoff,
    storage_backoff: Backoff,
    effects: VecDeque<FollowerEffect>,
}

impl FollowerPartition {
    /// Begins to follow. With or without an epoch history the first position is the own log end (S3): a log without epochs
    /// is empty here, because the log rebuilds them from its batches.
    ///
    /// # Errors
    /// `FencedLeaderEpoch` when the directory has seen a higher epoch (design.md 6.5).
    pub fn new(config: FollowerConfig, start: FollowerStart) -> Result<Self, ReplicationError> {
        let FollowerStart {
            leader,
            leader_epoch,
            highest_epoch,
            incarnation,
            log,
            high_watermark,
            high_watermark_epoch,
            damage,
        } = start;
        let seen = highest_epoch.max(log.last_epoch);
        let works_below = is_planted(PlantedFault::WorkBelowHighestEpoch);
        if seen.is_some_and(|seen| seen > leader_epoch) && !works_below {
            return Err(ReplicationError::new(
                ErrorCode::FencedLeaderEpoch,
                format!("the directory has seen an epoch above {}", leader_epoch.get()),
            ));
        }
        let (fetch_backoff, storage_backoff) = (Backoff::new(config.backoff), Backoff::new(config.backoff));
        let high_watermark = high_watermark.clamp(log.log_start, log.log_end);
        let partition = Self {
            config,
            leader,
            leader_epoch,
            incarnation,
            phase: Phase::Fetching,
            delay: None,
            generation: 0,
            log_version: 0,
            log_start: log.log_start,
            log_start_asked: log.log_start,
            log_end: log.log_end,
            flushed_end: log.flushed_end,
            queued_end: log.log_end,
            queued_bytes: 0,
            last_fetched_epoch: log.last_epoch,
            high_watermark,
            high_watermark_epoch,
            unclean_epoch: None,
            heard_high_watermark: high_watermark,
            leader_log_start: None,
            leader_log_end: None,
            damage,
            leader_lost: Vec::new(),
            acknowledged_sent: None,
            acknowledged_counted: None,
            settled_at: None,
            fetch_backoff,
            storage_backoff,
            effects: VecDeque::new(),
        };
        partition.check_bounds();
        Ok(partition)
    }

    // === getters ===

    /// Who leads.
    #[must_use]
    pub const fn leader(&self) -> NodeId {
        self.leader
    }

    /// In which epoch.
    #[must_use]
    pub const fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// This replica's incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The high watermark (exclusive).
    #[must_use]
    pub const fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// The leader epoch under which the high watermark was learnt: what the checkpoint stores beside it.
    #[must_use]
    pub const fn high_watermark_epoch(&self) -> Option<LeaderEpoch> {
        self.high_watermark_epoch
    }

    /// The log end (exclusive).
    #[must_use]
    pub const fn log_end(&self) -> Offset {
        self.log_end
    }

    /// The first retained offset.
    #[must_use]
    pub const fn log_start(&self) -> Offset {
        self.log_start
    }

    /// The leader's log end, as of its last answer; `None` = not known yet.
    #[must_use]
    pub const fn leader_log_end(&self) -> Option<Offset> {
        self.leader_log_end
    }

    /// Records between the own log end and the leader's; `None` = not known yet (S68).
    #[must_use]
    pub fn lag(&self) -> Option<u64> {
        self.leader_log_end.map(|end| end.since(self.log_end))
    }

    /// Records that it lacks as its leader counts them: between what it acknowledges and the leader's log end.
    #[must_use]
    pub fn lacking(&self) -> Option<u64> {
        self.leader_log_end.map(|end| end.since(self.acknowledged()))
    }

    /// Whether records within the log are damaged: they are not acknowledged before they are repaired.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged_from().is_some_and(|damage| damage < self.log_end)
    }

    /// Bytes that wait for their append.
    #[must_use]
    pub const fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Whether something is in the log that is not flushed: under `fsync` it is not acknowledged until then. A failed log is
    /// not flushed but recovered.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        self.flushed_end < self.log_end && !matches!(self.phase, Phase::Failed { .. })
    }

    /// Where the next fetch reads: the end of the append queue.
    #[must_use]
    pub const fn fetch_offset(&self) -> Offset {
        self.queued_end
    }

    /// What queued work and answers are compared with.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// What flushes are compared with: raised whenever the log is replaced, and not by what voids answers only.
    #[must_use]
    pub const fn log_version(&self) -> u64 {
        self.log_version
    }

    /// How many answers in a row brought no progress.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.fetch_backoff.attempts()
    }

    /// What this replica holds as its durability asks (design.md 3), below any damage that the leader can repair.
    #[must_use]
    pub fn acknowledged(&self) -> Offset {
        let held = self.held();
        let damage = self.damaged_from().filter(|_| !is_planted(PlantedFault::DamageAcknowledged));
        damage.map_or(held, |damage| held.min(damage))
    }

    /// Whether something is held that no request has acknowledged yet: worth a request of its own while another is parked.
    #[must_use]
    pub fn owes_acknowledgement(&self) -> bool {
        self.phase == Phase::Fetching && self.acknowledged_sent.is_none_or(|sent| sent < self.acknowledged())
    }

    /// The state for people, as of `now`.
    #[must_use]
    pub fn state(&self, now: MonotonicTime) -> PartitionFetchState {
        match (&self.phase, &self.delay) {
            (Phase::Failed { reason, retry_at }, _) => {
                PartitionFetchState::Failed { reason: reason.clone(), retry_at: *retry_at }
            }
            (_, Some(delay)) if delay.until > now => {
                PartitionFetchState::Delayed { until: delay.until, reason: delay.reason.clone() }
            }
            (Phase::Truncating | Phase::ResolvingRange, _) => PartitionFetchState::Truncating,
            (Phase::Fetching, _) => PartitionFetchState::Fetching,
        }
    }

    /// When [`Self::on_tick`] or a new request has something to do next, if it is waiting for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        match &self.phase {
            Phase::Failed { retry_at, .. } => *retry_at,
            Phase::Fetching | Phase::Truncating | Phase::ResolvingRange => {
                self.delay.as_ref().map(|d| d.until)
            }
        }
    }

    /// The next effect to execute; `None` = drained.
    pub fn poll_effect(&mut self) -> Option<FollowerEffect> {
        self.effects.pop_front()
    }

    // === rules ===

    /// What this replica holds as its durability asks, whatever lies damaged in it.
    fn held(&self) -> Offset {
        match self.config.durability {
            Durability::Fsync if !is_planted(PlantedFault::AcknowledgeUnflushed) => self.flushed_end,
            Durability::Fsync | Durability::PageCache => self.log_end,
        }
    }

    fn check_bounds(&self) {
        debug_assert!(self.log_start <= self.high_watermark, "{} > {}", self.log_start, self.high_watermark);
        debug_assert!(self.high_watermark <= self.log_end, "{} > {}", self.high_watermark, self.log_end);
        debug_assert!(self.log_end <= self.queued_end, "{} > {}", self.log_end, self.queued_end);
        debug_assert!(self.flushed_end <= self.log_end, "{} > {}", self.flushed_end, self.log_end);
    }
}

#[cfg(test)]
mod follower_test_support;
#[cfg(test)]
#[path = "walks_test.rs"]
mod walks;
