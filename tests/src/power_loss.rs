//! Power loss for a real process: the C library in tests/shim/power_loss.c, preloaded into the program, remembers what
//! was flushed below one directory; after the program was killed, [`PowerLoss::strike`] puts that in the directory's
//! place.
//!
//! What must hold: a file keeps what its last fsync or fdatasync covered, a name what the last fsync of its directory
//! covered; nothing else is certain. Deliberately absent: losing what *was* flushed (a lying disk) and rot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use uuid::Uuid;

use crate::programs;

/// Kernels write a file back in pages of this many bytes.
const PAGE: usize = 4096;

/// What becomes of that which was not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unflushed {
    /// All of it is gone.
    Lost,
    /// Every page, length and name that changed is, each for itself, as it was flushed or as it was last; the seed
    /// decides. Kernels write back what they like.
    Torn(u64),
}

/// A directory that can suffer a power loss. Start the programs with [`PowerLoss::environment`].
#[derive(Debug)]
pub struct PowerLoss {
    root: PathBuf,
    shadow: PathBuf,
    boot_id: Uuid,
    flush: Duration,
}

/// A name in a directory: the inode behind it, and whether that is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    inode: u64,
    is_dir: bool,
}

type Entries = BTreeMap<OsString, Entry>;

impl PowerLoss {
    /// Watches `root`, which exists. What it holds now counts as flushed.
    ///
    /// # Errors
    /// When the directory cannot be read, or the shadow beside it cannot be written.
    pub fn watch(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let shadow = beside(&root, "shadow");
        let watched = Self { root, shadow, boot_id: Uuid::new_v4(), flush: Duration::ZERO };
        watched.remember_everything()?;
        Ok(watched)
    }

    /// A flush takes so long: then records are on their way to the disk whenever the power goes.
    #[must_use]
    pub const fn flushing_in(mut self, flush: Duration) -> Self {
        self.flush = flush;
        self
    }

    /// What to set in the environment of each program that works on the directory. The boot id changes by each strike,
    /// as a machine's does.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("LD_PRELOAD".into(), programs::power_loss_shim().into()),
            ("POWER_LOSS_ROOT".into(), self.root.clone().into()),
            ("POWER_LOSS_SHADOW".into(), self.shadow.clone().into()),
            ("POWER_LOSS_FLUSH_MS".into(), self.flush.as_millis().to_string().into()),
            ("HIGHWATER_BOOT_ID".into(), self.boot_id.to_string().into()),
        ]
    }

    /// Whether the shim works in the process; a test asserts it, else the test would prove nothing.
    #[must_use]
    pub fn is_loaded_in(&self, pid: u32) -> bool {
        self.shadow.join("loaded").join(pid.to_string()).exists()
    }

    /// Puts what the power loss leaves in the place of the directory. Every program on it must be dead.
    ///
    /// # Errors
    /// When the directory cannot be built anew.
    pub fn strike(&mut self, unflushed: Unflushed) -> io::Result<()> {
        let after = beside(&self.root, "after");
        let dice = match unflushed {
            Unflushed::Lost => None,
            Unflushed::Torn(seed) => Some(StdRng::seed_from_u64(seed)),
        };
        let current = self.index_current()?;
        let root = fs::metadata(&self.root)?.ino();
        Aftermath { shadow: &self.shadow, current, dice }.build_dir(root, &after)?;
        fs::remove_dir_all(&self.root)?;
        fs::rename(&after, &self.root)?;
        fs::remove_dir_all(&self.shadow)?;
        self.boot_id = Uuid::new_v4();
        self.remember_everything()
    }

    /// Makes a shadow in which all that the directory holds is flushed.
    fn remember_everything(&self) -> io::Result<()> {
        for kind in ["content", "dir", "pin", "trash", "loaded"] {
            fs::create_dir_all(self.shadow.join(kind))?;
        }
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            let mut lines = Vec::new();
            for (name, entry) in entries_of(&folder)? {
                let path = folder.join(&name);
                let kind = if entry.is_dir { 'd' } else { 'f' };
                lines.extend(format!("{kind} {} ", entry.inode).into_bytes());
                lines.extend(name.into_vec());
                lines.push(b'\n');
                if entry.is_dir {
                    folders.push(path);
                } else {
                    fs::hard_link(&path, self.shadow.join("pin").join(entry.inode.to_string()))?;
                    fs::copy(&path, self.shadow.join("content").join(entry.inode.to_string()))?;
                }
            }
            fs::write(self.shadow.join("dir").join(fs::metadata(&folder)?.ino().to_string()), lines)?;
        }
        Ok(())
    }

    /// Every directory below the root as it is now, by inode.
    fn index_current(&self) -> io::Result<BTreeMap<u64, (PathBuf, Entries)>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            let entries = entries_of(&folder)?;
            folders
                .extend(entries.iter().filter(|(_, entry)| entry.is_dir).map(|(name, _)| folder.join(name)));
            found.insert(fs::metadata(&folder)?.ino(), (folder, entries));
        }
        Ok(found)
    }
}

