//! The 61 bytes of header that every batch of magic 2 starts with.
//!
//! What holds: a [`BatchHeader`] exists only for a possible batch: magic 2, a length that covers the header, offsets that
//! are offsets. Nothing about the CRC or the records follows from that.

use highwater_types::{LeaderEpoch, Offset, WallTime};

use crate::{BatchError, Compression};

/// How many bytes the header of a batch has; also the size of the smallest batch.
pub const HEADER_BYTES: usize = 61;

/// Base offset and length: the bytes that the length field does not count.
pub(crate) const LENGTH_EXCLUDES: usize = 12;
/// Where the leader epoch begins.
pub(crate) const LEADER_EPOCH_AT: usize = 12;
/// Where the bytes that the CRC covers begin: at the attributes.
pub(crate) const CRC_COVERS_FROM: usize = 21;
/// Where the producer's id begins; its epoch and the base sequence follow.
pub(crate) const PRODUCER_AT: usize = 43;
/// How many bytes tell length and magic.
const PREFIX_BYTES: usize = 17;
/// The smallest length field of any message format: magic 0 with neither key nor value.
const LENGTH_MIN_ANY_MAGIC: i32 = 14;
/// The smallest length field of magic 2: the rest of the header.
const LENGTH_MIN: i32 = 49;
/// The only magic that is supported.
pub(crate) const MAGIC: i8 = 2;

/// "No timestamp", in milliseconds since 1970.
pub const NO_TIMESTAMP: WallTime = WallTime::from_millis(-1);

/// Whose clock a batch's timestamps are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's, record by record.
    CreateTime,
    /// The leader's at the append: every record has the batch's maximum timestamp.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attributes(i16);

impl Attributes {
    const COMPRESSION: i16 = 0x07;
    const LOG_APPEND_TIME: i16 = 0x08;
    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;
    const DELETE_HORIZON: i16 = 0x40;
    const KNOWN: i16 = 0x7f;

    /// Takes the field as it stands in the header.
    #[must_use]
    pub const fn from_raw(raw: i16) -> Self {
        Self(raw)
    }

    /// The attributes of a batch that a producer builds.
    #[must_use]
    pub(crate) const fn of(compression: Compression, transactional: bool, control: bool) -> Self {
        let mut raw = compression.id() as i16;
        if transactional {
            raw |= Self::TRANSACTIONAL;
        }
        if control {
            raw |= Self::CONTROL;
        }
        Self(raw)
    }

    /// The field as it stands in the header.
    #[must_use]
    pub const fn raw(self) -> i16 {
        self.0
    }

    /// How the records are compressed.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] for a codec that does not exist.
    pub const fn compression(self) -> Result<Compression, BatchError> {
        let [_, low] = (self.0 & Self::COMPRESSION).to_be_bytes();
        match Compression::from_id(low) {
            Some(compression) => Ok(compression),
            None => Err(BatchError::UnknownCompression { codec: low }),
        }
    }

    /// Whose clock the timestamps are from.
    #[must_use]
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Whether the batch is part of a transaction.
    #[must_use]
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the batch holds control records, which consumers do not see.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is a delete horizon, which compaction sets.
    #[must_use]
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// Whether a bit is set that has no meaning.
    #[must_use]
    pub const fn has_unknown_bits(self) -> bool {
        self.0 & !Self::KNOWN != 0
    }
}

