//! Walks the segments of a partition from the first byte to the last.

use std::path::Path;

use highwater_log::{
    BadBytes, EpochRuns, IndexCheck, IndexKind, IndexState, Judgement, OsStorage, ReadOnlyLog, Scanned,
};
use highwater_records::{BatchView, ValidateMode, record_stamps, validate};
use highwater_types::Offset;

use super::finding::{Finding, FindingKind};
use super::reach::{Ends, Reach};
use crate::log::LogCommandError;

/// What a walk over all segments saw.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) batches: u64,
    pub(super) bytes: u64,
    pub(super) first: Option<Offset>,
    pub(super) end: Option<Offset>,
    pub(super) epochs: EpochRuns,
}

/// Checks every segment and its indexes.
pub(super) fn check(
    log: &ReadOnlyLog<OsStorage>,
    reach: &mut Reach,
    findings: &mut Vec<Finding>,
) -> Result<Walked, LogCommandError> {
    let mut walked = Walked::default();
    if log.files().segments.is_empty() {
        findings.push(Finding::problem(FindingKind::NoSegments, log.directory(), "there is no .log file"));
    }
    let segments = &log.files().segments;
    for (at, segment) in segments.iter().enumerate() {
        let next = segments.get(at + 1).map(|next| next.base);
        let ends = check_segment(log, segment.base, next, &mut walked, findings)?;
        reach.on_segment(&log.segment_path(segment.base), &ends, findings);
    }
    for name in &log.files().orphans {
        let path = log.directory().join(name);
        let detail = "there is no segment of this base";
        findings.push(Finding::problem(FindingKind::OrphanIndex, &path, detail));
    }
    Ok(walked)
}

fn check_segment(
    log: &ReadOnlyLog<OsStorage>,
    base: Offset,
    next: Option<Offset>,
    walked: &mut Walked,
    findings: &mut Vec<Finding>,
) -> Result<Ends, LogCommandError> {
    let path = log.segment_path(base);
    let mut scan = log.scan(base)?;
    let mut indexes = open_indexes(log, base, findings)?;
    if walked.end.is_some_and(|end| base < end) {
        let detail = "the segment's base lies within the segment before it";
        findings
            .push(Finding::problem(FindingKind::OffsetsOutOfOrder, &path, detail).offsets(base.get(), None));
    }
    let mut expected = base;
    let is_empty = scan.len() == 0;
    let mut ends = Ends { base, first_end: base, end: base, has_bad_end: false, is_empty, next };
    while let Some(scanned) = scan.next_piece()? {
        match scanned {
            Scanned::Batch { position, batch } => {
                check_batch(&path, base, position, &batch, expected, findings);
                expected = batch.next_offset();
                if ends.end == base {
                    ends.first_end = expected;
                }
                (ends.end, ends.has_bad_end) = (expected, false);
                walked.on_batch(&batch);
                for (_, index) in &mut indexes {
                    index.on_batch(position, &batch);
                }
            }
            Scanned::Bad(bad) => {
                for (_, index) in &mut indexes {
                    index.on_bad(&bad);
                }
                findings.push(name_damage(&path, &bad, expected, log.judge(base, &bad)?));
                ends.has_bad_end = true;
            }
        }
    }
    walked.bytes = walked.bytes.saturating_add(scan.len());
    for (kind, index) in indexes {
        findings.extend(name_index(&log.index_path(base, kind), index.finish()));
    }
    Ok(ends)
}

fn open_indexes(
    log: &ReadOnlyLog<OsStorage>,
    base: Offset,
    findings: &mut Vec<Finding>,
) -> Result<Vec<(IndexKind, IndexCheck)>, LogCommandError> {
    let mut indexes = Vec::new();
    for kind in [IndexKind::Offset, IndexKind::Time] {
        match log.check_index(base, kind)? {
            Some(index) => indexes.push((kind, index)),
            None => {
                let detail = "the segment has no such index; opening the log makes it again";
                let path = log.index_path(base, kind);
                findings.push(Finding::problem(FindingKind::MissingIndex, &path, detail));
            }
        }
    }
    Ok(indexes)
}

fn name_index(path: &Path, state: IndexState) -> Option<Finding> {
    match state {
        IndexState::Good => None,
        IndexState::Preallocated { spare } => {
            let detail = format!("{spare} bytes after the last entry are zero");
            Some(Finding::note(FindingKind::PreallocatedIndex, path, detail))
        }
        IndexState::Bad { reason } => Some(Finding::problem(FindingKind::BadIndex, path, reason)),
    }
}

fn check_batch(
    path: &Path,
    base: Offset,
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
    if i32::try_from(batch.last_offset().since(base)).is_err() {
        let detail = format!("the batch lies too far from the segment's base {base}");
        findings.push(offsets(Finding::problem(FindingKind::OffsetsOutOfOrder, path, detail)));
    }
    let content = validate(batch, ValidateMode::Replicate)
        .and_then(|()| record_stamps(batch)?.try_for_each(|stamp| stamp.map(drop)));
    if let Err(e) = content {
        findings.push(offsets(Finding::problem(FindingKind::UndecodableRecords, path, e.to_string())));
    }
}

fn name_damage(path: &Path, bad: &BadBytes<'_>, expected: Offset, judgement: Judgement) -> Finding {
    let BadBytes { position, bytes, error, resumes_at, .. } = bad;
    let detail = format!("{bytes} bytes: {error}");
    let finding = match judgement {
        Judgement::InUse => Finding::note(FindingKind::InUse, path, detail),
        Judgement::TornTail => Finding::problem(FindingKind::TornTail, path, detail),
        Judgement::Damage => Finding::problem(FindingKind::DamageInTheMiddle, path, detail),
    };
    finding.at(*position).offsets(expected.get(), resumes_at.map(Offset::get))
}

impl Walked {
    fn on_batch(&mut self, batch: &BatchView<'_>) {
        self.batches = self.batches.saturating_add(1);
        self.first = self.first.or_else(|| Some(batch.base_offset()));
        self.end = Some(batch.next_offset());
        self.epochs.note(batch.header());
    }
}
