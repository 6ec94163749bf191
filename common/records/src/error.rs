//! Why bytes are not an acceptable batch. Each error names one fault, and says as which code it travels.

use highwater_types::ErrorCode;

use crate::Compression;

/// Why bytes are not a batch, or not one that is accepted here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does: the torn tail of a file, or the end of an answer that a byte cap cut off.
    #[error("partial batch: {have} of {need} bytes")]
    Partial {
        /// How many bytes the batch needs, as far as can be told: at least this many.
        need: usize,
        /// How many there are.
        have: usize,
    },
    /// The length field cannot be one of a batch of magic 2.
    #[error("batch length {length} is impossible")]
    BadLength {
        /// The field as it was read.
        length: i32,
    },
    /// Message format 0 or 1, or no batch at all.
    #[error("magic {magic} is not supported, only 2 is")]
    UnsupportedMagic {
        /// The field as it was read.
        magic: i8,
    },
    /// The CRC32C does not match (FX6).
    #[error("CRC is {computed:#010x}, but the batch says {stored:#010x}")]
    BadChecksum {
        /// What the header says.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// Base offset or last offset delta is negative, or their sum is no offset.
    #[error("base offset {base_offset} with last offset delta {last_offset_delta} is no range of offsets")]
    BadOffsets {
        /// The field as it was read.
        base_offset: i64,
        /// The field as it was read.
        last_offset_delta: i32,
    },
    /// The record count does not fit the offsets, or the records.
    #[error("{count} records do not fit a last offset delta of {last_offset_delta}")]
    BadRecordCount {
        /// The header's count.
        count: i32,
        /// The header's last offset delta.
        last_offset_delta: i32,
    },
    /// A batch without records (FX2): only compaction makes them.
    #[error("a batch without records cannot be produced")]
    Empty,
    /// A control batch (FX3): only coordinators write them.
    #[error("a control batch cannot be produced")]
    Control,
    /// A batch of a transaction; there is no transaction coordinator here.
    #[error("a transactional batch cannot be produced: transactions are not supported")]
    Transactional,
    /// An attribute that only a log sets (delete horizon, log append time), or a bit without meaning.
    #[error("attributes {attributes:#06x} cannot be produced")]
    BadAttributes {
        /// The field as it was read.
        attributes: i16,
    },
    /// A timestamp is negative (and not -1), or the header's maximum is not the records' maximum.
    #[error("timestamp {timestamp} is not valid: {reason}")]
    BadTimestamp {
        /// The timestamp, in milliseconds since 1970.
        timestamp: i64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Producer id, producer epoch and base sequence do not belong together.
    #[error("producer id {id}, producer epoch {epoch} and base sequence {sequence} do not belong together")]
    BadProducer {
        /// The field as it was read.
        id: i64,
        /// The field as it was read.
        epoch: i16,
        /// The field as it was read.
        sequence: i32,
    },
    /// A compression codec that does not exist.
    #[error("compression codec {codec} is not known")]
    UnknownCompression {
        /// The codec's number.
        codec: u8,
    },
    /// The compressed records cannot be decompressed.
    #[error("{compression} data cannot be decompressed: {reason}")]
    Decompression {
        /// The batch's codec.
        compression: Compression,
        /// What the codec said.
        reason: String,
    },
    /// Decompressed, the records would be larger than is allowed.
    #[error("the records are larger than {limit} bytes when decompressed")]
    DecompressedTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// A record is malformed.
    #[error("record {index} of the batch is malformed: {reason}")]
    BadRecord {
        /// Which record of the batch, from 0.
        index: i32,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Bytes follow the last record.
    #[error("bytes follow the last of {count} records")]
    TrailingBytes {
        /// The header's count.
        count: i32,
    },
}

impl BatchError {
    /// As which code the error travels: a batch that is broken is `CorruptMessage`; one that is whole, but not for
    /// producers, is `InvalidRecord`.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Partial { .. }
            | Self::BadLength { .. }
            | Self::BadChecksum { .. }
            | Self::BadOffsets { .. }
            | Self::BadRecordCount { .. }
            | Self::Decompression { .. }
            | Self::BadRecord { .. }
            | Self::TrailingBytes { .. } => ErrorCode::CorruptMessage,
            Self::Empty
            | Self::Control
            | Self::Transactional
            | Self::BadAttributes { .. }
            | Self::BadTimestamp { .. }
            | Self::BadProducer { .. } => ErrorCode::InvalidRecord,
            Self::UnsupportedMagic { .. } | Self::UnknownCompression { .. } => ErrorCode::Unsupported,
            Self::DecompressedTooLarge { .. } => ErrorCode::MessageTooLarge,
        }
    }
}
