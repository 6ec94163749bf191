//! What comes out of a follower's events: work for its log, questions for the leader, news, and its state for people.

use highwater_types::{MonotonicTime, Offset, OffsetAndEpoch, UncleanLoss};

use super::FailureReason;
use crate::fetch::LostRange;

/// What to do with an answer, in the order in which the actions were returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerAction {
    /// The answer is void, or there was nothing in it.
    Nothing,
    /// Append the first `bytes` bytes of its records, then report [`super::FollowerPartition::on_appended`].
    Append {
        /// Voids the append when it is no longer the current one.
        generation: u64,
        /// How many bytes of the answer's records, from their start.
        bytes: usize,
    },
    /// Cut: ask [`super::FollowerPartition::plan_cut`], cut, report [`super::FollowerPartition::on_log_replaced`].
    Truncate {
        /// Voids the cut when it is no longer the current one.
        generation: u64,
        /// What the leader answered.
        at: OffsetAndEpoch,
    },
    /// Ask the leader for its log start and log end under the same epoch, then report
    /// [`super::FollowerPartition::on_leader_offsets`] (S35).
    AskOffsets {
        /// Voids the answer when it is no longer the current one.
        generation: u64,
    },
    /// Drop the whole log and begin at `offset`, then report [`super::FollowerPartition::on_log_replaced`] (S35, S44).
    RestartAt {
        /// Voids it when it is no longer the current one.
        generation: u64,
        /// The leader's log start.
        offset: Offset,
    },
    /// Go on behind what the leader has lost: note it as lost here, too, durably, raise the log's end over it, and report
    /// [`super::FollowerPartition::on_log_replaced`].
    PassOver {
        /// Voids it when it is no longer the current one.
        generation: u64,
        /// What the leader has lost.
        lost: LostRange,
    },
    /// Renew the incarnation, durably, then report [`super::FollowerPartition::on_log_replaced`] (design.md 6.3).
    RenewIncarnation {
        /// Voids it when it is no longer the current one.
        generation: u64,
    },
}

/// What the caller owes after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerEffect {
    /// Consumers of this replica may read up to here.
    HighWatermarkAdvanced(Offset),
    /// Raise the log start to here, then report [`super::FollowerPartition::on_log_start`].
    RaiseLogStart(Offset),
    /// What was lost beyond the log's end is no loss: forget it, then report [`super::FollowerPartition::on_damage`].
    ForgetLostTail {
        /// Voids it when it is no longer the current one.
        generation: u64,
    },
    /// Open the log again, with recovery, then report [`super::FollowerPartition::on_log_replaced`] or
    /// [`super::FollowerPartition::on_storage_failed`].
    Recover,
}

/// The state as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionFetchState {
    /// Its log is being cut, restarted or renewed; it does not fetch.
    Truncating,
    /// It fetches.
    Fetching,
    /// It fetches again at a time.
    Delayed {
        /// When.
        until: MonotonicTime,
        /// Why not now.
        reason: FailureReason,
    },
    /// It does not fetch.
    Failed {
        /// Why.
        reason: FailureReason,
        /// When it recovers by itself; `None` = a new epoch or a person's resume is needed.
        retry_at: Option<MonotonicTime>,
    },
}

/// What a cut is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutPlan {
    /// Overtaken: do nothing.
    Void,
    /// Refused; the partition has failed. Do nothing.
    Refused,
    /// Cut to `end`, after renewing the incarnation durably where `renew` says so (design.md 6.3).
    To {
        /// The new log end.
        end: Offset,
        /// Whether this incarnation acknowledged what the cut takes.
        renew: bool,
        /// What goes by an unclean election; the cut bytes are kept in a side file.
        loss: Option<UncleanLoss>,
    },
}
