//! Which partitions this node leads: follows the cluster's records and brings the program in line with them.
//!
//! What must hold:
//! - One thing at a time per partition: standing, leading, or closing. What comes meanwhile is looked at afterwards.
//! - This node leads only by a record that it wrote itself since it started (design.md 6.2).
//! - It stands for a leadership of another node when that one's leader-svc is down, as far as this one can tell, or gave the
//!   leadership up; in an order, so that not all members of the in-sync set stand at once (design.md 6.6).
//! - It gives a leadership up where somebody in sync can take it: before it stops, when its disk fails, and when it cannot
//!   lead although the record says so (design.md 2, 6.11).
//! - A leadership that is over is taken out of the table first, so that requests learn where to go, then closed.
//! - A directory is deleted for a tombstone of its topic id only; one that no record knows is reported and kept.
//!
//! Every failure is retried with a growing pause; a newer record ends the pause.

mod disk_failures;
mod order;
mod peers;
mod resign;
mod stand;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{
    ClusterView, Membership, ProgramState, UncleanOrder, first_leadership_delay, successor, take_over_delay,
    unclean_delay,
};
use highwater_serving::registry::{Hosting, Registry, name_of};
use highwater_serving::strays::Strays;
use highwater_serving::volume::on_disk;
use highwater_serving::{Attempts, Volume};
use highwater_types::{
    ErrorCode, NodeId, PartitionEpoch, PartitionRecord, Program, ReplicationError, TopicIdPartition,
    TopicRecord,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::disk_failures::DiskFailures;
pub(crate) use self::order::{ORDERS_MAX, Order};
pub(crate) use self::peers::{PeerWatch, Peers};
use self::resign::{RESIGNATIONS_MAX, RESIGNING_MAX, hand_over};
use self::stand::{Stood, stand};
use crate::partition::{LedPartition, PartitionContext, PartitionEvent};

/// Pauses after a failed attempt.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The least time between two looks at all records: while thousands of partitions change, each look serves many changes.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How long a leadership that ended waits for answers that still read its log (design.md 6.6).
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How many logs are flushed and closed at the same time when the program stops.
const CONCURRENT_CLOSES: usize = 16;

/// What the manager's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) volume: Volume,
    pub(crate) registry: Arc<Registry<LedPartition>>,
    pub(crate) context: Arc<PartitionContext>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) replica_lag_time_max: Duration,
    pub(crate) hw_propagation: Duration,
    pub(crate) leadership_stagger: Duration,
    /// Bounds how many logs are opened at the same time.
    pub(crate) opening: Semaphore,
    /// Bounds how many logs are borrowed from this node's agent at the same time.
    pub(crate) borrowing: Semaphore,
    /// What is known of the other nodes' leader-svc.
    pub(crate) peers: watch::Receiver<Peers>,
    /// Leaderships are given up from here on, and none is taken.
    pub(crate) leaving: CancellationToken,
    /// Leaderships that are being given up; closed once all are that can be.
    pub(crate) resigning: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Shared {
    /// Who is to lead when this node does not lead on; `None`: nobody else can.
    fn successor(&self, record: &PartitionRecord) -> Option<NodeId> {
        let peers = self.peers.borrow();
        successor(record, |other| peers.is_up(other))
    }
}

/// See [`Shared::borrowing`].
pub(crate) const BORROWED_LOGS_MAX: usize = 64;

/// What the manager does about a partition just now.
#[derive(Debug)]
enum Slot {
    /// Nobody leads it; this node stands when its turn has come.
    WaitsItsTurn { since: Instant },
    /// A task takes the leadership.
    Standing,
    /// Served.
    Leading(Arc<LedPartition>),
    /// A task closes the log, or gives it up.
    Closing,
    /// An attempt failed; the next one is at this time, or with a newer record. `None`: only a newer record helps.
    Paused { until: Option<Instant>, seen: PartitionEpoch },
}

