//! Whether the files of a database are still those that this process opened.
//!
//! SQLite goes on writing to a file that was deleted or replaced, and reports success; whoever opens the store afterwards
//! sees none of it. So a write counts only if its files were in place before and after it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::CoordinationError;

/// What SQLite keeps beside a database in write-ahead-log mode. A new one beside the old database would split its users.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// The files of one or more open databases.
#[derive(Clone, Debug)]
pub(super) struct Presence {
    files: Vec<OpenFile>,
}

#[derive(Clone, Debug)]
struct OpenFile {
    path: PathBuf,
    id: FileId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl Presence {
    /// The files of the database at `path`, which was opened and read a moment ago. They are never opened here: closing a
    /// file releases every lock that SQLite holds on it in this process.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when the database is gone already.
    pub(super) fn of(path: &Path) -> Result<Self, CoordinationError> {
        let id = identify(path).map_err(|error| unavailable(path, &error))?;
        let mut files = vec![OpenFile { path: path.to_owned(), id }];
        for companion in COMPANIONS {
            let path = beside(path, companion);
            // Behind a symbolic link they lie elsewhere.
            if let Ok(id) = identify(&path) {
                files.push(OpenFile { path, id });
            }
        }
        Ok(Self { files })
    }

    /// These files, and those of another database.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.files.extend(other.files);
        self
    }

    /// # Errors
    /// [`CoordinationError::Unavailable`], which names the first file that is gone or is another one, and what to do.
    pub(super) fn check(&self) -> Result<(), CoordinationError> {
        for OpenFile { path, id } in &self.files {
            match identify(path) {
                Ok(found) if found == *id => {}
                Ok(_) => {
                    return Err(CoordinationError::Unavailable(format!(
                        "{} was replaced by another file while this program uses the old one: put the old one back; \
                         a program that is restarted uses the new one, where its node is known there",
                        path.display()
                    )));
                }
                Err(error) => return Err(unavailable(path, &error)),
            }
        }
        Ok(())
    }
}

/// The write-ahead log of the database at `path`.
pub(super) fn write_ahead_log(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn identify(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|metadata| FileId { device: metadata.dev(), inode: metadata.ino() })
}

fn unavailable(path: &Path, error: &io::Error) -> CoordinationError {
    CoordinationError::Unavailable(if error.kind() == io::ErrorKind::NotFound {
        format!(
            "{} is gone while this program uses it, so nothing that it writes would be kept: put the same file back, or \
             restore the store and restart this program",
            path.display()
        )
    } else {
        format!("{}: {error}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_gone_or_replaced_is_named_with_what_to_do_and_its_return_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("a.db"), dir.path().join("aside"));
        assert!(Presence::of(&path).unwrap_err().to_string().contains("a.db is gone"));
        fs::write(&path, "").unwrap();
        fs::write(beside(&path, "-shm"), "").unwrap();
        let presence = Presence::of(&path).unwrap();
        assert_eq!(presence.check(), Ok(()));

        fs::rename(&path, &aside).unwrap();
        let gone = presence.check().unwrap_err().to_string();
        assert!(gone.contains("a.db is gone") && gone.contains("put the same file back"), "{gone}");
        fs::write(&path, "").unwrap();
        let replaced = presence.check().unwrap_err().to_string();
        assert!(replaced.contains("a.db was replaced") && replaced.contains("restart"), "{replaced}");
        fs::rename(&aside, &path).unwrap();
        assert_eq!(presence.check(), Ok(()));

        fs::remove_file(beside(&path, "-shm")).unwrap();
        assert!(presence.check().unwrap_err().to_string().contains("a.db-shm is gone"));
    }

    #[test]
    fn several_databases_are_checked_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.db", "b.db"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        let [a, b] = paths.each_ref().map(|path| Presence::of(path).unwrap());
        let both = a.clone().and(b);
        fs::remove_file(&paths[1]).unwrap();
        assert_eq!(a.check(), Ok(()));
        assert!(both.check().unwrap_err().to_string().contains("b.db is gone"));
    }
}
