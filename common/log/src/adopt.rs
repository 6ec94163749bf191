//! Adoption: copying a partition that Kafka wrote into a data directory of ours, checked (design.md 2 and 6.2).
//!
//! What must hold:
//! - The source is only read. Every batch of it is checked before anything is copied.
//! - A bad batch with a valid one after it is damage, and refused: a bare directory has no recovery point to trust. A torn
//!   tail is left out of the copy.
//! - The copy's segments touch as ours do (`vouched.rs`): where compaction left a gap between two, the later one is named by
//!   the end of the earlier one, and where it left one at the end, a batch without records fills it (FX2), because those offsets
//!   were given out. The batches themselves are copied byte for byte.
//! - Indexes are made from the batches: those of a live broker are preallocated and may hold stale entries.
//! - The copy appears under its name only when it is whole and flushed; a half-made one is thrown away by the next attempt.
//!
//! Snapshots of producer state and indexes of transactions are not needed: what they say is in the batches.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_records::{BatchBuilder, BatchError, BatchHeader, Compression};
use highwater_types::{Incarnation, LeaderEpoch, Offset, TopicId, TopicName, TopicPartition};

use crate::checkpoint::{
    CheckpointFile, CheckpointState, KafkaCheckpoints, LoadedPartitionMetadata, read_partition_metadata,
    write_leader_epochs, write_partition_metadata,
};
use crate::epoch_runs::{self, EpochRun};
use crate::segment::Segment;
use crate::segments::SegmentRef;
use crate::storage::{Access, Storage, StorageFile, StorageResult};
use crate::vouched::is_too_wide;
use crate::{BadBytes, HighWatermark, OpenError, ReadOnlyLog, Scanned, names, side_file};

/// What a copy is called until it is whole.
const UNFINISHED: &str = "adopting";

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
    let log = ReadOnlyLog::open(storage, &source.directory)?;
    let checked = check_source(&log)?;
    let unfinished = data_dir.join(format!("{name}.{UNFINISHED}"));
    if storage.exists(&unfinished)? {
        storage.remove_dir_all(&unfinished)?;
    }
    storage.create_dir_all(&unfinished)?;
    let mut adopted = copy_partition(storage, source, &checked, &unfinished, kafka, options)?;
    storage.sync_dir(&unfinished)?;
    storage.rename(&unfinished, &target)?;
    storage.sync_dir(data_dir)?;
    adopted.left_out = log.files().strangers();
    let Adopted { log_end, bytes, torn_bytes, .. } = adopted;
    if torn_bytes > 0 {
        tracing::warn!(partition = %source.partition, %log_end, torn_bytes, "a torn tail was left out");
    }
    tracing::info!(partition = %source.partition, %log_end, bytes, "adopted");
    Ok(adopted)
}

/// Batches of one segment of the source that become a segment of the copy.
struct Piece {
    /// The base of the source's segment.
    source: Offset,
    /// Where the batches stand in it, in bytes.
    bytes: Range<u64>,
    /// The base of the copy's segment.
    base: Offset,
    /// The offset after the last batch.
    end: Offset,
}

/// The good part of a source.
struct Checked {
    pieces: Vec<Piece>,
    runs: Vec<EpochRun>,
    /// Where the log begins, by the names of its segments.
    start: Offset,
    /// Where it ends, by its batches and the names of its segments.
    end: Offset,
    torn_bytes: u64,
}

impl Checked {
    /// Where the batches end.
    fn batch_end(&self) -> Offset {
        self.pieces.last().map_or(self.start, |piece| piece.end)
    }

    /// Takes the next good batch, as a log of ours would roll: the segment goes on as long as it can hold the batches of one
    /// segment of the source, and the next one begins where it ends, unless no segment can hold the gap before the batch.
    fn take(&mut self, source: Offset, position: u64, header: &BatchHeader) {
        epoch_runs::note(&mut self.runs, header);
        let touching = self.batch_end();
        let end = header.next_offset();
        self.end = end;
        let bytes = position..position.saturating_add(header.size() as u64);
        match self.pieces.last_mut() {
            Some(piece) if piece.source == source && !is_too_wide(piece.base, end) => {
                (piece.bytes.end, piece.end) = (bytes.end, end);
            }
            Some(_) | None => {
                let base = if is_too_wide(touching, end) { header.base_offset() } else { touching };
                self.pieces.push(Piece { source, bytes, base, end });
            }
        }
    }
}

