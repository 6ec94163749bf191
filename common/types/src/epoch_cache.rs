//! The leader epoch cache: where in the log each leadership began (S36, S37, S42, S45).
//!
//! Invariants, kept by every method: entries rise strictly in epoch and in start offset. Pure: the log persists it.
//! The last entry may have no record yet (a leadership that appended nothing), which is why it cannot be derived from
//! the log alone.

use crate::{LeaderEpoch, Offset, OffsetAndEpoch};

/// One leadership and the offset of the first record that it could write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpochEntry {
    /// The leadership.
    pub epoch: LeaderEpoch,
    /// The log end offset at which it began.
    pub start: Offset,
}

/// Every leadership that the log holds, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaderEpochCache {
    entries: Vec<EpochEntry>,
}

impl LeaderEpochCache {
    /// A cache without entries.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    /// The newest entry, whether or not a record carries its epoch. Its epoch is a follower's `last_fetched_epoch`.
    #[must_use]
    pub fn latest(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    /// The oldest entry.
    #[must_use]
    pub fn earliest(&self) -> Option<EpochEntry> {
        self.entries.first().copied()
    }

    /// Notes that `epoch` begins at `start`; an entry that this contradicts, and all after it, is dropped (S45). Returns
    /// whether anything changed, so that the caller knows whether to persist.
    ///
    /// A known latest epoch keeps its start unless `start` is earlier.
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        if let Some(latest) = self.latest()
            && latest.epoch == epoch
            && latest.start <= start
        {
            return false;
        }
        let keep = self.entries.partition_point(|e| e.epoch < epoch && e.start < start);
        self.entries.truncate(keep);
        self.entries.push(EpochEntry { epoch, start });
        debug_assert!(self.is_strictly_rising(), "entries rise in epoch and start");
        true
    }

    /// Drops every leadership that began at or after `end`: what a truncation to `end` leaves (S42). Returns whether
    /// anything changed.
    pub fn truncate_from_end(&mut self, end: Offset) -> bool {
        let keep = self.entries.partition_point(|e| e.start < end);
        let changed = keep < self.entries.len();
        self.entries.truncate(keep);
        changed
    }

    /// Forgets what lies below `start`, the new log start; the leadership that covers `start` now begins there. Returns
    /// whether anything changed.
    pub fn truncate_from_start(&mut self, start: Offset) -> bool {
        let covered = self.entries.partition_point(|e| e.start <= start);
        let Some(keep) = covered.checked_sub(1) else { return false };
        let moved = self.entries.get(keep).is_some_and(|e| e.start != start);
        self.entries.drain(..keep);
        if let Some(first) = self.entries.first_mut() {
            first.start = start;
        }
        debug_assert!(self.is_strictly_rising(), "entries rise in epoch and start");
        keep > 0 || moved
    }

    /// Forgets everything (S44).
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Where `epoch` ends in a log whose end is `log_end` (S37): paired with the largest known epoch that is not larger.
    /// `None` = undefined: the epoch is above every known one, or none is known.
    #[must_use]
    pub fn end_offset_for(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<OffsetAndEpoch> {
        let latest = self.latest()?;
        if epoch == latest.epoch {
            return Some(OffsetAndEpoch { offset: log_end, epoch });
        }
        if epoch > latest.epoch {
            return None;
        }
        let above = self.entries.partition_point(|e| e.epoch <= epoch);
        let end = self.entries.get(above)?.start;
        let floor = above.checked_sub(1).and_then(|i| self.entries.get(i)).map_or(epoch, |e| e.epoch);
        Some(OffsetAndEpoch { offset: end, epoch: floor })
    }

    /// The leadership that wrote the record at `offset`: the newest that began at or before it. `None` below the oldest.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.entries.partition_point(|e| e.start <= offset);
        after.checked_sub(1).and_then(|i| self.entries.get(i)).map(|e| e.epoch)
    }

    /// The newest entry of an epoch below `epoch`.
    #[must_use]
    pub fn previous(&self, epoch: LeaderEpoch) -> Option<EpochEntry> {
        let at = self.entries.partition_point(|e| e.epoch < epoch);
        at.checked_sub(1).and_then(|i| self.entries.get(i)).copied()
    }

    fn is_strictly_rising(&self) -> bool {
        self.entries.is_sorted_by(|a, b| a.epoch < b.epoch && a.start < b.start)
    }
}

impl FromIterator<EpochEntry> for LeaderEpochCache {
    /// Assigns the entries in order, so that the later of two contradicting ones wins.
    fn from_iter<I: IntoIterator<Item = EpochEntry>>(entries: I) -> Self {
        let mut cache = Self::new();
        for entry in entries {
            cache.assign(entry.epoch, entry.start);
        }
        cache
    }
}

#[cfg(test)]
#[path = "epoch_cache_test.rs"]
mod tests;
