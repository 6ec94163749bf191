//! Walking a concatenation of batches.

use std::iter::FusedIterator;

use highwater_types::Offset;

use crate::header::{HEADER_BYTES, MAGIC};
use crate::{BatchError, BatchView};

/// Walks the batches that `bytes` is a concatenation of. See [`Batches`].
#[must_use]
pub const fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches { rest: bytes, position: 0, ended: false }
}

/// An iterator over the batches of a byte slice. It ends after the last whole batch; when bytes are left that are no whole
/// batch, its last item is the error that says why, [`BatchError::Partial`] for a tail that was cut off. The records are
/// not looked at.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
    position: usize,
    ended: bool,
}

impl Batches<'_> {
    /// How many bytes the whole batches had that were returned so far: where an error was found, too. (Not `position`,
    /// which `Iterator` has.)
    #[must_use]
    pub const fn consumed(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.rest.is_empty() {
            return None;
        }
        let batch = BatchView::parse(self.rest);
        match &batch {
            Ok(batch) => {
                // A batch has at least a header, so each step shortens the rest.
                self.rest = self.rest.get(batch.size()..).unwrap_or_default();
                self.position = self.position.saturating_add(batch.size());
            }
            Err(_) => self.ended = true,
        }
        Some(batch)
    }
}

impl FusedIterator for Batches<'_> {}

/// How many bytes of CRC [`find_valid_batch`] computes per byte that it searches, at most: text that is made to look like
/// batches at every byte must not cost the square of its length.
const SEARCH_FACTOR: usize = 64;

/// Where, in `bytes`, the first whole batch with a right CRC begins whose base offset is at least `from`, starting at any
/// byte. Tells damage (a good batch follows the bad one) from a torn tail (nothing does). Gives up, and returns `None`,
/// when the bytes hold absurdly many false beginnings.
#[must_use]
pub fn find_valid_batch(bytes: &[u8], from: Offset) -> Option<usize> {
    let mut budget = bytes.len().saturating_mul(SEARCH_FACTOR);
    let magic = MAGIC.to_be_bytes();
    for (position, window) in bytes.windows(HEADER_BYTES).enumerate() {
        if window.get(16..17) != Some(magic.as_slice()) {
            continue;
        }
        let Ok(batch) = BatchView::parse(bytes.get(position..)?) else { continue };
        if batch.base_offset() < from {
            continue;
        }
        budget = budget.checked_sub(batch.size())?;
        if batch.crc_ok() {
            return Some(position);
        }
    }
    None
}

#[cfg(test)]
#[path = "iter_test.rs"]
mod tests;
