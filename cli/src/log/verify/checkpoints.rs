//! Checks of the small files: leader epochs, topic id, our checkpoint.

use std::fs;
use std::path::Path;

use highwater_log::checkpoint::{
    CHECKPOINT_FILE, CheckpointState, LEADER_EPOCH_FILE, LoadedCheckpoint, LoadedEpochs,
    LoadedPartitionMetadata, PARTITION_METADATA_FILE,
};
use highwater_log::{OsStorage, ReadOnlyLog, StorageError, Vouched};
use highwater_types::{EpochEntry, Offset};

use super::finding::{Finding, FindingKind};
use super::segments::Walked;

/// What becomes of a replica of ours whose checkpoint says nothing.
const WITHOUT_STATE: &str = "opening the log makes it a new replica, with a new incarnation and its high watermark at the log start: \
    it cannot be elected before it has joined the in-sync set again";

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
            let detail = format!("no state was written to it; {WITHOUT_STATE}");
            findings.push(Finding::problem(FindingKind::EmptyCheckpoint, &path, detail));
        }
        LoadedCheckpoint::Absent if log.is_ours()? => {
            let detail = format!("the file is not there; {WITHOUT_STATE}");
            findings.push(Finding::problem(FindingKind::MissingCheckpoint, &path, detail));
        }
        // A directory of Kafka's has none.
        LoadedCheckpoint::Absent => {}
        LoadedCheckpoint::Unusable(reason) => {
            findings.push(unreadable(&path, format!("{reason}; {WITHOUT_STATE}")));
        }
    }
    Ok(None)
}

/// What must be there: by our checkpoint; without one, nothing but a log without holes. `None` for a directory of Kafka's, where
/// compaction leaves gaps between segments.
pub(super) fn vouched(
    log: &ReadOnlyLog<OsStorage>,
    state: Option<&CheckpointState>,
) -> Result<Option<Vouched>, StorageError> {
    Ok(match state {
        Some(state) => Some(Vouched::by(state)),
        None if log.is_ours()? => {
            let first = log.files().segments.first();
            let log_start = first.map_or(Offset::ZERO, |first| first.base);
            Some(Vouched { log_start, protected: Offset::ZERO })
        }
        None => None,
    })
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
    if let Some(found) = walked.epochs.contradiction(&cache, log_start) {
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
