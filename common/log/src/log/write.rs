//! Writing checked batches: closing and beginning segments, one write per run of batches, and what follows from it.
//!
//! What must hold: nothing is published before it is written; after a failure the log ends at the last whole run, the torn
//! bytes are cut as far as the disk lets us, and the log takes no more changes (KAFKA-10778).

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use highwater_records::BatchHeader;
use highwater_types::{LeaderEpochCache, Offset, WallTime};

use super::{Log, Writer};
use crate::index::IndexedBatch;
use crate::segment::{Segment, remove_segment_files};
use crate::segments::{SegmentRef, View};
use crate::{Storage, StorageError, StorageFile, StorageResult, Unusable};

/// How many bytes of a batch the leader writes itself: base offset, length, leader epoch.
pub(super) const STAMP_BYTES: usize = 16;

/// A batch that is to be written, with its place in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    /// Where its bytes are: which input, and where in it.
    pub(super) input: usize,
    pub(super) position: usize,
    pub(super) size: usize,
    /// The offset it gets, or brings along.
    pub(super) first: Offset,
    /// The offset after it.
    pub(super) next: Offset,
    pub(super) max_timestamp: i64,
    /// The first bytes, when the leader stamps them.
    pub(super) stamp: Option<[u8; STAMP_BYTES]>,
}

impl Planned {
    pub(super) fn new(header: &BatchHeader, input: usize, position: usize, first: Offset) -> Self {
        let next = first.advance(i64::from(header.last_offset_delta()).saturating_add(1));
        let max_timestamp = header.max_timestamp().as_millis();
        Self { input, position, size: header.size(), first, next, max_timestamp, stamp: None }
    }
}

impl<S: Storage> Log<S> {
    /// Appends the batches and publishes them with `epochs`. Returns whether segments were closed. After an error the log takes
    /// no more changes.
    pub(super) fn write_batches(
        &self,
        writer: &mut Writer,
        inputs: &[Bytes],
        batches: &[Planned],
        epochs: &LeaderEpochCache,
        now: WallTime,
    ) -> Result<bool, StorageError> {
        let outcome = self.try_write_batches(writer, inputs, batches, epochs, now);
        outcome.inspect_err(|error| self.append_failed(error))
    }

    fn try_write_batches(
        &self,
        writer: &mut Writer,
        inputs: &[Bytes],
        batches: &[Planned],
        epochs: &LeaderEpochCache,
        now: WallTime,
    ) -> Result<bool, StorageError> {
        self.mark_open()?;
        let mut epochs = Some(epochs).filter(|epochs| **epochs != *self.view.load().epochs);
        if let Some(epochs) = epochs {
            self.store_epochs_of_records(epochs)?;
        }
        let mut rest = batches;
        let mut rolled = false;
        while let Some(first) = rest.first() {
            if self.must_roll(writer, first, now) {
                rolled |= self.roll(writer, first, now)?;
            }
            let (run, later) = rest.split_at(self.run_length(rest));
            self.write_run(writer, inputs, run, epochs.take(), now)?;
            rest = later;
        }
        Ok(rolled)
    }

    /// Whether the active segment has to be closed before this batch.
    fn must_roll(&self, writer: &Writer, batch: &Planned, now: WallTime) -> bool {
        let view = self.view.load();
        let active = &view.active;
        let last = batch.next.prev().unwrap_or_default();
        if batch.first < active.base() || active.segment.relative(last).is_none() {
            return true;
        }
        if active.len == 0 {
            return false;
        }
        let config = self.config.load();
        let age = now.as_millis().saturating_sub(writer.active_since.as_millis());
        let is_old = config.segment_ms.is_some_and(|limit| u64::try_from(age).is_ok_and(|age| age > limit));
        let is_large = active.len.saturating_add(batch.size as u64) > u64::from(config.segment_bytes);
        is_old
            || is_large
            || active.segment.change_indexes(|indexes| indexes.is_full(config.segment_index_bytes))
    }

    /// How many of the batches go into the active segment; at least one.
    fn run_length(&self, batches: &[Planned]) -> usize {
        let view = self.view.load();
        let limit = u64::from(self.config.load().segment_bytes);
        let mut len = view.active.len;
        let fits = |batch: &&Planned| {
            len = len.saturating_add(batch.size as u64);
            len <= limit && view.active.segment.relative(batch.next.prev().unwrap_or_default()).is_some()
        };
        batches.iter().take_while(fits).count().max(1)
    }

    /// The base of the segment that begins with `batch`: the log end, so that segments touch and a missing one is noticed when
    /// the log is opened. Where no segment can hold the gap before the batch, its base; everything before is flushed then, so
    /// that nothing can be missing.
    fn next_base(&self, view: &View<S>, batch: &Planned) -> StorageResult<Offset> {
        let span = batch.next.since(view.log_end.next());
        if batch.first < view.active.base() {
            return Ok(batch.first);
        }
        if i32::try_from(span).is_ok() {
            return Ok(view.log_end);
        }
        self.sync_unflushed()?;
        Ok(batch.first)
    }