impl Drop for PowerLoss {
    fn drop(&mut self) {
        // The shadow lies beside the directory, in a temporary place; left behind, it costs only room.
        let _ = fs::remove_dir_all(&self.shadow);
    }
}

/// `root` with a suffix: a neighbour on the same file system, so that hard links and renames work.
fn beside(root: &Path, suffix: &str) -> PathBuf {
    let mut path = root.to_owned().into_os_string();
    path.push(".");
    path.push(suffix);
    path.into()
}

/// The files and directories in `folder`; sockets and links do not outlive a machine's death here.
fn entries_of(folder: &Path) -> io::Result<Entries> {
    let mut entries = Entries::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() || kind.is_dir() {
            entries.insert(entry.file_name(), Entry { inode: entry.ino(), is_dir: kind.is_dir() });
        }
    }
    Ok(entries)
}

/// Builds what is left: from the shadow alone, or, with dice, from the shadow and what was there last.
struct Aftermath<'a> {
    shadow: &'a Path,
    current: BTreeMap<u64, (PathBuf, Entries)>,
    dice: Option<StdRng>,
}

impl Aftermath<'_> {
    fn build_dir(&mut self, inode: u64, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        for (name, entry) in self.surviving_entries(inode)? {
            let to = to.join(name);
            if entry.is_dir { self.build_dir(entry.inode, &to)? } else { self.build_file(entry.inode, &to)? }
        }
        Ok(())
    }

    fn surviving_entries(&mut self, inode: u64) -> io::Result<Entries> {
        let flushed = self.flushed_entries(inode)?;
        let Some(dice) = &mut self.dice else { return Ok(flushed) };
        let Some((_, current)) = self.current.get(&inode) else { return Ok(flushed) };
        let mut left = Entries::new();
        for name in flushed.keys().chain(current.keys().filter(|name| !flushed.contains_key(*name))) {
            let entry = if dice.random_bool(0.5) { flushed.get(name) } else { current.get(name) };
            // A directory is never reachable twice, by its old and its new name.
            let twice = entry.is_some_and(|entry| entry.is_dir && left.values().any(|other| other == entry));
            left.extend(entry.filter(|_| !twice).map(|entry| (name.clone(), *entry)));
        }
        Ok(left)
    }

    /// The entries at the directory's last flush; none when it never was.
    fn flushed_entries(&self, inode: u64) -> io::Result<Entries> {
        let lines = read_if_there(&self.shadow.join("dir").join(inode.to_string()))?;
        let malformed =
            || io::Error::new(io::ErrorKind::InvalidData, "a line of the shadow is not 'type inode name'");
        lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                let mut fields = line.splitn(3, |byte| *byte == b' ');
                let mut field = || fields.next().ok_or_else(malformed);
                let is_dir = field()? == b"d";
                let inode = std::str::from_utf8(field()?)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(malformed)?;
                Ok((OsString::from_vec(field()?.to_vec()), Entry { inode, is_dir }))
            })
            .collect()
    }

    fn build_file(&mut self, inode: u64, to: &Path) -> io::Result<()> {
        let flushed = read_if_there(&self.shadow.join("content").join(inode.to_string()))?;
        let left = match &mut self.dice {
            None => flushed,
            Some(dice) => {
                // A file that was never flushed and is gone by its name has nothing left but its pin, or nothing.
                let last =
                    match self.current.values().find_map(|(folder, entries)| path_of(inode, folder, entries))
                    {
                        Some(path) => fs::read(path)?,
                        None => read_if_there(&self.shadow.join("pin").join(inode.to_string()))?,
                    };
                torn(&flushed, &last, dice)
            }
        };
        fs::write(to, left)
    }
}

fn path_of(inode: u64, folder: &Path, entries: &Entries) -> Option<PathBuf> {
    entries.iter().find(|(_, entry)| entry.inode == inode).map(|(name, _)| folder.join(name))
}

fn read_if_there(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result,
    }
}

/// Each page from one of the two versions, and a length from the shorter to the longer; pages that neither has are
/// zero. What both agree on stays.
fn torn(flushed: &[u8], last: &[u8], dice: &mut StdRng) -> Vec<u8> {
    let (shorter, longer) = (flushed.len().min(last.len()), flushed.len().max(last.len()));
    let length = dice.random_range(shorter..=longer);
    let mut left = vec![0; length];
    for (index, page) in left.chunks_mut(PAGE).enumerate() {
        let source = if dice.random_bool(0.5) { flushed } else { last };
        let from = source.get(index * PAGE..).unwrap_or_default();
        for (to, from) in page.iter_mut().zip(from) {
            *to = *from;
        }
    }
    left
}

#[cfg(test)]
#[path = "power_loss_test.rs"]
mod tests;
