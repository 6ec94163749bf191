//! Which partitions this node leads: follows the cluster's records and brings the program in line with them.
//!
//! What must hold:
//! - One thing at a time per partition: standing, leading, or closing. What comes meanwhile is looked at afterwards.
//! - This node leads only by a record that it wrote itself since it started (design.md 6.2).
//! - It stands for a leadership of another node when that one's leader-svc is down, as far as this one can tell, or gave the
//!   leadership up; in an order, so that not all members of the in-sync set stand at once (design.md 6.6).
//! - It takes the steps of a move of replicas of what it leads (design.md 6.12).
//! - It gives a leadership up where somebody in sync can take it: before it stops, when its disk fails, and when it cannot
//!   lead although the record says so (design.md 2, 6.11).
//! - A leadership that is over is taken out of the table first, so that requests learn where to go, then closed.
//! - A directory is deleted for a tombstone of its topic id, or for a newer record without this node; one that no record knows
//!   is reported and kept.
//!
//! Every failure is retried with a growing pause; a newer record ends the pause.

mod close;
mod disk_failures;
mod leaderships;
mod moves;
mod order;
mod peers;
mod resign;
mod shared;
mod stand;
#[cfg(test)]
mod stand_test_support;
mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, UncleanOrder};
use highwater_serving::Attempts;
use highwater_serving::registry::{Hosting, name_of};
use highwater_serving::strays::Strays;
use highwater_types::{
    ErrorCode, NodeId, PartitionEpoch, PartitionRecord, ReplicationError, TopicIdPartition, TopicRecord,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use self::disk_failures::DiskFailures;
use self::leaderships::Leaderships;
use self::moves::Moves;
pub(crate) use self::order::{ORDERS_MAX, Order};
pub(crate) use self::peers::{Agents, PeerWatch, Peers};
use self::resign::{Damaged, Resigning, disk_failed};
pub(crate) use self::shared::{BORROWED_LOGS_MAX, Shared};
use self::stand::{Stood, stand};
use self::turn::Turn;
use crate::partition::{LedPartition, PartitionEvent};

/// Pauses after a failed attempt.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The least time between two looks at all records: while thousands of partitions change, each look serves many changes.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How often followers whose agents refuse connections are looked at again: one may have been back for a moment, unseen.
const GONE_AGAIN_EVERY: Duration = Duration::from_secs(1);

/// How often a leader whose log is damaged looks whether somebody can take over.
const DAMAGED_AGAIN: Duration = Duration::from_secs(1);

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
    /// A move's end was to be written; after which time that is to be tried again, if no record of it is known.
    Finished(TopicIdPartition, Option<Duration>),
    /// Damage went on record, or not: nothing follows.
    Noted,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReplicaManager {
    shared: Arc<Shared>,
    slots: HashMap<TopicIdPartition, Slot>,
    attempts: Attempts,
    disk_failures: DiskFailures,
    leaderships: Leaderships,
    tasks: JoinSet<Done>,
    strays: Strays,
    /// Nodes whose agent is dead, as the leaderships were told.
    agents_gone: BTreeSet<NodeId>,
    resigning: Resigning,
    moves: Moves,
    /// Logs in which readers met damage.
    damaged: BTreeMap<TopicIdPartition, Damaged>,
    orders: mpsc::Receiver<Order>,
}

impl ReplicaManager {
    pub(crate) fn new(shared: Arc<Shared>, orders: mpsc::Receiver<Order>) -> Self {
        Self {
            shared,
            slots: HashMap::new(),
            attempts: Attempts::new(RETRY_MIN, RETRY_MAX),
            disk_failures: DiskFailures::new(),
            leaderships: Leaderships::default(),
            tasks: JoinSet::new(),
            strays: Strays::default(),
            agents_gone: BTreeSet::new(),
            resigning: Resigning::new(),
            moves: Moves::default(),
            damaged: BTreeMap::new(),
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
        let mut gone_again = tokio::time::interval(GONE_AGAIN_EVERY);
        gone_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let look = tokio::select! {
                () = stop.cancelled() => break,
                () = leaving.cancelled(), if !self.resigning.has_begun() => {
                    self.resign_all();
                    false
                }
                // Its sender goes when the program stops.
                Ok(()) = peers.changed() => {
                    let gone = peers.borrow_and_update().agents_gone().clone();
                    self.on_agents_gone(gone);
                    true
                }
                _ = gone_again.tick(), if !self.agents_gone.is_empty() => {
                    self.each_led(&self.agents_gone, LedPartition::on_follower_still_gone);
                    false
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
        let store = &self.shared.context.coordination;
        self.strays.look(&self.shared.volume, store, view, self.shared.node, self.slots.keys().copied());
        next
    }

    fn reconcile_one(&mut self, topic: &Arc<TopicRecord>, record: &Arc<PartitionRecord>) -> Option<Instant> {
        let id = record.id();
        match self.slots.get(&id) {
            Some(Slot::Leading(partition)) => {
                if partition.record().partition_epoch < record.partition_epoch {
                    partition.on_record(record);
                }
                let partition = Arc::clone(partition);
                if self.damaged.contains_key(&id) && self.leave_if_damaged(id, &partition) {
                    return None;
                }
                let again =
                    (self.damaged.get(&id) == Some(&Damaged::Met)).then(|| Instant::now() + DAMAGED_AGAIN);
                return [self.move_on(id, &partition), again].into_iter().flatten().min();
            }
            Some(Slot::Standing | Slot::Closing) => return None,
            Some(Slot::Paused { .. } | Slot::WaitsItsTurn { .. }) | None => {}
        }
        let left_alone = self.leaderships.look(record, Instant::now());
        let Some(Turn { after, order }) = self.shared.turn(topic, record) else {
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
        let turn = if record.leader == Some(self.shared.node) { since } else { Instant::now() + left_alone };
        let turn = turn.max(since + after);
        let turn = self.disk_failures.stands_from(id).map_or(turn, |from| from.max(turn));
        if turn <= Instant::now() {
            self.stand(topic, record, order, None);
            return None;
        }
        self.slots.insert(id, Slot::WaitsItsTurn { since });
        Some(turn)
    }

    /// Agents that died fetch no more: they are taken out of in-sync sets at once (design.md 6.6).
    fn on_agents_gone(&mut self, gone: BTreeSet<NodeId>) {
        self.each_led(gone.difference(&self.agents_gone), LedPartition::on_follower_gone);
        self.agents_gone = gone;
    }

    /// Tells every partition that is led of these followers.
    fn each_led<'a>(
        &self,
        followers: impl IntoIterator<Item = &'a NodeId>,
        tell: impl Fn(&LedPartition, NodeId),
    ) {
        for follower in followers {
            for slot in self.slots.values() {
                let Slot::Leading(partition) = slot else { continue };
                tell(partition, *follower);
            }
        }
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
            Ok(Done::Noted) => false,
            Ok(Done::GivenUp(id, seen)) => {
                self.pause_for_disk(id, seen, disk_failed(), view);
                true
            }
            Ok(Done::Finished(id, again)) => {
                self.on_finished(id, again);
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
                if self.resigning.has_begun() {
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
                // A move that another leader began goes on.
                newest.is_none_or(|record| record.is_being_moved())
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
            Stood::Withdrew(why) => {
                // The record that says so may be on its way here still.
                self.pause(id, seen, Some(RETRY_MIN), why);
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
        let (PartitionEvent::Superseded(partition)
        | PartitionEvent::Failed(partition)
        | PartitionEvent::Damaged(partition)) = &event;
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
                self.give_up(id, partition);
            }
            PartitionEvent::Damaged(partition) => {
                self.damaged.entry(id).or_insert(Damaged::Met);
                self.leave_if_damaged(id, &partition);
            }
        }
        true
    }
}
