//! What others may do with a partition that this node leads, and what its core's decisions cause.
//!
//! What must hold: after every call into the replica its effects are drained and executed, by whoever called; executing
//! one never waits (proposals and timers become tasks). Wakes are sent with no lock held. A leadership that ended answers
//! for itself (`facts`, `probe`), so that whoever still holds it finds out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use highwater_coordination::{Coordination, Membership};
use highwater_log::{LogRead, OsStorage, ReadError, ReadLimits, TimestampHit};
use highwater_node::Clocks;
use highwater_protocol::delayed_fetch::Probe;
use highwater_protocol::fetch::{FetchPartition, LostRange, ReadPlan, Requester};
use highwater_protocol::leader::{Answered, LeaderEffect};
use highwater_replica::{LeaderReplica, Now};
use highwater_serving::volume::on_disk;
use highwater_serving::{DamageNote, FetchPurgatory, HostedReplica, ReplicaFacts, wait_for_readers};
use highwater_telemetry::Telemetry;
use highwater_types::{
    Durability, ErrorCode, IsrMember, MonotonicTime, NodeId, Offset, PartitionRecord, ReplicationError,
    TopicIdPartition, TopicName, TopicRecord, TraceContext, WallTime,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::append_queue::{AppendQueue, FlushQueue};
use super::offset_waiters::OffsetWaiters;
use super::pace::Paces;
use crate::replica_manager::Agents;

/// What every partition of the program shares.
#[derive(Debug)]
pub(crate) struct PartitionContext {
    pub(crate) clocks: Clocks,
    pub(crate) purgatory: Arc<FetchPurgatory>,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) membership: Arc<Membership>,
    /// Where the replica manager hears of leaderships that ended by themselves, and of damage. Unbounded, and still bounded:
    /// a leadership ends once, and each damaged place is told once in a row.
    pub(crate) events: mpsc::UnboundedSender<PartitionEvent>,
    /// How many appends may wait at one partition.
    pub(crate) queued_appends: usize,
    /// Where tasks are started: effects are executed on the blocking pool, too.
    pub(crate) runtime: Handle,
    pub(crate) telemetry: Telemetry,
    /// Who hears that an agent is in sync.
    pub(crate) agents: Agents,
}

impl PartitionContext {
    pub(crate) fn now(&self) -> Now {
        Now { monotonic: self.clocks.monotonic.now(), wall: self.clocks.wall_now() }
    }
}

/// Why a leadership ended by itself.
#[derive(Debug)]
pub(crate) enum PartitionEvent {
    /// A newer record names another leadership.
    Superseded(Arc<LedPartition>),
    /// The disk failed.
    Failed(Arc<LedPartition>),
    /// A reader met damage in the log; the leadership goes on.
    Damaged(Arc<LedPartition>),
}

/// A partition that this node leads, in one epoch.
#[derive(Debug)]
pub(crate) struct LedPartition {
    pub(super) topic: Arc<TopicRecord>,
    pub(super) replica: LeaderReplica<OsStorage>,
    pub(super) context: Arc<PartitionContext>,
    pub(super) this: Weak<Self>,
    /// The newest record of this leadership that was seen.
    pub(super) record: Mutex<Arc<PartitionRecord>>,
    /// Who waits for the high watermark.
    pub(super) commits: OffsetWaiters,
    /// Who waits for a flush.
    pub(super) flushes: OffsetWaiters,
    pub(super) appends: AppendQueue,
    pub(super) flush_queue: FlushQueue,
    /// When the next tick of the core is due, as far as a timer is set.
    tick: Mutex<Option<MonotonicTime>>,
    pub(super) damage: DamageNote,
    /// How fast replicas that are added catch up.
    pub(super) paces: Paces,
    /// Whether it was stopped: what goes wrong afterwards is a consequence.
    stopped: AtomicBool,
}

impl LedPartition {
    /// Serves a replica that took up its leadership by `record`.
    pub(crate) fn new(
        topic: Arc<TopicRecord>,
        record: PartitionRecord,
        replica: LeaderReplica<OsStorage>,
        context: Arc<PartitionContext>,
    ) -> Arc<Self> {
        let name = format!("{}-{}", topic.name, record.partition);
        let partition = Arc::new_cyclic(|this: &Weak<Self>| Self {
            topic,
            replica,
            this: Weak::clone(this),
            record: Mutex::new(Arc::new(record)),
            commits: OffsetWaiters::default(),
            flushes: OffsetWaiters::default(),
            appends: AppendQueue::new(&name, context.queued_appends, Weak::clone(this)),
            flush_queue: FlushQueue::new(&name, Weak::clone(this)),
            tick: Mutex::new(None),
            damage: DamageNote::default(),
            paces: Paces::default(),
            stopped: AtomicBool::new(false),
            context,
        });
        partition.execute_effects();
        partition
    }

