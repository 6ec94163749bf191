//! What a file and a directory of the simulated disk go through: what programs see, what is on the platter, and what a
//! loss of power leaves of the difference.
//!
//! The model is harsher than any one file system, so that code that survives it does not lean on a journal's order:
//! - Bytes reach the platter in 4 KiB pages, in any order, and a page can be torn at 512-byte sectors. What was not
//!   flushed survives page by page or not at all. Where a longer length survives without its pages, zeros are read.
//! - An unflushed cut can come undone: the old tail is back, under whatever newer pages survived.
//! - Unflushed changes of a directory survive in any subset: a new file vanishes, a removed one is back, a rename is
//!   undone; but each single change is whole (a rename never leaves both names, or neither).
//! - A failed flush leaves some pages on the platter, forgets that the others were dirty, and keeps showing them to
//!   programs: a later flush "succeeds" without them. That is what Linux does.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use parking_lot::Mutex;

use super::rng::SimRng;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A file or a directory.
#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<Mutex<FileNode>>),
    Dir(Arc<Mutex<DirNode>>),
}

impl Node {
    pub(super) fn new_dir() -> Self {
        Self::Dir(Arc::default())
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(a), Self::File(b)) => Arc::ptr_eq(a, b),
            (Self::Dir(a), Self::Dir(b)) => Arc::ptr_eq(a, b),
            (Self::File(_), Self::Dir(_)) | (Self::Dir(_), Self::File(_)) => false,
        }
    }

    fn copy(&self) -> Self {
        match self {
            Self::File(file) => Self::File(Arc::new(Mutex::new(file.lock().copy()))),
            Self::Dir(dir) => Self::Dir(Arc::new(Mutex::new(dir.lock().copy()))),
        }
    }

    pub(super) fn lose_power(&self, rng: &mut SimRng) {
        match self {
            Self::File(file) => file.lock().lose_power(rng),
            Self::Dir(dir) => dir.lock().lose_power(rng),
        }
    }
}

/// How much of the unflushed survives; the extremes are as likely as everything between them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Survival {
    Nothing,
    Everything,
    Some,
}

impl SimRng {
    const fn survival(&mut self) -> Survival {
        match self.below(4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Some,
        }
    }
}

/// A file's bytes.
#[derive(Debug, Default)]
pub(super) struct FileNode {
    /// What programs see.
    visible: Vec<u8>,
    /// What is on the platter.
    durable: Vec<u8>,
    /// Pages of `visible` that a flush must write.
    dirty: BTreeSet<usize>,
    /// The shortest length since the last flush.
    cut: Option<usize>,
}

impl FileNode {
    pub(super) fn visible(&self) -> &[u8] {
        &self.visible
    }

    fn copy(&self) -> Self {
        Self { visible: self.visible.clone(), durable: self.visible.clone(), ..Self::default() }
    }

    pub(super) fn write(&mut self, bytes: &[u8], position: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = position.saturating_add(bytes.len());
        if end > self.visible.len() {
            self.visible.resize(end, 0);
        }
        if let Some(target) = self.visible.get_mut(position..end) {
            target.copy_from_slice(bytes);
        }
        self.dirty.extend(position / PAGE..=(end - 1) / PAGE);
        debug_assert!(self.visible.len() >= end, "a write extends the file");
    }

    pub(super) fn set_len(&mut self, len: usize) {
        if len < self.visible.len() {
            self.cut = Some(self.cut.map_or(len, |cut| cut.min(len)));
            self.dirty.retain(|page| page * PAGE < len);
            if !len.is_multiple_of(PAGE) {
                self.dirty.insert(len / PAGE);
            }
        }
        self.visible.resize(len, 0);
        debug_assert_eq!(self.visible.len(), len, "the length is as asked");
    }

    /// A bit of the byte at `position` flips.
    pub(super) fn rot(&mut self, position: usize) {
        for bytes in [&mut self.visible, &mut self.durable] {
            if let Some(byte) = bytes.get_mut(position) {
                *byte ^= 1;
            }
        }
    }

    /// A flush that works.
    pub(super) fn sync(&mut self) {
        self.durable.truncate(self.cut.unwrap_or(usize::MAX));
        self.durable.resize(self.visible.len(), 0);
        for page in std::mem::take(&mut self.dirty) {
            self.write_back(page * PAGE..(page + 1) * PAGE);
        }
        self.cut = None;
        debug_assert_eq!(self.durable.len(), self.visible.len(), "a flush makes the length durable");
    }

    /// A flush that fails: some pages are written, the others are taken for clean.
    pub(super) fn sync_in_vain(&mut self, rng: &mut SimRng) {
        self.lose_dirty_pages(rng);
        debug_assert!(self.dirty.is_empty(), "nothing is left for a later flush");
    }

    /// What counts as written is read from the platter again; after a flush that failed it may never have got there.
    pub(super) fn drop_clean_pages(&mut self) {
        let written = self.cut.unwrap_or(usize::MAX).min(self.durable.len());
        for start in
            (0..self.visible.len()).step_by(PAGE).filter(|start| !self.dirty.contains(&(start / PAGE)))
        {
            let end = (start + PAGE).min(self.visible.len());
            let Some(page) = self.visible.get_mut(start..end) else { continue };
            let source = self.durable.get(start..end.min(written)).unwrap_or_default();
            for (at, byte) in page.iter_mut().enumerate() {
                *byte = source.get(at).copied().unwrap_or_default();
            }
        }
    }

