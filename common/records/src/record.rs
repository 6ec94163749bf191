//! The records of a batch, one by one: decoded for people, or only their stamps.
//!
//! What holds: one parser reads compressed and plain batches, from a stream whose length is bounded; every length inside a
//! record is checked against the record's own, so nothing is allocated beyond what the stream holds. Records are returned
//! as they are met: who wants a few of a large batch pays for these.

use std::io::{BufRead, ErrorKind, Read};
use std::iter::FusedIterator;

use bytes::Bytes;
use highwater_types::{Offset, WallTime};

use crate::compression::{MAX_DECOMPRESSED_BYTES, Payload};
use crate::header::{TimestampType, increment_sequence};
use crate::{BatchError, BatchView, Compression, varint};

/// How much is allocated at once for a key or a value before its bytes have been seen.
const PREALLOCATE_MAX: u64 = 64 << 10;

/// One record, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its position in the log.
    pub offset: Offset,
    /// When it was created, or appended, by the batch's timestamp type; -1 without a timestamp.
    pub timestamp: WallTime,
    /// The idempotent producer's sequence number; -1 without one.
    pub sequence: i32,
    /// The key; `None` is not the same as empty.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone, and not the same as empty.
    pub value: Option<Bytes>,
    /// The headers, in the producer's order; a key may occur several times.
    pub headers: Vec<Header>,
}

/// A header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The key, may be empty. Text by Kafka's rules; when decoding, bytes that are not UTF-8 are replaced.
    pub key: String,
    /// The value; `None` is not the same as empty.
    pub value: Option<Bytes>,
}

/// Offset and timestamp of a record, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStamp {
    /// Its position in the log.
    pub offset: Offset,
    /// As [`Record::timestamp`].
    pub timestamp: WallTime,
}

/// The records of a batch, decoded as they are asked for. Does not check the CRC.
///
/// # Errors
/// [`BatchError::UnknownCompression`], or [`BatchError::Decompression`] when the codec cannot even start. The iterator
/// itself ends with an error when a record is malformed, the count is wrong, or the records are larger than
/// [`MAX_DECOMPRESSED_BYTES`].
pub fn records<'a>(batch: &BatchView<'a>) -> Result<Records<'a>, BatchError> {
    Ok(Records(Reader::open(batch)?))
}

/// All records of a batch. For batches of which only some records may be wanted, [`records`] costs less.
///
/// # Errors
/// As [`records`].
pub fn decode_records(batch: &BatchView<'_>) -> Result<Vec<Record>, BatchError> {
    records(batch)?.collect()
}

/// Offset and timestamp of each record of a batch; contents are skipped.
///
/// # Errors
/// As [`records`].
pub fn record_stamps<'a>(batch: &BatchView<'a>) -> Result<RecordStamps<'a>, BatchError> {
    Ok(RecordStamps(Reader::open(batch)?))
}

/// See [`records`].
#[derive(Debug)]
pub struct Records<'a>(Reader<'a>);

/// See [`record_stamps`].
#[derive(Debug)]
pub struct RecordStamps<'a>(Reader<'a>);

impl Iterator for Records<'_> {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(Reader::read_record)
    }
}

impl Iterator for RecordStamps<'_> {
    type Item = Result<RecordStamp, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0
            .next(Reader::skip_record)
            .map(|shape| shape.map(|shape| RecordStamp { offset: shape.offset, timestamp: shape.timestamp }))
    }
}

impl FusedIterator for Records<'_> {}
impl FusedIterator for RecordStamps<'_> {}

/// What a record says besides its content.
pub(crate) struct Shape {
    pub(crate) offset: Offset,
    pub(crate) offset_delta: i32,
    pub(crate) timestamp: WallTime,
    sequence: i32,
}

