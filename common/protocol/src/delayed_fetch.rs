//! When a fetch is answered: at once (S27), or parked until one of the lettered cases holds (S29).
//!
//! What holds: an event of one partition re-examines that partition only, so a wake costs the same however many partitions
//! the request names; a completed fetch stays completed; what is counted towards `min_bytes` is at most the partition's
//! cap, and nothing for a paused or throttled partition (S30). Deliberately absent: the wait itself, the clock, the read.
//! Follower progress is recorded on arrival and never here (S25).

use std::time::Duration;

use highwater_types::{LeaderEpoch, MonotonicTime, Offset};

use crate::fetch::Requester;

/// Why a fetch is answered. The letters are those of the reference's `DelayedFetch`; I and J are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FetchCompletion {
    /// Case A: this node no longer leads a partition that a follower fetches.
    LeadershipLost,
    /// Case B: the replica is no longer here.
    ReplicaGone,
    /// Case C: the partition is not known here (any more).
    UnknownPartition,
    /// Case D: the partition's log failed.
    StorageFailed,
    /// Case E: the requester's epoch is no longer the current one.
    EpochFenced,
    /// Case F: the fetch offset lies in an older segment, or beyond the log end because the log was truncated.
    OffsetLeftBehind,
    /// Case G: enough bytes; the idle path's opposite.
    EnoughBytes,
    /// Case H: the logs differ; the answer makes the requester cut.
    Diverging,
    /// Case I (KIP-1166): a high watermark that the follower does not know has become due to be told.
    HighWatermarkNews,
    /// Case J: the time is up; the idle path.
    TimeUp,
    /// Answered without parking: it must not wait, or asks for nothing.
    NoWait,
    /// Answered without parking: a partition has an error (S27), so one bad partition ends the wait of all.
    PartitionError,
    /// The node stops or the partition's leadership is handed over: parked fetches are let go.
    Draining,
}

impl FetchCompletion {
    /// The name for spans and metrics (`wait.outcome`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeadershipLost => "leadership_lost",
            Self::ReplicaGone => "replica_gone",
            Self::UnknownPartition => "unknown_partition",
            Self::StorageFailed => "storage_failed",
            Self::EpochFenced => "fenced",
            Self::OffsetLeftBehind => "offset_left_behind",
            Self::EnoughBytes => "min_bytes",
            Self::Diverging => "divergence",
            Self::HighWatermarkNews => "high_watermark",
            Self::TimeUp => "timeout",
            Self::NoWait => "no_wait",
            Self::PartitionError => "error",
            Self::Draining => "draining",
        }
    }
}

/// One partition of a fetch that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedPartition {
    /// The leadership that the request was checked against.
    pub leader_epoch: LeaderEpoch,
    /// Where it reads.
    pub fetch_offset: Offset,
    /// Soft cap in bytes, 0 = no records.
    pub max_bytes: u32,
    /// The high watermark that the follower told; a difference to the leader's is news. `None`: not told, or a consumer.
    pub known_high_watermark: Option<Offset>,
    /// Paused or throttled: contributes no bytes and is never left behind (S30, S70).
    pub withheld: bool,
}

/// What a partition looks like now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It cannot be read here any more; the completion says why (cases A to D).
    Unreadable(FetchCompletion),
    /// It can.
    Readable(ProbeFacts),
}

/// Facts of a readable partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeFacts {
    /// The current leadership.
    pub leader_epoch: LeaderEpoch,
    /// The end of what the requester may read: the log end, for consumers the high watermark.
    pub upper: Offset,
    /// The log end.
    pub log_end: Offset,
    /// The base offset of the segment that is appended to.
    pub active_segment: Offset,
    /// Bytes from the fetch offset to `upper`; an estimate may be low by part of a batch, never above 0 without records.
    pub available_bytes: u64,
    /// The high watermark as far as it is due to be told to followers
    /// ([`crate::leader::LeaderPartition::propagated_high_watermark`]).
    pub propagated_high_watermark: Offset,
    /// Whether the requester's position now diverges.
    pub diverging: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    parked: ParkedPartition,
    counted: u64,
}

/// A fetch that waits.
#[derive(Clone, Debug)]
pub struct DelayedFetch {
    requester: Requester,
    min_bytes: u64,
    deadline: MonotonicTime,
    slots: Vec<Slot>,
    counted: u64,
    completed: Option<FetchCompletion>,
}

