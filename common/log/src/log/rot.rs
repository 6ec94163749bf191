//! Damage that a reader met in an open log (design.md 2, 6.3): bytes of a segment that are not what was written.
//!
//! What must hold: the incarnation is replaced in the same write that puts the damage on record, so no replica stands on the
//! merits of records that it has lost. A segment is read whole, so that all of its damage costs one incarnation. What cannot be
//! read is left to the reader, who gets the error.

use std::ops::Range;

use highwater_records::BatchHeader;
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Incarnation, Offset};

use super::Log;
use crate::segments::{DamagedBytes, SegmentRef, View};
use crate::walk::{BadBatch, Check, Walk, Walked, find_good_after};
use crate::{Damage, LogError, OffsetRange, Storage, StorageFile, StorageResult};

impl<S: Storage> Log<S> {
    /// Reads the segment of base `segment`, in which a reader met a bad batch; where more of it is damaged than was known, notes
    /// that, and replaces the incarnation by `renewed`, durably. Without one it is kept, as at the opening of a log by the only
    /// replica in sync, until others are. Reads of it answer that it is lost, until it is repaired. Answers whether there was any.
    ///
    /// # Errors
    /// What the disk says when the damage is noted; either incarnation may be found later.
    pub fn note_rot(&self, segment: Offset, renewed: Option<Incarnation>) -> Result<bool, LogError> {
        let renewed = renewed.filter(|_| !is_planted(PlantedFault::RotKeepsIncarnation));
        let _writer = self.writer.lock();
        self.usable()?;
        let view = self.view.load_full();
        let Some(met) = view.segments().find(|met| met.base() == segment) else { return Ok(false) };
        let next_base = end_of(&view, segment);
        let rotten = rotten_in(&view, met, next_base).unwrap_or_else(|error| {
            tracing::warn!(partition = %self.partition, %segment, %error, "could not read a segment in which readers met damage");
            Vec::new()
        });
        let rotten: Vec<_> = rotten.iter().filter_map(|damaged| damaged.above(view.log_start)).collect();
        if rotten.is_empty() {
            return Ok(false);
        }
        for DamagedBytes { damage, .. } in &rotten {
            tracing::error!(partition = %self.partition, %damage, "readers met damage");
        }
        let mut damage = [&view.damage[..], &rotten].concat();
        damage.sort_by_key(|damaged| damaged.damage.range.start);
        let ranges: Vec<_> = damage.iter().map(|damaged| damaged.damage.range).collect();
        debug_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "damage does not overlap");
        self.store_rot(&ranges, renewed)?;
        self.publish(|view| View { damage: damage.into(), ..view.clone() });
        assert!(
            renewed.is_none_or(|renewed| self.incarnation() == renewed),
            "nothing is acknowledged under the one that had the records"
        );
        Ok(true)
    }

    /// The bases of the log's segments, oldest first.
    #[must_use]
    pub fn segment_bases(&self) -> Vec<Offset> {
        self.view.load().segments().map(SegmentRef::base).collect()
    }

    /// Reads the segment of base `segment` whole: whether more of it is damaged than is known. One that is gone is not. *Blocks.*
    ///
    /// # Errors
    /// What the disk says.
    pub fn has_rot(&self, segment: Offset) -> StorageResult<bool> {
        let view = self.view.load_full();
        let Some(read) = view.segments().find(|read| read.base() == segment) else { return Ok(false) };
        let rotten = rotten_in(&view, read, end_of(&view, segment))?;
        Ok(rotten.iter().any(|damaged| damaged.above(view.log_start).is_some()))
    }
}

/// Where the offsets of a segment end: at the next one, or at what is known to be missing between the two.
fn end_of<S: Storage>(view: &View<S>, segment: Offset) -> Offset {
    let next_base = view.next_base(segment).unwrap_or(view.log_end);
    let missing = view.damage.iter().filter(|known| known.bytes.is_none());
    let missing = missing.map(|known| known.damage.range.start).filter(|start| *start > segment);
    missing.fold(next_base, Offset::min)
}

/// Bytes at which no good batch of the segment begins.
struct Bad {
    position: u64,
    reason: String,
    /// When only the CRC is wrong.
    header: Option<BatchHeader>,
}

/// What of a segment is damaged, apart from what is known; the next one begins at `next_base`.
fn rotten_in<S: Storage>(
    view: &View<S>,
    segment: &SegmentRef<S>,
    next_base: Offset,
) -> StorageResult<Vec<DamagedBytes>> {
    let (base, file) = (segment.base(), segment.segment.file());
    let known: Vec<(Range<u64>, OffsetRange)> = view
        .damage
        .iter()
        .filter_map(|known| {
            let (segment, bytes) = known.bytes.as_ref()?;
            (*segment == base).then(|| (bytes.clone(), known.damage.range))
        })
        .collect();
    let holes = view.holes(base);
    let (mut rotten, mut position, mut end) = (Vec::new(), 0, base);
    loop {
        let mut walk = Walk::new(file, Check::Crc, position, segment.len).over(&holes);
        let Some(bad) = next_bad(&mut walk, &mut end, next_base)? else { return Ok(rotten) };
        // What is known may lie between the last good batch and this, or between this and the next good batch.
        let before = known.iter().filter(|(bytes, _)| bytes.end <= bad.position);
        end = before.map(|(_, range)| range.end).fold(end, Offset::max);
        let behind = known.iter().filter(|(bytes, _)| bytes.start > bad.position);
        let behind = behind.map(|(bytes, range)| (bytes.start, range.start)).min();
        let (limit, offset_there) = behind.unwrap_or((segment.len, next_base));
        let good = find_good_after(file, bad.position, bad.header, limit, end)?;
        let (at, offset) =
            good.map_or((limit, offset_there), |good| (good.position, good.header.base_offset()));
        let range = OffsetRange::new(end, offset);
        if !range.is_empty() {
            let damage = Damage { range, at_end: false, reason: bad.reason };
            rotten.push(DamagedBytes { damage, bytes: Some((base, bad.position..at)) });
        }
        (position, end) = (at, offset.max(end));
    }
}

/// Walks good batches, each behind the one before; `end` is where the last one ends.
fn next_bad<F: StorageFile>(
    walk: &mut Walk<'_, F>,
    end: &mut Offset,
    next_base: Offset,
) -> StorageResult<Option<Bad>> {
    while let Some(batch) = walk.next()? {
        match batch {
            Ok(batch) if batch.header.base_offset() >= *end && batch.header.next_offset() <= next_base => {
                *end = batch.header.next_offset();
            }
            Ok(Walked { position, header }) => {
                let offsets = OffsetRange::new(header.base_offset(), header.next_offset());
                let reason = format!("a batch of offsets {offsets} is out of place");
                return Ok(Some(Bad { position, reason, header: None }));
            }
            Err(BadBatch { position, reason, header }) => {
                return Ok(Some(Bad { position, reason: reason.to_string(), header }));
            }
        }
    }
    Ok(None)
}
