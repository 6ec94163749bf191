//! A partition that this node follows: its replica, the queues of its disk work, and what the loops and the readers see.
//!
//! What must hold: work on the log runs in the order in which it was decided, on the blocking pool, beside the fetch loop;
//! flushes run beside the work. After every call into the replica its step is absorbed, by whoever called: consumers are
//! woken, new work is queued behind what is there, and the loop is told. Deliberately absent: decisions, which are the
//! core's, and the log, which is the replica's.

mod failing;
mod lag;
mod pausing;
mod queues;
mod rot;
mod trouble;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use highwater_log::{LogRead, OffsetRange, OsStorage, ReadError, ReadLimits, TimestampHit};
use highwater_node::{Clocks, FlushQueue};
use highwater_protocol::delayed_fetch::{FetchCompletion, Probe};
use highwater_protocol::fetch::{FetchPartition, Fetched, LostRange, ReadPlan, Requester};
use highwater_protocol::follower::{
    FetchAsk, FetchIntent, FetchPosition, LeaderOffsets, PartitionFetchState,
};
use highwater_protocol::quota::{Metering, follower_in_sync};
use highwater_replica::{AskOffsets, FollowerReplica, FollowerStep, FollowerWork, Now};
use highwater_serving::observe::{follower_attribute, partition_attributes};
use highwater_serving::volume::on_disk;
use highwater_serving::{FetchPurgatory, HostedReplica, ReplicaFacts, ReplicationThrottle, wait_for_readers};
use highwater_telemetry::{KeyValue, Telemetry};
use highwater_types::{
    Durability, ErrorCode, MonotonicTime, NodeId, Offset, PartitionEpoch, PartitionRecord, ReplicationError,
    TopicIdPartition, TopicName, TopicRecord, WallTime,
};
use parking_lot::Mutex;

use self::lag::LagWatch;
pub(crate) use self::lag::LastWay;
pub(crate) use self::pausing::PausedReplicas;
use self::pausing::Told;
use self::queues::{Queued, Work, WorkQueue};
use self::rot::RotWatch;
use self::trouble::Trouble;
use crate::fetcher::{Applied, Carried, Followed, ReadySet};

/// How many answers of one partition may wait for their append, whatever their size.
const QUEUED_ANSWERS_MAX: usize = 64;

/// What every partition of the program shares.
#[derive(Debug)]
pub(crate) struct PartitionContext {
    pub(crate) clocks: Clocks,
    pub(crate) purgatory: Arc<FetchPurgatory>,
    /// `replica.fetch.queued.max.bytes`.
    pub(crate) queued_bytes_max: u64,
    /// Bytes of records that wait for their append, of all partitions.
    pub(crate) queued_bytes: AtomicU64,
    /// This node.
    pub(crate) node: NodeId,
    pub(crate) telemetry: Telemetry,
    pub(crate) paused: Arc<PausedReplicas>,
}

impl PartitionContext {
    pub(crate) fn now(&self) -> Now {
        Now { monotonic: self.clocks.monotonic.now(), wall: self.clocks.wall_now() }
    }
}

/// A partition that this node follows.
#[derive(Debug)]
pub(crate) struct FollowedPartition {
    topic: Arc<TopicRecord>,
    replica: FollowerReplica<OsStorage>,
    context: Arc<PartitionContext>,
    work: WorkQueue,
    flushes: FlushQueue,
    /// Answers that wait for their append, or are being appended.
    queued_answers: Arc<AtomicUsize>,
    /// The newest record that names a leader; taken by the work that adopts it.
    leadership: Mutex<Option<Arc<PartitionRecord>>>,
    /// Whether the newest record has this replica in the in-sync set.
    in_sync: AtomicBool,
    /// The version of the newest record.
    version: AtomicU64,
    ready: Mutex<Option<Arc<ReadySet>>>,
    /// What the leader was last asked.
    question: Mutex<Option<AskOffsets>>,
    trouble: Trouble,
    /// Whether the leader knows that it is paused.
    told: Mutex<Told>,
    /// Of a failure.
    told_failure: Mutex<Told>,
    /// Whether a resume waits in the queue of work.
    resuming: AtomicBool,
    /// What was fetched and is not held yet.
    lags: LagWatch,
    /// What names it in all that is told of it: the partition, and this follower.
    about: [KeyValue; 3],
    rot: RotWatch,
    /// Whether nobody new finds it, and its log is about to be closed.
    leaves: AtomicBool,
}

