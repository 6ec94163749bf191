//! Doubles for the loops' tests: a partition whose appends end when the test says so, around the real core, and a leader
//! that answers what the test says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use highwater_node::MonotonicClock;
use highwater_protocol::Randomness;
use highwater_protocol::fetch::{FetchRequest, FetchResponse, Fetched, LostRange, PartitionResult, Snapshot};
use highwater_protocol::follower::{
    AnswerFacts, BackoffConfig, BatchSpan, FetchAsk, FetchIntent, FetchPosition, FollowerAction,
    FollowerConfig, FollowerPartition, FollowerStart, LeaderOffsets, LogState, PartitionFetchState,
};
use highwater_protocol::quota::{Metering, follower_in_sync};
use highwater_records::{BatchBuilder, Compression, batches};
use highwater_serving::ReplicationThrottle;
use highwater_types::{
    Durability, Endpoint, ErrorCode, Incarnation, LeaderEpoch, MonotonicTime, NodeId, Offset, PartitionIndex,
    ReplicationError, Throttle, ThrottleSide, ThrottledReplicas, TopicId, TopicIdPartition, TraceContext,
    WallTime,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{Applied, Followed, Gate, ReadySet};
use crate::leader_endpoint::{Connector, FetchFailure, LeaderEndPoint};

pub(super) const BACKOFF: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(50), max: Duration::from_secs(5), max_attempts: 3 };

/// Bytes of records that a partition takes before it pauses.
pub(super) const READ_AHEAD: u64 = 500;

pub(super) fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

/// The gate of node 2 at this rate.
pub(super) fn gate(rate: Option<&str>, clock: MonotonicClock) -> Gate {
    let throttle = Arc::new(ReplicationThrottle::new(ThrottleSide::Follower, None, clock));
    throttle.set(rate.map(self::throttle).as_ref());
    Gate::new(node(2), throttle)
}

/// A throttle of everything at this rate.
pub(super) fn throttle(rate: &str) -> Throttle {
    Throttle { id: 1, rate: rate.parse().unwrap(), replicas: ThrottledReplicas::All, ttl_ms: None }
}

pub(super) fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(super) fn id(index: i32) -> TopicIdPartition {
    let topic: TopicId = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap();
    TopicIdPartition::new(topic, PartitionIndex::new(index).unwrap())
}

/// A batch of ten records in epoch 0.
pub(super) fn ten_records(base: i64) -> Bytes {
    let mut builder =
        BatchBuilder::new(Compression::None).base_offset(offset(base)).leader_epoch(LeaderEpoch::FIRST);
    for _ in 0..10 {
        builder.append(WallTime::from_millis(1000), None, Some(b"0123456789"), &[]).unwrap();
    }
    builder.build().unwrap().freeze()
}

/// A partition around the real core, led by node 1 in epoch 0, without a disk: what it is to append is kept until the test
/// says that the append ended.
#[derive(Debug)]
pub(super) struct TestPartition {
    id: TopicIdPartition,
    inner: Mutex<Inner>,
    ready: Mutex<Option<Arc<ReadySet>>>,
    /// Whether the record says that it is in sync.
    pub(super) in_sync: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    core: FollowerPartition,
    randomness: Randomness,
    appends: VecDeque<(u64, u64, Offset)>,
}

impl TestPartition {
    pub(super) fn new(index: i32) -> Arc<Self> {
        let config = FollowerConfig {
            durability: Durability::PageCache,
            max_bytes: 1 << 20,
            read_ahead_bytes: READ_AHEAD,
            backoff: BACKOFF,
        };
        let log = LogState {
            log_start: Offset::ZERO,
            log_end: Offset::ZERO,
            flushed_end: Offset::ZERO,
            last_epoch: None,
        };
        let start = FollowerStart {
            leader: node(1),
            leader_epoch: LeaderEpoch::FIRST,
            highest_epoch: None,
            incarnation: Incarnation::new(20).unwrap(),
            log,
            high_watermark: Offset::ZERO,
            high_watermark_epoch: None,
            damage: Vec::new(),
        };
        let core = FollowerPartition::new(config, start).unwrap();
        let inner = Mutex::new(Inner { core, randomness: Randomness::new(3), appends: VecDeque::new() });
        Arc::new(Self { id: id(index), inner, ready: Mutex::new(None), in_sync: AtomicBool::new(false) })
    }

    /// The oldest append ends well.
    pub(super) fn finish_append(&self) {
        let mut inner = self.inner.lock();
        let (generation, bytes, end) = inner.appends.pop_front().expect("an append is running");
        inner.core.on_appended(generation, bytes, end);
        drop(inner);
        self.tell();
    }

