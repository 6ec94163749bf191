//! What a program knows of the cluster: a snapshot that is shared, compared and never goes back.
//!
//! What must hold: of each record the highest version ever seen is kept (partition epoch, node version, tombstone over
//! topic); nothing is published when nothing changed; records are replaced whole, so versions of one cannot mix.
//! Deliberately absent: how changes are found out; each implementation feeds its own into a [`ViewPublisher`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use highwater_types::{
    ClusterId, NodeId, NodeRecord, PartitionIndex, PartitionRecord, TopicId, TopicIdPartition, TopicName,
    TopicRecord,
};
use tokio::sync::watch;

/// The cluster's records at one moment. Records are shared between versions of the view, so an unchanged one is the same
/// `Arc` in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    version: u64,
    cluster_id: Option<ClusterId>,
    topics: BTreeMap<TopicId, Arc<TopicRecord>>,
    live_names: BTreeMap<TopicName, TopicId>,
    partitions: BTreeMap<TopicIdPartition, Arc<PartitionRecord>>,
    nodes: BTreeMap<NodeId, Arc<NodeRecord>>,
}

impl ClusterView {
    /// Rises with every change. Handles of one store agree on it where the store counts its changes (`file`); elsewhere
    /// it is this handle's own count.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The cluster's id; absent until a node created it.
    #[must_use]
    pub const fn cluster_id(&self) -> Option<&ClusterId> {
        self.cluster_id.as_ref()
    }

    /// A topic by its id, tombstones too.
    #[must_use]
    pub fn topic(&self, id: TopicId) -> Option<&Arc<TopicRecord>> {
        self.topics.get(&id)
    }

    /// The live topic of this name.
    #[must_use]
    pub fn topic_named(&self, name: &TopicName) -> Option<&Arc<TopicRecord>> {
        self.live_names.get(name).and_then(|id| self.topics.get(id))
    }

    /// Every topic, tombstones too, in the order of ids.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicRecord>> {
        self.topics.values()
    }

    /// Every live topic, in the order of names.
    pub fn live_topics(&self) -> impl Iterator<Item = &Arc<TopicRecord>> {
        self.live_names.values().filter_map(|id| self.topics.get(id))
    }

    /// A partition of a live topic.
    #[must_use]
    pub fn partition(&self, id: TopicIdPartition) -> Option<&Arc<PartitionRecord>> {
        self.topics.get(&id.topic_id).filter(|topic| !topic.deleted)?;
        self.partitions.get(&id)
    }

    /// The partitions of a live topic, in order.
    pub fn partitions_of(&self, topic: TopicId) -> impl Iterator<Item = &Arc<PartitionRecord>> {
        let live = self.topics.get(&topic).is_some_and(|record| !record.deleted);
        let first = TopicIdPartition::new(topic, FIRST_PARTITION);
        self.partitions
            .range(first..)
            .take_while(move |(id, _)| live && id.topic_id == topic)
            .map(|(_, record)| record)
    }

    /// Every partition of every live topic with its topic, in the order of ids. A partition record without a topic record
    /// is an unfinished creation and is not shown (design.md 6.9).
    pub fn partitions(&self) -> impl Iterator<Item = (&Arc<TopicRecord>, &Arc<PartitionRecord>)> {
        self.topics.values().flat_map(|topic| self.partitions_of(topic.id).map(move |record| (topic, record)))
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Arc<NodeRecord>> {
        self.nodes.get(&id)
    }

    /// Every node, in the order of ids.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.nodes.values()
    }
}

const FIRST_PARTITION: PartitionIndex = match PartitionIndex::new(0) {
    Some(index) => index,
    None => unreachable!(),
};

/// Records that an implementation read or wrote, to be merged into the view. They may be old; merging sorts that out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewChanges {
    /// The store's own count of changes, where it has one; 0 where it has none.
    pub version: u64,
    /// The cluster's id.
    pub cluster_id: Option<ClusterId>,
    /// Topics and tombstones.
    pub topics: Vec<TopicRecord>,
    /// Partitions.
    pub partitions: Vec<PartitionRecord>,
    /// Nodes.
    pub nodes: Vec<NodeRecord>,
}