    /// The topic's record.
    pub(crate) const fn topic_record(&self) -> &Arc<TopicRecord> {
        &self.topic
    }

    /// The replica, for what no method here covers.
    pub(crate) const fn replica(&self) -> &LeaderReplica<OsStorage> {
        &self.replica
    }

    /// The newest record of this leadership that was seen.
    pub(crate) fn record(&self) -> Arc<PartitionRecord> {
        Arc::clone(&self.record.lock())
    }

    /// Where its record is.
    pub(crate) fn coordination(&self) -> &Arc<dyn Coordination> {
        &self.context.coordination
    }

    /// What it records with.
    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.context.telemetry
    }

    pub(crate) fn now(&self) -> MonotonicTime {
        self.context.clocks.monotonic.now()
    }

    pub(super) fn is_fsync(&self) -> bool {
        self.topic.properties.durability == Durability::Fsync
    }

    // === events ===

    /// A record of the partition was seen.
    pub(crate) fn on_record(&self, record: &Arc<PartitionRecord>) {
        {
            let mut known = self.record.lock();
            if record.partition_epoch > known.partition_epoch {
                *known = Arc::clone(record);
            }
        }
        self.replica.on_record(record, self.context.clocks.monotonic.now());
        self.execute_effects();
    }

    /// The agent of a node is dead, as far as is known.
    pub(crate) fn on_follower_gone(&self, follower: NodeId) {
        self.replica.on_follower_gone(follower, self.now());
        self.execute_effects();
    }

    /// The agent of a follower that died refuses still.
    pub(crate) fn on_follower_still_gone(&self, follower: NodeId) {
        self.replica.on_follower_still_gone(follower, self.now());
        self.execute_effects();
    }

    /// Removes old segments. *Blocks.*
    pub(crate) fn apply_retention(&self) {
        match self.replica.apply_retention(self.context.clocks.wall_now()) {
            Ok(retained) if retained.removed > 0 => tracing::info!(
                partition = %self.id_name(),
                segments = retained.removed,
                bytes = retained.bytes,
                log_start = retained.positions.log_start.get(),
                "removed old segments"
            ),
            Ok(_) => {}
            Err(error) => self.on_disk_error("remove old segments", &error),
        }
    }

    /// Writes what moved since the last time. *Blocks.*
    pub(crate) fn write_checkpoint(&self) {
        if let Err(error) = self.replica.write_checkpoint() {
            self.on_disk_error("write the checkpoint", &error);
        }
    }

    /// Ends the leadership: nothing is appended any more, and everybody who waits is let go.
    pub(crate) fn stop_leading(&self, why: &ReplicationError) {
        self.stopped.store(true, Ordering::Release);
        self.replica.resign();
        self.commits.give_up(why);
        self.flushes.give_up(why);
        self.context.purgatory.wake(self.replica.id());
    }

    /// A call into the log failed. Whether the leadership is over is the replica's to know.
    pub(super) fn on_disk_error(&self, what: &str, error: &dyn std::error::Error) {
        if self.stopped.load(Ordering::Acquire) {
            tracing::debug!(partition = %self.id_name(), %error, "could not {what} after the end of the leadership");
            return;
        }
        tracing::error!(partition = %self.id_name(), %error, "could not {what}");
        if self.replica.is_over() {
            self.fail(format!("could not {what}: {error}"));
        }
    }

    /// A job of one of the queues panicked: what it left behind is found out by opening the log again.
    pub(super) fn on_panic(&self) {
        if !self.stopped.load(Ordering::Acquire) {
            self.fail("a write failed unexpectedly".to_owned());
        }
    }

    /// Ends the leadership for good and tells the manager.
    fn fail(&self, why: String) {
        self.stop_leading(&ReplicationError::new(ErrorCode::StorageError, why));
        if let Some(this) = self.this.upgrade() {
            // The manager is gone when the program stops: then nobody has to hear it.
            let _stopping = self.context.events.send(PartitionEvent::Failed(this));
        }
    }

    /// Lets accepted appends finish, marks the log clean and frees its lock. The leadership is over, and nobody new finds
    /// the partition any more. Answers that still read get `patience` in all to be done (design.md 6.6).
    pub(crate) async fn close(self: Arc<Self>, patience: Duration) {
        let accepted = async {
            self.appends.close().await;
            self.flush_queue.close().await;
        };
        let name = self.id_name();
        wait_for_readers(&self, &name, accepted, patience).await;
        if let Err(error) = on_disk(move || self.replica.close()).await {
            tracing::warn!(partition = %name, %error, "could not close the log cleanly");
        }
    }

    /// The partition's name, for people.
    pub(crate) fn id_name(&self) -> String {
        format!("{}-{}", self.topic.name, self.replica.id().partition)
    }

    // === effects ===

    /// Executes what the core decided, and sets the timer of its next decision.
    pub(super) fn execute_effects(&self) {
        let effects = self.replica.drain_effects();
        let mut wake = false;
        for effect in effects {
            match effect {
                LeaderEffect::HighWatermarkAdvanced(offset) => {
                    self.commits.reach(offset);
                    wake = true;
                }
                LeaderEffect::TellFollowers(_) => wake = true,
                LeaderEffect::ProposeIsr(proposal) => {
                    if let Some(this) = self.this.upgrade() {
                        self.context.runtime.spawn(this.propose_isr(proposal));
                    }
                }
                LeaderEffect::IsrChanged(isr) => {
                    let nodes: Vec<_> = isr.iter().map(|member| member.node.to_string()).collect();
                    tracing::info!(partition = %self.id_name(), in_sync = nodes.join(", "), "the in-sync set changed");
                    self.context.agents.on_in_sync(isr.iter().map(|member| member.node));
                    self.give_up_commits_below_min_isr();
                }
                LeaderEffect::Superseded => self.on_superseded(),
            }
        }
        if wake {
            self.context.purgatory.wake(self.replica.id());
        }
        self.set_timer();
    }

    fn on_superseded(&self) {
        self.stop_leading(&self.leadership_over());
        if let Some(this) = self.this.upgrade() {
            let _stopping = self.context.events.send(PartitionEvent::Superseded(this));
        }
    }

    /// The core has to be told of the time when something of it is due. A timer that is set for later is left to itself:
    /// a tick too many changes nothing.
    fn set_timer(&self) {
        let Some(due) = self.replica.next_deadline() else { return };
        {
            let mut tick = self.tick.lock();
            if tick.is_some_and(|set| set <= due) {
                return;
            }
            *tick = Some(due);
        }
        let (this, at) = (Weak::clone(&self.this), self.context.clocks.monotonic.instant(due));
        self.context.runtime.spawn(async move {
            tokio::time::sleep_until(at).await;
            if let Some(partition) = this.upgrade() {
                partition.tick.lock().take_if(|set| *set <= due);
                partition.replica.on_tick(partition.context.clocks.monotonic.now());
                partition.execute_effects();
            }
        });
    }

    pub(super) fn leadership_over(&self) -> ReplicationError {
        ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node leads the partition no more")
    }
}

