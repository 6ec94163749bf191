//! The partitions that a program hosts, by identity, and how a request's name for one is resolved.
//!
//! What must hold: one entry per partition; an entry that is being opened or has failed answers with its own reason, never
//! with silence. Reads of the table never wait for anything but its short writes.

use std::collections::HashMap;
use std::sync::Arc;

use highwater_coordination::ClusterView;
use highwater_protocol::fetch::TopicRef;
use highwater_types::units::counted;
use highwater_types::{
    ErrorCode, LeaderEpoch, LeaderHint, NodeId, PartitionIndex, PartitionRecord, Program, ReplicationError,
    TopicId, TopicIdPartition, TopicRecord,
};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{HostedReplica, Located, PartitionHost};

/// What became of a partition that this program is to host.
#[derive(Debug)]
pub enum Hosting<R> {
    /// Being opened; the reason is what requests get meanwhile.
    Opening(ReplicationError),
    /// Served.
    Online(Arc<R>),
    /// Not served; the reason is what requests get.
    Failed(ReplicationError),
}

impl<R> Clone for Hosting<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Opening(why) => Self::Opening(why.clone()),
            Self::Online(replica) => Self::Online(Arc::clone(replica)),
            Self::Failed(why) => Self::Failed(why.clone()),
        }
    }
}

impl<R> Hosting<R> {
    /// The replica, when it is served.
    ///
    /// # Errors
    /// Why it is not.
    pub fn online(self) -> Result<Arc<R>, ReplicationError> {
        match self {
            Self::Online(replica) => Ok(replica),
            Self::Opening(why) | Self::Failed(why) => Err(why),
        }
    }
}

/// A program's table of hosted partitions, beside its view of the cluster.
#[derive(Debug)]
pub struct Registry<R> {
    node: NodeId,
    program: Program,
    view: watch::Receiver<Arc<ClusterView>>,
    entries: RwLock<HashMap<TopicIdPartition, Hosting<R>>>,
}

impl<R: HostedReplica> Registry<R> {
    /// An empty table of a program of `node`.
    #[must_use]
    pub fn new(node: NodeId, program: Program, view: watch::Receiver<Arc<ClusterView>>) -> Self {
        Self { node, program, view, entries: RwLock::new(HashMap::new()) }
    }

    /// The entry of a partition; `None` when this program does not host it.
    #[must_use]
    pub fn get(&self, id: TopicIdPartition) -> Option<Hosting<R>> {
        self.entries.read().get(&id).cloned()
    }

    /// Replaces the entry of a partition.
    pub fn set(&self, id: TopicIdPartition, hosting: Hosting<R>) {
        self.entries.write().insert(id, hosting);
    }

    /// Takes the entry of a partition out.
    pub fn remove(&self, id: TopicIdPartition) -> Option<Hosting<R>> {
        self.entries.write().remove(&id)
    }

    /// The served replicas, in the order of their ids.
    #[must_use]
    pub fn online(&self) -> Vec<Arc<R>> {
        let mut all: Vec<_> = self
            .entries
            .read()
            .values()
            .filter_map(|hosting| match hosting {
                Hosting::Online(replica) => Some(Arc::clone(replica)),
                Hosting::Opening(_) | Hosting::Failed(_) => None,
            })
            .collect();
        all.sort_unstable_by_key(|replica| replica.id());
        all
    }

    /// The ids of all entries.
    #[must_use]
    pub fn ids(&self) -> Vec<TopicIdPartition> {
        self.entries.read().keys().copied().collect()
    }

    /// As [`PartitionHost::locate`], with the program's own type of replica.
    ///
    /// # Errors
    /// Why there is none to ask. What is known of the topic comes with it.
    pub fn find(
        &self,
        view: &ClusterView,
        topic: &TopicRef,
        partition: PartitionIndex,
    ) -> (Option<Arc<TopicRecord>>, Result<Arc<R>, ReplicationError>) {
        let record = match resolve_topic(view, topic) {
            Ok(record) => Arc::clone(record),
            Err(error) => return (None, Err(error)),
        };
        let replica = resolve_partition(view, &record, partition).and_then(|partition| {
            match self.get(partition.id()) {
                Some(hosting) => hosting.online(),
                None => Err(not_hosted(view, self.node, self.program, partition)),
            }
        });
        (Some(record), replica)
    }
}

impl<R: HostedReplica> PartitionHost for Registry<R> {
    fn node(&self) -> NodeId {
        self.node
    }

    fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.borrow())
    }

    fn locate(&self, view: &ClusterView, topic: &TopicRef, partition: PartitionIndex) -> Located {
        let (record, replica) = self.find(view, topic, partition);
        Located {
            topic: record.as_ref().map(|r| r.name.clone()).or_else(|| topic.name().cloned()),
            topic_id: record.as_ref().map(|r| r.id).or_else(|| topic.id()),
            replica: replica.map(|replica| -> Arc<dyn HostedReplica> { replica }),
        }
    }
}

