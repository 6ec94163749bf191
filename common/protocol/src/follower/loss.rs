//! Records that are gone: what is damaged here, and what the leader has lost (design.md 2, 6.3).
//!
//! What holds: damage that the leader can repair bounds the acknowledgement. What the leader of this epoch has lost itself
//! bounds nothing: its log is the one that followers are to equal, and nobody in sync with it holds more. It is passed over,
//! and stays on record as lost. The next leadership begins without such knowledge, because its leader may have the records.

use std::ops::Range;

use highwater_types::Offset;

use super::{FetchPosition, FollowerAction, FollowerEffect, FollowerPartition, Phase};
use crate::fetch::LostRange;

impl FollowerPartition {
    /// What the leader has lost, as its answer to what was asked from `sent` says, in order. It loses nothing more in its
    /// epoch, so an answer of this epoch says it however late it comes. Report it before the answer itself.
    pub fn on_leader_lost(&mut self, sent: &FetchPosition, lost: &[LostRange]) {
        debug_assert!(lost.is_sorted_by(|a, b| a.end <= b.start), "in order, without overlap");
        if sent.leader_epoch == self.leader_epoch && self.leader_lost != lost {
            self.leader_lost = lost.to_vec();
        }
        self.check_bounds();
    }

    /// What is damaged or gone here and may be had from the leader, in order.
    #[must_use]
    pub fn repairable(&self) -> Vec<Range<Offset>> {
        self.damage.iter().flat_map(|own| without(own, &self.leader_lost)).collect()
    }

    /// From here on nothing is acknowledged.
    pub(super) fn damaged_from(&self) -> Option<Offset> {
        self.damage.iter().find_map(|own| without(own, &self.leader_lost).first().map(|left| left.start))
    }

    /// The leader has lost what is to be fetched next: it is passed over, once nothing is queued in front of it.
    pub(super) fn pass_over_lost(&mut self) -> Option<FollowerAction> {
        let lost = self.leader_lost.iter().find(|lost| lost.contains(self.log_end))?.clone();
        if self.queued_end != self.log_end {
            return None;
        }
        self.leave_fetching(Phase::Truncating);
        debug_assert!(lost.end > self.log_end, "the log goes on behind it");
        Some(FollowerAction::PassOver { generation: self.generation, lost })
    }

    /// The log is where the leader's ends, and they agree: what was lost here beyond that is nothing that the leader has, and
    /// so nothing that was committed.
    pub(super) fn forget_lost_tail(&mut self, leader_end: Offset) {
        let is_at_end = self.log_end == leader_end && self.queued_end == leader_end;
        if is_at_end && self.damage.iter().any(|own| own.end > leader_end) {
            self.effects.push_back(FollowerEffect::ForgetLostTail { generation: self.generation });
        }
    }
}

/// What of `own` is in none of `lost`, in order.
fn without(own: &Range<Offset>, lost: &[LostRange]) -> Vec<Range<Offset>> {
    let mut left = Vec::new();
    let mut from = own.start;
    for lost in lost.iter().filter(|lost| lost.start < own.end) {
        if from < lost.start {
            left.push(from..lost.start);
        }
        from = from.max(lost.end);
    }
    if from < own.end {
        left.push(from..own.end);
    }
    left
}

#[cfg(test)]
#[path = "loss_test.rs"]
mod tests;
