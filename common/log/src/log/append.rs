//! Appending: as a leader (offsets and epoch are given here) and as a follower (the leader's bytes as they came, S7).
//!
//! What must hold: every batch is checked before any is written, and a bad batch is never written (design.md 2).

use bytes::Bytes;
use highwater_records::{BatchError, BatchHeader, BatchView, Batches, ValidateMode, batches, validate};
use highwater_types::{LeaderEpoch, LeaderEpochCache, Offset, WallTime};

use super::Log;
use super::write::{Planned, STAMP_BYTES};
use crate::segments::View;
use crate::{AppendError, FollowerAppend, LeaderAppend, OffsetRange, Storage};

impl<S: Storage> Log<S> {
    /// Appends batches that the caller has validated. Each input holds one or more whole batches; they get the next offsets
    /// and `epoch`, both stamped on the way to the disk (they are outside the CRC): the inputs are not changed. All inputs go
    /// into one write. `now` is the local time, by which segments are closed.
    ///
    /// An epoch above the latest known one is assigned first, durably (S36); a lower one is refused.
    ///
    /// # Errors
    /// [`AppendError::Storage`]: the log takes no more changes. Anything else: nothing was appended.
    pub fn append_as_leader(
        &self,
        inputs: &[Bytes],
        epoch: LeaderEpoch,
        now: WallTime,
    ) -> Result<LeaderAppend, AppendError> {
        let mut writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        if let Some(lost) = view.damage.iter().find(|d| d.damage.at_end) {
            return Err(AppendError::LostTail(lost.damage.range));
        }
        let first = view.log_end;
        let mut epochs = view.epochs.as_ref().clone();
        check_epoch(&epochs, Some(epoch), first)?;
        epochs.assign(epoch, first);
        let (planned, ranges) = plan_as_leader(inputs, first, epoch)?;
        if planned.is_empty() {
            return Ok(LeaderAppend { inputs: ranges, first, next: first, rolled: false });
        }
        let rolled = self.write_batches(&mut writer, inputs, &planned, &epochs, now)?;
        let next = self.view.load().log_end;
        assert_eq!(ranges.last().map(|range| range.end), Some(next), "the log ends after the last input");
        assert!(next > first, "an append moves the log end");
        Ok(LeaderAppend { inputs: ranges, first, next, rolled })
    }

    /// Appends the leader's bytes exactly as they came. Every batch is checked first: length, magic, CRC, that it begins at or
    /// after the end of what is before it (gaps from compaction are allowed), that epochs do not fall. Batches of an epoch above
    /// `request_epoch`, and all after them, are left out (KAFKA-18723).
    ///
    /// An empty log may begin at the base of its first batch when the log start lies within that batch (S47).
    ///
    /// # Errors
    /// [`AppendError::Storage`]: the log takes no more changes. Anything else: nothing was appended.
    pub fn append_as_follower(
        &self,
        records: &Bytes,
        request_epoch: LeaderEpoch,
        now: WallTime,
    ) -> Result<FollowerAppend, AppendError> {
        let mut writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let Checked { planned, epochs, left_out } = check_as_follower(&view, records, request_epoch)?;
        let first = planned.first().map_or(view.log_end, |batch| batch.first);
        let bytes = planned.last().map_or(0, |last| last.position.saturating_add(last.size));
        if planned.is_empty() {
            return Ok(FollowerAppend { first, next: view.log_end, bytes, left_out, rolled: false });
        }
        let rolled =
            self.write_batches(&mut writer, std::slice::from_ref(records), &planned, &epochs, now)?;
        self.note_tail_filled();
        let next = self.view.load().log_end;
        assert_eq!(planned.last().map(|last| last.next), Some(next), "the log ends after the last batch");
        assert!(next > view.log_end, "an append moves the log end");
        Ok(FollowerAppend { first, next, bytes, left_out, rolled })
    }
}

