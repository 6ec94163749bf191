//! ReadRecords: decoded records below the high watermark, for people.
//!
//! What must hold: never a record at or above the high watermark; the batch that holds the first offset is decoded whole
//! and cut to what was asked for; an answer without records still says where to read on, so that a reader passes empty
//! batches (cases.md H); what is decoded is bounded by the caller's limits, not by what a compressed batch expands to.

use std::sync::Arc;

use highwater_log::ReadLimits;
use highwater_records::{
    BatchError, BatchView, ControlRecord, Record, ValidateMode, batches, records, validate,
};
use highwater_types::{ErrorCode, Offset, ReplicationError};
use highwater_wire::read_records::{
    DecodedRecord, ProducerPosition, ReadRecordsRequest, ReadRecordsResponse,
};

use crate::fetch::{read_failed, to_usize};
use crate::registry::with_hint;
use crate::{HostedReplica, PartitionHost};

/// Reads and decodes, on the blocking pool.
///
/// # Errors
/// Why the partition cannot be read here, or the offset is out of range.
pub async fn read_records(
    host: Arc<dyn PartitionHost>,
    wanted: ReadRecordsRequest,
) -> Result<ReadRecordsResponse, ReplicationError> {
    let view = host.view();
    let found = host.locate(&view, &wanted.topic, wanted.partition);
    let partition = wanted.partition;
    let outcome = match found.replica {
        Err(error) => Err(error),
        Ok(replica) => tokio::task::spawn_blocking(move || read(&*replica, &wanted))
            .await
            .unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())),
    };
    outcome.map_err(|error| with_hint(&view, found.topic_id, partition, error))
}

fn read(
    replica: &dyn HostedReplica,
    wanted: &ReadRecordsRequest,
) -> Result<ReadRecordsResponse, ReplicationError> {
    let facts = replica.facts()?;
    let (log_start, log_end) = (facts.positions.log_start, facts.positions.log_end);
    let from = wanted.from.unwrap_or(log_start);
    let upper = facts.high_watermark;
    if from < log_start || from > log_end {
        return Err(ReplicationError::new(
            ErrorCode::OffsetOutOfRange,
            format!("offset {from} is outside of {log_start}..{log_end}"),
        ));
    }
    let mut out =
        ReadRecordsResponse { records: Vec::new(), next_offset: from, log_start, high_watermark: upper };
    if from >= upper {
        return Ok(out);
    }
    let mut room = Room { records: to_usize(wanted.max_records), bytes: to_usize(wanted.max_bytes) };
    let limits = ReadLimits { max_bytes: room.bytes, min_one_batch: true, upper, checked: true };
    let bytes = replica.read(from, limits).map_err(|e| read_failed(&e))?.records;
    for batch in batches(&bytes) {
        let batch = batch.map_err(|e| ReplicationError::new(ErrorCode::DataLoss, e.to_string()))?;
        // Whoever gets batches checks them. Here only records leave, so nobody else can.
        validate(&batch, ValidateMode::Replicate).map_err(|e| undecodable(&batch, &e))?;
        if !decode_into(&mut out, &batch, from, &mut room)? {
            return Ok(out);
        }
        out.next_offset = batch.next_offset();
    }
    Ok(out)
}

/// What may still be decoded.
struct Room {
    records: usize,
    bytes: usize,
}

/// Decodes one batch; `false` when the room is used up before its end.
fn decode_into(
    out: &mut ReadRecordsResponse,
    batch: &BatchView<'_>,
    from: Offset,
    room: &mut Room,
) -> Result<bool, ReplicationError> {
    for record in records(batch).map_err(|e| undecodable(batch, &e))? {
        let record = record.map_err(|e| undecodable(batch, &e))?;
        if record.offset < from {
            continue;
        }
        let size = size_of(&record);
        if room.records == 0 || (room.bytes < size && !out.records.is_empty()) {
            return Ok(false);
        }
        room.records -= 1;
        room.bytes = room.bytes.saturating_sub(size);
        out.next_offset = record.offset.next();
        out.records.push(describe(batch, record));
    }
    Ok(true)
}

fn undecodable(batch: &BatchView<'_>, error: &BatchError) -> ReplicationError {
    ReplicationError::new(ErrorCode::DataLoss, format!("batch at {}: {error}", batch.base_offset()))
}

fn size_of(record: &Record) -> usize {
    let optional = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
    let headers: usize = record.headers.iter().map(|h| h.key.len() + optional(&h.value)).sum();
    optional(&record.key) + optional(&record.value) + headers
}

fn describe(batch: &BatchView<'_>, record: Record) -> DecodedRecord {
    let control = batch
        .is_control()
        .then(|| ControlRecord::decode(&record).map_or("UNKNOWN", |c| c.control_type.name()));
    let producer = (batch.producer_id() >= 0).then(|| ProducerPosition {
        id: batch.producer_id(),
        epoch: batch.producer_epoch(),
        sequence: record.sequence,
    });
    DecodedRecord {
        offset: record.offset,
        leader_epoch: batch.leader_epoch(),
        timestamp: record.timestamp,
        key: record.key,
        value: record.value,
        headers: record.headers.into_iter().map(|h| (h.key, h.value)).collect(),
        producer,
        transactional: batch.is_transactional(),
        control: control.map(str::to_owned),
    }
}
