//! What a data directory holds, and removing a partition from it.
//!
//! What must hold: only the caller knows which partitions belong here. Nothing is removed but what it names; what no record
//! knows is *stray* and stays (design.md 2).

use std::path::{Path, PathBuf};

use highwater_types::{TopicId, TopicPartition};

use crate::checkpoint::{
    CheckpointFile, KAFKA_NODE_FILES, LoadedCheckpoint, LoadedPartitionMetadata, read_partition_metadata,
};
use crate::lock::LOCK_DIR;
use crate::storage::{Storage, StorageResult};
use crate::{DISK_ID_FILE, LockGuard, META_PROPERTIES_FILE};

/// What a partition's directory is called while it is being removed: `NAME-N.TOPICID-delete`, as Kafka does it.
const DELETE_SUFFIX: &str = "-delete";

/// A partition's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDirectory {
    /// The partition, by the directory's name.
    pub partition: TopicPartition,
    /// The directory.
    pub path: PathBuf,
    /// The topic that it belongs to, by its checkpoint, else by `partition.metadata`; `None` when neither says.
    pub topic_id: Option<TopicId>,
    /// Whether it has a checkpoint of ours. Without one it is Kafka's, or was never opened.
    pub has_checkpoint: bool,
}

/// The entries of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataDirScan {
    /// Directories that are named like partitions, sorted by name.
    pub partitions: Vec<PartitionDirectory>,
    /// Everything else (checkpoints of the node, `lost+found`, half-done removals and adoptions, unknown files).
    pub others: Vec<String>,
}

/// The socket in a data directory by which a node's two programs pass its logs on to each other.
pub const AGENT_SOCKET: &str = "agent.sock";

/// Whether a name in a data directory is of a file or directory that belongs there beside the partitions: ours, Kafka's, or
/// the file system's.
#[must_use]
pub fn is_node_file(name: &str) -> bool {
    [META_PROPERTIES_FILE, DISK_ID_FILE, LOCK_DIR, AGENT_SOCKET, "lost+found"].contains(&name)
        || KAFKA_NODE_FILES.contains(&name)
}

/// Lists what a data directory holds. Opens no log, takes no lock, writes nothing.
///
/// # Errors
/// What the disk says.
pub fn scan_data_dir<S: Storage>(storage: &S, data_dir: &Path) -> StorageResult<DataDirScan> {
    let mut scan = DataDirScan::default();
    for entry in storage.list_dir(data_dir)? {
        let partition =
            entry.utf8_name().filter(|_| entry.is_dir).and_then(TopicPartition::from_directory_name);
        let Some(partition) = partition else {
            scan.others.push(entry.name.to_string_lossy().into_owned());
            continue;
        };
        let path = data_dir.join(&entry.name);
        let checkpoint = CheckpointFile::<S>::read(storage, &path)?;
        let has_checkpoint = checkpoint != LoadedCheckpoint::Absent;
        let topic_id = match (checkpoint.into_state(), read_partition_metadata(storage, &path)?) {
            (Some(state), _) => Some(state.topic_id),
            (None, LoadedPartitionMetadata::Found(id)) => Some(id),
            (None, LoadedPartitionMetadata::Absent | LoadedPartitionMetadata::Damaged(_)) => None,
        };
        scan.partitions.push(PartitionDirectory { partition, path, topic_id, has_checkpoint });
    }
    Ok(scan)
}

/// Removes a partition's directory: it is gone under its name at once, durably, and its bytes follow. The log is closed, and
/// `lock`, which the closed log gave back, is held until all is done.
///
/// # Errors
/// What the disk says; [`finish_removals`] goes on with it.
pub fn remove_partition<S: Storage>(
    storage: &S,
    data_dir: &Path,
    partition: &TopicPartition,
    topic_id: TopicId,
    lock: LockGuard,
) -> StorageResult<()> {
    let doomed = data_dir.join(format!("{partition}.{}{DELETE_SUFFIX}", topic_id.uuid().simple()));
    if storage.exists(&doomed)? {
        storage.remove_dir_all(&doomed)?;
    }
    match storage.rename(&data_dir.join(partition.directory_name()), &doomed) {
        Err(e) if e.is_not_found() => return Ok(()),
        renamed => renamed?,
    }
    storage.sync_dir(data_dir)?;
    storage.remove_dir_all(&doomed)?;
    drop(lock);
    tracing::info!(%partition, %topic_id, "removed the partition's directory");
    Ok(())
}

