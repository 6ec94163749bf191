//! The `file` store: SQLite databases in a directory, shared by every program of one machine. The embedded default.
//!
//! - `records.db` holds the records, `synchronous=FULL`: a committed record survives a power loss. `heartbeats-*.db` holds
//!   the liveness counters, `synchronous=OFF`: nothing in it is worth a disk flush several times a second. It is named
//!   after the boot of the machine, because an unsynced database may be torn by a power loss, and because a counter
//!   from before one says nothing.
//! - Both in write-ahead-log mode. There, readers neither block a writer nor wait for one, so a program that is stopped
//!   while it reads holds up nobody; a commit costs one flush instead of three; and looking for changes is a read of
//!   shared memory. Its condition, that all users run on one machine, is the condition of this store anyway.
//! - Only a writer that is stopped in mid-transaction stalls the others. So transactions are a few statements long, and a
//!   lock that is not free within [`FileOptions::busy_timeout`] is an outage: the lock is taken at the *begin* of a
//!   transaction (`IMMEDIATE`), so whoever does not get it has changed nothing and is told `Unavailable`. `Unknown` is
//!   left for a commit that failed, and for a store thread that died.
//! - Each database has a thread of its own with a bounded queue, so no SQLite call ever runs on the runtime, and a flush
//!   of `records.db` never delays a heartbeat. What waits in the queue is committed together: one flush for all.
//! - Changes by other processes are found within milliseconds (`changes`); own writes are in the view before their caller
//!   is answered.
//! - A write counts only while its files are where they were opened (`presence`): a store that was deleted or replaced
//!   under a running program is an outage, until the same files are back.

mod changes;
mod database;
mod heartbeats;
mod presence;
mod queue;
mod records;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_types::{
    ClusterId, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId, TopicRecord,
};
use tokio::sync::watch;

use self::changes::Signs;
use self::queue::Queue;
use self::records::{RecordsRequest, Started};
use crate::{
    CasOutcome, ClusterView, Coordination, CoordinationError, Liveness, ViewPublisher, check_creation,
};

/// How the `file` store is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// The longest time between two looks for changes of other processes. It matters only where the kernel did not tell
    /// of one; it is also how long a lost store goes unnoticed when nothing is written.
    pub poll_interval: Duration,
    /// How long another program may hold the lock before that counts as an outage. Well below the session timeout.
    pub busy_timeout: Duration,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { poll_interval: Duration::from_secs(1), busy_timeout: Duration::from_secs(1) }
    }
}

/// A handle on the `file` store. Dropping it ends its threads once they have done what was queued.
#[derive(Debug)]
pub struct FileCoordination {
    directory: PathBuf,
    view: Arc<ViewPublisher>,
    records: Arc<Queue<RecordsRequest>>,
    heartbeats: Queue<heartbeats::Renewal>,
    _signs: Option<Signs>,
}

impl FileCoordination {
    /// Opens the store in `directory`, creating both if need be, and reads it.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when the directory cannot be used; [`CoordinationError::Unreadable`] when what
    /// is in it is not a store of this format.
    pub async fn open(directory: &Path, options: FileOptions) -> Result<Self, CoordinationError> {
        let view = Arc::new(ViewPublisher::default());
        let Started { queue: records, files, signs } =
            records::start(directory, &options, Arc::clone(&view)).await?;
        let heartbeats = heartbeats::start(directory, &options, files).await?;
        Ok(Self { directory: directory.to_owned(), view, records, heartbeats, _signs: signs })
    }

    /// The store's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

#[async_trait]
impl Coordination for FileCoordination {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.subscribe()
    }

    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
        if let Some(id) = self.view.current().cluster_id() {
            return Ok(id.clone());
        }
        records::write(&self.records, move |tables| tables.ensure_cluster_id(&proposed)).await
    }

    async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        check_creation(&topic, &partitions).map_err(CoordinationError::Invalid)?;
        records::write(&self.records, move |tables| tables.create_topic(&topic, &partitions)).await
    }

    async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError> {
        records::write(&self.records, move |tables| tables.delete_topic(id)).await
    }

    async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        records::write(&self.records, move |tables| tables.swap_partition(&new, expected)).await
    }

    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        records::write(&self.records, move |tables| tables.swap_node(&new, expected)).await
    }

    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError> {
        heartbeats::renew(&self.heartbeats, node, program).await
    }

    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
        records::refresh(&self.records).await?;
        Ok(self.view.current())
    }
}

#[cfg(test)]
#[path = "file_test.rs"]
mod tests;