    /// Closes the active segment and begins the one of `batch`. An empty one is replaced instead. Returns whether one was closed.
    fn roll(&self, writer: &mut Writer, batch: &Planned, now: WallTime) -> StorageResult<bool> {
        let view = self.view.load_full();
        let old = &view.active;
        let base = self.next_base(&view, batch)?;
        assert!(old.base() != base, "one base, one segment");
        let closed = old.len > 0;
        if closed {
            old.segment.write_indexes(false)?;
        }
        let segment = Segment::create(&self.storage, &self.dir, base).inspect_err(|_| {
            // Nothing refers to what was made of it; opening the log would drop it, too.
            drop(remove_segment_files(&self.storage, &self.dir, base));
        })?;
        self.note_created(closed.then_some(&old.segment));
        let new = SegmentRef { segment: Arc::new(segment), len: 0 };
        let after = self.publish(|view| {
            let kept = view.segments().filter(|s| closed || s.base() != old.base()).cloned();
            view.with_segments(kept.chain(std::iter::once(new)).collect())
        });
        if closed {
            old.segment.unpin_indexes();
            self.index_cache.used(&old.segment);
        } else {
            self.forget_unflushed(|removed| removed == old.base());
            old.segment.remove_files()?;
        }
        writer.active_since = now;
        assert_eq!(after.active.base(), base, "the new segment is the active one");
        assert_eq!(after.log_end, view.log_end, "rolling appends nothing");
        Ok(closed)
    }

    /// Writes a run of batches to the active segment, in one go, and publishes it.
    fn write_run(
        &self,
        writer: &mut Writer,
        inputs: &[Bytes],
        run: &[Planned],
        epochs: Option<&LeaderEpochCache>,
        now: WallTime,
    ) -> StorageResult<()> {
        let view = self.view.load_full();
        let active = &view.active;
        if active.len == 0 {
            writer.active_since = now;
        }
        active.segment.file().write_vectored_at(&slices(inputs, run), active.len)?;
        self.note_written(&active.segment);
        active.segment.set_last_written(now);
        let interval = self.config.load().index_interval_bytes;
        let mut len = active.len;
        active.segment.change_indexes(|indexes| {
            for batch in run {
                if let Some(relative) = active.segment.relative(batch.next.prev().unwrap_or_default()) {
                    let size = batch.size as u64;
                    let max_timestamp = batch.max_timestamp;
                    indexes.note(IndexedBatch { position: len, size, relative, max_timestamp }, interval);
                }
                len += batch.size as u64;
            }
        });
        let end = run.last().map_or(view.log_end, |last| last.next);
        let epochs = epochs.map(|epochs| Arc::new(epochs.clone()));
        let after = self.publish(|view| View {
            active: SegmentRef { len, ..view.active.clone() },
            log_end: end,
            epochs: epochs.unwrap_or_else(|| Arc::clone(&view.epochs)),
            ..view.clone()
        });
        assert!(after.log_end > view.log_end, "an append moves the log end");
        assert_eq!(after.generation, view.generation, "nobody truncates while the writer is held");
        Ok(())
    }

    /// The log ends at the last whole run: torn bytes after it go if the disk lets us (a full one does). What stays is cut when
    /// the log is opened again. After a failed flush more is in doubt, which the caller cuts (`cut_unflushed`).
    fn append_failed(&self, error: &StorageError) {
        self.fail(Unusable::AppendFailed, error);
        if matches!(self.usable(), Err(Unusable::FlushFailed(_))) {
            return;
        }
        let view = self.view.load();
        if let Err(error) = view.active.segment.file().set_len(view.active.len) {
            tracing::warn!(partition = %self.partition, %error, "could not cut the bytes of the failed append");
        }
        debug_assert!(self.usable().is_err(), "no append follows a failed one");
    }
}

/// The bytes of a run. A leader's batches are its stamp and the rest; a follower's come out of one input, as they are.
fn slices<'a>(inputs: &'a [Bytes], run: &'a [Planned]) -> Vec<IoSlice<'a>> {
    let bytes = |input: usize, from: usize, to: usize| {
        inputs.get(input).and_then(|input| input.get(from..to)).unwrap_or_default()
    };
    let Some((first, last)) = run.first().zip(run.last()) else { return Vec::new() };
    if first.stamp.is_none() {
        return vec![IoSlice::new(bytes(
            first.input,
            first.position,
            last.position.saturating_add(last.size),
        ))];
    }
    let mut slices = Vec::with_capacity(run.len().saturating_mul(2));
    for batch in run {
        let end = batch.position.saturating_add(batch.size);
        if let Some(stamp) = &batch.stamp {
            slices.push(IoSlice::new(stamp));
        }
        slices.push(IoSlice::new(bytes(batch.input, batch.position.saturating_add(STAMP_BYTES), end)));
    }
    slices
}
