//! A range of offsets.

use std::fmt;

use highwater_types::Offset;

/// Offsets from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OffsetRange {
    /// The first offset of the range.
    pub start: Offset,
    /// The offset after the last.
    pub end: Offset,
}

impl OffsetRange {
    /// Names a range; one whose end is not after its start is empty.
    #[must_use]
    pub const fn new(start: Offset, end: Offset) -> Self {
        Self { start, end }
    }

    /// Whether no offset is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether `offset` is in it.
    #[must_use]
    pub fn contains(self, offset: Offset) -> bool {
        self.start <= offset && offset < self.end
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What is in any of them: in order, without overlap.
    #[must_use]
    pub fn merged(ranges: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Self> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut().filter(|last| range.start < last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => merged.push(range),
            }
        }
        debug_assert!(merged.is_sorted_by(|a, b| a.end <= b.start), "in order, without overlap");
        merged
    }

    /// How many offsets are in it.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.end.since(self.start)
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

impl fmt::Debug for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_one_and_the_others_stay_in_order() {
        let range = |start, end| OffsetRange::new(Offset::new(start).unwrap(), Offset::new(end).unwrap());
        let merged = OffsetRange::merged([
            range(20, 30),
            range(0, 5),
            range(0, 16),
            range(16, 18),
            range(25, 26),
            range(7, 7),
        ]);
        assert_eq!(merged, [range(0, 16), range(16, 18), range(20, 30)]);
        assert_eq!(OffsetRange::merged([]), []);
    }
}