    /// A new leadership of the same leader begins.
    pub(super) fn lead_anew(&self, epoch: i32) {
        let mut inner = self.inner.lock();
        let log = LogState {
            log_start: Offset::ZERO,
            log_end: inner.core.log_end(),
            flushed_end: inner.core.log_end(),
            last_epoch: (inner.core.log_end() > Offset::ZERO).then_some(LeaderEpoch::FIRST),
        };
        let news = inner.core.on_leader(node(1), LeaderEpoch::new(epoch).unwrap(), log, MonotonicTime::ZERO);
        assert!(news);
        inner.appends.clear();
        drop(inner);
        self.tell();
    }

    /// The disk failed.
    pub(super) fn fail_disk(&self, now: MonotonicTime) {
        let mut inner = self.inner.lock();
        let Inner { core, randomness, .. } = &mut *inner;
        core.on_storage_failed("no space".to_owned(), now, randomness);
        drop(inner);
        self.tell();
    }

    pub(super) fn state(&self, now: MonotonicTime) -> PartitionFetchState {
        self.inner.lock().core.state(now)
    }

    pub(super) fn log_end(&self) -> i64 {
        self.inner.lock().core.log_end().get()
    }

    pub(super) fn queued(&self) -> usize {
        self.inner.lock().appends.len()
    }

    pub(super) fn is_attached(&self) -> bool {
        self.ready.lock().is_some()
    }

    fn tell(&self) {
        if let Some(ready) = &*self.ready.lock() {
            ready.tell(self.id);
        }
    }
}

fn facts(outcome: &Result<Fetched, ReplicationError>) -> AnswerFacts {
    match outcome {
        Err(error) => AnswerFacts::Error(error.code),
        Ok(Fetched { diverging: Some(at), .. }) => AnswerFacts::Diverging(*at),
        Ok(fetched) => {
            let span = |batch: highwater_records::BatchView<'_>| BatchSpan {
                base: batch.base_offset(),
                next: batch.next_offset(),
                epoch: batch.leader_epoch(),
                bytes: batch.size(),
            };
            let spans = batches(&fetched.records).map(|batch| span(batch.unwrap())).collect();
            AnswerFacts::Records { snapshot: fetched.snapshot, batches: spans, bad: None }
        }
    }
}

impl Followed for TestPartition {
    type Question = u64;

    fn id(&self) -> TopicIdPartition {
        self.id
    }

    fn largest_batch(&self) -> u32 {
        1 << 20
    }

    fn intent(&self, now: MonotonicTime) -> FetchIntent {
        self.inner.lock().core.intent(now)
    }

    fn on_sent(&self, ask: &FetchAsk) {
        self.inner.lock().core.on_sent(ask);
    }

    fn owes_acknowledgement(&self) -> bool {
        self.inner.lock().core.owes_acknowledgement()
    }

    fn has_more_to_fetch(&self) -> bool {
        let core = &self.inner.lock().core;
        core.leader_log_end().is_none_or(|end| end > core.fetch_offset())
    }

    fn is_unanswered(&self) -> bool {
        self.inner.lock().core.leader_log_end().is_none()
    }

    fn metering(&self, throttle: &ReplicationThrottle) -> Metering {
        let lag = self.inner.lock().core.lag();
        throttle.metering(&"t".parse().unwrap(), self.id.partition, || {
            follower_in_sync(self.in_sync.load(Ordering::Relaxed), lag)
        })
    }

    fn on_answer(
        &self,
        sent: &FetchPosition,
        outcome: Result<Fetched, ReplicationError>,
        lost: &[LostRange],
        now: MonotonicTime,
    ) -> Applied<u64> {
        let mut inner = self.inner.lock();
        let Inner { core, randomness, appends } = &mut *inner;
        core.on_leader_lost(sent, lost);
        match core.on_answer(sent, &facts(&outcome), now, randomness) {
            FollowerAction::Append { generation, bytes } => {
                appends.push_back((generation, bytes as u64, core.fetch_offset()));
                Applied::Records
            }
            FollowerAction::AskOffsets { generation } => Applied::AskOffsets(generation, core.leader_epoch()),
            FollowerAction::Nothing
            | FollowerAction::Truncate { .. }
            | FollowerAction::RestartAt { .. }
            | FollowerAction::PassOver { .. }
            | FollowerAction::RenewIncarnation { .. } => Applied::Nothing,
        }
    }

    fn on_leader_offsets(&self, question: u64, range: Result<LeaderOffsets, ErrorCode>, now: MonotonicTime) {
        let mut inner = self.inner.lock();
        let Inner { core, randomness, .. } = &mut *inner;
        core.on_leader_offsets(question, range, now, randomness);
    }

    fn on_tick(&self, now: MonotonicTime) {
        self.inner.lock().core.on_tick(now);
    }

    fn next_deadline(&self) -> Option<MonotonicTime> {
        self.inner.lock().core.next_deadline()
    }

    fn attach(&self, ready: Option<Arc<ReadySet>>) {
        *self.ready.lock() = ready;
    }
}

/// A fetch that waits for the test's answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: FetchRequest,
    pub(super) largest_batch: u32,
    reply: oneshot::Sender<Result<FetchResponse, FetchFailure>>,
}

