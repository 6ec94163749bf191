//! Who owns a partition's log: a lock that the kernel frees when its holder dies (design.md 2, Ownership).
//!
//! The two programs of a node share a data directory, and a log has one writer. The lock is an open-file-description
//! byte-range lock at a 63-bit hash of topic id and partition, in one of 64 files in `<data>/locks/`: no descriptor per
//! partition, and it excludes across containers that share the volume. What must hold:
//! - The files are never deleted: a new file of the same name would be another lock.
//! - The hash and its keys never change: both programs, of whatever version, must meet at the same byte.
//! - A process holds one descriptor per file. A descriptor does not exclude itself, so a map inside the process does
//!   (`held`); map and kernel are changed under one mutex.
//! - Descriptors are `O_CLOEXEC`: a child process would keep the lock of its dead parent.
//!
//! Two partitions on the same byte would exclude each other; at 63 bits that is not worth a rule. Deliberately absent:
//! waiting. Who does not get the lock decides how long to try.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_types::{Program, TopicIdPartition};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use crate::disk_id::DISK_ID_FILE;
#[cfg(any(test, feature = "test-util"))]
use crate::storage::sim::SimStorage;
use crate::storage::{StorageError, StorageOperation, StorageResult};

pub(crate) const LOCK_DIR: &str = "locks";
const LOCK_FILES: u64 = 64;
const HASH_KEYS: (u64, u64) = (0x6869_6768_7761_7465, 0x7220_6c6f_636b_7331);
const POSITION_MASK: u64 = i64::MAX.unsigned_abs();
/// Beyond every position of a partition, as the next two are.
const DISK_ID_KEY: u64 = u64::MAX;
const LEADER_SVC_KEY: u64 = u64::MAX - 1;
const FOLLOWER_AGENT_KEY: u64 = u64::MAX - 2;

/// The locks of one data directory, as one process takes them. Clones share everything.
#[derive(Clone, Debug)]
pub struct PartitionLocks {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kernel: Kernel,
    /// What this process holds.
    held: Mutex<BTreeSet<u64>>,
}

#[derive(Debug)]
enum Kernel {
    Os {
        partitions: Vec<LockFile>,
        disk_id: LockFile,
    },
    #[cfg(any(test, feature = "test-util"))]
    Sim(SimStorage),
}

/// A lock that is held; freed when dropped, or by the kernel when the process dies.
#[derive(Debug)]
#[must_use = "dropping it frees the lock"]
pub struct LockGuard {
    inner: Arc<Inner>,
    key: u64,
}

impl PartitionLocks {
    /// Opens the lock files in `data_dir`, which exists; creates what is missing.
    ///
    /// # Errors
    /// What the disk says; above all `EMFILE`: 65 descriptors are opened, once per process.
    pub fn open(data_dir: &Path) -> StorageResult<Self> {
        let dir = data_dir.join(LOCK_DIR);
        fs::create_dir_all(&dir).map_err(|e| StorageError::new(StorageOperation::CreateDir, &dir, e))?;
        let partitions = (0..LOCK_FILES).map(|number| LockFile::open(dir.join(lock_file_name(number))));
        let kernel = Kernel::Os {
            partitions: partitions.collect::<StorageResult<_>>()?,
            disk_id: LockFile::open(data_dir.join(DISK_ID_FILE))?,
        };
        Ok(Self::over(kernel))
    }

