//! Which partitions this node follows: keeps the program in line with the cluster's records.
//!
//! What must hold:
//! - One thing at a time per partition: opening, following, or closing. What comes meanwhile is looked at afterwards.
//! - A partition that this node leads, or that nobody ever led, is leader-svc's: its lock is not held here.
//! - A log that leader-svc asked for is let go, and left alone until the loan is over (design.md 6.6: lock first).
//! - A partition that ends is taken out of the table and out of its loop first, then closed.
//! - A directory is deleted for a tombstone of its topic id, or for a newer record without this node; one that no record knows
//!   is reported and kept.
//!
//! Every failure is retried with a growing pause; a newer record ends the pause.

mod lend;
mod open;
mod unopened;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, Coordination};
use highwater_protocol::follower::BackoffConfig;
use highwater_serving::handover::Wanted;
use highwater_serving::registry::{Hosting, Registry, name_of};
use highwater_serving::strays::Strays;
use highwater_serving::{Attempts, PartitionHost as _, Volume};
use highwater_types::{
    ErrorCode, NodeId, PartitionEpoch, PartitionRecord, Program, ReplicationError, TopicIdPartition,
    TopicRecord,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lend::{LEND_PATIENCE, Loan};
use self::open::{Opened, open, other_leader};
pub(crate) use self::unopened::CONCURRENT_TELLS;
use self::unopened::tell_leader;
use crate::Fetchers;
use crate::leader_endpoint::CallOptions;
use crate::partition::{FollowedPartition, PartitionContext};

/// Pauses after a failed attempt.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Pauses while leader-svc holds a log: it closes it as soon as its last answer is sent, and `acks=all` waits for this replica.
const HELD_MIN: Duration = Duration::from_millis(5);
const HELD_MAX: Duration = Duration::from_secs(1);

/// The least time between two looks at all records: while thousands of partitions change, each look serves many changes.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How often partitions whose disk work panicked are looked for.
const HEALTH_CHECK: Duration = Duration::from_secs(1);

/// How long a partition that ends waits for answers that still read its log.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How many logs are flushed and closed at the same time when the program stops.
const CONCURRENT_CLOSES: usize = 16;

/// What the manager's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) volume: Volume,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) registry: Arc<Registry<FollowedPartition>>,
    pub(crate) fetchers: Arc<Fetchers>,
    pub(crate) context: Arc<PartitionContext>,
    /// `replica.fetch.max.bytes`.
    pub(crate) fetch_max_bytes: u32,
    /// `replica.fetch.read.ahead.bytes`.
    pub(crate) read_ahead_bytes: u64,
    /// `replica.fetch.backoff.ms` and its limits.
    pub(crate) backoff: BackoffConfig,
    /// Bounds how many logs are opened at the same time.
    pub(crate) opening: Semaphore,
    /// How leaders are called.
    pub(crate) calls: CallOptions,
    /// Bounds how many leaders are told at the same time of replicas that cannot be opened.
    pub(crate) telling: Semaphore,
    pub(crate) stop: CancellationToken,
}

/// What the manager does about a partition just now.
#[derive(Debug)]
enum Slot {
    /// A task opens the log.
    Opening,
    /// It is open.
    Following(Arc<FollowedPartition>),
    /// A task closes the log.
    Closing,
    /// An attempt failed; the next one is at this time, or with a newer record.
    Paused { until: Instant, seen: PartitionEpoch },
}

