//! The machine's disk: its tree, the processes that use it, their locks, and the faults that a test injects.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::node::{DirNode, FileNode, Node};
use super::process::SimStorage;
use super::rng::SimRng;
use crate::storage::StorageOperation;

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
    pub(super) state: Arc<Mutex<DiskState>>,
}

pub(super) struct DiskState {
    pub(super) root: Arc<Mutex<DirNode>>,
    pub(super) rng: SimRng,
    pub(super) alive: BTreeSet<u64>,
    processes: u64,
    pub(super) locks: BTreeMap<u64, u64>,
    operations: u64,
    pub(super) stop_after: Option<u64>,
    pub(super) stopped: bool,
    pub(super) space_left: Option<u64>,
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
        SimStorage::of(self.clone(), process)
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

    /// Another disk that holds what programs see of this one now, all of it flushed: an image taken of a running machine. The
    /// seed is that of the new disk.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        let tree = self.state.lock().root.lock().copy();
        *copy.state.lock().root.lock() = tree;
        copy
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

    /// A bit of a file flips, on the platter and in what programs see of it.
    ///
    /// # Errors
    /// There is no such file.
    pub fn rot(&self, path: &Path, position: u64) -> io::Result<()> {
        let file = self.state.lock().file(path)?;
        file.lock().rot(usize::try_from(position).unwrap_or(usize::MAX));
        Ok(())
    }

    /// Whether an operation that [`Self::fail_next`] names is still to fail.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        !self.state.lock().faults.is_empty()
    }

    /// Calls `hook` before each change. It must not use the disk.
    pub fn set_trace(&self, hook: impl FnMut(&SimEvent) + Send + 'static) {
        self.state.lock().trace = Some(Box::new(hook));
    }
}

impl DiskState {
    pub(super) fn check_alive(&self, process: u64) -> io::Result<()> {
        if self.stopped || !self.alive.contains(&process) {
            return Err(io::Error::other("the simulated process is dead"));
        }
        Ok(())
    }

    pub(super) fn take_fault(&mut self, operation: StorageOperation, path: &Path) -> Option<io::Error> {
        let at = self.faults.iter().position(|(o, p, _)| *o == operation && p == path)?;
        let (_, _, errno) = self.faults.remove(at);
        Some(io::Error::from_raw_os_error(errno))
    }

    /// Counts a change; true when everything stops in it.
    pub(super) fn begins(
        &mut self,
        operation: StorageOperation,
        path: &Path,
        position: u64,
        len: usize,
    ) -> bool {
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

    pub(super) fn lookup(&self, path: &Path) -> io::Result<Node> {
        let mut at = Node::Dir(Arc::clone(&self.root));
        for name in names(path)? {
            let Node::Dir(dir) = &at else { return Err(io::ErrorKind::NotADirectory.into()) };
            let next = dir.lock().visible().get(name).cloned();
            at = next.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    pub(super) fn dir(&self, path: &Path) -> io::Result<Arc<Mutex<DirNode>>> {
        match self.lookup(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<Mutex<FileNode>>> {
        match self.lookup(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// The directory that holds the name, and the name.
    pub(super) fn place<'p>(&self, path: &'p Path) -> io::Result<(Arc<Mutex<DirNode>>, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.dir(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?, name))
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        self.space_left = self.space_left.map(|left| left.saturating_add(bytes as u64));
    }

    pub(super) fn remove_tree(&mut self, node: &Node) {
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

/// The names of a path below the root.
pub(super) fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
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
