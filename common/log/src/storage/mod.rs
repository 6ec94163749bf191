//! The seam between the log and a disk: [`Storage`] for names and directories, [`StorageFile`] for bytes.
//!
//! What must hold in every implementation (the conformance suite proves it for both):
//! - File access is positional and takes `&self`: any number of threads may read and write one file; no cursor exists.
//! - A write returns when all its bytes are readable; it is durable only after [`StorageFile::sync_data`] (or
//!   [`StorageFile::sync_all`]) of that file. A new name, a removed name and a rename are durable only after
//!   [`Storage::sync_dir`] of the directory that holds the name.
//! - An error says which operation on which path failed ([`StorageError`]).
//!
//! Deliberately absent: caching, retries, and any knowledge of logs.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
mod error;
mod os;
#[cfg(any(test, feature = "test-util"))]
pub mod sim;

pub use error::{StorageError, StorageOperation};
pub use os::{OsFile, OsStorage};

/// The outcome of an operation on a storage.
pub type StorageResult<T> = Result<T, StorageError>;

/// What an opened file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only; writes fail.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The last component of the path. Names of the log are ASCII; others may be anything.
    pub name: OsString,
    /// Whether it is a directory (a symbolic link counts as what it points to).
    pub is_dir: bool,
    /// The length in bytes; 0 for a directory.
    pub len: u64,
}

impl DirEntry {
    /// The name when it is UTF-8, as every name of the log is.
    #[must_use]
    pub fn utf8_name(&self) -> Option<&str> {
        self.name.to_str()
    }
}

/// A tree of files: the operating system's ([`OsStorage`]) or a simulated disk.
pub trait Storage: Clone + fmt::Debug + Send + Sync + 'static {
    /// An open file of this storage.
    type File: StorageFile;

    /// Creates a file that must not exist yet, for reading and writing. Its name is durable after [`Self::sync_dir`].
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] when the name is taken, else what the disk says.
    fn create_new(&self, path: &Path) -> StorageResult<Self::File>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is none, else what the disk says.
    fn open(&self, path: &Path, access: Access) -> StorageResult<Self::File>;

    /// The names in a directory, sorted. A name that vanishes meanwhile is left out.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the directory does not exist, else what the disk says.
    fn list_dir(&self, path: &Path) -> StorageResult<Vec<DirEntry>>;

    /// Whether a file or directory of this name exists.
    ///
    /// # Errors
    /// When that cannot be told.
    fn exists(&self, path: &Path) -> StorageResult<bool>;

    /// The length of a file in bytes, without opening it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is none, else what the disk says.
    fn file_len(&self, path: &Path) -> StorageResult<u64>;

    /// Creates a directory and those above it; nothing happens when it exists.
    ///
    /// # Errors
    /// What the disk says.
    fn create_dir_all(&self, path: &Path) -> StorageResult<()>;

    /// Removes a file's name; the bytes live on for those who have it open. Durable after [`Self::sync_dir`]: until
    /// then the file can come back.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is none, else what the disk says.
    fn remove_file(&self, path: &Path) -> StorageResult<()>;

    /// Removes a directory with everything in it. Durable after [`Self::sync_dir`] of the directory above.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is none, else what the disk says.
    fn remove_dir_all(&self, path: &Path) -> StorageResult<()>;

    /// Renames a file or directory within its directory, replacing a file of the new name in one step. Durable after
    /// [`Self::sync_dir`] of that directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when `from` does not exist, [`io::ErrorKind::CrossesDevices`] when the two names are
    /// not in one directory (two directories cannot be flushed in one step), else what the disk says.
    fn rename(&self, from: &Path, to: &Path) -> StorageResult<()>;

    /// Makes the names in a directory durable: what was created, removed or renamed in it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the directory does not exist, else what the disk says.
    fn sync_dir(&self, path: &Path) -> StorageResult<()>;

    /// Reads a whole file that holds at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::open`]; [`io::ErrorKind::FileTooLarge`] when the file is longer than `limit`.
    fn read_small(&self, path: &Path, limit: u64) -> StorageResult<Vec<u8>> {
        let file = self.open(path, Access::ReadOnly)?;
        let len = file.len()?;
        if len > limit {
            let source =
                io::Error::new(io::ErrorKind::FileTooLarge, format!("{len} bytes, at most {limit} expected"));
            return Err(StorageError::new(StorageOperation::Read, path, source));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let filled = file.read_up_to(&mut bytes, 0)?;
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Replaces a small file as a whole, durably: a temporary file beside it, flush, rename, flush of the directory.
    /// After a crash the file holds either the old bytes or the new ones.
    ///
    /// # Errors
    /// What the disk says; the old file is then still there.
    fn write_atomically(&self, path: &Path, bytes: &[u8]) -> StorageResult<()> {
        let temporary = temporary_name(path);
        match self.remove_file(&temporary) {
            Err(e) if !e.is_not_found() => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let file = self.create_new(&temporary)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        self.rename(&temporary, path)?;
        self.sync_dir(path.parent().unwrap_or_else(|| Path::new("/")))
    }
}

/// The name that [`Storage::write_atomically`] writes first; one left behind by a crash means nothing.
fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// An open file. Closed when dropped.
#[allow(clippy::len_without_is_empty, reason = "the length is read from the disk and can fail")]
pub trait StorageFile: fmt::Debug + Send + Sync + 'static {
    /// The path it was opened with.
    fn path(&self) -> &Path;

    /// Reads at `position` into `buf`; returns how many bytes, 0 only at or after the end (or for an empty `buf`).
    ///
    /// # Errors
    /// What the disk says.
    fn read_at(&self, buf: &mut [u8], position: u64) -> StorageResult<usize>;

    /// Fills `buf` from `position` as far as the file goes; returns how many bytes.
    ///
    /// # Errors
    /// What the disk says.
    fn read_up_to(&self, buf: &mut [u8], position: u64) -> StorageResult<usize> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, position.saturating_add(filled as u64))? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// Fills `buf` from `position`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends first, else what the disk says.
    fn read_exact_at(&self, buf: &mut [u8], position: u64) -> StorageResult<()> {
        if self.read_up_to(buf, position)? < buf.len() {
            let source = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(StorageError::new(StorageOperation::Read, self.path(), source));
        }
        Ok(())
    }

    /// Writes all of `bytes` at `position`; a gap before it reads as zeros. After an error any part may be written.
    ///
    /// # Errors
    /// What the disk says.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> StorageResult<()>;

    /// Writes all the slices, one after the other, from `position`. After an error any part may be written.
    ///
    /// # Errors
    /// What the disk says.
    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> StorageResult<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// What the disk says.
    fn len(&self) -> StorageResult<u64>;

    /// Cuts the file, or extends it with zeros. Durable after a sync.
    ///
    /// # Errors
    /// What the disk says.
    fn set_len(&self, len: u64) -> StorageResult<()>;

    /// Makes the bytes and the length durable. A failure is final: what was unflushed is lost, even if a later call
    /// succeeds (design.md 2).
    ///
    /// # Errors
    /// What the disk says.
    fn sync_data(&self) -> StorageResult<()>;

    /// As [`Self::sync_data`], with all metadata.
    ///
    /// # Errors
    /// What the disk says.
    fn sync_all(&self) -> StorageResult<()>;

    /// Lets go of what is kept in memory and counts as written, so that reads come from the disk. What is not written yet stays.
    ///
    /// # Errors
    /// What the operating system says.
    fn drop_clean_cache(&self) -> StorageResult<()>;
}
