//! What a leader tells about its followers (DescribeReplication): a row each, with the cause of a lag.
//!
//! Deliberately absent: lag in bytes, which the log knows.

use std::time::Duration;

use highwater_types::{ErrorCode, Incarnation, MonotonicTime, NodeId, Offset};

use super::LeaderPartition;
use super::follower_progress::FollowerProgress;

/// Why a follower is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LagCause {
    /// It is not.
    None,
    /// It has not fetched in this leadership.
    NeverFetched,
    /// It has not fetched for longer than `replica.lag.time.max.ms`.
    NotFetching,
    /// Its fetches are refused.
    Refused(ErrorCode),
    /// Its log differs; it is cutting.
    Diverging,
    /// It is appending or flushing what it got, and asks for no more meanwhile.
    Appending,
    /// It is fetching.
    CatchingUp,
}

impl LagCause {
    /// The name for the wire, spans and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NeverFetched => "never_fetched",
            Self::NotFetching => "not_fetching",
            Self::Refused(_) => "refused",
            Self::Diverging => "diverging",
            Self::Appending => "appending",
            Self::CatchingUp => "catching_up",
        }
    }
}

/// A follower as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerRow {
    /// The follower.
    pub node: NodeId,
    /// Its incarnation, once it fetched.
    pub incarnation: Option<Incarnation>,
    /// Whether it is in the committed in-sync set, and not with an incarnation that it has replaced.
    pub in_sync: bool,
    /// Where it read last (exclusive end of what it asked for).
    pub fetch_offset: Option<Offset>,
    /// What it acknowledged in this leadership.
    pub acknowledged: Option<Offset>,
    /// The high watermark that it told.
    pub high_watermark: Option<Offset>,
    /// Its log start.
    pub log_start: Option<Offset>,
    /// Records between what it acknowledged and the leader's log end; `None` = it acknowledged nothing yet.
    pub lag_records: Option<u64>,
    /// How long ago it was caught up; zero while it is, `None` = never.
    pub lag_time: Option<Duration>,
    /// How long ago it fetched.
    pub last_fetch_age: Option<Duration>,
    /// Why it is behind.
    pub cause: LagCause,
}

impl LeaderPartition {
    /// A row per follower, by node id.
    #[must_use]
    pub fn describe(&self, now: MonotonicTime) -> Vec<FollowerRow> {
        self.followers.iter().map(|(node, progress)| self.row(*node, progress, now)).collect()
    }

    fn row(&self, node: NodeId, progress: &FollowerProgress, now: MonotonicTime) -> FollowerRow {
        let member = self.isr.committed().iter().find(|m| m.node == node);
        let is_at_end = progress.acknowledged().is_some_and(|offset| offset >= self.log_end);
        let since_caught_up = progress.last_caught_up().map(|at| now.since(at));
        FollowerRow {
            node,
            incarnation: progress.incarnation(),
            in_sync: member.is_some_and(|m| progress.incarnation().is_none_or(|own| own == m.incarnation)),
            fetch_offset: progress.fetch_offset(),
            acknowledged: progress.acknowledged(),
            high_watermark: progress.high_watermark(),
            log_start: progress.log_start(),
            lag_records: progress.acknowledged().map(|offset| self.log_end.since(offset)),
            lag_time: if is_at_end { Some(Duration::ZERO) } else { since_caught_up },
            last_fetch_age: progress.last_fetch().map(|at| now.since(at)),
            cause: self.cause(progress, now),
        }
    }

    fn cause(&self, progress: &FollowerProgress, now: MonotonicTime) -> LagCause {
        if progress.last_fetch().is_none() {
            LagCause::NeverFetched
        } else if !progress.is_fetching(now, self.config.replica_lag_time_max) {
            LagCause::NotFetching
        } else if let Some(code) = progress.refusal() {
            LagCause::Refused(code)
        } else if progress.is_diverging() {
            LagCause::Diverging
        } else if progress.acknowledged().is_some_and(|offset| offset >= self.log_end) {
            LagCause::None
        } else if progress.is_paused() || progress.fetch_offset().is_some_and(|offset| offset >= self.log_end)
        {
            LagCause::Appending
        } else {
            LagCause::CatchingUp
        }
    }
}
