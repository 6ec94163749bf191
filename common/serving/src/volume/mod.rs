//! Taking a data directory into use: whose volume it is, which disk it is on, and what lies in it that nobody knows.
//!
//! What must hold: another node's or cluster's volume is refused before anything else of it is read; the disk's identity
//! is rotated under its lock, and every incarnation on a foreign disk is renewed, durably, before the rotation goes on
//! (design.md 6.3). Nothing is deleted here: a directory that no record knows is a *stray* and only reported.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{
    Coordination, CoordinationError, DiskVerdict, RotationError, rotate_disk_identity,
};
use highwater_log::checkpoint::{CheckpointFile, CheckpointState};
use highwater_log::{
    BufferPool, DataDirScan, DiskIdFile, LockGuard, LogConfig, MetaProperties, MetaPropertiesError,
    OsStorage, PartitionDirectory, PartitionLocks, Storage as _, StorageError, boot_id, finish_removals,
    remove_partition, scan_data_dir,
};
use highwater_replica::ReplicaPlace;
use highwater_types::{
    ClusterId, Incarnation, LeaderEpoch, NodeId, PartitionEpoch, PartitionIndex, Program, TopicId,
    TopicIdPartition, TopicPartition, TopicRecord,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::joining::JoinError;

/// How long an earlier process of the same program may take to end before a start gives up: longer than a stop takes.
const PROGRAM_PATIENCE: Duration = Duration::from_secs(7);

/// How long the other program of the node may take to rotate the disk's identity before a start gives up.
const DISK_ID_PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two attempts to lock something that the other program of the node holds.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Unused read buffers that a program keeps, in bytes.
const IDLE_BUFFER_BYTES: usize = 64 << 20;

/// A data directory of which one program of its node has made sure, on the way to a [`Volume`].
#[derive(Clone, Debug)]
pub struct DataDir {
    path: PathBuf,
    node: NodeId,
    program: Program,
    locks: PartitionLocks,
    boot_id: Uuid,
    /// The cluster that it says it belongs to.
    cluster_id: Option<ClusterId>,
    /// Keeps a second process of this program out: it would take the node's address, and with it all its followers.
    running: Arc<LockGuard>,
}

/// A data directory in use.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The directory.
    pub data_dir: PathBuf,
    /// The disk.
    pub storage: OsStorage,
    /// The locks of its partitions.
    pub locks: PartitionLocks,
    /// This boot of the host.
    pub boot_id: Uuid,
    /// Buffers for reads, shared by all logs of the program.
    pub read_buffers: BufferPool,
    /// The cluster that it belongs to.
    pub cluster_id: ClusterId,
    /// Which start of the program this is on this disk; rises from start to start.
    pub start: u64,
    _program: Arc<LockGuard>,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It is another's, or its file cannot be read.
    #[error(transparent)]
    MetaProperties(#[from] MetaPropertiesError),
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The store failed.
    #[error("join the cluster: {0}")]
    Coordination(#[from] CoordinationError),
    /// The identity of the disk was not rotated.
    #[error(transparent)]
    Rotation(#[from] RotationError<StorageError>),
    /// The directory has a process of this program already.
    #[error("another {0} runs on this data directory")]
    Running(Program),
    /// The node's other program holds something for too long.
    #[error("{0} is held by the node's other program for more than {DISK_ID_PATIENCE:?}")]
    Held(String),
}

impl JoinError for VolumeError {
    fn can_pass(&self) -> bool {
        match self {
            Self::Coordination(store) | Self::Rotation(RotationError::Coordination(store)) => {
                store.can_pass()
            }
            Self::Held(_) | Self::Rotation(RotationError::Overtaken) => true,
            Self::Rotation(_) | Self::MetaProperties(_) | Self::Storage(_) | Self::Running(_) => false,
        }
    }
}

/// A fresh random incarnation, or disk identity.
#[must_use]
pub fn fresh_incarnation() -> Incarnation {
    loop {
        if let Some(incarnation) = Incarnation::new(rand::random()) {
            return incarnation;
        }
    }
}

impl DataDir {
    /// Takes `path` for a program of `node`, creating it if need be: what can be found wrong with it without the cluster is
    /// found here. Waits a little for an earlier process of the program that is stopping.
    ///
    /// # Errors
    /// [`VolumeError`], but none of the store's.
    pub async fn take(path: &Path, node: NodeId, program: Program) -> Result<Self, VolumeError> {
        let (storage, directory) = (OsStorage, path.to_owned());
        let (known, locks, boot_id) = on_disk(move || {
            storage.create_dir_all(&directory)?;
            let known = MetaProperties::read(&storage, &directory)?;
            known.as_ref().map_or(Ok(()), |known| known.check_node(&directory, node))?;
            let injected = std::env::var("HIGHWATER_BOOT_ID").ok();
            Ok::<_, VolumeError>((known, PartitionLocks::open(&directory)?, boot_id(injected.as_deref())?))
        })
        .await?;
        let running = Arc::new(lock_program(&locks, program).await?);
        let cluster_id = known.map(|known| known.cluster_id);
        Ok(Self { path: path.to_owned(), node, program, locks, boot_id, cluster_id, running })
    }

    /// Takes the directory into use in its cluster, which is founded if there is none. May be tried again.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub async fn join(&self, coordination: &dyn Coordination) -> Result<Volume, VolumeError> {
        let proposed = self.cluster_id.clone().unwrap_or_else(ClusterId::random);
        let cluster_id = coordination.ensure_cluster_id(proposed).await?;
        let mut volume = Volume {
            data_dir: self.path.clone(),
            storage: OsStorage,
            locks: self.locks.clone(),
            boot_id: self.boot_id,
            read_buffers: BufferPool::new(IDLE_BUFFER_BYTES),
            cluster_id,
            start: 0,
            _program: Arc::clone(&self.running),
        };
        volume.start = volume.take_disk(self.node, self.program, coordination).await?;
        Ok(volume)
    }
}

impl Volume {
    /// Under the lock of the disk's identity: claims the volume and rotates the identity. Answers which start this is.
    async fn take_disk(
        &self,
        node: NodeId,
        program: Program,
        coordination: &dyn Coordination,
    ) -> Result<u64, VolumeError> {
        let disk = self.lock_disk_id().await?;
        let owner = MetaProperties { cluster_id: self.cluster_id.clone(), node_id: node };
        let (storage, data_dir) = (self.storage, self.data_dir.clone());
        let (disk, identity) = on_disk(move || {
            owner.claim(&storage, &data_dir, &disk)?;
            finish_removals(&storage, &data_dir)?;
            let identity = disk.read()?;
            Ok::<_, VolumeError>((disk, identity))
        })
        .await?;
        // Held until the rotation has ended: it goes on in the store after the identity is on the disk.
        let disk = Arc::new(disk);
        let (volume, written) = (self.clone(), Arc::clone(&disk));
        let persist = async move |verdict, identity| {
            on_disk(move || {
                if verdict == DiskVerdict::Foreign {
                    tracing::warn!(
                        "this is not the disk that the node last ran on: all incarnations are renewed"
                    );
                    volume.renew_incarnations()?;
                }
                written.write(identity)
            })
            .await
        };
        let fresh = fresh_incarnation();
        let rotation = rotate_disk_identity(coordination, node, program, identity, fresh, persist).await?;
        drop(disk);
        Ok(rotation.start)
    }

    async fn lock_disk_id(&self) -> Result<DiskIdFile<OsStorage>, VolumeError> {
        let until = Instant::now() + DISK_ID_PATIENCE;
        loop {
            let (storage, data_dir, locks) = (self.storage, self.data_dir.clone(), self.locks.clone());
            if let Some(disk) = on_disk(move || DiskIdFile::try_lock(&storage, &data_dir, &locks)).await? {
                return Ok(disk);
            }
            if Instant::now() >= until {
                return Err(VolumeError::Held("the disk's identity".to_owned()));
            }
            tokio::time::sleep(LOCK_RETRY).await;
        }
    }

    /// Gives every replica in the directory a new incarnation. *Blocks.*
    fn renew_incarnations(&self) -> Result<(), StorageError> {
        for found in self.scan()?.partitions {
            let (mut file, loaded) = CheckpointFile::open(&self.storage, &found.path)?;
            // Without a valid checkpoint the log takes a new incarnation by itself when it is opened.
            if let Some(mut state) = loaded.into_state() {
                state.incarnation = fresh_incarnation();
                file.write_durable(&state)?;
            }
        }
        Ok(())
    }

    /// Where the replica of a partition lies in it.
    #[must_use]
    pub fn place(&self, topic: &TopicRecord, partition: PartitionIndex) -> ReplicaPlace<OsStorage> {
        ReplicaPlace {
            storage: self.storage,
            data_dir: self.data_dir.clone(),
            partition: TopicPartition::new(topic.name.clone(), partition),
            topic_id: topic.id,
            config: LogConfig::from(&topic.properties),
            boot_id: self.boot_id,
            read_buffers: self.read_buffers.clone(),
            fresh_incarnation: Arc::new(fresh_incarnation),
        }
    }

    /// What the directory holds, known to a record or not. *Blocks.*
    ///
    /// # Errors
    /// What the disk says.
    pub fn scan(&self) -> Result<DataDirScan, StorageError> {
        scan_data_dir(&self.storage, &self.data_dir)
    }

    /// Removes a partition's directory: of a topic with a tombstone, or a copy that no record will name. `false` when
    /// somebody holds its log, or the directory is another topic's. *Blocks.*
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove(&self, partition: &TopicPartition, topic: TopicId) -> Result<bool, StorageError> {
        self.remove_if(partition, topic, |_| Ok(true))
    }

    /// The same, of a replica that the record of version `record` and leader epoch `leader` takes from this node. `false` also
    /// when the directory has worked under that version or a later one, under a later leadership (the store was restored, and
    /// has a history of its own since), or when it does not say. *Blocks.*
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove_before(
        &self,
        partition: &TopicPartition,
        topic: TopicId,
        record: PartitionEpoch,
        leader: Option<LeaderEpoch>,
    ) -> Result<bool, StorageError> {
        self.remove_if(partition, topic, |found| {
            let state = CheckpointFile::read(&self.storage, &found.path)?.into_state();
            let is_newer = |state: CheckpointState| {
                let seen = state.highest_partition_epoch;
                seen.is_some_and(|seen| seen < record) && state.highest_leader_epoch <= leader
            };
            Ok(state.is_some_and(is_newer))
        })
    }

    fn remove_if(
        &self,
        partition: &TopicPartition,
        topic: TopicId,
        may_go: impl Fn(&PartitionDirectory) -> Result<bool, StorageError>,
    ) -> Result<bool, StorageError> {
        let id = TopicIdPartition::new(topic, partition.partition);
        let Some(lock) = self.locks.try_lock(id)? else { return Ok(false) };
        // Looked at under the lock: another topic of the name may have taken the directory.
        let is_its =
            |found: &PartitionDirectory| found.partition == *partition && found.topic_id == Some(topic);
        let scan = self.scan()?;
        let Some(found) = scan.partitions.iter().find(|found| is_its(found)) else { return Ok(false) };
        if !may_go(found)? {
            return Ok(false);
        }
        remove_partition(&self.storage, &self.data_dir, partition, topic, lock)?;
        Ok(true)
    }
}

/// Takes the lock of a program on the directory, waiting a little for one that is stopping.
async fn lock_program(locks: &PartitionLocks, program: Program) -> Result<LockGuard, VolumeError> {
    let until = Instant::now() + PROGRAM_PATIENCE;
    loop {
        let locks = locks.clone();
        if let Some(guard) = on_disk(move || locks.try_lock_program(program)).await? {
            return Ok(guard);
        }
        if Instant::now() >= until {
            return Err(VolumeError::Running(program));
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

/// Runs disk work on the blocking pool.
pub async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    // A panic of the work is one of the caller's.
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

#[cfg(test)]
#[path = "volume_test.rs"]
mod tests;
