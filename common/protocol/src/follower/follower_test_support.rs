//! A follower for transition tests, and a log beside it that does what the core says, as batches of (base, next, epoch).

use highwater_types::{Durability, LeaderEpochCache, Offset};

use super::{
    AnswerFacts, BackoffConfig, BatchSpan, CutPlan, FetchAsk, FetchIntent, FollowerAction, FollowerConfig,
    FollowerEffect, FollowerPartition, FollowerStart, LogState,
};
use crate::Randomness;
use crate::fetch::{LogFacts, Position, Snapshot, check_position};
use crate::test_values::{cache, epoch, incarnation, millis, ms, node, offset};

pub(super) const BATCH_BYTES: usize = 100;

pub(super) fn config() -> FollowerConfig {
    FollowerConfig {
        durability: Durability::PageCache,
        max_bytes: 1 << 20,
        read_ahead_bytes: 1000,
        backoff: BackoffConfig { first: ms(50), max: ms(5000), max_attempts: 3 },
    }
}

/// The log's state with nothing deleted and everything flushed.
pub(super) fn state(end: i64, last_epoch: Option<i32>) -> LogState {
    LogState {
        log_start: Offset::ZERO,
        log_end: offset(end),
        flushed_end: offset(end),
        last_epoch: last_epoch.map(epoch),
    }
}

/// Follows node 1 in `leader_epoch`, incarnation 20.
pub(super) fn start(leader_epoch: i32, log: LogState, high_watermark: i64) -> FollowerStart {
    FollowerStart {
        leader: node(1),
        leader_epoch: epoch(leader_epoch),
        highest_epoch: None,
        incarnation: incarnation(20),
        log,
        high_watermark: offset(high_watermark),
        high_watermark_epoch: log.last_epoch,
        damage: Vec::new(),
    }
}

pub(super) fn follower(
    leader_epoch: i32,
    end: i64,
    last_epoch: i32,
    high_watermark: i64,
) -> FollowerPartition {
    FollowerPartition::new(config(), start(leader_epoch, state(end, Some(last_epoch)), high_watermark))
        .unwrap()
}

pub(super) fn span(base: i64, next: i64, batch_epoch: i32) -> BatchSpan {
    BatchSpan { base: offset(base), next: offset(next), epoch: Some(epoch(batch_epoch)), bytes: BATCH_BYTES }
}

/// An answer of a leader whose log starts at 0.
pub(super) fn records(leader_end: i64, high_watermark: i64, batches: &[BatchSpan]) -> AnswerFacts {
    let snapshot = Snapshot {
        high_watermark: offset(high_watermark),
        log_start: Offset::ZERO,
        log_end: offset(leader_end),
    };
    AnswerFacts::Records { snapshot, batches: batches.to_vec(), bad: None }
}

/// What is asked at time `now`; the partition must be fetching.
pub(super) fn ask(follower: &FollowerPartition, now: u64) -> FetchAsk {
    match follower.intent(millis(now)) {
        FetchIntent::Ask(ask) => ask,
        other @ (FetchIntent::NotBefore(_) | FetchIntent::Not) => {
            panic!("asks nothing: {other:?}, {:?}", follower.state(millis(now)))
        }
    }
}

/// Asks, and applies `answer` at once.
pub(super) fn answer(follower: &mut FollowerPartition, now: u64, answer: &AnswerFacts) -> FollowerAction {
    let sent = ask(follower, now);
    follower.on_sent(&sent);
    follower.on_answer(&sent.position, answer, millis(now), &mut Randomness::new(now))
}

pub(super) fn drain(follower: &mut FollowerPartition) -> Vec<FollowerEffect> {
    std::iter::from_fn(|| follower.poll_effect()).collect()
}

/// A log as its batches, one record each unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TestLog {
    pub(super) start: i64,
    pub(super) batches: Vec<BatchSpan>,
    pub(super) epochs: LeaderEpochCache,
}

impl TestLog {
    /// `0@0 1@2 2@4` is `&[0, 2, 4]`.
    pub(super) fn of_epochs(epochs: &[i32]) -> Self {
        let mut log = Self::default();
        for (base, e) in (0..).zip(epochs) {
            log.append(&[span(base, base + 1, *e)]);
        }
        log
    }

