//! A disk in memory that crashes: what the simulation and the tests of durability run on.
//!
//! [`SimDisk`] is the machine's disk; [`SimStorage`] is what one process sees of it. A dead process's view, files and
//! locks are useless from the moment it dies, so that no test can go on through a stale handle. Everything is decided by
//! the seed and the order of the calls. What a loss of power does is described in `node.rs`.
//!
//! Limits: a rename stays within its directory (the log needs no other), there are no links and no permissions.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::libc;
use parking_lot::Mutex;

use super::{Access, DirEntry, Storage, StorageError, StorageFile, StorageOperation, StorageResult};

mod node;
mod rng;

use node::{DirNode, FileNode, Node};
use rng::SimRng;

/// One operation that changes the disk, as the trace hook sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimEvent {
    /// Its number, from 1, over all processes.
    pub number: u64,
    /// What is done.
    pub operation: StorageOperation,
    /// To which file or directory.
    pub path: PathBuf,
    /// Where in the file, in bytes; for [`StorageOperation::SetLen`] the new length.
    pub position: u64,
    /// How many bytes.
    pub len: usize,
}

type TraceHook = Box<dyn FnMut(&SimEvent) + Send>;

/// A machine's disk. Cloning gives another handle on the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

struct DiskState {
    root: Arc<Mutex<DirNode>>,
    rng: SimRng,
    alive: BTreeSet<u64>,
    processes: u64,
    locks: BTreeMap<u64, u64>,
    operations: u64,
    stop_after: Option<u64>,
    stopped: bool,
    space_left: Option<u64>,
    faults: Vec<(StorageOperation, PathBuf, i32)>,
    trace: Option<TraceHook>,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").finish_non_exhaustive()
    }
}

impl SimDisk {
    /// An empty disk; the seed decides what its crashes leave.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = DiskState {
            root: Arc::default(),
            rng: SimRng::new(seed),
            alive: BTreeSet::new(),
            processes: 0,
            locks: BTreeMap::new(),
            operations: 0,
            stop_after: None,
            stopped: false,
            space_left: None,
            faults: Vec::new(),
            trace: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Starts a process and returns its view of the disk.
    #[must_use]
    pub fn process(&self) -> SimStorage {
        let mut state = self.state.lock();
        state.processes += 1;
        let process = state.processes;
        state.alive.insert(process);
        SimStorage { disk: self.clone(), process }
    }

    /// Cuts the power: every process dies, and what was not flushed survives in part (see `node.rs`). Injected faults
    /// are gone; the space limit stays.
    pub fn power_loss(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.alive.clear();
        state.locks.clear();
        state.faults.clear();
        (state.stop_after, state.stopped) = (None, false);
        Node::Dir(Arc::clone(&state.root)).lose_power(&mut state.rng);
    }

    /// Lets `operations` more changes happen; in the one after those, everything stops: a write is done in part, any
    /// other change not at all, and every operation fails until [`Self::power_loss`] or [`SimStorage::crash_process`].
    pub fn stop_after(&self, operations: u64) {
        let mut state = self.state.lock();
        state.stop_after = Some(state.operations.saturating_add(operations));
    }

    /// Whether the stop of [`Self::stop_after`] has happened.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// How many changes have happened so far, over all processes.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Lets files grow by `bytes` in all, after which writes fail with `ENOSPC`; `None` = without limit. Cutting and
    /// removing files gives space back.
    pub fn set_space_left(&self, bytes: Option<u64>) {
        self.state.lock().space_left = bytes;
    }

    /// Makes the next `operation` on `path` fail with the operating system's error `errno`. A failing write may write a
    /// part; a failing flush loses dirty pages for good.
    pub fn fail_next(&self, operation: StorageOperation, path: &Path, errno: i32) {
        self.state.lock().faults.push((operation, path.to_owned(), errno));
    }

    /// Calls `hook` before each change. It must not use the disk.
    pub fn set_trace(&self, hook: impl FnMut(&SimEvent) + Send + 'static) {
        self.state.lock().trace = Some(Box::new(hook));
    }
}

impl DiskState {
    fn check_alive(&self, process: u64) -> io::Result<()> {
        if self.stopped || !self.alive.contains(&process) {
            return Err(io::Error::other("the simulated process is dead"));
        }
        Ok(())
    }

    fn take_fault(&mut self, operation: StorageOperation, path: &Path) -> Option<io::Error> {
        let at = self.faults.iter().position(|(o, p, _)| *o == operation && p == path)?;
        let (_, _, errno) = self.faults.remove(at);
        Some(io::Error::from_raw_os_error(errno))
    }

    /// Counts a change; true when everything stops in it.
    fn begins(&mut self, operation: StorageOperation, path: &Path, position: u64, len: usize) -> bool {
        if self.stop_after.is_some_and(|after| self.operations >= after) {
            self.stopped = true;
            return true;
        }
        self.operations += 1;
        if let Some(trace) = &mut self.trace {
            trace(&SimEvent { number: self.operations, operation, path: path.to_owned(), position, len });
        }
        false
    }

    fn lookup(&self, path: &Path) -> io::Result<Node> {
        let mut at = Node::Dir(Arc::clone(&self.root));
        for name in names(path)? {
            let Node::Dir(dir) = &at else { return Err(io::ErrorKind::NotADirectory.into()) };
            let next = dir.lock().visible().get(name).cloned();
            at = next.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    fn dir(&self, path: &Path) -> io::Result<Arc<Mutex<DirNode>>> {
        match self.lookup(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&self, path: &Path) -> io::Result<Arc<Mutex<FileNode>>> {
        match self.lookup(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// The directory that holds the name, and the name.
    fn place<'p>(&self, path: &'p Path) -> io::Result<(Arc<Mutex<DirNode>>, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.dir(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?, name))
    }

    fn give_back(&mut self, bytes: usize) {
        self.space_left = self.space_left.map(|left| left.saturating_add(bytes as u64));
    }

    fn remove_tree(&mut self, node: &Node) {
        match node {
            Node::File(file) => {
                let len = file.lock().visible().len();
                self.give_back(len);
            }
            Node::Dir(dir) => {
                let children: Vec<_> = dir.lock().visible().keys().cloned().collect();
                for name in children {
                    let removed = dir.lock().remove(&name);
                    if let Some(node) = removed {
                        self.remove_tree(&node);
                    }
                }
            }
        }
    }
}

fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}

/// What one process sees of a simulated disk. Clones belong to the same process.
#[derive(Clone, Debug)]
pub struct SimStorage {
    disk: SimDisk,
    process: u64,
}

impl SimStorage {
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

    fn reading<T>(
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

    fn changing<T>(
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
            Ok(SimFile { storage: self.clone(), file, path: path.into(), access: Access::ReadWrite })
        })
    }

    fn open(&self, path: &Path, access: Access) -> StorageResult<SimFile> {
        self.reading(StorageOperation::Open, path, |state| {
            Ok(SimFile { storage: self.clone(), file: state.file(path)?, path: path.into(), access })
        })
    }

    fn list_dir(&self, path: &Path) -> StorageResult<Vec<DirEntry>> {
        self.reading(StorageOperation::List, path, |state| {
            let dir = state.dir(path)?;
            let entry = |(name, node): (&std::ffi::OsString, &Node)| match node {
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

/// An open file of a simulated disk.
#[derive(Debug)]
pub struct SimFile {
    storage: SimStorage,
    file: Arc<Mutex<FileNode>>,
    path: Arc<Path>,
    access: Access,
}

impl SimFile {
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
}

#[cfg(test)]
#[path = "sim_test.rs"]
mod tests;
