//! The names of a partition directory's files, as Kafka gives them.

use std::path::{Path, PathBuf};

use highwater_types::Offset;

use crate::IndexKind;
use crate::checkpoint::{CHECKPOINT_FILE, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE};

/// What a file of a partition directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// `%020d.log`: a segment.
    Log(Offset),
    /// `%020d.index` or `%020d.timeindex`
    Index(Offset, IndexKind),
    /// A checkpoint, or the topic id.
    Checkpoint,
    /// No part of the log.
    Other(OtherKind),
}

/// What a file is that stands beside a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherKind {
    /// Left by us: bytes that a cut kept (`%020d.cut`), or a file whose writing was interrupted (`.tmp`): a checkpoint, a
    /// snapshot of producers, or a segment that was being repaired.
    LeftOver,
    /// Left by Kafka's cleaner, or by its deletion of segments.
    KafkaLeftOver,
    /// What is derived from the log: snapshots of producers, ours and Kafka's, and Kafka's aborted transactions.
    KafkaState,
    /// None of a log's.
    Foreign,
}

const LOG: &str = "log";
const OFFSET_INDEX: &str = "index";
const TIME_INDEX: &str = "timeindex";
const CUT: &str = "cut";
const SNAPSHOT: &str = "snapshot";
const TEMPORARY: &str = ".tmp";
/// How many digits an offset has in a file's name.
const DIGITS: usize = 20;

/// Tells what a name in a partition directory stands for.
pub(crate) fn file_kind(name: &str) -> FileKind {
    if is_checkpoint(name) {
        return FileKind::Checkpoint;
    }
    if name.strip_suffix(TEMPORARY).is_some_and(is_checkpoint) {
        return FileKind::Other(OtherKind::LeftOver);
    }
    let (offset, extension) = split_name(name);
    match (offset, extension) {
        (Some(base), LOG) => FileKind::Log(base),
        (Some(base), OFFSET_INDEX) => FileKind::Index(base, IndexKind::Offset),
        (Some(base), TIME_INDEX) => FileKind::Index(base, IndexKind::Time),
        (Some(_), "log.tmp" | "snapshot.tmp") => FileKind::Other(OtherKind::LeftOver),
        (Some(_), cut) if cut == CUT || cut.starts_with("cut.") => FileKind::Other(OtherKind::LeftOver),
        (Some(_), SNAPSHOT | "txnindex") => FileKind::Other(OtherKind::KafkaState),
        _ if [".deleted", ".cleaned", ".swap"].iter().any(|suffix| name.ends_with(suffix)) => {
            FileKind::Other(OtherKind::KafkaLeftOver)
        }
        _ => FileKind::Other(OtherKind::Foreign),
    }
}

/// The offset that a name begins with, if it does, and what comes after its point.
fn split_name(name: &str) -> (Option<Offset>, &str) {
    let (digits, extension) = name.split_once('.').unwrap_or((name, ""));
    let is_offset = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    (is_offset.then(|| digits.parse().ok().and_then(Offset::new)).flatten(), extension)
}

/// The offset of a snapshot of producers, by its file's name.
pub(crate) fn snapshot_offset(name: &str) -> Option<Offset> {
    let (offset, extension) = split_name(name);
    offset.filter(|_| extension == SNAPSHOT)
}

/// The file of the snapshot of producers at `at`.
pub(crate) fn snapshot_file(dir: &Path, at: Offset) -> PathBuf {
    dir.join(format!("{at:020}.{SNAPSHOT}", at = at.get()))
}

fn is_checkpoint(name: &str) -> bool {
    matches!(name, LEADER_EPOCH_FILE | PARTITION_METADATA_FILE | CHECKPOINT_FILE)
}

pub(crate) fn log_file(dir: &Path, base: Offset) -> PathBuf {
    dir.join(format!("{base:020}.{LOG}", base = base.get()))
}

pub(crate) fn offset_index_file(dir: &Path, base: Offset) -> PathBuf {
    dir.join(format!("{base:020}.{OFFSET_INDEX}", base = base.get()))
}

pub(crate) fn time_index_file(dir: &Path, base: Offset) -> PathBuf {
    dir.join(format!("{base:020}.{TIME_INDEX}", base = base.get()))
}

pub(crate) fn index_file(dir: &Path, base: Offset, kind: IndexKind) -> PathBuf {
    match kind {
        IndexKind::Offset => offset_index_file(dir, base),
        IndexKind::Time => time_index_file(dir, base),
    }
}

/// The file that keeps what was cut at `from`; `copy` tells several cuts at one offset apart.
pub(crate) fn cut_file(dir: &Path, from: Offset, copy: u32) -> PathBuf {
    let suffix = if copy == 0 { String::new() } else { format!(".{copy}") };
    dir.join(format!("{from:020}.{CUT}{suffix}", from = from.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas_and_are_read_back() {
        let base = Offset::new(170_210).unwrap();
        let dir = Path::new("d");
        assert_eq!(log_file(dir, base), Path::new("d/00000000000000170210.log"));
        let index = |kind| FileKind::Index(base, kind);
        for (name, kind) in [
            ("00000000000000170210.log", FileKind::Log(base)),
            ("00000000000000170210.index", index(IndexKind::Offset)),
            ("00000000000000170210.timeindex", index(IndexKind::Time)),
            ("leader-epoch-checkpoint", FileKind::Checkpoint),
            ("partition.metadata", FileKind::Checkpoint),
            ("checkpoint", FileKind::Checkpoint),
            ("checkpoint.tmp", FileKind::Other(OtherKind::LeftOver)),
            ("00000000000000170210.log.tmp", FileKind::Other(OtherKind::LeftOver)),
            ("00000000000000170210.snapshot.tmp", FileKind::Other(OtherKind::LeftOver)),
            ("00000000000000170210.cut", FileKind::Other(OtherKind::LeftOver)),
            ("00000000000000170210.cut.3", FileKind::Other(OtherKind::LeftOver)),
            ("00000000000000170210.snapshot", FileKind::Other(OtherKind::KafkaState)),
            ("00000000000000170210.txnindex", FileKind::Other(OtherKind::KafkaState)),
            ("00000000000000170210.log.deleted", FileKind::Other(OtherKind::KafkaLeftOver)),
            ("00000000000000170210.timeindex.swap", FileKind::Other(OtherKind::KafkaLeftOver)),
        ] {
            assert_eq!(file_kind(name), kind, "{name}");
        }
    }

    #[test]
    fn other_names_are_foreign() {
        for name in ["1.log", "lost+found", "99999999999999999999.log", "x", "notes.tmp"] {
            assert_eq!(file_kind(name), FileKind::Other(OtherKind::Foreign), "{name}");
        }
    }
}
