//! What a follower does with an answer: the rules of S5–S8, S24, S35, S46–S48 and design.md 5.

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{ErrorCode, LeaderEpoch, MonotonicTime, Offset, Retry};

use super::{FailureReason, FetchPosition, FollowerAction, FollowerPartition, Phase};
use crate::Randomness;
use crate::fetch::Snapshot;

/// One batch of an answer, by its header. Its CRC is checked when it is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSpan {
    /// Its first offset.
    pub base: Offset,
    /// The offset after its last one, from its header and not from its records (S8).
    pub next: Offset,
    /// The leadership that wrote it; `None` where the batch names none.
    pub epoch: Option<LeaderEpoch>,
    /// Its size in bytes.
    pub bytes: usize,
}

/// A partition's answer, as far as the core needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFacts {
    /// The leader refused.
    Error(ErrorCode),
    /// The logs differ.
    Diverging(highwater_types::OffsetAndEpoch),
    /// Records, or none.
    Records {
        /// What the leader states beside them.
        snapshot: Snapshot,
        /// The whole batches, in order, from the start of the answer.
        batches: Vec<BatchSpan>,
        /// Why what comes after them is not a batch, if there is anything.
        bad: Option<String>,
    },
}

/// The leader's range, asked for after an out-of-range answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderOffsets {
    /// Its log start.
    pub log_start: Offset,
    /// Its log end (exclusive).
    pub log_end: Offset,
}

impl FollowerPartition {
    /// An answer to what was asked from `sent`.
    pub fn on_answer(
        &mut self,
        sent: &FetchPosition,
        answer: &AnswerFacts,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) -> FollowerAction {
        if self.phase != Phase::Fetching || !self.still_asks(sent, answer) {
            return FollowerAction::Nothing;
        }
        let action = match answer {
            AnswerFacts::Error(code) => self.on_error(*code, now, randomness),
            AnswerFacts::Diverging(at) => {
                // Neither high watermark nor log start of this answer is applied (S24, KAFKA-14704).
                if !self.settle_here() {
                    self.delay_or_fail(FailureReason::RangeUnresolved, now, randomness);
                    return FollowerAction::Nothing;
                }
                self.leave_fetching(Phase::Truncating);
                FollowerAction::Truncate { generation: self.generation, at: *at }
            }
            AnswerFacts::Records { snapshot, batches, bad } => {
                self.on_records(snapshot, batches, bad.as_deref(), now, randomness)
            }
        };
        self.check_bounds();
        action
    }

    /// Whether everything is as it was when this was asked (design.md 5).
    fn still_asks(&self, sent: &FetchPosition, answer: &AnswerFacts) -> bool {
        let now = self.position();
        let by_offset = is_planted(PlantedFault::StaleAnswerApplied) && sent.fetch_offset == now.fetch_offset;
        let late = is_planted(PlantedFault::LateDivergingAnswerApplied)
            && matches!(answer, AnswerFacts::Diverging(_))
            && sent.leader_epoch == now.leader_epoch;
        *sent == now || by_offset || late
    }

    /// The leader's range, or why it could not be had (S35). Leader and follower can differ here; epochs prevent that.
    pub fn on_leader_offsets(
        &mut self,
        generation: u64,
        offsets: Result<LeaderOffsets, ErrorCode>,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) -> FollowerAction {
        if generation != self.generation || self.phase != Phase::ResolvingRange {
            return FollowerAction::Nothing;
        }
        debug_assert_eq!(self.queued_end, self.log_end, "nothing is queued while the range is resolved");
        self.phase = Phase::Fetching;
        let range = match offsets {
            Ok(range) => range,
            Err(code) => return self.on_error(code, now, randomness),
        };
        if range.log_start > self.log_end {
            self.leave_fetching(Phase::Truncating);
            return FollowerAction::RestartAt { generation: self.generation, offset: range.log_start };
        }
        if range.log_end < self.log_end && self.is_passed_over() {
            self.leave_fetching(Phase::Truncating);
            return FollowerAction::RestartAt { generation: self.generation, offset: range.log_start };
        }
        if range.log_end < self.log_end {
            let reason = FailureReason::AheadOfLeader { log_end: self.log_end, leader_end: range.log_end };
            self.delay_or_fail(reason, now, randomness);
        } else if !self.settle_here() {
            self.delay_or_fail(FailureReason::RangeUnresolved, now, randomness);
        }
        // Else it is inside the leader's range: the log end stays (KAFKA-2143).
        self.check_bounds();
        FollowerAction::Nothing
    }

    /// Whether an unclean election may have given up what this log would go on from, and it holds nothing that has to be cut.
    fn is_passed_over(&self) -> bool {
        let is_legal = self.unclean_epoch.is_some_and(|unclean| Some(unclean) > self.high_watermark_epoch);
        is_legal && self.log_start == self.log_end
    }

