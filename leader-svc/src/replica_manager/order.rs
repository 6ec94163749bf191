//! Elections that a person orders (design.md 6.6, 6.13): handing over to the preferred replica, and leading here although
//! acknowledged records may be missing.
//!
//! What must hold: an order is answered once; an unclean one takes no leadership from a leader-svc that lives.

use std::sync::Arc;

use highwater_coordination::{ClusterView, UncleanOrder, preferred_leader};
use highwater_serving::registry::name_of;
use highwater_types::{ErrorCode, NodeId, PartitionRecord, ReplicationError, TopicIdPartition, TopicRecord};
use highwater_wire::elect::Election;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::resign::{RESIGNING_MAX, hand_over};
use super::stand::Stood;
use super::{CLOSE_PATIENCE, Done, ReplicaManager, Slot};
use crate::partition::LedPartition;

/// Orders that wait for the manager; more wait in their calls.
pub(crate) const ORDERS_MAX: usize = 16;

/// Who leads, or is to lead next.
type Outcome = Result<NodeId, ReplicationError>;

/// An order.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) partition: TopicIdPartition,
    pub(crate) election: Election,
    /// Who asked may be gone.
    pub(crate) answer: oneshot::Sender<Outcome>,
}

impl ReplicaManager {
    /// Carries an order out, or says why not.
    pub(super) fn on_order(&mut self, order: Order, view: &ClusterView) {
        let Order { partition: id, election, answer } = order;
        let refused = match election {
            Election::Preferred => {
                if let Some(Slot::Leading(partition)) = self.slots.get(&id) {
                    let partition = Arc::clone(partition);
                    self.prefer(id, partition, answer);
                    return;
                }
                ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node does not lead")
            }
            Election::Unclean => match self.may_stand_uncleanly(id, view) {
                Ok((topic, record)) => {
                    self.stand(&topic, &record, UncleanOrder::Person, Some(answer));
                    return;
                }
                Err(why) => why,
            },
        };
        _ = answer.send(Err(refused));
    }

    fn prefer(
        &mut self,
        id: TopicIdPartition,
        partition: Arc<LedPartition>,
        answer: oneshot::Sender<Outcome>,
    ) {
        let record = partition.record();
        let target = record.target_replicas().first().copied();
        if target == Some(self.shared.node) {
            _ = answer.send(Ok(self.shared.node));
            return;
        }
        let peers = self.shared.peers.borrow().clone();
        let Some(preferred) = preferred_leader(&record, |other| peers.is_up(other)) else {
            let name = target.map_or_else(|| "?".to_owned(), |node| node.to_string());
            let why =
                format!("node {name}, the preferred replica, is not in sync, or its leader-svc is not up");
            _ = answer.send(Err(ReplicationError::new(ErrorCode::LeaderNotAvailable, why)));
            return;
        };
        self.slots.insert(id, Slot::Closing);
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let why =
                ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node gives the leadership up");
            partition.stop_leading(&why);
            shared.registry.remove(id);
            let outcome = if hand_over(&partition, preferred, Instant::now() + RESIGNING_MAX).await {
                Ok(preferred)
            } else {
                let why = "whether the leadership was given up is not known";
                Err(ReplicationError::new(ErrorCode::CoordinationUnavailable, why))
            };
            _ = answer.send(outcome);
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// The record with which this node may stand, although it may lack records.
    fn may_stand_uncleanly(
        &self,
        id: TopicIdPartition,
        view: &ClusterView,
    ) -> Result<(Arc<TopicRecord>, Arc<PartitionRecord>), ReplicationError> {
        let refused = |code, why: String| Err(ReplicationError::new(code, why));
        let node = self.shared.node;
        let record = view.partition(id).filter(|record| record.has_replica(node));
        let Some((topic, record)) = view.topic(id.topic_id).zip(record) else {
            return refused(ErrorCode::InvalidRequest, format!("node {node} is no replica of the partition"));
        };
        match self.slots.get(&id) {
            Some(Slot::Leading(_)) => {
                return refused(ErrorCode::InvalidRequest, format!("node {node} leads already"));
            }
            Some(Slot::Standing | Slot::Closing) => {
                let why = format!("node {node} is about to stand for {}, or closes it", name_of(view, id));
                return refused(ErrorCode::ReplicaNotAvailable, why);
            }
            Some(Slot::WaitsItsTurn { .. } | Slot::Paused { .. }) | None => {}
        }
        if self.shared.leaving.is_cancelled() {
            return refused(ErrorCode::ShuttingDown, "this program is stopping".to_owned());
        }
        let peers = self.shared.peers.borrow();
        match record.leader.filter(|leader| *leader != node && !peers.is_down(*leader)) {
            Some(leader) => {
                let why = format!("node {leader} leads, and its leader-svc lives");
                refused(ErrorCode::InvalidRequest, why)
            }
            None => Ok((Arc::clone(topic), Arc::clone(record))),
        }
    }
}

/// What a stand that was ordered came to.
pub(super) fn outcome(node: NodeId, stood: &Stood) -> Outcome {
    match stood {
        Stood::Leads(_) => Ok(node),
        Stood::Lost => Err(ReplicationError::new(
            ErrorCode::LeaderNotAvailable,
            "another record of the partition was written meanwhile",
        )),
        Stood::Failed(why) | Stood::Ineligible(why) | Stood::Elected(_, why) => Err(why.clone()),
    }
}
