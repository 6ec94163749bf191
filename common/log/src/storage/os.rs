//! The operating system's disk. A thin layer: `pread`, `pwrite`, `pwritev`, `fdatasync`, `fsync`.
//!
//! Every descriptor is opened with `O_CLOEXEC` (the standard library always does), so that no child process keeps a file
//! or a lock alive. Deliberately absent: memory maps, direct I/O, `O_SYNC`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::uio::pwritev;

use super::{Access, DirEntry, Storage, StorageError, StorageFile, StorageOperation, StorageResult};

/// How many slices one `pwritev` takes (IOV_MAX).
const SLICES_PER_WRITE_MAX: usize = 1024;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsStorage;

/// An open file of the operating system.
#[derive(Debug)]
pub struct OsFile {
    file: File,
    path: Arc<Path>,
}

impl OsFile {
    fn failed(&self, operation: StorageOperation) -> impl FnOnce(io::Error) -> StorageError {
        move |source| StorageError::new(operation, &self.path, source)
    }
}

fn failed(operation: StorageOperation, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    move |source| StorageError::new(operation, path, source)
}

impl Storage for OsStorage {
    type File = OsFile;

    fn create_new(&self, path: &Path) -> StorageResult<OsFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(failed(StorageOperation::Create, path))?;
        Ok(OsFile { file, path: path.into() })
    }

    fn open(&self, path: &Path, access: Access) -> StorageResult<OsFile> {
        let file = OpenOptions::new().read(true).write(access == Access::ReadWrite).open(path);
        let file = file.map_err(failed(StorageOperation::Open, path))?;
        Ok(OsFile { file, path: path.into() })
    }

    fn list_dir(&self, path: &Path) -> StorageResult<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).map_err(failed(StorageOperation::List, path))? {
            let entry = entry.map_err(failed(StorageOperation::List, path))?;
            let metadata = match fs::metadata(entry.path()).or_else(|_| entry.metadata()) {
                Ok(metadata) => metadata,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(StorageError::new(StorageOperation::Inspect, &entry.path(), e)),
            };
            let len = if metadata.is_dir() { 0 } else { metadata.len() };
            entries.push(DirEntry { name: entry.file_name(), is_dir: metadata.is_dir(), len });
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> StorageResult<bool> {
        path.try_exists().map_err(failed(StorageOperation::Inspect, path))
    }

    fn file_len(&self, path: &Path) -> StorageResult<u64> {
        fs::metadata(path).map(|m| m.len()).map_err(failed(StorageOperation::Inspect, path))
    }

    fn create_dir_all(&self, path: &Path) -> StorageResult<()> {
        fs::create_dir_all(path).map_err(failed(StorageOperation::CreateDir, path))
    }

    fn remove_file(&self, path: &Path) -> StorageResult<()> {
        fs::remove_file(path).map_err(failed(StorageOperation::Remove, path))
    }

    fn remove_dir_all(&self, path: &Path) -> StorageResult<()> {
        fs::remove_dir_all(path).map_err(failed(StorageOperation::Remove, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> StorageResult<()> {
        if from.parent() != to.parent() {
            let source = io::Error::from(io::ErrorKind::CrossesDevices);
            return Err(StorageError::new(StorageOperation::Rename, from, source));
        }
        fs::rename(from, to).map_err(failed(StorageOperation::Rename, from))
    }

    fn sync_dir(&self, path: &Path) -> StorageResult<()> {
        File::open(path).and_then(|dir| dir.sync_all()).map_err(failed(StorageOperation::SyncDir, path))
    }
}

impl StorageFile for OsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> StorageResult<usize> {
        loop {
            match self.file.read_at(buf, position) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome.map_err(self.failed(StorageOperation::Read)),
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> StorageResult<()> {
        self.file.write_all_at(bytes, position).map_err(self.failed(StorageOperation::Write))
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> StorageResult<()> {
        write_all_vectored(&self.file, slices, position).map_err(self.failed(StorageOperation::Write))
    }

    fn len(&self) -> StorageResult<u64> {
        self.file.metadata().map(|m| m.len()).map_err(self.failed(StorageOperation::Inspect))
    }

    fn set_len(&self, len: u64) -> StorageResult<()> {
        self.file.set_len(len).map_err(self.failed(StorageOperation::SetLen))
    }

    fn sync_data(&self) -> StorageResult<()> {
        self.file.sync_data().map_err(self.failed(StorageOperation::Sync))
    }

    fn sync_all(&self) -> StorageResult<()> {
        self.file.sync_all().map_err(self.failed(StorageOperation::Sync))
    }

    fn drop_clean_cache(&self) -> StorageResult<()> {
        posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|errno| self.failed(StorageOperation::Inspect)(errno.into()))
    }
}

/// Repeats `pwritev` until everything is written: one call may take only a part.
fn write_all_vectored(file: &File, slices: &[IoSlice<'_>], mut position: u64) -> io::Result<()> {
    let mut slices = slices.to_vec();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0); // drops empty slices in front, so that a write of 0 bytes means a full disk
    while !rest.is_empty() {
        let now = rest.get(..SLICES_PER_WRITE_MAX).unwrap_or(rest);
        let offset = i64::try_from(position).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        match pwritev(file, now, offset) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(written) => {
                position = position.saturating_add(written as u64);
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;

    #[test]
    fn the_operating_systems_disk_passes_the_suite_of_every_storage() {
        let dir = tempfile::tempdir().unwrap();
        conformance::all(&OsStorage, dir.path());
    }

    #[test]
    fn more_slices_than_one_system_call_takes_are_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsStorage.create_new(&dir.path().join("f")).unwrap();
        let bytes: Vec<u8> = (0..251).cycle().take(3 * SLICES_PER_WRITE_MAX + 7).collect();
        let slices: Vec<IoSlice<'_>> = bytes.chunks(1).map(IoSlice::new).collect();
        file.write_vectored_at(&slices, 5).unwrap();
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 5).unwrap();
        assert_eq!(read, bytes);
    }

    #[test]
    fn a_child_process_inherits_no_descriptor() {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        let dir = tempfile::tempdir().unwrap();
        let file = OsStorage.create_new(&dir.path().join("f")).unwrap();
        let flags = FdFlag::from_bits_retain(fcntl(&file.file, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }
}