impl FollowedPartition {
    /// Hosts a replica that began to follow.
    pub(crate) fn new(
        topic: Arc<TopicRecord>,
        replica: FollowerReplica<OsStorage>,
        context: Arc<PartitionContext>,
    ) -> Arc<Self> {
        let name = format!("{}-{}", topic.name, replica.id().partition);
        let [about_topic, partition] = partition_attributes(&topic.name, replica.id().partition);
        let about = [about_topic, partition, follower_attribute(context.node)];
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            topic,
            replica,
            context,
            work: WorkQueue::new(&name, Weak::clone(this)),
            flushes: FlushQueue::new(&name, Weak::clone(this)),
            queued_answers: Arc::default(),
            leadership: Mutex::new(None),
            in_sync: AtomicBool::new(false),
            version: AtomicU64::new(0),
            ready: Mutex::new(None),
            question: Mutex::new(None),
            trouble: Trouble::default(),
            told: Mutex::default(),
            told_failure: Mutex::default(),
            resuming: AtomicBool::new(false),
            lags: LagWatch::default(),
            about,
            rot: RotWatch::default(),
            leaves: AtomicBool::new(false),
        })
    }

    /// The replica, for what no method here covers.
    pub(crate) const fn replica(&self) -> &FollowerReplica<OsStorage> {
        &self.replica
    }

    /// The partition's name, for people.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.topic.name, self.replica.id().partition)
    }

    fn is_fsync(&self) -> bool {
        self.topic.properties.durability == Durability::Fsync
    }

    /// A record names a leader. The epoch already held changes nothing (S4).
    pub(crate) fn on_record(&self, record: &Arc<PartitionRecord>) {
        let own = self.replica.incarnation();
        let in_sync = record.isr.iter().any(|member| member.incarnation == own);
        self.in_sync.store(in_sync, Ordering::Release);
        self.version.fetch_max(record.partition_epoch.get(), Ordering::AcqRel);
        let held = self.replica.inspect(|core| core.leader_epoch());
        if record.leader_epoch.is_none_or(|epoch| epoch <= held) {
            return;
        }
        let replaced = self.leadership.lock().replace(Arc::clone(record));
        // A record that still waited has its work in the queue already.
        if replaced.is_none() {
            self.work.push(Work::AdoptLeadership);
        }
    }

    /// Writes what moved since the last time; under `page-cache` also flushes segments that were closed. Nothing moves while
    /// the partition has failed. *Blocks.*
    pub(crate) fn write_checkpoint(&self) {
        if self.has_failed() {
            return;
        }
        let log = self.replica.log();
        if !self.is_fsync() && log.snapshot().active_segment > log.flushed() {
            self.flushes.request();
        }
        // By a record that is older than this no directory is deleted, whatever leaderships it names.
        let version = PartitionEpoch::new(self.version.load(Ordering::Acquire));
        let noted =
            if log.highest_epochs().1 < Some(version) { log.note_epochs(None, version) } else { Ok(()) };
        if let Err(error) = noted.and_then(|()| self.replica.write_checkpoint()) {
            tracing::warn!(partition = %self.name(), %error, "could not write the checkpoint");
        }
    }

    /// Nobody new finds it any more; whoever waits at it is let go, or its log could not be closed, nor lent, until then.
    pub(crate) fn let_go(&self) {
        self.leaves.store(true, Ordering::Release);
        self.context.purgatory.wake(self.replica.id());
    }

    /// Lets accepted work finish, flushes, marks the log clean and frees its lock. No loop has the partition any more, and
    /// nobody new finds it. Answers that still read get `patience` in all to be done (design.md 6.6).
    pub(crate) async fn close(self: Arc<Self>, patience: Duration) {
        let accepted = async {
            self.work.close().await;
            self.flushes.close().await;
        };
        let name = self.name();
        wait_for_readers(&self, &name, accepted, patience).await;
        if let Err(error) = on_disk(move || self.replica.close()).await {
            tracing::warn!(partition = %name, %error, "could not close the log cleanly");
        }
    }

    /// Whether it fetches no more until one of its own appends ends: many small answers are as slow to append as a few
    /// large ones, and the memory of all partitions together is bounded.
    fn must_pause(&self) -> bool {
        let answers = self.queued_answers.load(Ordering::Acquire);
        let is_crowded = self.context.queued_bytes.load(Ordering::Acquire) >= self.context.queued_bytes_max;
        answers >= QUEUED_ANSWERS_MAX || (answers > 0 && is_crowded)
    }

    // === steps ===

    /// Does what a call into the replica asks for.
    fn absorb(&self, step: FollowerStep) {
        let FollowerStep { work, high_watermark, .. } = step;
        for work in work {
            let queued = match &work {
                FollowerWork::Append(append) => Some(Queued::new(self, append.bytes())),
                FollowerWork::Truncate { .. }
                | FollowerWork::RestartAt { .. }
                | FollowerWork::PassOver { .. }
                | FollowerWork::RenewIncarnation { .. }
                | FollowerWork::RaiseLogStart(_)
                | FollowerWork::ForgetLostTail { .. }
                | FollowerWork::Recover => None,
            };
            self.work.push(Work::OnLog(work, queued));
        }
        if high_watermark.is_some() {
            self.context.purgatory.wake(self.replica.id());
        }
        self.note_trouble();
    }

    /// A reader was refused.
    fn on_read_failed(&self, error: &ReadError) {
        let now = self.context.clocks.monotonic.now();
        if let Some(segment) = self.rot.met(&self.topic.name, self.replica.id().partition, error, now) {
            self.work.push(Work::CheckSegment(segment));
        }
    }

    /// The leader's records do not fit in the place of this damage.
    pub(crate) fn cut_to_damage(&self, range: OffsetRange) {
        self.work.push(Work::CutToDamage(range));
    }

    /// Work ended outside of the loop.
    fn tell_loop(&self) {
        if let Some(ready) = &*self.ready.lock() {
            ready.tell(self.replica.id());
        }
    }

    fn note_trouble(&self) {
        let now = self.context.clocks.monotonic.now();
        let (state, failures) = self.replica.inspect(|core| (core.state(now), core.failures()));
        if !matches!(state, PartitionFetchState::Truncating | PartitionFetchState::Fetching) {
            self.trouble.note(&self.name(), self.replica.id(), &state, failures);
        }
    }
}