/// The header of a batch, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    base_offset: Offset,
    next_offset: Offset,
    size: usize,
    leader_epoch: i32,
    crc: u32,
    attributes: Attributes,
    last_offset_delta: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`; the records need not be there.
    ///
    /// # Errors
    /// [`BatchError::Partial`] when the header is not complete, [`BatchError::BadLength`],
    /// [`BatchError::UnsupportedMagic`] (which is told even from a part of the header), [`BatchError::BadOffsets`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let partial = BatchError::Partial { need: HEADER_BYTES, have: bytes.len() };
        let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else { return Err(partial) };
        let length = check_prefix(prefix)?;
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(partial) };
        // The fields fill the header exactly, so the cursor cannot run out.
        Self::read_fields(&mut Cursor(header), length).ok_or(partial)?
    }

    fn read_fields(cursor: &mut Cursor<'_>, length: usize) -> Option<Result<Self, BatchError>> {
        let base_offset = cursor.i64()?;
        let _length = cursor.i32()?;
        let leader_epoch = cursor.i32()?;
        let _magic = cursor.take::<1>()?;
        let crc = u32::from_be_bytes(cursor.take()?);
        let attributes = Attributes(cursor.i16()?);
        let last_offset_delta = cursor.i32()?;
        let Some((base_offset, next_offset)) = offset_range(base_offset, last_offset_delta) else {
            return Some(Err(BatchError::BadOffsets { base_offset, last_offset_delta }));
        };
        Some(Ok(Self {
            base_offset,
            next_offset,
            size: LENGTH_EXCLUDES.saturating_add(length),
            leader_epoch,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp: cursor.i64()?,
            max_timestamp: cursor.i64()?,
            producer_id: cursor.i64()?,
            producer_epoch: cursor.i16()?,
            base_sequence: cursor.i32()?,
            record_count: cursor.i32()?,
        }))
    }

    /// The offset that the batch begins at. After compaction there need not be a record at it.
    #[must_use]
    pub const fn base_offset(&self) -> Offset {
        self.base_offset
    }

    /// The last offset that the batch covers. After compaction there need not be a record at it.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        self.base_offset.advance(i64::from(self.last_offset_delta))
    }

    /// The offset after the batch: where the log goes on, also when the batch is empty (FX2).
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Last offset less base offset; not negative.
    #[must_use]
    pub const fn last_offset_delta(&self) -> i32 {
        self.last_offset_delta
    }

    /// How many bytes the whole batch has, header included; at least [`HEADER_BYTES`].
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The leadership that appended the batch; `None` when no leader has stamped it yet.
    #[must_use]
    pub const fn leader_epoch(&self) -> Option<LeaderEpoch> {
        LeaderEpoch::new(self.leader_epoch)
    }

    /// The CRC32C that the header states.
    #[must_use]
    pub const fn crc(&self) -> u32 {
        self.crc
    }

    /// The attribute bits.
    #[must_use]
    pub const fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// How the records are compressed.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] for a codec that does not exist.
    pub const fn compression(&self) -> Result<Compression, BatchError> {
        self.attributes.compression()
    }

    /// Whose clock the timestamps are from.
    #[must_use]
    pub const fn timestamp_type(&self) -> TimestampType {
        self.attributes.timestamp_type()
    }

    /// Whether the batch is part of a transaction.
    #[must_use]
    pub const fn is_transactional(&self) -> bool {
        self.attributes.is_transactional()
    }

    /// Whether the batch holds control records.
    #[must_use]
    pub const fn is_control(&self) -> bool {
        self.attributes.is_control()
    }

    /// The time from which compaction may drop the batch's tombstones, where one is set.
    #[must_use]
    pub const fn delete_horizon(&self) -> Option<WallTime> {
        if self.attributes.has_delete_horizon() {
            Some(WallTime::from_millis(self.base_timestamp))
        } else {
            None
        }
    }

    /// What the records' timestamps are relative to: the first record's timestamp, or the delete horizon.
    #[must_use]
    pub const fn base_timestamp(&self) -> WallTime {
        WallTime::from_millis(self.base_timestamp)
    }

    /// The largest timestamp of the records; -1 when none has any. A producer may have written anything here.
    #[must_use]
    pub const fn max_timestamp(&self) -> WallTime {
        WallTime::from_millis(self.max_timestamp)
    }

    /// The idempotent producer's id; -1 without one.
    #[must_use]
    pub const fn producer_id(&self) -> i64 {
        self.producer_id
    }

    /// The idempotent producer's epoch; -1 without one.
    #[must_use]
    pub const fn producer_epoch(&self) -> i16 {
        self.producer_epoch
    }

    /// The sequence number of the record at the base offset; -1 without an idempotent producer.
    #[must_use]
    pub const fn base_sequence(&self) -> i32 {
        self.base_sequence
    }

    /// The sequence number of the record at the last offset; -1 without an idempotent producer.
    #[must_use]
    pub const fn last_sequence(&self) -> i32 {
        increment_sequence(self.base_sequence, self.last_offset_delta)
    }

    /// How many records the header says that the batch holds. Untrusted: may be negative, and wrong.
    #[must_use]
    pub const fn record_count(&self) -> i32 {
        self.record_count
    }
}

/// The sequence number `delta` (not negative) after `sequence`: after `i32::MAX` comes 0. Without one there is none.
pub(crate) const fn increment_sequence(sequence: i32, delta: i32) -> i32 {
    if sequence < 0 {
        return -1;
    }
    match sequence.checked_add(delta) {
        Some(sum) => sum,
        None => delta - (i32::MAX - sequence) - 1,
    }
}

/// Checks length and magic, and returns the length. The magic is checked before the length's lower bound of magic 2, so
/// that an old message is named as one.
fn check_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, BatchError> {
    let [_, _, _, _, _, _, _, _, l0, l1, l2, l3, _, _, _, _, magic] = *prefix;
    let length = i32::from_be_bytes([l0, l1, l2, l3]);
    let magic = i8::from_be_bytes([magic]);
    if length < LENGTH_MIN_ANY_MAGIC {
        return Err(BatchError::BadLength { length });
    }
    if magic != MAGIC {
        return Err(BatchError::UnsupportedMagic { magic });
    }
    if length < LENGTH_MIN {
        return Err(BatchError::BadLength { length });
    }
    usize::try_from(length).map_err(|_| BatchError::BadLength { length })
}

/// Base and next offset, when both are offsets.
fn offset_range(base: i64, last_delta: i32) -> Option<(Offset, Offset)> {
    if last_delta < 0 {
        return None;
    }
    let next = base.checked_add(i64::from(last_delta))?.checked_add(1)?;
    Some((Offset::new(base)?, Offset::new(next)?))
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn i16(&mut self) -> Option<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_be_bytes)
    }
}