    fn lose_power(&mut self, rng: &mut SimRng) {
        self.lose_dirty_pages(rng);
        self.visible.clone_from(&self.durable);
    }

    fn lose_dirty_pages(&mut self, rng: &mut SimRng) {
        let survival = rng.survival();
        self.settle_length(survival, rng);
        for page in std::mem::take(&mut self.dirty) {
            let whole = match survival {
                Survival::Nothing => continue,
                Survival::Everything => true,
                Survival::Some if rng.one_in(2) => continue,
                Survival::Some => !rng.one_in(4),
            };
            for sector in 0..PAGE / SECTOR {
                let start = page * PAGE + sector * SECTOR;
                if whole || rng.one_in(2) {
                    self.write_back(start..start + SECTOR);
                }
            }
        }
        self.cut = None;
    }

    /// Decides which length is on the platter: without the cut the old one at least; with it, or beyond the old one,
    /// anything up to what programs saw.
    fn settle_length(&mut self, survival: Survival, rng: &mut SimRng) {
        let cut_survives = match survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::Some => rng.one_in(2),
        };
        if cut_survives {
            self.durable.truncate(self.cut.unwrap_or(usize::MAX));
        }
        let growth = self.visible.len().saturating_sub(self.durable.len());
        let survives = match survival {
            Survival::Nothing => 0,
            Survival::Everything => growth,
            Survival::Some if rng.one_in(2) => growth,
            Survival::Some => usize::try_from(rng.below(growth as u64 + 1)).unwrap_or(growth),
        };
        self.durable.resize(self.durable.len() + survives, 0);
    }

    /// Copies what programs see to the platter, within the length there. Past the visible end a page holds zeros.
    fn write_back(&mut self, range: std::ops::Range<usize>) {
        let end = range.end.min(self.durable.len());
        let Some(target) = self.durable.get_mut(range.start..end) else { return };
        target.fill(0);
        let source = self.visible.get(range.start..end.min(self.visible.len())).unwrap_or_default();
        if let Some(target) = target.get_mut(..source.len()) {
            target.copy_from_slice(source);
        }
    }
}

/// One change of a directory, which survives as a whole or not at all.
#[derive(Debug)]
enum DirChange {
    Put(OsString, Node),
    Remove(OsString),
    Rename(OsString, OsString, Node),
}

/// A directory's names.
#[derive(Debug, Default)]
pub(super) struct DirNode {
    /// What programs see.
    visible: BTreeMap<OsString, Node>,
    /// What is on the platter.
    durable: BTreeMap<OsString, Node>,
    /// What a flush must write, oldest first.
    pending: Vec<DirChange>,
}

impl DirNode {
    pub(super) const fn visible(&self) -> &BTreeMap<OsString, Node> {
        &self.visible
    }

    /// The same tree in other nodes, all of it flushed.
    pub(super) fn copy(&self) -> Self {
        let names: BTreeMap<_, _> =
            self.visible.iter().map(|(name, node)| (name.clone(), node.copy())).collect();
        Self { visible: names.clone(), durable: names, pending: Vec::new() }
    }

    pub(super) fn put(&mut self, name: &OsStr, node: Node) {
        self.visible.insert(name.to_owned(), node.clone());
        self.pending.push(DirChange::Put(name.to_owned(), node));
    }

    pub(super) fn remove(&mut self, name: &OsStr) -> Option<Node> {
        let removed = self.visible.remove(name)?;
        self.pending.push(DirChange::Remove(name.to_owned()));
        Some(removed)
    }

    pub(super) fn rename(&mut self, from: &OsStr, to: &OsStr) -> Option<()> {
        let node = self.visible.remove(from)?;
        self.visible.insert(to.to_owned(), node.clone());
        self.pending.push(DirChange::Rename(from.to_owned(), to.to_owned(), node));
        Some(())
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            self.apply(change);
        }
        debug_assert!(self.durable.keys().eq(self.visible.keys()), "a flush makes every name durable");
    }

    fn lose_power(&mut self, rng: &mut SimRng) {
        let survival = rng.survival();
        for change in std::mem::take(&mut self.pending) {
            let survives = match survival {
                Survival::Nothing => false,
                Survival::Everything => true,
                Survival::Some => rng.one_in(2),
            };
            if survives {
                self.apply(change);
            }
        }
        for node in self.durable.values() {
            node.lose_power(rng);
        }
        self.visible.clone_from(&self.durable);
    }

    fn apply(&mut self, change: DirChange) {
        match change {
            DirChange::Put(name, node) => {
                self.durable.insert(name, node);
            }
            DirChange::Remove(name) => {
                self.durable.remove(&name);
            }
            DirChange::Rename(from, to, node) => {
                // By node, not by `from` alone: an earlier rename of the same file may have been lost.
                self.durable.retain(|name, held| *name != from && !held.is(&node));
                self.durable.insert(to, node);
            }
        }
    }
}
