//! What happens to the follower's own log: appends, flushes, cuts, failures, and the bounds that follow from it.

use std::ops::Range;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Incarnation, LeaderEpoch, MonotonicTime, Offset};

use super::{FailureReason, FollowerEffect, FollowerPartition, LogState, Phase};
use crate::Randomness;

impl FollowerPartition {
    /// An append of `bytes` bytes ended at `log_end`. Ignored when its generation is over.
    pub fn on_appended(&mut self, generation: u64, bytes: u64, log_end: Offset) {
        if generation != self.generation {
            return;
        }
        debug_assert!(log_end >= self.log_end, "an append moves the end forward");
        debug_assert!(log_end <= self.queued_end, "only what was queued is appended");
        self.log_end = log_end;
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        self.storage_backoff.reset();
        self.apply_bounds();
        self.check_bounds();
    }

    /// A flush that began at this [`Self::log_version`] reached `flushed_end`. Ignored when the log was replaced since: a
    /// flush that a truncation overtook acknowledges nothing (design.md 2).
    pub fn on_flushed(&mut self, log_version: u64, flushed_end: Offset) {
        if log_version != self.log_version {
            return;
        }
        debug_assert!(flushed_end >= self.log_start, "a flush covers the log from its start");
        self.flushed_end = self.flushed_end.max(flushed_end.min(self.log_end));
        self.check_bounds();
    }

    /// The log refused an append, whose batches fail their checks; nothing of it was written. What is queued behind it is
    /// void as well. `last_epoch` is the newest entry of the log's epoch cache.
    pub fn on_append_refused(
        &mut self,
        generation: u64,
        last_epoch: Option<LeaderEpoch>,
        message: String,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) {
        if generation != self.generation {
            return;
        }
        self.generation += 1;
        self.queued_end = self.log_end;
        self.queued_bytes = 0;
        self.last_fetched_epoch = last_epoch;
        self.delay_or_fail(FailureReason::BadRecords(message), now, randomness);
        debug_assert_ne!(self.generation, generation, "what was queued behind it is void");
        self.check_bounds();
    }

    /// What is damaged changed: replication filled a lost tail, a repair ended, or a lost tail is forgotten.
    pub fn on_damage(&mut self, damage: Vec<Range<Offset>>) {
        self.damage = damage;
        self.check_bounds();
    }

    /// The log start was raised.
    pub fn on_log_start(&mut self, log_start: Offset) {
        debug_assert!(log_start <= self.high_watermark, "not above the own high watermark (design.md 2)");
        self.log_start = self.log_start.max(log_start.min(self.high_watermark));
        self.check_bounds();
    }

    /// The log was cut, restarted, reopened, led over what the leader lost, or its incarnation renewed: this is what it is
    /// now. Fetching goes on from its end.
    pub fn on_log_replaced(&mut self, log: LogState, incarnation: Incarnation, damage: Vec<Range<Offset>>) {
        if incarnation != self.incarnation {
            self.acknowledged_sent = None;
            self.acknowledged_counted = None;
        }
        self.incarnation = incarnation;
        self.damage = damage;
        self.log_version += 1;
        let was_cut = self.phase == Phase::Truncating;
        self.adopt_log(log);
        if was_cut && is_planted(PlantedFault::OneRoundTruncation) {
            self.last_fetched_epoch = None;
        }
        debug_assert_eq!(self.queued_end, log.log_end, "fetching goes on from the log's end");
        self.check_bounds();
    }

    /// The own disk failed: the log takes nothing more until it was recovered (KAFKA-10778). Retried a bounded number of
    /// times. An append and a flush may report the same failure: until the next try it counts once.
    pub fn on_storage_failed(&mut self, message: String, now: MonotonicTime, randomness: &mut Randomness) {
        if matches!(&self.phase, Phase::Failed { reason: FailureReason::Storage(_), retry_at: Some(_) }) {
            return;
        }
        let retry_at = self.storage_backoff.next_bounded_delay(randomness).map(|wait| now.after(wait));
        self.fail_until(FailureReason::Storage(message), retry_at);
        debug_assert!(!self.owes_acknowledgement(), "a failed replica acknowledges nothing");
        self.check_bounds();
    }

    /// Whether a log that ends at `end` after a failure of the disk lacks what this incarnation may have acknowledged, in this
    /// leadership or an earlier one: it must be renewed then, durably, at once (design.md 6.3). Under an earlier leader damage may
    /// have bounded nothing that bounds the acknowledgement now: all that was held counts.
    #[must_use]
    pub fn loses_acknowledged(&self, end: Offset) -> bool {
        end < self.held() || self.acknowledged_sent.is_some_and(|sent| end < sent)
    }

    /// Starts over from what the log says; queued appends and answers under way are void.
    pub(super) fn adopt_log(&mut self, log: LogState) {
        self.generation += 1;
        self.phase = Phase::Fetching;
        self.log_start = log.log_start;
        self.log_end = log.log_end;
        self.flushed_end = log.flushed_end;
        self.queued_end = log.log_end;
        self.queued_bytes = 0;
        self.last_fetched_epoch = log.last_epoch;
        self.high_watermark = self.high_watermark.clamp(log.log_start, log.log_end);
        self.heard_high_watermark = self.high_watermark;
        self.log_start_asked = log.log_start;
        debug_assert!(self.high_watermark <= self.log_end, "the high watermark follows a cut (S43)");
        debug_assert!(self.flushed_end <= self.log_end, "so does the flushed end");
    }

    /// High watermark first, then the log start, both from the leader and within the own log (S48, S59, design.md 2).
    pub(super) fn apply_bounds(&mut self) {
        let before = self.high_watermark;
        self.high_watermark = before.max(self.heard_high_watermark.min(self.log_end));
        if self.high_watermark > before {
            self.effects.push_back(FollowerEffect::HighWatermarkAdvanced(self.high_watermark));
        }
        let start = self.leader_log_start.map_or(self.log_start, |start| start.min(self.high_watermark));
        if start > self.log_start.max(self.log_start_asked) {
            self.log_start_asked = start;
            self.effects.push_back(FollowerEffect::RaiseLogStart(start));
        }
        debug_assert!(self.high_watermark >= before, "falls only by truncation");
        debug_assert!(self.high_watermark <= self.log_end, "not above the own log end");
    }
}
