//! What a storage says when it fails: the operation, the path, the cause, and what a person can do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StorageOperation {
    /// Creating a file.
    Create,
    /// Opening a file.
    Open,
    /// Listing a directory.
    List,
    /// Reading a length or whether a name exists.
    Inspect,
    /// Creating directories.
    CreateDir,
    /// Removing a file or directory.
    Remove,
    /// Renaming.
    Rename,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Changing a length.
    SetLen,
    /// Flushing a file.
    Sync,
    /// Flushing a directory.
    SyncDir,
    /// Locking.
    Lock,
}

impl fmt::Display for StorageOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Open => "open",
            Self::List => "list",
            Self::Inspect => "inspect",
            Self::CreateDir => "create directory",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Read => "read",
            Self::Write => "write",
            Self::SetLen => "set the length of",
            Self::Sync => "flush",
            Self::SyncDir => "flush directory",
            Self::Lock => "lock",
        })
    }
}

/// A failed operation on a storage. The cause is the error's source; its text is part of this one's.
#[derive(Debug)]
pub struct StorageError {
    operation: StorageOperation,
    path: PathBuf,
    source: io::Error,
}

impl StorageError {
    /// Names what failed where.
    #[must_use]
    pub fn new(operation: StorageOperation, path: &Path, source: io::Error) -> Self {
        Self { operation, path: path.to_owned(), source }
    }

    /// What was being done.
    #[must_use]
    pub const fn operation(&self) -> StorageOperation {
        self.operation
    }

    /// To which file or directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of the cause.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// The operating system's number of the cause, when it has one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether the file or directory does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    /// Whether the volume (or the quota on it) is full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// What a person can do about it; `None` when the cause says it all.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match self.raw_os_error()? {
            libc::ENOSPC => Some("free space on the volume, enlarge it, or lower the retention"),
            libc::EDQUOT => Some("raise the disk quota or lower the retention"),
            libc::EROFS => {
                Some("the volume is mounted read-only: check the kernel log for disk errors, remount it")
            }
            libc::EIO => Some("the disk failed: check the kernel log, replace the disk"),
            libc::EMFILE => Some("raise the limit of open files of this process (ulimit -n)"),
            libc::ENFILE => Some("raise the limit of open files of this host (fs.file-max)"),
            libc::EACCES | libc::EPERM => Some("check the owner and the permissions"),
            _ => None,
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.path.display(), self.source)?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_operation_the_path_and_what_to_do() {
        let full = StorageError::new(
            StorageOperation::Write,
            Path::new("/data/a-0/00000000000000000000.log"),
            io::Error::from_raw_os_error(libc::ENOSPC),
        );
        let text = full.to_string();
        assert!(text.starts_with("write /data/a-0/00000000000000000000.log: No space left"), "{text}");
        assert!(text.contains("free space on the volume"), "{text}");
        assert!(full.is_disk_full());
    }

    #[test]
    fn the_failures_that_operators_meet_have_advice() {
        for number in [libc::ENOSPC, libc::EROFS, libc::EIO, libc::EMFILE, libc::EACCES] {
            let error = StorageError::new(
                StorageOperation::Sync,
                Path::new("/d"),
                io::Error::from_raw_os_error(number),
            );
            assert!(error.advice().is_some(), "{error}");
        }
    }
}
