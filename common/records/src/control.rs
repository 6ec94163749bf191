//! Control records: what coordinators write into a log beside the data. Here they are only read (and written by tests).

use bytes::{BufMut, Bytes, BytesMut};

use crate::Record;

/// What a control record says; named as Kafka names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlType {
    /// A transaction was aborted.
    Abort,
    /// A transaction was committed.
    Commit,
    /// A new leader of a KRaft quorum.
    LeaderChange,
    /// The beginning of a KRaft snapshot.
    SnapshotHeader,
    /// The end of a KRaft snapshot.
    SnapshotFooter,
    /// The version of a KRaft quorum.
    KraftVersion,
    /// The voters of a KRaft quorum.
    KraftVoters,
    /// A type that is not known here.
    Unknown(i16),
}

impl ControlType {
    /// Takes the number that stands in the record's key.
    #[must_use]
    pub const fn from_id(id: i16) -> Self {
        match id {
            0 => Self::Abort,
            1 => Self::Commit,
            2 => Self::LeaderChange,
            3 => Self::SnapshotHeader,
            4 => Self::SnapshotFooter,
            5 => Self::KraftVersion,
            6 => Self::KraftVoters,
            other => Self::Unknown(other),
        }
    }

    /// The number that stands in the record's key.
    #[must_use]
    pub const fn id(self) -> i16 {
        match self {
            Self::Abort => 0,
            Self::Commit => 1,
            Self::LeaderChange => 2,
            Self::SnapshotHeader => 3,
            Self::SnapshotFooter => 4,
            Self::KraftVersion => 5,
            Self::KraftVoters => 6,
            Self::Unknown(id) => id,
        }
    }

    /// The name that Kafka prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Abort => "ABORT",
            Self::Commit => "COMMIT",
            Self::LeaderChange => "LEADER_CHANGE",
            Self::SnapshotHeader => "SNAPSHOT_HEADER",
            Self::SnapshotFooter => "SNAPSHOT_FOOTER",
            Self::KraftVersion => "KRAFT_VERSION",
            Self::KraftVoters => "KRAFT_VOTERS",
            Self::Unknown(_) => "UNKNOWN",
        }
    }
}

/// The content of a control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRecord {
    /// The version of the key's format.
    pub version: i16,
    /// What it says.
    pub control_type: ControlType,
    /// The epoch of the transaction coordinator that ended the transaction; only for `Abort` and `Commit`.
    pub coordinator_epoch: Option<i32>,
}

impl ControlRecord {
    /// The mark that ends a transaction.
    #[must_use]
    pub const fn end_transaction(commit: bool, coordinator_epoch: i32) -> Self {
        let control_type = if commit { ControlType::Commit } else { ControlType::Abort };
        Self { version: 0, control_type, coordinator_epoch: Some(coordinator_epoch) }
    }

    /// Reads a record of a control batch; `None` when its key is not one of a control record.
    #[must_use]
    pub fn decode(record: &Record) -> Option<Self> {
        let (version, rest) = record.key.as_deref()?.split_first_chunk()?;
        let control_type = ControlType::from_id(i16::from_be_bytes(*rest.first_chunk()?));
        let coordinator_epoch = match control_type {
            ControlType::Abort | ControlType::Commit => record
                .value
                .as_deref()
                .and_then(|value| value.get(2..)?.first_chunk())
                .map(|epoch| i32::from_be_bytes(*epoch)),
            ControlType::LeaderChange
            | ControlType::SnapshotHeader
            | ControlType::SnapshotFooter
            | ControlType::KraftVersion
            | ControlType::KraftVoters
            | ControlType::Unknown(_) => None,
        };
        Some(Self { version: i16::from_be_bytes(*version), control_type, coordinator_epoch })
    }

    /// The key and the value of the record that says this.
    #[must_use]
    pub fn encode(&self) -> (Bytes, Bytes) {
        let mut key = BytesMut::new();
        key.put_i16(self.version);
        key.put_i16(self.control_type.id());
        let mut value = BytesMut::new();
        value.put_i16(0);
        value.put_i32(self.coordinator_epoch.unwrap_or(0));
        (key.freeze(), value.freeze())
    }
}
