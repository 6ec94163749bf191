//! A replica without a disk, for the tests of the stages: its records are opaque blocks of known size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use highwater_coordination::ClusterView;
use highwater_log::{LogPositions, LogRead, ReadError, ReadLimits, TimestampHit};
use highwater_protocol::delayed_fetch::{FetchCompletion, Probe, ProbeFacts};
use highwater_protocol::fetch::{
    FetchPartition, FetchRequest, ReadPlan, Requester, TopicRef, check_leadership, plan_read,
};
use highwater_types::{
    EpochEntry, ErrorCode, LeaderEpoch, LeaderEpochCache, MonotonicTime, NodeId, Offset, PartitionIndex,
    ReplicationError, TopicId, TopicIdPartition, TopicName, WallTime,
};
use parking_lot::Mutex;

use crate::fetch::Fetch;
use crate::{HostedReplica, Located, PartitionHost, ReplicaFacts};

pub(crate) fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

#[derive(Debug)]
struct State {
    /// Base offset → size of the batch; each has 10 offsets.
    batches: BTreeMap<Offset, usize>,
    end: Offset,
    high_watermark: Offset,
    propagated: Offset,
    failed: bool,
    append_on_plan: Option<usize>,
    in_sync: BTreeSet<NodeId>,
}

impl State {
    fn positions(&self) -> LogPositions {
        let (log_start, log_end) = (Offset::ZERO, self.end);
        LogPositions { log_start, log_end, flushed: log_end, generation: 0, size: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct TestReplica {
    id: TopicIdPartition,
    topic: TopicName,
    state: Mutex<State>,
    pub(crate) arrivals: AtomicUsize,
    pub(crate) probes: AtomicUsize,
    pub(crate) reads: AtomicUsize,
    /// Whose fetches were parked, and until when.
    pub(crate) parked: Mutex<Vec<(NodeId, MonotonicTime)>>,
}

/// Offsets in a batch.
pub(crate) const BATCH: i64 = 10;

impl TestReplica {
    pub(crate) fn new(topic: &str, partition: i32) -> Arc<Self> {
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(partition).unwrap());
        let state = State {
            batches: BTreeMap::new(),
            end: Offset::ZERO,
            high_watermark: Offset::ZERO,
            propagated: Offset::ZERO,
            failed: false,
            append_on_plan: None,
            in_sync: BTreeSet::new(),
        };
        let zero = || AtomicUsize::new(0);
        let topic = topic.parse().unwrap();
        Arc::new(Self {
            id,
            topic,
            state: Mutex::new(state),
            arrivals: zero(),
            probes: zero(),
            reads: zero(),
            parked: Mutex::default(),
        })
    }

    /// Appends a batch of this size and commits it.
    pub(crate) fn append(&self, size: usize) {
        let mut state = self.state.lock();
        state.append(size);
        state.high_watermark = state.end;
    }

    /// Appends without committing.
    pub(crate) fn append_uncommitted(&self, size: usize) {
        self.state.lock().append(size);
    }

    /// Commits everything and tells followers.
    pub(crate) fn commit(&self) {
        let mut state = self.state.lock();
        state.high_watermark = state.end;
        state.propagated = state.end;
    }

    pub(crate) fn fail(&self) {
        self.state.lock().failed = true;
    }

    /// Appends a batch of this size right after the next fetch was planned: between the check and the registration.
    pub(crate) fn append_after_next_plan(&self, size: usize) {
        self.state.lock().append_on_plan = Some(size);
    }

    /// A follower joins the in-sync set.
    pub(crate) fn join(&self, follower: NodeId) {
        self.state.lock().in_sync.insert(follower);
    }

    fn error() -> ReplicationError {
        ReplicationError::new(ErrorCode::StorageError, "the disk of the test failed")
    }
}

impl State {
    fn append(&mut self, size: usize) {
        self.batches.insert(self.end, size);
        self.end = self.end.advance(BATCH);
    }
}

impl HostedReplica for TestReplica {
    fn id(&self) -> TopicIdPartition {
        self.id
    }

    fn topic(&self) -> &TopicName {
        &self.topic
    }

    fn facts(&self) -> Result<ReplicaFacts, ReplicationError> {
        let state = self.state.lock();
        if state.failed {
            return Err(Self::error());
        }
        let epochs = [EpochEntry { epoch: LeaderEpoch::FIRST, start: Offset::ZERO }];
        Ok(ReplicaFacts {
            leader_epoch: LeaderEpoch::FIRST,
            is_leader: true,
            high_watermark: state.high_watermark,
            positions: state.positions(),
            epochs: Arc::new(LeaderEpochCache::from_iter(epochs)),
        })
    }

    fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        _: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        let facts = self.facts()?;
        check_leadership(requester, request, &facts.as_partition())?;
        let plan = plan_read(requester, request, &facts.as_partition());
        let mut state = self.state.lock();
        if let Some(size) = state.append_on_plan.take() {
            state.append(size);
            state.high_watermark = state.end;
        }
        plan
    }

    fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        if state.failed {
            return Probe::Unreadable(FetchCompletion::StorageFailed);
        }
        let upper = match requester {
            Requester::Consumer => state.high_watermark,
            Requester::Follower(_) | Requester::Repair => state.end,
        };
        let available = state.batches.range(request.fetch_offset..upper).map(|(_, size)| *size as u64).sum();
        Probe::Readable(ProbeFacts {
            leader_epoch: LeaderEpoch::FIRST,
            upper,
            log_end: state.end,
            active_segment: Offset::ZERO,
            available_bytes: available,
            propagated_high_watermark: state.propagated,
            diverging: false,
        })
    }

