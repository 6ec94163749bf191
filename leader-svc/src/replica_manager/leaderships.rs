//! Since when this node knows of each leadership of another node.
//!
//! What must hold: who has only just begun to lead is alive, whatever its port did a moment ago. So a leadership is not taken
//! over before the refusals that are known could have come after its beginning; else a node that returns and leads again
//! loses its leadership to one that has not seen it return.

use std::collections::HashMap;
use std::time::Duration;

use highwater_types::{LeaderEpoch, PartitionRecord, TopicIdPartition};
use tokio::time::Instant;

use super::peers::KNOWN_AGAIN_WITHIN;

/// The leaderships of others.
#[derive(Debug, Default)]
pub(super) struct Leaderships(HashMap<TopicIdPartition, (Option<LeaderEpoch>, Instant)>);

impl Leaderships {
    /// Notes who leads, and answers how long its leadership is left alone yet.
    pub(super) fn look(&mut self, record: &PartitionRecord, now: Instant) -> Duration {
        let known = self.0.entry(record.id()).or_insert((record.leader_epoch, now));
        if known.0 != record.leader_epoch {
            *known = (record.leader_epoch, now);
        }
        if record.leader.is_none() {
            return Duration::ZERO;
        }
        KNOWN_AGAIN_WITHIN.saturating_sub(now.duration_since(known.1))
    }

    /// Forgets the partitions that are not among `known`.
    pub(super) fn retain(&mut self, known: impl Fn(TopicIdPartition) -> bool) {
        self.0.retain(|id, _| known(*id));
    }
}

#[cfg(test)]
mod tests {
    use highwater_types::{NodeId, PartitionIndex, TopicId};

    use super::*;

    fn record(topic: TopicId, epoch: i32, leader: Option<i32>) -> PartitionRecord {
        let node = |id| NodeId::new(id).unwrap();
        let id = TopicIdPartition::new(topic, PartitionIndex::new(0).unwrap());
        let mut record = PartitionRecord::new(id, [1, 2, 3].map(node).to_vec());
        record.leader_epoch = LeaderEpoch::new(epoch);
        record.leader = leader.map(node);
        record
    }

    #[tokio::test(start_paused = true)]
    async fn who_begins_to_lead_is_left_alone_until_its_port_would_be_known_to_accept() {
        let (mut known, topic, began) = (Leaderships::default(), TopicId::random(), Instant::now());
        assert_eq!(known.look(&record(topic, 0, Some(2)), began), KNOWN_AGAIN_WITHIN);
        let later = began + Duration::from_millis(150);
        assert_eq!(known.look(&record(topic, 0, Some(2)), later), Duration::from_millis(50));
        assert_eq!(known.look(&record(topic, 1, Some(3)), later), KNOWN_AGAIN_WITHIN, "another one leads");
        assert_eq!(
            known.look(&record(topic, 1, None), later),
            Duration::ZERO,
            "who gave it up is not waited for"
        );
        assert_eq!(known.look(&record(topic, 1, Some(3)), began + Duration::from_secs(1)), Duration::ZERO);
        known.retain(|_| false);
        assert!(known.0.is_empty());
    }
}
