//! What a partition's directory holds, by name.

use std::path::Path;

use highwater_types::Offset;

use crate::index::{OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES};
use crate::names::{self, FileKind};
use crate::storage::{Storage, StorageResult};

/// A closed segment smaller than this may have no index entry.
const SMALL_SEGMENT_BYTES: u64 = 64 << 10;

/// A segment file with the lengths of its index files. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) base: Offset,
    pub(crate) len: u64,
    pub(crate) offset_index: Option<u64>,
    pub(crate) time_index: Option<u64>,
}

impl Found {
    /// Whether the index files are there, hold whole entries, and some where there is something to index.
    pub(crate) fn index_lengths_fit(&self) -> bool {
        let whole = |len: Option<u64>, entry: usize| len.is_some_and(|len| len % entry as u64 == 0);
        let has_entries = self.offset_index.is_some_and(|len| len > 0) || self.len < SMALL_SEGMENT_BYTES;
        whole(self.offset_index, OFFSET_ENTRY_BYTES)
            && whole(self.time_index, TIME_ENTRY_BYTES)
            && has_entries
    }
}

/// The files of a partition's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The segments, oldest first.
    pub(crate) segments: Vec<Found>,
    /// Index files without a segment.
    pub(crate) orphans: Vec<String>,
    /// What is none of the log's.
    pub(crate) foreign: Vec<String>,
}

impl Listing {
    pub(crate) fn read<S: Storage>(storage: &S, dir: &Path) -> StorageResult<Self> {
        let mut listing = Self::default();
        let entries = storage.list_dir(dir)?;
        let mut indexes = Vec::new();
        for entry in &entries {
            let name = entry.name.to_string_lossy();
            match names::file_kind(&name) {
                FileKind::Log(base) if !entry.is_dir => {
                    let segment = Found { base, len: entry.len, offset_index: None, time_index: None };
                    listing.segments.push(segment);
                }
                FileKind::OffsetIndex(base) | FileKind::TimeIndex(base) if !entry.is_dir => {
                    indexes.push((base, names::file_kind(&name), entry.len, name.into_owned()));
                }
                FileKind::Other => {}
                FileKind::Foreign | FileKind::Log(_) | FileKind::OffsetIndex(_) | FileKind::TimeIndex(_) => {
                    listing.foreign.push(name.into_owned());
                }
            }
        }
        listing.segments.sort_unstable_by_key(|segment| segment.base);
        for (base, kind, len, name) in indexes {
            match listing.segments.iter_mut().find(|segment| segment.base == base) {
                Some(segment) if matches!(kind, FileKind::OffsetIndex(_)) => segment.offset_index = Some(len),
                Some(segment) => segment.time_index = Some(len),
                None => listing.orphans.push(name),
            }
        }
        Ok(listing)
    }
}
