//! What a follower asks for: the position that an answer is compared with, and the request that carries it.

use highwater_types::{Incarnation, LeaderEpoch, MonotonicTime, Offset, PartitionIndex};

use super::{FailureReason, FollowerPartition, Phase};
use crate::fetch::{FetchPartition, TopicRef};

/// Everything that must still be so when the answer comes (design.md 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPosition {
    /// Where it reads.
    pub fetch_offset: Offset,
    /// The epoch of the record before.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The leadership that was asked.
    pub leader_epoch: LeaderEpoch,
    /// Who asked.
    pub incarnation: Incarnation,
    /// Raised by whatever replaces the log under a request.
    pub generation: u64,
}

/// A partition's part of the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchAsk {
    /// Keep it beside the request, for the answer.
    pub position: FetchPosition,
    /// What the request acknowledges.
    pub acknowledged: Offset,
    /// The own log start.
    pub log_start: Offset,
    /// The high watermark heard from the leader (KIP-1166).
    pub high_watermark: Offset,
    /// Soft cap in bytes; 0 = only acknowledges.
    pub max_bytes: u32,
    /// Whether it only stays in the request: it is still appending.
    pub paused: bool,
    /// Whether its own throttle lets it ask for no records now.
    pub throttled: bool,
    /// Whether a person paused it.
    pub suspended: bool,
    /// Whether it has failed: the rest of the request counts for nothing.
    pub failed: bool,
}

impl FetchAsk {
    /// As a partition of a request, whose place is for the sender to add.
    #[must_use]
    pub const fn to_partition(self, topic: TopicRef, partition: PartitionIndex) -> FetchPartition {
        FetchPartition {
            topic,
            partition,
            incarnation: Some(self.position.incarnation),
            current_leader_epoch: Some(self.position.leader_epoch),
            fetch_offset: self.position.fetch_offset,
            acknowledged_offset: Some(self.acknowledged),
            last_fetched_epoch: self.position.last_fetched_epoch,
            log_start: Some(self.log_start),
            high_watermark: Some(self.high_watermark),
            max_bytes: self.max_bytes,
            paused: self.paused,
            throttled: self.throttled,
            suspended: self.suspended,
            failed: self.failed,
            order: None,
        }
    }

    /// The same position, asked without wanting records: for a request that only acknowledges (design.md 5).
    #[must_use]
    pub const fn only_acknowledging(self) -> Self {
        Self { max_bytes: 0, ..self }
    }

    /// The same, because a person paused the follower.
    #[must_use]
    pub const fn suspended(self) -> Self {
        Self { suspended: true, ..self.only_acknowledging() }
    }

    /// The same, because the follower's own throttle keeps the records back.
    #[must_use]
    pub const fn held_back(self) -> Self {
        Self { throttled: true, ..self.only_acknowledging() }
    }
}

/// Whether a partition takes part in the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchIntent {
    /// It does. With `paused` it wants no records now.
    Ask(FetchAsk),
    /// Not before this time (S2).
    NotBefore(MonotonicTime),
    /// Not until something happens to it: a cut ends, a failure is cleared.
    Not,
}

impl FollowerPartition {
    /// What to ask for at `now`. Report [`Self::on_sent`] when the request goes out.
    #[must_use]
    pub fn intent(&self, now: MonotonicTime) -> FetchIntent {
        if self.phase != Phase::Fetching {
            return FetchIntent::Not;
        }
        match &self.delay {
            Some(delay) if delay.until > now => FetchIntent::NotBefore(delay.until),
            Some(_) | None => FetchIntent::Ask(self.ask()),
        }
    }

    /// What tells the leader that the replica has failed; `None` while it has not, or where only another record helps.
    #[must_use]
    pub fn failed_ask(&self) -> Option<FetchAsk> {
        match &self.phase {
            Phase::Failed { reason: FailureReason::Fenced, .. } => None,
            Phase::Failed { .. } => Some(FetchAsk { failed: true, ..self.ask().only_acknowledging() }),
            Phase::Fetching | Phase::Truncating | Phase::ResolvingRange => None,
        }
    }

    /// The request went out: from now on what it acknowledges counts.
    pub fn on_sent(&mut self, ask: &FetchAsk) {
        if ask.failed || ask.position.generation != self.generation {
            return;
        }
        debug_assert!(
            ask.acknowledged <= ask.position.fetch_offset,
            "what is held is below what is asked for"
        );
        debug_assert!(ask.acknowledged <= self.acknowledged(), "nothing is acknowledged that is not held");
        self.acknowledged_sent = self.acknowledged_sent.max(Some(ask.acknowledged));
    }

    /// The first offset that may be served. Where the log start is being raised, that is the new one already: what lies below
    /// was never compared with the leader, whose own retention took it, and the high watermark has passed it.
    #[must_use]
    pub fn readable_from(&self) -> Offset {
        self.log_start.max(self.log_start_asked)
    }

    pub(super) fn position(&self) -> FetchPosition {
        FetchPosition {
            fetch_offset: self.queued_end,
            last_fetched_epoch: self.last_fetched_epoch,
            leader_epoch: self.leader_epoch,
            incarnation: self.incarnation,
            generation: self.generation,
        }
    }

    fn ask(&self) -> FetchAsk {
        let paused = self.queued_bytes >= self.config.read_ahead_bytes && self.queued_bytes > 0;
        FetchAsk {
            position: self.position(),
            acknowledged: self.acknowledged(),
            log_start: self.log_start,
            high_watermark: self.heard_high_watermark,
            max_bytes: if paused { 0 } else { self.config.max_bytes },
            paused,
            throttled: false,
            suspended: false,
            failed: false,
        }
    }
}
