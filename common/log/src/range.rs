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
