//! What is missing before, between and after the segments of a log of ours, by the judgement by which the log is opened.

use std::path::Path;

use highwater_log::{Missing, OffsetRange, OsStorage, ReadOnlyLog, SegmentFiles, Vouched};
use highwater_types::Offset;

use super::finding::{Finding, FindingKind};

/// How far a log reaches without a hole, as its segments are walked.
#[derive(Debug)]
pub(super) struct Reach {
    /// `None` for a directory of Kafka's, where nothing can be told.
    vouched: Option<Vouched>,
    /// The base of the first segment that opening the log keeps.
    first: Option<Offset>,
    /// Where the segments end so far; `None` before the first.
    end: Option<Offset>,
    /// Whether the log ends before the segments do.
    is_over: bool,
}

impl Reach {
    /// Begins before the segments, which are listed in order.
    pub(super) fn new(vouched: Option<Vouched>, segments: &[SegmentFiles]) -> Self {
        let below = vouched.map_or(0, |vouched| vouched.below_log_start(segments.iter().map(|s| s.base)));
        let first = segments.get(below).map(|segment| segment.base);
        Self { vouched, first, end: None, is_over: false }
    }

    /// Takes the next segment. What bad bytes take up is named by itself.
    pub(super) fn on_segment(&mut self, path: &Path, segment: &Ends, findings: &mut Vec<Finding>) {
        let Some(vouched) = self.vouched.filter(|_| !self.is_over) else { return };
        let Ends { base, first_end, end, has_bad_end, is_empty, next } = *segment;
        if Some(base) < self.first || (is_empty && next.is_some()) {
            let detail = "it holds nothing of the log; opening the log removes it";
            findings.push(Finding::note(FindingKind::LeftOver, path, detail));
            return;
        }
        let missing = match self.end {
            None => vouched.before_first(base),
            Some(end) => vouched.between(end, base, first_end),
        };
        match missing {
            Missing::Nothing => {}
            Missing::Lost(range) => findings.push(gone(path, range, "the segment that held them is gone")),
            Missing::Unacknowledged => {
                let from = self.end.unwrap_or(vouched.log_start);
                let detail = "no segment holds the offsets before it, and none of them was acknowledged: opening the log ends it there";
                let problem = Finding::problem(FindingKind::OffsetsOutOfOrder, path, detail);
                findings.push(problem.offsets(from.get(), Some(base.get())));
                self.is_over = true;
                return;
            }
        }
        self.end = Some(end);
        if has_bad_end {
            match vouched.after_bad(end, next) {
                Missing::Nothing => {}
                Missing::Lost(range) => self.end = Some(range.end),
                Missing::Unacknowledged => self.is_over = true,
            }
        }
    }

    /// What is missing at the end.
    pub(super) fn finish(self, log: &ReadOnlyLog<OsStorage>) -> Option<Finding> {
        let vouched = self.vouched?;
        let range = vouched.after_last(self.end.unwrap_or(vouched.log_start))?;
        Some(gone(
            log.directory(),
            range,
            "the checkpoint says that the log reached further: no crash takes flushed or committed records",
        ))
    }
}

/// Where a segment begins and ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) base: Offset,
    /// Where the first good batch ends; the base without any.
    pub(super) first_end: Offset,
    /// Where the last good batch ends; the base without any.
    pub(super) end: Offset,
    /// Whether bad bytes follow the last good batch.
    pub(super) has_bad_end: bool,
    pub(super) is_empty: bool,
    /// Where the next segment begins.
    pub(super) next: Option<Offset>,
}

fn gone(path: &Path, range: OffsetRange, why: &str) -> Finding {
    let detail = format!("{why}; opening the log reports them as damage");
    Finding::problem(FindingKind::RecordsGone, path, detail).offsets(range.start.get(), Some(range.end.get()))
}
