//! What opening a log found and did: every repair and every damage by name, so that nothing happens silently.

use std::fmt;

use highwater_types::{Incarnation, LeaderEpoch, Offset, PartitionEpoch};

use crate::{LogPositions, OffsetRange};

/// A high watermark as it is kept in the checkpoint: with the leadership under which it was learnt (design.md 6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HighWatermark {
    /// The exclusive end of what the in-sync set holds.
    pub offset: Offset,
    /// The leader epoch under which it was learnt; `None` before the first.
    pub epoch: Option<LeaderEpoch>,
}

/// Why an incarnation was renewed (design.md 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The directory did not exist: a new replica, or one whose directory is gone.
    NoDirectory,
    /// The checkpoint has no valid slot.
    NoCheckpoint,
    /// `page-cache`, and another boot without a flushed clean mark, or a flush that failed: the page cache is gone.
    PageCacheLost,
    /// Acknowledged records are damaged or gone.
    Damage,
}

/// Which index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// `.index`
    Offset,
    /// `.timeindex`
    Time,
}

/// Something that opening a log put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// A torn or unflushed tail was cut.
    TailCut {
        /// Where the log ends now.
        end: Offset,
        /// The segment's base offset.
        segment: Offset,
        /// Where in the segment it was cut, in bytes.
        position: u64,
        /// How many bytes were cut, those of later segments included.
        bytes: u64,
        /// What was wrong with the first thing cut.
        reason: String,
    },
    /// Bytes at the end of a closed segment that held no offset were cut.
    SegmentCut {
        /// The segment's base offset.
        segment: Offset,
        /// Where in the segment it was cut, in bytes.
        position: u64,
        /// How many bytes were cut.
        bytes: u64,
        /// What was wrong with them.
        reason: String,
    },
    /// An index was made again from the log.
    IndexRebuilt {
        /// The segment's base offset.
        segment: Offset,
        /// Which of its indexes.
        kind: IndexKind,
        /// What was wrong with the old one.
        reason: String,
    },
    /// The epoch cache was made again from the log, or corrected by it (KAFKA-15608).
    EpochCacheRebuilt {
        /// What was wrong with the old one.
        reason: String,
    },
    /// The high watermark was lowered.
    HighWatermarkLowered {
        /// What the checkpoint said.
        from: Offset,
        /// What holds now.
        to: Offset,
        /// Why.
        reason: &'static str,
    },
    /// The checkpoint could not be used.
    CheckpointUnusable {
        /// What was wrong with it.
        reason: String,
    },
    /// A segment that lies below the log start as a whole was removed: its removal had not become durable.
    SegmentBelowLogStartRemoved {
        /// The segment's base offset.
        segment: Offset,
    },
    /// An index without its segment was removed.
    OrphanIndexRemoved {
        /// The file's name.
        file: String,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TailCut { end, segment, position, bytes, reason } => write!(
                f,
                "cut {bytes} bytes at byte {position} of segment {segment}; the log ends at offset {end} now ({reason})"
            ),
            Self::SegmentCut { segment, position, bytes, reason } => {
                write!(
                    f,
                    "cut {bytes} bytes that hold no offset at byte {position} of segment {segment} ({reason})"
                )
            }
            Self::IndexRebuilt { segment, kind, reason } => {
                write!(f, "rebuilt the {kind:?} index of segment {segment} ({reason})")
            }
            Self::EpochCacheRebuilt { reason } => write!(f, "rebuilt the leader epoch cache ({reason})"),
            Self::HighWatermarkLowered { from, to, reason } => {
                write!(f, "lowered the high watermark from {from} to {to} ({reason})")
            }
            Self::CheckpointUnusable { reason } => write!(f, "could not use the checkpoint ({reason})"),
            Self::SegmentBelowLogStartRemoved { segment } => {
                write!(f, "removed segment {segment}, which lies below the log start")
            }
            Self::OrphanIndexRemoved { file } => write!(f, "removed {file}, an index without a segment"),
        }
    }
}

/// Acknowledged records that are damaged or gone (design.md 2): reads of the range answer so, the rest is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offsets that cannot be read.
    pub range: OffsetRange,
    /// Whether nothing valid follows: the log ends at the range's start, and whoever appends next would use the lost
    /// offsets again. A follower lets replication fill them; a leader that stands alone passes over them first
    /// ([`crate::Log::pass_over_lost_tail`]).
    pub at_end: bool,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offsets {} are damaged or gone ({})", self.range, self.reason)
    }
}

/// What opening a log found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReport {
    /// Where the log starts and ends. Everything in it is flushed.
    pub positions: LogPositions,
    /// The high watermark to begin with; at most the log end.
    pub high_watermark: HighWatermark,
    /// The replica's incarnation from now on.
    pub incarnation: Incarnation,
    /// Why the incarnation is a new one; `None` when it is the old one.
    pub renewal: Option<Renewal>,
    /// The highest leader epoch that this directory has seen.
    pub highest_leader_epoch: Option<LeaderEpoch>,
    /// The highest partition epoch that this directory has seen.
    pub highest_partition_epoch: Option<PartitionEpoch>,
    /// Whether the log had been closed cleanly.
    pub clean: bool,
    /// What was put right.
    pub repairs: Vec<Repair>,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// Names in the directory that are none of the log's; left alone.
    pub foreign: Vec<String>,
}
