//! What the small files of a partition directory say, for the head of a dump. What cannot be read is left out here:
//! `log verify` names it.

use std::fmt;

use highwater_log::checkpoint::{CheckpointState, LoadedEpochs, LoadedPartitionMetadata};
use highwater_log::{OsStorage, ReadOnlyLog, StorageError};
use highwater_types::EpochEntry;
use serde::Serialize;

/// The head of a partition's dump.
#[derive(Debug, Serialize)]
pub(super) struct About {
    directory: String,
    partition: String,
    topic_id: Option<String>,
    /// Where each leadership began.
    leader_epochs: Vec<EpochStart>,
    /// What our checkpoint says; a directory of Kafka's has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
}

#[derive(Debug, Serialize)]
struct EpochStart {
    epoch: i32,
    start_offset: i64,
}

#[derive(Debug, Serialize)]
struct Checkpoint {
    incarnation: String,
    log_start: i64,
    recovery_point: i64,
    high_watermark: i64,
    clean: bool,
}

impl About {
    pub(super) fn read(name: &str, log: &ReadOnlyLog<OsStorage>) -> Result<Self, StorageError> {
        let topic_id = match log.topic_id()? {
            LoadedPartitionMetadata::Found(id) => Some(id.to_string()),
            LoadedPartitionMetadata::Absent | LoadedPartitionMetadata::Damaged(_) => None,
        };
        let leader_epochs = match log.leader_epochs()? {
            LoadedEpochs::Whole(cache) | LoadedEpochs::Damaged { salvaged: cache, .. } => {
                cache.entries().iter().map(EpochStart::new).collect()
            }
            LoadedEpochs::Absent => Vec::new(),
        };
        let state = log.checkpoint()?.into_state();
        Ok(Self {
            directory: log.directory().display().to_string(),
            partition: name.to_owned(),
            topic_id,
            leader_epochs,
            checkpoint: state.as_ref().map(Checkpoint::new),
        })
    }
}

impl EpochStart {
    const fn new(entry: &EpochEntry) -> Self {
        Self { epoch: entry.epoch.get(), start_offset: entry.start.get() }
    }
}

impl Checkpoint {
    fn new(state: &CheckpointState) -> Self {
        Self {
            incarnation: state.incarnation.to_string(),
            log_start: state.log_start.get(),
            recovery_point: state.recovery_point.get(),
            high_watermark: state.high_watermark.offset.get(),
            clean: state.clean,
        }
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} in {}", self.partition, self.directory)?;
        if let Some(id) = &self.topic_id {
            write!(f, "\n  topic id {id}")?;
        }
        for EpochStart { epoch, start_offset } in &self.leader_epochs {
            write!(f, "\n  leader epoch {epoch} from offset {start_offset}")?;
        }
        if let Some(checkpoint) = &self.checkpoint {
            let Checkpoint { incarnation, log_start, recovery_point, high_watermark, clean } = checkpoint;
            write!(
                f,
                "\n  incarnation {incarnation}, log start {log_start}, recovery point {recovery_point}"
            )?;
            write!(f, ", high watermark {high_watermark}{}", if *clean { ", closed cleanly" } else { "" })?;
        }
        Ok(())
    }
}
