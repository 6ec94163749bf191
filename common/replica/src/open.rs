//! A log with its lock before it has a part to play: what an election or a fetch begins with (design.md 6.6: lock first).

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_log::{
    BufferPool, HighWatermark, LockGuard, Log, LogConfig, LogError, OnDamage, OpenError, OpenOptions,
    OpenReport, Storage,
};
use highwater_types::{
    Incarnation, Offset, ReplicationError, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use uuid::Uuid;

/// Makes fresh random incarnations; in a simulation from the seed.
pub type FreshIncarnation = Arc<dyn Fn() -> Incarnation + Send + Sync>;

/// Where a replica lies, and everything that opening it needs; kept, because a replica that failed is opened again.
#[derive(Clone)]
pub struct ReplicaPlace<S: Storage> {
    /// The disk.
    pub storage: S,
    /// The node's data directory.
    pub data_dir: PathBuf,
    /// The partition, by name.
    pub partition: TopicPartition,
    /// The topic's identity.
    pub topic_id: TopicId,
    /// The log's settings.
    pub config: LogConfig,
    /// This boot of the host.
    pub boot_id: Uuid,
    /// Where reads get their buffers from.
    pub read_buffers: BufferPool,
    /// Where new incarnations come from.
    pub fresh_incarnation: FreshIncarnation,
}

impl<S: Storage> fmt::Debug for ReplicaPlace<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaPlace")
            .field("data_dir", &self.data_dir)
            .field("partition", &self.partition)
            .finish_non_exhaustive()
    }
}

/// Why a replica could not take up its part.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// Its log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The rules forbid it.
    #[error(transparent)]
    Refused(#[from] ReplicationError),
}

/// A replica that is open and neither leads nor follows.
#[derive(Debug)]
pub struct OpenReplica<S: Storage> {
    pub(crate) place: ReplicaPlace<S>,
    pub(crate) log: Arc<Log<S>>,
    pub(crate) report: OpenReport,
}

impl<S: Storage> ReplicaPlace<S> {
    /// The partition's key, which is also that of its lock.
    #[must_use]
    pub const fn id(&self) -> TopicIdPartition {
        TopicIdPartition::new(self.topic_id, self.partition.partition)
    }

    /// Opens and recovers the log, creating it when it does not exist. *Blocks.* The lock is freed on an error.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open(
        self,
        lock: LockGuard,
        on_damage: OnDamage,
        now: WallTime,
    ) -> Result<OpenReplica<S>, OpenError> {
        let (log, report) = self.open_log(lock, on_damage, now)?;
        Ok(OpenReplica { place: self, log, report })
    }

    pub(crate) fn open_log(
        &self,
        lock: impl Into<Arc<LockGuard>>,
        on_damage: OnDamage,
        now: WallTime,
    ) -> Result<(Arc<Log<S>>, OpenReport), OpenError> {
        let options = OpenOptions {
            topic_id: self.topic_id,
            config: self.config.clone(),
            boot_id: self.boot_id,
            new_incarnation: (self.fresh_incarnation)(),
            on_damage,
            read_buffers: self.read_buffers.clone(),
            now,
        };
        let (log, report) =
            Log::open(self.storage.clone(), &self.data_dir, self.partition.clone(), lock, options)?;
        Ok((Arc::new(log), report))
    }
}

impl<S: Storage> OpenReplica<S> {
    /// The partition's key.
    #[must_use]
    pub const fn id(&self) -> TopicIdPartition {
        self.place.id()
    }

    /// The partition's name.
    #[must_use]
    pub const fn partition(&self) -> &TopicPartition {
        &self.place.partition
    }

    /// What opening it found.
    #[must_use]
    pub const fn report(&self) -> &OpenReport {
        &self.report
    }

    /// This replica's incarnation: with it, it stands for election (design.md 6.3).
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.log.incarnation()
    }

    /// The log end (exclusive).
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.log.log_end()
    }

    /// Gives the replica back as it was found: marks it clean and frees the lock. *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the lock is freed all the same, without the mark.
    pub fn close(self) -> Result<(), LogError> {
        self.log.close_clean(self.found_high_watermark())
    }

    pub(crate) const fn found_high_watermark(&self) -> HighWatermark {
        self.report.high_watermark
    }
}

/// What of a log is damaged or gone, in order: what the leader can repair of it bounds the acknowledgement (design.md 2).
pub(crate) fn damage<S: Storage>(log: &Log<S>) -> Vec<Range<Offset>> {
    let mut ranges: Vec<_> = log.damage().iter().map(|d| d.range.start..d.range.end).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}