impl Asked {
    /// Partition index, fetch offset, acknowledged offset, and whether records are wanted.
    pub(super) fn partitions(&self) -> Vec<(i32, i64, i64, bool)> {
        let one = |p: &highwater_protocol::fetch::FetchPartition| {
            (p.partition.get(), p.fetch_offset.get(), p.acknowledged().get(), p.max_bytes > 0 && !p.paused)
        };
        self.request.partitions.iter().map(one).collect()
    }

    pub(super) fn indexes(&self) -> Vec<i32> {
        self.request.partitions.iter().map(|p| p.partition.get()).collect()
    }

    pub(super) fn is_poll(&self) -> bool {
        !self.request.max_wait.is_zero()
    }

    /// Whether the loop gave it up.
    pub(super) fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }

    /// Answers each partition by `outcome`.
    pub(super) fn answer(self, outcome: impl Fn(i32) -> Result<Fetched, ReplicationError>) {
        let asked = self.indexes();
        self.answer_for(&asked, outcome);
    }

    /// Answers these partitions by `outcome`, asked for or not.
    pub(super) fn answer_for(
        self,
        indexes: &[i32],
        outcome: impl Fn(i32) -> Result<Fetched, ReplicationError>,
    ) {
        let results = indexes.iter().map(|index| PartitionResult {
            topic: None,
            topic_id: Some(id(0).topic_id),
            partition: id(*index).partition,
            outcome: outcome(*index),
            lost: Vec::new(),
        });
        let response = FetchResponse {
            session_id: 0,
            received: MonotonicTime::ZERO,
            answered: MonotonicTime::ZERO,
            throttle: Duration::ZERO,
            throttle_reason: None,
            partitions: results.collect(),
        };
        self.reply.send(Ok(response)).expect("the loop waits for it");
    }

    pub(super) fn fail(self, failure: FetchFailure) {
        self.reply.send(Err(failure)).expect("the loop waits for it");
    }
}

/// Nothing new; the leader's log ends at `end`.
pub(super) fn nothing(end: i64) -> Result<Fetched, ReplicationError> {
    let snapshot = Snapshot { high_watermark: Offset::ZERO, log_start: Offset::ZERO, log_end: offset(end) };
    Ok(Fetched::empty(snapshot))
}

/// Ten records from `base` on; the leader's log ends at `end`.
pub(super) fn ten_from(base: i64, end: i64) -> Result<Fetched, ReplicationError> {
    nothing(end).map(|empty| Fetched { records: ten_records(base), ..empty })
}

pub(super) fn error(code: ErrorCode) -> Result<Fetched, ReplicationError> {
    Err(ReplicationError::new(code, "scripted"))
}

/// A leader whose answers the test gives.
#[derive(Debug)]
pub(super) struct ScriptedLeader {
    asked: mpsc::UnboundedSender<Asked>,
    /// What range it tells.
    pub(super) range: Mutex<Result<LeaderOffsets, ErrorCode>>,
    pub(super) ranges_asked: AtomicUsize,
    pub(super) reconnects: AtomicUsize,
}

impl ScriptedLeader {
    pub(super) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Asked>) {
        let (asked, receiver) = mpsc::unbounded_channel();
        let leader = Self {
            asked,
            range: Mutex::new(Err(ErrorCode::LeaderNotAvailable)),
            ranges_asked: AtomicUsize::new(0),
            reconnects: AtomicUsize::new(0),
        };
        (Arc::new(leader), receiver)
    }
}

impl LeaderEndPoint for ScriptedLeader {
    fn fetch(
        &self,
        request: FetchRequest,
        largest_batch: u32,
        _: Option<TraceContext>,
    ) -> BoxFuture<'static, Result<FetchResponse, FetchFailure>> {
        let (reply, answer) = oneshot::channel();
        // A test that is over does not listen any more.
        drop(self.asked.send(Asked { request, largest_batch, reply }));
        async move {
            match answer.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn range(
        &self,
        _: TopicIdPartition,
        _: LeaderEpoch,
    ) -> BoxFuture<'static, Result<LeaderOffsets, ErrorCode>> {
        self.ranges_asked.fetch_add(1, Ordering::SeqCst);
        std::future::ready(*self.range.lock()).boxed()
    }

    fn reconnect(&self) {
        self.reconnects.fetch_add(1, Ordering::SeqCst);
    }
}

/// Gives every loop a leader of its own that never answers, and remembers for which address.
#[derive(Debug, Default)]
pub(super) struct SilentLeaders {
    pub(super) connected: Mutex<Vec<Endpoint>>,
}

impl Connector for Arc<SilentLeaders> {
    type Leader = ScriptedLeader;

    fn connect(&self, endpoint: &Endpoint) -> Arc<ScriptedLeader> {
        self.connected.lock().push(endpoint.clone());
        ScriptedLeader::new().0
    }
}