    fn on_error(
        &mut self,
        code: ErrorCode,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) -> FollowerAction {
        if code == ErrorCode::OffsetOutOfRange
            && is_planted(PlantedFault::UndefinedCuts)
            && let Some(epoch) = self.last_fetched_epoch
        {
            self.leave_fetching(Phase::Truncating);
            let at = highwater_types::OffsetAndEpoch { offset: self.high_watermark, epoch };
            return FollowerAction::Truncate { generation: self.generation, at };
        }
        if code == ErrorCode::DataLoss
            && let Some(action) = self.pass_over_lost()
        {
            return action;
        }
        if code == ErrorCode::OffsetOutOfRange && self.queued_end == self.log_end {
            self.leave_fetching(Phase::ResolvingRange);
            return FollowerAction::AskOffsets { generation: self.generation };
        }
        if code == ErrorCode::FencedLeaderEpoch {
            // The epoch sent is still the current one, or the answer would be void: wait for the new one (S46).
            self.fail_until(FailureReason::Fenced, None);
            return FollowerAction::Nothing;
        }
        // What passes by itself at the leader is waited for without end. So is damage that it has not on record as lost, and an
        // out-of-range while appends are under way: they are settled first.
        let passes = matches!(code, ErrorCode::OffsetOutOfRange | ErrorCode::DataLoss);
        // No leader says this of a fetch: the caller found the answer too large.
        let is_too_large = code == ErrorCode::MessageTooLarge;
        let reason = if is_too_large { FailureReason::BatchTooLarge } else { FailureReason::Leader(code) };
        if passes || code.retry() == Retry::Retryable {
            self.delay(reason, now, randomness);
        } else {
            self.delay_or_fail(reason, now, randomness);
        }
        if code == ErrorCode::StaleIncarnation && self.phase == Phase::Fetching {
            // The wait just begun goes on over the renewal, so that renewing does not spin.
            self.leave_fetching(Phase::Truncating);
            return FollowerAction::RenewIncarnation { generation: self.generation };
        }
        FollowerAction::Nothing
    }

    fn on_records(
        &mut self,
        snapshot: &Snapshot,
        batches: &[BatchSpan],
        bad: Option<&str>,
        now: MonotonicTime,
        randomness: &mut Randomness,
    ) -> FollowerAction {
        // The logs agree up to the fetch offset, so the leader counts whatever was acknowledged below it.
        self.acknowledged_counted = self.acknowledged_sent;
        self.leader_log_end = Some(snapshot.log_end);
        self.leader_log_start = Some(snapshot.log_start);
        self.heard_high_watermark = self.heard_high_watermark.max(snapshot.high_watermark);
        if snapshot.high_watermark >= self.high_watermark {
            self.high_watermark_epoch = self.high_watermark_epoch.max(Some(self.leader_epoch));
        }
        self.apply_bounds();
        self.forget_lost_tail(snapshot.log_end);
        let accepted = self.accept(batches);
        if accepted.bytes == 0 {
            match bad.map(str::to_owned).or(accepted.refused) {
                Some(what) => self.delay_or_fail(FailureReason::BadRecords(what), now, randomness),
                None => self.on_progress(),
            }
            return FollowerAction::Nothing;
        }
        self.on_progress();
        self.queued_end = accepted.end;
        self.last_fetched_epoch = accepted.epoch.or(self.last_fetched_epoch);
        self.queued_bytes = self.queued_bytes.saturating_add(accepted.bytes as u64);
        debug_assert!(self.queued_end > self.log_end, "accepted batches lie beyond the log");
        FollowerAction::Append { generation: self.generation, bytes: accepted.bytes }
    }

    /// The batches from the start of the answer that continue this log: in order, without overlap (holes are legal, they
    /// come from compaction), of an epoch that does not fall and is not above the request's (KAFKA-18723).
    fn accept(&self, batches: &[BatchSpan]) -> Accepted {
        let mut accepted = Accepted { end: self.queued_end, epoch: None, bytes: 0, refused: None };
        let mut floor = self.last_fetched_epoch;
        for batch in batches {
            // A leader whose log starts inside a batch sends it whole: an empty log may begin at that batch (S47).
            let begins =
                accepted.bytes == 0 && self.log_start == self.queued_end && batch.next > self.queued_end;
            let refusal = if batch.base < accepted.end && !begins {
                Some(format!("batch {} lies below the expected offset {}", batch.base, accepted.end))
            } else if batch.epoch > Some(self.leader_epoch) || batch.epoch < floor {
                let epoch = batch.epoch.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
                Some(format!("batch {} has leader epoch {epoch}, out of order", batch.base))
            } else {
                None
            };
            if refusal.is_some() {
                accepted.refused = refusal;
                break;
            }
            accepted.end = batch.next;
            accepted.epoch = batch.epoch;
            accepted.bytes += batch.bytes;
            floor = batch.epoch;
        }
        debug_assert!(accepted.end >= self.queued_end, "never backwards");
        accepted
    }

    /// A cut or an out-of-range is about to be answered at this position. `false` = it was before, and nothing came of it:
    /// without a wait this would go round for ever (KAFKA-15608).
    fn settle_here(&mut self) -> bool {
        let here = (self.queued_end, self.last_fetched_epoch);
        let is_new = self.settled_at != Some(here);
        self.settled_at = Some(here);
        is_new
    }

    fn on_progress(&mut self) {
        self.fetch_backoff.reset();
        self.settled_at = None;
        self.delay = None;
        debug_assert_eq!(self.fetch_backoff.attempts(), 0, "progress ends a row of failures");
        debug_assert!(self.delay.is_none(), "and its wait");
    }

    /// Stops asking until the log was replaced or the range is known; queued appends and other answers are void.
    pub(super) fn leave_fetching(&mut self, phase: Phase) {
        self.generation += 1;
        self.queued_end = self.log_end;
        self.queued_bytes = 0;
        self.phase = phase;
        debug_assert!(self.phase != Phase::Fetching, "it does not ask meanwhile");
        debug_assert_eq!(self.queued_end, self.log_end, "nothing is queued");
    }
}

struct Accepted {
    end: Offset,
    epoch: Option<LeaderEpoch>,
    bytes: usize,
    refused: Option<String>,
}

#[cfg(test)]
#[path = "answer_test.rs"]
mod tests;
