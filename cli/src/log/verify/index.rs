//! Checks of a segment's indexes against its batches.
//!
//! What holds: an index is a hint. It is good when it leads every search to a place at or before what is searched for; it may be sparse, or
//! empty. Both formats are Kafka's: big-endian entries, rising.

use std::fs;
use std::io;
use std::path::Path;

use highwater_records::BatchView;

use super::finding::{Finding, FindingKind};

/// One entry: a position (of the offset index) or a timestamp (of the time index), and an offset relative to the segment's
/// base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    value: i64,
    relative: i64,
}

/// Which index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexKind {
    /// `.index`: relative offset, position (4 bytes each).
    Offset,
    /// `.timeindex`: timestamp (8 bytes), relative offset (4 bytes).
    Time,
}

impl IndexKind {
    pub(super) const fn extension(self) -> &'static str {
        match self {
            Self::Offset => "index",
            Self::Time => "timeindex",
        }
    }
}

/// Follows one index while its segment is walked.
#[derive(Debug)]
pub(super) struct IndexCheck {
    kind: IndexKind,
    base: i64,
    entries: Vec<Entry>,
    /// How many entries were met.
    met: usize,
    /// How many bytes of zeros follow the entries.
    spare: usize,
    /// The largest timestamp so far; `None` once a bad batch may have held a larger one.
    max_timestamp: Option<i64>,
    /// The last offset so far.
    last_offset: i64,
    complaint: Option<String>,
}

impl IndexCheck {
    /// Reads an index file; `Ok(None)` when there is none.
    pub(super) fn open(path: &Path, kind: IndexKind, base: i64) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(Self::new(&bytes, kind, base))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn new(bytes: &[u8], kind: IndexKind, base: i64) -> Self {
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last.saturating_add(1));
        let (entries, entry_bytes, whole) = match kind {
            IndexKind::Offset => decode(bytes, used, |entry: &[u8; 8]| {
                let [r0, r1, r2, r3, p0, p1, p2, p3] = *entry;
                let relative = i64::from(i32::from_be_bytes([r0, r1, r2, r3]));
                Entry { value: i64::from(u32::from_be_bytes([p0, p1, p2, p3])), relative }
            }),
            IndexKind::Time => decode(bytes, used, |entry: &[u8; 12]| {
                let [t0, t1, t2, t3, t4, t5, t6, t7, r0, r1, r2, r3] = *entry;
                let relative = i64::from(i32::from_be_bytes([r0, r1, r2, r3]));
                Entry { value: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]), relative }
            }),
        };
        let complaint = (!whole).then(|| format!("{} bytes are no whole number of entries", bytes.len()));
        let spare = bytes.len().saturating_sub(entries.len().saturating_mul(entry_bytes));
        let mut check = Self {
            kind,
            base,
            entries,
            met: 0,
            spare,
            max_timestamp: Some(-1),
            last_offset: base,
            complaint,
        };
        check.check_rising();
        check
    }

    fn check_rising(&mut self) {
        let falls = self.entries.array_windows().position(|[a, b]| {
            let same_offset = self.kind == IndexKind::Time && a.relative == b.relative;
            a.value >= b.value || (a.relative >= b.relative && !same_offset)
        });
        if let Some(at) = falls {
            self.complain(format!("entry {} does not rise", at.saturating_add(1)));
        }
    }

    /// Takes the next good batch of the segment.
    pub(super) fn on_batch(&mut self, position: u64, batch: &BatchView<'_>) {
        let batch_max = batch.max_timestamp().as_millis();
        self.max_timestamp = self.max_timestamp.map(|so_far| so_far.max(batch_max));
        self.last_offset = batch.last_offset().get();
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        while let Some(entry) = self.entries.get(self.met).copied() {
            let offset = self.base.saturating_add(entry.relative);
            let good = match self.kind {
                IndexKind::Offset if entry.value > position => return,
                IndexKind::Offset => entry.value == position && batch.base_offset().get() <= offset,
                IndexKind::Time if batch.last_offset().get() < offset => return,
                IndexKind::Time => self.max_timestamp.is_none_or(|largest| entry.value == largest),
            };
            if !good {
                let Entry { value, .. } = entry;
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
    pub(super) fn on_bad(&mut self, position: u64, bytes: u64) {
        self.max_timestamp = None;
        let end = i64::try_from(position.saturating_add(bytes)).unwrap_or(i64::MAX);
        while self.kind == IndexKind::Offset
            && self.entries.get(self.met).is_some_and(|entry| entry.value < end)
        {
            self.met = self.met.saturating_add(1);
        }
    }

    /// Ends the check. `may_be_preallocated` says whether a live Kafka broker may have left room for more entries.
    pub(super) fn finish(mut self, path: &Path, may_be_preallocated: bool, findings: &mut Vec<Finding>) {
        // With bad bytes in the segment, what is left over may be about them.
        let is_left_over = self.max_timestamp.is_some() && self.met < self.entries.len();
        let last = self.entries.last().map_or(self.base, |last| self.base.saturating_add(last.relative));
        if is_left_over || (self.max_timestamp.is_some() && last > self.last_offset) {
            self.complain("the last entry points beyond the segment's batches".to_owned());
        }
        if self.spare > 0 && !may_be_preallocated {
            self.complain(format!("{} bytes after the last entry are zero", self.spare));
        }
        if let Some(complaint) = self.complaint {
            findings.push(Finding::problem(FindingKind::BadIndex, path, complaint));
        } else if self.spare > 0 {
            let detail = format!("{} bytes after the last entry are zero", self.spare);
            findings.push(Finding::note(FindingKind::PreallocatedIndex, path, detail));
        }
    }

    /// Only the first complaint is kept: a bad index is bad once.
    fn complain(&mut self, complaint: String) {
        self.complaint.get_or_insert(complaint);
    }
}

/// The entries within the first `used` bytes (the rest is zeros), how long one is, and whether `bytes` is a whole number of
/// them.
fn decode<const N: usize>(
    bytes: &[u8],
    used: usize,
    read: impl Fn(&[u8; N]) -> Entry,
) -> (Vec<Entry>, usize, bool) {
    let (chunks, rest) = bytes.as_chunks::<N>();
    let entries = chunks.iter().take(used.div_ceil(N)).map(read).collect();
    (entries, N, rest.is_empty())
}
