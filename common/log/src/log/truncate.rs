//! Truncation: cutting the end of the log, or all of it (S42–S44).
//!
//! The order of the steps is what makes it safe (design.md 2):
//! 1. bytes that may be committed are copied to a side file, durably;
//! 2. the checkpoint is lowered, durably (with a new incarnation, when nobody ordered a cut below what was flushed);
//! 3. the lower end and the next generation are published: readers and flushes of before count for nothing from here on;
//! 4. segments are removed from the end, the last one that stays is cut;
//! 5. file and directory are flushed before anything is appended;
//! 6. the epoch cache's file is written (late is harmless: opening repeats it, S45).
//!
//! A crash between any two of them leaves a log that opens to a prefix of the old one.

use std::ops::Range;
use std::sync::Arc;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpochCache, Offset};

use super::Log;
use crate::segment::{LookupError, Segment};
use crate::segments::{SegmentRef, View};
use crate::side_file;
use crate::walk::{Check, Walk};
use crate::{
    CutOrder, LogError, OffsetRange, Storage, StorageError, StorageFile, StorageResult, Truncated, Unusable,
};

/// Where a log is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutPoint {
    /// The base of the segment that stays as the active one.
    segment: Offset,
    /// Its length afterwards, in bytes.
    position: u64,
    /// The log end afterwards.
    end: Offset,
}

