//! What of a leadership decides what it does from now on: for a search over states, which has to know equal ones.
//!
//! Two leaderships with one essence answer every further event alike, as long as time only moves by less than
//! `replica.lag.time.max.ms`, or by ticks through all of it. Left out, and why that is sound:
//!
//! - times: rules compare their age with `replica.lag.time.max.ms`, so here they are young or old;
//! - the time at which a change of unknown outcome is proposed again, and when followers were told of a high watermark last:
//!   both only delay what a tick does;
//! - what a follower reads, its log start, its high watermark, pauses, throttles and delays: only described;
//! - when a fetch last counted: asked only by a node that cannot renew its session, before it takes a write.

use highwater_types::{Incarnation, IsrMember, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionEpoch};

use super::{LeaderPartition, Presence};
use crate::fetch::RequestOrder;

/// What decides about a leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaderEssence {
    /// Its epoch.
    pub epoch: LeaderEpoch,
    /// Where the epoch begins.
    pub epoch_start: Offset,
    /// The assigned replicas.
    pub replicas: Vec<NodeId>,
    /// How many of them are being added.
    pub adding: usize,
    /// The first retained offset.
    pub log_start: Offset,
    /// The log end.
    pub log_end: Offset,
    /// How far the log is flushed.
    pub flushed_end: Offset,
    /// The high watermark.
    pub high_watermark: Offset,
    /// What followers were told of it.
    pub propagated: Offset,
    /// The committed in-sync set.
    pub isr: Vec<IsrMember>,
    /// The version of the newest record seen.
    pub partition_epoch: PartitionEpoch,
    /// The change under way.
    pub pending: Option<PendingIsr>,
    /// Each follower, by node id.
    pub followers: Vec<FollowerOfLeader>,
    /// Whether somebody is behind, so that lag is looked at.
    pub watches_lag: bool,
    /// Whether it is over.
    pub is_over: bool,
}

/// A change of the in-sync set that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingIsr {
    /// The proposed set.
    pub proposed: Vec<IsrMember>,
    /// The version that it is proposed against.
    pub expected: PartitionEpoch,
    /// Whether its outcome is unknown, so that it is proposed again.
    pub is_unknown: bool,
}

/// What a leader knows of a follower, as far as it decides something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowerOfLeader {
    /// The follower.
    pub node: NodeId,
    /// Its incarnation, once it fetched.
    pub incarnation: Option<Incarnation>,
    /// Those that it replaced, in order.
    pub retired: Vec<Incarnation>,
    /// What it acknowledged.
    pub acknowledged: Option<Offset>,
    /// Whether it fetched a short time ago.
    pub is_fetching: bool,
    /// Whether it was caught up a short time ago; `None` = never.
    pub caught_up: Option<bool>,
    /// Arrivals whose log end it has not acknowledged: whether each was a short time ago, and that end.
    pub arrivals: Vec<(bool, Offset)>,
    /// Whether it is there.
    pub presence: Presence,
    /// Whether records are read for it now.
    pub is_read_for: bool,
    /// Its latest request.
    pub latest: Option<RequestOrder>,
}

impl LeaderPartition {
    /// What decides what this leadership does from `now` on, once its effects were drained.
    #[must_use]
    pub fn essence(&self, now: MonotonicTime) -> LeaderEssence {
        debug_assert!(self.effects.is_empty(), "effects are drained after each event");
        let bound = self.config.replica_lag_time_max;
        let pending = self.isr.pending().map(|(proposed, expected, is_unknown)| PendingIsr {
            proposed: proposed.to_vec(),
            expected,
            is_unknown,
        });
        LeaderEssence {
            epoch: self.epoch,
            epoch_start: self.epoch_start,
            replicas: self.replicas.clone(),
            adding: self.adding,
            log_start: self.log_start,
            log_end: self.log_end,
            flushed_end: self.flushed_end,
            high_watermark: self.high_watermark(),
            propagated: self.propagated_high_watermark(),
            isr: self.isr().to_vec(),
            partition_epoch: self.partition_epoch(),
            pending,
            followers: self.followers.iter().map(|(node, p)| p.essence(*node, now, bound)).collect(),
            watches_lag: self.lag_watched.is_some(),
            is_over: self.is_over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::FetchPartition;
    use crate::leader::leader_test_support::{all, drain, fetch_of, leader, send};
    use crate::test_values::{millis, offset};

    /// Node 2 fetched at `at`, told `high_watermark`, and holds everything up to `held`.
    fn after_fetch(at: u64, high_watermark: i64, held: i64) -> LeaderPartition {
        let mut leader = leader(&all());
        let request = FetchPartition { high_watermark: Some(offset(high_watermark)), ..fetch_of(2, held) };
        send(&mut leader, 2, &request, at).unwrap();
        drain(&mut leader);
        leader
    }

    #[test]
    fn what_is_only_described_and_the_time_within_the_bound_are_no_part_of_it() {
        let one = after_fetch(10, 90, 95).essence(millis(100));
        assert_eq!(one, after_fetch(20, 80, 95).essence(millis(100)));
    }

    #[test]
    fn what_is_held_and_who_has_grown_old_are_part_of_it() {
        let one = after_fetch(10, 90, 95);
        assert_ne!(one.essence(millis(100)), after_fetch(10, 90, 96).essence(millis(100)), "held");
        assert_ne!(one.essence(millis(100)), one.essence(millis(30_011)), "silent for too long");
    }
}
