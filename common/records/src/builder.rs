//! Building a batch that Kafka's readers and [`crate::validate()`] accept.

use bytes::{BufMut, Bytes, BytesMut};
use highwater_types::{LeaderEpoch, Offset, WallTime};

use crate::header::{Attributes, CRC_COVERS_FROM, HEADER_BYTES, LENGTH_EXCLUDES, MAGIC, NO_TIMESTAMP};
use crate::stamp::write_crc;
use crate::{Compression, ControlRecord, Header, varint};

/// The identity of an idempotent producer, and the sequence number of a batch's first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// The producer's id.
    pub id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// The sequence number of the batch's first record.
    pub base_sequence: i32,
}

/// Why no batch could be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// There is no record.
    #[error("a batch needs a record")]
    Empty,
    /// The batch, or one part of a record, is larger than the format can say (2³¹-1 bytes or records).
    #[error("{what} is larger than the batch format can say")]
    TooLarge {
        /// What is too large.
        what: &'static str,
    },
    /// The codec failed.
    #[error("compress the records: {0}")]
    Compress(#[from] std::io::Error),
}

/// Collects records and builds one batch of them, with base offset 0 and no leader epoch unless told otherwise.
#[derive(Debug)]
pub struct BatchBuilder {
    compression: Compression,
    base_offset: Offset,
    leader_epoch: i32,
    producer: Producer,
    transactional: bool,
    control: bool,
    base_timestamp: i64,
    max_timestamp: WallTime,
    count: i32,
    records: BytesMut,
}

