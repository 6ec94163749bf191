//! What a batch must be to be appended: by a leader from a producer, and by a follower from a leader.
//!
//! Deliberately absent: whether the offsets follow the log's end and the epoch is the request's (the log checks both), and
//! the topic's size limit (the leader does).

use highwater_types::WallTime;

use crate::header::{NO_TIMESTAMP, TimestampType};
use crate::record::Reader;
use crate::{BatchError, BatchView};

/// Who sent the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidateMode {
    /// A producer: the batch must be exactly what a producer may build, down to each record.
    Produce,
    /// A leader: everything that a Kafka log can hold is accepted, control, transactional, empty and compacted batches
    /// too; the bytes must be those that the leader made the CRC of. Records are not looked at.
    Replicate,
}

/// Checks a whole batch.
///
/// # Errors
/// What is wrong first: [`BatchError::BadChecksum`], [`BatchError::BadRecordCount`]; for producers also
/// [`BatchError::Empty`], [`BatchError::Control`], [`BatchError::Transactional`], [`BatchError::BadAttributes`],
/// [`BatchError::UnknownCompression`], [`BatchError::BadProducer`], [`BatchError::BadTimestamp`] and all that decoding can
/// end with.
pub fn validate(batch: &BatchView<'_>, mode: ValidateMode) -> Result<(), BatchError> {
    let computed = batch.compute_crc();
    if computed != batch.crc() {
        return Err(BatchError::BadChecksum { stored: batch.crc(), computed });
    }
    // Compaction removes records and keeps the offsets, so there can be fewer than the range has, never more.
    let count = i64::from(batch.record_count());
    let range = i64::from(batch.last_offset_delta()).saturating_add(1);
    if !(0..=range).contains(&count) {
        return Err(wrong_count(batch));
    }
    match mode {
        ValidateMode::Replicate => Ok(()),
        ValidateMode::Produce => {
            validate_produced_header(batch)?;
            validate_produced_records(batch)
        }
    }
}

fn validate_produced_header(batch: &BatchView<'_>) -> Result<(), BatchError> {
    let attributes = batch.attributes();
    if attributes.is_control() {
        return Err(BatchError::Control);
    }
    if batch.record_count() == 0 {
        return Err(BatchError::Empty);
    }
    if batch.record_count().checked_sub(1) != Some(batch.last_offset_delta()) {
        return Err(wrong_count(batch));
    }
    if attributes.is_transactional() {
        return Err(BatchError::Transactional);
    }
    let set_by_logs_only =
        attributes.has_delete_horizon() || attributes.timestamp_type() == TimestampType::LogAppendTime;
    if set_by_logs_only || attributes.has_unknown_bits() {
        return Err(BatchError::BadAttributes { attributes: attributes.raw() });
    }
    let (id, epoch, sequence) = (batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
    let idempotent = id >= 0 && epoch >= 0 && sequence >= 0;
    let plain = id == -1 && epoch == -1 && sequence == -1;
    if idempotent || plain { Ok(()) } else { Err(BatchError::BadProducer { id, epoch, sequence }) }
}

fn validate_produced_records(batch: &BatchView<'_>) -> Result<(), BatchError> {
    let mut reader = Reader::open(batch)?;
    let mut max_timestamp = NO_TIMESTAMP;
    let mut expected_delta = 0;
    while let Some(shape) = reader.next(Reader::skip_record) {
        let shape = shape?;
        if shape.offset_delta != expected_delta {
            let reason = "offset deltas do not count up from 0";
            return Err(BatchError::BadRecord { index: expected_delta, reason });
        }
        if shape.timestamp < NO_TIMESTAMP {
            return Err(bad_timestamp(shape.timestamp, "negative"));
        }
        max_timestamp = max_timestamp.max(shape.timestamp);
        expected_delta = expected_delta.saturating_add(1);
    }
    if max_timestamp == batch.max_timestamp() {
        Ok(())
    } else {
        Err(bad_timestamp(batch.max_timestamp(), "the batch's maximum is not that of its records"))
    }
}

fn wrong_count(batch: &BatchView<'_>) -> BatchError {
    BatchError::BadRecordCount { count: batch.record_count(), last_offset_delta: batch.last_offset_delta() }
}

const fn bad_timestamp(timestamp: WallTime, reason: &'static str) -> BatchError {
    BatchError::BadTimestamp { timestamp: timestamp.as_millis(), reason }
}

#[cfg(test)]
#[path = "validate_test.rs"]
mod tests;
