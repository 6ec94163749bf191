//! The epoch cache of a log that is being opened or adopted: its file, as far as the batches confirm it (KAFKA-15608).
//!
//! A leadership that appended nothing is known from the file only, so the file is kept where it does not contradict the log,
//! and made again from the batches where it does, or is missing.

use std::path::Path;

use highwater_records::BatchHeader;
use highwater_types::{LeaderEpoch, LeaderEpochCache, Offset};

use crate::Repair;
use crate::checkpoint::{LoadedEpochs, read_leader_epochs};
use crate::segments::SegmentRef;
use crate::storage::{Storage, StorageResult};
use crate::walk::{Check, Walk};

/// Batches of one epoch in a row, as they were met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochRun {
    pub(crate) epoch: LeaderEpoch,
    /// The base offsets of the first and the last of them.
    pub(crate) first: Offset,
    pub(crate) last: Offset,
    /// The offset after the last one.
    pub(crate) end: Offset,
}

/// Takes note of a batch that follows those noted.
pub(crate) fn note(runs: &mut Vec<EpochRun>, header: &BatchHeader) {
    let Some(epoch) = header.leader_epoch() else { return };
    let (first, end) = (header.base_offset(), header.next_offset());
    match runs.last_mut() {
        Some(run) if run.epoch == epoch => (run.last, run.end) = (first, end),
        Some(_) | None => runs.push(EpochRun { epoch, first, last: first, end }),
    }
}

/// The epoch cache, and what had to be done for it.
#[derive(Debug)]
pub(crate) struct RecoveredEpochs {
    pub(crate) epochs: LeaderEpochCache,
    /// The highest epoch that the file or a batch tells of, although it may have been cut: nobody works below it.
    pub(crate) highest: Option<LeaderEpoch>,
    /// Whether the file says something else.
    pub(crate) changed: bool,
    pub(crate) repair: Option<Repair>,
}

/// `runs` are the epochs that were met in the part of the log that was read.
pub(crate) fn recover<S: Storage>(
    storage: &S,
    dir: &Path,
    segments: &[SegmentRef<S>],
    runs: &[EpochRun],
    log_end: Offset,
    log_start: Offset,
) -> StorageResult<RecoveredEpochs> {
    let (stored, wrong) = match read_leader_epochs(storage, dir)? {
        LoadedEpochs::Whole(stored) => (stored, None),
        LoadedEpochs::Absent => (LeaderEpochCache::new(), Some("missing".to_owned())),
        LoadedEpochs::Damaged { salvaged, reason } => (salvaged, Some(reason)),
    };
    let is_empty = segments.iter().all(|s| s.len == 0);
    let wrong = wrong.or_else(|| Some(contradiction(&stored, runs, log_start)?.reason));
    let mut epochs = stored.clone();
    // What began beyond the end was cut. What began at the end stays: a leadership that appended nothing (S36).
    epochs.truncate_from_end(log_end.next());
    let mut repair = None;
    if let Some(reason) = wrong.filter(|_| !is_empty || !runs.is_empty()) {
        epochs = from_batches(segments, &epochs)?;
        epochs.truncate_from_end(log_end.next());
        repair = Some(Repair::EpochCacheRebuilt { reason });
    }
    epochs.truncate_from_start(log_start);
    debug_assert!(
        epochs.latest().is_none_or(|latest| latest.start <= log_end),
        "nothing begins beyond the end"
    );
    let highest = [&epochs, &stored].iter().filter_map(|cache| cache.latest()).map(|entry| entry.epoch).max();
    Ok(RecoveredEpochs { changed: epochs != stored, epochs, highest, repair })
}

/// The leader epochs of a log's batches, as they are met one after the other: for those who only read.
#[derive(Clone, Debug, Default)]
pub struct EpochRuns {
    runs: Vec<EpochRun>,
}

impl EpochRuns {
    /// Takes note of a batch that follows those noted.
    pub fn note(&mut self, header: &BatchHeader) {
        note(&mut self.runs, header);
    }

    /// Where an epoch cache says something else than the batches; what lies below `log_start` is forgotten. `None` when they
    /// agree.
    #[must_use]
    pub fn contradiction(&self, stored: &LeaderEpochCache, log_start: Offset) -> Option<EpochContradiction> {
        contradiction(stored, &self.runs, log_start)
    }
}

/// The first place where an epoch cache and the batches disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochContradiction {
    /// The offset.
    pub offset: Offset,
    /// What the batches say.
    pub reason: String,
}

/// Where the cache says something else than the batches. Of what comes behind the last of them they say nothing: it may be
/// lost, or not have been read.
fn contradiction(
    stored: &LeaderEpochCache,
    runs: &[EpochRun],
    log_start: Offset,
) -> Option<EpochContradiction> {
    // What lies below the log start is forgotten.
    let wrong = |run: &EpochRun| {
        let mut kept = [run.first, run.last].into_iter().filter(|offset| *offset >= log_start);
        kept.find(|offset| stored.epoch_at(*offset) != Some(run.epoch))
    };
    if let Some((run, offset)) = runs.iter().find_map(|run| Some((run, wrong(run)?))) {
        let EpochRun { epoch, first, last, .. } = run;
        let reason = format!("the batches from offset {first} to {last} are of epoch {epoch}");
        return Some(EpochContradiction { offset, reason });
    }
    let last = runs.last()?;
    let within = stored.entries().iter().find(|e| e.epoch > last.epoch && e.start < last.end)?;
    let reason = format!(
        "epoch {} begins at offset {} within a batch of epoch {}",
        within.epoch, within.start, last.epoch
    );
    Some(EpochContradiction { offset: within.start, reason })
}

/// Makes the cache from the headers of all batches; keeps what the old one knows of later leaderships without a batch.
fn from_batches<S: Storage>(
    segments: &[SegmentRef<S>],
    old: &LeaderEpochCache,
) -> StorageResult<LeaderEpochCache> {
    let mut epochs = LeaderEpochCache::new();
    let mut last = Offset::ZERO;
    for entry in segments {
        let mut walk = Walk::new(entry.segment.file(), Check::Header, 0, entry.len);
        // Damage ends the walk through a segment; the next one goes on.
        while let Some(Ok(batch)) = walk.next()? {
            let latest = epochs.latest().map(|entry| entry.epoch);
            if let Some(epoch) = batch.header.leader_epoch().filter(|epoch| Some(*epoch) > latest) {
                epochs.assign(epoch, batch.header.base_offset());
            }
            last = batch.header.next_offset();
        }
    }
    for entry in old.entries() {
        let is_later = epochs.latest().is_none_or(|latest| entry.epoch > latest.epoch);
        if is_later && entry.start >= last {
            epochs.assign(entry.epoch, entry.start);
        }
    }
    Ok(epochs)
}
