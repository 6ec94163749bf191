//! The newest appends of a leader: when, and how many bytes.
//!
//! Answers without a disk when the record at an offset was appended (for the lag that a follower reports), how many bytes
//! lie between two recent offsets (for `min_bytes` of a parked fetch, exactly, which the log's sparse index cannot), and
//! under which traces recent records were produced. What holds: at most [`MAX_ENTRIES`] entries, rising and without holes;
//! at most [`MAX_TRACED`] traced ones. Of what lies further back only marks are left: a follower that is far behind is to
//! see by how much.

use std::collections::VecDeque;
use std::time::Duration;

use highwater_log::OffsetRange;
use highwater_types::{MonotonicTime, Offset, TraceContext};

/// Appends that are remembered: what lies further back is asked of the log.
const MAX_ENTRIES: usize = 1024;

/// Marks of when older records were appended. Spread over the whole leadership, so the age of a record of which only a mark
/// is left is off by a hundredth or two.
const MAX_MARKS: usize = 256;

/// The first distance between two marks; doubled whenever they are thinned out.
const FIRST_SPACING: Duration = Duration::from_millis(100);

/// Traced appends that are remembered. A follower that is further behind finds no trace.
const MAX_TRACED: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    range: OffsetRange,
    at: MonotonicTime,
    /// Bytes of all earlier appends.
    before: u64,
}

/// Appends of one leadership.
#[derive(Debug)]
pub(crate) struct AppendHistory {
    entries: VecDeque<Entry>,
    bytes: u64,
    /// The first offset of each traced append, rising.
    traced: VecDeque<(Offset, TraceContext)>,
    /// Some appends since the beginning: the first offset, and when.
    marks: Vec<(Offset, MonotonicTime)>,
    spacing: Duration,
}

impl Default for AppendHistory {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            traced: VecDeque::new(),
            marks: Vec::new(),
            spacing: FIRST_SPACING,
        }
    }
}

