//! What goes into the log's operations and what comes out of them.

use bytes::Bytes;
use highwater_types::{Incarnation, LeaderEpoch, Offset, TopicId, WallTime};
use uuid::Uuid;

use crate::{BufferPool, LogConfig, OffsetRange};

/// How to open a log.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The topic's identity; a directory of another topic is refused.
    pub topic_id: TopicId,
    /// The topic's properties, as far as the log needs them.
    pub config: LogConfig,
    /// This boot of the host: page caches live as long as it lasts.
    pub boot_id: Uuid,
    /// A fresh random incarnation, used when the old one is gone or must not be used any more (design.md 6.3).
    pub new_incarnation: Incarnation,
    /// What damage means for the incarnation.
    pub on_damage: OnDamage,
    /// Where reads get their buffers from; shared by the logs of a program.
    pub read_buffers: BufferPool,
    /// The time now: stands in for what the disk does not tell (when the active segment was begun).
    pub now: WallTime,
}

/// What happens to the incarnation when acknowledged records turn out to be damaged (design.md 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// It is renewed: the replica must not stand for what it lost.
    RenewIncarnation,
    /// It is kept: this replica alone is the in-sync set, nobody else has the records either. If it does not lead by an
    /// election that holds to that, it is renewed at an opening where it is not alone: the record was an old one.
    KeepIncarnation,
}

/// One consistent view of a log's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPositions {
    /// The first offset that is kept.
    pub log_start: Offset,
    /// The offset that the next record gets (LEO).
    pub log_end: Offset,
    /// Everything below is flushed; at most the log end.
    pub flushed: Offset,
    /// Raised by every truncation: what was learnt under another generation says nothing about this one.
    pub generation: u64,
    /// The log's size in bytes, indexes not counted.
    pub size: u64,
}

/// What an append by the leader did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderAppend {
    /// The offsets given to each input, in order.
    pub inputs: Vec<OffsetRange>,
    /// The offset of the first record.
    pub first: Offset,
    /// The log end now.
    pub next: Offset,
    /// Whether segments were closed on the way: a good moment to flush and to apply retention.
    pub rolled: bool,
}

/// What an append by a follower did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerAppend {
    /// Where the appended batches begin; the old log end when nothing was appended.
    pub first: Offset,
    /// The log end now.
    pub next: Offset,
    /// How many bytes were appended.
    pub bytes: usize,
    /// The newer epoch at which the rest of the answer was left out (KAFKA-18723); `None` when all was appended.
    pub left_out: Option<LeaderEpoch>,
    /// Whether segments were closed on the way.
    pub rolled: bool,
}

/// What may be read at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// At most this many bytes.
    pub max_bytes: usize,
    /// Whether the first batch is returned even when it is larger (S32).
    pub min_one_batch: bool,
    /// Only batches that end at or before this offset: the high watermark for consumers, the log end for followers.
    pub upper: Offset,
    /// Whether the CRC of each batch is checked in the active segment, too: for all but in-sync followers, who read what was
    /// written a moment ago. In closed segments it always is.
    pub checked: bool,
}

/// Whole batches, as they stand in the log; the first contains the offset that was asked for.
#[derive(Clone, Debug)]
pub struct LogRead {
    /// The batches; empty when there is nothing below the upper bound, or the byte limit allows none.
    pub records: Bytes,
    /// Where the first batch begins; the offset asked for when there is none.
    pub first: Offset,
    /// The offset after the last batch; the offset asked for when there is none.
    pub next: Offset,
    /// How many batches were returned.
    pub batches: usize,
    /// The positions as they were before the read (S21, S22).
    pub positions: LogPositions,
}

/// On whose behalf a log is cut (design.md 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOrder {
    /// The current leader ordered it.
    Leader,
    /// It did not. The incarnation becomes this one, durably and first, when the cut reaches below the flushed end.
    Local {
        /// A fresh random incarnation.
        new_incarnation: Incarnation,
    },
}

/// What a truncation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The positions now. The log end can be below the target: a batch is cut as a whole.
    pub positions: LogPositions,
    /// The offsets that were cut.
    pub cut: OffsetRange,
    /// The file that keeps the bytes that may have been committed (design.md 6.5).
    pub side_file: Option<String>,
    /// Whether the incarnation was renewed.
    pub renewed: bool,
}

/// What retention removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// How many segments were removed.
    pub removed: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// The positions now.
    pub positions: LogPositions,
}

/// A record found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampHit {
    /// The record's offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: WallTime,
    /// The leadership that wrote it.
    pub epoch: Option<LeaderEpoch>,
}
