//! One replica of one partition: the pure core and the log in one synchronous unit.
//!
//! The services and the simulation drive the same objects. What must hold:
//!
//! - Methods take `&self`, may be called from several threads, and wait for nothing but a disk. Those that touch one are
//!   marked *blocks*; the others never do.
//! - The core's lock is held for a decision, never across I/O. Lock order: what applies changes → the log's own locks → core.
//! - Time and randomness are arguments.
//! - What the core decides is executed here or returned as work; nothing is decided here.
//!
//! [`OpenReplica`] is a log with its lock before it has a part to play. It becomes a [`LeaderReplica`] or a
//! [`FollowerReplica`]. Deliberately absent: tasks, requests, the coordination store.

mod append_history;
mod follower;
mod leader;
mod open;
mod producers;
mod spans;

pub use follower::{
    AppendWork, AskOffsets, FollowerReplica, FollowerStep, FollowerWork, Following, LossReport, Refill,
    RepairError,
};
pub use leader::{LeaderReplica, Leading, Placed};
pub use open::{FreshIncarnation, OpenReplica, ReplicaError, ReplicaPlace};

use std::sync::Arc;

use highwater_log::{Log, LogPositions, Storage, Unusable};
use highwater_protocol::fetch::{LogFacts, PartitionFacts};
use highwater_types::{LeaderEpoch, LeaderEpochCache, MonotonicTime, Offset, WallTime};

/// What time it is, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// By the process's monotonic clock: for every rule.
    pub monotonic: MonotonicTime,
    /// By the wall clock: for segments' ages.
    pub wall: WallTime,
}

/// What a replica says about itself, all of one moment (S21, S22).
#[derive(Clone, Debug)]
pub struct ReplicaFacts {
    /// The newest leadership that it knows.
    pub leader_epoch: LeaderEpoch,
    /// Whether it is the leader of that epoch.
    pub is_leader: bool,
    /// Its high watermark (exclusive).
    pub high_watermark: Offset,
    /// Where its log starts and ends.
    pub positions: LogPositions,
    /// Where each leadership began.
    pub epochs: Arc<LeaderEpochCache>,
}

impl ReplicaFacts {
    /// The same facts, as the core's checks take them.
    #[must_use]
    pub fn as_partition(&self) -> PartitionFacts<'_> {
        PartitionFacts {
            leader_epoch: self.leader_epoch,
            is_leader: self.is_leader,
            high_watermark: self.high_watermark,
            log: self.as_log(),
        }
    }

    /// The part that concerns the log.
    #[must_use]
    pub fn as_log(&self) -> LogFacts<'_> {
        log_facts(&self.positions, &self.epochs)
    }
}

const fn log_facts<'a>(positions: &LogPositions, epochs: &'a LeaderEpochCache) -> LogFacts<'a> {
    LogFacts { log_start: positions.log_start, log_end: positions.log_end, epochs }
}

/// The end of what a log certainly holds. After a failed flush that is what was flushed, whether or not the rest could be cut:
/// the kernel may have dropped it (design.md 2).
fn certain_end<S: Storage>(log: &Log<S>) -> Offset {
    match log.usable() {
        Err(Unusable::FlushFailed(_)) => log.flushed(),
        Ok(()) | Err(Unusable::AppendFailed(_) | Unusable::ChangeFailed(_) | Unusable::Closed) => {
            log.log_end()
        }
    }
}

#[cfg(test)]
mod concurrency_test;
#[cfg(test)]
mod failed_flush_test;
#[cfg(test)]
mod loss_test;
#[cfg(test)]
mod producers_test;
#[cfg(test)]
mod random_walk_test;
#[cfg(test)]
mod repair_test;
#[cfg(test)]
mod test_cluster;
#[cfg(test)]
mod unclean_test;
#[cfg(test)]
mod walks_test;
