//! The read-only opener: what a partition's directory holds, for those who do not own it (design.md 2, *Ownership*).
//!
//! What must hold:
//! - Nothing is locked, written, or recovered, whoever wrote the directory and in whatever state it is. It may be in use
//!   meanwhile: what was there when a file was opened is read, and no more.
//! - What is found is told as it is. Damage is no error here, only what the disk refuses to give.
//! - A crash, or an append that is under way, leaves a bad end with nothing after it. In a directory that a program holds
//!   such an end is *in use*, else it is a *torn tail*; anything else that is bad is *damage*.
//!
//! Files in reading order: `scan.rs` walks a segment, over damage too; `index_check.rs` holds an index against the batches
//! ([`crate::EpochRuns`] does it with the leader epochs). Deliberately absent: look-ups by offset or time, since who serves
//! reads owns the log.

mod index_check;
mod scan;

use std::fs;
use std::path::{Path, PathBuf};

use highwater_types::{Offset, TopicIdPartition, TopicPartition};

use crate::checkpoint::{
    CheckpointFile, LoadedCheckpoint, LoadedEpochs, LoadedPartitionMetadata, read_leader_epochs,
    read_partition_metadata,
};
use crate::lock::LOCK_DIR;
use crate::segment::INDEX_FILE_BYTES_MAX;
use crate::storage::{Access, OsStorage, Storage, StorageError, StorageOperation, StorageResult};
use crate::{IndexKind, PartitionFiles, PartitionLocks, names};

pub use index_check::{IndexCheck, IndexState};
pub use scan::{BadBytes, Scanned, SegmentScan};

/// A partition's directory that is only read.
#[derive(Clone, Debug)]
pub struct ReadOnlyLog<S> {
    storage: S,
    directory: PathBuf,
    files: PartitionFiles,
}

/// What bad bytes in a log mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The log ends within a batch, or in one with a wrong CRC, and nothing good follows: what a crash leaves. Whoever opens
    /// the log next cuts it.
    TornTail,
    /// The same, in a directory that a program holds: it is being written just now.
    InUse,
    /// No crash leaves that.
    Damage,
}

impl<S: Storage> ReadOnlyLog<S> {
    /// Lists `directory`; its files are opened when they are asked for.
    ///
    /// # Errors
    /// What the disk says, above all that there is no such directory. One without a log is not an error.
    pub fn open(storage: &S, directory: &Path) -> StorageResult<Self> {
        let files = PartitionFiles::read(storage, directory)?;
        Ok(Self { storage: storage.clone(), directory: directory.to_owned(), files })
    }

    /// The directory, as it was named.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it held when it was opened.
    #[must_use]
    pub const fn files(&self) -> &PartitionFiles {
        &self.files
    }

    /// The path of a segment.
    #[must_use]
    pub fn segment_path(&self, base: Offset) -> PathBuf {
        names::log_file(&self.directory, base)
    }

    /// The path of a segment's index, whether it is there or not.
    #[must_use]
    pub fn index_path(&self, base: Offset, kind: IndexKind) -> PathBuf {
        names::index_file(&self.directory, base, kind)
    }

    /// Opens a segment, to walk it from its first byte to its last.
    ///
    /// # Errors
    /// What the disk says. A segment of a log in use may be gone meanwhile.
    pub fn scan(&self, base: Offset) -> StorageResult<SegmentScan<S::File>> {
        SegmentScan::open(self.storage.open(&self.segment_path(base), Access::ReadOnly)?, base)
    }

    /// Reads an index of a segment, to be held against its batches; `None` when there is none.
    ///
    /// # Errors
    /// What the disk says.
    pub fn check_index(&self, base: Offset, kind: IndexKind) -> StorageResult<Option<IndexCheck>> {
        match self.storage.read_small(&self.index_path(base, kind), INDEX_FILE_BYTES_MAX) {
            // Kafka reserves room in the indexes of the segment that it appends to; we never do.
            Ok(bytes) => {
                let may_have_room = self.is_last(base) && !self.files.has_checkpoint();
                Ok(Some(IndexCheck::new(&bytes, kind, base, may_have_room)))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether bad bytes in the segment of this base are the log's end: no good batch follows them, in any segment.
    #[must_use]
    pub fn is_tail(&self, base: Offset, bad: &BadBytes<'_>) -> bool {
        bad.resumes_at.is_none() && self.files.segments.iter().all(|s| s.base <= base || s.len == 0)
    }

    /// The topic's id by `partition.metadata`.
    ///
    /// # Errors
    /// What the disk says. Damage is not an error.
    pub fn topic_id(&self) -> StorageResult<LoadedPartitionMetadata> {
        read_partition_metadata(&self.storage, &self.directory)
    }

    /// Our checkpoint. What it says of a log in use may be older than the log, never newer, if it is read first.
    ///
    /// # Errors
    /// What the disk says. Damage is not an error.
    pub fn checkpoint(&self) -> StorageResult<LoadedCheckpoint> {
        CheckpointFile::read(&self.storage, &self.directory)
    }

    /// Where leaderships began, by `leader-epoch-checkpoint`; [`crate::EpochRuns`] tells whether the batches agree.
    ///
    /// # Errors
    /// What the disk says. Damage is not an error.
    pub fn leader_epochs(&self) -> StorageResult<LoadedEpochs> {
        read_leader_epochs(&self.storage, &self.directory)
    }

    fn is_last(&self, base: Offset) -> bool {
        self.files.segments.last().is_some_and(|last| last.base == base)
    }
}

impl ReadOnlyLog<OsStorage> {
    /// Whether a program of ours holds the partition's lock now. A directory that names no topic, or that is not called like a
    /// partition, cannot be held.
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn is_in_use(&self) -> StorageResult<bool> {
        let LoadedPartitionMetadata::Found(topic_id) = self.topic_id()? else { return Ok(false) };
        let resolved = self.resolved()?;
        let name = resolved.file_name().and_then(|name| name.to_str());
        let (Some(data_dir), Some(partition)) =
            (resolved.parent(), name.and_then(TopicPartition::from_directory_name))
        else {
            return Ok(false);
        };
        PartitionLocks::is_locked(data_dir, TopicIdPartition::new(topic_id, partition.partition))
    }

    /// Whether it lies in a data directory of ours, where every partition has a checkpoint. What Kafka wrote has none.
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn is_ours(&self) -> StorageResult<bool> {
        let resolved = self.resolved()?;
        let Some(data_dir) = resolved.parent() else { return Ok(self.files.has_checkpoint()) };
        Ok(self.files.has_checkpoint() || self.storage.exists(&data_dir.join(LOCK_DIR))?)
    }

    fn resolved(&self) -> StorageResult<PathBuf> {
        fs::canonicalize(&self.directory)
            .map_err(|e| StorageError::new(StorageOperation::Inspect, &self.directory, e))
    }

    /// Tells what bad bytes in the segment of this base mean.
    ///
    /// # Errors
    /// As [`Self::is_in_use`].
    pub fn judge(&self, base: Offset, bad: &BadBytes<'_>) -> StorageResult<Judgement> {
        Ok(match self.is_tail(base, bad) {
            false => Judgement::Damage,
            true if self.is_in_use()? => Judgement::InUse,
            true => Judgement::TornTail,
        })
    }
}

#[cfg(test)]
#[path = "read_only_test.rs"]
mod tests;
