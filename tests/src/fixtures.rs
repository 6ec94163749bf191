//! The data directories in tests/fixtures, which Apache Kafka wrote, unpacked for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::kafka_dump::KafkaDump;
use crate::programs;

/// Every fixture.
pub const ALL: [&str; 9] =
    ["plain", "compressed", "txn", "compacted", "epochs", "divergence", "rolled", "damaged", "many"];

/// A fixture, unpacked into a directory that is removed in the end.
#[derive(Debug)]
pub struct Fixture {
    directory: TempDir,
    /// What Kafka printed about it.
    pub dump: KafkaDump,
}

impl Fixture {
    /// Unpacks a fixture (`tar` knows its sparse files).
    #[must_use]
    pub fn unpack(name: &str) -> Self {
        let stored = programs::repository().join("tests/fixtures");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let archive = stored.join(format!("{name}.tar.gz"));
        let status = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(directory.path()).status();
        assert!(status.expect("tar starts").success(), "{} cannot be unpacked", archive.display());
        let text = fs::read_to_string(stored.join(format!("{name}.dump.txt"))).expect("the dump is there");
        let dump = KafkaDump::parse(&text).unwrap_or_else(|e| panic!("{name}.dump.txt: {e}"));
        Self { directory, dump }
    }

    /// Where it lies. The dump's names begin here.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Every directory that holds a segment, sorted.
    #[must_use]
    pub fn partitions(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.root().to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).expect("a folder can be listed");
            let paths: Vec<PathBuf> =
                entries.map(|entry| entry.expect("an entry can be read").path()).collect();
            if paths.iter().any(|path| {
                path.is_file() && path.extension().is_some_and(|e| e == "log") && is_segment(path)
            }) {
                found.push(folder);
            }
            folders.extend(paths.into_iter().filter(|path| path.is_dir()));
        }
        found.sort();
        found
    }

    /// A path by its name in the dump.
    #[must_use]
    pub fn name_of(&self, path: &Path) -> String {
        let inside = path.strip_prefix(self.root()).expect("a path of the fixture");
        inside.to_str().expect("an ASCII name").to_owned()
    }
}

/// Not Kafka's own log files, which some fixtures hold.
fn is_segment(path: &Path) -> bool {
    path.file_stem()
        .is_some_and(|stem| stem.len() == 20 && stem.to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
}
