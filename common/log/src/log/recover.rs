//! Reading the segments of a directory: what is whole, what is a torn tail, what is damage (design.md 2).
//!
//! The rule, for the first thing that is no good batch at its place: at or above the *protected* offset (the larger of recovery
//! point and checkpointed high watermark) it is the torn or unflushed end of the log, and is cut. Below, it is damage:
//! acknowledged records were there. Then the next good batch is looked for, what lies between is a hole that is stepped over
//! and reported; where none follows, the lost tail's bytes are kept in a side file before they are cut.
//!
//! After a clean stop only the end of the last segment is read. Otherwise every batch from the recovery point on is checked
//! with its CRC, headers from the beginning of the segment that holds it. A batch whose epoch falls ends the log: a removed
//! segment can come back after a power loss. So does a segment that does not touch the one before it: one between them is
//! missing (below the recovery point, gaps are compaction's).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use highwater_records::{BatchHeader, find_valid_batch};
use highwater_types::{LeaderEpoch, Offset, WallTime};

use crate::epoch_runs::{self, EpochRun};
use crate::index::{OffsetEntry, SegmentIndexes};
use crate::listing::Found;
use crate::segment::{Segment, remove_segment_files};
use crate::segments::{DamagedBytes, SegmentRef};
use crate::walk::{Check, Walk, Walked, read_up_to};
use crate::{Access, Damage, IndexKind, OffsetRange, Repair, Storage, StorageFile, StorageResult, side_file};

/// How many bytes are searched at once for a good batch after damage.
const SEARCH_BYTES: usize = 32 << 20;
/// How far two searches overlap: a good batch that is larger may be missed, and one after it is found.
const SEARCH_OVERLAP_BYTES: usize = 16 << 20;

/// What is known before the segments are read.
#[derive(Clone, Debug)]
pub(super) struct Ground<'a, S> {
    pub(super) storage: &'a S,
    pub(super) dir: &'a Arc<Path>,
    pub(super) index_interval: u32,
    /// Whether the log was closed cleanly: then everything was flushed and nothing is checked.
    pub(super) clean: bool,
    pub(super) recovery_point: Offset,
    /// Below it a bad batch is damage.
    pub(super) protected: Offset,
    /// Ranges that were lost before.
    pub(super) lost: &'a [OffsetRange],
    pub(super) now: WallTime,
}

/// What the segments hold.
#[derive(Debug)]
pub(super) struct Scan<'a, S: Storage> {
    ground: Ground<'a, S>,
    pub(super) segments: Vec<SegmentRef<S>>,
    /// The log end so far.
    pub(super) end: Offset,
    last_epoch: Option<LeaderEpoch>,
    /// The base of the segment before, also of one that was empty and went.
    last_base: Option<Offset>,
    pub(super) runs: Vec<EpochRun>,
    pub(super) damage: Vec<DamagedBytes>,
    pub(super) repairs: Vec<Repair>,
    /// Segments that were read, and are flushed before anything in them is acknowledged.
    read: Vec<Arc<Segment<S>>>,
    /// Whether a file was changed.
    pub(super) changed: bool,
}

/// Why the walk through a segment stopped.
enum Stop {
    End,
    /// From here on CRCs are checked.
    CheckFromHere(u64),
    Bad {
        position: u64,
        reason: String,
        header: Option<BatchHeader>,
    },
}

/// What becomes of a segment after something bad in it.
enum Next {
    /// Read on from there.
    ResumeAt(u64),
    /// The log goes on in the next segment.
    SegmentEnds,
    /// The log ends at this byte of the segment.
    LogEnds(u64),
}

impl<'a, S: Storage> Scan<'a, S> {
    /// Reads the segments, in order.
    pub(super) fn run(ground: Ground<'a, S>, found: &[Found]) -> StorageResult<Self> {
        let mut scan = Self {
            ground,
            segments: Vec::new(),
            end: found.first().map_or(Offset::ZERO, |first| first.base),
            last_epoch: None,
            last_base: None,
            runs: Vec::new(),
            damage: Vec::new(),
            repairs: Vec::new(),
            read: Vec::new(),
            changed: false,
        };
        for (at, segment) in found.iter().enumerate() {
            let later = found.get(at + 1..).unwrap_or_default();
            if !scan.segment(segment, later)? {
                break;
            }
        }
        scan.activate_last()?;
        assert!(scan.segments.is_sorted_by(|a, b| a.base() < b.base()), "segments rise");
        assert!(
            scan.segments.last().is_none_or(|last| last.base() <= scan.end),
            "the log ends in its last segment"
        );
        Ok(scan)
    }