impl<S: Storage> Log<S> {
    /// Cuts everything at and after `target`. The log end can be lower afterwards: a batch is cut as a whole. At or beyond the
    /// log end, only leaderships that began there are forgotten (S42).
    ///
    /// What is cut below `keep_below` is kept in a side file (design.md 6.5): that is the high watermark, or more where more may
    /// have been committed. Whether it may be cut is the caller's decision. The caller lowers its high watermark to the new log
    /// end (S43).
    ///
    /// # Errors
    /// [`LogError::Unusable`]; what the disk says: before the checkpoint was lowered the log goes on, later it takes no more
    /// changes.
    pub fn truncate_to(
        &self,
        target: Offset,
        keep_below: Offset,
        order: CutOrder,
    ) -> Result<Truncated, LogError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        if target < view.first().base() {
            return self.restart_at(&view, target, keep_below, order);
        }
        if target >= view.log_end {
            return self.forget_epochs_at_end(&view);
        }
        let point = self.cut_point(&view, target)?;
        assert!(point.end <= target, "nothing at or after the target stays");
        if point.end < view.log_start && view.log_start <= target {
            // The log start lies within the batch that goes: nothing of the log is left.
            return self.restart_at(&view, view.log_start, keep_below, order);
        }
        let side_file = self.keep_cut_bytes(&view, &point, keep_below)?;
        let renew = renewal(&view, point.end, order);
        self.lower_checkpoint(point.end, view.log_start.min(point.end), renew)?;
        let after = self.cut(&view, &point).and_then(|after| {
            self.store_epochs_of_records(&after.epochs)?;
            Ok(after)
        });
        let after = after.inspect_err(|error| self.fail(Unusable::ChangeFailed, error))?;
        self.lift_ceiling();
        assert!(after.log_end <= target, "the log ends at or before the target");
        assert!(after.generation > view.generation, "a truncation is a new generation");
        let cut = OffsetRange::new(after.log_end, view.log_end);
        tracing::info!(partition = %self.partition, %target, %cut, "truncated");
        Ok(Truncated { positions: after.positions(), cut, side_file, renewed: renew.is_some() })
    }

    /// Where the log will end after [`Self::truncate_to`]: below the target where that lies within a batch, or behind damage.
    ///
    /// # Errors
    /// What the disk says.
    pub fn end_after_cut(&self, target: Offset) -> Result<Offset, LogError> {
        let _writer = self.writer.lock();
        let view = self.view.load_full();
        if target < view.first().base() || target >= view.log_end {
            return Ok(target.min(view.log_end));
        }
        let end = self.cut_point(&view, target)?.end;
        Ok(if view.log_start <= target { end.max(view.log_start) } else { end })
    }

    /// Removes everything and starts an empty log at `start`, which may be below or above what it held (S44).
    ///
    /// # Errors
    /// As [`Self::truncate_to`].
    pub fn truncate_fully_and_start_at(
        &self,
        start: Offset,
        keep_below: Offset,
        order: CutOrder,
    ) -> Result<Truncated, LogError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        self.restart_at(&view, start, keep_below, order)
    }

    fn restart_at(
        &self,
        view: &View<S>,
        start: Offset,
        keep_below: Offset,
        order: CutOrder,
    ) -> Result<Truncated, LogError> {
        // Only what lies at or after the new start is lost; what lies below was removed on purpose.
        let side_file = if start < keep_below.min(view.log_end) {
            let all = CutPoint { segment: view.first().base(), position: 0, end: start };
            self.keep_cut_bytes(view, &all, keep_below)?
        } else {
            None
        };
        let renew = renewal(view, start, order);
        self.lower_checkpoint(start, start, renew)?;
        let after =
            self.replace_all(view, start).inspect_err(|error| self.fail(Unusable::ChangeFailed, error))?;
        self.lift_ceiling();
        assert_eq!(
            (after.log_start, after.log_end),
            (start, start),
            "the log is empty and starts at {start}"
        );
        assert!(after.epochs.entries().is_empty(), "an empty log knows no epochs");
        let cut = OffsetRange::new(view.log_start, view.log_end);
        tracing::info!(partition = %self.partition, %start, %cut, "truncated fully");
        Ok(Truncated { positions: after.positions(), cut, side_file, renewed: renew.is_some() })
    }

    fn forget_epochs_at_end(&self, view: &View<S>) -> Result<Truncated, LogError> {
        let mut epochs = view.epochs.as_ref().clone();
        let after = if epochs.truncate_from_end(view.log_end) {
            self.store_epochs(&epochs)?;
            self.publish(|view| View { epochs: Arc::new(epochs), ..view.clone() })
        } else {
            Arc::new(view.clone())
        };
        assert_eq!(after.log_end, view.log_end, "no record was cut");
        let cut = OffsetRange::new(view.log_end, view.log_end);
        Ok(Truncated { positions: after.positions(), cut, side_file: None, renewed: false })
    }

    /// Where to cut so that nothing at or after `target` stays: at the beginning of a batch.
    pub(super) fn cut_point(&self, view: &View<S>, target: Offset) -> StorageResult<CutPoint> {
        let mut point = self.batch_cut_point(view, target)?;
        // Damaged bytes whose offsets go must not stay in front of what is appended next.
        for (segment, bytes) in
            view.damage.iter().filter(|d| d.damage.range.start >= point.end).filter_map(|d| d.bytes.clone())
        {
            if segment == point.segment {
                point.position = point.position.min(bytes.start);
            }
        }
        Ok(point)
    }

    fn batch_cut_point(&self, view: &View<S>, target: Offset) -> StorageResult<CutPoint> {
        let Some(entry) = view.segments_from(target).next() else {
            return Ok(CutPoint { segment: view.active.base(), position: 0, end: view.active.base() });
        };
        let segment = entry.base();
        let holes = view.holes(segment);
        let start = CutPoint { segment, position: 0, end: segment.min(target) };
        match entry.segment.locate(entry.len, target, &holes) {
            Ok(Some(found)) => Ok(match found.previous_end {
                Some(end) => CutPoint { segment, position: found.batch.position, end },
                // The first batch of the segment; damage before it goes, too.
                None => start,
            }),
            // The target lies in a gap after the last batch: the end is where that one ends.
            Ok(None) => Ok(CutPoint {
                segment,
                position: entry.len,
                end: last_end(entry, target, &holes)?.unwrap_or(start.end),
            }),
            Err(LookupError::Storage(error)) => Err(error),
            // Unknown damage is in the way: everything from it on goes.
            Err(LookupError::Bad(bad)) => {
                let cut = SegmentRef { segment: Arc::clone(&entry.segment), len: bad.position };
                let end = last_end(&cut, target, &holes)?.unwrap_or(start.end);
                Ok(CutPoint { segment, position: bad.position, end })
            }
        }
    }

    /// Publishes the lower end, then removes and cuts the files. The caller holds the writer and has lowered the checkpoint.
    pub(super) fn cut(&self, view: &View<S>, point: &CutPoint) -> StorageResult<Arc<View<S>>> {
        let keep = |s: &&SegmentRef<S>| s.base() <= point.segment;
        let mut segments: Vec<_> = view.segments().filter(keep).cloned().collect();
        let Some(last) = segments.last_mut() else { return Ok(Arc::new(view.clone())) };
        last.len = point.position;
        let active = Arc::clone(&last.segment);
        self.reopen_for_appends(view, point, &active)?;
        let mut epochs = view.epochs.as_ref().clone();
        epochs.truncate_from_end(point.end);
        let after = self.publish(|now| {
            let shorter = now.with_segments(segments);
            View {
                log_start: now.log_start.min(point.end),
                log_end: point.end,
                flushed: now.flushed.min(point.end),
                generation: now.generation + 1,
                epochs: Arc::new(epochs),
                damage: Arc::new(now.damage.iter().filter_map(|d| d.below(point.end)).collect()),
                ..shorter
            }
        });
        self.remove_from_end(view, point)?;
        active.file().set_len(point.position)?;
        active.file().sync_data()?;
        if !is_planted(PlantedFault::RemovalNotSynced) {
            self.storage.sync_dir(&self.dir)?;
        }
        assert_eq!(after.active.base(), point.segment, "the segment of the cut is the active one");
        assert_eq!(after.active.len, point.position, "the active segment ends at the cut");
        Ok(after)
    }

    fn remove_from_end(&self, view: &View<S>, point: &CutPoint) -> StorageResult<()> {
        self.forget_unflushed(|base| base > point.segment);
        for removed in view.segments().rev().take_while(|s| s.base() > point.segment) {
            removed.segment.remove_files()?;
        }
        Ok(())
    }

    /// The segment of the cut becomes the active one: its indexes are cut and stay in memory, its index files are emptied.
    fn reopen_for_appends(
        &self,
        view: &View<S>,
        point: &CutPoint,
        segment: &Arc<Segment<S>>,
    ) -> StorageResult<()> {
        let len = view.segments().find(|s| s.base() == point.segment).map_or(0, |s| s.len);
        let holes = view.holes(point.segment);
        let interval = self.config.load().index_interval_bytes;
        let loaded = segment.with_indexes(len, &holes, Clone::clone);
        let mut indexes = loaded.map_err(|error| match error {
            LookupError::Storage(error) => error,
            LookupError::Bad(bad) => unreadable(segment, &bad.reason.to_string()),
        })?;
        let end = segment.relative(point.end).unwrap_or(u32::MAX);
        let from = indexes.truncate(point.position, end).map_or(0, |entry| u64::from(entry.position));
        let mut walk = Walk::new(segment.file(), Check::Header, from, point.position).over(&holes);
        while let Some(Ok(batch)) = walk.next()? {
            if let Some(batch) = segment.indexed(&batch) {
                indexes.note(batch, interval);
            }
        }
        segment.pin_indexes(indexes);
        segment.empty_index_files()
    }

    /// Replaces all segments by an empty one at `start`.
    fn replace_all(&self, view: &View<S>, start: Offset) -> StorageResult<Arc<View<S>>> {
        self.forget_unflushed(|_| true);
        // The old files go first, from the end: one of them may have the new one's name. Readers are told before.
        self.publish(|now| View { generation: now.generation + 1, ..now.clone() });
        for removed in view.segments().rev() {
            removed.segment.remove_files()?;
        }
        self.storage.sync_dir(&self.dir)?;
        let segment = Arc::new(Segment::create(&self.storage, &self.dir, start)?);
        self.store_epochs(&LeaderEpochCache::new())?;
        self.storage.sync_dir(&self.dir)?;
        Ok(self.publish(|now| View {
            log_start: start,
            log_end: start,
            flushed: start,
            generation: now.generation + 1,
            epochs: Arc::default(),
            damage: Arc::default(),
            ..now.with_segments(vec![SegmentRef { segment, len: 0 }])
        }))
    }

    /// Copies what is about to be cut below `keep_below` into a side file, durably. Returns its name.
    fn keep_cut_bytes(
        &self,
        view: &View<S>,
        point: &CutPoint,
        keep_below: Offset,
    ) -> StorageResult<Option<String>> {
        if point.end >= keep_below.min(view.log_end) {
            return Ok(None);
        }
        tracing::warn!(partition = %self.partition, to = %point.end, %keep_below, "cutting what may be committed");
        let pieces = view.segments().filter(|s| s.base() >= point.segment).map(|cut| {
            let from = if cut.base() == point.segment { point.position } else { 0 };
            (cut.segment.file(), from..cut.len)
        });
        side_file::keep(&self.storage, &self.dir, point.end, pieces).map(Some)
    }
}

