//! What a check can find, by name.

use std::fmt;
use std::path::Path;

use serde::Serialize;

/// Whether a finding is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Something is wrong; the command fails.
    Problem,
    /// Worth knowing, and no fault.
    Note,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// The last segment ends within a batch, or in one with a wrong CRC, and nothing good follows: what a crash leaves.
    TornTail,
    /// The same, in a directory that a program holds: it is being written just now.
    InUse,
    /// Bad bytes with good batches after them: no crash leaves that.
    DamageInTheMiddle,
    /// Offsets go back, or do not begin where the segment's name says, or not where what is before them ends.
    OffsetsOutOfOrder,
    /// The CRC is right, but the records cannot be decoded.
    UndecodableRecords,
    /// A segment without one of its indexes.
    MissingIndex,
    /// An index that leads to wrong places, or is none.
    BadIndex,
    /// An index file with room for more: of a live Kafka broker.
    PreallocatedIndex,
    /// An index without a segment.
    OrphanIndex,
    /// A partition without a segment.
    NoSegments,
    /// A checkpoint file of no bytes.
    EmptyCheckpoint,
    /// A checkpoint file that cannot be read as one.
    GarbledCheckpoint,
    /// A checkpoint file that is not there.
    MissingCheckpoint,
    /// Leader epochs that the batches contradict.
    WrongEpochs,
    /// Two files of the directory that name different topics.
    WrongTopic,
    /// No segment holds what was flushed or committed: before, between or after those that are there.
    RecordsGone,
    /// A range that the replica itself has noted as lost.
    LostRange,
    /// A file or directory that is none of ours.
    ForeignFile,
    /// A file that an unfinished operation, or a cut, left; a segment that opening the log removes.
    LeftOver,
    /// A partition that nobody knows.
    Stray,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) kind: FindingKind,
    /// The file or directory.
    pub(crate) file: String,
    /// Where in the file it begins, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<u64>,
    /// The first offset that is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<i64>,
    /// The offset after the last that is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_offset: Option<i64>,
    pub(crate) detail: String,
}

impl Finding {
    pub(crate) fn problem(kind: FindingKind, file: &Path, detail: impl Into<String>) -> Self {
        Self::new(Severity::Problem, kind, file, detail.into())
    }

    pub(crate) fn note(kind: FindingKind, file: &Path, detail: impl Into<String>) -> Self {
        Self::new(Severity::Note, kind, file, detail.into())
    }

    fn new(severity: Severity, kind: FindingKind, file: &Path, detail: String) -> Self {
        let file = file.display().to_string();
        Self { severity, kind, file, position: None, offset: None, end_offset: None, detail }
    }

    pub(crate) const fn at(mut self, position: u64) -> Self {
        self.position = Some(position);
        self
    }

    pub(crate) const fn offsets(mut self, from: i64, end: Option<i64>) -> Self {
        self.offset = Some(from);
        self.end_offset = end;
        self
    }
}

impl FindingKind {
    const fn name(self) -> &'static str {
        match self {
            Self::TornTail => "torn tail",
            Self::InUse => "in use",
            Self::DamageInTheMiddle => "damage in the middle",
            Self::OffsetsOutOfOrder => "offsets out of order",
            Self::UndecodableRecords => "undecodable records",
            Self::MissingIndex => "missing index",
            Self::BadIndex => "bad index",
            Self::PreallocatedIndex => "preallocated index",
            Self::OrphanIndex => "index without a segment",
            Self::NoSegments => "no segments",
            Self::EmptyCheckpoint => "empty checkpoint",
            Self::GarbledCheckpoint => "garbled checkpoint",
            Self::MissingCheckpoint => "missing checkpoint",
            Self::WrongEpochs => "wrong epochs",
            Self::WrongTopic => "wrong topic",
            Self::RecordsGone => "records gone",
            Self::LostRange => "lost range",
            Self::ForeignFile => "foreign file",
            Self::LeftOver => "left-over file",
            Self::Stray => "stray partition",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Problem => "PROBLEM",
            Severity::Note => "note",
        };
        write!(f, "{severity}: {}: {}", self.kind.name(), self.file)?;
        if let Some(position) = self.position {
            write!(f, " at byte {position}")?;
        }
        match (self.offset, self.end_offset) {
            (Some(from), Some(end)) => write!(f, ", offsets [{from}, {end})")?,
            (Some(from), None) => write!(f, ", from offset {from}")?,
            (None, _) => {}
        }
        write!(f, ": {}", self.detail)
    }
}
