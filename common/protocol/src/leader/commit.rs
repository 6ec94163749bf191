//! What is committed: the high watermark over the maximal in-sync set (S57–S62, design.md 6.8).

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Durability, ErrorCode, IsrMember, MonotonicTime, Offset, ReplicationError};

use super::follower_progress::FollowerProgress;
use super::{LeaderEffect, LeaderPartition};

impl LeaderPartition {
    /// S57 and S58 over what is acknowledged now (S60, S62), then tells who waits.
    pub(super) fn advance_high_watermark(&mut self, now: MonotonicTime) {
        let is_small = self.check_min_isr().is_err() && !is_planted(PlantedFault::AdvanceBelowMinIsr);
        if self.is_over || is_small {
            return;
        }
        let own = self.own_end();
        let waits_for_all = !is_planted(PlantedFault::ElectIntoUnion);
        let members = self.isr.counted().map(|member| self.held_by(&member, own));
        let members = members.filter(|held| waits_for_all || held.is_some());
        let bound = self.config.replica_lag_time_max;
        let joining = self.followers.iter().filter(|(node, progress)| {
            !self.isr.maximal_has_node(**node)
                && progress.is_about_to_join(self.log_end, now, bound)
                && !is_planted(PlantedFault::JoiningNotCounted)
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

    /// Whether writes are taken though this node cannot renew its liveness: while every other member of the in-sync set has
    /// fetched in this epoch within `patience`, none of them leads in a later one (design.md 6.7).
    ///
    /// # Errors
    /// `LeaderNotAvailable` names the member that has not.
    pub fn check_followed(&self, now: MonotonicTime, patience: Duration) -> Result<(), ReplicationError> {
        let fetched = |node| self.followers.get(&node).and_then(FollowerProgress::last_counted);
        let follows = |node| fetched(node).is_some_and(|at| now.since(at) < patience);
        let mut others = self.isr.maximal().map(|member| member.node).filter(|node| *node != self.node);
        let Some(silent) = others.find(|node| !follows(*node)) else { return Ok(()) };
        Err(ReplicationError::new(
            ErrorCode::LeaderNotAvailable,
            format!(
                "this node cannot renew its session with the coordination store, and node {silent} of the in-sync set has \
                 not fetched for {patience:?}: it may lead by now"
            ),
        ))
    }

    /// How much of its own log counts (design.md 2).
    fn own_end(&self) -> Offset {
        match self.config.durability {
            Durability::Fsync if !is_planted(PlantedFault::LeaderCountsUnflushed) => self.flushed_end,
            Durability::Fsync | Durability::PageCache => self.log_end,
        }
    }

    /// What a member is known to hold; `None` = unknown, so nothing more is committed.
    fn held_by(&self, member: &IsrMember, own: Offset) -> Option<Offset> {
        if member.node == self.node {
            return Some(own);
        }
        let progress = self.followers.get(&member.node)?;
        if is_planted(PlantedFault::OldIncarnationCounts) {
            return progress.acknowledged();
        }
        progress.acknowledged_as(member.incarnation)
    }

    pub(super) fn tell_followers(&mut self, now: MonotonicTime) {
        if self.high_watermark.propagate(now) {
            self.effects.push_back(LeaderEffect::TellFollowers(self.high_watermark.propagated()));
        }
    }

    /// `max(1, min(min ISR, replicas that are not being added))` (S58, design.md 6.12).
    pub(super) fn effective_min_isr(&self) -> usize {
        let wanted = usize::try_from(self.config.min_insync_replicas).unwrap_or(usize::MAX);
        wanted.min(self.replicas.len().saturating_sub(self.adding)).max(1)
    }

    /// One progress per assigned replica but this node, none for others.
    pub(super) fn reconcile_followers(&mut self, now: MonotonicTime) {
        let (node, replicas) = (self.node, &self.replicas);
        self.followers.retain(|id, _| replicas.contains(id));
        for id in replicas.iter().filter(|id| **id != node) {
            let in_sync = self.isr.maximal_has_node(*id);
            self.followers.entry(*id).or_insert_with(|| FollowerProgress::at_leader_start(in_sync, now));
        }
        debug_assert!(!self.followers.contains_key(&node), "a leader does not follow itself");
        debug_assert!(self.followers.len() <= self.replicas.len(), "progress of assigned replicas only");
    }

    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.effects.retain(|effect| !matches!(effect, LeaderEffect::ProposeIsr(_)));
        debug_assert!(self.next_deadline().is_none(), "nothing is due after the end");
        self.check_bounds();
    }

    pub(super) fn check_bounds(&self) {
        let high_watermark = self.high_watermark();
        debug_assert!(self.log_start <= high_watermark, "log start {} > HW {high_watermark}", self.log_start);
        debug_assert!(high_watermark <= self.log_end, "HW {high_watermark} > log end {}", self.log_end);
        debug_assert!(self.flushed_end <= self.log_end, "flushed beyond the log end");
    }
}

#[cfg(test)]
#[path = "high_watermark_walk_test.rs"]
mod high_watermark_tests;
