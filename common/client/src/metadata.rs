//! What the client knows of topics and their leaders.
//!
//! What holds: of a partition's leaders the one of the highest epoch is kept, wherever news come from: a node that lags
//! behind must not send a client back (design.md 3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_types::{Endpoint, LeaderEpoch, LeaderHint, PartitionIndex, TopicName, TopicPartition};
use highwater_wire::cluster::{DescribedPartition, DescribedTopic};
use tokio::time::Instant;

/// Where a partition's leader is, as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Where it is reached.
    pub(crate) endpoint: Endpoint,
    /// Its leadership.
    pub(crate) epoch: LeaderEpoch,
}

/// Topics that were asked about; their number is that of the topics that the program uses.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    topics: Mutex<BTreeMap<TopicName, Arc<DescribedTopic>>>,
    /// When the newest look at a topic began, of those made while its leader was silent.
    looks: Mutex<BTreeMap<TopicName, Instant>>,
}

impl Metadata {
    pub(crate) fn topic(&self, name: &TopicName) -> Option<Arc<DescribedTopic>> {
        self.lock().get(name).map(Arc::clone)
    }

    /// Takes over a description, except leaders of a lower epoch than known ones.
    pub(crate) fn learn(&self, mut described: DescribedTopic) -> Arc<DescribedTopic> {
        let mut topics = self.lock();
        if let Some(known) = topics.get(&described.record.name).filter(|k| k.record.id == described.record.id)
        {
            for partition in &mut described.partitions {
                let old = find(known, partition.record.partition);
                if let Some(old) = old.filter(|old| old.record.leader_epoch > partition.record.leader_epoch) {
                    *partition = old.clone();
                }
            }
        }
        let described = Arc::new(described);
        topics.insert(described.record.name.clone(), Arc::clone(&described));
        described
    }

    /// Takes over a hint, unless its epoch is lower than the known one. Returns whether it said anything new.
    pub(crate) fn learn_hint(&self, partition: &TopicPartition, hint: &LeaderHint) -> bool {
        let mut topics = self.lock();
        let Some(topic) = topics.get_mut(&partition.topic) else { return false };
        let Some(known) = find(topic, partition.partition) else { return false };
        let newer = known.record.leader_epoch.is_none_or(|epoch| hint.epoch > epoch);
        let completes = known.record.leader_epoch == Some(hint.epoch)
            && known.leader_endpoint.is_none()
            && hint.endpoint.is_some();
        if !(newer || completes) {
            return false;
        }
        let mut changed = DescribedTopic::clone(topic);
        for entry in changed.partitions.iter_mut().filter(|p| p.record.partition == partition.partition) {
            entry.record.leader = hint.leader;
            entry.record.leader_epoch = Some(hint.epoch);
            entry.leader_endpoint = hint.endpoint.clone();
        }
        *topic = Arc::new(changed);
        true
    }

    pub(crate) fn leader(&self, partition: &TopicPartition) -> Option<Leader> {
        let topic = self.topic(&partition.topic)?;
        let described = find(&topic, partition.partition)?;
        Some(Leader { endpoint: described.leader_endpoint.clone()?, epoch: described.record.leader_epoch? })
    }

    /// Whether a leader of a later leadership is known, and where it is.
    pub(crate) fn is_led_after(&self, partition: &TopicPartition, epoch: LeaderEpoch) -> bool {
        self.leader(partition).is_some_and(|leader| leader.epoch > epoch)
    }

    /// Whether nobody has begun a look at the topic for so long; then the caller begins one.
    pub(crate) fn is_look_due(&self, name: &TopicName, every: Duration) -> bool {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = looks.get(name).is_none_or(|last| now.duration_since(*last) >= every);
        if is_due {
            looks.insert(name.clone(), now);
        }
        is_due
    }

    pub(crate) fn forget(&self, name: &TopicName) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TopicName, Arc<DescribedTopic>>> {
        // A map of whole descriptions is whole after any panic.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn find(topic: &DescribedTopic, index: PartitionIndex) -> Option<&DescribedPartition> {
    topic.partitions.iter().find(|p| p.record.partition == index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_types::{NodeId, PartitionRecord, TopicId, TopicIdPartition, TopicProperties, TopicRecord};

    fn described(id: TopicId, epoch: i32, endpoint: Option<&str>) -> DescribedTopic {
        let index = PartitionIndex::new(0).unwrap();
        let mut record =
            PartitionRecord::new(TopicIdPartition::new(id, index), vec![NodeId::new(1).unwrap()]);
        record.leader = NodeId::new(1);
        record.leader_epoch = LeaderEpoch::new(epoch);
        let topic = TopicRecord {
            id,
            name: "orders".parse().unwrap(),
            partitions: 1,
            properties: TopicProperties::default(),
            deleted: false,
        };
        let leader_endpoint = endpoint.map(|text| text.parse().unwrap());
        DescribedTopic { record: topic, partitions: vec![DescribedPartition { record, leader_endpoint }] }
    }

    fn p0() -> TopicPartition {
        TopicPartition::new("orders".parse().unwrap(), PartitionIndex::new(0).unwrap())
    }

    fn hint(epoch: i32, endpoint: Option<&str>) -> LeaderHint {
        LeaderHint {
            leader: NodeId::new(2),
            epoch: LeaderEpoch::new(epoch).unwrap(),
            endpoint: endpoint.map(|text| text.parse().unwrap()),
        }
    }

    fn leader_at(metadata: &Metadata) -> Option<String> {
        metadata.leader(&p0()).map(|leader| leader.endpoint.to_string())
    }

    #[test]
    fn a_description_of_a_lower_epoch_does_not_replace_a_known_leader() {
        let (metadata, id) = (Metadata::default(), TopicId::random());
        metadata.learn(described(id, 7, Some("new:1")));
        metadata.learn(described(id, 6, Some("old:1")));
        assert_eq!(leader_at(&metadata).as_deref(), Some("new:1"));
        metadata.learn(described(TopicId::random(), 0, Some("recreated:1")));
        assert_eq!(leader_at(&metadata).as_deref(), Some("recreated:1"), "another topic id is another topic");
    }

    #[test]
    fn a_hint_of_a_lower_epoch_is_ignored() {
        let metadata = Metadata::default();
        metadata.learn(described(TopicId::random(), 7, Some("known:1")));
        assert!(!metadata.learn_hint(&p0(), &hint(6, Some("old:1"))));
        assert!(!metadata.learn_hint(&p0(), &hint(7, Some("same:1"))));
        assert_eq!(leader_at(&metadata).as_deref(), Some("known:1"));
        assert!(metadata.learn_hint(&p0(), &hint(8, Some("new:1"))));
        assert_eq!(leader_at(&metadata).as_deref(), Some("new:1"));
        assert!(metadata.learn_hint(&p0(), &hint(9, None)), "a resignation is news");
        assert_eq!(leader_at(&metadata), None);
        assert!(metadata.learn_hint(&p0(), &hint(9, Some("late:1"))), "an address completes what is known");
        assert_eq!(leader_at(&metadata).as_deref(), Some("late:1"));
    }
}
