//! What the log's operations answer when they cannot do what was asked: one enum per kind of operation.
//!
//! After an error of the disk during an append, a flush, or a truncation the log is *unusable* for good: only opening it
//! again (which recovers it) helps (KAFKA-10778, design.md 2). Reading goes on.

use std::sync::Arc;

use highwater_records::BatchError;
use highwater_types::{ErrorCode, LeaderEpoch, Offset, TopicId};

use crate::{OffsetRange, StorageError};

/// Why a log takes no more changes. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// An append failed; what it left behind was cut, or is cut when the log is opened again.
    #[error("the log takes no more changes, because an append failed: {0}")]
    AppendFailed(Arc<str>),
    /// A flush failed: what was unflushed may be gone although later flushes succeed. It was cut.
    #[error("the log takes no more changes, because a flush failed: {0}")]
    FlushFailed(Arc<str>),
    /// A truncation, or the removal of segments, failed half-way.
    #[error("the log takes no more changes, because a change of its segments failed: {0}")]
    ChangeFailed(Arc<str>),
    /// The log was closed or given up.
    #[error("the log is closed")]
    Closed,
}

/// Why something other than an append or a read was not done.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The log takes no more changes.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// What was asked for contradicts what the log holds: a bug of the caller, or a stale decision.
    #[error("{0}")]
    Refused(String),
}

/// Why records were not appended. Unless it is [`AppendError::Storage`], nothing was written and the log goes on.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk failed; the log takes no more changes.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An earlier failure, or the log is closed.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// A batch fails its checks.
    #[error("batch {index} (at byte {position}) is not acceptable: {source}")]
    Batch {
        /// Which batch of those given, from 0.
        index: usize,
        /// Where it begins in the bytes given.
        position: usize,
        /// What is wrong with it.
        source: BatchError,
    },
    /// A batch does not begin at or after the end of what is before it.
    #[error("a batch begins at offset {found}, but the log goes on at {expected}")]
    NotContiguous {
        /// Where the log ends before this batch.
        expected: Offset,
        /// Where the batch begins.
        found: Offset,
    },
    /// A batch carries a lower epoch than the log before it, or none.
    #[error("the batch at offset {offset} carries epoch {found:?}, but the log has reached epoch {latest:?}")]
    EpochFell {
        /// Where the batch begins.
        offset: Offset,
        /// The epoch before it.
        latest: Option<LeaderEpoch>,
        /// The batch's own.
        found: Option<LeaderEpoch>,
    },
    /// Acknowledged records at the end of this log are lost: a leader passes over them first
    /// ([`crate::Log::pass_over_lost_tail`]), or it would give their offsets to others.
    #[error("the offsets {0} were acknowledged and are lost here; they cannot be given out again")]
    LostTail(OffsetRange),
    /// Records that are whole have no room in the place of the damage: it takes up other bytes, or another segment has them.
    #[error("the records {0} do not fit in the place of the damage")]
    NoRoom(OffsetRange),
    /// The offsets of this log are used up.
    #[error("no offsets are left after {0}")]
    OffsetsUsedUp(Offset),
}

impl AppendError {
    /// As which code the error travels.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Storage(_) | Self::Unusable(_) => ErrorCode::StorageError,
            Self::Batch { source, .. } => source.code(),
            Self::NotContiguous { .. } | Self::EpochFell { .. } => ErrorCode::CorruptMessage,
            Self::LostTail(_) | Self::NoRoom(_) => ErrorCode::DataLoss,
            Self::OffsetsUsedUp(_) => ErrorCode::InvalidRequest,
        }
    }
}

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Below the log start, or beyond the log end.
    #[error("offset {asked} is outside the log, which holds {log}")]
    OutOfRange {
        /// What was asked for.
        asked: Offset,
        /// What the log holds.
        log: OffsetRange,
    },
    /// The offset lies in a range whose bytes are damaged or gone (design.md 2, *damage*).
    #[error("offset {asked} lies in {range}, which is damaged or gone on this node")]
    Damaged {
        /// What was asked for.
        asked: Offset,
        /// The lost range.
        range: OffsetRange,
    },
    /// What stands at this offset is not a batch, and no truncation was under way: damage that was not known yet.
    #[error(
        "from offset {asked} on the log holds no valid batch at byte {position} of segment {segment}: {reason}"
    )]
    Corrupt {
        /// What was asked for.
        asked: Offset,
        /// The segment's base offset.
        segment: Offset,
        /// Where in the segment the bad bytes begin.
        position: u64,
        /// What was found.
        reason: String,
    },
    /// Truncations kept overtaking the read; ask again.
    #[error("the log was truncated again and again while it was read; ask again")]
    Overtaken,
    /// The log is closed.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl ReadError {
    /// As which code the error travels.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            Self::Damaged { .. } | Self::Corrupt { .. } => ErrorCode::DataLoss,
            Self::Overtaken | Self::Unusable(_) => ErrorCode::ReplicaNotAvailable,
            Self::Storage(_) => ErrorCode::StorageError,
        }
    }
}

/// Why a log could not be opened, or a directory not be adopted.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The directory belongs to another topic of the same name.
    #[error("directory {directory} belongs to topic id {found}, not to {expected}")]
    OtherTopic {
        /// The partition's directory.
        directory: String,
        /// What was expected.
        expected: TopicId,
        /// What the directory says.
        found: TopicId,
    },
    /// A directory to adopt is damaged (design.md 2, *Adoption*).
    #[error(
        "{file} is damaged at byte {position} ({reason}), and valid batches follow: it cannot be adopted"
    )]
    Damaged {
        /// The segment file.
        file: String,
        /// Where the first bad batch begins.
        position: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory cannot be used as it is; the text says why.
    #[error("{0}")]
    Refused(String),
}
