//! `leader-epoch-checkpoint`: where each leadership began, `epoch offset` per line, in Kafka's format.
//!
//! Entries must rise strictly in both numbers; from the first that does not, the file counts as damaged.

use std::path::Path;

use highwater_types::{EpochEntry, LeaderEpoch, LeaderEpochCache, Offset};

use super::text::{self, TEXT_BYTES_MAX};
use crate::storage::{Storage, StorageResult};

/// The file's name in a partition's directory.
pub const LEADER_EPOCH_FILE: &str = "leader-epoch-checkpoint";

/// What the file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedEpochs {
    /// There is no file.
    Absent,
    /// All of it.
    Whole(LeaderEpochCache),
    /// The entries before the first damage, and what is wrong. The caller makes the cache again from the batches.
    Damaged {
        /// What could be read.
        salvaged: LeaderEpochCache,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the file in `dir`.
///
/// # Errors
/// What the disk says. Damage is not an error.
pub fn read_leader_epochs<S: Storage>(storage: &S, dir: &Path) -> StorageResult<LoadedEpochs> {
    match storage.read_small(&dir.join(LEADER_EPOCH_FILE), TEXT_BYTES_MAX) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(e) if e.is_not_found() => Ok(LoadedEpochs::Absent),
        Err(e) => Err(e),
    }
}

/// Replaces the file in `dir`, durably.
///
/// # Errors
/// What the disk says; the old file is then still there.
pub fn write_leader_epochs<S: Storage>(
    storage: &S,
    dir: &Path,
    cache: &LeaderEpochCache,
) -> StorageResult<()> {
    let lines: Vec<_> = cache.entries().iter().map(|e| format!("{} {}", e.epoch, e.start)).collect();
    let bytes = text::format(&lines);
    debug_assert_eq!(parse(&bytes), LoadedEpochs::Whole(cache.clone()), "what is written can be read");
    storage.write_atomically(&dir.join(LEADER_EPOCH_FILE), &bytes)
}

fn parse(bytes: &[u8]) -> LoadedEpochs {
    let mut last: Option<EpochEntry> = None;
    let parsed = text::parse(bytes, |line| {
        let entry = entry(line)?;
        let rises = last.is_none_or(|last| last.epoch < entry.epoch && last.start < entry.start);
        last = Some(entry);
        rises.then_some(entry)
    });
    let cache: LeaderEpochCache = parsed.entries.into_iter().collect();
    match parsed.damage {
        None => LoadedEpochs::Whole(cache),
        Some(reason) => LoadedEpochs::Damaged { salvaged: cache, reason },
    }
}

fn entry(line: &str) -> Option<EpochEntry> {
    let (epoch, start) = line.split_once(' ')?;
    Some(EpochEntry {
        epoch: LeaderEpoch::new(epoch.parse().ok()?)?,
        start: Offset::new(start.parse().ok()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OsStorage;

    fn cache(entries: &[(i32, i64)]) -> LeaderEpochCache {
        let entry = |(epoch, start): &(i32, i64)| EpochEntry {
            epoch: LeaderEpoch::new(*epoch).unwrap(),
            start: Offset::new(*start).unwrap(),
        };
        entries.iter().map(entry).collect()
    }

    fn salvaged(bytes: &[u8]) -> LeaderEpochCache {
        let LoadedEpochs::Damaged { salvaged, .. } = parse(bytes) else { panic!("{bytes:?} is not damaged") };
        salvaged
    }

    #[test]
    fn the_file_has_kafkas_bytes_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_leader_epochs(&OsStorage, dir.path()).unwrap(), LoadedEpochs::Absent);
        let epochs = cache(&[(0, 0), (3, 57), (12, 9_000_000_000)]);
        write_leader_epochs(&OsStorage, dir.path(), &epochs).unwrap();
        let bytes = std::fs::read(dir.path().join("leader-epoch-checkpoint")).unwrap();
        assert_eq!(bytes, b"0\n3\n0 0\n3 57\n12 9000000000\n");
        assert_eq!(read_leader_epochs(&OsStorage, dir.path()).unwrap(), LoadedEpochs::Whole(epochs));
    }

    #[test]
    fn an_empty_cache_is_a_whole_file() {
        assert_eq!(parse(b"0\n0\n"), LoadedEpochs::Whole(cache(&[])));
    }

    #[test]
    fn damage_is_reported_with_what_could_be_read() {
        let nothing = cache(&[]);
        for bytes in [&b""[..], b"0\n", b"0", &[0; 16], b"1\n1\n0 0\n", b"0\nx\n", b"0\n-1\n", b"\xff\n0\n"] {
            assert_eq!(salvaged(bytes), nothing, "{bytes:?}");
        }
        let first = cache(&[(0, 0)]);
        for bytes in [
            &b"0\n2\n0 0\n"[..],
            b"0\n2\n0 0\n1 5",
            b"0\n2\n0 0\n1 \n",
            b"0\n2\n0 0\n1 -5\n",
            b"0\n2\n0 0\n0 5\n",
            b"0\n2\n0 0\n1 0\n",
            b"0\n2\n0 0\n\0\0\0\n",
            b"0\n1\n0 0\n1 5\n",
        ] {
            assert_eq!(salvaged(bytes), first, "{bytes:?}");
        }
    }

    #[test]
    fn no_prefix_of_a_file_is_taken_for_a_whole_one() {
        let bytes = text::format(&["0 0", "3 57", "12 345"]);
        for end in 0..bytes.len() {
            assert!(matches!(parse(&bytes[..end]), LoadedEpochs::Damaged { .. }), "{end} bytes");
        }
    }
}