/// Finds a live topic by name, by id, or by both (S18: known, then identity).
///
/// # Errors
/// `UnknownTopicOrPartition` for a name, `UnknownTopicId` for an id, `InconsistentTopicId` when they name two topics.
pub fn resolve_topic<'a>(
    view: &'a ClusterView,
    topic: &TopicRef,
) -> Result<&'a Arc<TopicRecord>, ReplicationError> {
    let by_name = |name| {
        view.topic_named(name).ok_or_else(|| {
            ReplicationError::new(ErrorCode::UnknownTopicOrPartition, format!("topic '{name}' is not known"))
        })
    };
    match topic {
        TopicRef::Name(name) => by_name(name),
        TopicRef::Id(id) => view.topic(*id).filter(|record| !record.deleted).ok_or_else(|| {
            ReplicationError::new(ErrorCode::UnknownTopicId, format!("topic id {id} is not known"))
        }),
        TopicRef::Both { name, id } => {
            let record = by_name(name)?;
            if record.id == *id {
                return Ok(record);
            }
            Err(ReplicationError::new(
                ErrorCode::InconsistentTopicId,
                format!("topic '{name}' has id {}, not {id}", record.id),
            ))
        }
    }
}

/// Finds a partition's record.
///
/// # Errors
/// `UnknownTopicOrPartition` when the topic has no such partition.
pub fn resolve_partition<'a>(
    view: &'a ClusterView,
    topic: &TopicRecord,
    partition: PartitionIndex,
) -> Result<&'a Arc<PartitionRecord>, ReplicationError> {
    view.partition(TopicIdPartition::new(topic.id, partition)).ok_or_else(|| {
        let have = counted(u64::from(topic.partitions.unsigned_abs()), "partition");
        ReplicationError::new(
            ErrorCode::UnknownTopicOrPartition,
            format!("topic '{}' has {have}; there is no {partition}", topic.name),
        )
    })
}

/// A partition's name for people: TOPIC-INDEX, or with the topic's id where that is all that is known.
#[must_use]
pub fn name_of(view: &ClusterView, id: TopicIdPartition) -> String {
    view.topic(id.topic_id).map_or_else(|| id.to_string(), |topic| format!("{}-{}", topic.name, id.partition))
}

/// Who leads a partition by its record, and where; `None` before the first leadership.
#[must_use]
pub fn leader_hint(view: &ClusterView, record: &PartitionRecord) -> Option<LeaderHint> {
    let epoch: LeaderEpoch = record.leader_epoch?;
    let endpoint = record
        .leader
        .and_then(|leader| view.node(leader))
        .and_then(|node| node.endpoint(Program::LeaderSvc).cloned());
    Some(LeaderHint { leader: record.leader, epoch, endpoint })
}

/// What a request for a partition gets that `program` of `node` does not host.
fn not_hosted(
    view: &ClusterView,
    node: NodeId,
    program: Program,
    record: &PartitionRecord,
) -> ReplicationError {
    let error = match record.leader {
        None => {
            ReplicationError::new(ErrorCode::LeaderNotAvailable, "the partition has no leader at present")
        }
        Some(leader) if leader == node && program == Program::LeaderSvc => ReplicationError::new(
            ErrorCode::ReplicaNotAvailable,
            "the partition is not open on this node yet",
        ),
        Some(leader) if leader == node => ReplicationError::new(
            ErrorCode::NotLeaderOrFollower,
            format!("this is a follower-agent; the leader-svc of its node {node} leads the partition"),
        ),
        Some(leader) => ReplicationError::new(
            ErrorCode::NotLeaderOrFollower,
            format!("node {node} does not serve the partition; node {leader} leads it"),
        ),
    };
    error.with_leader(leader_hint(view, record))
}

/// Adds who leads to an error that says "not here" or "not in this epoch", so that the requester finds its way.
#[must_use]
pub fn with_hint(
    view: &ClusterView,
    topic: Option<TopicId>,
    partition: PartitionIndex,
    error: ReplicationError,
) -> ReplicationError {
    let about_leadership = matches!(
        error.code,
        ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch
    );
    if !about_leadership || error.leader.is_some() {
        return error;
    }
    let record = topic.and_then(|topic| view.partition(TopicIdPartition::new(topic, partition)));
    let hint = record.and_then(|record| leader_hint(view, record));
    error.with_leader(hint)
}

#[cfg(test)]
mod tests {
    use highwater_coordination::{Coordination as _, FileCoordination, FileOptions};
    use highwater_types::{Incarnation, IsrMember, TopicProperties};

    use super::*;
    use crate::test_replica::TestReplica;

    #[tokio::test]
    async fn the_agent_of_the_leaders_node_names_the_leader_and_the_leader_itself_asks_for_patience() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
        let node = NodeId::new(1).unwrap();
        let name = "t".parse().unwrap();
        let properties = TopicProperties::default();
        let topic = TopicRecord { id: TopicId::random(), name, partitions: 1, properties, deleted: false };
        let id = TopicIdPartition::new(topic.id, PartitionIndex::new(0).unwrap());
        let asked = TopicRef::Id(topic.id);
        let new = PartitionRecord::new(id, vec![node]);
        let led = PartitionRecord {
            leader: Some(node),
            leader_epoch: Some(LeaderEpoch::FIRST),
            isr: vec![IsrMember { node, incarnation: Incarnation::new(7).unwrap() }],
            ..new.clone()
        };
        let expected = new.partition_epoch;
        store.create_topic(topic, vec![new]).await.unwrap();
        store.swap_partition(led, expected).await.unwrap();
        let answer = |program| {
            let registry = Registry::<TestReplica>::new(node, program, store.view());
            let view = registry.view();
            let error = registry.find(&view, &asked, id.partition).1.unwrap_err();
            (error.code, error.leader.and_then(|hint| hint.leader))
        };
        assert_eq!(answer(Program::FollowerAgent), (ErrorCode::NotLeaderOrFollower, Some(node)));
        assert_eq!(answer(Program::LeaderSvc), (ErrorCode::ReplicaNotAvailable, Some(node)));
    }
}
