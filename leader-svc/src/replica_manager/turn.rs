//! When this node stands for a leadership (design.md 6.2, 6.6, 6.9), and whether it may although it may lack records (6.13).

use std::time::Duration;

use highwater_coordination::{UncleanOrder, first_leadership_delay, take_over_delay, unclean_delay};
use highwater_types::{NodeId, PartitionRecord, Program, TopicRecord};

use super::{Peers, Shared};

/// When and how this node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// How long it waits for others first.
    pub(super) after: Duration,
    /// What its topic allows.
    pub(super) order: UncleanOrder,
}

impl Shared {
    /// This node's turn; `None`: it does not stand.
    pub(super) fn turn(&self, topic: &TopicRecord, record: &PartitionRecord) -> Option<Turn> {
        if self.leaving.is_cancelled() {
            return None;
        }
        // Borrowed once: a second guard could wait for a writer that waits for the first.
        let peers = self.peers.borrow();
        let unclean = self.unclean_delay(topic, record, &peers);
        let after = if record.leader == Some(self.node) {
            Duration::ZERO
        } else if record.is_new() {
            self.first_delay(record)?
        } else if record.leader.is_some_and(|leader| !peers.is_down(leader)) {
            return None;
        } else {
            take_over_delay(record, self.node, self.leadership_stagger, |other| peers.is_up(other))
                .or(unclean)?
        };
        let order = unclean.map_or(UncleanOrder::None, |_| UncleanOrder::Topic { member_lives: false });
        Some(Turn { after, order })
    }

    fn first_delay(&self, record: &PartitionRecord) -> Option<Duration> {
        let expired = |other| other != self.node && !self.may_stand(other);
        first_leadership_delay(record, self.node, self.leadership_stagger, expired)
    }

    /// Whether another node's leader-svc may be about to take a first leadership: one that has only just registered may.
    fn may_stand(&self, other: NodeId) -> bool {
        let view = self.context.coordination.view();
        let view = view.borrow();
        self.membership.may_live(&view, other, Program::LeaderSvc)
    }

    /// How long it waits before a leadership that may lack records, where the topic allows that now.
    fn unclean_delay(
        &self,
        topic: &TopicRecord,
        record: &PartitionRecord,
        peers: &Peers,
    ) -> Option<Duration> {
        if !topic.properties.unclean_leader_election {
            return None;
        }
        let (may_come, is_up) = (|other| !peers.is_down(other), |other| peers.is_up(other));
        unclean_delay(record, self.node, self.leadership_stagger, may_come, is_up)
    }
}

#[cfg(test)]
#[path = "turn_test.rs"]
mod tests;
