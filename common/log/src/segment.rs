//! One segment: its file, its indexes, and finding batches in it.
//!
//! What must hold: bytes below the segment's published length never change while the log's generation stays the same (only
//! a truncation changes them, only a repair replaces them by what they were). An index is believed only as far as the log
//! confirms it: a look-up that lands beside a batch makes the index again from the log.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use highwater_types::{Offset, WallTime};
use parking_lot::RwLock;

use crate::index::{IndexedBatch, OFFSET_ENTRY_BYTES, OffsetIndex, SegmentIndexes, TimeIndex};
use crate::storage::{Access, Storage, StorageFile, StorageResult};
use crate::walk::{BadBatch, Check, Walk, Walked};
use crate::{IndexKind, names};

/// The index interval where indexes are made from the log for a reader: Kafka's default. In bytes.
const REBUILD_INTERVAL_BYTES: u32 = 4096;

/// The largest index file that is read. In bytes; more than a segment of 2 GiB can need.
pub(crate) const INDEX_FILE_BYTES_MAX: u64 = 1 << 31;

/// A segment of the log. Its length is part of the log's view, since readers must see one that fits the rest.
#[derive(Debug)]
pub(crate) struct Segment<S: Storage> {
    storage: S,
    dir: Arc<Path>,
    base: Offset,
    file: S::File,
    indexes: RwLock<IndexSlot>,
    /// When it was last written, by the local clock in milliseconds; for an older segment, when it was opened.
    last_written: AtomicI64,
}

/// The indexes of a segment, as far as they are in memory.
#[derive(Debug, Default)]
struct IndexSlot {
    /// `None` = on the disk, read when first needed.
    indexes: Option<SegmentIndexes>,
    /// Whether they must stay: those of the active segment are nowhere else.
    pinned: bool,
    /// The largest timestamp of a closed segment, once known; stays when the indexes go.
    max_timestamp: Option<i64>,
}

/// What a look-up in a segment found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// The first batch that ends at or after the offset.
    pub(crate) batch: Walked,
    /// Where the batch before it ends, when it was seen on the way.
    pub(crate) previous_end: Option<Offset>,
}

/// An index file that is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadIndex {
    pub(crate) kind: IndexKind,
    /// What is wrong with it.
    pub(crate) reason: String,
}

impl BadIndex {
    pub(crate) fn offset(reason: &str) -> Self {
        Self { kind: IndexKind::Offset, reason: reason.to_owned() }
    }
}

/// Why a look-up failed.
#[derive(Debug)]
pub(crate) enum LookupError {
    Storage(crate::StorageError),
    Bad(BadBatch),
}

impl From<crate::StorageError> for LookupError {
    fn from(error: crate::StorageError) -> Self {
        Self::Storage(error)
    }
}

