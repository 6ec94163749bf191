//! Writing into batches, in place: what a leader sets, base offset and leader epoch, which are outside the CRC (FX4), so it
//! stays right; and what a producer sets, its identity, which is inside.

use bytes::BufMut as _;
use highwater_types::{LeaderEpoch, Offset};

use crate::header::{CRC_COVERS_FROM, HEADER_BYTES, LEADER_EPOCH_AT, PRODUCER_AT};
use crate::{BatchError, BatchView, Producer};

/// Sets the base offset of the batch at the start of `batch`.
///
/// # Errors
/// [`BatchError::Partial`] when there is no whole header.
pub fn set_base_offset(batch: &mut [u8], base_offset: Offset) -> Result<(), BatchError> {
    if let Some(field) = header_of(batch)?.first_chunk_mut() {
        *field = base_offset.get().to_be_bytes();
    }
    Ok(())
}

/// Sets the leader epoch of the batch at the start of `batch`.
///
/// # Errors
/// [`BatchError::Partial`] when there is no whole header.
pub fn set_leader_epoch(batch: &mut [u8], epoch: LeaderEpoch) -> Result<(), BatchError> {
    let (_, from_epoch) = header_of(batch)?.split_at_mut(LEADER_EPOCH_AT);
    if let Some(field) = from_epoch.first_chunk_mut() {
        *field = epoch.get().to_be_bytes();
    }
    Ok(())
}

/// Makes the batch at the start of `batch` one of an idempotent producer. Its CRC is computed anew, which reads all of it.
///
/// # Errors
/// As [`BatchView::parse`]; nothing is changed then.
pub fn set_producer(batch: &mut [u8], producer: Producer) -> Result<(), BatchError> {
    let size = BatchView::parse(batch)?.size();
    let batch = batch.get_mut(..size).unwrap_or_default();
    let mut fields = batch.get_mut(PRODUCER_AT..).unwrap_or_default();
    fields.put_i64(producer.id);
    fields.put_i16(producer.epoch);
    fields.put_i32(producer.base_sequence);
    write_crc(batch);
    Ok(())
}

/// Computes the CRC of exactly one batch and writes it.
pub(crate) fn write_crc(batch: &mut [u8]) {
    debug_assert!(batch.len() >= HEADER_BYTES, "a whole batch");
    let Some((head, covered)) = batch.split_at_mut_checked(CRC_COVERS_FROM) else { return };
    if let Some(crc) = head.last_chunk_mut() {
        *crc = crc32c::crc32c(covered).to_be_bytes();
    }
}

/// Gives every batch of a concatenation the offsets that follow `first`, without gaps, and `epoch`; returns the offset
/// after the last. What a leader does to what was produced, after it was validated.
///
/// # Errors
/// As [`BatchView::parse`], and [`BatchError::BadOffsets`] when the offsets are used up. The batches before the one at fault
/// are stamped then; nothing may be written of it.
pub fn stamp_batches(bytes: &mut [u8], first: Offset, epoch: LeaderEpoch) -> Result<Offset, BatchError> {
    let mut rest = bytes;
    let mut next = first;
    while !rest.is_empty() {
        let size = BatchView::parse(rest)?.size();
        set_base_offset(rest, next)?;
        set_leader_epoch(rest, epoch)?;
        // Parsed again because the sum of the new base offset and the delta must be an offset, too.
        next = BatchView::parse(rest)?.next_offset();
        rest = rest.get_mut(size..).unwrap_or_default();
    }
    Ok(next)
}

fn header_of(batch: &mut [u8]) -> Result<&mut [u8; HEADER_BYTES], BatchError> {
    let have = batch.len();
    batch.first_chunk_mut().ok_or(BatchError::Partial { need: HEADER_BYTES, have })
}

#[cfg(test)]
#[path = "stamp_test.rs"]
mod tests;
