//! The typed stages of a Fetch below the wire: long poll, then read. Each is a `tower::Service`, so that a program can put
//! more stages around them (sessions, a throttle) and tests can drive one alone.
//!
//! ```text
//!   Fetch ─▶ Throttle: which partitions of replicas that are catching up are left out (a leader's)
//!         ─▶ LongPoll: find, check, record progress (once, on arrival: S25), wait ─▶ Planned
//!         ─▶ Charge: how many bytes such replicas get now (a leader's)
//!         ─▶ Read: bytes within the caps, off the runtime's workers ─▶ Fetched
//! ```

mod long_poll;
mod read;
mod throttle;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use highwater_node::grpc::Deadline;
use highwater_protocol::delayed_fetch::FetchCompletion;
use highwater_protocol::fetch::{FetchRequest, FetchResponse, PartitionResult, ReadPlan};
use highwater_protocol::quota::Metering;
use highwater_types::{MonotonicTime, PartitionIndex, ReplicationError, TopicId, TopicName};

pub use long_poll::{LongPoll, LongPollLayer};
pub use read::{Read, ReadBounds};
pub(crate) use read::{read_failed, to_usize};
pub use throttle::{Charge, ChargeLayer, Throttle, ThrottleLayer};

use crate::HostedReplica;
use crate::admission::Permit;

/// A Fetch on its way through the stages.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// What was asked.
    pub request: FetchRequest,
    /// When it arrived.
    pub received: MonotonicTime,
    /// When it must be answered, because the caller gives up soon after; absent = never.
    pub deadline: Option<Deadline>,
    /// What a quota of replication means for each partition, in the order asked; empty = nothing for any.
    pub metering: Vec<Metering>,
    /// Whether its progress is recorded: a stage asks for what is left of its wait (S25).
    pub recorded: bool,
}

impl Fetch {
    /// A Fetch that has just arrived.
    #[must_use]
    pub const fn new(request: FetchRequest, received: MonotonicTime, deadline: Option<Deadline>) -> Self {
        Self { request, received, deadline, metering: Vec::new(), recorded: false }
    }

    /// What a quota of replication means for the partition at `slot`.
    #[must_use]
    pub fn metering(&self, slot: usize) -> Metering {
        self.metering.get(slot).copied().unwrap_or_default()
    }

    /// Whether no records of the partition at `slot` are wanted now: its follower still appends, or a quota has nothing left.
    pub(crate) fn is_withheld(&self, slot: usize) -> bool {
        let paused = self.request.partitions.get(slot).is_some_and(|asked| asked.paused);
        paused || self.metering(slot) == Metering::Withheld
    }
}

/// The shorter of `wait` and what is left until `deadline`, so that a wait ends with an answer (S79).
#[must_use]
pub fn before(deadline: Option<Deadline>, wait: Duration) -> Duration {
    deadline.map_or(wait, |deadline| wait.min(deadline.remaining()))
}

/// A Fetch that is to be answered now.
#[derive(Debug)]
pub struct Planned {
    /// What was asked.
    pub fetch: Fetch,
    /// What to read for each partition, in the order asked.
    pub partitions: Vec<PlannedPartition>,
    /// Why it is answered.
    pub completion: FetchCompletion,
    /// How long it was parked, from its arrival on.
    pub parked: Duration,
    /// How many bytes its metered partitions may have together. The first batch of one may be larger, unless it is 0.
    pub metered_bytes: u64,
}

/// One partition of a [`Planned`] fetch.
#[derive(Debug)]
pub struct PlannedPartition {
    /// The topic's name, where it is known.
    pub topic: Option<TopicName>,
    /// The topic's id, where it is known.
    pub topic_id: Option<TopicId>,
    /// The partition within the topic.
    pub partition: PartitionIndex,
    /// The replica and what to read from it, or why nothing.
    pub plan: Result<(Arc<dyn HostedReplica>, ReadPlan), ReplicationError>,
}

/// An answered Fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The answer.
    pub response: FetchResponse,
    /// Why it was given when it was.
    pub completion: FetchCompletion,
    /// How long the request was parked, from its arrival on; with a throttle, until the last wait was over.
    pub parked: Duration,
    /// How long a throttle left partitions out of it.
    pub held: Duration,
    /// When the read began.
    pub reading: MonotonicTime,
    /// The answer's bytes, in flight until it is sent; absent where nothing admits.
    pub admitted: Option<Arc<Permit>>,
}

impl Fetched {
    /// How many bytes of records it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |result: &PartitionResult| Some(result.outcome.as_ref().ok()?.records.len() as u64);
        self.response.partitions.iter().filter_map(of).sum()
    }

    /// When it was parked: until whatever it waited for, or a throttle, let it go.
    pub(crate) fn park(&self) -> Range<MonotonicTime> {
        let received = self.response.received;
        received..received.after(self.parked)
    }

    /// When it was read.
    pub(crate) const fn read(&self) -> Range<MonotonicTime> {
        self.reading..self.response.answered
    }
}
