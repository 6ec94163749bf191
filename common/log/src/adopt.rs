//! Adoption: copying a partition that Kafka wrote into a data directory of ours, checked (design.md 2 and 6.2).
//!
//! What must hold:
//! - The source is only read. Every batch of it is checked before anything is copied.
//! - A bad batch with a valid one after it is damage, and refused: a bare directory has no recovery point to trust. A torn
//!   tail is left out of the copy.
//! - Indexes are made from the batches: those of a live broker are preallocated and may hold stale entries.
//! - The copy appears under its name only when it is whole and flushed; a half-made one is thrown away by the next attempt.
//!
//! Snapshots of producer state and indexes of transactions are not needed: what they say is in the batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_records::{BatchError, find_valid_batch};
use highwater_types::{Incarnation, LeaderEpoch, Offset, TopicId, TopicName, TopicPartition};

use crate::checkpoint::{
    CheckpointFile, CheckpointState, KafkaCheckpoints, LoadedPartitionMetadata, read_partition_metadata,
    write_leader_epochs, write_partition_metadata,
};
use crate::epoch_runs::{self, EpochRun};
use crate::listing::{Found, Listing};
use crate::segment::Segment;
use crate::segments::SegmentRef;
use crate::storage::{Access, Storage, StorageFile, StorageResult};
use crate::walk::{BadBatch, Check, Walk, read_up_to};
use crate::{HighWatermark, OpenError, names, side_file};

/// What a copy is called until it is whole.
const UNFINISHED: &str = "adopting";
/// Bytes searched at once for a valid batch after a bad one.
const SEARCH_BYTES: usize = 32 << 20;

/// A partition directory that can be adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoptable {
    /// The partition, by the directory's name.
    pub partition: TopicPartition,
    /// The directory.
    pub directory: PathBuf,
    /// The topic's id by `partition.metadata`; `None` when there is none (Kafka wrote none before 2.8), or not a readable one.
    pub topic_id: Option<TopicId>,
}

/// What the copy becomes.
#[derive(Clone, Debug)]
pub struct AdoptOptions {
    /// The topic's id from now on.
    pub topic_id: TopicId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// Log bytes between two index entries.
    pub index_interval_bytes: u32,
}

/// What was adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// The first offset that is kept.
    pub log_start: Offset,
    /// The offset that the next record gets.
    pub log_end: Offset,
    /// The high watermark that Kafka knew; at most the log end.
    pub high_watermark: Offset,
    /// The highest epoch that the log knows: the topic goes on with the one after it (design.md 6.2).
    pub highest_epoch: Option<LeaderEpoch>,
    /// How many bytes of records were copied.
    pub bytes: u64,
    /// The torn tail that was left out, in bytes.
    pub torn_bytes: u64,
    /// Files of the source that were not copied.
    pub left_out: Vec<String>,
}

/// The partitions of `topic` in `dir` (`NAME-0`, `NAME-1` …), by partition.
///
/// # Errors
/// What the disk says.
pub fn list_adoptable<S: Storage>(
    storage: &S,
    dir: &Path,
    topic: &TopicName,
) -> StorageResult<Vec<Adoptable>> {
    let mut found = Vec::new();
    for entry in storage.list_dir(dir)?.into_iter().filter(|entry| entry.is_dir) {
        let Some(partition) = entry.utf8_name().and_then(TopicPartition::from_directory_name) else {
            continue;
        };
        if partition.topic != *topic {
            continue;
        }
        let directory = dir.join(&entry.name);
        let topic_id = match read_partition_metadata(storage, &directory)? {
            LoadedPartitionMetadata::Found(id) => Some(id),
            LoadedPartitionMetadata::Absent | LoadedPartitionMetadata::Damaged(_) => None,
        };
        found.push(Adoptable { partition, directory, topic_id });
    }
    found.sort_unstable_by_key(|a| a.partition.partition);
    Ok(found)
}

