//! Directories of partitions that the program does not host: removed for a tombstone of their topic id, or for a newer record
//! in which this node is no replica any more; else reported and kept (design.md 2).
//!
//! What must hold: a directory whose log somebody holds is left to its holder; nothing is removed for a topic that is
//! merely not known, nor by a record that is older than what the directory has worked under: the store may have been
//! restored. The store is read anew before anything is removed by a record: what a view still says may be over. A pass runs at
//! the start, and whenever a topic was deleted or a replica removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_coordination::{ClusterView, Coordination};
use highwater_log::StorageError;
use highwater_types::{LeaderEpoch, NodeId, PartitionEpoch, TopicId, TopicIdPartition, TopicName};

use crate::Volume;
use crate::volume::on_disk;

/// What was looked at.
#[derive(Debug, Default)]
pub struct Strays {
    started: bool,
    tombstones: BTreeSet<TopicId>,
    /// The partitions of which this node was a replica at the last look, in order.
    ours: Vec<TopicIdPartition>,
    /// Those of which it is none any more, until a pass.
    left: BTreeSet<TopicIdPartition>,
    running: Arc<AtomicBool>,
    /// A pass could not read the store, or did not come through: another one is due.
    again: Arc<AtomicBool>,
}

/// What a pass goes by.
#[derive(Debug)]
struct Known {
    deleted: BTreeSet<TopicId>,
    topics: BTreeSet<TopicId>,
    names: BTreeSet<TopicName>,
    /// The partitions of which this node is no replica, with the versions and leader epochs of their records.
    others: BTreeMap<TopicIdPartition, (PartitionEpoch, Option<LeaderEpoch>)>,
}