    pub(super) fn end(&self) -> Offset {
        self.batches.last().map_or_else(|| offset(self.start), |b| b.next)
    }

    pub(super) fn append(&mut self, batches: &[BatchSpan]) {
        for batch in batches {
            self.epochs.assign(batch.epoch.unwrap(), batch.base);
            self.batches.push(*batch);
        }
    }

    pub(super) fn cut(&mut self, end: Offset) {
        self.batches.retain(|b| b.next <= end);
        self.epochs.truncate_from_end(end);
    }

    pub(super) fn state(&self) -> LogState {
        LogState {
            log_start: offset(self.start),
            log_end: self.end(),
            flushed_end: self.end(),
            last_epoch: self.epochs.latest().map(|e| e.epoch),
        }
    }

    pub(super) fn facts(&self) -> LogFacts<'_> {
        LogFacts { log_start: offset(self.start), log_end: self.end(), epochs: &self.epochs }
    }

    /// What a leader with this log answers.
    pub(super) fn serve(&self, ask: &FetchAsk, high_watermark: Offset) -> AnswerFacts {
        let position = &ask.position;
        match check_position(position.fetch_offset, position.last_fetched_epoch, &self.facts()) {
            Position::OutOfRange => AnswerFacts::Error(highwater_types::ErrorCode::OffsetOutOfRange),
            Position::Diverging(found) => AnswerFacts::Diverging(found),
            Position::Agrees => AnswerFacts::Records {
                snapshot: Snapshot { high_watermark, log_start: offset(self.start), log_end: self.end() },
                batches: self.batches.iter().copied().filter(|b| b.next > position.fetch_offset).collect(),
                bad: None,
            },
        }
    }
}

/// Does to the log what the action says, and reports it.
pub(super) fn execute(
    follower: &mut FollowerPartition,
    log: &mut TestLog,
    action: &FollowerAction,
    answer: &AnswerFacts,
) {
    match action {
        FollowerAction::Append { generation, bytes } => {
            let AnswerFacts::Records { batches, .. } = answer else { panic!("records to append") };
            log.append(&batches[..bytes / BATCH_BYTES]);
            follower.on_appended(*generation, *bytes as u64, log.end());
            follower.on_flushed(follower.log_version(), log.end());
        }
        FollowerAction::Truncate { generation, at } => {
            if let CutPlan::To { end, .. } = follower.plan_cut(*generation, *at, &log.facts()) {
                log.cut(end);
                follower.on_log_replaced(log.state(), follower.incarnation(), Vec::new());
            }
        }
        FollowerAction::Nothing
        | FollowerAction::AskOffsets { .. }
        | FollowerAction::RestartAt { .. }
        | FollowerAction::PassOver { .. }
        | FollowerAction::RenewIncarnation { .. } => panic!("not expected: {action:?}"),
    }
}

/// What was asked and answered: (offset, last epoch, diverging answer as (epoch, end)).
pub(super) type Asked = (i64, Option<i32>, Option<(i32, i64)>);

/// Fetches until a fetch changes nothing.
pub(super) fn fetch_until_settled(
    follower: &mut FollowerPartition,
    own: &mut TestLog,
    leader: &TestLog,
) -> Vec<Asked> {
    let mut asked = Vec::new();
    for now in 0..20 {
        let sent = ask(follower, now);
        follower.on_sent(&sent);
        let answer = leader.serve(&sent, leader.end());
        let diverging = match &answer {
            AnswerFacts::Diverging(at) => Some((at.epoch.get(), at.offset.get())),
            AnswerFacts::Error(_) | AnswerFacts::Records { .. } => None,
        };
        let position = sent.position;
        asked.push((position.fetch_offset.get(), position.last_fetched_epoch.map(|e| e.get()), diverging));
        let action = follower.on_answer(&position, &answer, millis(now), &mut Randomness::new(now));
        if action == FollowerAction::Nothing {
            return asked;
        }
        execute(follower, own, &action, &answer);
    }
    panic!("does not settle: {asked:?}");
}

pub(super) fn cache_of(entries: &[(i32, i64)]) -> LeaderEpochCache {
    cache(entries)
}
