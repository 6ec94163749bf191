//! CreateTopic: who gets the replicas, and the records.

use std::sync::Arc;

use highwater_coordination::{CasOutcome, ClusterView, ProgramState};
use highwater_types::{
    AdoptedHistory, ErrorCode, NodeId, PartitionIndex, PartitionRecord, Program, ReplicationError, TopicId,
    TopicIdPartition, TopicName, TopicProperties, TopicRecord,
};
use highwater_wire::admin::{CreateTopic, Placement};

use super::placement::{Candidate, place};
use super::{ClusterApi, retried};

impl ClusterApi {
    pub(super) async fn create(&self, create: CreateTopic) -> Result<Arc<TopicRecord>, ReplicationError> {
        let CreateTopic { name, partitions, placement, properties } = create;
        let view = self.newest_view().await?;
        name_is_free(&view, &name)?;
        check_min_isr(&placement, &properties)?;
        let replicas = self.place(&view, &placement, partitions)?;
        let topic = TopicRecord { id: TopicId::random(), name, partitions, properties, deleted: false };
        let records = partition_records(topic.id, replicas, |_| None);
        self.write_topic(topic, records).await
    }

    /// The replicas of each partition, on nodes that are there.
    pub(super) fn place(
        &self,
        view: &ClusterView,
        placement: &Placement,
        partitions: i32,
    ) -> Result<Vec<Vec<NodeId>>, ReplicationError> {
        let alive = |node, program| self.membership.state(node, program) == ProgramState::Alive;
        let registered: Vec<Candidate> = view
            .nodes()
            .map(|record| Candidate {
                node: record.node,
                can_lead: alive(record.node, Program::LeaderSvc),
                can_follow: alive(record.node, Program::FollowerAgent),
            })
            .collect();
        place(placement, partitions, &registered)
    }

    /// Writes the records; the same ids at every attempt, so that an attempt that had been made is recognised.
    pub(super) async fn write_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Result<Arc<TopicRecord>, ReplicationError> {
        let id = topic.id;
        let write = || self.coordination.create_topic(topic.clone(), partitions.clone());
        match retried(write).await? {
            CasOutcome::Committed(record) => Ok(Arc::new(record)),
            CasOutcome::Conflict(record) if record.id == id => Ok(Arc::new(record)),
            CasOutcome::Conflict(other) => Err(exists(&other.name, other.id)),
        }
        .inspect(|topic| {
            tracing::info!(topic = %topic.name, id = %topic.id, partitions = topic.partitions, "created a topic");
        })
    }
}

/// Refuses a name that is taken; the store decides in the end.
pub(super) fn name_is_free(view: &ClusterView, name: &TopicName) -> Result<(), ReplicationError> {
    view.topic_named(name).map_or(Ok(()), |topic| Err(exists(&topic.name, topic.id)))
}

/// Refuses a topic that could never acknowledge anything under `acks=all`.
pub(super) fn check_min_isr(
    placement: &Placement,
    properties: &TopicProperties,
) -> Result<(), ReplicationError> {
    let replicas = match placement {
        Placement::Factor(factor) => *factor,
        Placement::Nodes(nodes) => nodes.len(),
    };
    let needed = properties.min_insync_replicas;
    if usize::try_from(needed).is_ok_and(|needed| needed <= replicas) {
        return Ok(());
    }
    Err(ReplicationError::new(
        ErrorCode::InvalidConfig,
        format!("min.insync.replicas {needed} is more than the replication factor {replicas}"),
    ))
}

fn exists(name: &TopicName, id: TopicId) -> ReplicationError {
    ReplicationError::new(ErrorCode::TopicAlreadyExists, format!("topic '{name}' exists, with id {id}"))
}

/// The records of new partitions, numbered from 0.
pub(super) fn partition_records(
    topic: TopicId,
    replicas: Vec<Vec<NodeId>>,
    adopted: impl Fn(PartitionIndex) -> Option<AdoptedHistory>,
) -> Vec<PartitionRecord> {
    (0_i32..)
        .filter_map(PartitionIndex::new)
        .zip(replicas)
        .map(|(index, replicas)| PartitionRecord {
            adopted: adopted(index),
            ..PartitionRecord::new(TopicIdPartition::new(topic, index), replicas)
        })
        .collect()
}
