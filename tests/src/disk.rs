//! Disks that misbehave for real: a small one that fills up, and a directory that cannot be written.
//!
//! Both are mounts, so tests that use them run as root. Programs under test run as root too, so file modes would not
//! stop them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount that ends with the test.
#[derive(Debug)]
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn new<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, at: &Path) -> Self {
        mount(arguments, at);
        Self { at: at.to_owned() }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a program that still runs in it must not keep the test from ending. Left behind, it costs a mount.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

fn mount<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, at: &Path) {
    let status =
        Command::new("mount").args(arguments).arg(at).status().expect("mount, of util-linux, starts");
    assert!(status.success(), "mounting {} needs root", at.display());
}

/// A file system of a few MiB in memory.
#[derive(Debug)]
pub struct SmallDisk {
    mount: Mount,
}

impl SmallDisk {
    /// Mounts one at `at`, an existing empty directory.
    ///
    /// # Panics
    /// When the test does not run as root.
    #[must_use]
    pub fn mount(at: &Path, bytes: u64) -> Self {
        let size = format!("size={bytes}");
        Self { mount: Mount::new(["-t", "tmpfs", "-o", &size, "highwater-test"], at) }
    }

    /// Takes the room that is left but for about `rest` bytes.
    ///
    /// # Panics
    /// When anything but the lack of room stops it, or less was left.
    pub fn fill_but(&self, rest: u64) {
        self.fill();
        let filler = File::options().write(true).open(self.filler()).expect("it was filled");
        let taken = filler.metadata().expect("it is there").len();
        filler.set_len(taken.checked_sub(rest).expect("there was room")).expect("it can be cut");
    }

    /// Takes all the room that is left.
    ///
    /// # Panics
    /// When anything but the lack of room stops it.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("a new file");
        let mut piece = 64 * 1024;
        while piece > 0 {
            match file.write(&vec![0; piece]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => piece /= 2,
                Err(error) => panic!("filling the disk: {error}"),
            }
        }
    }

    /// Gives the room back that [`SmallDisk::fill`] took. The kernel may take a moment to count it.
    ///
    /// # Panics
    /// When nothing was filled.
    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("it was filled");
    }

    /// Changes its size.
    ///
    /// # Panics
    /// When the test does not run as root.
    pub fn resize(&self, bytes: u64) {
        mount(["-o", &format!("remount,size={bytes}")], &self.mount.at);
    }

    fn filler(&self) -> PathBuf {
        self.mount.at.join("filler")
    }
}

/// A directory whose files cannot be changed, created or removed until this is dropped. Files that a program holds
/// open for writing already stay writable.
#[derive(Debug)]
pub struct ReadOnly {
    _mount: Mount,
}

impl ReadOnly {
    /// Makes `directory` read-only.
    ///
    /// # Panics
    /// When the test does not run as root.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        // Made read-only aside, where nobody has a file open, and then laid over the directory: at once, or not at all.
        let aside = tempfile::tempdir().expect("a temporary directory");
        let bind = |from: &Path, to: &Path| Mount::new([OsStr::new("--bind"), from.as_os_str()], to);
        let prepared = bind(directory, aside.path());
        mount(["-o", "remount,bind,ro"], aside.path());
        let made = bind(aside.path(), directory);
        drop(prepared);
        Self { _mount: made }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    #[tokio::test]
    async fn a_small_disk_fills_up_and_has_room_again() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let disk = SmallDisk::mount(place.path(), 1 << 20);
        let file = place.path().join("f");
        fs::write(&file, "x").expect("there is room");
        disk.fill();
        let error = fs::write(place.path().join("g"), vec![1; 8192]).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        disk.free();
        let write = || fs::write(place.path().join("g"), vec![1; 8192]);
        wait::until("room", wait::SOON, async || write().ok()).await;
        drop(disk);
        assert!(!file.exists(), "the disk is gone");
    }

    #[test]
    fn a_read_only_directory_takes_no_file_until_it_is_released() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = place.path().join("f");
        fs::write(&file, "x").expect("writable");
        let read_only = ReadOnly::new(place.path());
        let error = fs::write(&file, "y").expect_err("read-only");
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(fs::remove_file(&file).is_err() && fs::write(place.path().join("g"), "y").is_err());
        drop(read_only);
        fs::write(&file, "y").expect("writable again");
    }
}
