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
use highwater_log::checkpoint::CheckpointFile;
use highwater_log::{
    BufferPool, DataDirScan, DiskIdFile, LockGuard, LogConfig, MetaProperties, MetaPropertiesError,
    OsStorage, PartitionDirectory, PartitionLocks, Storage as _, StorageError, boot_id, finish_removals,
    remove_partition, scan_data_dir,
};
use highwater_replica::ReplicaPlace;
use highwater_types::{
    ClusterId, Incarnation, NodeId, PartitionIndex, Program, TopicId, TopicIdPartition, TopicPartition,
    TopicRecord,
};
use tokio::time::Instant;
use uuid::Uuid;

/// How long an earlier process of the same program may take to end before a start gives up: longer than a stop takes.
const PROGRAM_PATIENCE: Duration = Duration::from_secs(7);

/// How long the other program of the node may take to rotate the disk's identity before a start gives up.
const DISK_ID_PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two attempts to lock something that the other program of the node holds.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Unused read buffers that a program keeps, in bytes.
const IDLE_BUFFER_BYTES: usize = 64 << 20;

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
    /// Keeps a second process of this program out: it would take the node's address, and with it all its followers.
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

/// A fresh random incarnation, or disk identity.
#[must_use]
pub fn fresh_incarnation() -> Incarnation {
    loop {
        if let Some(incarnation) = Incarnation::new(rand::random()) {
            return incarnation;
        }
    }
}

impl Volume {
    /// Takes `data_dir` into use for `node`, creating it if need be, and the cluster if there is none.
    ///
    /// # Errors
    /// [`VolumeError`]; a start may simply be tried again.
    pub async fn claim(
        data_dir: &Path,
        node: NodeId,
        program: Program,
        coordination: &dyn Coordination,
    ) -> Result<Self, VolumeError> {
        let storage = OsStorage;
        let directory = data_dir.to_owned();
        let (known, locks, boot_id) = on_disk(move || {
            storage.create_dir_all(&directory)?;
            let known = MetaProperties::read(&storage, &directory)?;
            let injected = std::env::var("HIGHWATER_BOOT_ID").ok();
            Ok::<_, VolumeError>((known, PartitionLocks::open(&directory)?, boot_id(injected.as_deref())?))
        })
        .await?;
        let running = lock_program(&locks, program).await?;
        let proposed = known.map_or_else(ClusterId::random, |known| known.cluster_id);
        let cluster_id = coordination.ensure_cluster_id(proposed).await?;
        let volume = Self {
            data_dir: data_dir.to_owned(),
            storage,
            locks,
            boot_id,
            read_buffers: BufferPool::new(IDLE_BUFFER_BYTES),
            cluster_id,
            _program: Arc::new(running),
        };
        volume.take_disk(node, program, coordination).await?;
        Ok(volume)
    }

    /// Under the lock of the disk's identity: claims the volume and rotates the identity.
    async fn take_disk(
        &self,
        node: NodeId,
        program: Program,
        coordination: &dyn Coordination,
    ) -> Result<(), VolumeError> {
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
        rotate_disk_identity(coordination, node, program, identity, fresh_incarnation(), persist).await?;
        drop(disk);
        Ok(())
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
        let id = TopicIdPartition::new(topic, partition.partition);
        let Some(lock) = self.locks.try_lock(id)? else { return Ok(false) };
        // Looked at under the lock: another topic of the name may have taken the directory.
        let is_its =
            |found: &PartitionDirectory| found.partition == *partition && found.topic_id == Some(topic);
        if !self.scan()?.partitions.iter().any(is_its) {
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
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use async_trait::async_trait;
    use highwater_coordination::{CasOutcome, ClusterView, FileCoordination, FileOptions, Liveness};
    use highwater_log::checkpoint::{CheckpointState, write_partition_metadata};
    use highwater_types::{NodeRecord, PartitionEpoch, PartitionRecord};
    use tokio::sync::watch;

    use super::*;

    async fn store(dir: &Path) -> FileCoordination {
        FileCoordination::open(&dir.join("store"), FileOptions::default()).await.unwrap()
    }

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn plant(volume: &Volume, name: &str) -> (TopicPartition, TopicId, Incarnation) {
        let partition = TopicPartition::from_directory_name(name).unwrap();
        let dir = volume.data_dir.join(name);
        let (topic, incarnation) = (TopicId::random(), fresh_incarnation());
        volume.storage.create_dir_all(&dir).unwrap();
        write_partition_metadata(&volume.storage, &dir, topic).unwrap();
        let (mut file, _) = CheckpointFile::open(&volume.storage, &dir).unwrap();
        file.write_durable(&CheckpointState::new(topic, incarnation)).unwrap();
        (partition, topic, incarnation)
    }

    fn incarnation_of(volume: &Volume, partition: &TopicPartition) -> Incarnation {
        let dir = volume.data_dir.join(partition.directory_name());
        CheckpointFile::read(&volume.storage, &dir).unwrap().into_state().unwrap().incarnation
    }

    #[tokio::test]
    async fn a_volume_of_another_node_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let data = dir.path().join("data");
        drop(Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap());
        let error = Volume::claim(&data, node(2), Program::LeaderSvc, &store).await.unwrap_err();
        assert!(error.to_string().contains("belongs to node 1"), "{error}");
        drop(Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap());
    }

    #[tokio::test]
    async fn a_directory_has_one_process_of_each_program() {
        let dir = tempfile::tempdir().unwrap();
        let (store, data) = (store(dir.path()).await, dir.path().join("data"));
        let leader = Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
        let _agent = Volume::claim(&data, node(1), Program::FollowerAgent, &store).await.unwrap();
        let _clone = leader.clone();
        drop(leader);
        let error = Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap_err();
        assert_eq!(error.to_string(), "another leader-svc runs on this data directory");
    }

    /// A store that looks, with every change of a node's record, whether another start could begin now.
    #[derive(Debug)]
    struct Onlooker {
        store: FileCoordination,
        data: PathBuf,
        changes: AtomicU32,
        saw_it_free: AtomicBool,
    }

    #[async_trait]
    impl Coordination for Onlooker {
        fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
            self.store.view()
        }

        async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
            self.store.ensure_cluster_id(proposed).await
        }

