//! Walks the segments of a partition from the first byte to the last.

use std::path::Path;

use highwater_records::{BatchView, ValidateMode, record_stamps, validate};
use highwater_types::{LeaderEpoch, Offset};

use super::finding::{Finding, FindingKind};
use super::index::{IndexCheck, IndexKind};
use crate::log::LogCommandError;
use crate::log::partition::{PartitionDir, PartitionFiles};
use crate::log::scan::{Bad, Scanned, SegmentScan};

/// What a walk over all segments saw.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) batches: u64,
    pub(super) bytes: u64,
    pub(super) first: Option<Offset>,
    pub(super) end: Option<Offset>,
    /// Runs of batches of one leader epoch.
    pub(super) epochs: Vec<EpochRun>,
}

/// Batches in a row with the same leader epoch.
#[derive(Debug)]
pub(super) struct EpochRun {
    pub(super) epoch: LeaderEpoch,
    /// The base offset of the first batch.
    pub(super) start: Offset,
    /// The offset after the last batch.
    pub(super) end: Offset,
}

/// Checks every segment and its indexes.
pub(super) fn check(
    partition: &PartitionDir,
    files: &PartitionFiles,
    findings: &mut Vec<Finding>,
) -> Result<Walked, LogCommandError> {
    let mut walked = Walked::default();
    if files.segments.is_empty() {
        findings.push(Finding::problem(FindingKind::NoSegments, &partition.path, "there is no .log file"));
    }
    for base in &files.segments {
        check_segment(partition, files, *base, &mut walked, findings)?;
    }
    for (kind, bases) in [(IndexKind::Offset, &files.offset_indexes), (IndexKind::Time, &files.time_indexes)]
    {
        for base in bases.iter().filter(|base| !files.segments.contains(base)) {
            let path = partition.segment_file(*base, kind.extension());
            findings.push(Finding::problem(
                FindingKind::OrphanIndex,
                &path,
                "there is no segment of this base",
            ));
        }
    }
    Ok(walked)
}

fn check_segment(
    partition: &PartitionDir,
    files: &PartitionFiles,
    base: Offset,
    walked: &mut Walked,
    findings: &mut Vec<Finding>,
) -> Result<(), LogCommandError> {
    let is_last = files.segments.last() == Some(&base);
    let path = partition.segment_file(base, "log");
    let read_error = |e| LogCommandError::read(&path, e);
    let mut scan = SegmentScan::open(&path, base).map_err(read_error)?;
    let mut indexes = open_indexes(partition, base, findings)?;
    if walked.end.is_some_and(|end| base < end) {
        let detail = "the segment's base lies within the segment before it";
        findings
            .push(Finding::problem(FindingKind::OffsetsOutOfOrder, &path, detail).offsets(base.get(), None));
    }
    let mut expected = base;
    while let Some(scanned) = scan.next().map_err(read_error)? {
        match scanned {
            Scanned::Batch { position, batch } => {
                check_batch(&path, position, &batch, expected, findings);
                expected = batch.next_offset();
                walked.on_batch(&batch);
                for (_, index) in &mut indexes {
                    index.on_batch(position, &batch);
                }
            }
            Scanned::Bad(bad) => {
                for (_, index) in &mut indexes {
                    index.on_bad(bad.position, bad.bytes);
                }
                let is_tail = is_last && bad.resumes_at.is_none();
                let in_use = is_tail && partition.is_in_use()?;
                findings.push(name_damage(&path, &bad, expected, is_tail, in_use));
            }
        }
    }
    walked.bytes = walked.bytes.saturating_add(scan.len());
    let may_be_preallocated = is_last && !files.has_checkpoint;
    for (kind, index) in indexes {
        index.finish(&partition.segment_file(base, kind.extension()), may_be_preallocated, findings);
    }
    Ok(())
}

fn open_indexes(
    partition: &PartitionDir,
    base: Offset,
    findings: &mut Vec<Finding>,
) -> Result<Vec<(IndexKind, IndexCheck)>, LogCommandError> {
    let mut indexes = Vec::new();
    for kind in [IndexKind::Offset, IndexKind::Time] {
        let path = partition.segment_file(base, kind.extension());
        match IndexCheck::open(&path, kind, base.get()).map_err(|e| LogCommandError::read(&path, e))? {
            Some(index) => indexes.push((kind, index)),
            None => {
                let detail = "the segment has no such index; opening the log makes it again";
                findings.push(Finding::problem(FindingKind::MissingIndex, &path, detail));
            }
        }
    }
    Ok(indexes)
}

fn check_batch(
    path: &Path,
    position: u64,
    batch: &BatchView<'_>,
    expected: Offset,
    findings: &mut Vec<Finding>,
) {
    let offsets = |finding: Finding| {
        finding.at(position).offsets(batch.base_offset().get(), Some(batch.next_offset().get()))
    };
    if batch.base_offset() < expected {
        let detail = format!("the batch begins before offset {expected}, where the one before it ends");
        findings.push(offsets(Finding::problem(FindingKind::OffsetsOutOfOrder, path, detail)));
    }
    let content = validate(batch, ValidateMode::Replicate)
        .and_then(|()| record_stamps(batch)?.try_for_each(|stamp| stamp.map(drop)));
    if let Err(e) = content {
        findings.push(offsets(Finding::problem(FindingKind::UndecodableRecords, path, e.to_string())));
    }
}

/// A crash leaves a bad end and nothing after it, and so does an append that is under way; anything else is damage.
fn name_damage(path: &Path, bad: &Bad<'_>, expected: Offset, is_tail: bool, in_use: bool) -> Finding {
    let Bad { position, bytes, error, resumes_at, .. } = bad;
    let detail = format!("{bytes} bytes: {error}");
    let finding = match (is_tail, in_use) {
        (true, true) => Finding::note(FindingKind::InUse, path, detail),
        (true, false) => Finding::problem(FindingKind::TornTail, path, detail),
        (false, _) => Finding::problem(FindingKind::DamageInTheMiddle, path, detail),
    };
    finding.at(*position).offsets(expected.get(), resumes_at.map(Offset::get))
}

impl Walked {
    fn on_batch(&mut self, batch: &BatchView<'_>) {
        self.batches = self.batches.saturating_add(1);
        self.first = self.first.or_else(|| Some(batch.base_offset()));
        self.end = Some(batch.next_offset());
        let Some(epoch) = batch.leader_epoch() else { return };
        match self.epochs.last_mut() {
            Some(run) if run.epoch == epoch => run.end = batch.next_offset(),
            Some(_) | None => {
                let (start, end) = (batch.base_offset(), batch.next_offset());
                self.epochs.push(EpochRun { epoch, start, end });
            }
        }
    }
}