impl AppendHistory {
    /// Records an append of `bytes` bytes, which continues the last one.
    pub(crate) fn note(&mut self, range: OffsetRange, bytes: u64, at: MonotonicTime) {
        debug_assert!(self.entries.back().is_none_or(|last| last.range.end == range.start), "without holes");
        if range.is_empty() {
            return;
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.mark(range.start, at);
        self.entries.push_back(Entry { range, at, before: self.bytes });
        self.bytes = self.bytes.saturating_add(bytes);
        debug_assert!(self.entries.len() <= MAX_ENTRIES, "the history is bounded");
    }

    fn mark(&mut self, offset: Offset, at: MonotonicTime) {
        if self.marks.last().is_some_and(|(_, last)| at.since(*last) < self.spacing) {
            return;
        }
        if self.marks.len() == MAX_MARKS {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.spacing = self.spacing.saturating_mul(2);
        }
        self.marks.push((offset, at));
        debug_assert!(self.marks.len() <= MAX_MARKS, "the marks are bounded");
    }

    /// The append that begins at `offset` belongs to a trace.
    pub(crate) fn note_trace(&mut self, offset: Offset, trace: TraceContext) {
        debug_assert!(self.traced.back().is_none_or(|(last, _)| *last < offset), "rising");
        if self.traced.len() == MAX_TRACED {
            self.traced.pop_front();
        }
        self.traced.push_back((offset, trace));
        debug_assert!(self.traced.len() <= MAX_TRACED, "the traces are bounded");
    }

    /// The traces of appends that begin from `from` on and before `to`.
    pub(crate) fn traces(&self, from: Offset, to: Offset) -> Vec<(Offset, TraceContext)> {
        let begin = self.traced.partition_point(|(offset, _)| *offset < from);
        self.traced.iter().skip(begin).take_while(|(offset, _)| *offset < to).copied().collect()
    }

    /// When the record at `offset` was appended, or a little earlier where only a mark is left; `None` for records of before
    /// this leadership, and for those to come.
    pub(crate) fn appended_at(&self, offset: Offset) -> Option<MonotonicTime> {
        let entry = self.entries.get(self.after(offset))?;
        if entry.range.contains(offset) {
            return Some(entry.at);
        }
        let marked = self.marks.partition_point(|(first, _)| *first <= offset);
        self.marks.get(marked.checked_sub(1)?).map(|(_, at)| *at)
    }

    /// Bytes of the appends from the one with `from` to the last one before `to`; `None` when `from` is too far back.
    pub(crate) fn bytes_between(&self, from: Offset, to: Offset) -> Option<u64> {
        if from >= to {
            return Some(0);
        }
        if self.entries.front()?.range.start > from {
            return None;
        }
        let first_after = self.entries.partition_point(|e| e.range.start < to);
        Some(self.before(first_after).saturating_sub(self.before(self.after(from))))
    }

    /// The first append that ends after `offset`.
    fn after(&self, offset: Offset) -> usize {
        self.entries.partition_point(|e| e.range.end <= offset)
    }

    fn before(&self, index: usize) -> u64 {
        self.entries.get(index).map_or(self.bytes, |e| e.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    /// Appends of ten offsets and 100 bytes each, from offset 50, one per millisecond.
    fn history(appends: u64) -> AppendHistory {
        let mut history = AppendHistory::default();
        for number in 0..appends {
            let start = offset(50).advance(i64::try_from(number * 10).unwrap());
            let range = OffsetRange::new(start, start.advance(10));
            history.note(range, 100, MonotonicTime::from_millis(number));
        }
        history
    }

    #[test]
    fn the_time_of_an_append_is_that_of_its_range() {
        let history = history(3);
        assert_eq!(history.appended_at(offset(49)), None);
        assert_eq!(history.appended_at(offset(50)), Some(MonotonicTime::from_millis(0)));
        assert_eq!(history.appended_at(offset(69)), Some(MonotonicTime::from_millis(1)));
        assert_eq!(history.appended_at(offset(80)), None);
    }

    #[test]
    fn bytes_are_exact_between_recent_offsets() {
        let history = history(3);
        assert_eq!(history.bytes_between(offset(50), offset(80)), Some(300));
        assert_eq!(history.bytes_between(offset(60), offset(70)), Some(100));
        assert_eq!(history.bytes_between(offset(65), offset(80)), Some(200), "a batch is read as a whole");
        assert_eq!(history.bytes_between(offset(80), offset(80)), Some(0));
        assert_eq!(history.bytes_between(offset(49), offset(80)), None);
        assert_eq!(AppendHistory::default().bytes_between(offset(1), offset(2)), None);
    }

    #[test]
    fn the_oldest_appends_are_forgotten() {
        let history = history(MAX_ENTRIES as u64 + 5);
        assert_eq!(history.entries.len(), MAX_ENTRIES);
        assert_eq!(history.appended_at(offset(99)), Some(MonotonicTime::ZERO), "a mark is left");
        assert_eq!(history.appended_at(offset(49)), None, "from before this leadership");
        assert_eq!(history.appended_at(offset(100)), Some(MonotonicTime::from_millis(5)));
        assert_eq!(history.bytes_between(offset(100), offset(120)), Some(200));
    }

    #[test]
    fn the_newest_traces_are_found_by_offset() {
        let trace = |number: u64| TraceContext::new(9, number, true).unwrap();
        let mut history = AppendHistory::default();
        for number in 1..=MAX_TRACED as u64 + 2 {
            history.note_trace(offset(i64::try_from(number * 10).unwrap()), trace(number));
        }
        assert_eq!(history.traces(offset(0), offset(31)), [(offset(30), trace(3))], "two are forgotten");
        assert_eq!(history.traces(offset(40), offset(60)), [(offset(40), trace(4)), (offset(50), trace(5))]);
        assert_eq!(history.traces(offset(41), offset(50)), []);
    }

    #[test]
    fn the_age_of_what_lies_far_back_is_off_by_little() {
        let mut history = AppendHistory::default();
        // An hour of appends, ten a second.
        for number in 0..36_000_u64 {
            let start = offset(i64::try_from(number).unwrap());
            let range = OffsetRange::new(start, start.advance(1));
            history.note(range, 1, MonotonicTime::from_millis(number * 100));
        }
        assert!(history.marks.len() <= MAX_MARKS);
        for number in [0_u64, 1, 9_999, 20_000, 34_000] {
            let marked = history.appended_at(offset(i64::try_from(number).unwrap())).unwrap();
            let off = MonotonicTime::from_millis(number * 100).since(marked);
            assert!(off <= Duration::from_secs(60), "{number}: off by {off:?} of an hour");
            assert!(marked <= MonotonicTime::from_millis(number * 100), "never younger than it is");
        }
    }
}
