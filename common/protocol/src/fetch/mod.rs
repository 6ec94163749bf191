//! Fetch as values: what the wire decodes into, and what it encodes from. The rules that decide are in `check`.
//!
//! What holds: an absent limit has been replaced by its default at decoding, so a limit of 0 was asked for. One request
//! and one answer serve followers and consumers alike (`replica` absent = consumer).

use std::time::Duration;

use bytes::Bytes;
use highwater_types::{
    ClusterId, EpochEntry, Incarnation, LeaderEpoch, MonotonicTime, NodeId, Offset, OffsetAndEpoch,
    PartitionIndex, ReplicationError, TopicId, TopicIdPartition, TopicName, TraceContext,
};

mod check;

pub use check::{
    LogFacts, PartitionFacts, Position, ReadPlan, Requester, Snapshot, check_epoch, check_leadership,
    check_position, epoch_end_offset, plan_read,
};

/// Longest wait when the request names none.
pub const DEFAULT_MAX_WAIT: Duration = Duration::from_millis(500);
/// Bytes that end the wait when the request names none.
pub const DEFAULT_MIN_BYTES: u32 = 1;
/// Cap of the answer when the request names none, in bytes: an answer to a hand-made request fits a default decoder.
pub const DEFAULT_MAX_BYTES: u32 = 1 << 20;

/// How a request names a topic (design.md 3).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicRef {
    /// By name.
    Name(TopicName),
    /// By identity.
    Id(TopicId),
    /// By both, which must belong together.
    Both {
        /// The name.
        name: TopicName,
        /// The identity.
        id: TopicId,
    },
}

impl TopicRef {
    /// The name, where given.
    #[must_use]
    pub const fn name(&self) -> Option<&TopicName> {
        match self {
            Self::Name(name) | Self::Both { name, .. } => Some(name),
            Self::Id(_) => None,
        }
    }

    /// The identity, where given.
    #[must_use]
    pub const fn id(&self) -> Option<TopicId> {
        match self {
            Self::Id(id) | Self::Both { id, .. } => Some(*id),
            Self::Name(_) => None,
        }
    }
}

/// A request's place among those of its follower: of two, the greater was sent later. By it a leader knows what the network
/// held back, or delivered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestOrder {
    /// The start of the follower's program that sent it; rises from start to start, as long as its disk stays the node's own.
    pub start: u64,
    /// Its number within that start; rises from request to request.
    pub number: u64,
}

/// One Fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// The cluster that the requester belongs to; absent = not checked.
    pub cluster: Option<ClusterId>,
    /// The follower's node; absent = a consumer.
    pub replica: Option<NodeId>,
    /// A replica reads again what its disk lost (design.md 2); never beside `replica`.
    pub repair: bool,
    /// The session, 0 = none (S74).
    pub session_id: i32,
    /// The request's number within its session: 0 opens one, -1 wants none (S74).
    pub session_epoch: i32,
    /// How long the answer may wait for `min_bytes`.
    pub max_wait: Duration,
    /// How many bytes end the wait.
    pub min_bytes: u32,
    /// Soft cap of the answer in bytes (S32); 0 = no records at all.
    pub max_bytes: u32,
    /// The partitions, in the order in which they are served (S33).
    pub partitions: Vec<FetchPartition>,
    /// Partitions that leave the session.
    pub forgotten: Vec<(TopicRef, PartitionIndex)>,
}

impl FetchRequest {
    /// Who asks.
    #[must_use]
    pub fn requester(&self) -> Requester {
        let other = if self.repair { Requester::Repair } else { Requester::Consumer };
        self.replica.map_or(other, Requester::Follower)
    }
}

/// The session epoch that asks for no session (S74).
pub const NO_SESSION: i32 = -1;

/// One partition of a Fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPartition {
    /// The topic.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// The follower's incarnation (design.md 6.3); mandatory for a follower.
    pub incarnation: Option<Incarnation>,
    /// The leadership that the requester believes in (S19); mandatory for a follower.
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// Where to read from.
    pub fetch_offset: Offset,
    /// What the follower holds (exclusive), at most `fetch_offset`; absent = `fetch_offset`. Mandatory under `fsync`.
    pub acknowledged_offset: Option<Offset>,
    /// The epoch of the record before `fetch_offset` in the requester's log (S23).
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The first offset in the follower's log.
    pub log_start: Option<Offset>,
    /// The high watermark that the follower knows (KIP-1166).
    pub high_watermark: Option<Offset>,
    /// Soft cap for this partition in bytes; 0 = no records.
    pub max_bytes: u32,
    /// The follower still appends what it got: no records now, and no reason to answer early.
    pub paused: bool,
    /// The follower's own throttle lets it ask for no records now. Only told (DescribeReplication): nothing is decided by it.
    pub throttled: bool,
    /// A person paused the follower: it asks for no records, and leaves the in-sync set for as long.
    pub suspended: bool,
    /// The follower's replica has failed: it replicates no more until it is recovered. Nothing else of the request counts.
    pub failed: bool,
    /// The request's place among those of its follower, the same for all its partitions; absent = not told, and then no
    /// request is known to be overtaken.
    pub order: Option<RequestOrder>,
}

