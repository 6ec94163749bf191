//! Giving a leadership up in favour of an in-sync replica (design.md 2, 6.11).
//!
//! What must hold: nothing is appended after the resignation was proposed; a failure costs time only, because the successor
//! then takes over as from a dead leader.

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{CasOutcome, Coordination, resignation};
use highwater_serving::volume::on_disk;
use highwater_types::{ErrorCode, NodeId, PartitionRecord, ReplicationError, TopicIdPartition};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::close::CLOSE_PATIENCE;
use super::{Done, RETRY_MAX, RETRY_MIN, ReplicaManager, Shared, Slot};
use crate::partition::LedPartition;

/// How many leaderships are given up at the same time.
const RESIGNATIONS_MAX: usize = 64;

/// How long it may take in all: at a stop, for all leaderships together. What is left then is taken over.
pub(super) const RESIGNING_MAX: Duration = Duration::from_secs(1);

/// How often it is proposed: a change of the in-sync set may come first.
const ATTEMPTS: u32 = 3;

/// What was done about damage that readers met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damaged {
    /// Nothing yet: nobody else could lead.
    Met,
    /// The leadership was handed over.
    HandedOver,
}

/// What bounds the resignations of a program that stops.
#[derive(Debug)]
pub(super) struct Resigning {
    turns: Arc<Semaphore>,
    /// Set when it was told to stop.
    until: Option<Instant>,
}

impl Resigning {
    pub(super) fn new() -> Self {
        Self { turns: Arc::new(Semaphore::new(RESIGNATIONS_MAX)), until: None }
    }

    /// Whether the program was told to stop.
    pub(super) const fn has_begun(&self) -> bool {
        self.until.is_some()
    }
}

impl ReplicaManager {
    /// The program is about to stop: gives up what somebody else in sync can lead (design.md 6.11).
    pub(super) fn resign_all(&mut self) {
        self.resigning.until = Some(Instant::now() + RESIGNING_MAX);
        let leads = |(id, slot): (&TopicIdPartition, &Slot)| match slot {
            Slot::Leading(partition) => Some((*id, Arc::clone(partition))),
            Slot::WaitsItsTurn { .. } | Slot::Standing | Slot::Closing | Slot::Paused { .. } => None,
        };
        let led: Vec<_> = self.slots.iter().filter_map(leads).collect();
        for (id, partition) in led {
            self.resign(id, partition);
        }
        self.shared.resigning.close();
    }

