//! One partition's log.
//!
//! What must hold:
//! - `log_start ≤ log_end` and `flushed ≤ log_end`; they, the segments, and the epoch cache change together, in one view.
//! - One writer at a time (`writer`); readers take a view and never wait for it.
//! - A batch is in the log as a whole or not at all. A bad batch is never written.
//! - A truncation publishes the lower end and a higher generation before it touches a byte: what was read or flushed under
//!   an older generation counts for nothing (design.md 2).
//! - After a failed append, flush, or truncation nothing is changed any more until the log is opened again (KAFKA-10778).
//! - Lock order: `writer`, `flushing`, `unflushed`, `persisted`, `publishing`; only the first three are held across writes of
//!   records, and no reader takes any of them.
//!
//! Deliberately absent: the high watermark (callers pass it in: it belongs to the replica), clocks, randomness, threads.

#![allow(
    clippy::missing_panics_doc,
    reason = "the panics are assertions of the log's own invariants, which no caller can break"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use highwater_types::{LeaderEpochCache, Offset, TopicId, TopicIdPartition, TopicPartition, WallTime};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::checkpoint::CheckpointState;
use crate::segments::View;
use crate::{BufferPool, Damage, LockGuard, LogConfig, Storage, StorageError, Unusable};

mod append;
mod damage;
mod epochs;
mod flush;
mod index_cache;
mod open;
mod opening;
mod outcome;
mod persisted;
mod producers;
mod read;
mod recover;
mod retention;
mod rot;
mod snapshot;
mod timestamps;
mod truncate;
mod write;

use flush::Unflushed;
use index_cache::IndexCache;
use persisted::Persisted;

pub use outcome::{
    CutOrder, FollowerAppend, LeaderAppend, LogPositions, LogRead, OnDamage, OpenOptions, ReadLimits,
    Retained, TimestampHit, Truncated,
};
pub use snapshot::LogSnapshot;

/// One partition's log on a storage. All methods take `&self`; changes queue up behind each other, reads behind nothing.
#[derive(Debug)]
pub struct Log<S: Storage> {
    storage: S,
    dir: Arc<Path>,
    partition: TopicPartition,
    topic_id: TopicId,
    boot_id: Uuid,
    config: ArcSwap<LogConfig>,
    view: ArcSwap<View<S>>,
    publishing: Mutex<()>,
    writer: Mutex<Writer>,
    flushing: Mutex<()>,
    unflushed: Mutex<Unflushed<S>>,
    persisted: Mutex<Persisted<S>>,
    /// What is persisted, for those who only want to know.
    remembered: ArcSwap<CheckpointState>,
    failed: OnceLock<Unusable>,
    closed: AtomicBool,
    index_cache: IndexCache<S>,
    read_buffers: BufferPool,
    /// Held as long as the log is open.
    lock: Mutex<Option<Arc<LockGuard>>>,
}

/// What only the writer needs to know.
#[derive(Debug)]
struct Writer {
    /// When the first batch of the active segment was appended; by the local clock, since timestamps are anybody's.
    active_since: WallTime,
}

impl<S: Storage> Log<S> {
    /// The partition, by name.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The partition, by the topic's identity.
    pub fn id(&self) -> TopicIdPartition {
        TopicIdPartition::new(self.topic_id, self.partition.partition)
    }

    /// The partition's directory.
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// The positions, all of one moment.
    pub fn positions(&self) -> LogPositions {
        self.view.load().positions()
    }

    /// The first offset that is kept.
    pub fn log_start(&self) -> Offset {
        self.view.load().log_start
    }

    /// The offset that the next record gets.
    pub fn log_end(&self) -> Offset {
        self.view.load().log_end
    }

    /// Everything below is flushed.
    pub fn flushed(&self) -> Offset {
        self.view.load().flushed
    }

    /// The settings.
    pub fn config(&self) -> Arc<LogConfig> {
        self.config.load_full()
    }

    /// Changes the settings from the next append on. The durability stays: it is fixed at creation.
    pub fn set_config(&self, config: LogConfig) {
        let durability = self.config.load().durability;
        self.config.store(Arc::new(LogConfig { durability, ..config }));
    }

    /// The leaderships that the log holds (S36, S37).
    pub fn epochs(&self) -> Arc<LeaderEpochCache> {
        Arc::clone(&self.view.load().epochs)
    }

    /// What is damaged, as of now.
    pub fn damage(&self) -> Vec<Damage> {
        self.view.load().damage.iter().map(|d| d.damage.clone()).collect()
    }

    /// Whether the log takes changes.
    ///
    /// # Errors
    /// Why it does not any more.
    pub fn usable(&self) -> Result<(), Unusable> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Unusable::Closed);
        }
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    /// Closes the log as it is: nothing is flushed, nothing is marked clean. For a log that failed and is to be opened again;
    /// everybody who still has this one gets errors from now on. Returns the partition's lock, so that it can be opened again
    /// without anybody coming between, and again should that fail; `None` when the log was closed before.
    pub fn abandon(&self) -> Option<Arc<LockGuard>> {
        // Whoever changes or flushes files finishes first, so that a log that is opened next is alone with them.
        let _writer = self.writer.lock();
        let _flushing = self.flushing.lock();
        let _persisted = self.persisted.lock();
        self.closed.store(true, Ordering::SeqCst);
        assert_eq!(self.usable(), Err(Unusable::Closed), "a closed log stays closed");
        self.lock.lock().take()
    }

    /// Replaces the view. `change` gets the present one.
    fn publish(&self, change: impl FnOnce(&View<S>) -> View<S>) -> Arc<View<S>> {
        let _publishing = self.publishing.lock();
        let new = Arc::new(change(&self.view.load()));
        new.check();
        self.view.store(Arc::clone(&new));
        new
    }

    /// No more changes; the first failure is the one that is told.
    fn fail(&self, failed: impl FnOnce(Arc<str>) -> Unusable, error: &StorageError) {
        let failed = failed(error.to_string().into());
        tracing::error!(partition = %self.partition, reason = %failed, "log failed");
        // A second failure changes nothing.
        drop(self.failed.set(failed));
        assert!(self.usable().is_err(), "a failed log is not usable");
    }
}

#[cfg(test)]
mod append_test;
#[cfg(test)]
mod crash_test;
#[cfg(test)]
mod damage_test;
#[cfg(test)]
pub(crate) mod fixture_test;
#[cfg(test)]
mod flush_test;
#[cfg(test)]
mod producers_test;
#[cfg(test)]
mod read_test;
#[cfg(test)]
mod recover_test;
#[cfg(test)]
mod retention_test;
#[cfg(test)]
mod rot_test;
#[cfg(test)]
mod truncate_test;
