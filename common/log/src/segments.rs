//! The list of segments and the positions, as one immutable value.
//!
//! What must hold:
//! - Segments are in the order of their bases; the last is the active one, which alone is appended to.
//! - `log_start ≤ log_end`, `flushed ≤ log_end`, and no byte beyond the lengths given here belongs to the log.
//! - A view is replaced as a whole, never changed; whoever has one sees one moment.

use std::ops::Range;
use std::sync::Arc;

use highwater_types::{LeaderEpochCache, Offset};

use crate::segment::Segment;
use crate::storage::Storage;
use crate::{Damage, LogPositions, OffsetRange};

/// A segment with its length in bytes.
#[derive(Debug)]
pub(crate) struct SegmentRef<S: Storage> {
    pub(crate) segment: Arc<Segment<S>>,
    pub(crate) len: u64,
}

impl<S: Storage> Clone for SegmentRef<S> {
    fn clone(&self) -> Self {
        Self { segment: Arc::clone(&self.segment), len: self.len }
    }
}

impl<S: Storage> SegmentRef<S> {
    pub(crate) fn base(&self) -> Offset {
        self.segment.base()
    }
}

/// Damage, and the bytes of the log that it takes up.
#[derive(Clone, Debug)]
pub(crate) struct DamagedBytes {
    pub(crate) damage: Damage,
    /// The base of the segment that holds the bytes, and which bytes; none when the bytes are gone.
    pub(crate) bytes: Option<(Offset, Range<u64>)>,
}

impl DamagedBytes {
    /// What lies at or after `start`.
    pub(crate) fn from(&self, start: Offset) -> Option<Self> {
        let mut left = self.clone();
        left.damage.range.start = left.damage.range.start.max(start);
        (!left.damage.range.is_empty()).then_some(left)
    }

    /// What is left of it once `repaired` is whole.
    pub(crate) fn around(&self, repaired: OffsetRange) -> Vec<Self> {
        let range = self.damage.range;
        if !range.covers(repaired) {
            return vec![self.clone()];
        }
        [self.below(repaired.start), self.from(repaired.end)].into_iter().flatten().collect()
    }

    /// What is left of it in a log that ends at `end`.
    pub(crate) fn below(&self, end: Offset) -> Option<Self> {
        let mut left = self.clone();
        left.damage.range.end = left.damage.range.end.min(end);
        (!left.damage.range.is_empty()).then_some(left)
    }

    /// What is left of it in a log that starts at `log_start`. Bytes that are bad are replaced as a whole.
    pub(crate) fn above(&self, log_start: Offset) -> Option<Self> {
        let mut left = self.clone();
        if left.bytes.is_none() {
            left.damage.range.start = left.damage.range.start.max(log_start.min(left.damage.range.end));
        }
        (left.damage.range.end > log_start).then_some(left)
    }
}

/// One moment of a log.
#[derive(Debug)]
pub(crate) struct View<S: Storage> {
    pub(crate) closed: Arc<Vec<SegmentRef<S>>>,
    pub(crate) active: SegmentRef<S>,
    pub(crate) log_start: Offset,
    pub(crate) log_end: Offset,
    pub(crate) flushed: Offset,
    pub(crate) generation: u64,
    /// The lengths of the closed segments, summed up.
    pub(crate) closed_bytes: u64,
    pub(crate) epochs: Arc<LeaderEpochCache>,
    pub(crate) damage: Arc<Vec<DamagedBytes>>,
}

impl<S: Storage> Clone for View<S> {
    fn clone(&self) -> Self {
        Self {
            closed: Arc::clone(&self.closed),
            active: self.active.clone(),
            log_start: self.log_start,
            log_end: self.log_end,
            flushed: self.flushed,
            generation: self.generation,
            closed_bytes: self.closed_bytes,
            epochs: Arc::clone(&self.epochs),
            damage: Arc::clone(&self.damage),
        }
    }
}

impl<S: Storage> View<S> {
    pub(crate) fn positions(&self) -> LogPositions {
        LogPositions {
            log_start: self.log_start,
            log_end: self.log_end,
            flushed: self.flushed,
            generation: self.generation,
            size: self.closed_bytes.saturating_add(self.active.len),
        }
    }

    /// Every segment, oldest first.
    pub(crate) fn segments(&self) -> impl DoubleEndedIterator<Item = &SegmentRef<S>> {
        self.closed.iter().chain(std::iter::once(&self.active))
    }

    pub(crate) fn first(&self) -> &SegmentRef<S> {
        self.closed.first().unwrap_or(&self.active)
    }

    /// The segments from the one that covers `offset` on; from the first when `offset` lies below it.
    pub(crate) fn segments_from(&self, offset: Offset) -> impl Iterator<Item = &SegmentRef<S>> {
        let after = self.closed.partition_point(|s| s.base() <= offset);
        let skip = if self.active.base() <= offset { self.closed.len() } else { after.saturating_sub(1) };
        self.segments().skip(skip)
    }

    /// Where the segment after the one of `base` begins; `None` for the active one.
    pub(crate) fn next_base(&self, base: Offset) -> Option<Offset> {
        let at = self.closed.partition_point(|s| s.base() <= base);
        match self.closed.get(at) {
            Some(next) => Some(next.base()),
            None => (self.active.base() > base).then(|| self.active.base()),
        }
    }

    /// The damaged bytes of a segment, to be stepped over.
    pub(crate) fn holes(&self, base: Offset) -> Vec<Range<u64>> {
        let of_segment =
            |d: &DamagedBytes| d.bytes.clone().filter(|(segment, _)| *segment == base).map(|(_, r)| r);
        self.damage.iter().filter_map(of_segment).collect()
    }

    /// The damage that covers `offset`.
    pub(crate) fn damage_at(&self, offset: Offset) -> Option<&Damage> {
        self.damage.iter().map(|d| &d.damage).find(|d| d.range.contains(offset))
    }

    /// The same segments with `segments` (in order, at least one) in their place; the last becomes the active one.
    pub(crate) fn with_segments(&self, mut segments: Vec<SegmentRef<S>>) -> Self {
        let active = segments.pop().unwrap_or_else(|| self.active.clone());
        debug_assert!(segments.is_sorted_by(|a, b| a.base() < b.base()), "segments rise");
        debug_assert!(
            segments.last().is_none_or(|l| l.base() < active.base()),
            "the active segment is the last"
        );
        let closed_bytes = segments.iter().map(|s| s.len).sum();
        Self { closed: Arc::new(segments), active, closed_bytes, ..self.clone() }
    }

    /// The same with one segment more, which takes its place among the closed ones.
    pub(crate) fn with_segment(&self, segment: SegmentRef<S>) -> Self {
        debug_assert!(segment.base() < self.active.base(), "only the writer begins a new active segment");
        let mut segments: Vec<_> = self.segments().cloned().collect();
        segments.insert(segments.partition_point(|s| s.base() < segment.base()), segment);
        self.with_segments(segments)
    }

    pub(crate) fn check(&self) {
        assert!(self.log_start <= self.log_end, "log start {} ≤ log end {}", self.log_start, self.log_end);
        assert!(self.flushed <= self.log_end, "flushed {} ≤ log end {}", self.flushed, self.log_end);
    }
}
