//! Walking the batches of a segment file, in bounded memory; over something bad to the next good batch.
//!
//! What holds: the walk reads at most up to a given end; a length that points beyond it is a partial batch, and nothing is
//! allocated by it. It stops at the first thing that is no whole batch, and says what and where that is. Damage that is known
//! already is stepped over.

use std::ops::Range;

use highwater_records::{BatchError, BatchHeader, BatchView, HEADER_BYTES, find_valid_batch};
use highwater_types::Offset;

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
/// How many bytes are searched at once for a good batch after a bad one.
const SEARCH_BYTES: usize = 32 << 20;
/// How far two searches overlap: a good batch that is larger may be missed, and one after it is found.
const SEARCH_OVERLAP_BYTES: usize = 16 << 20;

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
    cursor: Cursor,
    holes: &'a [Range<u64>],
}

impl<'a, F: StorageFile> Walk<'a, F> {
    /// Walks from `position` (the beginning of a batch) to `end`.
    pub(crate) fn new(file: &'a F, check: Check, position: u64, end: u64) -> Self {
        Self { file, cursor: Cursor::new(check, position, end), holes: &[] }
    }

    /// Steps over these ranges of bytes.
    pub(crate) fn over(mut self, holes: &'a [Range<u64>]) -> Self {
        self.holes = holes;
        self
    }

    /// The next batch; `None` at the end. After a bad one the walk stands still.
    pub(crate) fn next(&mut self) -> StorageResult<Option<Result<Walked, BadBatch>>> {
        let cursor = &mut self.cursor;
        while let Some(hole) =
            self.holes.iter().find(|hole| hole.start <= cursor.position && cursor.position < hole.end)
        {
            cursor.position = hole.end;
        }
        cursor.next(self.file)
    }
}

/// A walk without its file, for those who own that.
#[derive(Debug)]
pub(crate) struct Cursor {
    check: Check,
    position: u64,
    end: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl Cursor {
    /// Stands at `position` (the beginning of a batch), on the way to `end`.
    pub(crate) fn new(check: Check, position: u64, end: u64) -> Self {
        debug_assert!(position <= end, "a walk goes forward");
        Self { check, position, end, window: Vec::new(), window_start: position }
    }

    /// Where the walk ends, in bytes.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Goes on from `position`, which lies ahead.
    pub(crate) fn step_to(&mut self, position: u64) {
        debug_assert!(self.position <= position && position <= self.end, "a walk goes forward");
        self.position = position;
    }

    /// The next batch; `None` at the end. After a bad one the cursor stands still.
    pub(crate) fn next<F: StorageFile>(
        &mut self,
        file: &F,
    ) -> StorageResult<Option<Result<Walked, BadBatch>>> {
        let position = self.position;
        let left = self.end.saturating_sub(position);
        if left == 0 {
            return Ok(None);
        }
        let bad = |reason, header| Ok(Some(Err(BadBatch { position, reason, header })));
        let header = match BatchHeader::parse(self.bytes(file, HEADER_BYTES)?) {
            Ok(header) => header,
            Err(reason) => return bad(reason, None),
        };
        if header.size() as u64 > left {
            let have = usize::try_from(left).unwrap_or(usize::MAX);
            return bad(BatchError::Partial { need: header.size(), have }, None);
        }
        if self.check == Check::Crc {
            match BatchView::parse(self.bytes(file, header.size())?) {
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

    /// The batch at `position`, which was met last and with its CRC checked.
    pub(crate) fn view(&self, position: u64) -> Option<BatchView<'_>> {
        let skip = usize::try_from(position.checked_sub(self.window_start)?).ok()?;
        BatchView::parse(self.window.get(skip..)?).ok()
    }

    /// The bytes at the position, `need` of them or those up to the end.
    fn bytes<F: StorageFile>(&mut self, file: &F, need: usize) -> StorageResult<&[u8]> {
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
            let read = file.read_up_to(&mut self.window, self.position)?;
            self.window.truncate(read);
            return Ok(&self.window);
        }
        Ok(self.window.get(skip..).unwrap_or_default())
    }
}

/// The next batch after a bad one at `position` that has a right CRC and begins at `from` or a later offset. `header` is that of the
/// bad one, when only its CRC is wrong.
pub(crate) fn find_good_after<F: StorageFile>(
    file: &F,
    position: u64,
    header: Option<BatchHeader>,
    end: u64,
    from: Offset,
) -> StorageResult<Option<Walked>> {
    if let Some(header) = header {
        // Its neighbour stands where the header says, if the header is right; no batch within its records is taken for one.
        let after = position.saturating_add(header.size() as u64);
        if after < end
            && let Some(Ok(next)) = Walk::new(file, Check::Crc, after, end).next()?
            && next.header.base_offset() >= from
        {
            return Ok(Some(next));
        }
    }
    let mut begin = position.saturating_add(1);
    while begin < end {
        let want = usize::try_from(end.saturating_sub(begin)).unwrap_or(SEARCH_BYTES).min(SEARCH_BYTES);
        let mut bytes = vec![0; want];
        let filled = file.read_up_to(&mut bytes, begin)?;
        bytes.truncate(filled);
        if let Some(at) = find_valid_batch(&bytes, from) {
            let at = begin.saturating_add(at as u64);
            return Ok(Walk::new(file, Check::Header, at, end).next()?.and_then(Result::ok));
        }
        if filled < SEARCH_BYTES {
            break;
        }
        begin = begin.saturating_add((SEARCH_BYTES - SEARCH_OVERLAP_BYTES) as u64);
    }
    Ok(None)
}
