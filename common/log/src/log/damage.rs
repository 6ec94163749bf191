//! Living with damage (design.md 2): lost ranges are reported and answered as such, and become whole again by repair or by
//! replication; a leader that stands alone passes over a lost tail.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use highwater_records::{ValidateMode, batches, validate};
use highwater_types::Offset;

use super::Log;
use crate::segment::Segment;
use crate::segments::{DamagedBytes, SegmentRef, View};
use crate::vouched::is_too_wide;
use crate::{Access, AppendError, LogError, OffsetRange, Storage, StorageFile, StorageResult, names};

impl<S: Storage> Log<S> {
    /// Puts batches that were read from the leader (below the high watermark, their epochs checked by the caller) in the place
    /// of a damaged range. They must be exactly what is missing: the range's offsets, and where the damage takes up bytes, as
    /// many. A range whose segments are gone gets a segment of its own. A lost tail is not repaired but appended again.
    ///
    /// # Errors
    /// [`AppendError::Batch`] and [`AppendError::NotContiguous`] when the batches do not fit; else what the disk says. The
    /// range stays damaged then.
    pub fn repair(&self, range: OffsetRange, records: &Bytes) -> Result<(), AppendError> {
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let Some(damaged) = view.damage.iter().find(|d| d.damage.range == range && !d.damage.at_end) else {
            return Err(AppendError::NotContiguous { expected: view.log_end, found: range.start });
        };
        let end = check_repair(range, records)?;
        if end != range.end {
            return Err(AppendError::NotContiguous { expected: range.end, found: end });
        }
        let left: Vec<_> = view.damage.iter().filter(|d| d.damage.range != range).cloned().collect();
        match &damaged.bytes {
            Some((segment, bytes)) => {
                overwrite(&view, *segment, bytes, records)?;
                self.publish_damage(left)?;
            }
            None => {
                let segment = self.refill(&view, range, records)?;
                self.publish(|view| view.with_segment(segment));
                self.publish_damage(left)?;
            }
        }
        assert!(self.view.load().damage_at(range.start).is_none(), "the range is whole");
        assert_eq!(self.log_end(), view.log_end, "a repair moves no end");
        tracing::info!(partition = %self.partition, %range, "repaired");
        Ok(())
    }

    /// Makes a segment of the records of a range that no segment holds. It gets its name when it is whole and flushed; until the
    /// damage is noted as repaired, it is checked whenever the log is opened.
    fn refill(
        &self,
        view: &View<S>,
        range: OffsetRange,
        records: &Bytes,
    ) -> Result<SegmentRef<S>, AppendError> {
        let refused = AppendError::NotContiguous { expected: view.log_end, found: range.start };
        if view.next_base(range.start) != Some(range.end) || is_too_wide(range.start, range.end) {
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

    /// A new segment begins after the tail, so that opening the log finds the same end.
    fn pass_over(&self, view: &View<S>, log_end: Offset) -> StorageResult<()> {
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
        let passed = |d: &DamagedBytes| {
            let mut passed = d.clone();
            passed.damage.at_end = false;
            passed
        };
        self.publish_damage(view.damage.iter().map(passed).collect())
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
    segment: Offset,
    bytes: &Range<u64>,
    records: &Bytes,
) -> Result<(), AppendError> {
    let room = bytes.end.saturating_sub(bytes.start);
    let entry = view.segments().find(|s| s.base() == segment).filter(|_| records.len() as u64 == room);
    let Some(entry) = entry else {
        return Err(AppendError::NotContiguous { expected: view.log_end, found: segment });
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