fn check_source<S: Storage>(source: &ReadOnlyLog<S>) -> Result<Checked, OpenError> {
    let segments = &source.files().segments;
    let start = segments.first().map_or(Offset::ZERO, |first| first.base);
    let mut checked = Checked { pieces: Vec::new(), runs: Vec::new(), start, end: start, torn_bytes: 0 };
    for (at, segment) in segments.iter().enumerate() {
        checked.end = checked.end.max(segment.base);
        let Some(bad) = check_segment(source, segment.base, &mut checked)? else { continue };
        let later = segments.get(at + 1..).unwrap_or_default();
        if bad.is_followed || later.iter().any(|s| s.len > 0) {
            let file = source.segment_path(segment.base).display().to_string();
            return Err(OpenError::Damaged { file, position: bad.position, reason: bad.reason });
        }
        checked.torn_bytes = bad.bytes;
        break;
    }
    Ok(checked)
}

/// The end of a segment's good part.
struct BadEnd {
    position: u64,
    /// Up to the end of the segment.
    bytes: u64,
    reason: String,
    /// Whether a good batch comes after it in the segment.
    is_followed: bool,
}

/// Notes the good part of a segment; returns what ends it before the file does.
fn check_segment<S: Storage>(
    source: &ReadOnlyLog<S>,
    base: Offset,
    checked: &mut Checked,
) -> Result<Option<BadEnd>, OpenError> {
    let mut scan = source.scan(base)?;
    let len = scan.len();
    let mut bad: Option<BadEnd> = None;
    while let Some(scanned) = scan.next_piece()? {
        let (position, reason) = match scanned {
            Scanned::Batch { position, batch } => match (bad.as_mut(), misplaced(checked, &batch)) {
                (None, None) => {
                    checked.take(base, position, &batch);
                    continue;
                }
                (None, Some(reason)) => (position, reason),
                (Some(bad), _) => {
                    bad.is_followed = true;
                    break;
                }
            },
            Scanned::Bad(found) => {
                refuse_old_format(&source.segment_path(base), &found)?;
                (found.position, found.error.to_string())
            }
        };
        let bytes = len.saturating_sub(position);
        bad.get_or_insert(BadEnd { position, bytes, reason, is_followed: false });
    }
    Ok(bad)
}

/// Why a good batch is not at its place.
fn misplaced(checked: &Checked, header: &BatchHeader) -> Option<String> {
    if header.base_offset() < checked.end {
        return Some(format!("offset {} is below {}", header.base_offset(), checked.end));
    }
    let last = checked.runs.last().map(|run| run.epoch);
    (header.leader_epoch() < last)
        .then(|| format!("the epoch falls from {last:?} to {:?}", header.leader_epoch()))
}

/// Message formats before magic 2 are no torn tail.
fn refuse_old_format(path: &Path, bad: &BadBytes<'_>) -> Result<(), OpenError> {
    if bad.position == 0
        && let BatchError::UnsupportedMagic { magic: magic @ (0 | 1) } = bad.error
    {
        let file = path.display();
        let text = format!(
            "{file} holds messages of format {magic}: only format 2 (Kafka 0.11 and later) can be adopted"
        );
        return Err(OpenError::Refused(text));
    }
    Ok(())
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
    // Without a batch there is nothing before the end.
    let first_base = checked.pieces.first().map_or(checked.end, |first| first.base);
    let known = kafka.log_starts.offsets.get(&source.partition).copied();
    let log_start = known.unwrap_or(first_base).clamp(first_base, checked.end);
    let (mut segments, mut bytes) = (Vec::new(), 0);
    for (at, piece) in checked.pieces.iter().enumerate() {
        let next = checked.pieces.get(at + 1);
        if next.is_some_and(|next| next.base <= log_start) {
            continue;
        }
        let from = storage.open(&names::log_file(&source.directory, piece.source), Access::ReadOnly)?;
        let segment = Arc::new(Segment::create(storage, &dir, piece.base)?);
        let mut len = side_file::copy(&from, piece.bytes.clone(), segment.file(), 0)?;
        bytes += len;
        if next.is_none() {
            len = fill_gap_at_end(checked, &segment, len)?;
        }
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

/// Compaction may have removed the last offsets that were given out: a batch without records keeps them from being given out
/// again, and lets followers reach the end. Returns the segment's length with it.
fn fill_gap_at_end<S: Storage>(checked: &Checked, last: &Segment<S>, len: u64) -> Result<u64, OpenError> {
    let (from, epoch) = (checked.batch_end(), checked.runs.last().map(|run| run.epoch));
    if from == checked.end {
        return Ok(len);
    }
    let refused =
        |why: String| OpenError::Refused(format!("offsets {from} to {} hold no batch: {why}", checked.end));
    if is_too_wide(last.base(), checked.end) {
        return Err(refused("the gap is too wide for a segment".to_owned()));
    }
    let mut filling = BatchBuilder::new(Compression::None).base_offset(from);
    if let Some(epoch) = epoch {
        filling = filling.leader_epoch(epoch);
    }
    let filling = filling.build_empty(checked.end).map_err(|error| refused(error.to_string()))?;
    last.file().write_all_at(&filling, len)?;
    Ok(len.saturating_add(filling.len() as u64))
}

#[cfg(test)]
#[path = "adopt_test.rs"]
mod tests;
