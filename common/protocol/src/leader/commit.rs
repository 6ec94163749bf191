//! What is committed: the high watermark over the maximal in-sync set, and who joins the set (S52–S62, design.md 6.8).

use highwater_types::{Durability, IsrMember, MonotonicTime, NodeId};

use super::follower_progress::FollowerProgress;
use super::{LeaderEffect, LeaderPartition};

impl LeaderPartition {
    /// S57 and S58 over what is acknowledged now (S60, S62), then tells who waits.
    pub(super) fn advance_high_watermark(&mut self, now: MonotonicTime) {
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

    pub(super) fn tell_followers(&mut self, now: MonotonicTime) {
        if self.high_watermark.propagate(now) {
            self.effects.push_back(LeaderEffect::TellFollowers(self.high_watermark.propagated()));
        }
    }

    /// S52 and design.md 6.3: takes every follower that qualifies into the set, replacing an older incarnation of it.
    pub(super) fn maybe_expand(&mut self, now: MonotonicTime) {
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
    pub(super) fn effective_min_isr(&self) -> usize {
        let wanted = usize::try_from(self.config.min_insync_replicas).unwrap_or(usize::MAX);
        wanted.min(self.replicas.len()).max(1)
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
#[cfg(test)]
#[path = "isr_test.rs"]
mod isr_tests;