#[derive(Debug)]
enum Done {
    Stood(TopicIdPartition, PartitionEpoch, Stood),
    Closed(TopicIdPartition),
    GivenUp(TopicIdPartition, PartitionEpoch),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReplicaManager {
    shared: Arc<Shared>,
    slots: HashMap<TopicIdPartition, Slot>,
    attempts: Attempts,
    disk_failures: DiskFailures,
    tasks: JoinSet<Done>,
    strays: Strays,
    /// Nodes whose agent is dead, as the leaderships were told.
    agents_gone: BTreeSet<NodeId>,
    resigning: Resigning,
    orders: mpsc::Receiver<Order>,
}

/// What bounds the resignations of a program that stops.
#[derive(Debug)]
struct Resigning {
    turns: Arc<Semaphore>,
    /// Set when it was told to stop.
    until: Option<Instant>,
}

impl ReplicaManager {
    pub(crate) fn new(shared: Arc<Shared>, orders: mpsc::Receiver<Order>) -> Self {
        let turns = Arc::new(Semaphore::new(RESIGNATIONS_MAX));
        Self {
            shared,
            slots: HashMap::new(),
            attempts: Attempts::new(RETRY_MIN, RETRY_MAX),
            disk_failures: DiskFailures::new(),
            tasks: JoinSet::new(),
            strays: Strays::default(),
            agents_gone: BTreeSet::new(),
            resigning: Resigning { turns, until: None },
            orders,
        }
    }

    /// Runs until the program stops; then closes every log.
    pub(crate) async fn run(mut self, mut events: mpsc::UnboundedReceiver<PartitionEvent>) {
        let mut view = self.shared.context.coordination.view();
        let (leaving, stop) = (self.shared.leaving.clone(), self.shared.stop.clone());
        let mut peers = self.shared.peers.clone();
        // When the records are looked at next, if nothing happens before.
        let mut next = Some(Instant::now());
        let mut last: Option<Instant> = None;
        loop {
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let look = tokio::select! {
                () = stop.cancelled() => break,
                () = leaving.cancelled(), if self.resigning.until.is_none() => {
                    self.resigning.until = Some(Instant::now() + RESIGNING_MAX);
                    self.resign_all();
                    self.shared.resigning.close();
                    false
                }
                // Its sender goes when the program stops.
                Ok(()) = peers.changed() => {
                    let gone = peers.borrow_and_update().agents_gone().clone();
                    self.on_agents_gone(gone);
                    true
                }
                () = due => {
                    let now = Arc::clone(&view.borrow_and_update());
                    next = self.reconcile(&now);
                    last = Some(Instant::now());
                    false
                }
                // The store's handle lives as long as the program.
                changed = view.changed() => if changed.is_err() { break } else { true },
                Some(event) = events.recv() => self.on_event(event),
                Some(order) = self.orders.recv() => {
                    let now = Arc::clone(&view.borrow());
                    self.on_order(order, &now);
                    false
                }
                Some(done) = self.tasks.join_next() => {
                    let now = Arc::clone(&view.borrow());
                    self.on_done(done, &now)
                }
            };
            if look {
                let soon = last.map_or_else(Instant::now, |last| last + LOOK_PAUSE);
                next = Some(next.map_or(soon, |next| next.min(soon)));
            }
        }
        self.close_all().await;
    }

    /// Brings every partition in line with `view`; answers when something is due without a change.
    fn reconcile(&mut self, view: &ClusterView) -> Option<Instant> {
        self.leave_deleted(view);
        let mut next: Option<Instant> = None;
        for (topic, record) in view.partitions() {
            if record.has_replica(self.shared.node) || self.slots.contains_key(&record.id()) {
                let due = self.reconcile_one(topic, record);
                next = [next, due].into_iter().flatten().min();
            }
        }
        self.strays.look(&self.shared.volume, view, self.slots.keys().copied());
        next
    }

    fn reconcile_one(&mut self, topic: &Arc<TopicRecord>, record: &Arc<PartitionRecord>) -> Option<Instant> {
        let id = record.id();
        match self.slots.get(&id) {
            Some(Slot::Leading(partition)) => {
                if partition.record().partition_epoch < record.partition_epoch {
                    partition.on_record(record);
                }
                return None;
            }
            Some(Slot::Standing | Slot::Closing) => return None,
            Some(Slot::Paused { .. } | Slot::WaitsItsTurn { .. }) | None => {}
        }
        let Some(delay) = self.standing_delay(topic, record) else {
            if self.slots.remove(&id).is_some() {
                self.shared.registry.remove(id);
            }
            return None;
        };
        let since = match self.slots.get(&id) {
            Some(Slot::Paused { until, seen })
                if until.is_none_or(|until| until > Instant::now()) && *seen >= record.partition_epoch =>
            {
                return *until;
            }
            Some(Slot::WaitsItsTurn { since }) => *since,
            _ => Instant::now(),
        };
        // No record mends a disk: else two full ones would pass a leadership to and fro.
        let turn = self.disk_failures.stands_from(id).map_or(since + delay, |from| from.max(since + delay));
        if turn <= Instant::now() {
            let may_lack_records = self.unclean_delay(topic, record).is_some();
            let order = if may_lack_records {
                UncleanOrder::Topic { member_lives: false }
            } else {
                UncleanOrder::None
            };
            self.stand(topic, record, order, None);
            return None;
        }
        self.slots.insert(id, Slot::WaitsItsTurn { since });
        Some(turn)
    }

