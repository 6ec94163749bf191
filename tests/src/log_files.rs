//! What the `.log` files of a partition hold, read as they lie there, whatever state they are in: a program may run in
//! them, or have died in them.
//!
//! What must hold: bytes are whole batches only as far as CRCs and offsets say so, without a gap. Deliberately absent: the
//! log's own reading and recovery, which are under test.

use std::fs;
use std::path::{Path, PathBuf};

use highwater_records::batches;

/// The bytes of a log, and how far they are good.
#[derive(Debug)]
pub struct LogBytes {
    /// All segments, one after the other.
    pub bytes: Vec<u8>,
    /// How many of the bytes are whole batches with right CRCs, which begin where the first segment's name says and
    /// whose offsets follow each other.
    pub good: usize,
    /// The offset after the last of those.
    pub end: i64,
}

impl LogBytes {
    /// Reads the partition directory; one that is not there holds nothing.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let mut bytes = Vec::new();
        let segments = segments(directory);
        for segment in &segments {
            bytes.extend(fs::read(segment).expect("a segment can be read"));
        }
        let (mut good, mut end) = (0, segments.first().map_or(0, |first| base_offset(first)));
        for batch in batches(&bytes) {
            match batch {
                Ok(batch) if batch.crc_ok() && batch.base_offset().get() == end => {
                    good += batch.size();
                    end = batch.next_offset().get();
                }
                Ok(_) | Err(_) => break,
            }
        }
        Self { bytes, good, end }
    }

    /// The good bytes.
    #[must_use]
    pub fn good_bytes(&self) -> &[u8] {
        self.bytes.get(..self.good).expect("good bytes are bytes")
    }
}

/// The `.log` files of a partition directory, in the order of their offsets.
#[must_use]
pub fn segments(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("a directory can be read").path());
    let mut segments: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    segments.sort();
    segments
}

/// The base offset that a segment file's name says.
#[must_use]
pub fn base_offset(segment: &Path) -> i64 {
    let name = segment.file_stem().and_then(|name| name.to_str()).expect("a segment's name is a number");
    name.parse().expect("a segment's name is a number")
}