impl Strays {
    /// Looks through the data directory of `node`, if there is a reason to and no pass is under way. `busy` are the partitions
    /// that this program works on: while one that is to go is among them the pass waits, since its log is still held.
    pub fn look(
        &mut self,
        volume: &Volume,
        store: &Arc<dyn Coordination>,
        view: &ClusterView,
        node: NodeId,
        busy: impl IntoIterator<Item = TopicIdPartition>,
    ) {
        let deleted: BTreeSet<TopicId> =
            view.topics().filter(|topic| topic.deleted).map(|topic| topic.id).collect();
        self.note_left(view, node);
        let is_due = !self.left.is_empty() || self.again.load(Ordering::Acquire);
        let news = is_due || deleted.iter().any(|topic| !self.tombstones.contains(topic));
        let goes = |id: TopicIdPartition| deleted.contains(&id.topic_id) || self.left.contains(&id);
        if (self.started && !news) || busy.into_iter().any(goes) || self.running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let report = !std::mem::replace(&mut self.started, true);
        self.tombstones.clone_from(&deleted);
        self.left.clear();
        let (volume, store) = (volume.clone(), Arc::clone(store));
        let (running, again) = (Arc::clone(&self.running), Arc::clone(&self.again));
        tokio::spawn(async move {
            let done = match store.refresh().await {
                Ok(view) => {
                    let known = Known::of(&view, node);
                    on_disk(move || pass(&volume, &known, report)).await.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            again.store(done.is_err(), Ordering::Release);
            if let Err(error) = done {
                tracing::warn!(%error, "could not look through the data directory; it is tried again");
            }
            running.store(false, Ordering::Release);
        });
    }

    /// Notes of which partitions the node is a replica no more.
    fn note_left(&mut self, view: &ClusterView, node: NodeId) {
        let is_ours = view.partitions().filter(|(_, record)| record.has_replica(node));
        let ours: Vec<_> = is_ours.map(|(_, record)| record.id()).collect();
        if ours != self.ours {
            debug_assert!(ours.is_sorted(), "a view is in the order of ids");
            self.left.extend(self.ours.iter().filter(|id| ours.binary_search(id).is_err()));
            self.left.retain(|id| ours.binary_search(id).is_err());
            self.ours = ours;
        }
    }
}

impl Known {
    fn of(view: &ClusterView, node: NodeId) -> Self {
        let deleted = view.topics().filter(|topic| topic.deleted);
        let others = view.partitions().filter(|(_, record)| !record.has_replica(node));
        Self {
            deleted: deleted.map(|topic| topic.id).collect(),
            topics: view.topics().map(|topic| topic.id).collect(),
            names: view.topics().map(|topic| topic.name.clone()).collect(),
            others: others
                .map(|(_, record)| (record.id(), (record.partition_epoch, record.leader_epoch)))
                .collect(),
        }
    }
}

/// *Blocks.*
fn pass(volume: &Volume, known: &Known, report: bool) -> Result<(), StorageError> {
    for found in volume.scan()?.partitions {
        let partition = &found.partition;
        let record = found.topic_id.and_then(|topic| {
            let id = TopicIdPartition::new(topic, partition.partition);
            Some((topic, *known.others.get(&id)?))
        });
        match (found.topic_id, record) {
            (Some(topic), _) if known.deleted.contains(&topic) => {
                let removed = volume.remove(partition, topic)?;
                tracing::info!(%partition, %topic, removed, "found a replica of a deleted topic");
            }
            (_, Some((topic, (version, leader)))) => {
                if volume.remove_before(partition, topic, version, leader)? {
                    tracing::info!(%partition, %topic, "removed a replica that this node has no more");
                } else if report {
                    let topic = topic.to_string();
                    tracing::warn!(%partition, topic, "a directory of a replica that this node does not have is kept: it is in use, or no newer record takes it away");
                }
            }
            (Some(topic), None) if known.topics.contains(&topic) => {}
            // It is being made just now, or its opening will say what is wrong with it.
            (None, _) if known.names.contains(&partition.topic) => {}
            (topic, None) if report => {
                let topic = topic.map(|id| id.to_string());
                tracing::warn!(%partition, topic, "a directory that no record knows; it is kept as it is");
            }
            (_, None) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use highwater_coordination::{FileCoordination, FileOptions, ViewChanges, ViewPublisher};
    use highwater_log::OsStorage;
    use highwater_log::checkpoint::{CheckpointFile, CheckpointState, write_partition_metadata};
    use highwater_types::{PartitionIndex, PartitionRecord, Program, TopicProperties, TopicRecord};

    use super::*;
    use crate::volume::{DataDir, fresh_incarnation};

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// A topic of two partitions with these replicas, in version `version` of its records.
    fn view(id: TopicId, version: u64, replicas: [&[i32]; 2]) -> Arc<ClusterView> {
        let topic = TopicRecord {
            id,
            name: "t".parse().unwrap(),
            partitions: 2,
            properties: TopicProperties::default(),
            deleted: false,
        };
        let record = |(index, replicas): (i32, &[i32])| {
            let place = TopicIdPartition::new(id, PartitionIndex::new(index).unwrap());
            PartitionRecord {
                partition_epoch: PartitionEpoch::new(version),
                ..PartitionRecord::new(place, replicas.iter().copied().map(node).collect())
            }
        };
        let views = ViewPublisher::default();
        let partitions = (0..).zip(replicas).map(record).collect();
        views.merge(ViewChanges { topics: vec![topic], partitions, ..ViewChanges::default() });
        views.current()
    }

    /// A view from before the node was made a replica again, in a store that knows better.
    #[tokio::test]
    async fn what_the_store_says_decides_and_not_a_view_that_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCoordination::open(&dir.path().join("store"), FileOptions::default()).await.unwrap();
        let data = DataDir::take(&dir.path().join("data"), node(1), Program::LeaderSvc).await.unwrap();
        let volume = data.join(&store).await.unwrap();
        let id = TopicId::random();
        let old = view(id, 6, [&[2], &[2]]);
        let topic = TopicRecord::clone(old.topics().next().unwrap());
        let place = |index| TopicIdPartition::new(id, PartitionIndex::new(index).unwrap());
        let records = [(0, 1), (1, 2)].map(|(index, id)| PartitionRecord::new(place(index), vec![node(id)]));
        store.create_topic(topic, records.to_vec()).await.unwrap();
        // Both have worked under an older version than the view's.
        let paths = ["t-0", "t-1"].map(|name| {
            let path = dir.path().join("data").join(name);
            std::fs::create_dir_all(&path).unwrap();
            write_partition_metadata(&OsStorage, &path, id).unwrap();
            let (mut file, _) = CheckpointFile::open(&OsStorage, &path).unwrap();
            let seen = Some(PartitionEpoch::new(5));
            let state = CheckpointState::new(id, fresh_incarnation());
            file.write_durable(&CheckpointState { highest_partition_epoch: seen, ..state }).unwrap();
            path
        });
        let store: Arc<dyn Coordination> = Arc::new(store);
        let mut strays = Strays::default();
        strays.look(&volume, &store, &old, node(1), []);
        while strays.running.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
        assert!(
            paths.iter().all(|path| path.exists()),
            "one is its replica, the other's record is an old one"
        );
    }

    #[test]
    fn what_the_node_is_no_replica_of_any_more_is_left_unless_it_comes_back() {
        let (id, mut strays) = (TopicId::random(), Strays::default());
        let mut left_after = |version, replicas| {
            strays.note_left(&view(id, version, replicas), node(1));
            strays.left.iter().map(|left| left.partition.get()).collect::<Vec<_>>()
        };
        assert_eq!(left_after(1, [&[1, 2], &[2]]), [0; 0], "a partition of others is nothing that is left");
        assert_eq!(left_after(2, [&[2], &[1, 2]]), [0]);
        assert_eq!(left_after(3, [&[2], &[2]]), [0, 1], "until a pass has looked");
        assert_eq!(left_after(4, [&[1], &[2]]), [1]);
    }
}
