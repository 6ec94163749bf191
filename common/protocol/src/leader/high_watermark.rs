//! The high watermark of a leader: how far it may move, and when followers are told (S57–S62, S31, design.md 6.8).
//!
//! What holds: it never falls, never passes the log end, and stands still while the in-sync set is smaller than
//! `min.insync.replicas` or a member's progress is unknown. What followers are told (`propagated`) trails it by at most the
//! propagation time, so a busy partition does not double the number of fetches (KAFKA-9731, KIP-1166).

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{MonotonicTime, Offset};

/// The value, and how much of it followers have been told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HighWatermark {
    value: Offset,
    propagated: Offset,
    last_told: Option<MonotonicTime>,
    interval: Duration,
}

impl HighWatermark {
    pub(super) const fn new(value: Offset, interval: Duration) -> Self {
        Self { value, propagated: value, last_told: None, interval }
    }

    pub(super) const fn value(&self) -> Offset {
        self.value
    }

    /// What a parked follower's own is compared with.
    pub(super) const fn propagated(&self) -> Offset {
        self.propagated
    }

    /// Moves to the smallest of `bounds`, never back. `None` in `bounds` = a member's progress is unknown: no move.
    /// Answers whether it moved.
    pub(super) fn advance(&mut self, bounds: impl IntoIterator<Item = Option<Offset>>) -> bool {
        let before = self.value;
        let candidate = bounds.into_iter().reduce(|a, b| Some(a?.min(b?))).flatten();
        self.value = candidate.map_or(before, |c| c.max(before));
        if is_planted(PlantedFault::HighWatermarkFalls) {
            self.value = candidate.unwrap_or(before);
            return self.value != before;
        }
        debug_assert!(self.value >= before, "never falls on a leader (S59)");
        debug_assert!(self.propagated <= self.value, "followers are not told more than there is");
        self.value > before
    }

    /// Tells followers, when the last news is old enough. Answers whether parked fetches are to be looked at.
    pub(super) fn propagate(&mut self, now: MonotonicTime) -> bool {
        if self.propagated == self.value || self.next_news().is_some_and(|at| now < at) {
            return false;
        }
        self.propagated = self.value;
        self.last_told = Some(now);
        debug_assert!(self.next_news().is_none(), "nothing is left to tell");
        debug_assert_eq!(self.propagated, self.value, "all of it was told");
        true
    }

    /// When followers are to be told next; `None` = they know, or are told at once.
    pub(super) fn next_news(&self) -> Option<MonotonicTime> {
        if self.propagated == self.value { None } else { self.last_told.map(|at| at.after(self.interval)) }
    }
}

#[cfg(test)]
#[path = "high_watermark_test.rs"]
mod tests;
