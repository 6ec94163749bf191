//! Finds the partition directories that a directory on the command line stands for: one partition, or a data directory with
//! one directory per partition.

use std::fs;
use std::path::{Path, PathBuf};

use highwater_log::{OsStorage, ReadOnlyLog, Storage as _};
use highwater_types::TopicPartition;

use super::LogCommandError;

/// The partition directories and other entries that a directory stands for.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The directory as it was named.
    pub(crate) root: PathBuf,
    /// Whether it holds partitions, and is none itself.
    pub(crate) is_data_dir: bool,
    /// The partitions, sorted by name.
    pub(crate) partitions: Vec<PartitionDir>,
    /// Names in a data directory that are no partitions, with whether each is a directory.
    pub(crate) others: Vec<(String, bool)>,
}

/// A directory of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionDir {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its name, which begins with the partition's.
    pub(crate) name: String,
}

/// Finds what `root` stands for.
pub(crate) fn select(root: &Path) -> Result<Selection, LogCommandError> {
    let entries = OsStorage.list_dir(root)?;
    let files = ReadOnlyLog::open(&OsStorage, root)?.files().clone();
    let mut selection =
        Selection { root: root.to_owned(), is_data_dir: false, partitions: Vec::new(), others: Vec::new() };
    let name = partition_name(root);
    let has_log_files = !files.segments.is_empty() || !files.checkpoints.is_empty();
    let named = entries.into_iter().map(|entry| (entry.name.to_string_lossy().into_owned(), entry.is_dir));
    let (partitions, others): (Vec<_>, Vec<_>) =
        named.partition(|(name, is_dir)| *is_dir && is_partition_name(name));
    // A data directory may be called like a partition: `node-1`.
    if has_log_files || (is_partition_name(&name) && partitions.is_empty()) {
        selection.partitions.push(PartitionDir { path: root.to_owned(), name });
        return Ok(selection);
    }
    if partitions.is_empty() {
        return Err(LogCommandError::NotALog { path: root.to_owned() });
    }
    let partition = |(name, _)| PartitionDir { path: root.join(&name), name };
    selection.is_data_dir = true;
    selection.partitions = partitions.into_iter().map(partition).collect();
    selection.others = others;
    Ok(selection)
}

impl PartitionDir {
    /// Opens it for reading only.
    pub(crate) fn open(&self) -> Result<ReadOnlyLog<OsStorage>, LogCommandError> {
        Ok(ReadOnlyLog::open(&OsStorage, &self.path)?)
    }
}

fn partition_name(dir: &Path) -> String {
    // `.` and paths that end in `..` have their name only once they are resolved.
    let resolved = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    resolved.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn is_partition_name(name: &str) -> bool {
    TopicPartition::from_directory_name(name).is_some()
}