    /// The last segment is appended to: its indexes stay in memory. It was read as a closed one when what followed it went.
    fn activate_last(&mut self) -> StorageResult<()> {
        let Some(last) = self.segments.last().filter(|last| !last.segment.has_pinned_indexes()) else {
            return Ok(());
        };
        last.segment.pin_indexes(last.segment.indexes_from_log(last.len, &[], self.ground.index_interval)?);
        last.segment.empty_index_files()
    }

    /// Reads one segment; `false` when the log ends in it although others follow.
    fn segment(&mut self, found: &Found, later: &[Found]) -> StorageResult<bool> {
        let next_base = later.first().map(|next| next.base);
        if found.len == 0 && (next_base.is_some() || found.base < self.end) {
            // Left behind between the creation of its successor and its own removal.
            remove_segment_files(self.ground.storage, self.ground.dir, found.base)?;
            self.changed = true;
            self.last_base = Some(found.base);
            return Ok(true);
        }
        if found.base < self.end {
            let reason = format!(
                "segment {} begins below offset {}, where the one before it ends",
                found.base, self.end
            );
            return self.end_before(found, later, reason).map(|()| false);
        }
        if self.misses_something_before(found.base) {
            let reason = format!("nothing holds the offsets from {} to segment {}", self.end, found.base);
            return self.end_before(found, later, reason).map(|()| false);
        }
        let segment =
            Arc::new(Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadWrite)?);
        segment.set_last_written(self.ground.now);
        let before = self.end;
        self.end = found.base;
        self.last_base = Some(found.base);
        if self.may_be_skipped(found, next_base) {
            self.check_closed_indexes(found, &segment)?;
            // It was flushed, so it reaches up to the next one (or there is nothing between).
            self.end = next_base.unwrap_or(self.end);
            self.segments.push(SegmentRef { segment, len: found.len });
            return Ok(true);
        }
        self.read.push(Arc::clone(&segment));
        if self.ground.clean
            && next_base.is_none()
            && self.is_whole_before(found.base)
            && self.clean_tail(found, &segment)?
        {
            self.segments.push(SegmentRef { segment, len: found.len });
            return Ok(true);
        }
        self.read_segment(found, segment, later, before)
    }

    /// Whether a closed segment need not be read: it lies below the recovery point and nothing in it was lost before.
    fn may_be_skipped(&self, found: &Found, next_base: Option<Offset>) -> bool {
        let Some(next) = next_base else { return false };
        let range = OffsetRange::new(found.base, next);
        let was_damaged =
            self.ground.lost.iter().any(|lost| lost.start < range.end && range.start < lost.end);
        (self.ground.clean || next <= self.ground.recovery_point) && !was_damaged
    }

    /// Whether something unflushed is missing in front of a segment. Segments touch, as the log writes them, unless none could
    /// hold the gap, or a lost tail was passed over.
    fn misses_something_before(&self, base: Offset) -> bool {
        let Some(last_base) = self.last_base else { return false };
        let touches = base <= self.end || self.end < self.ground.recovery_point;
        let is_wide = i32::try_from(base.since(last_base)).is_err();
        let is_known = self.ground.lost.iter().any(|lost| lost.start <= self.end && base <= lost.end);
        !touches && !is_wide && !is_known && !self.ground.clean
    }

    fn is_whole_before(&self, base: Offset) -> bool {
        self.ground.lost.iter().all(|lost| lost.end <= base)
    }

    /// After a clean stop: goes on from the last index entry of the last segment. `false` when the index is of no use.
    fn clean_tail(&mut self, found: &Found, segment: &Segment<S>) -> StorageResult<bool> {
        let Ok(mut indexes) = segment.read_indexes(found.len)? else { return Ok(false) };
        let entry = indexes.offsets.last();
        let from = entry.map_or(0, |entry| u64::from(entry.position));
        let saved = (self.end, self.last_epoch, self.runs.len());
        let mut walk = Walk::new(segment.file(), Check::Header, from, found.len);
        if let Some(entry) = entry {
            let first = Walk::new(segment.file(), Check::Header, from, found.len).next()?;
            if !matches!(first, Some(Ok(first)) if segment.relative(first.header.last_offset()) == Some(entry.relative))
            {
                return Ok(false);
            }
        }
        match self.walk(segment, &mut walk, &mut indexes, &mut Claims::none(), None)? {
            Stop::End => {}
            Stop::CheckFromHere(_) | Stop::Bad { .. } => {
                (self.end, self.last_epoch) = (saved.0, saved.1);
                self.runs.truncate(saved.2);
                return Ok(false);
            }
        }
        segment.pin_indexes(indexes);
        Ok(true)
    }

    fn read_segment(
        &mut self,
        found: &Found,
        segment: Arc<Segment<S>>,
        later: &[Found],
        before: Offset,
    ) -> StorageResult<bool> {
        let old = segment.read_indexes(found.len)?;
        let mut claims = Claims::of(&old);
        let mut indexes = SegmentIndexes::default();
        let mut len = found.len;
        let mut ends = false;
        let lost_here = self.ground.lost.iter().any(|lost| lost.end > found.base);
        let mut check_from = (!lost_here).then_some(self.ground.recovery_point);
        let mut position = 0;
        loop {
            let check = if check_from.is_some() { Check::Header } else { Check::Crc };
            let mut walk = Walk::new(segment.file(), check, position, found.len);
            match self.walk(&segment, &mut walk, &mut indexes, &mut claims, check_from)? {
                Stop::End => break,
                Stop::CheckFromHere(at) => (check_from, position) = (None, at),
                Stop::Bad { position: at, reason, header } => {
                    // The name of a segment alone does not prove that the log reached its base.
                    let proves_nothing = at == 0 && !self.segments.is_empty() && before < found.base;
                    if proves_nothing {
                        self.end = before;
                    }
                    match self.after_bad(found, &segment, later, at, &reason, header)? {
                        Next::ResumeAt(at) => position = at,
                        Next::SegmentEnds => break,
                        Next::LogEnds(_) if proves_nothing => {
                            return self.end_before(found, later, reason).map(|()| false);
                        }
                        Next::LogEnds(at) => {
                            (len, ends) = (at, true);
                            self.cut(found, &segment, later, at, reason)?;
                            break;
                        }
                    }
                }
            }
        }
        self.take_indexes(found, &segment, later.is_empty() || ends, indexes, old, &claims)?;
        self.segments.push(SegmentRef { segment, len });
        Ok(!ends)
    }

    /// Walks batches as long as they are good and at their place.
    fn walk(
        &mut self,
        segment: &Segment<S>,
        walk: &mut Walk<'_, S::File>,
        indexes: &mut SegmentIndexes,
        claims: &mut Claims,
        check_from: Option<Offset>,
    ) -> StorageResult<Stop> {
        loop {
            let batch = match walk.next()? {
                None => return Ok(Stop::End),
                Some(Err(bad)) => {
                    let (position, reason) = (bad.position, bad.reason.to_string());
                    return Ok(Stop::Bad { position, reason, header: bad.header });
                }
                Some(Ok(batch)) => batch,
            };
            if check_from.is_some_and(|from| batch.header.next_offset() > from) {
                return Ok(Stop::CheckFromHere(batch.position));
            }
            let bad = |reason| Stop::Bad { position: batch.position, reason, header: None };
            if batch.header.base_offset() < self.end {
                return Ok(bad(format!("offset {} is below {}", batch.header.base_offset(), self.end)));
            }
            if batch.header.leader_epoch() < self.last_epoch {
                let (found, before) = (batch.header.leader_epoch(), self.last_epoch);
                return Ok(bad(format!("the epoch falls from {before:?} to {found:?}")));
            }
            let Some(indexed) = segment.indexed(&batch) else {
                return Ok(bad(format!(
                    "offset {} is too far from the segment's base",
                    batch.header.last_offset()
                )));
            };
            claims.check(&batch, indexed.relative);
            indexes.note(indexed, self.ground.index_interval);
            self.note_batch(&batch.header);
        }
    }

    fn note_batch(&mut self, header: &BatchHeader) {
        self.end = header.next_offset();
        self.last_epoch = header.leader_epoch();
        epoch_runs::note(&mut self.runs, header);
    }

    /// Decides what a bad batch at `position` means.
    fn after_bad(
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
    pub(super) fn protected(&self) -> Offset {
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
    fn end_before(&mut self, found: &Found, later: &[Found], reason: String) -> StorageResult<()> {
        let segment = Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadWrite)?;
        self.cut(found, &segment, later, 0, reason)?;
        remove_segment_files(self.ground.storage, self.ground.dir, found.base)?;
        self.ground.storage.sync_dir(self.ground.dir)
    }

    /// Ends the log at `position` of the segment: below the protected offset the bytes are kept first.
    fn cut(
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

    /// The indexes that were made on the way become the segment's: in memory for the active one, in the files for a closed one
    /// whose files say something else.
    fn take_indexes(
        &mut self,
        found: &Found,
        segment: &Segment<S>,
        is_active: bool,
        mut indexes: SegmentIndexes,
        old: Result<SegmentIndexes, String>,
        claims: &Claims,
    ) -> StorageResult<()> {
        let is_begun =
            found.offset_index.is_some_and(|len| len > 0) || found.time_index.is_some_and(|len| len > 0);
        let wrong = match &old {
            Err(reason) => Some(reason.clone()),
            Ok(_) if claims.are_wrong() => Some("entries that are not of a batch".to_owned()),
            Ok(_) => None,
        };
        if let Some(reason) = wrong.filter(|_| is_begun || !is_active || self.ground.clean) {
            let kind = if reason.starts_with("time") { IndexKind::Time } else { IndexKind::Offset };
            self.note_index(found.base, kind, reason);
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
    fn check_closed_indexes(&mut self, found: &Found, segment: &Segment<S>) -> StorageResult<()> {
        if self.ground.clean && found.index_lengths_fit() {
            return Ok(());
        }
        let reason = match segment.read_indexes(found.len)? {
            Ok(indexes)
                if indexes.offsets.len() > 0 || found.len <= u64::from(self.ground.index_interval) =>
            {
                return Ok(());
            }
            Ok(_) => "no entries".to_owned(),
            Err(reason) => reason,
        };
        let made = segment.indexes_from_log(found.len, &[], self.ground.index_interval)?;
        let was_right = reason == "no entries" && made.offsets.len() == 0;
        segment.pin_indexes(made);
        segment.write_indexes(true)?;
        segment.unpin_indexes();
        segment.unload_indexes();
        if !was_right {
            let kind = if reason.starts_with("time") { IndexKind::Time } else { IndexKind::Offset };
            self.note_index(found.base, kind, reason);
        }
        Ok(())
    }

    fn note_index(&mut self, segment: Offset, kind: IndexKind, reason: String) {
        self.repairs.push(Repair::IndexRebuilt { segment, kind, reason });
    }

    /// Flushes what was read: opening a log flushes it before anything in it is acknowledged.
    pub(super) fn flush(&self) -> StorageResult<()> {
        if self.ground.clean && !self.changed {
            return Ok(());
        }
        for segment in &self.read {
            segment.file().sync_data()?;
        }
        self.ground.storage.sync_dir(self.ground.dir)
    }
}

/// What the old offset index says, compared with the batches as they are met.
struct Claims {
    entries: Vec<OffsetEntry>,
    next: usize,
    confirmed: usize,
}

impl Claims {
    const fn none() -> Self {
        Self { entries: Vec::new(), next: 0, confirmed: 0 }
    }

    fn of(old: &Result<SegmentIndexes, String>) -> Self {
        let entries = old.as_ref().map(|old| old.offsets.entries().to_vec()).unwrap_or_default();
        Self { entries, next: 0, confirmed: 0 }
    }

    fn check(&mut self, batch: &Walked, relative: u32) {
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