impl HostedReplica for LedPartition {
    fn id(&self) -> TopicIdPartition {
        self.replica.id()
    }

    fn topic(&self) -> &TopicName {
        &self.topic.name
    }

    fn facts(&self) -> Result<ReplicaFacts, ReplicationError> {
        let facts = self.replica.facts();
        if facts.is_leader { Ok(facts) } else { Err(self.leadership_over()) }
    }

    fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        let plan = self.replica.on_fetch(requester, request, now);
        if matches!(requester, Requester::Follower(_)) {
            self.execute_effects();
        }
        plan
    }

    fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        self.replica.plan(requester, request)
    }

    fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        self.replica.probe(requester, request)
    }

    fn is_in_sync(&self, follower: NodeId, request: &FetchPartition) -> bool {
        let is_its =
            |member: &IsrMember| member.node == follower && request.incarnation == Some(member.incarnation);
        self.replica.isr().iter().any(is_its)
    }

    fn appended_at(&self, offset: Offset) -> Option<MonotonicTime> {
        self.replica.appended_at(offset)
    }

    fn on_parked(&self, follower: NodeId, deadline: MonotonicTime) {
        self.replica.on_follower_parked(follower, deadline);
    }

    fn on_reading(&self, follower: NodeId, now: MonotonicTime) {
        self.replica.on_follower_reads(follower, now);
    }

    fn on_answered(&self, follower: NodeId, answered: Answered, now: MonotonicTime) {
        self.replica.on_follower_answered(follower, answered, now);
    }

    fn lost_ranges(&self) -> Vec<LostRange> {
        self.replica.lost_ranges()
    }

    fn traces(&self, from: Offset, to: Offset) -> Vec<(Offset, TraceContext)> {
        self.replica.traces(from, to)
    }

    fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        let read = self.replica.read(from, limits);
        read.inspect_err(|error| {
            if self.damage.note(&self.topic.name, self.id().partition, error) {
                self.tell_of_damage();
            }
        })
    }

    fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        self.replica.offset_for_timestamp(timestamp, upper)
    }
}
