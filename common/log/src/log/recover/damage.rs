//! What a bad batch means: the end of the log, or damage that is stepped over. And cutting the log where it ends.

use std::ops::Range;

use highwater_records::{BatchHeader, find_valid_batch};
use highwater_types::Offset;

use super::Scan;
use crate::listing::Found;
use crate::segment::{Segment, remove_segment_files};
use crate::segments::DamagedBytes;
use crate::walk::{Check, Walk, read_up_to};
use crate::{Access, Damage, OffsetRange, Repair, Storage, StorageFile, StorageResult, side_file};

/// How many bytes are searched at once for a good batch after damage.
const SEARCH_BYTES: usize = 32 << 20;
/// How far two searches overlap: a good batch that is larger may be missed, and one after it is found.
const SEARCH_OVERLAP_BYTES: usize = 16 << 20;

/// What becomes of a segment after something bad in it.
pub(super) enum Next {
    /// Read on from there.
    ResumeAt(u64),
    /// The log goes on in the next segment.
    SegmentEnds,
    /// The log ends at this byte of the segment.
    LogEnds(u64),
}

impl<S: Storage> Scan<'_, S> {
    /// Decides what a bad batch at `position` means.
    pub(super) fn after_bad(
        &mut self,
        found: &Found,
        segment: &Segment<S>,
        later: &[Found],
        position: u64,
        reason: &str,
        header: Option<BatchHeader>,
    ) -> StorageResult<Next> {
        let protected = self.protected();
        if self.end >= protected {
            return Ok(Next::LogEnds(position));
        }
        let lost_from = self.end;
        if let Some((at, base)) = self.find_good(segment, position, found.len, header)?
            && base < protected
        {
            self.note_hole(found.base, OffsetRange::new(lost_from, base), position..at, reason);
            self.end = base;
            return Ok(Next::ResumeAt(at));
        }
        match later.first() {
            Some(next) if next.base < protected && next.base >= lost_from => {
                self.note_hole(
                    found.base,
                    OffsetRange::new(lost_from, next.base),
                    position..found.len,
                    reason,
                );
                Ok(Next::SegmentEnds)
            }
            Some(_) | None => Ok(Next::LogEnds(position)),
        }
    }

    /// Below which offset something bad is damage: the ground's, and the end of what was lost before.
    pub(in crate::log) fn protected(&self) -> Offset {
        let lost = self.ground.lost.iter().map(|lost| lost.end).max().unwrap_or_default();
        self.ground.protected.max(lost)
    }

    fn note_hole(&mut self, segment: Offset, range: OffsetRange, bytes: Range<u64>, reason: &str) {
        if let Some(last) = self.damage.last_mut()
            && let Some((of, hole)) = last.bytes.as_mut()
            && *of == segment
            && hole.end == bytes.start
        {
            hole.end = bytes.end;
            last.damage.range.end = range.end;
            return;
        }
        let damage = Damage { range, at_end: false, reason: reason.to_owned() };
        self.damage.push(DamagedBytes { damage, bytes: Some((segment, bytes)) });
    }

    /// The next good batch after a bad one, within the segment: where it begins and its base offset.
    fn find_good(
        &self,
        segment: &Segment<S>,
        position: u64,
        len: u64,
        header: Option<BatchHeader>,
    ) -> StorageResult<Option<(u64, Offset)>> {
        if let Some(header) = header {
            // Only the CRC is wrong: its neighbour stands where the header says, if the header is right.
            let after = position.saturating_add(header.size() as u64);
            if after < len
                && let Some(Ok(next)) = Walk::new(segment.file(), Check::Crc, after, len).next()?
                && next.header.base_offset() >= header.next_offset()
            {
                return Ok(Some((after, next.header.base_offset())));
            }
        }
        let mut from = position.saturating_add(1);
        while from < len {
            let want = usize::try_from(len.saturating_sub(from)).unwrap_or(SEARCH_BYTES).min(SEARCH_BYTES);
            let mut bytes = vec![0; want];
            let filled = read_up_to(segment.file(), &mut bytes, from)?;
            bytes.truncate(filled);
            if let Some(at) = find_valid_batch(&bytes, self.end) {
                let at = from.saturating_add(at as u64);
                let found = Walk::new(segment.file(), Check::Header, at, len).next()?;
                return Ok(found.and_then(Result::ok).map(|batch| (at, batch.header.base_offset())));
            }
            if filled < SEARCH_BYTES {
                break;
            }
            from = from.saturating_add((SEARCH_BYTES - SEARCH_OVERLAP_BYTES) as u64);
        }
        Ok(None)
    }

    /// The log ends before this segment, which does not fit what is before it.
    pub(super) fn end_before(&mut self, found: &Found, later: &[Found], reason: String) -> StorageResult<()> {
        let segment = Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadWrite)?;
        self.cut(found, &segment, later, 0, reason)?;
        remove_segment_files(self.ground.storage, self.ground.dir, found.base)?;
        self.ground.storage.sync_dir(self.ground.dir)
    }

    /// Ends the log at `position` of the segment: below the protected offset the bytes are kept first.
    pub(super) fn cut(
        &mut self,
        found: &Found,
        segment: &Segment<S>,
        later: &[Found],
        position: u64,
        reason: String,
    ) -> StorageResult<()> {
        let (storage, dir) = (self.ground.storage, self.ground.dir);
        let bytes = found.len.saturating_sub(position).saturating_add(later.iter().map(|s| s.len).sum());
        if self.end < self.protected() && bytes > 0 {
            let opened = later.iter().map(|s| Segment::open(storage, dir, s.base, Access::ReadOnly));
            let opened = opened.collect::<StorageResult<Vec<_>>>()?;
            let rest = opened.iter().zip(later).map(|(segment, s)| (segment.file(), 0..s.len));
            let pieces = std::iter::once((segment.file(), position..found.len)).chain(rest);
            side_file::keep(storage, dir, self.end, pieces)?;
        }
        for removed in later.iter().rev() {
            remove_segment_files(storage, dir, removed.base)?;
        }
        segment.file().set_len(position)?;
        segment.file().sync_data()?;
        storage.sync_dir(dir)?;
        self.changed = true;
        self.repairs.push(Repair::TailCut { end: self.end, segment: found.base, position, bytes, reason });
        Ok(())
    }
}
