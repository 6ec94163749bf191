//! What a partition's directory holds, by name.

use std::path::Path;

use highwater_types::Offset;

use crate::IndexKind;
use crate::checkpoint::CHECKPOINT_FILE;
use crate::index::{OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES};
use crate::names::{self, FileKind, OtherKind};
use crate::storage::{Storage, StorageResult};

/// A closed segment smaller than this may have no index entry.
const SMALL_SEGMENT_BYTES: u64 = 64 << 10;

/// A segment file with the lengths of its index files. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFiles {
    /// The offset at which the segment begins, by its name.
    pub base: Offset,
    /// The length of the segment.
    pub len: u64,
    /// The length of its offset index; `None` when there is none.
    pub offset_index: Option<u64>,
    /// The length of its time index; `None` when there is none.
    pub time_index: Option<u64>,
}

impl SegmentFiles {
    /// Whether the index files are there, hold whole entries, and some where there is something to index.
    pub(crate) fn index_lengths_fit(&self) -> bool {
        let whole = |len: Option<u64>, entry: usize| len.is_some_and(|len| len % entry as u64 == 0);
        let has_entries = self.offset_index.is_some_and(|len| len > 0) || self.len < SMALL_SEGMENT_BYTES;
        whole(self.offset_index, OFFSET_ENTRY_BYTES)
            && whole(self.time_index, TIME_ENTRY_BYTES)
            && has_entries
    }
}

/// A file or directory that is no part of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFile {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: OtherKind,
}

/// The files of a partition's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionFiles {
    /// The segments, oldest first.
    pub segments: Vec<SegmentFiles>,
    /// The names of index files without a segment.
    pub orphans: Vec<String>,
    /// Which of the checkpoints, and of the topic id's file, are there.
    pub checkpoints: Vec<String>,
    /// Everything else, sorted by name.
    pub others: Vec<OtherFile>,
}

impl PartitionFiles {
    /// Sorts the names in `dir` by what they stand for; opens nothing.
    pub(crate) fn read<S: Storage>(storage: &S, dir: &Path) -> StorageResult<Self> {
        let mut files = Self::default();
        let mut indexes = Vec::new();
        for entry in storage.list_dir(dir)? {
            let name = entry.name.to_string_lossy().into_owned();
            match names::file_kind(&name) {
                _ if entry.is_dir => files.others.push(OtherFile { name, kind: OtherKind::Foreign }),
                FileKind::Log(base) => {
                    let segment = SegmentFiles { base, len: entry.len, offset_index: None, time_index: None };
                    files.segments.push(segment);
                }
                FileKind::Index(base, kind) => indexes.push((base, kind, entry.len, name)),
                FileKind::Checkpoint => files.checkpoints.push(name),
                FileKind::Other(kind) => files.others.push(OtherFile { name, kind }),
            }
        }
        files.segments.sort_unstable_by_key(|segment| segment.base);
        for (base, kind, len, name) in indexes {
            let at = files.segments.binary_search_by_key(&base, |segment| segment.base);
            match (at.ok().and_then(|at| files.segments.get_mut(at)), kind) {
                (Some(segment), IndexKind::Offset) => segment.offset_index = Some(len),
                (Some(segment), IndexKind::Time) => segment.time_index = Some(len),
                (None, _) => files.orphans.push(name),
            }
        }
        Ok(files)
    }

    /// Whether our checkpoint is there: a directory of Kafka's has none.
    #[must_use]
    pub fn has_checkpoint(&self) -> bool {
        self.checkpoints.iter().any(|name| name == CHECKPOINT_FILE)
    }

    /// The names of what neither the log nor we put there.
    pub(crate) fn strangers(&self) -> Vec<String> {
        let strange = self.others.iter().filter(|other| other.kind != OtherKind::LeftOver);
        strange.map(|other| other.name.clone()).collect()
    }
}
