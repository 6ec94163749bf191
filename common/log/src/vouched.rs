//! What a checkpoint vouches for, and what follows where offsets are missing: one judgement for who opens a log and for who
//! only looks at it (`highwater log verify`).
//!
//! What holds: segments touch, each begins where the last batch of the one before it ends. The log rolls so, and adoption lays
//! a copy out so. Compaction leaves gaps within segments only, except one so wide that no segment's index can hold it. So
//! offsets between two segments are missing records, not compacted ones. Limit: what went missing beside a gap of 2^31 offsets
//! is taken for a part of the gap.

use highwater_types::Offset;

use crate::OffsetRange;
use crate::checkpoint::CheckpointState;

/// What a checkpoint says that the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vouched {
    /// The first offset that is kept.
    pub log_start: Offset,
    /// Below it was flushed, or committed, or is known to be lost: whatever is bad or missing there is damage. At or above it,
    /// it is the end of the log.
    pub protected: Offset,
}

/// What it means that no segment holds some offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing is missing.
    Nothing,
    /// Nobody counts on what was there, so the log ends before it.
    Unacknowledged,
    /// Damage.
    Lost(OffsetRange),
}

impl Vouched {
    /// What this checkpoint vouches for.
    #[must_use]
    pub fn by(state: &CheckpointState) -> Self {
        let lost = state.lost_ranges.iter().map(|range| range.end).max().unwrap_or_default();
        let protected = state.recovery_point.max(state.high_watermark.offset).max(lost);
        Self { log_start: state.log_start, protected }
    }

    /// How many of the segments, given by their bases in order, lie below the log start as a whole: removed, although not
    /// durably.
    pub fn below_log_start(&self, bases: impl IntoIterator<Item = Offset>) -> usize {
        bases.into_iter().skip(1).take_while(|next| *next <= self.log_start).count()
    }

    /// What is missing before the first segment.
    #[must_use]
    pub fn before_first(&self, first: Offset) -> Missing {
        self.judge(self.log_start, first)
    }

    /// What is missing between what ends at `end` and the segment of `base`, whose first batch ends at `first_end` (its base,
    /// when it has none).
    #[must_use]
    pub fn between(&self, end: Offset, base: Offset, first_end: Offset) -> Missing {
        match is_too_wide(end, first_end) {
            true => Missing::Nothing,
            false => self.judge(end, base),
        }
    }

    /// What is missing where bad bytes end a segment whose last good batch ends at `end`, and the next segment begins at `next`.
    #[must_use]
    pub fn after_bad(&self, end: Offset, next: Option<Offset>) -> Missing {
        match next {
            Some(next) if end < self.protected && end <= next => self.judge(end, next),
            Some(_) | None => Missing::Unacknowledged,
        }
    }

    /// What is missing of a log that ends at `end`.
    #[must_use]
    pub fn after_last(&self, end: Offset) -> Option<OffsetRange> {
        let range = OffsetRange::new(end, self.protected);
        (!range.is_empty()).then_some(range)
    }

    /// What it means that offsets from `end` to `base`, where the log goes on, are missing.
    fn judge(&self, end: Offset, base: Offset) -> Missing {
        if base <= end {
            Missing::Nothing
        } else if end < self.protected && base <= self.protected {
            Missing::Lost(OffsetRange::new(end, base))
        } else {
            Missing::Unacknowledged
        }
    }
}

/// Whether no segment that begins at `base` can hold a batch that ends at `end`.
pub(crate) fn is_too_wide(base: Offset, end: Offset) -> bool {
    i32::try_from(end.since(base.next())).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn o(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn lost(start: i64, end: i64) -> Missing {
        Missing::Lost(OffsetRange::new(o(start), o(end)))
    }

    #[test]
    fn what_is_missing_below_the_protected_offset_is_lost_and_above_it_ends_the_log() {
        let vouched = Vouched { log_start: o(10), protected: o(50) };
        assert_eq!(vouched.before_first(o(10)), Missing::Nothing);
        assert_eq!(vouched.before_first(o(50)), lost(10, 50));
        assert_eq!(vouched.before_first(o(51)), Missing::Unacknowledged);
        assert_eq!(vouched.between(o(20), o(20), o(25)), Missing::Nothing);
        assert_eq!(vouched.between(o(20), o(50), o(55)), lost(20, 50));
        assert_eq!(vouched.between(o(20), o(51), o(55)), Missing::Unacknowledged);
        assert_eq!(vouched.between(o(50), o(55), o(56)), Missing::Unacknowledged);
        assert_eq!(vouched.after_bad(o(49), Some(o(49))), Missing::Nothing, "bytes that hold no offset");
        assert_eq!(vouched.after_bad(o(49), Some(o(50))), lost(49, 50));
        assert_eq!(vouched.after_bad(o(49), Some(o(51))), Missing::Unacknowledged);
        assert_eq!(vouched.after_bad(o(50), Some(o(50))), Missing::Unacknowledged);
        assert_eq!(vouched.after_bad(o(49), None), Missing::Unacknowledged);
        assert_eq!(vouched.after_last(o(49)), Some(OffsetRange::new(o(49), o(50))));
        assert_eq!(vouched.after_last(o(50)), None);
    }

    #[test]
    fn a_gap_that_no_segment_can_hold_is_compactions() {
        let (vouched, far) = (Vouched { log_start: o(0), protected: o(i64::MAX) }, 10 + (1 << 31));
        assert_eq!(vouched.between(o(10), o(far - 5), o(far)), lost(10, far - 5));
        assert_eq!(vouched.between(o(10), o(far - 5), o(far + 1)), Missing::Nothing);
    }

    #[test]
    fn segments_below_the_log_start_are_those_whose_successor_is() {
        let vouched = Vouched { log_start: o(10), protected: o(50) };
        assert_eq!(vouched.below_log_start([o(0), o(5), o(10), o(20)]), 2);
        assert_eq!(vouched.below_log_start([o(0), o(11)]), 0);
        assert_eq!(vouched.below_log_start([]), 0);
    }
}