/// Goes on with removals that a crash interrupted. Harmless while others are removing. Returns how many there were.
///
/// # Errors
/// What the disk says.
pub fn finish_removals<S: Storage>(storage: &S, data_dir: &Path) -> StorageResult<usize> {
    let mut removed = 0;
    for name in scan_data_dir(storage, data_dir)?.others {
        let is_doomed = name.strip_suffix(DELETE_SUFFIX).and_then(|rest| rest.rsplit_once('.')).is_some_and(
            |(partition, id)| {
                TopicPartition::from_directory_name(partition).is_some()
                    && id.len() == 32
                    && id.bytes().all(|b| b.is_ascii_hexdigit())
            },
        );
        if is_doomed {
            match storage.remove_dir_all(&data_dir.join(&name)) {
                Err(e) if !e.is_not_found() => return Err(e),
                Ok(()) | Err(_) => removed += 1,
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::log::fixture_test::{OsDisk, SimTestDisk, TestDisk, files, hw, lead, open, partition, topic};
    use crate::{LogConfig, StorageFile as _};

    fn a_removed_partition_is_gone_and_nothing_else<D: TestDisk>() {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig::default());
        lead(&log, 0, 3, 2);
        assert!(!files(&log, &disk.storage()).is_empty());
        let storage = disk.storage();
        for dir in [AGENT_SOCKET, "lost+found", "kept-0", "notes-delete"] {
            storage.create_dir_all(&disk.data_dir().join(dir)).unwrap();
        }
        let scan = scan_data_dir(&storage, disk.data_dir()).unwrap();
        let ids: Vec<_> = scan.partitions.iter().map(|p| (p.partition.to_string(), p.topic_id)).collect();
        assert_eq!(ids, [("kept-0".to_owned(), None), ("orders-0".to_owned(), Some(topic()))]);
        assert!(scan.others.contains(&"lost+found".to_owned()));
        let lock = Arc::into_inner(log.abandon().unwrap()).unwrap();
        remove_partition(&storage, disk.data_dir(), &partition(), topic(), lock).unwrap();
        let left = scan_data_dir(&storage, disk.data_dir()).unwrap();
        assert_eq!(left.partitions.len(), 1);
        assert_eq!(left.others, scan.others);
        let foreign: Vec<_> = left.others.iter().filter(|name| !is_node_file(name)).collect();
        assert_eq!(foreign, ["notes-delete"]);
        assert_eq!(open(&disk, LogConfig::default()).1.positions.size, 0, "the name is free again");
    }

    #[test]
    fn a_removed_partition_is_gone_on_the_operating_systems_disk() {
        a_removed_partition_is_gone_and_nothing_else::<OsDisk>();
    }

    #[test]
    fn a_removed_partition_is_gone_on_the_simulated_disk() {
        a_removed_partition_is_gone_and_nothing_else::<SimTestDisk>();
    }

    #[test]
    fn an_interrupted_removal_is_finished() {
        let disk = SimTestDisk::new();
        let (log, _) = open(&disk, LogConfig::default());
        log.close_clean(hw(0, 0)).unwrap();
        let storage = disk.storage();
        let doomed = disk.data_dir().join(format!("orders-0.{}-delete", topic().uuid().simple()));
        storage.rename(&disk.data_dir().join("orders-0"), &doomed).unwrap();
        storage.create_new(&disk.data_dir().join("x-delete")).unwrap().sync_all().unwrap();
        assert_eq!(finish_removals(&storage, disk.data_dir()).unwrap(), 1);
        assert!(!storage.exists(&doomed).unwrap());
        assert_eq!(scan_data_dir(&storage, disk.data_dir()).unwrap().others.len(), 1);
    }
}
