//! What a leader tells about its followers (DescribeReplication): a row each, with the cause of a lag.
//!
//! Deliberately absent: lag in bytes, which the log knows.

use std::time::Duration;

use highwater_types::{Incarnation, MonotonicTime, NodeId, Offset};

use super::LeaderPartition;
use super::follower_progress::FollowerProgress;
use crate::lag_cause::{LagCause, LagFacts};

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
        let may_read_no_more = progress.is_paused() || progress.fetch_offset() >= Some(self.log_end);
        LagFacts {
            lag_records: progress.acknowledged().map(|offset| self.log_end.since(offset)),
            paused: progress.is_suspended(),
            backing_off: progress.refusal().is_some(),
            truncating: progress.is_diverging(),
            silent: progress.is_silent(now, self.config.replica_lag_time_max),
            throttled: progress.is_throttled(now),
            awaits_disk: may_read_no_more,
            delays: Some(progress.delays(now)),
            ..LagFacts::default()
        }
        .cause()
    }
}
