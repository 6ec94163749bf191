//! Living with damage (design.md 2): lost ranges are reported and answered as such, and become whole again by repair or by
//! replication; a leader that stands alone passes over a lost tail.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use highwater_records::{ValidateMode, batches, validate};
use highwater_types::{EpochEntry, Offset};

use super::Log;
use crate::segment::Segment;
use crate::segments::{DamagedBytes, SegmentRef, View};
use crate::vouched::is_too_wide;
use crate::{Access, AppendError, Damage, LogError, OffsetRange, Storage, StorageFile, StorageResult, names};

impl<S: Storage> Log<S> {
    /// Puts batches that were read from the leader (below the high watermark, their epochs checked by the caller) in the place
    /// of a damaged range. They must be exactly what is missing: the range's offsets, and where the damage takes up bytes, as
    /// many. A range whose segments are gone gets a segment of its own, and may be a part of the damage: the leader lacks the
    /// rest. A lost tail is not repaired but appended again.
    ///
    /// # Errors
    /// [`AppendError::Batch`] and [`AppendError::NotContiguous`] when the batches are not the range's,
    /// [`AppendError::NoRoom`] when they are but do not fit, as those of a part of bad bytes; else what the disk says. The range stays damaged then.
    pub fn repair(&self, range: OffsetRange, records: &Bytes) -> Result<(), AppendError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let is_it = |d: &&DamagedBytes| {
            let is_whole = d.damage.range == range;
            !d.damage.at_end && (is_whole || d.bytes.is_none() && d.damage.range.covers(range))
        };
        let Some(damaged) = view.damage.iter().find(is_it) else {
            // Bad bytes are replaced as a whole: where the leader lacks some of it, too, nothing ever fits.
            let is_part = view.damage.iter().any(|d| !d.damage.at_end && d.damage.range.covers(range));
            let (expected, found) = (view.log_end, range.start);
            return Err(if is_part {
                AppendError::NoRoom(range)
            } else {
                AppendError::NotContiguous { expected, found }
            });
        };
        let end = check_repair(range, records)?;
        if end != range.end {
            return Err(AppendError::NotContiguous { expected: range.end, found: end });
        }
        let left: Vec<_> = view.damage.iter().flat_map(|d| d.around(range)).collect();
        match &damaged.bytes {
            Some((segment, bytes)) => {
                overwrite(&view, range, *segment, bytes, records)?;
                self.publish_damage(left)?;
            }
            None => {
                let segment = self.refill(&view, range, damaged.damage.range.end, records)?;
                self.publish(|view| view.with_segment(segment));
                self.publish_damage(left)?;
            }
        }
        assert!(self.view.load().damage_at(range.start).is_none(), "the range is whole");
        assert_eq!(self.log_end(), view.log_end, "a repair moves no end");
        tracing::info!(partition = %self.partition, %range, "repaired");
        Ok(())
    }

    /// Makes a segment of the records of a range that no segment holds; the next one begins at `next_base` at the latest. It
    /// gets its name when it is whole and flushed; until the damage is noted as repaired, it is checked whenever the log is
    /// opened.
    fn refill(
        &self,
        view: &View<S>,
        range: OffsetRange,
        next_base: Offset,
        records: &Bytes,
    ) -> Result<SegmentRef<S>, AppendError> {
        let refused = AppendError::NoRoom(range);
        if view.next_base(range.start).is_none_or(|next| next < range.end || next > next_base)
            || is_too_wide(range.start, range.end)
        {
            return Err(refused);
        }
        if let Some(before) = view.segments_from(range.start).next().filter(|s| s.base() <= range.start)
            && !matches!(before.segment.locate(before.len, range.start, &view.holes(before.base())), Ok(None))
        {
            return Err(refused);
        }
        let path = names::log_file(&self.dir, range.start);
        if self.storage.exists(&path)? {
            return Err(refused);
        }
        self.storage.write_atomically(&path, records)?;
        let segment = Segment::open(&self.storage, &self.dir, range.start, Access::ReadWrite)?;
        segment.set_last_written(view.active.segment.last_written());
        let len = records.len() as u64;
        segment.pin_indexes(segment.indexes_from_log(len, &[], self.config.load().index_interval_bytes)?);
        segment.write_indexes(true)?;
        segment.unpin_indexes();
        segment.unload_indexes();
        self.storage.sync_dir(&self.dir)?;
        Ok(SegmentRef { segment: Arc::new(segment), len })
    }

    /// For a leader that is alone in the in-sync set (design.md 6.3): raises the log end over a lost tail, so that the offsets
    /// of acknowledged records are not given to others. Reads of the tail answer that it is lost. Returns the log end.
    ///
    /// # Errors
    /// What the disk says; then the log takes no more changes.
    pub fn pass_over_lost_tail(&self) -> Result<Offset, LogError> {
        let mut writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let Some(end) = view.damage.iter().filter(|d| d.damage.at_end).map(|d| d.damage.range.end).max()
        else {
            return Ok(view.log_end);
        };
        let log_end = view.log_end.max(end);
        self.pass_over(&view, log_end).inspect_err(|e| self.fail(crate::Unusable::ChangeFailed, e))?;
        writer.active_since = highwater_types::WallTime::default();
        let after = self.view.load();
        assert_eq!(after.log_end, log_end, "the next record comes after the lost ones");
        assert!(after.damage.iter().all(|d| !d.damage.at_end), "no lost tail is left");
        Ok(log_end)
    }

    /// For a follower whose leader has lost `range` as well: notes what of it lies beyond the log's end as lost, raises the end
    /// over it, and takes `epochs`, the leaderships that began there, from the leader. Reads of it answer that it is lost.
    /// Where the log does not end within the range, nothing happens. Returns the log end.
    ///
    /// # Errors
    /// What the disk says; then the log takes no more changes, or the flush in front of it failed.
    pub fn pass_over_lost(&self, range: OffsetRange, epochs: &[EpochEntry]) -> Result<Offset, LogError> {
        let mut writer = self.writer.lock();
        self.usable()?;
        if !range.contains(self.log_end()) {
            return Ok(self.log_end());
        }
        // What follows counts as flushed, so what comes before it has to be.
        self.flush()?;
        let view = self.view.load_full();
        let lost = OffsetRange::new(view.log_end, range.end);
        // On record first: a log whose end was raised without that would be a damaged one at its next opening.
        self.note_lost(lost)?;
        let passed = self.adopt_epochs(&view, lost, epochs).and_then(|view| {
            let beyond = view.damage.iter().filter_map(|d| d.from(range.end));
            let within = view.damage.iter().filter(|d| !d.damage.at_end).cloned();
            let reason = "the leader has lost them, too".to_owned();
            let new = DamagedBytes { damage: Damage { range: lost, at_end: false, reason }, bytes: None };
            self.raise_end(&view, range.end, within.chain([new]).chain(beyond).collect())
        });
        passed.inspect_err(|e| self.fail(crate::Unusable::ChangeFailed, e))?;
        writer.active_since = highwater_types::WallTime::default();
        assert_eq!(self.log_end(), range.end, "the log goes on behind what is lost");
        assert!(self.view.load().damage_at(lost.start).is_some(), "and answers that it is");
        Ok(range.end)
    }

    /// Takes leaderships that began in `lost`, which lies at the log's end.
    fn adopt_epochs(
        &self,
        view: &View<S>,
        lost: OffsetRange,
        epochs: &[EpochEntry],
    ) -> StorageResult<Arc<View<S>>> {
        let mut known = view.epochs.as_ref().clone();
        for entry in epochs.iter().filter(|entry| lost.contains(entry.start)) {
            if known.latest().is_none_or(|latest| latest.epoch < entry.epoch) {
                known.assign(entry.epoch, entry.start);
            }
        }
        self.store_epochs(&known)?;
        Ok(self.publish(|view| View { epochs: Arc::new(known), ..view.clone() }))
    }

    /// For a follower whose log is its leader's: what was lost beyond its end is nothing that the leader has.
    ///
    /// # Errors
    /// What the disk says; the tail may be found as lost again then.
    pub fn forget_lost_tail(&self) -> Result<(), LogError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        if view.damage.iter().any(|d| d.damage.at_end) {
            let left = view.damage.iter().filter(|d| !d.damage.at_end).cloned().collect();
            self.publish_damage(left)?;
            tracing::info!(partition = %self.partition, log_end = %view.log_end, "what was lost beyond the end was never committed");
        }
        assert!(self.view.load().damage.iter().all(|d| !d.damage.at_end), "no lost tail is left");
        Ok(())
    }

    fn pass_over(&self, view: &View<S>, log_end: Offset) -> StorageResult<()> {
        let passed = |d: &DamagedBytes| {
            let mut passed = d.clone();
            passed.damage.at_end = false;
            passed
        };
        self.raise_end(view, log_end, view.damage.iter().map(passed).collect())
    }

    /// A new segment begins at `log_end`, so that opening the log finds the same end; `damage` is what is lost from then on.
    fn raise_end(&self, view: &View<S>, log_end: Offset, damage: Vec<DamagedBytes>) -> StorageResult<()> {
        if view.active.base() != log_end {
            view.active.segment.write_indexes(true)?;
            let segment = Arc::new(Segment::create(&self.storage, &self.dir, log_end)?);
            self.storage.sync_dir(&self.dir)?;
            let new = SegmentRef { segment, len: 0 };
            self.publish(|view| {
                let kept = view.segments().filter(|s| s.len > 0).cloned();
                View {
                    log_end,
                    flushed: log_end,
                    ..view.with_segments(kept.chain(std::iter::once(new)).collect())
                }
            });
            if view.active.len == 0 {
                view.active.segment.remove_files()?
            } else {
                view.active.segment.unpin_indexes()
            }
        }
        self.publish_damage(damage)
    }

    /// After an append: what replication has filled of a lost tail is not lost any more.
    pub(super) fn note_tail_filled(&self) {
        let view = self.view.load();
        if !view.damage.iter().any(|d| d.damage.at_end && d.damage.range.start < view.log_end) {
            return;
        }
        let left = view.damage.iter().filter_map(|d| {
            let mut left = d.clone();
            if left.damage.at_end {
                left.damage.range.start = left.damage.range.start.max(view.log_end);
            }
            (!left.damage.range.is_empty()).then_some(left)
        });
        if let Err(error) = self.publish_damage(left.collect()) {
            // Found again as lost when the log is opened, and dropped there because the records are there.
            tracing::warn!(partition = %self.partition, %error, "could not note that a lost tail is filled");
        }
    }

    fn publish_damage(&self, damage: Vec<DamagedBytes>) -> StorageResult<()> {
        let ranges: Vec<_> = damage.iter().map(|d| d.damage.range).collect();
        self.publish(|view| View { damage: Arc::new(damage), ..view.clone() });
        self.store_lost_ranges(&ranges)
    }
}