/// Reads records from the payload of one batch.
pub(crate) struct Reader<'a> {
    payload: Payload<'a>,
    compression: Compression,
    base_offset: Offset,
    last_offset_delta: i32,
    base_timestamp: i64,
    append_time: Option<WallTime>,
    base_sequence: i32,
    count: i32,
    /// How many records were read.
    index: i32,
    /// How many bytes of records may still be read.
    budget: u64,
    /// How many bytes of the current record are left.
    record_left: u64,
    ended: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn open(batch: &BatchView<'a>) -> Result<Self, BatchError> {
        let compression = batch.compression()?;
        // A batch that compaction emptied has no payload at all, not an empty compressed one.
        let effective = if batch.payload().is_empty() { Compression::None } else { compression };
        let payload = Payload::open(effective, batch.payload())
            .map_err(|e| BatchError::Decompression { compression, reason: e.to_string() })?;
        Ok(Self {
            payload,
            compression,
            base_offset: batch.base_offset(),
            last_offset_delta: batch.last_offset_delta(),
            base_timestamp: batch.base_timestamp().as_millis(),
            append_time: match batch.timestamp_type() {
                TimestampType::CreateTime => None,
                TimestampType::LogAppendTime => Some(batch.max_timestamp()),
            },
            base_sequence: batch.base_sequence(),
            count: batch.record_count(),
            index: 0,
            budget: MAX_DECOMPRESSED_BYTES,
            record_left: 0,
            ended: false,
        })
    }

    /// The next record by `read`, or the end, where the payload must end, too.
    pub(crate) fn next<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, BatchError>,
    ) -> Option<Result<T, BatchError>> {
        if self.ended {
            return None;
        }
        if self.index >= self.count {
            self.ended = true;
            return self.check_end().err().map(Err);
        }
        let item = read(self);
        match &item {
            Ok(_) => self.index = self.index.saturating_add(1),
            Err(_) => self.ended = true,
        }
        Some(item)
    }

    fn check_end(&mut self) -> Result<(), BatchError> {
        if self.count < 0 {
            return Err(BatchError::BadRecordCount {
                count: self.count,
                last_offset_delta: self.last_offset_delta,
            });
        }
        match self.payload.fill_buf() {
            Ok([]) => Ok(()),
            Ok(_) => Err(BatchError::TrailingBytes { count: self.count }),
            Err(e) => Err(self.io_error(&e)),
        }
    }

    /// Reads a record, checks its structure, and throws its content away.
    pub(crate) fn skip_record(&mut self) -> Result<Shape, BatchError> {
        let shape = self.read_shape()?;
        if let Some(length) = self.read_optional_length()? {
            self.skip(length)?;
        }
        if let Some(length) = self.read_optional_length()? {
            self.skip(length)?;
        }
        for _ in 0..self.read_header_count()? {
            let length = self.read_header_key_length()?;
            self.skip(length)?;
            if let Some(length) = self.read_optional_length()? {
                self.skip(length)?;
            }
        }
        self.finish_record()?;
        Ok(shape)
    }

    fn read_record(&mut self) -> Result<Record, BatchError> {
        let shape = self.read_shape()?;
        let key = self.read_optional_bytes()?;
        let value = self.read_optional_bytes()?;
        let mut headers = Vec::new();
        for _ in 0..self.read_header_count()? {
            let length = self.read_header_key_length()?;
            let key = String::from_utf8_lossy(&self.read_bytes(length)?).into_owned();
            headers.push(Header { key, value: self.read_optional_bytes()? });
        }
        self.finish_record()?;
        let Shape { offset, timestamp, sequence, .. } = shape;
        Ok(Record { offset, timestamp, sequence, key, value, headers })
    }

    fn read_shape(&mut self) -> Result<Shape, BatchError> {
        // Room for the length itself, which it does not count.
        self.record_left = u64::from(varint::MAX_BYTES);
        let length = self.read_varint()?;
        self.record_left = u64::try_from(length).map_err(|_| self.malformed("negative length"))?;
        let _attributes = self.read_byte()?;
        // Wraps as Java's does: a base of -1 and a timestamp of 2^63-1 are 2^63 apart.
        let timestamp = self.base_timestamp.wrapping_add(self.read_varint()?);
        let offset_delta =
            i32::try_from(self.read_varint()?).map_err(|_| self.malformed("offset delta out of range"))?;
        if !(0..=self.last_offset_delta).contains(&offset_delta) {
            return Err(self.malformed("offset delta is not one of the batch's"));
        }
        Ok(Shape {
            offset: self.base_offset.advance(i64::from(offset_delta)),
            offset_delta,
            timestamp: self.append_time.unwrap_or_else(|| WallTime::from_millis(timestamp)),
            sequence: increment_sequence(self.base_sequence, offset_delta),
        })
    }

    fn read_header_count(&mut self) -> Result<u64, BatchError> {
        let count = self.read_varint()?;
        // Each header takes two bytes at least, so a count that the record cannot hold ends with its bytes.
        u64::try_from(count).map_err(|_| self.malformed("negative number of headers"))
    }

    fn read_header_key_length(&mut self) -> Result<u64, BatchError> {
        self.read_optional_length()?.ok_or_else(|| self.malformed("a header without a key"))
    }

    fn finish_record(&self) -> Result<(), BatchError> {
        if self.record_left == 0 { Ok(()) } else { Err(self.malformed("longer than its content")) }
    }

    /// The length of a key or value; `None` for null, which is -1.
    fn read_optional_length(&mut self) -> Result<Option<u64>, BatchError> {
        match self.read_varint()? {
            -1 => Ok(None),
            length => u64::try_from(length).map(Some).map_err(|_| self.malformed("negative length")),
        }
    }

    fn read_optional_bytes(&mut self) -> Result<Option<Bytes>, BatchError> {
        match self.read_optional_length()? {
            None => Ok(None),
            Some(length) => Ok(Some(Bytes::from(self.read_bytes(length)?))),
        }
    }

    fn read_bytes(&mut self, length: u64) -> Result<Vec<u8>, BatchError> {
        self.spend(length)?;
        let mut bytes = Vec::with_capacity(usize::try_from(length.min(PREALLOCATE_MAX)).unwrap_or(0));
        let got = (&mut self.payload).take(length).read_to_end(&mut bytes);
        match got {
            Ok(got) if got as u64 == length => Ok(bytes),
            Ok(_) => Err(self.malformed("the batch ends within it")),
            Err(e) => Err(self.io_error(&e)),
        }
    }

    fn skip(&mut self, length: u64) -> Result<(), BatchError> {
        self.spend(length)?;
        let mut left = length;
        while left > 0 {
            let available = match self.payload.fill_buf() {
                Ok([]) => return Err(self.malformed("the batch ends within it")),
                Ok(buffer) => buffer.len(),
                Err(e) => return Err(self.io_error(&e)),
            };
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(available);
            self.payload.consume(step);
            left = left.saturating_sub(step as u64);
        }
        Ok(())
    }

    fn read_byte(&mut self) -> Result<u8, BatchError> {
        self.spend(1)?;
        let byte = match self.payload.fill_buf() {
            Ok([]) => return Err(self.malformed("the batch ends within it")),
            Ok([first, ..]) => *first,
            Err(e) => return Err(self.io_error(&e)),
        };
        self.payload.consume(1);
        Ok(byte)
    }

    fn read_varint(&mut self) -> Result<i64, BatchError> {
        let mut raw = 0_u64;
        for index in 0..varint::MAX_BYTES {
            let byte = self.read_byte()?;
            raw |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(varint::unzigzag(raw));
            }
        }
        Err(self.malformed("a number that is too long"))
    }

    /// Accounts for bytes that are about to be read: within the record, and within what a batch may hold.
    fn spend(&mut self, bytes: u64) -> Result<(), BatchError> {
        self.record_left = self
            .record_left
            .checked_sub(bytes)
            .ok_or_else(|| self.malformed("its content is longer than it"))?;
        self.budget = self
            .budget
            .checked_sub(bytes)
            .ok_or(BatchError::DecompressedTooLarge { limit: MAX_DECOMPRESSED_BYTES })?;
        Ok(())
    }

    const fn malformed(&self, reason: &'static str) -> BatchError {
        BatchError::BadRecord { index: self.index, reason }
    }

    fn io_error(&self, error: &std::io::Error) -> BatchError {
        let reason = if error.kind() == ErrorKind::UnexpectedEof {
            "the compressed data ends early".to_owned()
        } else {
            error.to_string()
        };
        BatchError::Decompression { compression: self.compression, reason }
    }
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("index", &self.index)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
