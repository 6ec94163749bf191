//! Elections that a person orders (design.md 6.6, 6.13): handing over to the preferred replica, and leading here although
//! acknowledged records may be missing.
//!
//! What must hold: an order is answered once; an unclean one takes no leadership from a leader-svc that lives, and none that
//! somebody in sync is there to take; a program that stops takes no order.

use std::sync::Arc;

use highwater_coordination::{ClusterView, UncleanOrder, preferred_leader};
use highwater_serving::registry::name_of;
use highwater_types::{ErrorCode, NodeId, PartitionRecord, ReplicationError, TopicIdPartition, TopicRecord};
use highwater_wire::elect::Election;
use tokio::sync::oneshot;

use super::stand::Stood;
use super::{Peers, ReplicaManager, Slot};
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
        if self.shared.leaving.is_cancelled() {
            let why = ReplicationError::new(ErrorCode::ShuttingDown, "this program is stopping");
            _ = answer.send(Err(why));
            return;
        }
        match election {
            Election::Preferred => self.prefer(id, answer),
            Election::Unclean => match self.may_stand_uncleanly(id, view) {
                Ok((topic, record)) => self.stand(&topic, &record, UncleanOrder::Person, Some(answer)),
                Err(why) => _ = answer.send(Err(why)),
            },
        }
    }

    fn prefer(&mut self, id: TopicIdPartition, answer: oneshot::Sender<Outcome>) {
        let led = match self.slots.get(&id) {
            Some(Slot::Leading(partition)) => Some(Arc::clone(partition)),
            Some(Slot::WaitsItsTurn { .. } | Slot::Standing | Slot::Closing | Slot::Paused { .. }) | None => {
                None
            }
        };
        let Some(partition) = led else {
            let why = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "this node does not lead");
            _ = answer.send(Err(why));
            return;
        };
        match self.preferred(&partition.record()) {
            Ok(preferred) if preferred != self.shared.node => {
                self.leave_to(preferred, id, partition, answer);
            }
            outcome => _ = answer.send(outcome),
        }
    }

    fn leave_to(
        &mut self,
        preferred: NodeId,
        id: TopicIdPartition,
        partition: Arc<LedPartition>,
        answer: oneshot::Sender<Outcome>,
    ) {
        self.leave(id, partition, preferred, move |given_up| {
            let why = "whether the leadership was given up is not known";
            let unknown = || ReplicationError::new(ErrorCode::CoordinationUnavailable, why);
            _ = answer.send(given_up.then_some(preferred).ok_or_else(unknown));
        });
    }

    /// Who is to lead a partition that this node leads; this node, where it is the preferred one itself.
    fn preferred(&self, record: &PartitionRecord) -> Outcome {
        let preferred = record.target_replicas().first().copied();
        if preferred == Some(self.shared.node) {
            return Ok(self.shared.node);
        }
        let peers = self.shared.peers.borrow();
        preferred_leader(record, |other| peers.is_up(other)).ok_or_else(|| {
            let name = preferred.map_or_else(|| "?".to_owned(), |node| node.to_string());
            let why =
                format!("node {name}, the preferred replica, is not in sync, or its leader-svc is not up");
            ReplicationError::new(ErrorCode::LeaderNotAvailable, why)
        })
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
        match objection(record, node, &self.shared.peers.borrow()) {
            Some(why) => refused(ErrorCode::InvalidRequest, why),
            None => Ok((Arc::clone(topic), Arc::clone(record))),
        }
    }
}

/// Why `node` may not lead although a person says so: somebody else does, or can without a loss.
fn objection(record: &PartitionRecord, node: NodeId, peers: &Peers) -> Option<String> {
    if let Some(leader) = record.leader.filter(|leader| *leader != node && !peers.is_down(*leader)) {
        return Some(format!("node {leader} leads, and its leader-svc lives"));
    }
    // That a replaced incarnation cannot lead is known only once its node has said so in the record.
    let may_lead = |other: &NodeId| *other != node && !record.has_withdrawn(*other) && peers.is_up(*other);
    let member = record.isr.iter().map(|member| member.node).find(may_lead)?;
    Some(format!(
        "node {member} is in sync, and its leader-svc is up: it leads without a loss, or says soon that it cannot. If neither \
         comes, stop its leader-svc first"
    ))
}

/// What a stand that was ordered came to.
pub(super) fn outcome(node: NodeId, stood: &Stood) -> Outcome {
    match stood {
        Stood::Leads(_) => Ok(node),
        Stood::Lost => Err(ReplicationError::new(
            ErrorCode::LeaderNotAvailable,
            "another record of the partition was written meanwhile",
        )),
        Stood::Failed(why) | Stood::Ineligible(why) | Stood::Withdrew(why) | Stood::Elected(_, why) => {
            Err(why.clone())
        }
    }
}

#[cfg(test)]
#[path = "order_test.rs"]
mod tests;