    /// How long this node waits for others before it stands; `None`: it does not.
    fn standing_delay(&self, topic: &TopicRecord, record: &PartitionRecord) -> Option<Duration> {
        let (node, stagger) = (self.shared.node, self.shared.leadership_stagger);
        if self.shared.leaving.is_cancelled() {
            return None;
        }
        if record.leader == Some(node) {
            return Some(Duration::ZERO);
        }
        if record.is_new() {
            let expired = |other| {
                self.shared.membership.state(other, Program::LeaderSvc) != ProgramState::Alive
                    && other != node
            };
            return first_leadership_delay(record, node, stagger, expired);
        }
        let peers = self.shared.peers.borrow();
        if record.leader.is_some_and(|leader| !peers.is_down(leader)) {
            return None;
        }
        take_over_delay(record, node, stagger, |other| peers.is_up(other))
            .or_else(|| self.unclean_delay(topic, record))
    }

    /// The same for a leadership of a replica that may lack records, where the topic allows that now.
    fn unclean_delay(&self, topic: &TopicRecord, record: &PartitionRecord) -> Option<Duration> {
        let (node, stagger) = (self.shared.node, self.shared.leadership_stagger);
        let peers = self.shared.peers.borrow();
        let allowed = topic.properties.unclean_leader_election;
        allowed
            .then(|| unclean_delay(record, node, stagger, |n| !peers.is_down(n), |n| peers.is_up(n)))
            .flatten()
    }

    /// Agents that died fetch no more: they are taken out of in-sync sets at once (design.md 6.6).
    fn on_agents_gone(&mut self, gone: BTreeSet<NodeId>) {
        for follower in gone.difference(&self.agents_gone) {
            for slot in self.slots.values() {
                let Slot::Leading(partition) = slot else { continue };
                partition.on_follower_gone(*follower);
            }
        }
        self.agents_gone = gone;
    }

    /// Begins to stand; `ordered` is told what came of it.
    fn stand(
        &mut self,
        topic: &Arc<TopicRecord>,
        record: &Arc<PartitionRecord>,
        order: UncleanOrder,
        ordered: Option<oneshot::Sender<Result<NodeId, ReplicationError>>>,
    ) {
        let id = record.id();
        self.slots.insert(id, Slot::Standing);
        let opening = ReplicationError::new(ErrorCode::ReplicaNotAvailable, "the partition is being opened");
        self.shared.registry.set(id, Hosting::Opening(opening));
        let (shared, topic, record) = (Arc::clone(&self.shared), Arc::clone(topic), Arc::clone(record));
        self.tasks.spawn(async move {
            let (node, seen) = (shared.node, record.partition_epoch);
            let stood = stand(shared, topic, record, order).await;
            if let Some(ordered) = ordered {
                _ = ordered.send(order::outcome(node, &stood));
            }
            Done::Stood(id, seen, stood)
        });
    }

    /// Answers whether the records are to be looked at again. They are not for each of 10,000 partitions that begins to
    /// lead: what came meanwhile is told to it here.
    fn on_done(&mut self, done: Result<Done, JoinError>, view: &ClusterView) -> bool {
        match done {
            Ok(Done::Stood(id, seen, stood)) => self.on_stood(id, seen, stood, view),
            Ok(Done::Closed(id)) => self.slots.remove(&id).is_some(),
            Ok(Done::GivenUp(id, seen)) => {
                self.pause_for_disk(id, seen, disk_failed(), view);
                true
            }
            Err(failed) => {
                // Its slot stays as it is: nothing is tried again after a fault of the program itself.
                tracing::error!(error = %failed, "a task of the replica manager failed");
                false
            }
        }
    }

