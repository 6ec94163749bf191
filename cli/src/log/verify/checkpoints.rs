//! Checks of the small files: leader epochs, topic id, our checkpoint, and Kafka's checkpoints of a node.

use std::fs;
use std::path::Path;

use highwater_log::checkpoint::{
    CHECKPOINT_FILE, CheckpointFile, CheckpointState, LEADER_EPOCH_FILE, LoadedCheckpoint, LoadedEpochs,
    LoadedPartitionMetadata, PARTITION_METADATA_FILE, read_kafka_checkpoints, read_leader_epochs,
    read_partition_metadata,
};
use highwater_log::{DISK_ID_FILE, META_PROPERTIES_FILE, OsStorage, StorageError};
use highwater_types::{EpochEntry, Offset};

use super::finding::{Finding, FindingKind};
use super::segments::Walked;
use crate::log::partition::PartitionDir;

/// Files and directories of a data directory that are no partitions, of ours and Kafka's.
const NODE_NAMES: [&str; 11] = [
    META_PROPERTIES_FILE,
    DISK_ID_FILE,
    "locks",
    "lost+found",
    ".lock",
    ".kafka_cleanshutdown",
    "bootstrap.checkpoint",
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
];

/// Whether a name in a data directory is one that belongs there.
pub(super) fn is_node_name(name: &str) -> bool {
    NODE_NAMES.contains(&name)
}

/// Checks the checkpoints that Kafka keeps for all partitions of a data directory.
pub(super) fn check_kafka_node(data_dir: &Path, findings: &mut Vec<Finding>) -> Result<(), StorageError> {
    let read = read_kafka_checkpoints(&OsStorage, data_dir)?;
    for (name, offsets) in [
        ("replication-offset-checkpoint", read.high_watermarks),
        ("recovery-point-offset-checkpoint", read.recovery_points),
        ("log-start-offset-checkpoint", read.log_starts),
    ] {
        if let Some(reason) = offsets.damage {
            findings.push(unreadable(&data_dir.join(name), reason));
        }
    }
    Ok(())
}

/// Checks our checkpoint, and returns what it says.
pub(super) fn check_own(
    partition: &PartitionDir,
    has_checkpoint: bool,
    findings: &mut Vec<Finding>,
) -> Result<Option<CheckpointState>, StorageError> {
    let path = partition.single_file(CHECKPOINT_FILE);
    match CheckpointFile::read(&OsStorage, &partition.path)? {
        LoadedCheckpoint::Found(state) => {
            for range in &state.lost_ranges {
                let detail = "noted as lost when the damage was found";
                let note = Finding::note(FindingKind::LostRange, &path, detail);
                findings.push(note.offsets(range.start.get(), Some(range.end.get())));
            }
            return Ok(Some(state));
        }
        LoadedCheckpoint::Absent if has_checkpoint => {
            findings.push(Finding::problem(
                FindingKind::EmptyCheckpoint,
                &path,
                "no state was written to it",
            ));
        }
        // A directory of Kafka's has none.
        LoadedCheckpoint::Absent => {}
        LoadedCheckpoint::Unusable(reason) => findings.push(unreadable(&path, reason)),
    }
    Ok(None)
}

/// Checks that the log reaches as far as our checkpoint says that it did: what a crash takes lies beyond (design.md 2).
pub(super) fn check_reach(
    partition: &PartitionDir,
    state: &CheckpointState,
    walked: &Walked,
    findings: &mut Vec<Finding>,
) {
    let reached = state.recovery_point.max(state.high_watermark.offset);
    let end = walked.end.unwrap_or(state.log_start);
    if end < reached {
        let detail =
            "the checkpoint says that the log reached further: no crash takes flushed or committed records";
        let problem = Finding::problem(FindingKind::RecordsGone, &partition.path, detail);
        findings.push(problem.offsets(end.get(), Some(reached.get())));
    }
}

/// Checks the epoch checkpoint: readable, and what the batches say.
pub(super) fn check_epochs(
    partition: &PartitionDir,
    walked: &Walked,
    findings: &mut Vec<Finding>,
) -> Result<(), StorageError> {
    let path = partition.single_file(LEADER_EPOCH_FILE);
    let cache = match read_leader_epochs(&OsStorage, &partition.path)? {
        LoadedEpochs::Whole(cache) => cache,
        LoadedEpochs::Damaged { reason, .. } => {
            findings.push(unreadable(&path, reason));
            return Ok(());
        }
        LoadedEpochs::Absent => {
            // A log without batches need not have had a leader.
            if walked.batches > 0 {
                findings.push(missing(&path));
            }
            return Ok(());
        }
    };
    // What lies below the log start may be on the disk still, and is in the checkpoint no more.
    let log_start = cache.earliest().map_or(Offset::ZERO, |EpochEntry { start, .. }| start);
    for run in walked.epochs.iter().filter(|run| run.end > log_start) {
        let first = run.start.max(log_start);
        let noted = cache.epoch_at(first);
        if noted != Some(run.epoch) {
            let noted = noted.map_or_else(|| "none".to_owned(), |noted| noted.to_string());
            let detail = format!("the batch has epoch {}, the checkpoint says {noted}", run.epoch);
            findings
                .push(Finding::problem(FindingKind::WrongEpochs, &path, detail).offsets(first.get(), None));
        }
    }
    Ok(())
}

/// Checks the topic id: readable, and that of our checkpoint.
pub(super) fn check_topic_id(
    partition: &PartitionDir,
    state: Option<&CheckpointState>,
    findings: &mut Vec<Finding>,
) -> Result<(), StorageError> {
    let path = partition.single_file(PARTITION_METADATA_FILE);
    match read_partition_metadata(&OsStorage, &partition.path)? {
        LoadedPartitionMetadata::Found(id) => {
            if let Some(state) = state.filter(|state| state.topic_id != id) {
                let detail = format!("topic id {id}, but the checkpoint says {}", state.topic_id);
                findings.push(Finding::problem(FindingKind::WrongTopic, &path, detail));
            }
        }
        LoadedPartitionMetadata::Absent => findings.push(missing(&path)),
        LoadedPartitionMetadata::Damaged(reason) => findings.push(unreadable(&path, reason)),
    }
    Ok(())
}

fn missing(path: &Path) -> Finding {
    Finding::problem(FindingKind::MissingCheckpoint, path, "the file is not there")
}

/// A file that is there and cannot be read as what it should be.
fn unreadable(path: &Path, reason: String) -> Finding {
    let is_empty = fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0);
    let kind = if is_empty { FindingKind::EmptyCheckpoint } else { FindingKind::GarbledCheckpoint };
    Finding::problem(kind, path, reason)
}
