//! What the `.log` files of a partition hold, read as they lie there, whatever state they are in: a program may run in
//! them, or have died in them.
//!
//! What must hold: bytes are whole batches only as far as CRCs and offsets say so, without a gap. Deliberately absent: the
//! log's own reading and recovery, which are under test.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use highwater_records::batches;

/// How often a log is read anew because a segment of it was removed meanwhile, at most.
const READS_MAX: usize = 100;

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
        let (segments, bytes) = read_segments(directory);
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

/// Begins anew when a program removes a segment meanwhile, which it does so many times and no more.
fn read_segments(directory: &Path) -> (Vec<PathBuf>, Vec<u8>) {
    for _ in 0..READS_MAX {
        let segments = segments(directory);
        match segments.iter().map(fs::read).collect::<io::Result<Vec<_>>>() {
            Ok(bytes) => return (segments, bytes.concat()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("a segment of {} cannot be read: {error}", directory.display()),
        }
    }
    panic!("segments of {} went {READS_MAX} times while they were read", directory.display());
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

/// Flips the lowest bit of the byte at `place` of a segment, in bytes, as a disk that rots does.
pub fn flip(segment: &Path, place: usize) {
    let file = OpenOptions::new().read(true).write(true).open(segment).expect("the segment is there");
    let (mut byte, place) = ([0], place as u64);
    file.read_exact_at(&mut byte, place).expect("within the segment");
    file.write_all_at(&byte.map(|byte| byte ^ 1), place).expect("writable");
}

/// The base offset that a segment file's name says.
#[must_use]
pub fn base_offset(segment: &Path) -> i64 {
    let name = segment.file_stem().and_then(|name| name.to_str()).expect("a segment's name is a number");
    name.parse().expect("a segment's name is a number")
}