    /// The locks of a simulated disk, taken by `storage`'s process and freed when that dies.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn simulated(storage: &SimStorage) -> Self {
        Self::over(Kernel::Sim(storage.clone()))
    }

    fn over(kernel: Kernel) -> Self {
        Self { inner: Arc::new(Inner { kernel, held: Mutex::default() }) }
    }

    /// Takes the partition's lock; `None` when somebody has it, in this process or another.
    ///
    /// # Errors
    /// When the disk has no such locks, or fails.
    pub fn try_lock(&self, partition: TopicIdPartition) -> StorageResult<Option<LockGuard>> {
        self.try_lock_key(position_of(partition))
    }

    /// Whether a program holds the partition's lock in `data_dir`. Takes nothing and creates nothing: for those who only
    /// read, and want to know whether somebody writes meanwhile. (This process's own locks count.)
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn is_locked(data_dir: &Path, partition: TopicIdPartition) -> StorageResult<bool> {
        let position = position_of(partition);
        let path = data_dir.join(LOCK_DIR).join(lock_file_name(position % LOCK_FILES));
        let file = match File::open(&path) {
            Ok(file) => file,
            // Nobody ever locked anything here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(StorageError::new(StorageOperation::Open, &path, e)),
        };
        LockFile { file, path: path.clone() }
            .is_set(position)
            .map_err(|errno| StorageError::new(StorageOperation::Lock, &path, errno.into()))
    }

    /// Takes the lock of a program on the directory, which has one process of each; `None` when somebody has it.
    ///
    /// # Errors
    /// When the disk has no such locks, or fails.
    pub fn try_lock_program(&self, program: Program) -> StorageResult<Option<LockGuard>> {
        self.try_lock_key(match program {
            Program::LeaderSvc => LEADER_SVC_KEY,
            Program::FollowerAgent => FOLLOWER_AGENT_KEY,
        })
    }

    /// Takes the lock under which the disk identity rotates; `None` when somebody has it.
    pub(crate) fn try_lock_disk_id(&self) -> StorageResult<Option<LockGuard>> {
        self.try_lock_key(DISK_ID_KEY)
    }

    fn try_lock_key(&self, key: u64) -> StorageResult<Option<LockGuard>> {
        let mut held = self.inner.held.lock();
        if held.contains(&key) || !self.inner.kernel.try_lock(key)? {
            return Ok(None);
        }
        let is_new = held.insert(key);
        assert!(is_new, "a lock is given out once");
        Ok(Some(LockGuard { inner: Arc::clone(&self.inner), key }))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut held = self.inner.held.lock();
        self.inner.kernel.unlock(self.key);
        let was_held = held.remove(&self.key);
        debug_assert!(was_held, "a guard holds its lock until it is dropped");
    }
}

fn lock_file_name(number: u64) -> String {
    format!("{number:02}")
}

fn position_of(partition: TopicIdPartition) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(HASH_KEYS.0, HASH_KEYS.1);
    hasher.write(partition.topic_id.uuid().as_bytes());
    hasher.write(&partition.partition.get().to_be_bytes());
    hasher.finish() & POSITION_MASK
}

impl Kernel {
    fn try_lock(&self, key: u64) -> StorageResult<bool> {
        match self {
            Self::Os { partitions, disk_id } => {
                let file = file_of(partitions, disk_id, key);
                match file.set(libc::F_WRLCK, key & POSITION_MASK) {
                    Ok(()) => Ok(true),
                    Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
                    Err(errno) => Err(StorageError::new(StorageOperation::Lock, &file.path, errno.into())),
                }
            }
            #[cfg(any(test, feature = "test-util"))]
            Self::Sim(storage) => storage
                .lock(key)
                .map_err(|e| StorageError::new(StorageOperation::Lock, Path::new(LOCK_DIR), e)),
        }
    }

    fn unlock(&self, key: u64) {
        match self {
            Self::Os { partitions, disk_id } => {
                let file = file_of(partitions, disk_id, key);
                if let Err(errno) = file.set(libc::F_UNLCK, key & POSITION_MASK) {
                    // Nothing else can be done: the lock stays until the process ends.
                    tracing::error!(path = %file.path.display(), error = %io::Error::from(errno), "unlock");
                }
            }
            #[cfg(any(test, feature = "test-util"))]
            Self::Sim(storage) => storage.unlock(key),
        }
    }
}

fn file_of<'f>(partitions: &'f [LockFile], disk_id: &'f LockFile, key: u64) -> &'f LockFile {
    if key > POSITION_MASK {
        return disk_id;
    }
    let number = usize::try_from(key % LOCK_FILES).unwrap_or_default();
    partitions.get(number).unwrap_or(disk_id)
}

#[derive(Debug)]
struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    fn open(path: PathBuf) -> StorageResult<Self> {
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        match opened {
            Ok(file) => Ok(Self { file, path }),
            Err(e) => Err(StorageError::new(StorageOperation::Open, &path, e)),
        }
    }

    /// Locks or unlocks one byte, without waiting.
    fn set(&self, kind: libc::c_int, position: u64) -> nix::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&one_byte(kind, position)?)).map(drop)
    }

    /// Whether somebody else, by another open file description, has locked the byte.
    fn is_set(&self, position: u64) -> nix::Result<bool> {
        let mut range = one_byte(libc::F_WRLCK, position)?;
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut range))?;
        Ok(libc::c_int::from(range.l_type) != libc::F_UNLCK)
    }
}

fn one_byte(kind: libc::c_int, position: u64) -> nix::Result<libc::flock> {
    Ok(libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(|_| Errno::EINVAL)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(|_| Errno::EINVAL)?,
        l_start: i64::try_from(position).map_err(|_| Errno::EINVAL)?,
        l_len: 1,
        l_pid: 0,
    })
}

#[cfg(test)]
#[path = "lock_test.rs"]
mod tests;
