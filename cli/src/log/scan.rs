//! Walks a segment file from its first byte to its last, over damage too, in bounded memory.
//!
//! What holds: each byte of the file is in exactly one of what is returned; a walk ends. Nothing is written, and no lock is
//! taken: the file may grow while it is read, and only the bytes that were there at the start are looked at.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use highwater_records::{BatchError, BatchHeader, BatchView, HEADER_BYTES, find_valid_batch};
use highwater_types::Offset;

/// How much is read at once.
const WINDOW_BYTES: usize = 1 << 20;
/// How far is searched for a good batch after a bad one.
const SEARCH_BYTES: usize = 256 << 20;

/// What stands at one place of a segment.
#[derive(Debug)]
pub(crate) enum Scanned<'a> {
    /// A batch whose CRC is right.
    Batch {
        /// Where it begins, in bytes.
        position: u64,
        /// The batch.
        batch: BatchView<'a>,
    },
    /// Bytes that are no good batch.
    Bad(Bad<'a>),
}

/// Bytes that are no good batch.
#[derive(Debug)]
pub(crate) struct Bad<'a> {
    /// Where they begin, in bytes.
    pub(crate) position: u64,
    /// How many they are: up to the next good batch, or to the end of the file.
    pub(crate) bytes: u64,
    /// What is wrong with the first of them.
    pub(crate) error: BatchError,
    /// The batch, when it is whole and only its CRC is wrong.
    pub(crate) batch: Option<BatchView<'a>>,
    /// The base offset of the good batch that follows; `None` when none does.
    pub(crate) resumes_at: Option<Offset>,
}

/// Walks one segment file.
#[derive(Debug)]
pub(crate) struct SegmentScan {
    file: File,
    len: u64,
    position: u64,
    window_start: u64,
    window: Vec<u8>,
    next_offset: Offset,
}

impl SegmentScan {
    /// Opens a segment whose name says that it begins at `base`.
    pub(crate) fn open(path: &Path, base: Offset) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, len, position: 0, window_start: 0, window: Vec::new(), next_offset: base })
    }

    /// The length of the file, in bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// What stands at the place reached so far; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Scanned<'_>>> {
        let position = self.position;
        if position >= self.len {
            return Ok(None);
        }
        match self.check(position)? {
            Ok(header) => {
                self.position = position.saturating_add(header.size() as u64);
                self.next_offset = header.next_offset();
                let bytes = self.bytes(position, header.size())?;
                let batch = BatchView::parse(bytes).map_err(io::Error::other)?;
                Ok(Some(Scanned::Batch { position, batch }))
            }
            Err(error) => self.bad(position, error).map(Some),
        }
    }

    /// Whether a good batch begins at `position`.
    fn check(&mut self, position: u64) -> io::Result<Result<BatchHeader, BatchError>> {
        let left = clamp(self.len.saturating_sub(position));
        let header = match BatchHeader::parse(self.bytes(position, HEADER_BYTES)?) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        if header.size() > left {
            return Ok(Err(BatchError::Partial { need: header.size(), have: left }));
        }
        let batch = match BatchView::parse(self.bytes(position, header.size())?) {
            Ok(batch) => batch,
            Err(error) => return Ok(Err(error)),
        };
        let computed = batch.compute_crc();
        if computed == header.crc() {
            Ok(Ok(header))
        } else {
            Ok(Err(BatchError::BadChecksum { stored: header.crc(), computed }))
        }
    }

    /// Finds where the log goes on after bad bytes.
    fn bad(&mut self, position: u64, error: BatchError) -> io::Result<Scanned<'_>> {
        let from = position.saturating_add(1);
        let mut rest = vec![0; clamp(self.len.saturating_sub(from)).min(SEARCH_BYTES)];
        let read = read_up_to(&self.file, &mut rest, from)?;
        rest.truncate(read);
        let found = find_valid_batch(&rest, self.next_offset);
        let resumes_at =
            found.and_then(|at| BatchHeader::parse(rest.get(at..)?).ok()).map(|header| header.base_offset());
        self.position = match found {
            Some(at) => from.saturating_add(at as u64),
            None => self.len,
        };
        let bytes = self.position.saturating_sub(position);
        let batch =
            if matches!(error, BatchError::BadChecksum { .. }) { self.batch_at(position)? } else { None };
        Ok(Scanned::Bad(Bad { position, bytes, error, batch, resumes_at }))
    }

    fn batch_at(&mut self, position: u64) -> io::Result<Option<BatchView<'_>>> {
        let size = BatchHeader::parse(self.bytes(position, HEADER_BYTES)?).map_or(0, |header| header.size());
        Ok(BatchView::parse(self.bytes(position, size)?).ok())
    }

    /// `need` bytes from `position`, or those up to the end of the file.
    fn bytes(&mut self, position: u64, need: usize) -> io::Result<&[u8]> {
        let left = clamp(self.len.saturating_sub(position));
        let need = need.min(left);
        let skip = clamp(position.saturating_sub(self.window_start));
        let held = self.window.len().saturating_sub(skip);
        if position >= self.window_start && held >= need {
            return Ok(self.window.get(skip..).unwrap_or_default());
        }
        self.window.resize(need.max(WINDOW_BYTES).min(left), 0);
        self.window_start = position;
        let read = read_up_to(&self.file, &mut self.window, position)?;
        self.window.truncate(read);
        Ok(&self.window)
    }
}

/// Fills `buf` from `position` as far as the file goes; returns how many bytes.
fn read_up_to(file: &File, buf: &mut [u8], position: u64) -> io::Result<usize> {
    let mut filled = 0_usize;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, position.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled = filled.saturating_add(read),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