#[derive(Debug)]
enum Done {
    Opened(TopicIdPartition, PartitionEpoch, Opened),
    Closed(TopicIdPartition),
    LoanOver(TopicIdPartition),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReplicaManager {
    shared: Arc<Shared>,
    slots: HashMap<TopicIdPartition, Slot>,
    lent: HashMap<TopicIdPartition, Loan>,
    attempts: Attempts,
    /// Attempts at logs that leader-svc held.
    held: Attempts,
    tasks: JoinSet<Done>,
    strays: Strays,
}

impl ReplicaManager {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            slots: HashMap::new(),
            lent: HashMap::new(),
            attempts: Attempts::new(RETRY_MIN, RETRY_MAX),
            held: Attempts::new(HELD_MIN, HELD_MAX),
            tasks: JoinSet::new(),
            strays: Strays::default(),
        }
    }

    /// Runs until the program stops; then closes every log.
    pub(crate) async fn run(
        mut self,
        mut view: watch::Receiver<Arc<ClusterView>>,
        mut wanted: mpsc::Receiver<Wanted>,
    ) {
        let stop = self.shared.stop.clone();
        let mut health = tokio::time::interval(HEALTH_CHECK);
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
                () = due => {
                    let now = Arc::clone(&view.borrow_and_update());
                    next = self.reconcile(&now);
                    last = Some(Instant::now());
                    false
                }
                // The store's handle lives as long as the program.
                changed = view.changed() => if changed.is_err() { break } else { true },
                Some(done) = self.tasks.join_next() => {
                    self.on_done(done);
                    self.answer_loans();
                    true
                }
                Some(wanted) = wanted.recv() => {
                    let now = Arc::clone(&view.borrow());
                    self.lend(&now, wanted);
                    self.answer_loans();
                    true
                }
                _ = health.tick() => self.leave_panicked(),
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
        self.leave_what_is_not_ours(view);
        let node = self.shared.node;
        self.shared.context.paused.keep_replicas_of(node, view);
        let mut next: Option<Instant> = None;
        for (topic, record) in view.partitions().filter(|(_, record)| record.has_replica(node)) {
            let due = self.reconcile_one(view, topic, record);
            next = [next, due].into_iter().flatten().min();
        }
        let store = &self.shared.coordination;
        self.strays.look(&self.shared.volume, store, view, node, self.slots.keys().copied());
        self.answer_loans();
        next
    }

    /// Partitions whose topic is gone, of which this node is no replica any more, that it leads now, or that are lent.
    fn leave_what_is_not_ours(&mut self, view: &ClusterView) {
        let node = self.shared.node;
        let is_ours = |id: &TopicIdPartition| {
            view.partition(*id).is_some_and(|record| record.has_replica(node) && record.leader != Some(node))
        };
        let ends = |id: &TopicIdPartition| {
            let lent = self.lent.contains_key(id).then_some((*id, LEND_PATIENCE));
            lent.or_else(|| (!is_ours(id)).then_some((*id, CLOSE_PATIENCE)))
        };
        let ending: Vec<_> = self.slots.keys().filter_map(ends).collect();
        for (id, patience) in ending {
            self.leave(id, patience);
        }
    }

    fn reconcile_one(
        &mut self,
        view: &ClusterView,
        topic: &Arc<TopicRecord>,
        record: &Arc<PartitionRecord>,
    ) -> Option<Instant> {
        let id = record.id();
        if self.lent.contains_key(&id) {
            return None;
        }
        match self.slots.get(&id) {
            Some(Slot::Following(partition)) => {
                self.follow(view, partition, record);
                return None;
            }
            Some(Slot::Opening | Slot::Closing) => return None,
            Some(Slot::Paused { until, seen })
                if *until > Instant::now() && *seen >= record.partition_epoch =>
            {
                return Some(*until);
            }
            Some(Slot::Paused { .. }) | None => {}
        }
        if other_leader(record, self.shared.node).is_some() {
            self.open(topic, record);
        } else if self.slots.remove(&id).is_some() {
            // It was to be opened, and has no leader now.
            self.shared.registry.remove(id);
        }
        None
    }

    /// Keeps an open partition with the leader that its record names.
    fn follow(&self, view: &ClusterView, partition: &Arc<FollowedPartition>, record: &Arc<PartitionRecord>) {
        partition.on_record(record);
        let leader = other_leader(record, self.shared.node).map(|(leader, _)| leader);
        let endpoint = leader.and_then(|leader| view.node(leader)?.endpoint(Program::LeaderSvc));
        match leader.zip(endpoint) {
            Some((leader, endpoint)) => self.shared.fetchers.place(partition, leader, endpoint),
            None => self.shared.fetchers.take_out(record.id()),
        }
    }

    fn open(&mut self, topic: &Arc<TopicRecord>, record: &Arc<PartitionRecord>) {
        let (id, seen) = (record.id(), record.partition_epoch);
        let why = ReplicationError::new(ErrorCode::ReplicaNotAvailable, "the replica is being opened");
        self.slots.insert(id, Slot::Opening);
        self.shared.registry.set(id, Hosting::Opening(why));
        let (shared, topic, record) = (Arc::clone(&self.shared), Arc::clone(topic), Arc::clone(record));
        self.tasks.spawn(async move {
            let opened = open(Arc::clone(&shared), topic, Arc::clone(&record)).await;
            if matches!(opened, Opened::Failed(_)) {
                tell_leader(&shared, &record).await;
            }
            Done::Opened(id, seen, opened)
        });
    }

    fn on_done(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(Done::Opened(id, _, Opened::Follows(partition))) => {
                self.forget_attempts(id);
                self.shared.registry.set(id, Hosting::Online(Arc::clone(&partition)));
                self.slots.insert(id, Slot::Following(partition));
            }
            // While the leadership moves away from this node's leader-svc.
            Ok(Done::Opened(id, seen, Opened::Held)) => {
                let why = "the node's other program holds the log";
                let (pause, _) = self.held.failed(id, why);
                self.pause(id, seen, pause, why.to_owned());
            }
            Ok(Done::Opened(id, seen, Opened::Failed(why))) => {
                let (pause, is_news) = self.attempts.failed(id, &why);
                self.pause(id, seen, pause, why.clone());
                if is_news {
                    let partition = name_of(&self.shared.registry.view(), id);
                    tracing::error!(partition, topic_id = %id.topic_id, error = why, "could not open a replica; trying on");
                }
            }
            Ok(Done::Closed(id)) => drop(self.slots.remove(&id)),
            // Unless it is lent anew.
            Ok(Done::LoanOver(id)) => {
                if self.lent.get(&id).is_some_and(|loan| loan.over.is_cancelled()) {
                    self.lent.remove(&id);
                }
            }
            // Its slot stays as it was: whatever broke would break again.
            Err(failed) => {
                tracing::error!(error = %failed, "opening or closing a replica failed unexpectedly")
            }
        }
    }

    fn pause(&mut self, id: TopicIdPartition, seen: PartitionEpoch, pause: Duration, why: String) {
        self.slots.insert(id, Slot::Paused { until: Instant::now() + pause, seen });
        let why = ReplicationError::new(ErrorCode::ReplicaNotAvailable, why);
        self.shared.registry.set(id, Hosting::Failed(why));
    }

    fn forget_attempts(&mut self, id: TopicIdPartition) {
        self.attempts.forget(id);
        self.held.forget(id);
    }

    /// Stops to follow a partition; answers that still read its log get `patience`.
    fn leave(&mut self, id: TopicIdPartition, patience: Duration) {
        self.forget_attempts(id);
        match self.slots.get(&id) {
            Some(Slot::Following(partition)) => {
                let partition = Arc::clone(partition);
                self.shared.registry.remove(id);
                self.shared.fetchers.take_out(id);
                partition.let_go();
                self.slots.insert(id, Slot::Closing);
                self.tasks.spawn(async move {
                    partition.close(patience).await;
                    Done::Closed(id)
                });
            }
            Some(Slot::Paused { .. }) => {
                self.shared.registry.remove(id);
                self.slots.remove(&id);
            }
            // Looked at again when it is done.
            Some(Slot::Opening | Slot::Closing) | None => {}
        }
    }

    /// Partitions whose disk work panicked are closed, and opened anew.
    fn leave_panicked(&mut self) -> bool {
        let panicked = |(id, slot): (&TopicIdPartition, &Slot)| match slot {
            Slot::Following(partition) if partition.has_panicked() => Some(*id),
            Slot::Following(_) | Slot::Opening | Slot::Closing | Slot::Paused { .. } => None,
        };
        let panicked: Vec<_> = self.slots.iter().filter_map(panicked).collect();
        for id in &panicked {
            self.leave(*id, CLOSE_PATIENCE);
        }
        !panicked.is_empty()
    }

    /// The program stops: every log is flushed, marked clean and closed.
    async fn close_all(mut self) {
        let turns = Arc::new(Semaphore::new(CONCURRENT_CLOSES));
        for (id, slot) in std::mem::take(&mut self.slots) {
            let Slot::Following(partition) = slot else { continue };
            self.shared.registry.remove(id);
            partition.let_go();
            let turns = Arc::clone(&turns);
            self.tasks.spawn(async move {
                let _turn = turns.acquire_owned().await.ok();
                partition.close(CLOSE_PATIENCE).await;
                Done::Closed(id)
            });
        }
        while let Some(done) = self.tasks.join_next().await {
            // A replica that was opened at the last moment.
            if let Ok(Done::Opened(_, _, Opened::Follows(partition))) = done {
                tracing::debug!(partition = partition.name(), "closing what was just opened");
                partition.close(CLOSE_PATIENCE).await;
            }
        }
    }
}
