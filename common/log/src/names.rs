//! The names of a partition directory's files, as Kafka gives them.

use std::path::{Path, PathBuf};

use highwater_types::Offset;

use crate::checkpoint::{CHECKPOINT_FILE, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE};

/// What a file of a partition directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// `%020d.log`: a segment.
    Log(Offset),
    /// `%020d.index`
    OffsetIndex(Offset),
    /// `%020d.timeindex`
    TimeIndex(Offset),
    /// A file of the log that is no segment: checkpoints, the topic id, bytes that were cut and kept.
    Other,
    /// Not one of the log's.
    Foreign,
}

const LOG: &str = "log";
const OFFSET_INDEX: &str = "index";
const TIME_INDEX: &str = "timeindex";
const CUT: &str = "cut";
/// How many digits an offset has in a file's name.
const DIGITS: usize = 20;

/// Tells what a name in a partition directory stands for.
pub(crate) fn file_kind(name: &str) -> FileKind {
    // A temporary file of a checkpoint that was being replaced means nothing.
    if matches!(name.trim_end_matches(".tmp"), LEADER_EPOCH_FILE | PARTITION_METADATA_FILE | CHECKPOINT_FILE)
    {
        return FileKind::Other;
    }
    let Some((digits, extension)) = name.split_once('.') else { return FileKind::Foreign };
    let offset = (digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok().and_then(Offset::new))
        .flatten();
    match (offset, extension) {
        (Some(base), LOG) => FileKind::Log(base),
        (Some(base), OFFSET_INDEX) => FileKind::OffsetIndex(base),
        (Some(base), TIME_INDEX) => FileKind::TimeIndex(base),
        (Some(_), cut) if cut == CUT || cut.starts_with("cut.") => FileKind::Other,
        _ => FileKind::Foreign,
    }
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
        assert_eq!(file_kind("00000000000000170210.log"), FileKind::Log(base));
        assert_eq!(file_kind("00000000000000170210.index"), FileKind::OffsetIndex(base));
        assert_eq!(file_kind("00000000000000170210.timeindex"), FileKind::TimeIndex(base));
        assert_eq!(file_kind("00000000000000170210.cut"), FileKind::Other);
        assert_eq!(file_kind("00000000000000170210.cut.3"), FileKind::Other);
    }

    #[test]
    fn other_names_are_foreign() {
        for name in
            ["1.log", "00000000000000170210.log.deleted", "lost+found", "99999999999999999999.log", "x"]
        {
            assert_eq!(file_kind(name), FileKind::Foreign, "{name}");
        }
    }
}
