//! The indexes of segments that are being read: an index is a hint, and is made again where the log says something else.

use super::Scan;
use crate::index::{OffsetEntry, SegmentIndexes};
use crate::partition_files::SegmentFiles;
use crate::segment::{BadIndex, Segment};
use crate::segments::DamagedBytes;
use crate::walk::Walked;
use crate::{Repair, Storage, StorageResult};
use highwater_types::Offset;

impl<S: Storage> Scan<'_, S> {
    /// The last segment is appended to: its indexes stay in memory. It was read as a closed one when what followed it went.
    pub(super) fn activate_last(&mut self) -> StorageResult<()> {
        let Some(last) = self.segments.last().filter(|last| !last.segment.has_pinned_indexes()) else {
            return Ok(());
        };
        let of_last =
            |d: &DamagedBytes| d.bytes.clone().filter(|(base, _)| *base == last.base()).map(|(_, hole)| hole);
        let holes: Vec<_> = self.damage.iter().filter_map(of_last).collect();
        last.segment.pin_indexes(last.segment.indexes_from_log(
            last.len,
            &holes,
            self.ground.index_interval,
        )?);
        last.segment.empty_index_files()
    }

    /// The indexes that were made on the way become the segment's: in memory for the active one, in the files for a closed one
    /// whose files say something else.
    pub(super) fn take_indexes(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        is_active: bool,
        mut indexes: SegmentIndexes,
        old: Result<SegmentIndexes, BadIndex>,
        claims: &Claims,
    ) -> StorageResult<()> {
        let is_begun =
            found.offset_index.is_some_and(|len| len > 0) || found.time_index.is_some_and(|len| len > 0);
        let wrong = match &old {
            Err(bad) => Some(bad.clone()),
            Ok(_) if claims.are_wrong() => Some(BadIndex::offset("entries that are not of a batch")),
            Ok(_) => None,
        };
        if let Some(bad) = wrong.filter(|_| is_begun || !is_active || self.ground.clean) {
            self.note_index(found.base, bad);
        }
        if is_active {
            segment.pin_indexes(indexes);
            return segment.empty_index_files();
        }
        indexes.finish();
        let same = old.is_ok_and(|old| old.offsets == indexes.offsets && old.times == indexes.times);
        segment.pin_indexes(indexes);
        if !same {
            segment.write_indexes(true)?;
        }
        segment.unpin_indexes();
        segment.unload_indexes();
        Ok(())
    }

    /// A closed segment that is not read: its index files must be there and have entries where there is something to index.
    pub(super) fn check_closed_indexes(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
    ) -> StorageResult<()> {
        if self.ground.clean && found.index_lengths_fit() {
            return Ok(());
        }
        let (bad, may_be_right) = match segment.read_indexes(found.len)? {
            Ok(indexes)
                if indexes.offsets.len() > 0 || found.len <= u64::from(self.ground.index_interval) =>
            {
                return Ok(());
            }
            // So it is with one large batch, too.
            Ok(_) => (BadIndex::offset("no entries"), true),
            Err(bad) => (bad, false),
        };
        let made = segment.indexes_from_log(found.len, &[], self.ground.index_interval)?;
        let was_right = may_be_right && made.offsets.len() == 0;
        segment.pin_indexes(made);
        segment.write_indexes(true)?;
        segment.unpin_indexes();
        segment.unload_indexes();
        if !was_right {
            self.note_index(found.base, bad);
        }
        Ok(())
    }

    fn note_index(&mut self, segment: Offset, bad: BadIndex) {
        let BadIndex { kind, reason } = bad;
        self.repairs.push(Repair::IndexRebuilt { segment, kind, reason });
    }
}

/// What the old offset index says, compared with the batches as they are met.
pub(super) struct Claims {
    entries: Vec<OffsetEntry>,
    next: usize,
    confirmed: usize,
}

impl Claims {
    pub(super) const fn none() -> Self {
        Self { entries: Vec::new(), next: 0, confirmed: 0 }
    }

    pub(super) fn of(old: &Result<SegmentIndexes, BadIndex>) -> Self {
        let entries = old.as_ref().map(|old| old.offsets.entries().to_vec()).unwrap_or_default();
        Self { entries, next: 0, confirmed: 0 }
    }

    pub(super) fn check(&mut self, batch: &Walked, relative: u32) {
        while let Some(entry) =
            self.entries.get(self.next).filter(|e| u64::from(e.position) <= batch.position)
        {
            let confirmed = u64::from(entry.position) == batch.position && entry.relative == relative;
            self.confirmed += usize::from(confirmed);
            self.next += 1;
        }
    }

    /// Whether an entry is not of a batch; those beyond the last batch do not count: their batches were cut.
    fn are_wrong(&self) -> bool {
        self.confirmed < self.next
    }
}