impl<S: Storage> Segment<S> {
    /// Creates an empty segment with its index files. The names are durable once the directory is flushed.
    pub(crate) fn create(storage: &S, dir: &Arc<Path>, base: Offset) -> StorageResult<Self> {
        let file = storage.create_new(&names::log_file(dir, base))?;
        for index in [names::offset_index_file(dir, base), names::time_index_file(dir, base)] {
            match storage.create_new(&index) {
                Ok(_) => {}
                // Left behind by a segment of this base that is gone: it says nothing about this one.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                    storage.open(&index, Access::ReadWrite)?.set_len(0)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(Self::of(storage, dir, base, file, Some(SegmentIndexes::default())))
    }

    /// Opens an existing segment; the indexes stay on the disk.
    pub(crate) fn open(storage: &S, dir: &Arc<Path>, base: Offset, access: Access) -> StorageResult<Self> {
        let file = storage.open(&names::log_file(dir, base), access)?;
        Ok(Self::of(storage, dir, base, file, None))
    }

    fn of(
        storage: &S,
        dir: &Arc<Path>,
        base: Offset,
        file: S::File,
        indexes: Option<SegmentIndexes>,
    ) -> Self {
        let slot = IndexSlot { pinned: indexes.is_some(), indexes, max_timestamp: None };
        let (storage, dir, indexes) = (storage.clone(), Arc::clone(dir), RwLock::new(slot));
        Self { storage, dir, base, file, indexes, last_written: AtomicI64::new(0) }
    }

    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    pub(crate) fn file(&self) -> &S::File {
        &self.file
    }

    /// An offset relative to the base; `None` when no index entry can hold it.
    pub(crate) fn relative(&self, offset: Offset) -> Option<u32> {
        let relative = i32::try_from(offset.get().checked_sub(self.base.get())?).ok()?;
        u32::try_from(relative).ok()
    }

    /// What the indexes have to know of a batch of this segment.
    pub(crate) fn indexed(&self, batch: &Walked) -> Option<IndexedBatch> {
        Some(IndexedBatch {
            position: batch.position,
            size: batch.header.size() as u64,
            relative: self.relative(batch.header.last_offset())?,
            max_timestamp: batch.header.max_timestamp().as_millis(),
        })
    }

    /// Finds the first batch that ends at or after `offset`, in a segment of `len` bytes; `None` when every batch ends before.
    pub(crate) fn locate(
        &self,
        len: u64,
        offset: Offset,
        holes: &[Range<u64>],
    ) -> Result<Option<Located>, LookupError> {
        // The entry before, so that the batch in front of the one sought is seen, too.
        let floor = offset
            .prev()
            .and_then(|before| self.relative(before.min(self.base.advance(i64::from(i32::MAX)))));
        let entry = match floor {
            Some(relative) => self.with_indexes(len, holes, |indexes| indexes.offsets.floor(relative))?,
            None => None,
        };
        if let Some(entry) = entry.filter(|entry| u64::from(entry.position) < len) {
            let expected = self.base.advance(i64::from(entry.relative));
            let mut walk = Walk::new(&self.file, Check::Header, u64::from(entry.position), len).over(holes);
            match walk.next()? {
                Some(Ok(first)) if first.header.last_offset() == expected => {
                    return find(walk, offset, Some(first.header.next_offset()));
                }
                Some(_) | None => {
                    tracing::warn!(segment = %self.base, directory = %self.dir.display(), "offset index is wrong; made again");
                    self.rebuild_indexes(len, holes)?;
                }
            }
        }
        find(Walk::new(&self.file, Check::Header, 0, len).over(holes), offset, None)
    }

    /// Where the last batch of a closed segment of `len` bytes ends, by the headers from the last entry of its index file on;
    /// `None` when they are not in order.
    pub(crate) fn last_end(&self, len: u64) -> StorageResult<Option<Offset>> {
        let Some(from) = self.last_indexed(len)? else { return Ok(None) };
        let mut walk = Walk::new(&self.file, Check::Header, from, len);
        let mut end = None;
        while let Some(batch) = walk.next()? {
            let Ok(batch) = batch else { return Ok(None) };
            end = Some(batch.header.next_offset());
        }
        Ok(end)
    }

    /// Where the last indexed batch begins, by the file; 0 without an entry, `None` when the entry is of no use.
    fn last_indexed(&self, len: u64) -> StorageResult<Option<u64>> {
        let file = match self.storage.open(&names::offset_index_file(&self.dir, self.base), Access::ReadOnly)
        {
            Err(e) if e.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let Some(at) = file.len()?.checked_sub(OFFSET_ENTRY_BYTES as u64) else { return Ok(Some(0)) };
        let mut entry = [0; OFFSET_ENTRY_BYTES];
        let filled = file.read_up_to(&mut entry, at)?;
        let decoded = OffsetIndex::decode(entry.get(..filled).unwrap_or_default(), len).ok();
        Ok(decoded.and_then(|index| index.last()).map(|entry| u64::from(entry.position)))
    }

    /// Looks into the indexes; reads them when they are not in memory, and makes them from the log when the files are of no
    /// use.
    pub(crate) fn with_indexes<T>(
        &self,
        len: u64,
        holes: &[Range<u64>],
        look: impl FnOnce(&SegmentIndexes) -> T,
    ) -> Result<T, LookupError> {
        if let Some(indexes) = self.indexes.read().indexes.as_ref() {
            return Ok(look(indexes));
        }
        let mut slot = self.indexes.write();
        let indexes = match slot.indexes.take() {
            Some(loaded) => loaded,
            None => match self.read_indexes(len)? {
                Ok(loaded) => loaded,
                Err(bad) => {
                    tracing::warn!(segment = %self.base, directory = %self.dir.display(), reason = %bad.reason, "index made again");
                    self.indexes_from_log(len, holes, REBUILD_INTERVAL_BYTES)?
                }
            },
        };
        let seen = look(&indexes);
        slot.indexes = Some(indexes);
        Ok(seen)
    }

    /// The largest timestamp of the segment, in milliseconds since 1970; -1 when no batch has any.
    pub(crate) fn max_timestamp(&self, len: u64, holes: &[Range<u64>]) -> Result<i64, LookupError> {
        if let Some(known) = self.indexes.read().max_timestamp {
            return Ok(known);
        }
        let newest = self.with_indexes(len, holes, SegmentIndexes::max_timestamp)?;
        let mut slot = self.indexes.write();
        if !slot.pinned {
            slot.max_timestamp = Some(newest);
            slot.indexes = None;
        }
        Ok(newest)
    }

    /// When the segment was last written, by the local clock.
    pub(crate) fn last_written(&self) -> WallTime {
        WallTime::from_millis(self.last_written.load(Ordering::Relaxed))
    }

    pub(crate) fn set_last_written(&self, now: WallTime) {
        self.last_written.store(now.as_millis(), Ordering::Relaxed);
    }

    /// About where `offset` stands in the segment, in bytes, by the index in memory: where the last indexed batch before it
    /// begins; 0 when the index is not in memory.
    pub(crate) fn estimate_position(&self, offset: Offset) -> u64 {
        let slot = self.indexes.read();
        let Some(indexes) = slot.indexes.as_ref() else { return 0 };
        let relative = self.relative(offset).unwrap_or(u32::MAX);
        indexes.offsets.floor(relative).map_or(0, |entry| u64::from(entry.position))
    }

    /// Changes the indexes in memory. Only the writer does, and only in the active segment, whose indexes are pinned.
    pub(crate) fn change_indexes<T>(&self, change: impl FnOnce(&mut SegmentIndexes) -> T) -> T {
        let mut slot = self.indexes.write();
        debug_assert!(slot.pinned, "only the active segment's indexes change");
        change(slot.indexes.get_or_insert_default())
    }

    /// Makes these the segment's indexes, and keeps them in memory until [`Self::unpin_indexes`].
    pub(crate) fn pin_indexes(&self, indexes: SegmentIndexes) {
        *self.indexes.write() = IndexSlot { indexes: Some(indexes), pinned: true, max_timestamp: None };
    }

    /// The segment is closed and its index files are written: the indexes may be forgotten.
    pub(crate) fn unpin_indexes(&self) {
        self.indexes.write().pinned = false;
    }

    pub(crate) fn has_pinned_indexes(&self) -> bool {
        self.indexes.read().pinned
    }

    /// Forgets the indexes unless they are pinned; they are read again when needed.
    pub(crate) fn unload_indexes(&self) {
        let mut slot = self.indexes.write();
        if !slot.pinned {
            slot.indexes = None;
        }
    }

    /// Reads both index files; the inner error says which one is of no use, and why.
    pub(crate) fn read_indexes(&self, len: u64) -> StorageResult<Result<SegmentIndexes, BadIndex>> {
        let offsets = self.read_index_file(&names::offset_index_file(&self.dir, self.base))?;
        let times = self.read_index_file(&names::time_index_file(&self.dir, self.base))?;
        let bad = |kind| move |reason| BadIndex { kind, reason };
        let offsets = offsets.and_then(|b| OffsetIndex::decode(&b, len)).map_err(bad(IndexKind::Offset));
        let times = times.and_then(|b| TimeIndex::decode(&b)).map_err(bad(IndexKind::Time));
        Ok(offsets.and_then(|offsets| Ok(SegmentIndexes::loaded(offsets, times?))))
    }

    fn read_index_file(&self, path: &Path) -> StorageResult<Result<Vec<u8>, String>> {
        match self.storage.read_small(path, INDEX_FILE_BYTES_MAX) {
            Ok(bytes) => Ok(Ok(bytes)),
            Err(e) if e.is_not_found() => Ok(Err("missing".to_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::FileTooLarge => Ok(Err(e.to_string())),
            Err(e) => Err(e),
        }
    }

    fn rebuild_indexes(&self, len: u64, holes: &[Range<u64>]) -> Result<(), LookupError> {
        let made = self.indexes_from_log(len, holes, REBUILD_INTERVAL_BYTES)?;
        let mut slot = self.indexes.write();
        // Those of the active segment are made by the appends themselves, and the writer goes on with them.
        if !slot.pinned {
            slot.indexes = Some(made);
        }
        Ok(())
    }

    /// Makes the indexes from the headers of the log; ends quietly where no batch follows.
    pub(crate) fn indexes_from_log(
        &self,
        len: u64,
        holes: &[Range<u64>],
        interval: u32,
    ) -> StorageResult<SegmentIndexes> {
        let mut indexes = SegmentIndexes::default();
        let mut walk = Walk::new(&self.file, Check::Header, 0, len).over(holes);
        while let Some(Ok(batch)) = walk.next()? {
            let Some(noted) = self.indexed(&batch) else { break };
            indexes.note(noted, interval);
        }
        indexes.finish();
        Ok(indexes)
    }

    /// Writes both index files and flushes them when asked to. The closing time entry is made first.
    pub(crate) fn write_indexes(&self, durable: bool) -> StorageResult<()> {
        let (offsets, times) = {
            let mut slot = self.indexes.write();
            let indexes = slot.indexes.get_or_insert_default();
            indexes.finish();
            (indexes.offsets.encode(), indexes.times.encode())
        };
        for (path, bytes) in [
            (names::offset_index_file(&self.dir, self.base), offsets),
            (names::time_index_file(&self.dir, self.base), times),
        ] {
            let file = match self.storage.open(&path, Access::ReadWrite) {
                Err(e) if e.is_not_found() => self.storage.create_new(&path)?,
                opened => opened?,
            };
            file.set_len(0)?;
            file.write_all_at(&bytes, 0)?;
            if durable {
                file.sync_data()?;
            }
        }
        Ok(())
    }

    /// Flushes the index files as they are.
    pub(crate) fn sync_indexes(&self) -> StorageResult<()> {
        for path in
            [names::offset_index_file(&self.dir, self.base), names::time_index_file(&self.dir, self.base)]
        {
            match self.storage.open(&path, Access::ReadWrite) {
                Err(e) if e.is_not_found() => {}
                opened => opened?.sync_data()?,
            }
        }
        Ok(())
    }

    /// Empties the index files: the segment is written on, so what they say is stale.
    pub(crate) fn empty_index_files(&self) -> StorageResult<()> {
        for path in
            [names::offset_index_file(&self.dir, self.base), names::time_index_file(&self.dir, self.base)]
        {
            match self.storage.open(&path, Access::ReadWrite) {
                Err(e) if e.is_not_found() => {}
                opened => opened?.set_len(0)?,
            }
        }
        Ok(())
    }

    /// Removes the segment's files; readers that have it go on reading.
    pub(crate) fn remove_files(&self) -> StorageResult<()> {
        remove_segment_files(&self.storage, &self.dir, self.base)
    }
}

/// Removes the files of a segment: the indexes first, so that none is ever left without its segment for long.
pub(crate) fn remove_segment_files<S: Storage>(storage: &S, dir: &Path, base: Offset) -> StorageResult<()> {
    for path in
        [names::offset_index_file(dir, base), names::time_index_file(dir, base), names::log_file(dir, base)]
    {
        match storage.remove_file(&path) {
            Err(e) if !e.is_not_found() => return Err(e),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn find<F: StorageFile>(
    mut walk: Walk<'_, F>,
    offset: Offset,
    mut previous_end: Option<Offset>,
) -> Result<Option<Located>, LookupError> {
    loop {
        match walk.next()? {
            None => return Ok(None),
            Some(Ok(batch)) if batch.header.last_offset() >= offset => {
                return Ok(Some(Located { batch, previous_end }));
            }
            Some(Ok(batch)) => previous_end = Some(batch.header.next_offset()),
            Some(Err(bad)) => return Err(LookupError::Bad(bad)),
        }
    }
}