/// Copies one partition into `data_dir`, which must not have it yet. `kafka` is what Kafka's node-level files say. The caller
/// holds the partition's lock.
///
/// # Errors
/// [`OpenError::Damaged`], [`OpenError::Refused`] (the partition is there already, or in an old message format), or what the
/// disk says. Then nothing was adopted.
pub fn adopt_partition<S: Storage>(
    storage: &S,
    source: &Adoptable,
    data_dir: &Path,
    kafka: &KafkaCheckpoints,
    options: &AdoptOptions,
) -> Result<Adopted, OpenError> {
    let name = source.partition.directory_name();
    let target = data_dir.join(&name);
    if storage.exists(&target)? {
        return Err(OpenError::Refused(format!(
            "{} exists already: it cannot be adopted over",
            target.display()
        )));
    }
    let listing = Listing::read(storage, &source.directory)?;
    let checked = check_source(storage, &source.directory, &listing.segments)?;
    let unfinished = data_dir.join(format!("{name}.{UNFINISHED}"));
    if storage.exists(&unfinished)? {
        storage.remove_dir_all(&unfinished)?;
    }
    storage.create_dir_all(&unfinished)?;
    let mut adopted = copy_partition(storage, source, &checked, &unfinished, kafka, options)?;
    storage.sync_dir(&unfinished)?;
    storage.rename(&unfinished, &target)?;
    storage.sync_dir(data_dir)?;
    adopted.left_out = listing.foreign;
    let Adopted { log_end, bytes, torn_bytes, .. } = adopted;
    if torn_bytes > 0 {
        tracing::warn!(partition = %source.partition, %log_end, torn_bytes, "a torn tail was left out");
    }
    tracing::info!(partition = %source.partition, %log_end, bytes, "adopted");
    Ok(adopted)
}

/// The good part of a source.
struct Checked {
    /// Base and good length of each segment.
    segments: Vec<(Offset, u64)>,
    runs: Vec<EpochRun>,
    end: Offset,
    torn_bytes: u64,
}

fn check_source<S: Storage>(storage: &S, dir: &Path, found: &[Found]) -> Result<Checked, OpenError> {
    let end = found.first().map_or(Offset::ZERO, |first| first.base);
    let mut checked = Checked { segments: Vec::new(), runs: Vec::new(), end, torn_bytes: 0 };
    for (at, segment) in found.iter().enumerate() {
        let path = names::log_file(dir, segment.base);
        let file = storage.open(&path, Access::ReadOnly)?;
        checked.end = checked.end.max(segment.base);
        let mut walk = Walk::new(&file, Check::Crc, 0, segment.len);
        let mut good = 0;
        let bad = loop {
            match walk.next()? {
                None => break None,
                Some(Ok(batch)) => {
                    if let Some(reason) = misplaced(&checked, &batch.header) {
                        break Some((batch.position, reason));
                    }
                    epoch_runs::note(&mut checked.runs, &batch.header);
                    checked.end = batch.header.next_offset();
                    good = batch.position.saturating_add(batch.header.size() as u64);
                }
                Some(Err(bad)) => {
                    refuse_old_format(&path, &bad)?;
                    break Some((bad.position, bad.reason.to_string()));
                }
            }
        };
        checked.segments.push((segment.base, good));
        if let Some((position, reason)) = bad {
            let later = found.get(at + 1..).unwrap_or_default();
            if later.iter().any(|s| s.len > 0) || something_follows(&file, position, segment.len)? {
                return Err(OpenError::Damaged { file: path.display().to_string(), position, reason });
            }
            checked.torn_bytes = segment.len.saturating_sub(good);
            break;
        }
    }
    Ok(checked)
}

/// Why a good batch is not at its place.
fn misplaced(checked: &Checked, header: &highwater_records::BatchHeader) -> Option<String> {
    if header.base_offset() < checked.end {
        return Some(format!("offset {} is below {}", header.base_offset(), checked.end));
    }
    let last = checked.runs.last().map(|run| run.epoch);
    (header.leader_epoch() < last)
        .then(|| format!("the epoch falls from {last:?} to {:?}", header.leader_epoch()))
}

