//! `<data>/disk-id`: which disk this is (design.md 6.3).
//!
//! The node's record in the coordination store says which identity its disk must have; a disk with another one is
//! restored or copied. Each start rotates it under a lock that both programs of the node share. What must hold: the file
//! is written in place, never replaced, because the lock is on it; and its 17 bytes lie within one sector, which a power
//! loss does not tear.
//!
//! Deliberately absent: the rotation itself (its steps are compare-and-swaps of the store).

use std::path::Path;

use highwater_types::Incarnation;

use crate::lock::{LockGuard, PartitionLocks};
use crate::storage::{Access, Storage, StorageFile, StorageResult};

/// The file's name in the data directory.
pub const DISK_ID_FILE: &str = "disk-id";

const BYTES: usize = 17;

/// The disk's identity, locked: nobody else reads or writes it meanwhile.
#[derive(Debug)]
pub struct DiskIdFile<S: Storage> {
    storage: S,
    file: S::File,
    _guard: LockGuard,
}

impl<S: Storage> DiskIdFile<S> {
    /// Locks the identity of the disk that holds `data_dir`; `None` when the other program has it locked just now.
    ///
    /// # Errors
    /// What the disk says.
    pub fn try_lock(storage: &S, data_dir: &Path, locks: &PartitionLocks) -> StorageResult<Option<Self>> {
        let Some(guard) = locks.try_lock_disk_id()? else { return Ok(None) };
        let path = data_dir.join(DISK_ID_FILE);
        let file = match storage.open(&path, Access::ReadWrite) {
            Err(e) if e.is_not_found() => storage.create_new(&path)?,
            opened => opened?,
        };
        Ok(Some(Self { storage: storage.clone(), file, _guard: guard }))
    }

    /// The identity; `None` when the disk has none (or none that can be read, which comes to the same).
    ///
    /// # Errors
    /// What the disk says.
    pub fn read(&self) -> StorageResult<Option<Incarnation>> {
        let mut bytes = [0; BYTES];
        if self.file.len()? != BYTES as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut bytes, 0)?;
        let text = std::str::from_utf8(&bytes).ok().and_then(|text| text.strip_suffix('\n'));
        Ok(text.and_then(|text| text.parse().ok()))
    }

    /// Writes the identity; durable on return, with the file's name.
    ///
    /// # Errors
    /// What the disk says. Then the old identity or the new one is found later.
    pub fn write(&self, id: Incarnation) -> StorageResult<()> {
        let text = format!("{id}\n");
        debug_assert_eq!(text.len(), BYTES, "an identity has a fixed length");
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(BYTES as u64)?;
        self.file.sync_all()?;
        self.storage.sync_dir(self.file.path().parent().unwrap_or_else(|| Path::new("/")))?;
        debug_assert_eq!(self.read().ok().flatten(), Some(id), "what is written can be read");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OsStorage;
    use crate::storage::sim::SimStorage;

    fn id(raw: u64) -> Incarnation {
        Incarnation::new(raw).unwrap()
    }

    #[test]
    fn both_programs_see_one_identity_and_lock_each_other_out() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) =
            (PartitionLocks::open(dir.path()).unwrap(), PartitionLocks::open(dir.path()).unwrap());
        let locked = DiskIdFile::try_lock(&OsStorage, dir.path(), &one).unwrap().unwrap();
        assert!(DiskIdFile::try_lock(&OsStorage, dir.path(), &other).unwrap().is_none());
        assert_eq!(locked.read().unwrap(), None, "a fresh disk has none");
        locked.write(id(0xfeed)).unwrap();
        drop(locked);
        let locked = DiskIdFile::try_lock(&OsStorage, dir.path(), &other).unwrap().unwrap();
        assert_eq!(locked.read().unwrap(), Some(id(0xfeed)));
        assert_eq!(std::fs::read(dir.path().join("disk-id")).unwrap(), b"000000000000feed\n");
    }

    #[test]
    fn a_power_loss_leaves_the_old_identity_or_the_new_one() {
        let data_dir = Path::new("/d");
        for (seed, stop) in (0..100).flat_map(|seed| (0..5).map(move |stop| (seed, stop))) {
            let mut storage = SimStorage::new(seed);
            storage.create_dir_all(data_dir).unwrap();
            storage.sync_dir(Path::new("/")).unwrap();
            let locked = |storage: &SimStorage| {
                DiskIdFile::try_lock(storage, data_dir, &PartitionLocks::simulated(storage)).unwrap().unwrap()
            };
            locked(&storage).write(id(1)).unwrap();
            let file = locked(&storage);
            storage.disk().stop_after(stop);
            let written = file.write(id(2));
            storage = storage.power_loss();
            let after = locked(&storage).read().unwrap();
            assert!([Some(id(1)), Some(id(2))].contains(&after), "seed {seed}, stop {stop}: {after:?}");
            assert!(written.is_err() || after == Some(id(2)), "seed {seed}, stop {stop}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_identity() {
        let dir = tempfile::tempdir().unwrap();
        let locks = PartitionLocks::open(dir.path()).unwrap();
        for bytes in [&b""[..], b"000000000000feed", &[0; 17], b"0000000000000000\n", b"00000000000000zz\n"] {
            std::fs::write(dir.path().join("disk-id"), bytes).unwrap();
            let locked = DiskIdFile::try_lock(&OsStorage, dir.path(), &locks).unwrap().unwrap();
            assert_eq!(locked.read().unwrap(), None, "{bytes:?}");
        }
    }
}
