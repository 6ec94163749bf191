//! What a producer sent for one partition, made into batches that may be appended, or refused.
//!
//! What must hold: only exact, complete, non-empty batches of magic 2 pass, each within `max.message.bytes`, down to its
//! compressed content; control and transactional ones never do (FX2, FX3). Nothing of a partition is appended unless all
//! of it passes. Checks that may decompress run on the blocking pool.

use bytes::Bytes;
use highwater_records::{BatchBuilder, Compression, Header, ValidateMode, batches, validate};
use highwater_types::{ErrorCode, ReplicationError, WallTime};
use highwater_wire::produce::{PlainRecord, ProduceRecords};

/// Up to this size records without compression are checked inline, in bytes: tens of microseconds.
const INLINE_CHECK_BYTES: usize = 64 << 10;

/// Batches of one partition that were checked.
#[derive(Clone, Debug)]
pub(crate) struct CheckedBatches {
    /// The batches, one behind the other; at least one, each with a record.
    pub(crate) bytes: Bytes,
}

/// Checks, or builds, what is to be appended.
///
/// # Errors
/// What is wrong with it, as the partition's error.
pub(crate) async fn check(
    records: ProduceRecords,
    max_message_bytes: u32,
    now: WallTime,
) -> Result<CheckedBatches, ReplicationError> {
    let is_cheap = is_cheap(&records);
    let check = move || {
        let bytes = match records {
            ProduceRecords::Plain(plain) => build(&plain, now)?,
            ProduceRecords::Batches(bytes) => bytes,
        };
        check_batches(bytes, max_message_bytes)
    };
    if is_cheap {
        return check();
    }
    tokio::task::spawn_blocking(check).await.unwrap_or_else(|failed| {
        tracing::error!(error = %failed, "checking a batch failed unexpectedly");
        Err(ReplicationError::new(ErrorCode::Internal, "the batch could not be checked"))
    })
}

fn is_cheap(records: &ProduceRecords) -> bool {
    match records {
        ProduceRecords::Batches(bytes) => bytes.len() <= INLINE_CHECK_BYTES && !is_compressed(bytes),
        ProduceRecords::Plain(plain) => {
            let optional = |bytes: &Option<Bytes>| bytes.as_ref().map_or(1, |bytes| bytes.len() + 1);
            let size = |record: &PlainRecord| {
                let headers: usize =
                    record.headers.iter().map(|(key, value)| key.len() + optional(value)).sum();
                optional(&record.key) + optional(&record.value) + headers
            };
            plain.iter().map(size).sum::<usize>() <= INLINE_CHECK_BYTES
        }
    }
}

fn is_compressed(bytes: &[u8]) -> bool {
    // A batch that does not parse is refused by the check itself.
    batches(bytes).any(|batch| batch.is_ok_and(|batch| batch.compression() != Ok(Compression::None)))
}

fn check_batches(bytes: Bytes, max_message_bytes: u32) -> Result<CheckedBatches, ReplicationError> {
    for (index, batch) in batches(&bytes).enumerate() {
        let refused = |code, why: String| Err(ReplicationError::new(code, format!("batch {index}: {why}")));
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return refused(error.code(), error.to_string()),
        };
        if batch.size() > usize::try_from(max_message_bytes).unwrap_or(usize::MAX) {
            let why = format!("{} bytes; the topic's max.message.bytes is {max_message_bytes}", batch.size());
            return refused(ErrorCode::MessageTooLarge, why);
        }
        if let Err(error) = validate(&batch, ValidateMode::Produce) {
            return refused(error.code(), error.to_string());
        }
    }
    debug_assert!(!bytes.is_empty(), "a request without bytes was refused when it was decoded");
    Ok(CheckedBatches { bytes })
}

fn build(plain: &[PlainRecord], now: WallTime) -> Result<Bytes, ReplicationError> {
    let refused = |error: &dyn std::fmt::Display| {
        ReplicationError::new(
            ErrorCode::InvalidRecord,
            format!("build a batch of the plain records: {error}"),
        )
    };
    let mut builder = BatchBuilder::new(Compression::None);
    for record in plain {
        let headers: Vec<Header> = record
            .headers
            .iter()
            .map(|(key, value)| Header { key: key.clone(), value: value.clone() })
            .collect();
        builder
            .append(record.timestamp.unwrap_or(now), record.key.as_deref(), record.value.as_deref(), &headers)
            .map_err(|error| refused(&error))?;
    }
    builder.build().map(bytes::BytesMut::freeze).map_err(|error| refused(&error))
}

#[cfg(test)]
#[path = "batches_test.rs"]
mod tests;
