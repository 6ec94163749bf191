//! Volumes: whose they are, who runs on them, and disks that are not what they were.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use highwater_coordination::interposed::{Interposed, Interposer};
use highwater_coordination::{CasOutcome, FileCoordination, FileOptions};
use highwater_log::checkpoint::{CheckpointState, write_partition_metadata};
use highwater_types::NodeRecord;

use super::*;

async fn store(dir: &Path) -> FileCoordination {
    FileCoordination::open(&dir.join("store"), FileOptions::default()).await.unwrap()
}

fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

async fn claim(
    data: &Path,
    id: NodeId,
    program: Program,
    store: &dyn Coordination,
) -> Result<Volume, VolumeError> {
    DataDir::take(data, id, program).await?.join(store).await
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
    drop(claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap());
    let error = claim(&data, node(2), Program::LeaderSvc, &store).await.unwrap_err();
    assert!(error.to_string().contains("belongs to node 1"), "{error}");
    drop(claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap());
}

#[tokio::test]
async fn a_directory_has_one_process_of_each_program() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = (store(dir.path()).await, dir.path().join("data"));
    let leader = claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
    let _agent = claim(&data, node(1), Program::FollowerAgent, &store).await.unwrap();
    let _clone = leader.clone();
    drop(leader);
    let error = claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap_err();
    assert_eq!(error.to_string(), "another leader-svc runs on this data directory");
}

/// Looks, with every change of a node's record, whether another start could begin now.
#[derive(Debug)]
struct Onlooker {
    data: PathBuf,
    changes: AtomicU32,
    saw_it_free: AtomicBool,
}

#[async_trait]
impl Interposer for Onlooker {
    async fn swap_node(
        &self,
        store: &dyn Coordination,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        let locks = PartitionLocks::open(&self.data).unwrap();
        let other = DiskIdFile::try_lock(&OsStorage, &self.data, &locks).unwrap();
        self.saw_it_free.fetch_or(other.is_some(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
        store.swap_node(new, expected).await
    }
}

#[tokio::test]
async fn no_other_start_of_the_node_begins_before_the_rotation_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (data, store) = (dir.path().join("data"), store(dir.path()).await);
    let (changes, saw_it_free) = (AtomicU32::new(0), AtomicBool::new(false));
    let between = Onlooker { data: data.clone(), changes, saw_it_free };
    let store = Interposed { store, between };
    claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
    assert_eq!(store.between.changes.load(Ordering::Relaxed), 2, "next, then current");
    assert!(
        !store.between.saw_it_free.load(Ordering::Relaxed),
        "both starts would rotate, and one would fail"
    );
}

#[tokio::test]
async fn a_volume_of_another_cluster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let first = store(dir.path()).await;
    drop(claim(&data, node(1), Program::LeaderSvc, &first).await.unwrap());
    let other = tempfile::tempdir().unwrap();
    let second = store(other.path()).await;
    second.ensure_cluster_id(ClusterId::random()).await.unwrap();
    let error = claim(&data, node(1), Program::LeaderSvc, &second).await.unwrap_err();
    assert!(error.to_string().contains("belongs to cluster"), "{error}");
}

#[tokio::test]
async fn the_same_disk_keeps_its_incarnations_and_a_copied_one_renews_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let data = dir.path().join("data");
    let volume = claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
    let (partition, _, incarnation) = plant(&volume, "t-0");
    let before = std::fs::read(data.join("disk-id")).unwrap();
    drop(volume);
    let volume = claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
    assert_eq!(incarnation_of(&volume, &partition), incarnation, "the disk that it last ran on");
    drop(volume);
    // A snapshot from before the last start comes back.
    std::fs::write(data.join("disk-id"), before).unwrap();
    let volume = claim(&data, node(1), Program::LeaderSvc, &store).await.unwrap();
    assert_ne!(incarnation_of(&volume, &partition), incarnation);
}

#[tokio::test]
async fn a_deleted_topics_directory_goes_unless_it_is_held_or_anothers() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let volume = claim(&dir.path().join("data"), node(1), Program::LeaderSvc, &store).await.unwrap();
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

/// The directory has worked under version 5 of its partition's record.
#[tokio::test]
async fn a_replica_that_was_taken_away_goes_only_by_a_record_that_is_newer_than_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let volume = claim(&dir.path().join("data"), node(1), Program::LeaderSvc, &store).await.unwrap();
    let (partition, topic, _) = plant(&volume, "t-0");
    let path = volume.data_dir.join(partition.directory_name());
    let (version, epoch) = (PartitionEpoch::new, LeaderEpoch::new);
    assert!(!volume.remove_before(&partition, topic, version(9), epoch(9)).unwrap(), "it does not say");
    let (mut file, loaded) = CheckpointFile::open(&volume.storage, &path).unwrap();
    let state = loaded.into_state().unwrap();
    file.write_durable(&CheckpointState {
        highest_leader_epoch: epoch(2),
        highest_partition_epoch: Some(version(5)),
        ..state
    })
    .unwrap();
    for older in [4, 5] {
        assert!(
            !volume.remove_before(&partition, topic, version(older), epoch(2)).unwrap(),
            "{older} is not newer"
        );
    }
    let forked = volume.remove_before(&partition, topic, version(6), epoch(1)).unwrap();
    assert!(!forked, "a store with a history of its own");
    let lock = volume.locks.try_lock(TopicIdPartition::new(topic, partition.partition)).unwrap();
    assert!(!volume.remove_before(&partition, topic, version(6), epoch(2)).unwrap(), "held");
    drop(lock);
    assert!(path.exists() && volume.remove_before(&partition, topic, version(6), epoch(2)).unwrap());
    assert!(!path.exists());
}
