//! Reading: whole batches, as they stand in the log, from one view; never behind an append.
//!
//! What must hold: a read returns bytes of the log as it was at one moment of the call, or an error. The view says which bytes
//! belong to the log; after the bytes were read, the generation is looked at again: if a truncation began meanwhile, they may
//! be anything, and the read starts over. Removed segments stay readable for those who hold them.

use bytes::Bytes;
use highwater_records::{BatchError, batches};
use highwater_types::Offset;

use super::Log;
use crate::segment::LookupError;
use crate::segments::{SegmentRef, View};
use crate::walk::Walked;
use crate::{LogRead, OffsetRange, ReadError, ReadLimits, Storage, StorageFile as _};

/// How often a read starts over when truncations overtake it.
const ATTEMPTS: usize = 8;

/// Where a read begins.
struct Start<S: Storage> {
    segment: SegmentRef<S>,
    batch: Walked,
    /// Up to where the segment's bytes may be read: its end, or damage.
    end: u64,
    /// Whether the segment is closed.
    is_closed: bool,
}

impl<S: Storage> Log<S> {
    /// Reads whole batches of one segment, from the one that contains `from` on: those that end at or before `limits.upper`
    /// and fit `limits.max_bytes`; the first one even if it does not fit, when `limits.min_one_batch` says so (S32).
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] below the log start and beyond the log end, [`ReadError::Damaged`] in a lost range, or what
    /// the disk says.
    pub fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        for _ in 0..ATTEMPTS {
            let view = self.view.load_full();
            let outcome = self.read_in(&view, from, limits);
            // The order matters: first the bytes, then the generation, then whether the log is still ours.
            if self.view.load().generation != view.generation {
                continue;
            }
            self.refuse_when_closed()?;
            return outcome;
        }
        Err(ReadError::Overtaken)
    }

    fn read_in(&self, view: &View<S>, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        let log = OffsetRange::new(view.log_start, view.log_end);
        if from < log.start || from > log.end {
            return Err(ReadError::OutOfRange { asked: from, log });
        }
        let nothing = LogRead {
            records: Bytes::new(),
            first: from,
            next: from,
            batches: 0,
            positions: view.positions(),
        };
        let upper = limits.upper.min(view.log_end);
        if from >= upper {
            return Ok(nothing);
        }
        if let Some(damage) = view.damage_at(from) {
            return Err(ReadError::Damaged { asked: from, range: damage.range });
        }
        let Some(start) = self.find_start(view, from)? else { return Ok(nothing) };
        if start.batch.header.next_offset() > upper {
            return Ok(nothing);
        }
        // A lost range in front of the batch must not be passed over silently.
        let gap = OffsetRange::new(from, start.batch.header.base_offset());
        if let Some(lost) = view.damage.iter().map(|d| d.damage.range).find(|lost| gap.contains(lost.start)) {
            return Err(ReadError::Damaged { asked: lost.start, range: lost });
        }
        self.read_from(&start, upper, limits, nothing)
    }

    fn find_start(&self, view: &View<S>, from: Offset) -> Result<Option<Start<S>>, ReadError> {
        for entry in view.segments_from(from) {
            let holes = if view.damage.is_empty() { Vec::new() } else { view.holes(entry.base()) };
            if entry.base() != view.active.base() {
                self.index_cache.used(&entry.segment);
            }
            match entry.segment.locate(entry.len, from, &holes) {
                Ok(None) => {}
                // A batch with a wrong last offset must not look like one that is not committed yet.
                Ok(Some(found))
                    if found.batch.header.next_offset()
                        > view.next_base(entry.base()).unwrap_or(view.log_end) =>
                {
                    return Err(ReadError::Corrupt {
                        asked: from,
                        segment: entry.base(),
                        position: found.batch.position,
                        reason: format!(
                            "it ends at offset {}, beyond its segment",
                            found.batch.header.next_offset()
                        ),
                    });
                }
                Ok(Some(found)) => {
                    let hole =
                        holes.iter().map(|hole| hole.start).find(|start| *start > found.batch.position);
                    let end = hole.unwrap_or(entry.len);
                    let is_closed = entry.base() != view.active.base();
                    return Ok(Some(Start { segment: entry.clone(), batch: found.batch, end, is_closed }));
                }
                Err(LookupError::Storage(error)) => return Err(error.into()),
                Err(LookupError::Bad(bad)) => {
                    let reason = bad.reason.to_string();
                    return Err(ReadError::Corrupt {
                        asked: from,
                        segment: entry.base(),
                        position: bad.position,
                        reason,
                    });
                }
            }
        }
        Ok(None)
    }

    /// One `pread` of what the limits allow, then whole batches of it.
    fn read_from(
        &self,
        start: &Start<S>,
        upper: Offset,
        limits: ReadLimits,
        mut read: LogRead,
    ) -> Result<LogRead, ReadError> {
        let available = usize::try_from(start.end.saturating_sub(start.batch.position)).unwrap_or(usize::MAX);
        let first_size = start.batch.header.size();
        if first_size > limits.max_bytes && !limits.min_one_batch {
            return Ok(read);
        }
        // What rots is found by nobody else.
        let is_checked = start.is_closed || limits.checked;
        let want = limits.max_bytes.max(first_size).min(available);
        let mut buffer = self.read_buffers.take(want);
        let filled = start.segment.segment.file().read_up_to(buffer.as_mut(), start.batch.position)?;
        let mut walk = batches(buffer.as_ref().get(..filled).unwrap_or_default());
        let mut end = 0;
        let bad = loop {
            match walk.next() {
                Some(Ok(batch)) if batch.next_offset() > upper => break None,
                Some(Ok(batch)) if is_checked && !batch.crc_ok() => {
                    let (stored, computed) = (batch.crc(), batch.compute_crc());
                    break Some(BatchError::BadChecksum { stored, computed }.to_string());
                }
                Some(Ok(batch)) => {
                    if read.batches == 0 {
                        read.first = batch.base_offset();
                    }
                    read.next = batch.next_offset();
                    read.batches += 1;
                    end += batch.size();
                }
                // The byte limit cut this one off.
                Some(Err(BatchError::Partial { .. })) if want < available => break None,
                Some(Err(reason)) => break Some(reason.to_string()),
                None => break None,
            }
        };
        // What stands before something bad is good; the next read begins with the bad.
        if read.batches == 0 {
            // Without a reason: the first batch was there a moment ago. A truncation began (then this answer is dropped), or the
            // disk rots.
            let reason = bad.unwrap_or_else(|| "the batch changed while it was read".to_owned());
            let (segment, position) = (start.segment.base(), start.batch.position);
            return Err(ReadError::Corrupt { asked: read.next, segment, position, reason });
        }
        read.records = buffer.freeze(end);
        Ok(read)
    }

    /// How many bytes the log holds from the batch with `from` up to the one with `to`: an estimate by the indexes that are in
    /// memory, which asks no disk.
    pub fn bytes_between(&self, from: Offset, to: Offset) -> u64 {
        let view = self.view.load();
        let to = to.min(view.log_end);
        if from >= to {
            return 0;
        }
        let mut total = 0_u64;
        for entry in view.segments_from(from).take_while(|s| s.base() < to) {
            let begin = if from > entry.base() { entry.segment.estimate_position(from) } else { 0 };
            let next = view.next_base(entry.base()).unwrap_or(view.log_end);
            let end = if to < next { entry.segment.estimate_position(to) } else { entry.len };
            total = total.saturating_add(end.min(entry.len).saturating_sub(begin));
        }
        total
    }
}
