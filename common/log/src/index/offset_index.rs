//! The offset index of a segment: where batches begin, sparsely.
//!
//! An entry is the *last* offset of a batch, relative to the segment's base, and the position at which this batch begins:
//! two big-endian `u32`. Entries rise strictly in both. Pure: the segment reads and writes the file.

/// How many bytes one entry has.
pub(crate) const OFFSET_ENTRY_BYTES: usize = 8;

/// The last offset of a batch and where the batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    /// The batch's last offset, relative to the segment's base offset.
    pub(crate) relative: u32,
    /// Where the batch begins in the segment, in bytes.
    pub(crate) position: u32,
}

/// A segment's offset index, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetIndex {
    entries: Vec<OffsetEntry>,
}

impl OffsetIndex {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn last(&self) -> Option<OffsetEntry> {
        self.entries.last().copied()
    }

    pub(crate) fn entries(&self) -> &[OffsetEntry] {
        &self.entries
    }

    /// Adds an entry. One that does not rise is left out: a hint less does no harm, a wrong one would.
    pub(crate) fn push(&mut self, entry: OffsetEntry) {
        let rises = self.last().is_none_or(|l| l.relative < entry.relative && l.position < entry.position);
        debug_assert!(rises, "{entry:?} after {:?}", self.last());
        if rises {
            self.entries.push(entry);
        }
    }

    /// The entry of the last indexed batch that ends at or before `relative`: from its position the log is read on.
    pub(crate) fn floor(&self, relative: u32) -> Option<OffsetEntry> {
        let after = self.entries.partition_point(|e| e.relative <= relative);
        after.checked_sub(1).and_then(|i| self.entries.get(i)).copied()
    }

    /// Drops the entries of batches that begin at or after `position`.
    pub(crate) fn truncate_to_position(&mut self, position: u64) {
        let keep = self.entries.partition_point(|e| u64::from(e.position) < position);
        self.entries.truncate(keep);
    }

    /// The file's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len().saturating_mul(OFFSET_ENTRY_BYTES));
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.relative.to_be_bytes());
            bytes.extend_from_slice(&entry.position.to_be_bytes());
        }
        bytes
    }

    /// Reads a file's bytes for a segment of `log_len` bytes.
    ///
    /// # Errors
    /// What is wrong with them: their length, entries that do not rise (a zeroed or preallocated file), or a position
    /// beyond the segment.
    pub(crate) fn decode(bytes: &[u8], log_len: u64) -> Result<Self, String> {
        let (chunks, rest) = bytes.as_chunks::<OFFSET_ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(format!("{} bytes are no whole number of entries", bytes.len()));
        }
        let mut index = Self { entries: Vec::with_capacity(chunks.len()) };
        for (at, chunk) in chunks.iter().enumerate() {
            let [r0, r1, r2, r3, p0, p1, p2, p3] = *chunk;
            let entry = OffsetEntry {
                relative: u32::from_be_bytes([r0, r1, r2, r3]),
                position: u32::from_be_bytes([p0, p1, p2, p3]),
            };
            if index.last().is_some_and(|l| l.relative >= entry.relative || l.position >= entry.position) {
                return Err(format!("entry {at} does not rise"));
            }
            if u64::from(entry.position) >= log_len || i32::try_from(entry.relative).is_err() {
                return Err(format!("entry {at} points beyond the segment"));
            }
            index.entries.push(entry);
        }
        Ok(index)
    }
}

#[cfg(test)]
#[path = "offset_index_test.rs"]
mod tests;
