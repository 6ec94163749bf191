//! What the serving code asks of a program: which partitions it hosts, and what it may read from them.
//!
//! What must hold: every method but those marked *blocks* returns without touching a disk; a replica that stopped serving
//! says so itself (`probe`, `plan`), so that whoever still holds it finds out. Deliberately absent: who leads and who
//! follows; both programs implement these traits.

use std::fmt;
use std::sync::Arc;

use highwater_coordination::ClusterView;
use highwater_log::{LogRead, ReadError, ReadLimits, TimestampHit};
use highwater_protocol::delayed_fetch::Probe;
use highwater_protocol::fetch::{
    FetchPartition, LostRange, ReadPlan, Requester, TopicRef, check_leadership, plan_read,
};
use highwater_protocol::leader::Answered;
use highwater_replica::ReplicaFacts;
use highwater_types::{
    MonotonicTime, NodeId, Offset, PartitionIndex, ReplicationError, TopicId, TopicIdPartition, TopicName,
    TraceContext, WallTime,
};

/// A replica that this program hosts and reads from.
pub trait HostedReplica: Send + Sync + fmt::Debug + 'static {
    /// Which partition it is one of.
    fn id(&self) -> TopicIdPartition;

    /// Its topic's name.
    fn topic(&self) -> &TopicName;

    /// What it says about itself now.
    ///
    /// # Errors
    /// Why it serves nothing (any more).
    fn facts(&self) -> Result<ReplicaFacts, ReplicationError>;

    /// A fetch arrived: checks it and, on a leader, records what a follower acknowledges by it (S25).
    ///
    /// # Errors
    /// What the checks found (S18–S23).
    fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError>;

    /// The same checks for a fetch that arrived earlier and was parked; records nothing (S25).
    ///
    /// # Errors
    /// What the checks found.
    fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        let facts = self.facts()?;
        check_leadership(requester, request, &facts.as_partition())?;
        plan_read(requester, request, &facts.as_partition())
    }

    /// What a parked fetch needs to know of the partition now.
    fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe;

    /// Whether the follower that sent this is in the recorded in-sync set, with the incarnation that it names: such a replica is
    /// never throttled (S67). Nobody follows a replica that does not lead.
    fn is_in_sync(&self, _follower: NodeId, _request: &FetchPartition) -> bool {
        false
    }

    /// When the record at `offset` was appended here; `None` when unknown or not the leader.
    fn appended_at(&self, offset: Offset) -> Option<MonotonicTime>;

    /// A follower's fetch is parked, until `deadline` at the latest: for the description of the follower.
    fn on_parked(&self, _follower: NodeId, _deadline: MonotonicTime) {}

    /// Records are read for a follower from now on, until [`Self::on_answered`]: that time is not its lag.
    fn on_reading(&self, _follower: NodeId, _now: MonotonicTime) {}

    /// A follower's fetch was answered: for the description of the follower, and so that a slow read is not its lag.
    fn on_answered(&self, _follower: NodeId, _answered: Answered, _now: MonotonicTime) {}

    /// Under which traces some of the records from `from` on and before `to` were produced.
    fn traces(&self, _from: Offset, _to: Offset) -> Vec<(Offset, TraceContext)> {
        Vec::new()
    }

    /// What this leader has on record as lost, in order. Nobody follows a replica that does not lead.
    fn lost_ranges(&self) -> Vec<LostRange> {
        Vec::new()
    }

    /// Reads whole batches. *Blocks.*
    ///
    /// # Errors
    /// As [`highwater_log::Log::read`].
    fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError>;

    /// The first record below `upper` at or after `timestamp`. *Blocks.*
    ///
    /// # Errors
    /// As [`highwater_log::Log::offset_for_timestamp`].
    fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError>;
}

/// Where a request's partition was found.
#[derive(Debug)]
pub struct Located {
    /// The topic's name, where it is known.
    pub topic: Option<TopicName>,
    /// The topic's id, where it is known.
    pub topic_id: Option<TopicId>,
    /// The replica, or why there is none to ask: unknown, of another identity, or led elsewhere (S18).
    pub replica: Result<Arc<dyn HostedReplica>, ReplicationError>,
}

/// A program's table of partitions.
pub trait PartitionHost: Send + Sync + fmt::Debug + 'static {
    /// The node that answers.
    fn node(&self) -> NodeId;

    /// The cluster as this program knows it now.
    fn view(&self) -> Arc<ClusterView>;

    /// Finds a partition in `view` and in the program's table: known partition, then identity, then whether it is hosted
    /// (the first checks of S18).
    fn locate(&self, view: &ClusterView, topic: &TopicRef, partition: PartitionIndex) -> Located;
}