/// Holds the newest view and hands it out; every implementation of the trait keeps one.
#[derive(Debug)]
pub struct ViewPublisher {
    sender: watch::Sender<Arc<ClusterView>>,
}

impl Default for ViewPublisher {
    fn default() -> Self {
        Self { sender: watch::Sender::new(Arc::new(ClusterView::default())) }
    }
}

impl ViewPublisher {
    /// A receiver of every later view.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.sender.subscribe()
    }

    /// The newest view.
    #[must_use]
    pub fn current(&self) -> Arc<ClusterView> {
        Arc::clone(&self.sender.borrow())
    }

    /// Merges what is newer and wakes the receivers if that was anything. Returns whether it was.
    pub fn merge(&self, changes: ViewChanges) -> bool {
        self.sender.send_if_modified(|view| {
            let before = view.version;
            let mut next = ClusterView::clone(view);
            if !next.absorb(changes) {
                return false;
            }
            debug_assert!(next.version > before, "a changed view has a higher version");
            *view = Arc::new(next);
            true
        })
    }
}

impl ClusterView {
    /// Takes over what is newer; returns whether anything was.
    fn absorb(&mut self, changes: ViewChanges) -> bool {
        let ViewChanges { version, cluster_id, topics, partitions, nodes } = changes;
        let mut changed = false;
        if self.cluster_id.is_none() && cluster_id.is_some() {
            self.cluster_id = cluster_id;
            changed = true;
        }
        for topic in topics {
            changed |= self.absorb_topic(topic);
        }
        for partition in partitions {
            changed |= self.absorb_partition(partition);
        }
        for node in nodes {
            changed |= self.absorb_node(node);
        }
        if changed {
            self.version = version.max(self.version.saturating_add(1));
        }
        changed
    }

    fn absorb_topic(&mut self, topic: TopicRecord) -> bool {
        match self.topics.get(&topic.id) {
            Some(known) if known.deleted || **known == topic => return false,
            _ => {}
        }
        if topic.deleted {
            self.free_name(&topic);
            self.partitions.retain(|id, _| id.topic_id != topic.id);
        } else {
            self.live_names.insert(topic.name.clone(), topic.id);
        }
        self.topics.insert(topic.id, Arc::new(topic));
        true
    }

    /// Takes the name from a topic that is being deleted. Another may have it already: records of different topics can be
    /// seen in any order.
    fn free_name(&mut self, deleted: &TopicRecord) {
        if self.live_names.get(&deleted.name) != Some(&deleted.id) {
            return;
        }
        let same_name = |t: &&Arc<TopicRecord>| !t.deleted && t.name == deleted.name && t.id != deleted.id;
        match self.topics.values().find(same_name).map(|t| t.id) {
            Some(successor) => self.live_names.insert(deleted.name.clone(), successor),
            None => self.live_names.remove(&deleted.name),
        };
    }

    fn absorb_partition(&mut self, record: PartitionRecord) -> bool {
        if self.topics.get(&record.topic_id).is_some_and(|topic| topic.deleted) {
            return false;
        }
        match self.partitions.entry(record.id()) {
            Entry::Vacant(slot) => {
                slot.insert(Arc::new(record));
                true
            }
            Entry::Occupied(mut slot) if slot.get().partition_epoch < record.partition_epoch => {
                slot.insert(Arc::new(record));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn absorb_node(&mut self, record: NodeRecord) -> bool {
        if self.nodes.get(&record.node).is_some_and(|known| known.version >= record.version) {
            return false;
        }
        self.nodes.insert(record.node, Arc::new(record));
        true
    }
}

#[cfg(test)]
#[path = "view_test.rs"]
mod tests;
