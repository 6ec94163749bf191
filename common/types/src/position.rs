//! Positions in a log and the counters that order leaders and records of the coordination store.
//!
//! Each is a newtype, so that an offset cannot be passed where an epoch is meant. An end is always exclusive.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The position of a record in a partition; never negative. As an end it is exclusive: the offset the next record gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Offset(i64);

impl Offset {
    /// The first offset of a log from which nothing was ever removed.
    pub const ZERO: Self = Self(0);
    /// The largest offset that can be an end: the offset after the last addressable record.
    pub const MAX: Self = Self(i64::MAX);

    /// Takes a raw offset; `None` when it is negative.
    #[must_use]
    pub const fn new(raw: i64) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The offset `count` records further on; stays at [`Offset::MAX`] instead of overflowing. A negative count counts as 0.
    #[must_use]
    pub const fn advance(self, count: i64) -> Self {
        if count <= 0 { self } else { Self(self.0.saturating_add(count)) }
    }

    /// The following offset.
    #[must_use]
    pub const fn next(self) -> Self {
        self.advance(1)
    }

    /// The preceding offset; `None` before the first.
    #[must_use]
    pub const fn prev(self) -> Option<Self> {
        Self::new(self.0.saturating_sub(1))
    }

    /// How many offsets lie from `earlier` (inclusive) to `self` (exclusive); 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        if self.0 > earlier.0 { (self.0 - earlier.0).unsigned_abs() } else { 0 }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The generation of a leadership of one partition (design.md 6.2); the first is 0. Orders leaders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaderEpoch(i32);

impl LeaderEpoch {
    /// The epoch of a partition's first leadership.
    pub const FIRST: Self = Self(0);

    /// Takes a raw epoch; `None` when it is negative (on the wire and in a batch, -1 means "none").
    #[must_use]
    pub const fn new(raw: i32) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The epoch of the following leadership.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// The version of a partition's record in the coordination store; every compare-and-swap raises it. Orders changes of the
/// in-sync set; not the leader epoch (S56).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct PartitionEpoch(u64);

impl PartitionEpoch {
    /// The version of a record as it is created.
    pub const FIRST: Self = Self(0);

    /// Takes a raw version.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after the next change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for PartitionEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PartitionEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// A position together with the leadership that wrote up to it, written `offset@epoch`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OffsetAndEpoch {
    /// The position.
    pub offset: Offset,
    /// The leadership.
    pub epoch: LeaderEpoch,
}

impl fmt::Display for OffsetAndEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.offset, self.epoch)
    }
}

impl fmt::Debug for OffsetAndEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.offset, self.epoch)
    }
}