impl Followed for FollowedPartition {
    type Question = AskOffsets;

    fn id(&self) -> TopicIdPartition {
        self.replica.id()
    }

    fn largest_batch(&self) -> u32 {
        self.topic.properties.max_message_bytes
    }

    fn intent(&self, now: MonotonicTime) -> FetchIntent {
        match self.replica.intent(now) {
            FetchIntent::Ask(ask) if self.is_paused() => self.while_paused(ask),
            FetchIntent::Ask(ask) if self.must_pause() => {
                FetchIntent::Ask(FetchAsk { paused: true, max_bytes: 0, ..ask })
            }
            FetchIntent::Not => self.while_failed(),
            intent @ (FetchIntent::Ask(_) | FetchIntent::NotBefore(_)) => intent,
        }
    }

    fn on_sent(&self, ask: &FetchAsk) {
        self.note_sent(ask);
        self.note_failure_sent(ask);
        self.replica.on_sent(ask);
    }

    fn owes_acknowledgement(&self) -> bool {
        self.replica.owes_acknowledgement() || self.owes_news() || self.owes_failure()
    }

    fn has_more_to_fetch(&self) -> bool {
        self.replica.inspect(|core| core.leader_log_end().is_none_or(|end| end > core.fetch_offset()))
    }

    fn is_unanswered(&self) -> bool {
        self.replica.inspect(|core| core.leader_log_end().is_none())
    }

    fn metering(&self, throttle: &ReplicationThrottle) -> Metering {
        throttle.metering(&self.topic.name, self.replica.id().partition, || {
            let lag = self.replica.inspect(|core| core.lag());
            follower_in_sync(self.in_sync.load(Ordering::Acquire), lag)
        })
    }

    fn on_answer(
        &self,
        sent: &FetchPosition,
        outcome: Result<Fetched, ReplicationError>,
        lost: &[LostRange],
        now: MonotonicTime,
    ) -> Applied<AskOffsets> {
        self.note_failure_heard(sent);
        if outcome.as_ref().is_ok_and(|fetched| self.refuses(sent, fetched)) {
            return Applied::Nothing;
        }
        let step = self.replica.on_answer(sent, outcome.as_ref(), lost, now);
        let applied = match step.ask_offsets {
            Some(question) => {
                *self.question.lock() = Some(question);
                Applied::AskOffsets(question, question.leader_epoch)
            }
            None if step.progress => Applied::Records,
            None => Applied::Nothing,
        };
        if step.progress {
            self.trouble.over(&self.topic.name, self.replica.id());
        }
        self.absorb(step);
        applied
    }

    fn on_carried(&self, carried: Carried) {
        self.watch_lag(carried);
    }

    fn on_leader_offsets(
        &self,
        question: AskOffsets,
        range: Result<LeaderOffsets, ErrorCode>,
        now: MonotonicTime,
    ) {
        let step = self.replica.on_leader_offsets(question, range, now);
        self.absorb(step);
    }

    fn on_tick(&self, now: MonotonicTime) {
        let step = self.replica.on_tick(now);
        self.absorb(step);
    }

    fn next_deadline(&self) -> Option<MonotonicTime> {
        self.replica.next_deadline()
    }

    fn attach(&self, ready: Option<Arc<ReadySet>>) {
        *self.ready.lock() = ready;
        // A loop that is left takes its questions with it: the next one asks again.
        if let Some(question) = self.question.lock().take() {
            let now = self.context.clocks.monotonic.now();
            self.on_leader_offsets(question, Err(ErrorCode::LeaderNotAvailable), now);
        }
    }
}

impl HostedReplica for FollowedPartition {
    fn id(&self) -> TopicIdPartition {
        self.replica.id()
    }

    fn topic(&self) -> &TopicName {
        &self.topic.name
    }

    fn facts(&self) -> Result<ReplicaFacts, ReplicationError> {
        Ok(self.replica.facts())
    }

    fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        _: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        self.replica.plan(requester, request)
    }

    fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        self.replica.plan(requester, request)
    }

    fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        if self.leaves.load(Ordering::Acquire) {
            return Probe::Unreadable(FetchCompletion::ReplicaGone);
        }
        self.replica.probe(requester, request)
    }

    fn appended_at(&self, _: Offset) -> Option<MonotonicTime> {
        None
    }

    fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        self.replica.read(from, limits).inspect_err(|error| self.on_read_failed(error))
    }

    fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        self.replica.offset_for_timestamp(timestamp, upper).inspect_err(|error| self.on_read_failed(error))
    }
}