/// Gives every batch of the inputs its offsets and its stamp.
fn plan_as_leader(
    inputs: &[Bytes],
    first: Offset,
    epoch: LeaderEpoch,
) -> Result<(Vec<Planned>, Vec<OffsetRange>), AppendError> {
    let mut planned = Vec::with_capacity(inputs.len());
    let mut ranges = Vec::with_capacity(inputs.len());
    let mut next = first;
    for (input, bytes) in inputs.iter().enumerate() {
        let start = next;
        let mut walk = batches(bytes);
        while let Some((position, batch)) = step(&mut walk, planned.len())? {
            let mut plan = Planned::new(batch.header(), input, position, next);
            if plan.next == Offset::MAX {
                return Err(AppendError::OffsetsUsedUp(next));
            }
            plan.stamp = Some(stamp(batch.header(), next, epoch));
            next = plan.next;
            planned.push(plan);
        }
        ranges.push(OffsetRange::new(start, next));
    }
    Ok((planned, ranges))
}

/// The first bytes of a batch, with its offset and epoch: what lies outside the CRC, the magic apart.
fn stamp(header: &BatchHeader, first: Offset, epoch: LeaderEpoch) -> [u8; STAMP_BYTES] {
    let length = i32::try_from(header.size().saturating_sub(12)).unwrap_or(i32::MAX);
    let mut stamp = [0; STAMP_BYTES];
    let (offset, rest) = stamp.split_at_mut(8);
    let (size, leader_epoch) = rest.split_at_mut(4);
    offset.copy_from_slice(&first.get().to_be_bytes());
    size.copy_from_slice(&length.to_be_bytes());
    leader_epoch.copy_from_slice(&epoch.get().to_be_bytes());
    stamp
}

struct Checked {
    planned: Vec<Planned>,
    epochs: LeaderEpochCache,
    left_out: Option<LeaderEpoch>,
}

fn check_as_follower<S: Storage>(
    view: &View<S>,
    records: &Bytes,
    request_epoch: LeaderEpoch,
) -> Result<Checked, AppendError> {
    let mut checked = Checked { planned: Vec::new(), epochs: view.epochs.as_ref().clone(), left_out: None };
    let mut next = view.log_end;
    let mut walk = batches(records);
    while let Some((position, batch)) = step(&mut walk, checked.planned.len())? {
        let index = checked.planned.len();
        validate(&batch, ValidateMode::Replicate).map_err(|source| AppendError::Batch {
            index,
            position,
            source,
        })?;
        let first = batch.base_offset();
        if first < next && !(index == 0 && begins_empty_log(view, &batch)) {
            return Err(AppendError::NotContiguous { expected: next, found: first });
        }
        let epoch = batch.leader_epoch();
        if epoch > Some(request_epoch) {
            checked.left_out = checked.left_out.or(epoch);
        }
        check_epoch(&checked.epochs, epoch, first)?;
        next = batch.next_offset();
        if checked.left_out.is_none() {
            if let Some(epoch) = epoch {
                checked.epochs.assign(epoch, first);
            }
            checked.planned.push(Planned::new(batch.header(), 0, position, first));
        }
    }
    Ok(checked)
}

/// Whether an empty log may begin with this batch although the log start lies within it (S47).
fn begins_empty_log<S: Storage>(view: &View<S>, batch: &BatchView<'_>) -> bool {
    let is_empty = view.closed.is_empty() && view.active.len == 0 && view.log_start == view.log_end;
    is_empty && batch.base_offset() <= view.log_start && view.log_start < batch.next_offset()
}

/// The next batch of a walk and where it begins.
fn step<'a>(walk: &mut Batches<'a>, index: usize) -> Result<Option<(usize, BatchView<'a>)>, AppendError> {
    let position = walk.consumed();
    match walk.next() {
        None => Ok(None),
        Some(Ok(batch)) => Ok(Some((position, batch))),
        Some(Err(source)) => Err(batch_error(index, position, source)),
    }
}

fn batch_error(index: usize, position: usize, source: BatchError) -> AppendError {
    AppendError::Batch { index, position, source }
}

fn check_epoch(
    epochs: &LeaderEpochCache,
    found: Option<LeaderEpoch>,
    offset: Offset,
) -> Result<(), AppendError> {
    let latest = epochs.latest().map(|entry| entry.epoch);
    if found < latest { Err(AppendError::EpochFell { offset, latest, found }) } else { Ok(()) }
}
