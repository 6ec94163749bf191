//! Finding an offset by time: the first record that is not older.

use highwater_records::{BatchView, record_stamps};
use highwater_types::{Offset, WallTime};

use super::Log;
use crate::segment::LookupError;
use crate::segments::{SegmentRef, View};
use crate::walk::{Check, Walk, Walked};
use crate::{ReadError, Storage, StorageFile as _, TimestampHit};

/// How often a search starts over when truncations overtake it.
const ATTEMPTS: usize = 8;

impl<S: Storage> Log<S> {
    /// The first record at or after the log start and below `upper` whose timestamp is `timestamp` or later, by the producers'
    /// clocks. `None` when there is none.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when the records there cannot be decoded; what the disk says.
    pub fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        for _ in 0..ATTEMPTS {
            let view = self.view.load_full();
            let outcome = self.search(&view, timestamp, upper.min(view.log_end));
            if self.view.load().generation != view.generation {
                continue;
            }
            self.refuse_when_closed()?;
            return outcome;
        }
        Err(ReadError::Overtaken)
    }

    fn search(
        &self,
        view: &View<S>,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        for entry in view.segments_from(view.log_start).take_while(|s| s.base() < upper) {
            let holes = view.holes(entry.base());
            let newest = entry.segment.max_timestamp(entry.len, &holes).map_err(|e| corrupt(entry, e))?;
            if newest < timestamp.as_millis() {
                continue;
            }
            let from = entry
                .segment
                .with_indexes(entry.len, &holes, |indexes| {
                    let before = indexes.times.before(timestamp.as_millis());
                    before
                        .and_then(|time| indexes.offsets.floor(time.relative))
                        .map_or(0, |o| u64::from(o.position))
                })
                .map_err(|e| corrupt(entry, e))?;
            if entry.base() != view.active.base() {
                self.index_cache.used(&entry.segment);
            }
            let from = if from < entry.len { from } else { 0 };
            let mut walk = Walk::new(entry.segment.file(), Check::Header, from, entry.len).over(&holes);
            while let Some(batch) = walk.next()? {
                let batch = batch.map_err(|bad| corrupt(entry, LookupError::Bad(bad)))?;
                if batch.header.base_offset() >= upper {
                    return Ok(None);
                }
                if batch.header.max_timestamp() < timestamp || batch.header.next_offset() <= view.log_start {
                    continue;
                }
                if let Some(hit) = first_hit(entry, &batch, timestamp, view.log_start)? {
                    return Ok(Some(hit).filter(|hit| hit.offset < upper));
                }
            }
        }
        Ok(None)
    }
}

fn first_hit<S: Storage>(
    entry: &SegmentRef<S>,
    batch: &Walked,
    timestamp: WallTime,
    log_start: Offset,
) -> Result<Option<TimestampHit>, ReadError> {
    let mut bytes = vec![0; batch.header.size()];
    let filled = entry.segment.file().read_up_to(&mut bytes, batch.position)?;
    bytes.truncate(filled);
    let asked = batch.header.base_offset();
    let bad = |reason: highwater_records::BatchError| ReadError::Corrupt {
        asked,
        segment: entry.base(),
        position: batch.position,
        reason: reason.to_string(),
    };
    let view = BatchView::parse(&bytes).map_err(bad)?;
    for stamp in record_stamps(&view).map_err(bad)? {
        let stamp = stamp.map_err(bad)?;
        if stamp.timestamp >= timestamp && stamp.offset >= log_start {
            let epoch = view.leader_epoch();
            return Ok(Some(TimestampHit { offset: stamp.offset, timestamp: stamp.timestamp, epoch }));
        }
    }
    Ok(None)
}

fn corrupt<S: Storage>(entry: &SegmentRef<S>, error: LookupError) -> ReadError {
    match error {
        LookupError::Storage(error) => error.into(),
        LookupError::Bad(bad) => ReadError::Corrupt {
            asked: entry.base(),
            segment: entry.base(),
            position: bad.position,
            reason: bad.reason.to_string(),
        },
    }
}