    fn on_stood(
        &mut self,
        id: TopicIdPartition,
        seen: PartitionEpoch,
        stood: Stood,
        view: &ClusterView,
    ) -> bool {
        match stood {
            Stood::Leads(partition) => {
                tracing::info!(
                    partition = %partition.id_name(),
                    epoch = partition.replica().epoch().get(),
                    log_end = partition.replica().log_end().get(),
                    "leading"
                );
                self.attempts.forget(id);
                self.disk_failures.leads(id);
                self.shared.registry.set(id, Hosting::Online(Arc::clone(&partition)));
                self.slots.insert(id, Slot::Leading(Arc::clone(&partition)));
                if self.resigning.until.is_some() {
                    self.resign(id, partition);
                    return false;
                }
                let newest = view.partition(id);
                if let Some(record) = newest {
                    partition.on_record(record);
                }
                for follower in &self.agents_gone {
                    partition.on_follower_gone(*follower);
                }
                newest.is_none()
            }
            Stood::Lost => {
                self.shared.registry.remove(id);
                // The record that won can be on its way here still.
                self.slots.insert(id, Slot::Paused { until: Some(Instant::now() + RETRY_MIN), seen });
                true
            }
            Stood::Failed(why) => {
                let (pause, is_news) = self.attempts.failed(id, &why.message);
                if is_news {
                    tracing::warn!(partition = name_of(view, id), topic_id = %id.topic_id, error = %why, "could not take the leadership; trying on");
                }
                self.pause(id, seen, Some(pause), why);
                true
            }
            Stood::Elected(won, why) => {
                self.pause_for_disk(id, won.partition_epoch, why, view);
                true
            }
            Stood::Ineligible(why) => {
                if self.attempts.failed(id, &why.message).1 {
                    tracing::warn!(partition = name_of(view, id), topic_id = %id.topic_id, error = %why, "cannot lead");
                }
                // Where the topic lets others lead, members of the in-sync set that die later make the difference.
                let topic = view.topic(id.topic_id);
                let tries_on = topic.is_some_and(|topic| topic.properties.unclean_leader_election);
                self.pause(id, seen, tries_on.then_some(RETRY_MAX), why);
                true
            }
        }
    }

    /// As [`Self::pause`], after a leadership that the disk ended.
    fn pause_for_disk(
        &mut self,
        id: TopicIdPartition,
        seen: PartitionEpoch,
        why: ReplicationError,
        view: &ClusterView,
    ) {
        let name = name_of(view, id);
        let pause = self.disk_failures.ended(id, &name, &why.message);
        self.pause(id, seen, Some(pause), why);
    }

    /// Nothing is tried before `pause` is over; without one, before a newer record is seen.
    fn pause(
        &mut self,
        id: TopicIdPartition,
        seen: PartitionEpoch,
        pause: Option<Duration>,
        why: ReplicationError,
    ) {
        self.shared.registry.set(id, Hosting::Failed(why));
        self.slots.insert(id, Slot::Paused { until: pause.map(|pause| Instant::now() + pause), seen });
    }

    /// Answers whether the records are to be looked at again.
    fn on_event(&mut self, event: PartitionEvent) -> bool {
        let (PartitionEvent::Superseded(partition) | PartitionEvent::Failed(partition)) = &event;
        let id = partition.replica().id();
        // A leadership that is closing already, or an earlier one: nothing is left to do.
        if !matches!(self.slots.get(&id), Some(Slot::Leading(current)) if Arc::ptr_eq(current, partition)) {
            return false;
        }
        match event {
            PartitionEvent::Superseded(partition) => {
                tracing::info!(partition = %partition.id_name(), "the leadership is over");
                self.shared.registry.remove(id);
                self.close(id, partition);
            }
            PartitionEvent::Failed(partition) => {
                self.shared.registry.set(id, Hosting::Failed(disk_failed()));
                self.slots.insert(id, Slot::Closing);
                let (stop, successor) =
                    (self.shared.stop.clone(), self.shared.successor(&partition.record()));
                self.tasks.spawn(async move {
                    let seen = partition.record().partition_epoch;
                    if let Some(successor) = successor {
                        hand_over(&partition, successor, Instant::now() + RESIGNING_MAX).await;
                    }
                    give_up(partition, stop).await;
                    Done::GivenUp(id, seen)
                });
            }
        }
        true
    }

