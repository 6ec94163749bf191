//! Walks a segment file from its first byte to its last, over damage too, in bounded memory.
//!
//! What holds: each byte that the file had at the beginning is in exactly one of what is returned; a walk ends.

use std::io;

use highwater_records::{BatchError, BatchView};
use highwater_types::Offset;

use crate::storage::{StorageError, StorageFile, StorageOperation, StorageResult};
use crate::walk::{Check, Cursor, find_good_after};

/// What stands at one place of a segment.
#[derive(Debug)]
pub enum Scanned<'a> {
    /// A batch whose CRC is right.
    Batch {
        /// Where it begins, in bytes.
        position: u64,
        /// The batch.
        batch: BatchView<'a>,
    },
    /// Bytes that are no good batch.
    Bad(BadBytes<'a>),
}

/// Bytes that are no good batch.
#[derive(Debug)]
pub struct BadBytes<'a> {
    /// Where they begin, in bytes.
    pub position: u64,
    /// How many they are: up to the next good batch, or to the end of the file.
    pub bytes: u64,
    /// What is wrong with the first of them.
    pub error: BatchError,
    /// The batch, when it is whole and only its CRC is wrong.
    pub batch: Option<BatchView<'a>>,
    /// The base offset of the good batch that follows in this segment; `None` when none does. One that lies below what came before
    /// the bad bytes does not count: it is not the log's.
    pub resumes_at: Option<Offset>,
}

/// Walks one segment file.
#[derive(Debug)]
pub struct SegmentScan<F> {
    file: F,
    cursor: Cursor,
    next_offset: Offset,
}

impl<F: StorageFile> SegmentScan<F> {
    /// Walks a segment whose name says that it begins at `base`.
    pub(super) fn open(file: F, base: Offset) -> StorageResult<Self> {
        let cursor = Cursor::new(Check::Crc, 0, file.len()?);
        Ok(Self { file, cursor, next_offset: base })
    }

    /// How many bytes are walked: the length of the file when it was opened.
    #[allow(clippy::len_without_is_empty, reason = "the length of a file")]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.cursor.end()
    }

    /// What stands at the place reached so far; `None` at the end.
    ///
    /// # Errors
    /// What the disk says.
    pub fn next_piece(&mut self) -> StorageResult<Option<Scanned<'_>>> {
        let bad = match self.cursor.next(&self.file)? {
            None => return Ok(None),
            Some(Err(bad)) => bad,
            Some(Ok(walked)) => {
                self.next_offset = walked.header.next_offset();
                let position = walked.position;
                let lost = || {
                    let source = io::Error::other("a batch that was read is gone from the window");
                    StorageError::new(StorageOperation::Read, self.file.path(), source)
                };
                let batch = self.cursor.view(position).ok_or_else(lost)?;
                return Ok(Some(Scanned::Batch { position, batch }));
            }
        };
        let (position, end) = (bad.position, self.cursor.end());
        let found = find_good_after(&self.file, position, bad.header, end, self.next_offset)?;
        let resumes = found.map_or(end, |found| found.position);
        self.cursor.step_to(resumes);
        Ok(Some(Scanned::Bad(BadBytes {
            position,
            bytes: resumes.saturating_sub(position),
            error: bad.reason,
            batch: bad.header.and_then(|_| self.cursor.view(position)),
            resumes_at: found.map(|found| found.header.base_offset()),
        })))
    }
}