impl BatchBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self {
            compression,
            base_offset: Offset::ZERO,
            leader_epoch: -1,
            producer: Producer { id: -1, epoch: -1, base_sequence: -1 },
            transactional: false,
            control: false,
            base_timestamp: NO_TIMESTAMP.as_millis(),
            max_timestamp: NO_TIMESTAMP,
            count: 0,
            records: BytesMut::new(),
        }
    }

    /// Makes it a batch of an idempotent producer.
    #[must_use]
    pub const fn producer(mut self, producer: Producer) -> Self {
        self.producer = producer;
        self
    }

    /// Sets the base offset, as a leader does.
    #[must_use]
    pub const fn base_offset(mut self, offset: Offset) -> Self {
        self.base_offset = offset;
        self
    }

    /// Sets the leader epoch, as a leader does.
    #[must_use]
    pub const fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.leader_epoch = epoch.get();
        self
    }

    /// Makes it part of a transaction. Highwater has none; its logs may hold what Kafka wrote.
    #[must_use]
    pub const fn transactional(mut self) -> Self {
        self.transactional = true;
        self
    }

    /// Adds a record. A timestamp of -1 means none.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`]; the builder is then as it was before.
    pub fn append(
        &mut self,
        timestamp: WallTime,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header],
    ) -> Result<(), BuildError> {
        let base_timestamp = if self.count == 0 { timestamp.as_millis() } else { self.base_timestamp };
        let next_count =
            self.count.checked_add(1).ok_or(BuildError::TooLarge { what: "the number of records" })?;
        // Wraps as Java's does, and the reader's: a base of -1 and a timestamp of 2^63-1 are 2^63 apart.
        let timestamp_delta = timestamp.as_millis().wrapping_sub(base_timestamp);
        let header_count = length(headers.len(), "the number of headers")?;
        let body = 1
            + varint::size(timestamp_delta)
            + varint::size(i64::from(self.count))
            + optional_size(key)
            + optional_size(value)
            + varint::size(header_count)
            + headers.iter().map(header_size).sum::<usize>();
        let body_length = length(body, "a record")?;
        length(self.records.len().saturating_add(body), "the batch")?;

        self.records.reserve(body.saturating_add(varint::size(body_length)));
        varint::put(&mut self.records, body_length);
        self.records.put_u8(0);
        varint::put(&mut self.records, timestamp_delta);
        varint::put(&mut self.records, i64::from(self.count));
        put_optional(&mut self.records, key)?;
        put_optional(&mut self.records, value)?;
        varint::put(&mut self.records, header_count);
        for header in headers {
            put_optional(&mut self.records, Some(header.key.as_bytes()))?;
            put_optional(&mut self.records, header.value.as_deref())?;
        }
        self.base_timestamp = base_timestamp;
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.count = next_count;
        Ok(())
    }

    /// How many records there are.
    #[must_use]
    pub const fn record_count(&self) -> i32 {
        self.count
    }

    /// How large the batch would be without compression, in bytes.
    #[must_use]
    pub fn uncompressed_size(&self) -> usize {
        HEADER_BYTES.saturating_add(self.records.len())
    }

    /// Builds the batch.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(self) -> Result<BytesMut, BuildError> {
        if self.count == 0 {
            return Err(BuildError::Empty);
        }
        let payload = self.compression.compress(&self.records)?;
        self.assemble(self.count.saturating_sub(1), &payload)
    }

    /// Builds a batch without records that holds the offsets from the base up to `next`, as compaction leaves it (FX2).
    ///
    /// # Errors
    /// [`BuildError::TooLarge`] where no batch holds so many offsets.
    pub fn build_empty(self, next: Offset) -> Result<BytesMut, BuildError> {
        debug_assert!(self.count == 0 && next > self.base_offset, "offsets, but no records");
        let last_delta = i32::try_from(next.since(self.base_offset.next()));
        let last_delta = last_delta.map_err(|_| BuildError::TooLarge { what: "the batch's range" })?;
        self.assemble(last_delta, &[])
    }

    fn assemble(&self, last_delta: i32, payload: &[u8]) -> Result<BytesMut, BuildError> {
        let counted = HEADER_BYTES.saturating_sub(LENGTH_EXCLUDES).saturating_add(payload.len());
        let batch_length = i32::try_from(counted).map_err(|_| BuildError::TooLarge { what: "the batch" })?;

        let mut batch = BytesMut::with_capacity(LENGTH_EXCLUDES.saturating_add(counted));
        batch.put_i64(self.base_offset.get());
        batch.put_i32(batch_length);
        batch.put_i32(self.leader_epoch);
        batch.put_i8(MAGIC);
        batch.put_u32(0);
        debug_assert_eq!(batch.len(), CRC_COVERS_FROM, "the CRC covers what follows it");
        batch.put_i16(Attributes::of(self.compression, self.transactional, self.control).raw());
        batch.put_i32(last_delta);
        batch.put_i64(self.base_timestamp);
        batch.put_i64(self.max_timestamp.as_millis());
        batch.put_i64(self.producer.id);
        batch.put_i16(self.producer.epoch);
        batch.put_i32(self.producer.base_sequence);
        batch.put_i32(self.count);
        batch.put_slice(payload);

        write_crc(&mut batch);
        Ok(batch)
    }

    /// Builds a batch with a control record instead, as a transaction coordinator writes it.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build_control(
        mut self,
        record: ControlRecord,
        timestamp: WallTime,
    ) -> Result<BytesMut, BuildError> {
        let (key, value): (Bytes, Bytes) = record.encode();
        self.control = true;
        self.append(timestamp, Some(&key), Some(&value), &[])?;
        self.build()
    }
}

fn length(bytes: usize, what: &'static str) -> Result<i64, BuildError> {
    i32::try_from(bytes).map(i64::from).map_err(|_| BuildError::TooLarge { what })
}

fn optional_size(bytes: Option<&[u8]>) -> usize {
    match bytes {
        None => varint::size(-1),
        Some(bytes) => {
            varint::size(i64::try_from(bytes.len()).unwrap_or(i64::MAX)).saturating_add(bytes.len())
        }
    }
}

fn header_size(header: &Header) -> usize {
    optional_size(Some(header.key.as_bytes())).saturating_add(optional_size(header.value.as_deref()))
}

fn put_optional(out: &mut BytesMut, bytes: Option<&[u8]>) -> Result<(), BuildError> {
    match bytes {
        None => varint::put(out, -1),
        Some(bytes) => {
            varint::put(out, length(bytes.len(), "a key or value")?);
            out.put_slice(bytes);
        }
    }
    Ok(())
}
