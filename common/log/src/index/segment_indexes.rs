//! Both indexes of one segment, and the rule by which batches get into them (Kafka's `LogSegment.append`).

use super::{OFFSET_ENTRY_BYTES, OffsetEntry, OffsetIndex, TIME_ENTRY_BYTES, TimeEntry, TimeIndex};

/// A segment's indexes with what is needed to go on with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentIndexes {
    pub(crate) offsets: OffsetIndex,
    pub(crate) times: TimeIndex,
    /// Log bytes since the last entry.
    bytes_since_entry: u64,
    /// The largest timestamp so far, not yet in the time index perhaps.
    latest: Option<TimeEntry>,
}

/// What the indexes need to know of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedBatch {
    /// Where it begins in the segment, in bytes.
    pub(crate) position: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Its last offset, relative to the segment's base offset.
    pub(crate) relative: u32,
    /// Its largest timestamp, in milliseconds since 1970.
    pub(crate) max_timestamp: i64,
}

impl SegmentIndexes {
    /// Indexes as they were read from a closed segment's files.
    pub(crate) fn loaded(offsets: OffsetIndex, times: TimeIndex) -> Self {
        let latest = times.last();
        Self { offsets, times, bytes_since_entry: 0, latest }
    }

    /// Takes note of a batch; every `interval` bytes one is indexed.
    pub(crate) fn note(&mut self, batch: IndexedBatch, interval: u32) {
        let later = self.latest.is_none_or(|latest| latest.timestamp < batch.max_timestamp);
        if later && batch.max_timestamp >= 0 {
            self.latest = Some(TimeEntry { timestamp: batch.max_timestamp, relative: batch.relative });
        }
        if self.bytes_since_entry > u64::from(interval)
            && let Ok(position) = u32::try_from(batch.position)
        {
            self.offsets.push(OffsetEntry { relative: batch.relative, position });
            if let Some(latest) = self.latest {
                self.times.push_if_later(latest);
            }
            self.bytes_since_entry = 0;
        }
        self.bytes_since_entry = self.bytes_since_entry.saturating_add(batch.size);
    }

    /// The last entry of a closed segment's time index is its largest timestamp, so that retention and look-ups can go by it.
    pub(crate) fn finish(&mut self) {
        if let Some(latest) = self.latest {
            self.times.push_if_later(latest);
        }
    }

    /// The largest timestamp of the segment, in milliseconds since 1970; -1 when no batch has any.
    pub(crate) fn max_timestamp(&self) -> i64 {
        self.latest.map_or(-1, |latest| latest.timestamp)
    }

    /// Whether index files of `index_bytes` would be full: the segment is closed then. One time entry is kept for closing.
    pub(crate) fn is_full(&self, index_bytes: u32) -> bool {
        let room = usize::try_from(index_bytes).unwrap_or(usize::MAX);
        self.offsets.len() >= room / OFFSET_ENTRY_BYTES
            || self.times.len() >= (room / TIME_ENTRY_BYTES).saturating_sub(1).max(1)
    }

    /// Drops what is known of batches that begin at `position` or later, whose last offsets are `relative_end` or larger.
    /// Returns the last entry that stays: the batches from its position on have to be noted again.
    pub(crate) fn truncate(&mut self, position: u64, relative_end: u32) -> Option<OffsetEntry> {
        self.offsets.truncate_to_position(position);
        self.times.truncate_to(relative_end);
        self.latest = self.times.last();
        self.bytes_since_entry = 0;
        self.offsets.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(indexes: &mut SegmentIndexes, position: u64, relative: u32, max_timestamp: i64) {
        indexes.note(IndexedBatch { position, size: 100, relative, max_timestamp }, 150);
    }

    #[test]
    fn an_entry_is_made_once_more_than_the_interval_was_written() {
        let mut indexes = SegmentIndexes::default();
        for i in 0..6_u32 {
            note(&mut indexes, u64::from(i) * 100, i, 1_000 + i64::from(i));
        }
        let kept: Vec<_> = indexes.offsets.entries().iter().map(|e| (e.relative, e.position)).collect();
        assert_eq!(kept, [(2, 200), (4, 400)]);
        assert_eq!(indexes.times.last().unwrap().timestamp, 1_004);
        indexes.finish();
        assert_eq!(indexes.times.last(), Some(TimeEntry { timestamp: 1_005, relative: 5 }));
    }

    #[test]
    fn records_dated_wrongly_neither_turn_the_time_index_back_nor_overflow_it() {
        let mut indexes = SegmentIndexes::default();
        for (i, timestamp) in (0..).zip([-1, 500, i64::MAX, 100, -1, i64::MAX, 700]) {
            note(&mut indexes, u64::from(i) * 100, i, timestamp);
        }
        indexes.finish();
        let kept: Vec<_> = indexes.times.entries().iter().map(|e| (e.timestamp, e.relative)).collect();
        assert_eq!(kept, [(i64::MAX, 2)]);
        assert_eq!(indexes.max_timestamp(), i64::MAX);
    }

    #[test]
    fn full_leaves_room_for_the_closing_time_entry() {
        let mut indexes = SegmentIndexes::default();
        assert!(!indexes.is_full(24));
        for i in 0..3_u32 {
            note(&mut indexes, u64::from(i) * 100, i, i64::from(i));
        }
        assert!(indexes.is_full(24), "24 bytes hold two time entries, one of them for closing");
    }
}
