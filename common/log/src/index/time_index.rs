//! The time index of a segment: how far timestamps had risen at which offset, sparsely.
//!
//! An entry is the largest timestamp of the segment so far (a big-endian `i64`) and the last offset of the batch that holds
//! it, relative to the segment's base (a big-endian `u32`). Entries rise strictly in the timestamp and never fall in the
//! offset; so batches dated -1, in the past, or at the end of time can neither turn the index back nor overflow it. Pure.

/// How many bytes one entry has.
pub(crate) const TIME_ENTRY_BYTES: usize = 12;

/// A timestamp and the batch that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// Milliseconds since 1970; the largest of the segment up to here.
    pub(crate) timestamp: i64,
    /// The last offset of the batch that holds it, relative to the segment's base offset.
    pub(crate) relative: u32,
}

/// A segment's time index, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeIndex {
    entries: Vec<TimeEntry>,
}

impl TimeIndex {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn last(&self) -> Option<TimeEntry> {
        self.entries.last().copied()
    }

    pub(crate) fn entries(&self) -> &[TimeEntry] {
        &self.entries
    }

    /// Adds an entry when its timestamp is larger than every one before, and is one at all.
    pub(crate) fn push_if_later(&mut self, entry: TimeEntry) {
        if entry.timestamp < 0 {
            return;
        }
        match self.last() {
            Some(last) if entry.timestamp <= last.timestamp || entry.relative < last.relative => {}
            Some(_) | None => self.entries.push(entry),
        }
    }

    /// The last entry whose timestamp is below `timestamp`: no batch up to its offset has `timestamp` or a later one.
    pub(crate) fn before(&self, timestamp: i64) -> Option<TimeEntry> {
        let after = self.entries.partition_point(|e| e.timestamp < timestamp);
        after.checked_sub(1).and_then(|i| self.entries.get(i)).copied()
    }

    /// Drops the entries of offsets at or after `relative`.
    pub(crate) fn truncate_to(&mut self, relative: u32) {
        let keep = self.entries.partition_point(|e| e.relative < relative);
        self.entries.truncate(keep);
    }

    /// The file's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len().saturating_mul(TIME_ENTRY_BYTES));
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.timestamp.to_be_bytes());
            bytes.extend_from_slice(&entry.relative.to_be_bytes());
        }
        bytes
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// What is wrong with them: their length, entries that do not rise (a zeroed or preallocated file), or a timestamp or
    /// offset that cannot be.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (chunks, rest) = bytes.as_chunks::<TIME_ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(format!("{} bytes are no whole number of entries", bytes.len()));
        }
        let mut index = Self { entries: Vec::with_capacity(chunks.len()) };
        for (at, chunk) in chunks.iter().enumerate() {
            let [t0, t1, t2, t3, t4, t5, t6, t7, r0, r1, r2, r3] = *chunk;
            let entry = TimeEntry {
                timestamp: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
                relative: u32::from_be_bytes([r0, r1, r2, r3]),
            };
            if index.last().is_some_and(|l| l.timestamp >= entry.timestamp || l.relative > entry.relative) {
                return Err(format!("entry {at} does not rise"));
            }
            if entry.timestamp < 0 || i32::try_from(entry.relative).is_err() {
                return Err(format!("entry {at} is impossible"));
            }
            index.entries.push(entry);
        }
        Ok(index)
    }
}

#[cfg(test)]
#[path = "time_index_test.rs"]
mod tests;
