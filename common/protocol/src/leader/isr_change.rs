//! Who joins the in-sync set and who leaves it (S49–S57, design.md 4, 6.3, 6.6).
//!
//! What holds: one change is under way at a time, and it carries everything that is due; a follower that lags leaves only
//! after a time in which this leader could have served it, so a leader that was paused, or whose disk is slow, throws
//! nobody out; a follower that is known to be gone, or that a person paused, leaves at once, as long as the rest is large
//! enough.
//!
//! ```text
//!   watch      watch            (paused: no watch)             watch
//!     |----------|----------------------------------------------|     a gap of more than two intervals is
//!                `------------- counts for nobody --------------´     nobody's fault but the leader's
//! ```
//! Nothing is watched while every member holds everything, so an idle partition costs nothing.

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{IsrMember, MonotonicTime, NodeId};

use super::follower_progress::FollowerProgress;
use super::{LeaderEffect, LeaderPartition};

/// How often in `replica.lag.time.max.ms` the lag of members is looked at, so that removal takes at most 1.25 times that
/// (S51 allows 1.5), and a pause of this leader that goes unnoticed takes at most half of it from a follower.
const WATCHES_PER_BOUND: u32 = 4;

impl LeaderPartition {
    /// A follower's connection closed and its port refuses connections: its program is dead (design.md 6.6). It leaves the
    /// in-sync set at once, as long as what stays is large enough; a fetch of it that counts takes this back.
    pub fn on_follower_gone(&mut self, follower: NodeId, now: MonotonicTime) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.on_gone();
        }
        self.maybe_change_isr(now);
        self.check_bounds();
    }

    /// The port of a follower that was gone refuses connections still. Where a fetch took its death back and none has come since,
    /// it was back for a moment only, which nobody saw, and is dead again.
    pub fn on_follower_still_gone(&mut self, follower: NodeId, now: MonotonicTime) {
        if self.followers.get(&follower).is_some_and(|progress| progress.is_quiet(now)) {
            self.on_follower_gone(follower, now);
        }
    }

    /// The session of `follower` polled at `at`, and this partition was in it, unchanged: a poll that no
    /// [`Self::on_follower_fetch`] reports. Call it before the append that ends equality (design.md 4): until then an idle
    /// member is in sync whatever the time.
    pub fn on_session_poll(&mut self, follower: NodeId, at: MonotonicTime) {
        let log_end = self.log_end;
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.on_session_poll(at, log_end);
        }
        self.check_bounds();
    }

    /// Records are read for a follower from now on, until [`Self::on_follower_answered`]: what this takes is not its fault.
    pub fn on_follower_reads(&mut self, follower: NodeId, now: MonotonicTime) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.on_read_begins(now);
        }
        self.check_bounds();
    }

    /// Proposes the in-sync set that is due, unless a change is under way (S54): with every follower that qualifies (S52),
    /// in the place of an older incarnation of it (design.md 6.3), and without every one that lags or is gone.
    pub(super) fn maybe_change_isr(&mut self, now: MonotonicTime) {
        self.watch_lag(now);
        if self.is_over || self.isr.is_change_pending() {
            return;
        }
        let mut isr: Vec<_> =
            self.isr.committed().iter().copied().filter(|member| !self.lags(member, now)).collect();
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
        self.leave_out_the_lost(&mut isr);
        if isr != self.isr.committed() {
            let proposal = self.isr.propose(isr);
            self.effects.push_back(LeaderEffect::ProposeIsr(proposal));
        }
        debug_assert!(self.isr.maximal_has_node(self.node), "the leader stays (LeaderInIsr)");
        self.check_bounds();
    }

    /// The member that this follower would be; `None` = it may not join. One that lags does not: it would leave again.
    fn joining_member(
        &self,
        node: NodeId,
        progress: &FollowerProgress,
        now: MonotonicTime,
    ) -> Option<IsrMember> {
        let bound = self.config.replica_lag_time_max;
        let incarnation = progress.incarnation()?;
        let acknowledged = progress.acknowledged()?;
        let within_epoch =
            acknowledged >= self.epoch_start || is_planted(PlantedFault::ExpandWithoutEpochStart);
        let reached = acknowledged >= self.high_watermark() && within_epoch;
        let alive = progress.is_fetching(now, bound) && !progress.replicates_no_more();
        let keeps_up = progress.is_caught_up(self.log_end, now, bound);
        (reached && alive && keeps_up).then_some(IsrMember { node, incarnation })
    }

    /// S50: whether this member does not keep up. Of an incarnation that was replaced nothing is known, so it never does.
    fn lags(&self, member: &IsrMember, now: MonotonicTime) -> bool {
        let Some(progress) = self.followers.get(&member.node) else { return false };
        !progress.is_caught_up(self.log_end, now, self.config.replica_lag_time_max)
    }

    /// Takes out members that replicate no more, or whose incarnation was replaced, as on damage, while what stays is as many as `min.insync.replicas` asks for.
    fn leave_out_the_lost(&self, isr: &mut Vec<IsrMember>) {
        let needed = self.effective_min_isr();
        let is_lost = |member: &IsrMember| {
            self.followers.get(&member.node).is_some_and(|progress| {
                progress.replicates_no_more()
                    || progress.incarnation().is_some_and(|own| own != member.incarnation)
            })
        };
        while isr.len() > needed
            && let Some(index) = isr.iter().position(is_lost)
        {
            isr.remove(index);
        }
        debug_assert!(isr.iter().any(|m| m.node == self.node), "a leader does not follow itself");
    }

    /// Begins or ends the watch: it goes on while a member does not hold everything.
    pub(super) fn watch_lag(&mut self, now: MonotonicTime) {
        let behind = |member: &IsrMember| {
            member.node != self.node
                && self.followers.get(&member.node).is_some_and(|progress| {
                    progress.acknowledged_as(member.incarnation).is_none_or(|held| held < self.log_end)
                })
        };
        let is_needed = !self.is_over && self.isr.committed().iter().any(behind);
        self.lag_watched = if is_needed { self.lag_watched.or(Some(now)) } else { None };
    }

    /// When lag is to be looked at next; `None` = every member holds everything.
    pub(super) fn next_lag_watch(&self) -> Option<MonotonicTime> {
        self.lag_watched.map(|last| last.after(self.lag_watch_interval()))
    }

    /// Looks at who lags, when it is time. A look that comes much too late means that this leader did not run.
    pub(super) fn look_for_lag(&mut self, now: MonotonicTime) {
        let interval = self.lag_watch_interval();
        let Some(last) = self.lag_watched.filter(|last| now >= last.after(interval)) else { return };
        let gap = now.since(last);
        if gap > interval.saturating_mul(2) {
            for progress in self.followers.values_mut() {
                progress.excuse(gap, now);
            }
        }
        self.lag_watched = Some(now);
        self.maybe_change_isr(now);
        debug_assert!(self.next_lag_watch().is_none_or(|next| next > now), "the next look is later");
    }

    fn lag_watch_interval(&self) -> Duration {
        (self.config.replica_lag_time_max / WATCHES_PER_BOUND).max(Duration::from_nanos(1))
    }
}

#[cfg(test)]
#[path = "isr_test.rs"]
mod isr_tests;
#[cfg(test)]
#[path = "shrink_test.rs"]
mod shrink_tests;
