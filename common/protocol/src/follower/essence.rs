//! What of a follower decides what it does from now on: for a search over states, which has to know equal ones.
//!
//! Two followers with one essence answer every further event alike, as long as the next event comes after every wait. Left out,
//! and why that is sound:
//!
//! - waits and when they end: with the next event they are over (a search that lets time pass does not need them);
//! - the leader's log end as of its last answer: only described;
//! - the text of a failure: only whether it is the disk's decides something.

use highwater_types::{Incarnation, LeaderEpoch, NodeId, Offset};

use super::{FollowerPartition, Phase};

/// What decides about a follower.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowerEssence {
    /// Who leads.
    pub leader: NodeId,
    /// In which epoch.
    pub leader_epoch: LeaderEpoch,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What it is doing, or why it has failed.
    pub phase: &'static str,
    /// Whether a failure is retried by itself.
    pub is_retried: bool,
    /// What answers and work are compared with: they are of this one, or void.
    pub generation: u64,
    /// What flushes are compared with, likewise.
    pub log_version: u64,
    /// The first retained offset.
    pub log_start: Offset,
    /// The log start that was asked for.
    pub log_start_asked: Offset,
    /// The log end.
    pub log_end: Offset,
    /// How far the log is flushed.
    pub flushed_end: Offset,
    /// The end of what is queued.
    pub queued_end: Offset,
    /// Bytes that are queued.
    pub queued_bytes: u64,
    /// The epoch of the record before the next fetch.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The high watermark.
    pub high_watermark: Offset,
    /// In which epoch it was learnt.
    pub high_watermark_epoch: Option<LeaderEpoch>,
    /// The newest unclean election on record.
    pub unclean_epoch: Option<LeaderEpoch>,
    /// The high watermark that the leader told.
    pub heard_high_watermark: Offset,
    /// The log start that the leader told.
    pub leader_log_start: Option<Offset>,
    /// Where damage begins.
    pub damaged_from: Option<Offset>,
    /// What a request that was sent acknowledged.
    pub acknowledged_sent: Option<Offset>,
    /// What the leader may have counted.
    pub acknowledged_counted: Option<Offset>,
    /// Where a cut or an out-of-range was answered last.
    pub settled_at: Option<(Offset, Option<LeaderEpoch>)>,
    /// Failed tries of fetching in a row, up to the number at which it gives up.
    pub fetch_failures: u32,
    /// Failed tries of the disk in a row, likewise.
    pub storage_failures: u32,
}

impl FollowerPartition {
    /// What decides what this follower does from now on, once its effects were drained.
    #[must_use]
    pub fn essence(&self) -> FollowerEssence {
        debug_assert!(self.effects.is_empty(), "effects are drained after each event");
        let (phase, is_retried) = match &self.phase {
            Phase::Fetching => ("fetching", false),
            Phase::Truncating => ("truncating", false),
            Phase::ResolvingRange => ("resolving_range", false),
            Phase::Failed { reason, retry_at } => (reason.name(), retry_at.is_some()),
        };
        let most = self.config.backoff.max_attempts;
        FollowerEssence {
            leader: self.leader,
            leader_epoch: self.leader_epoch,
            incarnation: self.incarnation,
            phase,
            is_retried,
            generation: self.generation,
            log_version: self.log_version,
            log_start: self.log_start,
            log_start_asked: self.log_start_asked,
            log_end: self.log_end,
            flushed_end: self.flushed_end,
            queued_end: self.queued_end,
            queued_bytes: self.queued_bytes,
            last_fetched_epoch: self.last_fetched_epoch,
            high_watermark: self.high_watermark,
            high_watermark_epoch: self.high_watermark_epoch,
            unclean_epoch: self.unclean_epoch,
            heard_high_watermark: self.heard_high_watermark,
            leader_log_start: self.leader_log_start,
            damaged_from: self.damaged_from(),
            acknowledged_sent: self.acknowledged_sent,
            acknowledged_counted: self.acknowledged_counted,
            settled_at: self.settled_at,
            fetch_failures: self.fetch_backoff.attempts().min(most),
            storage_failures: self.storage_backoff.attempts().min(most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follower::follower_test_support::{answer, drain, follower, records, span};

    /// What a follower of `0..2@1` is after an answer of a leader that ends at `leader_end`.
    fn after_answer(leader_end: i64, high_watermark: i64) -> FollowerEssence {
        let mut follower = follower(2, 3, 1, 1);
        answer(&mut follower, 0, &records(leader_end, high_watermark, &[span(3, 4, 2)]));
        drain(&mut follower);
        follower.essence()
    }

    #[test]
    fn how_far_the_leader_is_ahead_is_no_part_of_it_and_its_high_watermark_is() {
        assert_eq!(after_answer(9, 2), after_answer(7, 2));
        assert_ne!(after_answer(9, 2), after_answer(9, 3));
    }
}