impl FetchPartition {
    /// A read from `from` on by somebody who follows nothing, as long as no field of a follower is set.
    #[must_use]
    pub const fn reading(topic: TopicRef, partition: PartitionIndex, from: Offset, max_bytes: u32) -> Self {
        Self {
            topic,
            partition,
            incarnation: None,
            current_leader_epoch: None,
            fetch_offset: from,
            acknowledged_offset: None,
            last_fetched_epoch: None,
            log_start: None,
            high_watermark: None,
            max_bytes,
            paused: false,
            throttled: false,
            suspended: false,
            failed: false,
            order: None,
        }
    }

    /// What the follower holds (exclusive). Every rule about its log end uses this and not where it reads (design.md 3).
    #[must_use]
    pub fn acknowledged(&self) -> Offset {
        self.acknowledged_offset.unwrap_or(self.fetch_offset)
    }
}

/// The answer to a Fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponse {
    /// The session, 0 = none.
    pub session_id: i32,
    /// When the request arrived, by the answering node's clock.
    pub received: MonotonicTime,
    /// When the answer was made, by the same clock.
    pub answered: MonotonicTime,
    /// How long the requester is held back.
    pub throttle: Duration,
    /// Which quota holds it back.
    pub throttle_reason: Option<ThrottleReason>,
    /// One entry per partition asked for, in the order asked.
    pub partitions: Vec<PartitionResult>,
}

/// Which quota holds a requester back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleReason {
    /// The one for replicas that are catching up.
    ReplicationQuota,
    /// The client's own.
    ClientQuota,
}

/// One partition of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionResult {
    /// The topic's name, where the answering node knows it.
    pub topic: Option<TopicName>,
    /// The partition; absent when the topic could not be resolved.
    pub topic_id: Option<TopicId>,
    /// The partition within the topic.
    pub partition: PartitionIndex,
    /// What was found, or why not.
    pub outcome: Result<Fetched, ReplicationError>,
    /// What the answering leader has lost, in order: for followers, whatever the outcome.
    pub lost: Vec<LostRange>,
}

impl PartitionResult {
    /// The partition's key, where the topic was resolved.
    #[must_use]
    pub fn id(&self) -> Option<TopicIdPartition> {
        self.topic_id.map(|topic| TopicIdPartition::new(topic, self.partition))
    }
}

/// Offsets whose records the answering leader has on record as lost (design.md 2): it has none to give, and nobody gets them
/// from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first of them.
    pub start: Offset,
    /// The offset after the last.
    pub end: Offset,
    /// The leaderships that began within, as far as the leader knows, oldest first.
    pub epochs: Vec<EpochEntry>,
}

impl LostRange {
    /// Whether `offset` is in it.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        self.start <= offset && offset < self.end
    }
}

/// What a partition's answer holds. Its high watermark, log start and records are of one moment (S22).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The high watermark, the log start and the log end before the read.
    pub snapshot: Snapshot,
    /// Set when the logs differ: where the follower has to cut (S23). Comes without records (S24).
    pub diverging: Option<OffsetAndEpoch>,
    /// Whole batches, contiguous from the one that holds the fetch offset.
    pub records: Bytes,
    /// When the first returned record was appended, by the answering node's clock; absent when unknown.
    pub appended: Option<MonotonicTime>,
    /// Under which traces some of the returned records were produced.
    pub traces: Vec<(Offset, TraceContext)>,
}

impl Fetched {
    /// An answer without records.
    #[must_use]
    pub const fn empty(snapshot: Snapshot) -> Self {
        Self { snapshot, diverging: None, records: Bytes::new(), appended: None, traces: Vec::new() }
    }

    /// An answer that tells the requester where its log differs.
    #[must_use]
    pub const fn diverging(snapshot: Snapshot, at: OffsetAndEpoch) -> Self {
        Self { snapshot, diverging: Some(at), records: Bytes::new(), appended: None, traces: Vec::new() }
    }
}