    /// Gives one leadership up, and closes its log; one that nobody else can take is led to the end.
    pub(super) fn resign(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        let Some(until) = self.resigning.until else { return };
        let Some(successor) = self.shared.best_successor(&partition) else { return };
        self.slots.insert(id, Slot::Closing);
        let (shared, turns) = (Arc::clone(&self.shared), Arc::clone(&self.resigning.turns));
        let counted = shared.resigning.token();
        self.tasks.spawn(async move {
            let turn = timeout_at(until, turns.acquire()).await;
            end(&shared, id, &partition);
            if turn.is_ok() {
                hand_over(&partition, successor, until).await;
            }
            drop((turn, counted));
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// Hands one leadership over while the program goes on, and closes its log; `told` hears whether it was handed over.
    pub(super) fn leave(
        &mut self,
        id: TopicIdPartition,
        partition: Arc<LedPartition>,
        successor: NodeId,
        told: impl FnOnce(bool) + Send + 'static,
    ) {
        self.slots.insert(id, Slot::Closing);
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            end(&shared, id, &partition);
            let given_up = hand_over(&partition, successor, Instant::now() + RESIGNING_MAX).await;
            told(given_up);
            // Not while the record may still name this node: who leads alone keeps its incarnation (design.md 6.3).
            if given_up {
                partition.note_rot().await;
            }
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// Where readers met damage in a log that this node leads: who has the records in sync leads on, as soon as somebody can
    /// (design.md 2). Once for each partition: where the other one is damaged too, this node leads again and serves the rest.
    /// Who stays and is alone in sync puts the damage on record. Answers whether it leaves.
    pub(super) fn leave_if_damaged(&mut self, id: TopicIdPartition, partition: &Arc<LedPartition>) -> bool {
        let met = self.damaged.get(&id) == Some(&Damaged::Met);
        // Else two that are damaged in different places would hand over to one another until nobody may lead.
        let Some(successor) = self.shared.proven_successor(partition).filter(|_| met) else {
            let partition = Arc::clone(partition);
            self.tasks.spawn(async move {
                partition.note_rot_alone().await;
                Done::Noted
            });
            return false;
        };
        self.damaged.insert(id, Damaged::HandedOver);
        tracing::warn!(
            partition = %partition.id_name(),
            successor = successor.get(),
            "hands the leadership over: its own log is damaged"
        );
        self.leave(id, Arc::clone(partition), successor, |_| {});
        true
    }

    /// Gives a leadership up that its disk ended: to who can take it, then its log, so that it can be opened anew.
    pub(super) fn give_up(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        self.slots.insert(id, Slot::Closing);
        let (stop, successor) = (self.shared.stop.clone(), self.shared.best_successor(&partition));
        self.tasks.spawn(async move {
            let seen = partition.record().partition_epoch;
            if let Some(successor) = successor {
                hand_over(&partition, successor, Instant::now() + RESIGNING_MAX).await;
            }
            abandon(partition, stop).await;
            Done::GivenUp(id, seen)
        });
    }
}

/// Ends a leadership: requests learn from here on where to go.
pub(super) fn end(shared: &Shared, id: TopicIdPartition, partition: &LedPartition) {
    let why = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node gives the leadership up");
    partition.stop_leading(&why);
    shared.registry.remove(id);
}

/// Tells everybody by the record that `successor` is to lead, until `until` at most; answers whether it did. The leadership
/// is over.
pub(super) async fn hand_over(partition: &LedPartition, successor: NodeId, until: Instant) -> bool {
    debug_assert!(partition.replica().is_over(), "nothing is appended any more");
    let (record, store) = (partition.record(), &**partition.coordination());
    let given_up = resign(store, &record, partition.replica().node(), Some(successor), until).await;
    if given_up {
        tracing::info!(partition = %partition.id_name(), successor = successor.get(), "gave the leadership up");
    } else {
        tracing::warn!(partition = %partition.id_name(), "could not give the leadership up; it will be taken over");
    }
    given_up
}

/// Records that `leader` leads no more; without a `successor`, anybody in sync may. Answers whether that is known to be
/// recorded.
pub(super) async fn resign(
    store: &dyn Coordination,
    record: &PartitionRecord,
    leader: NodeId,
    successor: Option<NodeId>,
    until: Instant,
) -> bool {
    timeout_at(until, propose(store, record.clone(), leader, successor)).await.unwrap_or(false)
}

async fn propose(
    store: &dyn Coordination,
    mut known: PartitionRecord,
    leader: NodeId,
    successor: Option<NodeId>,
) -> bool {
    for _ in 0..ATTEMPTS {
        let Ok(proposal) = resignation(&known, leader, successor) else { return false };
        match store.swap_partition(proposal, known.partition_epoch).await {
            Ok(CasOutcome::Committed(_)) => return true,
            // Another leadership is not this one to give up.
            Ok(CasOutcome::Conflict(newer)) if newer.leader_epoch == known.leader_epoch => known = newer,
            Ok(CasOutcome::Conflict(_)) | Err(_) => return false,
        }
    }
    false
}

/// What requests get after it.
pub(super) fn disk_failed() -> ReplicationError {
    ReplicationError::new(ErrorCode::StorageError, "the disk of this node failed")
}

/// Gives up the log of a leadership whose disk failed, so that it can be opened anew. The log is held until what it lost is
/// written down, because nobody may stand with it before (design.md 6.3).
async fn abandon(partition: Arc<LedPartition>, stop: CancellationToken) {
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
