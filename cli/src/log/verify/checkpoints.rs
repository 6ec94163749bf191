//! Checks of the small files: leader epochs, topic id, our checkpoint.

use std::fs;
use std::path::Path;

use highwater_log::checkpoint::{
    CHECKPOINT_FILE, CheckpointState, LEADER_EPOCH_FILE, LoadedCheckpoint, LoadedEpochs,
    LoadedPartitionMetadata, PARTITION_METADATA_FILE,
};
use highwater_log::{OsStorage, ReadOnlyLog, StorageError};
use highwater_types::{EpochEntry, Offset};

use super::finding::{Finding, FindingKind};
use super::segments::Walked;

/// Checks our checkpoint, and returns what it says.
pub(super) fn check_own(
    log: &ReadOnlyLog<OsStorage>,
    findings: &mut Vec<Finding>,
) -> Result<Option<CheckpointState>, StorageError> {
    let path = log.directory().join(CHECKPOINT_FILE);
    match log.checkpoint()? {
        LoadedCheckpoint::Found(state) => {
            for range in &state.lost_ranges {
                let detail = "noted as lost when the damage was found";
                let note = Finding::note(FindingKind::LostRange, &path, detail);
                findings.push(note.offsets(range.start.get(), Some(range.end.get())));
            }
            return Ok(Some(state));
        }
        LoadedCheckpoint::Absent if log.files().has_checkpoint() => {
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
    log: &ReadOnlyLog<OsStorage>,
    state: &CheckpointState,
    walked: &Walked,
    findings: &mut Vec<Finding>,
) {
    let reached = state.recovery_point.max(state.high_watermark.offset);
    let end = walked.end.unwrap_or(state.log_start);
    if end < reached {
        let detail =
            "the checkpoint says that the log reached further: no crash takes flushed or committed records";
        let problem = Finding::problem(FindingKind::RecordsGone, log.directory(), detail);
        findings.push(problem.offsets(end.get(), Some(reached.get())));
    }
}

/// Checks the epoch checkpoint: readable, and what the batches say.
pub(super) fn check_epochs(
    log: &ReadOnlyLog<OsStorage>,
    walked: &Walked,
    findings: &mut Vec<Finding>,
) -> Result<(), StorageError> {
    let path = log.directory().join(LEADER_EPOCH_FILE);
    let cache = match log.leader_epochs()? {
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
    let log_end = walked.end.unwrap_or(log_start);
    if let Some(found) = walked.epochs.contradiction(&cache, log_start, log_end) {
        let problem = Finding::problem(FindingKind::WrongEpochs, &path, found.reason);
        findings.push(problem.offsets(found.offset.get(), None));
    }
    Ok(())
}

/// Checks the topic id: readable, and that of our checkpoint.
pub(super) fn check_topic_id(
    log: &ReadOnlyLog<OsStorage>,
    state: Option<&CheckpointState>,
    findings: &mut Vec<Finding>,
) -> Result<(), StorageError> {
    let path = log.directory().join(PARTITION_METADATA_FILE);
    match log.topic_id()? {
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
pub(super) fn unreadable(path: &Path, reason: String) -> Finding {
    let is_empty = fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0);
    let kind = if is_empty { FindingKind::EmptyCheckpoint } else { FindingKind::GarbledCheckpoint };
    Finding::problem(kind, path, reason)
}
