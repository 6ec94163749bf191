//! What is kept of idempotent producers beside a log: snapshots of their state, and the headers to bring one up to date.
//!
//! A snapshot `%020d.snapshot` is what the log below its offset says of producers, in Kafka's format; its bytes mean nothing
//! here. What must hold: none lies above the log end when something is appended, because what comes there can be other
//! records than those that it tells of. One that is missing or damaged only costs reading more of the log.

use std::ops::Range;

use highwater_records::BatchHeader;
use highwater_types::Offset;

use super::Log;
use crate::names::{self, snapshot_offset};
use crate::segment::LookupError;
use crate::segments::SegmentRef;
use crate::walk::{Check, Walk};
use crate::{LogError, Storage, StorageResult};

/// The largest snapshot that is read, in bytes: far more producers than are remembered.
const SNAPSHOT_BYTES_MAX: u64 = 16 << 20;

impl<S: Storage> Log<S> {
    /// The newest snapshots first, with their offsets, as far as they are at or below the log end; the others are removed,
    /// durably. Call it before appending, and after each truncation.
    ///
    /// # Errors
    /// What the disk says of the directory.
    pub fn producer_snapshots(&self) -> Result<Vec<Offset>, LogError> {
        let end = self.log_end();
        let mut offsets = self.list_snapshots()?;
        let above: Vec<_> = offsets.iter().copied().filter(|at| *at > end).collect();
        for at in &above {
            self.storage.remove_file(&names::snapshot_file(&self.dir, *at))?;
        }
        if !above.is_empty() {
            self.storage.sync_dir(&self.dir)?;
        }
        offsets.retain(|at| *at <= end);
        offsets.sort_unstable_by(|a, b| b.cmp(a));
        Ok(offsets)
    }

    /// The bytes of a snapshot.
    ///
    /// # Errors
    /// What the disk says.
    pub fn read_producer_snapshot(&self, at: Offset) -> Result<Vec<u8>, LogError> {
        Ok(self.storage.read_small(&names::snapshot_file(&self.dir, at), SNAPSHOT_BYTES_MAX)?)
    }

    /// Keeps a snapshot of the state at `at`, and the `kept` newest in all. A crash leaves it whole or not at all.
    ///
    /// # Errors
    /// [`LogError::Unusable`]; what the disk says. The log goes on.
    pub fn write_producer_snapshot(&self, at: Offset, bytes: &[u8], kept: usize) -> Result<(), LogError> {
        self.usable()?;
        self.storage.write_atomically(&names::snapshot_file(&self.dir, at), bytes)?;
        let mut offsets = self.list_snapshots()?;
        offsets.sort_unstable_by(|a, b| b.cmp(a));
        for old in offsets.into_iter().skip(kept) {
            self.storage.remove_file(&names::snapshot_file(&self.dir, old))?;
        }
        Ok(())
    }

    /// Removes every snapshot: the log begins anew with other records.
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove_producer_snapshots(&self) -> Result<(), LogError> {
        for at in self.list_snapshots()? {
            self.storage.remove_file(&names::snapshot_file(&self.dir, at))?;
        }
        Ok(self.storage.sync_dir(&self.dir)?)
    }

    fn list_snapshots(&self) -> StorageResult<Vec<Offset>> {
        let entries = self.storage.list_dir(&self.dir)?;
        Ok(entries.iter().filter_map(|entry| entry.utf8_name().and_then(snapshot_offset)).collect())
    }

    /// Shows the header of every batch that ends after `from`, in order, and returns the log end up to which that was.
    /// *Blocks.* What is damaged is passed over.
    ///
    /// # Errors
    /// What the disk says.
    pub fn visit_headers(
        &self,
        from: Offset,
        mut visit: impl FnMut(&BatchHeader),
    ) -> Result<Offset, LogError> {
        let view = self.view.load_full();
        for entry in view.segments_from(from) {
            let holes = view.holes(entry.base());
            let start = start_of(entry, from, &holes)?;
            let mut walk = Walk::new(entry.segment.file(), Check::Header, start, entry.len).over(&holes);
            while let Some(Ok(batch)) = walk.next()? {
                if batch.header.next_offset() > from {
                    visit(&batch.header);
                }
            }
        }
        Ok(view.log_end)
    }
}

/// A position in the segment from which on every batch after `from` is found.
fn start_of<S: Storage>(entry: &SegmentRef<S>, from: Offset, holes: &[Range<u64>]) -> StorageResult<u64> {
    let Some(relative) = (from > entry.base()).then(|| entry.segment.relative(from)).flatten() else {
        return Ok(0);
    };
    match entry.segment.with_indexes(entry.len, holes, |indexes| indexes.offsets.floor(relative)) {
        Ok(floor) => Ok(floor.map_or(0, |e| u64::from(e.position)).min(entry.len)),
        Err(LookupError::Storage(error)) => Err(error),
        Err(LookupError::Bad(_)) => Ok(0),
    }
}
