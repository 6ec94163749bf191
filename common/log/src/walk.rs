//! Walking the batches of a segment file, in bounded memory.
//!
//! What holds: the walk reads at most up to a given end; a length that points beyond it is a partial batch, and nothing is
//! allocated by it. It stops at the first thing that is no whole batch, and says what and where that is. Damage that is known
//! already is stepped over.

use std::ops::Range;

use highwater_records::{BatchError, BatchHeader, BatchView, HEADER_BYTES};

use crate::storage::{StorageFile, StorageResult};

/// How much of a batch is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Only the header: length, magic, offsets.
    Header,
    /// The CRC as well, which means reading every byte.
    Crc,
}

/// Bytes read at once where only headers matter: batches larger than this are stepped over.
const HEADER_WINDOW_BYTES: usize = 16 << 10;
/// Bytes read at once where every byte matters.
const CRC_WINDOW_BYTES: usize = 1 << 20;

/// A batch met on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked {
    /// Its header.
    pub(crate) header: BatchHeader,
    /// Where it begins, in bytes.
    pub(crate) position: u64,
}

/// What ended a walk before the end.
#[derive(Clone, Debug)]
pub(crate) struct BadBatch {
    /// Where it begins, in bytes.
    pub(crate) position: u64,
    /// What is wrong.
    pub(crate) reason: BatchError,
    /// The header, when only the CRC is wrong: its length may still be right.
    pub(crate) header: Option<BatchHeader>,
}

/// A walk over the batches of a file, from one position to another.
#[derive(Debug)]
pub(crate) struct Walk<'a, F> {
    file: &'a F,
    check: Check,
    position: u64,
    end: u64,
    holes: &'a [Range<u64>],
    window: Vec<u8>,
    window_start: u64,
}

impl<'a, F: StorageFile> Walk<'a, F> {
    /// Walks from `position` (the beginning of a batch) to `end`.
    pub(crate) fn new(file: &'a F, check: Check, position: u64, end: u64) -> Self {
        debug_assert!(position <= end, "a walk goes forward");
        Self { file, check, position, end, holes: &[], window: Vec::new(), window_start: position }
    }

    /// Steps over these ranges of bytes.
    pub(crate) fn over(mut self, holes: &'a [Range<u64>]) -> Self {
        self.holes = holes;
        self
    }

    /// The next batch; `None` at the end. After a bad one the walk stands still.
    pub(crate) fn next(&mut self) -> StorageResult<Option<Result<Walked, BadBatch>>> {
        while let Some(hole) =
            self.holes.iter().find(|hole| hole.start <= self.position && self.position < hole.end)
        {
            self.position = hole.end;
        }
        let position = self.position;
        let left = self.end.saturating_sub(position);
        if left == 0 {
            return Ok(None);
        }
        let bad = |reason, header| Ok(Some(Err(BadBatch { position, reason, header })));
        let header = match BatchHeader::parse(self.bytes(HEADER_BYTES)?) {
            Ok(header) => header,
            Err(reason) => return bad(reason, None),
        };
        if header.size() as u64 > left {
            let have = usize::try_from(left).unwrap_or(usize::MAX);
            return bad(BatchError::Partial { need: header.size(), have }, None);
        }
        if self.check == Check::Crc {
            match BatchView::parse(self.bytes(header.size())?) {
                Ok(batch) if batch.crc_ok() => {}
                Ok(batch) => {
                    let computed = batch.compute_crc();
                    return bad(BatchError::BadChecksum { stored: header.crc(), computed }, Some(header));
                }
                Err(reason) => return bad(reason, None),
            }
        }
        self.position = position.saturating_add(header.size() as u64);
        Ok(Some(Ok(Walked { header, position })))
    }

    /// The bytes at the position, `need` of them or those up to the end.
    fn bytes(&mut self, need: usize) -> StorageResult<&[u8]> {
        let left = usize::try_from(self.end.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let need = need.min(left);
        let skip = usize::try_from(self.position.saturating_sub(self.window_start)).unwrap_or(usize::MAX);
        let held = self.window.len().saturating_sub(skip);
        if held < need {
            let window = match self.check {
                Check::Header => HEADER_WINDOW_BYTES,
                Check::Crc => CRC_WINDOW_BYTES,
            };
            self.window.resize(need.max(window).min(left), 0);
            self.window_start = self.position;
            let read = read_up_to(self.file, &mut self.window, self.position)?;
            self.window.truncate(read);
            return Ok(&self.window);
        }
        Ok(self.window.get(skip..).unwrap_or_default())
    }
}

/// Fills `buf` from `position` as far as the file goes; returns how many bytes.
pub(crate) fn read_up_to<F: StorageFile>(file: &F, buf: &mut [u8], position: u64) -> StorageResult<usize> {
    let mut filled = 0_usize;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, position.saturating_add(filled as u64))? {
            0 => break,
            read => filled = filled.saturating_add(read),
        }
    }
    Ok(filled)
}
