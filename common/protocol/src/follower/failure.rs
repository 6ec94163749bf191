//! Why a partition waits or has failed, and how it gets out (S10–S13, S46, design.md 5).

use std::fmt;

use highwater_types::{ErrorCode, MonotonicTime, Offset};

use super::{Delay, FollowerPartition, Phase};
use crate::Randomness;

/// Why a partition does not fetch now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The leader refused.
    Leader(ErrorCode),
    /// The leader's next batch is larger than this node takes.
    BatchTooLarge,
    /// The answer's records fail their checks, or do not continue the log.
    BadRecords(String),
    /// The own disk failed.
    Storage(String),
    /// The leader's epoch is over and no newer one is known here (S46).
    Fenced,
    /// The leader's answer would cut committed records; only an unclean election allows that.
    CutBelowHighWatermark {
        /// Where the cut would go.
        cut: Offset,
        /// What it would go below.
        high_watermark: Offset,
    },
    /// The own log ends after the leader's, and no epoch says where they part: an undefined answer never cuts.
    AheadOfLeader {
        /// The own log end.
        log_end: Offset,
        /// The leader's.
        leader_end: Offset,
    },
    /// The leader calls a position out of range that lies inside its range.
    RangeUnresolved,
}

impl FailureReason {
    /// The name for the wire and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Leader(_) => "leader_error",
            Self::BatchTooLarge => "batch_too_large",
            Self::BadRecords(_) => "bad_records",
            Self::Storage(_) => "storage",
            Self::Fenced => "fenced",
            Self::CutBelowHighWatermark { .. } => "cut_below_high_watermark",
            Self::AheadOfLeader { .. } => "ahead_of_leader",
            Self::RangeUnresolved => "range_unresolved",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader(code) => write!(f, "the leader answers {code:?}"),
            Self::BatchTooLarge => f.write_str(
                "the next batch is larger than this node takes: raise its replica.fetch.batch.max.bytes",
            ),
            Self::BadRecords(what) => write!(f, "the leader's records were refused: {what}"),
            Self::Storage(what) => write!(f, "the disk failed: {what}"),
            Self::Fenced => f.write_str("the leader epoch is over; waiting for the new one"),
            Self::CutBelowHighWatermark { cut, high_watermark } => {
                write!(
                    f,
                    "the leader's log would cut committed records: to {cut}, below high watermark {high_watermark}; the leader lacks \
                     them, so have a replica that holds them lead: stop the leader's leader-svc, and start it again"
                )
            }
            Self::AheadOfLeader { log_end, leader_end } => {
                write!(
                    f,
                    "the log ends at {log_end}, the leader's at {leader_end}, and no common epoch is known"
                )
            }
            Self::RangeUnresolved => {
                f.write_str("the leader calls a position out of range that is inside its range")
            }
        }
    }
}

impl FollowerPartition {
    /// Waits for something that may pass at the leader; without end, because only its return can help.
    pub(super) fn delay(&mut self, reason: FailureReason, now: MonotonicTime, randomness: &mut Randomness) {
        if self.is_delayed(now) {
            return;
        }
        let until = now.after(self.fetch_backoff.next_delay(randomness));
        self.delay = Some(Delay { until, reason });
        debug_assert!(until >= now, "a wait ends in the future");
        debug_assert!(self.fetch_backoff.attempts() > 0, "a failure was counted");
    }

    /// The same for what a retry seldom helps: after a number of tries in a row the partition fails.
    pub(super) fn delay_or_fail(
        &mut self,
        reason: FailureReason,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) {
        if self.is_delayed(now) {
            return;
        }
        match self.fetch_backoff.next_bounded_delay(randomness) {
            Some(wait) => self.delay = Some(Delay { until: now.after(wait), reason }),
            None => self.fail_until(reason, None),
        }
        debug_assert!(
            self.delay.is_some() || matches!(self.phase, Phase::Failed { .. }),
            "it waits or has failed"
        );
    }

    /// Stops fetching; queued appends and answers under way are void.
    pub(super) fn fail_until(&mut self, reason: FailureReason, retry_at: Option<MonotonicTime>) {
        self.generation += 1;
        self.queued_end = self.log_end;
        self.queued_bytes = 0;
        self.delay = None;
        self.phase = Phase::Failed { reason, retry_at };
        debug_assert_eq!(self.queued_end, self.log_end, "nothing is queued on a failed log");
        debug_assert!(self.delay.is_none(), "failed is not delayed");
    }

    /// S13: a delay that runs is not extended.
    fn is_delayed(&self, now: MonotonicTime) -> bool {
        self.delay.as_ref().is_some_and(|delay| delay.until > now)
    }
}