    fn close(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        self.slots.insert(id, Slot::Closing);
        self.tasks.spawn(async move {
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// Leaves partitions whose topic is gone. Their directories go when the log is closed (`serving::strays`).
    fn leave_deleted(&mut self, view: &ClusterView) {
        let gone: Vec<_> = self.slots.keys().filter(|id| view.partition(**id).is_none()).copied().collect();
        for id in gone {
            match self.slots.get(&id) {
                Some(Slot::Leading(partition)) => {
                    let partition = Arc::clone(partition);
                    let why =
                        ReplicationError::new(ErrorCode::UnknownTopicOrPartition, "the topic was deleted");
                    self.shared.registry.remove(id);
                    partition.stop_leading(&why);
                    self.close(id, partition);
                }
                Some(Slot::Standing | Slot::Closing) | None => {}
                Some(Slot::WaitsItsTurn { .. } | Slot::Paused { .. }) => {
                    self.shared.registry.remove(id);
                    self.slots.remove(&id);
                }
            }
            self.attempts.forget(id);
            self.disk_failures.forget(id);
        }
    }

    /// The program is about to stop: gives up what somebody else in sync can lead (design.md 6.11).
    fn resign_all(&mut self) {
        let leads = |(id, slot): (&TopicIdPartition, &Slot)| match slot {
            Slot::Leading(partition) => Some((*id, Arc::clone(partition))),
            Slot::WaitsItsTurn { .. } | Slot::Standing | Slot::Closing | Slot::Paused { .. } => None,
        };
        let led: Vec<_> = self.slots.iter().filter_map(leads).collect();
        for (id, partition) in led {
            self.resign(id, partition);
        }
    }

    /// Gives one leadership up, and closes its log; one that nobody else can take is led to the end.
    fn resign(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        let Some(until) = self.resigning.until else { return };
        let Some(successor) = self.shared.successor(&partition.record()) else { return };
        self.slots.insert(id, Slot::Closing);
        let (shared, turns) = (Arc::clone(&self.shared), Arc::clone(&self.resigning.turns));
        let counted = shared.resigning.token();
        self.tasks.spawn(async move {
            let turn = timeout_at(until, turns.acquire()).await;
            let why =
                ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node gives the leadership up");
            partition.stop_leading(&why);
            shared.registry.remove(id);
            if turn.is_ok() {
                hand_over(&partition, successor, until).await;
            }
            drop((turn, counted));
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// The program stops: every log is flushed, marked clean and closed.
    async fn close_all(mut self) {
        let why = ReplicationError::new(ErrorCode::ShuttingDown, "this program is stopping");
        let turns = Arc::new(Semaphore::new(CONCURRENT_CLOSES));
        for (id, slot) in std::mem::take(&mut self.slots) {
            let Slot::Leading(partition) = slot else { continue };
            partition.stop_leading(&why);
            self.shared.registry.remove(id);
            let turns = Arc::clone(&turns);
            self.tasks.spawn(async move {
                let _turn = turns.acquire_owned().await.ok();
                partition.close(CLOSE_PATIENCE).await;
                Done::Closed(id)
            });
        }
        while let Some(done) = self.tasks.join_next().await {
            // A leadership that was taken at the last moment.
            if let Ok(Done::Stood(_, _, Stood::Leads(partition))) = done {
                partition.stop_leading(&why);
                partition.close(CLOSE_PATIENCE).await;
            }
        }
    }
}

fn disk_failed() -> ReplicationError {
    ReplicationError::new(ErrorCode::StorageError, "the disk of this node failed")
}

/// Gives up the log of a leadership whose disk failed, so that it can be opened anew. The log is held until what it lost is
/// written down, because nobody may stand with it before (design.md 6.3).
async fn give_up(partition: Arc<LedPartition>, stop: CancellationToken) {
    let name = partition.id_name();
    let mut pause = RETRY_MIN;
    loop {
        let failed = Arc::clone(&partition);
        let Err(error) = on_disk(move || failed.replica().abandon()).await else { return };
        tracing::error!(
            partition = name,
            %error,
            "could not write down that acknowledged records are lost; trying on. Look after the disk of the data directory"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}
