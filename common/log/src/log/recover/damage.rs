//! What a bad batch means: the end of the log, or damage that is stepped over. And cutting the log where it ends.

use std::ops::Range;

use highwater_records::BatchHeader;
use highwater_types::Offset;

use super::Scan;
use crate::partition_files::SegmentFiles;
use crate::segment::{Segment, remove_segment_files};
use crate::segments::DamagedBytes;
use crate::walk::{Check, Walk, Walked, find_good_after};
use crate::{Access, Damage, Missing, OffsetRange, Repair, Storage, StorageFile, StorageResult, side_file};

/// What becomes of a segment after something bad in it.
pub(super) enum Next {
    /// Read on from there.
    ResumeAt(u64),
    /// The log goes on in the next segment.
    SegmentEnds,
    /// It does, and nothing was lost: the segment ends at this byte.
    SegmentEndsAt(u64),
    /// The log ends at this byte of the segment.
    LogEnds(u64),
}

impl<S: Storage> Scan<'_, S> {
    /// Decides what a bad batch at `position` means.
    pub(super) fn after_bad(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        later: &[SegmentFiles],
        position: u64,
        reason: &str,
        header: Option<BatchHeader>,
    ) -> StorageResult<Next> {
        if self.is_untorn() {
            self.protect_what_follows(found, segment, later, position, header)?;
            // It is there in full length, and no write that was cut short leaves that.
            // What its header says of its size is believed where it agrees with itself.
            let whole = header.filter(|header| header.base_offset() == self.end);
            self.protect_to(whole.map(|header| match header.last_offset_delta().saturating_add(1) {
                span if span == header.record_count() => header.next_offset(),
                _ => self.end.next(),
            }));
        }
        let protected = self.ground.vouched.protected;
        if self.end >= protected {
            return Ok(Next::LogEnds(position));
        }
        let lost_from = self.end;
        if let Some(next) = find_good_after(segment.file(), position, header, found.len, self.end)?
            && next.header.base_offset() <= protected
        {
            let (at, base) = (next.position, next.header.base_offset());
            self.note_hole(found.base, OffsetRange::new(lost_from, base), position..at, reason);
            self.end = base;
            return Ok(Next::ResumeAt(at));
        }
        Ok(match self.ground.vouched.after_bad(lost_from, later.first().map(|next| next.base)) {
            Missing::Unacknowledged => Next::LogEnds(position),
            Missing::Nothing => Next::SegmentEndsAt(position),
            Missing::Lost(range) => {
                self.note_hole(found.base, range, position..found.len, reason);
                self.end = range.end;
                Next::SegmentEnds
            }
        })
    }

    /// Under the boot that wrote it, what a good batch follows was whole once: whatever is bad before that batch is damage.
    fn protect_what_follows(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        later: &[SegmentFiles],
        position: u64,
        header: Option<BatchHeader>,
    ) -> StorageResult<()> {
        let mut follows = find_good_after(segment.file(), position, header, found.len, self.end)?;
        let mut rest = later.iter();
        while follows.is_none()
            && let Some(next) = rest.next()
        {
            follows = self.first_good(next)?;
        }
        self.protect(follows);
        Ok(())
    }

    /// Whether nothing that the log holds from here on was torn, but by the last write.
    pub(super) fn is_untorn(&self) -> bool {
        self.ground.untorn_from.is_some_and(|from| from <= self.end)
    }

    /// The first batch of a segment, if it is good.
    pub(super) fn first_good(&self, found: &SegmentFiles) -> StorageResult<Option<Walked>> {
        let segment = Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadOnly)?;
        let first = Walk::new(segment.file(), Check::Crc, 0, found.len).next()?.and_then(Result::ok);
        Ok(first.filter(|first| first.header.base_offset() >= found.base))
    }

    /// What was written before this batch was there.
    pub(super) fn protect(&mut self, good: Option<Walked>) {
        // An epoch that falls tells of a segment that came back, not of one that was written after what is before it.
        let Some(good) = good.filter(|good| good.header.leader_epoch() >= self.last_epoch) else { return };
        self.protect_to(Some(good.header.next_offset()));
    }

    fn protect_to(&mut self, end: Option<Offset>) {
        let vouched = &mut self.ground.vouched;
        vouched.protected = end.map_or(vouched.protected, |end| vouched.protected.max(end));
    }

    /// Whether the offset or the epoch of a batch, which no CRC covers, jumps ahead, and the batch after it goes back to where
    /// this one should have been.
    pub(super) fn is_garbled(&self, segment: &Segment<S>, batch: &Walked) -> StorageResult<bool> {
        let header = &batch.header;
        let (jumps, rises) = (header.base_offset() > self.end, header.leader_epoch() > self.last_epoch);
        if !jumps && !rises {
            return Ok(false);
        }
        let (file, after) = (segment.file(), batch.position.saturating_add(header.size() as u64));
        let next = Walk::new(file, Check::Header, after, file.len()?).next()?;
        let Some(Ok(Walked { header: next, .. })) = next else { return Ok(false) };
        let in_place = self.end.advance(i64::from(header.last_offset_delta()).saturating_add(1));
        let goes_back = jumps && next.base_offset() == in_place;
        let seen = self.ground.highest_epoch;
        let falls = rises
            && next.leader_epoch() < header.leader_epoch()
            && (next.leader_epoch() == self.last_epoch || (seen.is_some() && header.leader_epoch() > seen));
        Ok(goes_back || falls)
    }

    /// Bytes at the end of a segment that hold no offset, since the next one begins where its batches end, go.
    pub(super) fn cut_segment(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        position: u64,
        reason: String,
    ) -> StorageResult<()> {
        segment.file().set_len(position)?;
        segment.file().sync_data()?;
        self.changed = true;
        let bytes = found.len.saturating_sub(position);
        self.repairs.push(Repair::SegmentCut { segment: found.base, position, bytes, reason });
        Ok(())
    }

    /// No segment holds the range: the log goes on behind it.
    pub(super) fn note_gap(&mut self, range: OffsetRange) {
        debug_assert_eq!(range.start, self.end, "a gap begins where the log ends so far");
        let reason = "the segment that held them is gone".to_owned();
        self.damage.push(DamagedBytes { damage: Damage { range, at_end: false, reason }, bytes: None });
        self.end = range.end;
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

    /// The log ends before this segment, which does not fit what is before it.
    pub(super) fn end_before(
        &mut self,
        found: &SegmentFiles,
        later: &[SegmentFiles],
        reason: String,
    ) -> StorageResult<()> {
        let segment = Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadWrite)?;
        self.cut(found, &segment, later, 0, reason)?;
        remove_segment_files(self.ground.storage, self.ground.dir, found.base)?;
        self.ground.storage.sync_dir(self.ground.dir)
    }

    /// Ends the log at `position` of the segment: below the protected offset the bytes are kept first.
    pub(super) fn cut(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        later: &[SegmentFiles],
        position: u64,
        reason: String,
    ) -> StorageResult<()> {
        let (storage, dir) = (self.ground.storage, self.ground.dir);
        let bytes = found.len.saturating_sub(position).saturating_add(later.iter().map(|s| s.len).sum());
        if self.end < self.ground.vouched.protected && bytes > 0 {
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