        async fn create_topic(
            &self,
            topic: TopicRecord,
            partitions: Vec<PartitionRecord>,
        ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
            self.store.create_topic(topic, partitions).await
        }

        async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError> {
            self.store.delete_topic(id).await
        }

        async fn swap_partition(
            &self,
            new: PartitionRecord,
            expected: PartitionEpoch,
        ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
            self.store.swap_partition(new, expected).await
        }

        async fn swap_node(
            &self,
            new: NodeRecord,
            expected: u64,
        ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
            let locks = PartitionLocks::open(&self.data).unwrap();
            let other = DiskIdFile::try_lock(&OsStorage, &self.data, &locks).unwrap();
            self.saw_it_free.fetch_or(other.is_some(), Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.store.swap_node(new, expected).await
        }

        async fn renew_liveness(
            &self,
            node: NodeId,
            program: Program,
        ) -> Result<Liveness, CoordinationError> {
            self.store.renew_liveness(node, program).await
        }

        async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
            self.store.refresh().await
        }
    }

    #[tokio::test]
    async fn no_other_start_of_the_node_begins_before_the_rotation_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (data, store) = (dir.path().join("data"), store(dir.path()).await);
        let (changes, saw_it_free) = (AtomicU32::new(0), AtomicBool::new(false));
        let onlooker = Onlooker { store, data: data.clone(), changes, saw_it_free };
        Volume::claim(&data, node(1), Program::LeaderSvc, &onlooker).await.unwrap();
        assert_eq!(onlooker.changes.load(Ordering::Relaxed), 2, "next, then current");
        assert!(
            !onlooker.saw_it_free.load(Ordering::Relaxed),
            "both starts would rotate, and one would fail"
        );
    }

    #[tokio::test]
    async fn a_volume_of_another_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let first = store(dir.path()).await;
        drop(Volume::claim(&data, node(1), Program::LeaderSvc, &first).await.unwrap());
        let other = tempfile::tempdir().unwrap();
        let second = store(other.path()).await;
        second.ensure_cluster_id(ClusterId::random()).await.unwrap();
        let error = Volume::claim(&data, node(1), Program::LeaderSvc, &second).await.unwrap_err();
        assert!(error.to_string().contains("belongs to cluster"), "{error}");
    }

    #[tokio::test]
    async fn the_same_disk_keeps_its_incarnations_and_a_copied_one_renews_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let data = dir.path().join("data");
        let volume = Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
        let (partition, _, incarnation) = plant(&volume, "t-0");
        let before = std::fs::read(data.join("disk-id")).unwrap();
        drop(volume);
        let volume = Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
        assert_eq!(incarnation_of(&volume, &partition), incarnation, "the disk that it last ran on");
        drop(volume);
        // A snapshot from before the last start comes back.
        std::fs::write(data.join("disk-id"), before).unwrap();
        let volume = Volume::claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
        assert_ne!(incarnation_of(&volume, &partition), incarnation);
    }

    #[tokio::test]
    async fn a_deleted_topics_directory_goes_unless_it_is_held_or_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path()).await;
        let volume =
            Volume::claim(&dir.path().join("data"), node(1), Program::LeaderSvc, &store).await.unwrap();
        std::fs::create_dir(volume.data_dir.join("lost+found")).unwrap();
        let (partition, topic, _) = plant(&volume, "t-0");
        assert_eq!(volume.scan().unwrap().partitions.len(), 1);
        assert!(!volume.remove(&partition, TopicId::random()).unwrap(), "another topic's");
        let lock = volume.locks.try_lock(TopicIdPartition::new(topic, partition.partition)).unwrap();
        assert!(!volume.remove(&partition, topic).unwrap(), "held");
        drop(lock);
        assert!(volume.remove(&partition, topic).unwrap());
        assert!(volume.scan().unwrap().partitions.is_empty());
    }
}