/// Message formats before magic 2 are no torn tail.
fn refuse_old_format(path: &Path, bad: &BadBatch) -> Result<(), OpenError> {
    if bad.position == 0
        && let BatchError::UnsupportedMagic { magic: magic @ (0 | 1) } = bad.reason
    {
        let file = path.display();
        let text = format!(
            "{file} holds messages of format {magic}: only format 2 (Kafka 0.11 and later) can be adopted"
        );
        return Err(OpenError::Refused(text));
    }
    Ok(())
}

/// Whether a valid batch begins anywhere after a bad one.
fn something_follows<F: StorageFile>(file: &F, bad: u64, len: u64) -> StorageResult<bool> {
    let mut from = bad.saturating_add(1);
    while from < len {
        let want = usize::try_from(len.saturating_sub(from)).unwrap_or(SEARCH_BYTES).min(SEARCH_BYTES);
        let mut bytes = vec![0; want];
        let filled = read_up_to(file, &mut bytes, from)?;
        bytes.truncate(filled);
        if find_valid_batch(&bytes, Offset::ZERO).is_some() {
            return Ok(true);
        }
        if filled < SEARCH_BYTES {
            return Ok(false);
        }
        // Half a window again, for a batch that the window's end cut.
        from = from.saturating_add((SEARCH_BYTES / 2) as u64);
    }
    Ok(false)
}

fn copy_partition<S: Storage>(
    storage: &S,
    source: &Adoptable,
    checked: &Checked,
    to: &Path,
    kafka: &KafkaCheckpoints,
    options: &AdoptOptions,
) -> Result<Adopted, OpenError> {
    let dir: Arc<Path> = to.into();
    let first_base = checked.segments.first().map_or(Offset::ZERO, |first| first.0);
    let known = kafka.log_starts.offsets.get(&source.partition).copied();
    let log_start = known.unwrap_or(first_base).clamp(first_base, checked.end);
    let mut segments = Vec::new();
    let mut bytes = 0;
    for (base, len) in checked.segments.iter().copied() {
        let from = storage.open(&names::log_file(&source.directory, base), Access::ReadOnly)?;
        let segment = Arc::new(Segment::create(storage, &dir, base)?);
        bytes += side_file::copy(&from, 0..len, segment.file(), 0)?;
        segment.file().sync_all()?;
        segment.pin_indexes(segment.indexes_from_log(len, &[], options.index_interval_bytes)?);
        segment.write_indexes(true)?;
        segments.push(SegmentRef { segment, len });
    }
    if segments.is_empty() {
        let segment = Arc::new(Segment::create(storage, &dir, log_start)?);
        segments.push(SegmentRef { segment, len: 0 });
    }
    let epochs =
        epoch_runs::recover(storage, &source.directory, &segments, &checked.runs, checked.end, log_start)?;
    write_leader_epochs(storage, &dir, &epochs.epochs)?;
    write_partition_metadata(storage, &dir, options.topic_id)?;
    let highest_epoch = epochs.highest;
    let high_watermark = kafka.high_watermarks.offsets.get(&source.partition).copied().unwrap_or(log_start);
    let high_watermark = high_watermark.clamp(log_start, checked.end);
    let (mut file, _) = CheckpointFile::open(storage, &dir)?;
    file.write_durable(&CheckpointState {
        recovery_point: checked.end,
        high_watermark: HighWatermark { offset: high_watermark, epoch: highest_epoch },
        log_start,
        highest_leader_epoch: highest_epoch,
        clean: true,
        ..CheckpointState::new(options.topic_id, options.incarnation)
    })?;
    let (log_end, torn_bytes) = (checked.end, checked.torn_bytes);
    Ok(Adopted { log_start, log_end, high_watermark, highest_epoch, bytes, torn_bytes, left_out: Vec::new() })
}

#[cfg(test)]
#[path = "adopt_test.rs"]
mod tests;
