//! Finds partition directories and tells what each file in one is, by its name.
//!
//! What holds: nothing is opened for writing, and no lock is taken. A directory that is named on the command line is one
//! partition, or a data directory with one directory per partition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use highwater_log::checkpoint::{
    CHECKPOINT_FILE, LEADER_EPOCH_FILE, LoadedPartitionMetadata, PARTITION_METADATA_FILE,
    read_partition_metadata,
};
use highwater_log::{OsStorage, PartitionLocks};
use highwater_types::{Offset, TopicIdPartition, TopicPartition};

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

/// The files of a partition directory.
#[derive(Debug, Default)]
pub(crate) struct PartitionFiles {
    /// The base offsets of the segments, rising.
    pub(crate) segments: Vec<Offset>,
    /// The base offsets for which there is an offset index.
    pub(crate) offset_indexes: Vec<Offset>,
    /// The base offsets for which there is a time index.
    pub(crate) time_indexes: Vec<Offset>,
    /// Whether there is our checkpoint: the directory is ours then, not Kafka's.
    pub(crate) has_checkpoint: bool,
    /// What Kafka's cleaner and deleter, or a cut, leave behind.
    pub(crate) left_over: Vec<String>,
    /// Names that are none of a log's.
    pub(crate) foreign: Vec<String>,
}

/// Files of a log that are no segments: the epoch cache, the topic id, our checkpoint.
const SINGLE_FILES: [&str; 3] = [LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, CHECKPOINT_FILE];
/// Finds what `root` stands for.
pub(crate) fn select(root: &Path) -> Result<Selection, LogCommandError> {
    let entries = list(root).map_err(|e| LogCommandError::read(root, e))?;
    let mut selection =
        Selection { root: root.to_owned(), is_data_dir: false, partitions: Vec::new(), others: Vec::new() };
    let name = partition_name(root);
    let has_log_files = entries.iter().any(|(name, is_dir)| !is_dir && is_log_file(name));
    // A data directory may be called like a partition: `node-1`.
    let holds_partitions = entries.iter().any(|(name, is_dir)| *is_dir && is_partition_name(name));
    if has_log_files || (is_partition_name(&name) && !holds_partitions) {
        selection.partitions.push(PartitionDir { path: root.to_owned(), name });
        return Ok(selection);
    }
    selection.is_data_dir = true;
    for (name, is_dir) in entries {
        if is_dir && is_partition_name(&name) {
            selection.partitions.push(PartitionDir { path: root.join(&name), name });
        } else {
            selection.others.push((name, is_dir));
        }
    }
    if selection.partitions.is_empty() {
        return Err(LogCommandError::NotALog { path: root.to_owned() });
    }
    Ok(selection)
}

impl PartitionDir {
    /// Sorts the directory's files by what they are.
    pub(crate) fn files(&self) -> Result<PartitionFiles, LogCommandError> {
        let entries = list(&self.path).map_err(|e| LogCommandError::read(&self.path, e))?;
        let mut files = PartitionFiles::default();
        for (name, is_dir) in entries {
            let (base, extension) = split_name(&name);
            match (base, extension) {
                _ if is_dir => files.foreign.push(name),
                _ if name == CHECKPOINT_FILE => files.has_checkpoint = true,
                _ if SINGLE_FILES.contains(&name.as_str()) => {}
                (Some(base), "log") => files.segments.push(base),
                (Some(base), "index") => files.offset_indexes.push(base),
                (Some(base), "timeindex") => files.time_indexes.push(base),
                // Kafka's producer state and aborted transactions: derived from the log, and not read here.
                (Some(_), "snapshot" | "txnindex") => {}
                _ if is_left_over(&name) => files.left_over.push(name),
                _ => files.foreign.push(name),
            }
        }
        files.segments.sort_unstable();
        files.offset_indexes.sort_unstable();
        files.time_indexes.sort_unstable();
        Ok(files)
    }

    /// Whether a program of ours has the partition open: then what looks like a torn tail is being written just now.
    pub(crate) fn is_in_use(&self) -> Result<bool, LogCommandError> {
        let LoadedPartitionMetadata::Found(topic_id) = read_partition_metadata(&OsStorage, &self.path)?
        else {
            return Ok(false);
        };
        let resolved = fs::canonicalize(&self.path).map_err(|e| LogCommandError::read(&self.path, e))?;
        let (Some(data_dir), Some(partition)) =
            (resolved.parent(), TopicPartition::from_directory_name(&self.name))
        else {
            return Ok(false);
        };
        let id = TopicIdPartition::new(topic_id, partition.partition);
        Ok(PartitionLocks::is_locked(data_dir, id)?)
    }

    /// The path of a segment's file with this extension.
    pub(crate) fn segment_file(&self, base: Offset, extension: &str) -> PathBuf {
        self.path.join(format!("{:020}.{extension}", base.get()))
    }

    /// The path of a file that is no segment.
    pub(crate) fn single_file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// The names in a directory, sorted, with whether each is a directory.
fn list(dir: &Path) -> io::Result<Vec<(String, bool)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        names.push((entry.file_name().to_string_lossy().into_owned(), entry.path().is_dir()));
    }
    names.sort_unstable();
    Ok(names)
}

fn partition_name(dir: &Path) -> String {
    // `.` and paths that end in `..` have their name only once they are resolved.
    let resolved = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    resolved.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn is_partition_name(name: &str) -> bool {
    TopicPartition::from_directory_name(name).is_some()
}

fn is_log_file(name: &str) -> bool {
    SINGLE_FILES.contains(&name) || matches!(split_name(name), (Some(_), "log"))
}

/// A name's offset, when it begins with 20 digits that are one, and all after the first dot.
fn split_name(name: &str) -> (Option<Offset>, &str) {
    const DIGITS: usize = 20;
    let (digits, extension) = name.split_once('.').unwrap_or((name, ""));
    let is_number = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    let base = is_number.then(|| digits.parse().ok().and_then(Offset::new)).flatten();
    (base, extension)
}

fn is_left_over(name: &str) -> bool {
    let (base, extension) = split_name(name);
    let by_kafka = [".deleted", ".cleaned", ".swap"].iter().any(|suffix| name.ends_with(suffix));
    let cut = base.is_some() && (extension == "cut" || extension.starts_with("cut."));
    by_kafka || cut || SINGLE_FILES.iter().any(|file| name.strip_prefix(file) == Some(".tmp"))
}
