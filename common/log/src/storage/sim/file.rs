//! An open file of a simulated disk, in the hands of one process.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use nix::libc;
use parking_lot::Mutex;

use super::node::FileNode;
use super::process::SimStorage;
use crate::storage::{Access, StorageError, StorageFile, StorageOperation, StorageResult};

/// An open file of a simulated disk.
#[derive(Debug)]
pub struct SimFile {
    storage: SimStorage,
    file: Arc<Mutex<FileNode>>,
    path: Arc<Path>,
    access: Access,
}

impl SimFile {
    pub(super) fn of(storage: SimStorage, file: Arc<Mutex<FileNode>>, path: &Path, access: Access) -> Self {
        Self { storage, file, path: path.into(), access }
    }

    fn write(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let start = usize::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut state = self.storage.disk.state.lock();
        state.check_alive(self.storage.process)?;
        let mut file = self.file.lock();
        let mut outcome = Ok(());
        let mut allowed = bytes.len();
        if state.begins(StorageOperation::Write, &self.path, position, bytes.len()) {
            outcome = Err(io::Error::other("the simulated process dies in a write"));
        } else if let Some(error) = state.take_fault(StorageOperation::Write, &self.path) {
            outcome = Err(error);
        }
        if outcome.is_err() {
            let whole = bytes.len() as u64;
            allowed = usize::try_from(state.rng.below(whole + 1)).unwrap_or_default();
        }
        if let Some(left) = state.space_left {
            let len = file.visible().len();
            let room = len.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)).saturating_sub(start);
            if room < allowed {
                allowed = room;
                outcome = Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let growth = start.saturating_add(allowed).saturating_sub(len);
            let growth = if allowed == 0 { 0 } else { growth as u64 };
            state.space_left = Some(left.saturating_sub(growth));
        }
        file.write(bytes.get(..allowed).unwrap_or_default(), start);
        outcome
    }

    fn sync(&self) -> StorageResult<()> {
        let mut state = self.storage.disk.state.lock();
        let state = &mut *state;
        let mut run = || {
            state.check_alive(self.storage.process)?;
            if state.begins(StorageOperation::Sync, &self.path, 0, 0) {
                return Err(io::Error::other("the simulated process dies in a flush"));
            }
            let mut file = self.file.lock();
            if let Some(error) = state.take_fault(StorageOperation::Sync, &self.path) {
                file.sync_in_vain(&mut state.rng);
                return Err(error);
            }
            file.sync();
            Ok(())
        };
        run().map_err(|source| StorageError::new(StorageOperation::Sync, &self.path, source))
    }
}

impl StorageFile for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> StorageResult<usize> {
        self.storage.reading(StorageOperation::Read, &self.path, |_| {
            let file = self.file.lock();
            let start = usize::try_from(position).unwrap_or(usize::MAX);
            let source = file.visible().get(start..).unwrap_or_default();
            let read = source.len().min(buf.len());
            if let (Some(target), Some(source)) = (buf.get_mut(..read), source.get(..read)) {
                target.copy_from_slice(source);
            }
            Ok(read)
        })
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> StorageResult<()> {
        self.write(bytes, position)
            .map_err(|source| StorageError::new(StorageOperation::Write, &self.path, source))
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> StorageResult<()> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.write_all_at(&bytes, position)
    }

    fn len(&self) -> StorageResult<u64> {
        self.storage
            .reading(StorageOperation::Inspect, &self.path, |_| Ok(self.file.lock().visible().len() as u64))
    }

    fn set_len(&self, len: u64) -> StorageResult<()> {
        self.storage.changing(StorageOperation::SetLen, &self.path, |state| {
            if self.access == Access::ReadOnly {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
            let mut file = self.file.lock();
            state.give_back(file.visible().len().saturating_sub(len));
            file.set_len(len);
            Ok(())
        })
    }

    fn sync_data(&self) -> StorageResult<()> {
        self.sync()
    }

    fn sync_all(&self) -> StorageResult<()> {
        self.sync()
    }

    fn drop_clean_cache(&self) -> StorageResult<()> {
        self.storage.reading(StorageOperation::Inspect, &self.path, |_| {
            self.file.lock().drop_clean_pages();
            Ok(())
        })
    }
}
