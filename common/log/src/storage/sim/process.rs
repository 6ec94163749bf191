//! What one process sees of a simulated disk: names and directories.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nix::libc;
use parking_lot::Mutex;

use super::disk::{DiskState, SimDisk, names};
use super::file::SimFile;
use super::node::{FileNode, Node};
use crate::storage::{Access, DirEntry, Storage, StorageError, StorageOperation, StorageResult};

/// What one process sees of a simulated disk. Clones belong to the same process.
#[derive(Clone, Debug)]
pub struct SimStorage {
    pub(super) disk: SimDisk,
    pub(super) process: u64,
}

impl SimStorage {
    pub(super) const fn of(disk: SimDisk, process: u64) -> Self {
        Self { disk, process }
    }

    /// A process on a disk of its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimDisk::new(seed).process()
    }

    /// The disk, for injecting faults and starting other processes.
    #[must_use]
    pub const fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Kills this process (`kill -9`): nothing written is lost, because the page cache outlives a process; its locks are
    /// freed. Returns a new process.
    #[must_use = "the dead process's view is useless"]
    pub fn crash_process(&self) -> Self {
        let mut state = self.disk.state.lock();
        state.alive.remove(&self.process);
        state.locks.retain(|_, holder| *holder != self.process);
        (state.stop_after, state.stopped) = (None, false);
        drop(state);
        self.disk.process()
    }

    /// [`SimDisk::power_loss`], and a new process after it.
    #[must_use = "the dead process's view is useless"]
    pub fn power_loss(&self) -> Self {
        self.disk.power_loss();
        self.disk.process()
    }

    /// Takes the lock at `position` for this process; false when another one has it. The caller excludes itself.
    pub(crate) fn lock(&self, position: u64) -> io::Result<bool> {
        let mut state = self.disk.state.lock();
        state.check_alive(self.process)?;
        Ok(*state.locks.entry(position).or_insert(self.process) == self.process)
    }

    /// Frees the lock at `position`; a dead process has none.
    pub(crate) fn unlock(&self, position: u64) {
        let mut state = self.disk.state.lock();
        if state.locks.get(&position) == Some(&self.process) {
            state.locks.remove(&position);
        }
    }

    pub(super) fn reading<T>(
        &self,
        operation: StorageOperation,
        path: &Path,
        work: impl FnOnce(&DiskState) -> io::Result<T>,
    ) -> StorageResult<T> {
        let mut state = self.disk.state.lock();
        let run = || {
            state.check_alive(self.process)?;
            if let Some(error) = state.take_fault(operation, path) {
                return Err(error);
            }
            work(&state)
        };
        run().map_err(|source| StorageError::new(operation, path, source))
    }

    pub(super) fn changing<T>(
        &self,
        operation: StorageOperation,
        path: &Path,
        work: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> StorageResult<T> {
        let mut state = self.disk.state.lock();
        let run = || {
            state.check_alive(self.process)?;
            if state.begins(operation, path, 0, 0) {
                return Err(io::Error::other("the simulated process dies"));
            }
            if let Some(error) = state.take_fault(operation, path) {
                return Err(error);
            }
            work(&mut state)
        };
        run().map_err(|source| StorageError::new(operation, path, source))
    }
}

impl Storage for SimStorage {
    type File = SimFile;

    fn create_new(&self, path: &Path) -> StorageResult<SimFile> {
        self.changing(StorageOperation::Create, path, |state| {
            let (dir, name) = state.place(path)?;
            let mut dir = dir.lock();
            if dir.visible().contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if state.space_left == Some(0) {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let file = Arc::<Mutex<FileNode>>::default();
            dir.put(name, Node::File(Arc::clone(&file)));
            Ok(SimFile::of(self.clone(), file, path, Access::ReadWrite))
        })
    }

    fn open(&self, path: &Path, access: Access) -> StorageResult<SimFile> {
        self.reading(StorageOperation::Open, path, |state| {
            Ok(SimFile::of(self.clone(), state.file(path)?, path, access))
        })
    }

    fn list_dir(&self, path: &Path) -> StorageResult<Vec<DirEntry>> {
        self.reading(StorageOperation::List, path, |state| {
            let dir = state.dir(path)?;
            let entry = |(name, node): (&OsString, &Node)| match node {
                Node::Dir(_) => DirEntry { name: name.clone(), is_dir: true, len: 0 },
                Node::File(file) => {
                    DirEntry { name: name.clone(), is_dir: false, len: file.lock().visible().len() as u64 }
                }
            };
            let entries = dir.lock().visible().iter().map(entry).collect();
            Ok(entries)
        })
    }

    fn exists(&self, path: &Path) -> StorageResult<bool> {
        self.reading(StorageOperation::Inspect, path, |state| match state.lookup(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(e),
        })
    }

    fn file_len(&self, path: &Path) -> StorageResult<u64> {
        self.reading(StorageOperation::Inspect, path, |state| {
            Ok(state.file(path)?.lock().visible().len() as u64)
        })
    }

    fn create_dir_all(&self, path: &Path) -> StorageResult<()> {
        self.changing(StorageOperation::CreateDir, path, |state| {
            let mut at = Arc::clone(&state.root);
            for name in names(path)? {
                let mut dir = at.lock();
                if !dir.visible().contains_key(name) {
                    dir.put(name, Node::new_dir());
                }
                let Some(Node::Dir(next)) = dir.visible().get(name).cloned() else {
                    return Err(io::ErrorKind::NotADirectory.into());
                };
                drop(dir);
                at = next;
            }
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> StorageResult<()> {
        self.changing(StorageOperation::Remove, path, |state| {
            let len = state.file(path)?.lock().visible().len();
            let (dir, name) = state.place(path)?;
            dir.lock().remove(name).ok_or(io::ErrorKind::NotFound)?;
            state.give_back(len);
            Ok(())
        })
    }

    fn remove_dir_all(&self, path: &Path) -> StorageResult<()> {
        self.changing(StorageOperation::Remove, path, |state| {
            let node = Node::Dir(state.dir(path)?);
            state.remove_tree(&node);
            let (dir, name) = state.place(path)?;
            dir.lock().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> StorageResult<()> {
        self.changing(StorageOperation::Rename, from, |state| {
            if from.parent() != to.parent() {
                return Err(io::ErrorKind::CrossesDevices.into());
            }
            let (dir, old) = state.place(from)?;
            let (_, new) = state.place(to)?;
            if let Ok(Node::File(replaced)) = state.lookup(to)
                && from != to
            {
                let len = replaced.lock().visible().len();
                state.give_back(len);
            }
            dir.lock().rename(old, new).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn sync_dir(&self, path: &Path) -> StorageResult<()> {
        self.changing(StorageOperation::SyncDir, path, |state| {
            state.dir(path)?.lock().sync();
            Ok(())
        })
    }
}
