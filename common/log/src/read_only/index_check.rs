//! Holds an index of a segment against its batches.
//!
//! What holds: an index is a hint. It is good when it leads every search to a place at or before what is searched for; it may
//! be sparse, or empty. This is less than recovery asks of our own indexes: Kafka's followers make one entry for several batches.

use highwater_records::BatchHeader;
use highwater_types::Offset;

use super::BadBytes;
use crate::IndexKind;
use crate::index::{OFFSET_ENTRY_BYTES, OffsetIndex, TIME_ENTRY_BYTES, TimeIndex};

/// One entry: a position (of the offset index) or a timestamp (of the time index), and an offset relative to the segment's
/// base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    value: i64,
    relative: i64,
}

/// What is wrong with an index, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// Nothing.
    Good,
    /// Nothing, and room for more entries: of a Kafka broker that was not stopped.
    Preallocated {
        /// How much room, in bytes.
        spare: u64,
    },
    /// It leads to wrong places, or is no index.
    Bad {
        /// What is wrong first.
        reason: String,
    },
}

/// Follows one index while its segment is walked: it wants to see every batch, and all bad bytes.
#[derive(Debug)]
pub struct IndexCheck {
    kind: IndexKind,
    base: i64,
    entries: Vec<Entry>,
    /// How many entries were met.
    met: usize,
    /// How many bytes of zeros follow the entries.
    spare: u64,
    may_have_room: bool,
    /// The largest timestamp so far; `None` once a bad batch may have held a larger one.
    max_timestamp: Option<i64>,
    /// The last offset so far.
    last_offset: i64,
    complaint: Option<String>,
}

impl IndexCheck {
    /// `may_have_room` says whether zeros may follow the entries.
    pub(super) fn new(bytes: &[u8], kind: IndexKind, base: Offset, may_have_room: bool) -> Self {
        let entry_bytes = match kind {
            IndexKind::Offset => OFFSET_ENTRY_BYTES,
            IndexKind::Time => TIME_ENTRY_BYTES,
        };
        let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last.saturating_add(1));
        let written = written.next_multiple_of(entry_bytes);
        let spare = bytes.len().saturating_sub(written) as u64;
        let (entries, complaint) = match decode(bytes.get(..written).unwrap_or(bytes), kind) {
            Ok(entries) => (entries, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let base = base.get();
        let max_timestamp = Some(-1);
        Self {
            kind,
            base,
            entries,
            met: 0,
            spare,
            may_have_room,
            max_timestamp,
            last_offset: base,
            complaint,
        }
    }

    /// Takes the next good batch of the segment, which begins at `position`.
    pub fn on_batch(&mut self, position: u64, batch: &BatchHeader) {
        let batch_max = batch.max_timestamp().as_millis();
        self.max_timestamp = self.max_timestamp.map(|so_far| so_far.max(batch_max));
        self.last_offset = batch.last_offset().get();
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        while let Some(Entry { value, relative }) = self.entries.get(self.met).copied() {
            let offset = self.base.saturating_add(relative);
            let good = match self.kind {
                IndexKind::Offset if value > position => return,
                IndexKind::Offset => value == position && batch.base_offset().get() <= offset,
                IndexKind::Time if self.last_offset < offset => return,
                IndexKind::Time => self.max_timestamp.is_none_or(|largest| value == largest),
            };
            if !good {
                let what = match self.kind {
                    IndexKind::Offset => format!("position {value} is not where offset {offset} is found"),
                    IndexKind::Time => format!("timestamp {value} is not the largest up to offset {offset}"),
                };
                self.complain(format!("entry {}: {what}", self.met));
            }
            self.met = self.met.saturating_add(1);
        }
    }

    /// Takes bad bytes of the segment: what the index says about them cannot be checked, and is not the index's fault.
    pub fn on_bad(&mut self, bad: &BadBytes<'_>) {
        self.max_timestamp = None;
        let end = i64::try_from(bad.position.saturating_add(bad.bytes)).unwrap_or(i64::MAX);
        while self.kind == IndexKind::Offset
            && self.entries.get(self.met).is_some_and(|entry| entry.value < end)
        {
            self.met = self.met.saturating_add(1);
        }
    }

    /// Ends the check, after the segment's last byte.
    #[must_use]
    pub fn finish(mut self) -> IndexState {
        // With bad bytes in the segment, what is left over may be about them.
        let is_left_over = self.met < self.entries.len();
        let last = self.entries.last().map_or(self.base, |last| self.base.saturating_add(last.relative));
        if self.max_timestamp.is_some() && (is_left_over || last > self.last_offset) {
            self.complain("the last entry points beyond the segment's batches".to_owned());
        }
        let spare = self.spare;
        if spare > 0 && !self.may_have_room {
            self.complain(format!("{spare} bytes after the last entry are zero"));
        }
        match self.complaint {
            Some(reason) => IndexState::Bad { reason },
            None if spare > 0 => IndexState::Preallocated { spare },
            None => IndexState::Good,
        }
    }

    /// Only the first complaint is kept: a bad index is bad once.
    fn complain(&mut self, complaint: String) {
        self.complaint.get_or_insert(complaint);
    }
}

fn decode(bytes: &[u8], kind: IndexKind) -> Result<Vec<Entry>, String> {
    match kind {
        IndexKind::Offset => {
            // Positions beyond the segment's end may be of batches that were torn off: the walk tells.
            let index = OffsetIndex::decode(bytes, u64::MAX)?;
            let entries = index.entries().iter();
            Ok(entries.map(|e| Entry { value: e.position.into(), relative: e.relative.into() }).collect())
        }
        IndexKind::Time => {
            let index = TimeIndex::decode(bytes)?;
            Ok(index
                .entries()
                .iter()
                .map(|e| Entry { value: e.timestamp, relative: e.relative.into() })
                .collect())
        }
    }
}

#[cfg(test)]
#[path = "index_check_test.rs"]
mod tests;