/// Writes over damaged bytes, which readers step over until the range is published as whole.
fn overwrite<S: Storage>(
    view: &View<S>,
    range: OffsetRange,
    segment: Offset,
    bytes: &Range<u64>,
    records: &Bytes,
) -> Result<(), AppendError> {
    let room = bytes.end.saturating_sub(bytes.start);
    let entry = view.segments().find(|s| s.base() == segment).filter(|_| records.len() as u64 == room);
    let Some(entry) = entry else {
        return Err(AppendError::NoRoom(range));
    };
    entry.segment.file().write_all_at(records, bytes.start)?;
    Ok(entry.segment.file().sync_data()?)
}

/// Checks that the batches cover the range; returns where they end.
fn check_repair(range: OffsetRange, records: &Bytes) -> Result<Offset, AppendError> {
    let mut next = range.start;
    let mut position = 0;
    for (index, batch) in batches(records).enumerate() {
        let checked = batch.and_then(|batch| validate(&batch, ValidateMode::Replicate).map(|()| batch));
        let batch = checked.map_err(|source| AppendError::Batch { index, position, source })?;
        if batch.base_offset() < next {
            return Err(AppendError::NotContiguous { expected: next, found: batch.base_offset() });
        }
        next = batch.next_offset();
        position += batch.size();
    }
    Ok(next)
}
