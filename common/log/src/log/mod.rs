//! One partition's log.
//!
//! What must hold:
//! - `log_start ≤ flushed ≤ log_end`; they, the segments, and the epoch cache change together, in one view.
//! - One writer at a time (`writer`); readers take a view and never wait for it.
//! - A batch is in the log as a whole or not at all. A bad batch is never written.
//! - A truncation raises the generation before it touches a byte: what was read or flushed under an older generation counts
//!   for nothing (design.md 2).
//! - After a failed append, flush, or truncation nothing is changed any more until the log is opened again (KAFKA-10778).
//!
//! Deliberately absent: the high watermark (callers pass it in: it belongs to the replica), clocks, randomness, threads.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use highwater_types::{
    Incarnation, LeaderEpoch, LeaderEpochCache, Offset, OffsetAndEpoch, PartitionEpoch, TopicIdPartition, TopicPartition,
    WallTime,
};

use crate::{
    AppendError, Damage, HighWatermark, LogConfig, LogError, OffsetRange, OpenError, OpenReport, ReadError, Storage,
    Unusable,
};

mod outcome;

pub use outcome::{
    CutOrder, FollowerAppend, LeaderAppend, LogPositions, LogRead, OnDamage, OpenOptions, ReadLimits, Retained,
    TimestampHit, Truncated,
};

/// One partition's log on a storage.
#[derive(Debug)]
pub struct Log<S: Storage> {
    storage: S,
}

#[allow(unused_variables, missing_docs, clippy::missing_errors_doc, reason = "signatures only, filled in next")]
impl<S: Storage> Log<S> {
    /// Opens (or creates) `<data_dir>/<topic>-<partition>`: recovers, flushes, and reports everything it found.
    pub fn open(
        storage: S,
        data_dir: &Path,
        partition: TopicPartition,
        options: OpenOptions,
    ) -> Result<(Self, OpenReport), OpenError> {
        unimplemented!()
    }
    pub fn partition(&self) -> &TopicPartition {
        unimplemented!()
    }
    pub fn id(&self) -> TopicIdPartition {
        unimplemented!()
    }
    pub fn directory(&self) -> &Path {
        unimplemented!()
    }
    pub fn positions(&self) -> LogPositions {
        unimplemented!()
    }
    pub fn log_start(&self) -> Offset {
        unimplemented!()
    }
    pub fn log_end(&self) -> Offset {
        unimplemented!()
    }
    pub fn flushed(&self) -> Offset {
        unimplemented!()
    }
    pub fn config(&self) -> Arc<LogConfig> {
        unimplemented!()
    }
    pub fn set_config(&self, config: LogConfig) {
        unimplemented!()
    }
    /// `Err` once the log takes no more changes.
    pub fn usable(&self) -> Result<(), Unusable> {
        unimplemented!()
    }
    /// Appends validated batches: each input holds one or more whole batches; offsets and the epoch are stamped on the way
    /// to the disk, the inputs are not changed.
    pub fn append_as_leader(
        &self,
        inputs: &[Bytes],
        epoch: LeaderEpoch,
        now: WallTime,
    ) -> Result<LeaderAppend, AppendError> {
        unimplemented!()
    }
    /// Appends the leader's bytes exactly as they came, after every batch was checked.
    pub fn append_as_follower(
        &self,
        records: &[u8],
        request_epoch: LeaderEpoch,
        now: WallTime,
    ) -> Result<FollowerAppend, AppendError> {
        unimplemented!()
    }
    pub fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        unimplemented!()
    }
    /// How many bytes the log holds from the batch with `from` up to `to`; an estimate that asks no disk.
    pub fn bytes_between(&self, from: Offset, to: Offset) -> u64 {
        unimplemented!()
    }
    /// Flushes what was appended before the call; `flushed` of the answer is what is flushed in its generation.
    pub fn flush(&self) -> Result<LogPositions, LogError> {
        unimplemented!()
    }
    /// Cuts everything at and after `target`. `high_watermark` is the replica's now: what is cut below it goes to a side file.
    pub fn truncate_to(
        &self,
        target: Offset,
        high_watermark: Offset,
        order: CutOrder,
    ) -> Result<Truncated, LogError> {
        unimplemented!()
    }
    /// Removes everything and starts an empty log at `start` (S44).
    pub fn truncate_fully_and_start_at(
        &self,
        start: Offset,
        high_watermark: Offset,
        order: CutOrder,
    ) -> Result<Truncated, LogError> {
        unimplemented!()
    }
    /// Raises the log start (never lowers it) and removes the segments below.
    pub fn raise_log_start(&self, to: Offset) -> Result<LogPositions, LogError> {
        unimplemented!()
    }
    /// Removes the oldest closed segments below `high_watermark` by age and size. Only leaders call it.
    pub fn apply_retention(&self, high_watermark: Offset, now: WallTime) -> Result<Retained, LogError> {
        unimplemented!()
    }
    /// The first record below `upper` whose timestamp is `timestamp` or later.
    pub fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        unimplemented!()
    }
    pub fn epochs(&self) -> Arc<LeaderEpochCache> {
        unimplemented!()
    }
    /// Where `epoch` ends (S37), from one view of cache and log end.
    pub fn end_offset_for(&self, epoch: LeaderEpoch) -> Option<OffsetAndEpoch> {
        unimplemented!()
    }
    /// A leadership begins at the log end (S36); durable before it returns. Returns its start offset.
    pub fn assign_epoch(&self, epoch: LeaderEpoch) -> Result<Offset, LogError> {
        unimplemented!()
    }
    /// Notes epochs that this replica is about to work under (design.md 6.5): a risen leader epoch is durable on return.
    pub fn note_epochs(&self, leader: LeaderEpoch, partition: PartitionEpoch) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn highest_epochs(&self) -> (Option<LeaderEpoch>, Option<PartitionEpoch>) {
        unimplemented!()
    }
    pub fn incarnation(&self) -> Incarnation {
        unimplemented!()
    }
    /// Replaces the incarnation, durably.
    pub fn renew_incarnation(&self, incarnation: Incarnation) -> Result<(), LogError> {
        unimplemented!()
    }
    /// Writes high watermark, log start and recovery point, unsynced; for the once-a-second pass. `false` = nothing moved.
    pub fn write_checkpoint_lazy(&self, high_watermark: HighWatermark) -> Result<bool, LogError> {
        unimplemented!()
    }
    /// The same, durable on return.
    pub fn write_checkpoint(&self, high_watermark: HighWatermark) -> Result<(), LogError> {
        unimplemented!()
    }
    /// What is damaged, as of now.
    pub fn damage(&self) -> Arc<[Damage]> {
        unimplemented!()
    }
    /// Puts batches read from the leader in the place of a damaged range (not one at the end of the log).
    pub fn repair(&self, range: OffsetRange, records: &[u8]) -> Result<(), AppendError> {
        unimplemented!()
    }
    /// For a leader that stands alone: raises the log end over a lost tail, so that its offsets are not used again. Returns
    /// the log end.
    pub fn pass_over_lost_tail(&self) -> Result<Offset, LogError> {
        unimplemented!()
    }
    /// Flushes everything, marks the log clean, and closes it.
    pub fn close_clean(&self, high_watermark: HighWatermark) -> Result<(), LogError> {
        unimplemented!()
    }
    /// Closes the log without flushing: for a failed log that is opened again. Readers get errors from now on.
    pub fn abandon(&self) {
        unimplemented!()
    }
}