    fn is_in_sync(&self, follower: NodeId, _: &FetchPartition) -> bool {
        self.state.lock().in_sync.contains(&follower)
    }

    fn on_parked(&self, follower: NodeId, deadline: MonotonicTime) {
        self.parked.lock().push((follower, deadline));
    }

    fn appended_at(&self, offset: Offset) -> Option<MonotonicTime> {
        Some(MonotonicTime::from_millis(offset.get().unsigned_abs()))
    }

    fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        let mut records = BytesMut::new();
        let (mut next, mut batches) = (from, 0);
        for (base, size) in state.batches.range(from..limits.upper) {
            let fits = records.len() + size <= limits.max_bytes || (batches == 0 && limits.min_one_batch);
            if !fits {
                break;
            }
            records.resize(records.len() + size, 0);
            next = base.advance(BATCH);
            batches += 1;
        }
        let positions = state.positions();
        Ok(LogRead { records: Bytes::from(records), first: from, next, batches, positions })
    }

    fn offset_for_timestamp(&self, _: WallTime, _: Offset) -> Result<Option<TimestampHit>, ReadError> {
        Ok(None)
    }
}

/// A table of such replicas, by name.
#[derive(Debug, Default)]
pub(crate) struct TestHost {
    pub(crate) replicas: Vec<Arc<TestReplica>>,
}

impl PartitionHost for TestHost {
    fn node(&self) -> NodeId {
        NodeId::new(1).unwrap()
    }

    fn view(&self) -> Arc<ClusterView> {
        Arc::new(ClusterView::default())
    }

    fn locate(&self, _: &ClusterView, topic: &TopicRef, partition: PartitionIndex) -> Located {
        let found = self
            .replicas
            .iter()
            .find(|replica| topic.name() == Some(&replica.topic) && replica.id.partition == partition);
        Located {
            topic: topic.name().cloned(),
            topic_id: found.map(|replica| replica.id.topic_id),
            replica: match found {
                Some(replica) => Ok(Arc::clone(replica) as Arc<dyn HostedReplica>),
                None => Err(ReplicationError::new(ErrorCode::UnknownTopicOrPartition, "unknown")),
            },
        }
    }
}

pub(crate) fn asks(topic: &str, partition: i32, fetch_offset: i64) -> FetchPartition {
    let topic = TopicRef::Name(topic.parse().unwrap());
    FetchPartition::reading(topic, PartitionIndex::new(partition).unwrap(), offset(fetch_offset), 1 << 20)
}

/// A consumer's fetch of these partitions.
pub(crate) fn fetch(max_wait_ms: u64, partitions: Vec<FetchPartition>) -> Fetch {
    let request = FetchRequest {
        cluster: None,
        replica: None,
        repair: false,
        session_id: 0,
        session_epoch: -1,
        max_wait: std::time::Duration::from_millis(max_wait_ms),
        min_bytes: 1,
        max_bytes: 1 << 20,
        partitions,
        forgotten: Vec::new(),
    };
    Fetch::new(request, MonotonicTime::ZERO, None)
}