/// The new incarnation, when the cut needs one: nobody ordered it, and it reaches below what was flushed (design.md 6.3).
fn renewal<S: Storage>(view: &View<S>, end: Offset, order: CutOrder) -> Option<highwater_types::Incarnation> {
    match order {
        CutOrder::Local { new_incarnation } if end < view.flushed => Some(new_incarnation),
        CutOrder::Local { .. } | CutOrder::Leader => None,
    }
}

/// The end of the last batch of a segment that ends at or before `target`.
fn last_end<S: Storage>(
    entry: &SegmentRef<S>,
    target: Offset,
    holes: &[Range<u64>],
) -> StorageResult<Option<Offset>> {
    let relative = entry.segment.relative(target).unwrap_or(u32::MAX);
    let from = match entry.segment.with_indexes(entry.len, holes, |indexes| indexes.offsets.floor(relative)) {
        Ok(floor) => floor.map_or(0, |e| u64::from(e.position)),
        Err(LookupError::Storage(error)) => return Err(error),
        Err(LookupError::Bad(_)) => 0,
    };
    let from = if from < entry.len { from } else { 0 };
    let mut walk = Walk::new(entry.segment.file(), Check::Header, from, entry.len).over(holes);
    let mut end = None;
    while let Some(Ok(batch)) = walk.next()? {
        end = Some(batch.header.next_offset());
    }
    Ok(end)
}

fn unreadable<S: Storage>(segment: &Arc<Segment<S>>, reason: &str) -> StorageError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, reason.to_owned());
    StorageError::new(crate::StorageOperation::Read, segment.file().path(), source)
}