impl DelayedFetch {
    /// A fetch that arrived at `now`. Probe every partition before parking it (S27), and again after registering (S28).
    #[must_use]
    pub fn new(
        requester: Requester,
        min_bytes: u32,
        max_wait: Duration,
        now: MonotonicTime,
        partitions: Vec<ParkedPartition>,
    ) -> Self {
        let no_wait = max_wait.is_zero() || partitions.is_empty() || min_bytes == 0;
        Self {
            requester,
            min_bytes: u64::from(min_bytes),
            deadline: now.after(max_wait),
            slots: partitions.into_iter().map(|parked| Slot { parked, counted: 0 }).collect(),
            counted: 0,
            completed: no_wait.then_some(FetchCompletion::NoWait),
        }
    }

    /// Why it is to be answered now; `None` = it may wait.
    #[must_use]
    pub const fn completed(&self) -> Option<FetchCompletion> {
        self.completed
    }

    /// When it is answered at the latest.
    #[must_use]
    pub const fn deadline(&self) -> MonotonicTime {
        self.deadline
    }

    /// The partition in `slot`; `None` when there is no such slot.
    #[must_use]
    pub fn partition(&self, slot: usize) -> Option<&ParkedPartition> {
        self.slots.get(slot).map(|s| &s.parked)
    }

    /// How many partitions it waits on.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.slots.len()
    }

    /// A partition could not be read on arrival, or was found to differ: the fetch does not wait (S27).
    pub fn on_immediate(&mut self, completion: FetchCompletion) -> Option<FetchCompletion> {
        self.complete(completion)
    }

    /// Something happened to the partition in `slot`. Answers whether the fetch is now to be answered, and why.
    pub fn on_probe(&mut self, slot: usize, probe: Probe) -> Option<FetchCompletion> {
        if self.completed.is_some() {
            return self.completed;
        }
        let Some(entry) = self.slots.get(slot).copied() else {
            debug_assert!(false, "a wake names a slot of the request");
            return None;
        };
        let facts = match probe {
            Probe::Unreadable(why) => return self.complete(why),
            Probe::Readable(facts) => facts,
        };
        if let Some(why) = self.cut_short(&entry.parked, &facts) {
            return self.complete(why);
        }
        let bytes = contribution(&entry.parked, &facts);
        debug_assert!(bytes <= u64::from(entry.parked.max_bytes), "a partition counts at most its cap");
        self.counted = self.counted.saturating_sub(entry.counted).saturating_add(bytes);
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.counted = bytes;
        }
        debug_assert_eq!(self.counted, self.slots.iter().map(|s| s.counted).sum::<u64>(), "the sum is kept");
        if self.counted >= self.min_bytes { self.complete(FetchCompletion::EnoughBytes) } else { None }
    }

    /// Time passed.
    pub fn on_time(&mut self, now: MonotonicTime) -> Option<FetchCompletion> {
        if now >= self.deadline { self.complete(FetchCompletion::TimeUp) } else { self.completed }
    }

    /// Cases E, F, H and I.
    fn cut_short(&self, parked: &ParkedPartition, facts: &ProbeFacts) -> Option<FetchCompletion> {
        if parked.leader_epoch != facts.leader_epoch {
            return Some(FetchCompletion::EpochFenced);
        }
        if facts.diverging {
            return Some(FetchCompletion::Diverging);
        }
        if parked.fetch_offset > facts.log_end {
            return Some(FetchCompletion::OffsetLeftBehind);
        }
        let left_behind = parked.fetch_offset < facts.active_segment && parked.fetch_offset < facts.upper;
        if left_behind && !parked.withheld && parked.max_bytes > 0 {
            return Some(FetchCompletion::OffsetLeftBehind);
        }
        let news = matches!(self.requester, Requester::Follower(_))
            && parked.known_high_watermark.is_some_and(|known| known < facts.propagated_high_watermark);
        news.then_some(FetchCompletion::HighWatermarkNews)
    }

    fn complete(&mut self, why: FetchCompletion) -> Option<FetchCompletion> {
        let first = *self.completed.get_or_insert(why);
        debug_assert!(self.completed.is_some(), "a completed fetch stays completed");
        Some(first)
    }
}

fn contribution(parked: &ParkedPartition, facts: &ProbeFacts) -> u64 {
    if parked.withheld || parked.fetch_offset >= facts.upper {
        0
    } else {
        facts.available_bytes.min(u64::from(parked.max_bytes))
    }
}

#[cfg(test)]
#[path = "delayed_fetch_test.rs"]
mod tests;
