//! Reading the segments of a directory: what is whole, what is a torn tail, what is damage (design.md 2).
//!
//! The rule, for the first thing that is no good batch at its place: at or above the *protected* offset (the larger of recovery
//! point and checkpointed high watermark) it is the torn or unflushed end of the log, and is cut. Below, it is damage:
//! acknowledged records were there. Then the next good batch is looked for, what lies between is a hole that is stepped over
//! and reported; where none follows, the lost tail's bytes are kept in a side file before they are cut.
//!
//! Under the boot that wrote the log nothing is torn but its last write: the page cache outlives a killed program, and writes
//! are made one after the other. So what a good batch follows there was whole once, and is damage wherever it lies. Not so
//! where pages may be missing above the recovery point: after another boot, or a flush that failed. Nor does a write that
//! was cut short leave a batch of full length: one whose CRC is wrong was whole once, even as the last.
//!
//! Base offset and epoch are in no CRC. Where the batch after one that jumps ahead goes back to where that one should have
//! been, the header of the one is garbled: nothing else goes back within a segment.
//!
//! After a clean stop only the end of the last segment is read. Otherwise every batch from the recovery point on is checked
//! with its CRC, headers from the beginning of the segment that holds it. A batch whose epoch falls ends the log: a removed
//! segment can come back after a power loss. A segment that does not touch the one before it is judged like a bad batch: a
//! segment between them is missing ([`Vouched`]). Therefore also the end of a segment that is not read is looked at.

use std::path::Path;
use std::sync::Arc;

use highwater_records::BatchHeader;
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpoch, Offset, WallTime};

use self::damage::Next;
use self::indexes::Claims;
use crate::epoch_runs::{self, EpochRun};
use crate::index::SegmentIndexes;
use crate::partition_files::SegmentFiles;
use crate::segment::{Segment, remove_segment_files};
use crate::segments::{DamagedBytes, SegmentRef};
use crate::walk::{Check, Walk};
use crate::{Access, Missing, OffsetRange, Repair, Storage, StorageFile, StorageResult, Vouched};

mod damage;
mod indexes;

/// What is known before the segments are read.
#[derive(Clone, Debug)]
pub(super) struct Ground<'a, S> {
    pub(super) storage: &'a S,
    pub(super) dir: &'a Arc<Path>,
    pub(super) index_interval: u32,
    /// Whether the log was closed cleanly: then everything was flushed and nothing is checked.
    pub(super) clean: bool,
    pub(super) recovery_point: Offset,
    /// Under the boot that wrote the log: from where on nothing was torn but by the last write.
    pub(super) untorn_from: Option<Offset>,
    /// The highest leader epoch that the directory has worked under, as far as is known.
    pub(super) highest_epoch: Option<LeaderEpoch>,
    /// What must be there: a bad batch in it is damage.
    pub(super) vouched: Vouched,
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

impl<'a, S: Storage> Scan<'a, S> {
    /// Reads the segments, in order.
    pub(super) fn run(ground: Ground<'a, S>, found: &[SegmentFiles]) -> StorageResult<Self> {
        let mut scan = Self {
            ground,
            segments: Vec::new(),
            end: found.first().map_or(Offset::ZERO, |first| first.base),
            last_epoch: None,
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

    /// Reads one segment; `false` when the log ends in it although others follow.
    fn segment(&mut self, found: &SegmentFiles, later: &[SegmentFiles]) -> StorageResult<bool> {
        let next_base = later.first().map(|next| next.base);
        if found.len == 0 && (next_base.is_some() || found.base < self.end) {
            // Left behind between the creation of its successor and its own removal.
            remove_segment_files(self.ground.storage, self.ground.dir, found.base)?;
            self.changed = true;
            return Ok(true);
        }
        if found.base < self.end {
            let reason = format!(
                "segment {} begins below offset {}, where the one before it ends",
                found.base, self.end
            );
            return self.end_before(found, later, reason).map(|()| false);
        }
        let segment =
            Arc::new(Segment::open(self.ground.storage, self.ground.dir, found.base, Access::ReadWrite)?);
        segment.set_last_written(self.ground.now);
        if found.base > self.end && self.is_untorn() {
            let first = self.first_good(found)?;
            self.protect(first);
        }
        match self.missing_before(found, &segment)? {
            Missing::Nothing => {}
            Missing::Lost(range) => self.note_gap(range),
            Missing::Unacknowledged => {
                let reason = format!("nothing holds the offsets from {} to segment {}", self.end, found.base);
                return self.end_before(found, later, reason).map(|()| false);
            }
        }
        let before = self.end;
        self.end = found.base;
        if self.may_be_skipped(found, next_base) && self.skip(found, &segment, next_base)? {
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
    fn may_be_skipped(&self, found: &SegmentFiles, next_base: Option<Offset>) -> bool {
        let Some(next) = next_base else { return false };
        let range = OffsetRange::new(found.base, next);
        let was_damaged =
            self.ground.lost.iter().any(|lost| lost.start < range.end && range.start < lost.end);
        (self.ground.clean || next <= self.ground.recovery_point) && !was_damaged
    }

    /// Passes over a closed segment: its indexes are looked at, and where it ends. `false` when that is not in order.
    fn skip(
        &mut self,
        found: &SegmentFiles,
        segment: &Segment<S>,
        next_base: Option<Offset>,
    ) -> StorageResult<bool> {
        self.check_closed_indexes(found, segment)?;
        let end = segment.last_end(found.len)?.filter(|end| next_base.is_some_and(|next| *end <= next));
        self.end = end.unwrap_or(self.end);
        Ok(end.is_some())
    }

    /// What is missing between the segment before this one and this one.
    fn missing_before(&self, found: &SegmentFiles, segment: &Segment<S>) -> StorageResult<Missing> {
        if found.base <= self.end {
            return Ok(Missing::Nothing);
        }
        let first = Walk::new(segment.file(), Check::Header, 0, found.len).next()?;
        let first_end = first.and_then(Result::ok).map_or(found.base, |first| first.header.next_offset());
        Ok(self.ground.vouched.between(self.end, found.base, first_end))
    }

    fn is_whole_before(&self, base: Offset) -> bool {
        self.ground.lost.iter().all(|lost| lost.end <= base)
    }

    /// After a clean stop: goes on from the last index entry of the last segment. `false` when the index is of no use.
    fn clean_tail(&mut self, found: &SegmentFiles, segment: &Segment<S>) -> StorageResult<bool> {
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
        found: &SegmentFiles,
        segment: Arc<Segment<S>>,
        later: &[SegmentFiles],
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
                        Next::SegmentEndsAt(at) => {
                            len = at;
                            self.cut_segment(found, &segment, at, reason)?;
                            break;
                        }
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
            if self.is_garbled(segment, &batch)? {
                return Ok(
                    bad("its offset or its epoch is garbled: the batch after it goes back".to_owned()),
                );
            }
            let falls = batch.header.leader_epoch() < self.last_epoch;
            if falls && !is_planted(PlantedFault::FallingEpochAccepted) {
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

    /// What must be there, as far as reading the segments showed.
    pub(super) const fn vouched(&self) -> Vouched {
        self.ground.vouched
    }

    /// Flushes what was read: opening a log flushes it before anything in it is acknowledged.
    pub(super) fn flush(&self) -> StorageResult<()> {
        if (self.ground.clean && !self.changed) || is_planted(PlantedFault::OpenedUnflushed) {
            return Ok(());
        }
        for segment in &self.read {
            segment.file().sync_data()?;
        }
        self.ground.storage.sync_dir(self.ground.dir)
    }
}
