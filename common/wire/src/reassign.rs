//! Reassignments on the wire: asked for, cancelled, and how far they are.

use std::time::Duration;

use highwater_proto::v1;
use highwater_protocol::fetch::TopicRef;
use highwater_types::{NodeId, PartitionIndex, PartitionRecord, ReplicationError, TopicId, TopicName};

use crate::cluster::{decode_nodes, decode_partition, encode_partition};
use crate::error::{decode_error, encode_error};
use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, node, optional_node,
    parse, required,
};

/// A partition, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRef {
    /// The topic.
    pub topic: TopicRef,
    /// The partition.
    pub partition: PartitionIndex,
}

/// The replicas that a partition is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The partition.
    pub partition: PartitionRef,
    /// The replicas, the preferred leader first; as they were sent, so not checked to be distinct.
    pub replicas: Vec<NodeId>,
}

/// What became of one partition of a request: its record as it now is, or why it is not the wanted one.
pub type Reassigned = Result<PartitionRecord, ReplicationError>;

/// A partition that is being moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassignment {
    /// The topic's name.
    pub topic: TopicName,
    /// The topic's id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionIndex,
    /// Who leads; absent when nobody does.
    pub leader: Option<NodeId>,
    /// The replicas that it is to have, the preferred leader first.
    pub target: Vec<NodeId>,
    /// The replicas that are added.
    pub adding: Vec<AddedReplica>,
    /// The replicas that are removed once the added ones are in sync.
    pub removing: Vec<NodeId>,
}

/// A replica that is added. What is absent is not known, to who answered at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedReplica {
    /// The replica's node.
    pub node: NodeId,
    /// Whether it is in the recorded in-sync set.
    pub in_sync: bool,
    /// Records (offsets) that it lacks.
    pub lag_records: Option<u64>,
    /// Bytes that it lacks.
    pub bytes_left: Option<u64>,
    /// Bytes that it holds.
    pub bytes_held: Option<u64>,
    /// How fast it acknowledged lately, in bytes per second.
    pub bytes_per_second: Option<u64>,
    /// When it will have everything; absent also while what it lacks does not shrink.
    pub left: Option<Duration>,
}

impl AddedReplica {
    /// One of which nothing but the record is known.
    #[must_use]
    pub fn recorded(record: &PartitionRecord, node: NodeId) -> Self {
        Self {
            node,
            in_sync: record.isr_member(node).is_some(),
            lag_records: None,
            bytes_left: None,
            bytes_held: None,
            bytes_per_second: None,
            left: None,
        }
    }
}

/// Reads a ReassignReplicas.
///
/// # Errors
/// The field that is missing or not valid; no partition at all.
pub fn decode_reassign(message: &v1::ReassignReplicasRequest) -> Decoded<Vec<Assignment>> {
    some(&message.partitions, |asked| {
        Ok(Assignment {
            partition: decode_ref(&asked.topic, &asked.topic_id, asked.partition)?,
            replicas: decode_nodes("replicas", &asked.replicas)?,
        })
    })
}

/// The ReassignReplicas on the wire.
#[must_use]
pub fn encode_reassign(assignments: &[Assignment]) -> v1::ReassignReplicasRequest {
    let one = |Assignment { partition, replicas }: &Assignment| {
        let (topic, topic_id) = encode_topic_ref(&partition.topic);
        v1::ReplicaAssignment {
            topic,
            topic_id,
            partition: Some(partition.partition.get()),
            replicas: ids(replicas),
        }
    };
    v1::ReassignReplicasRequest { partitions: assignments.iter().map(one).collect() }
}

/// Reads a CancelReassignment.
///
/// # Errors
/// The field that is missing or not valid; no partition at all.
pub fn decode_cancel(message: &v1::CancelReassignmentRequest) -> Decoded<Vec<PartitionRef>> {
    some(&message.partitions, |asked| decode_ref(&asked.topic, &asked.topic_id, asked.partition))
}

/// The CancelReassignment on the wire.
#[must_use]
pub fn encode_cancel(partitions: &[PartitionRef]) -> v1::CancelReassignmentRequest {
    let one = |partition: &PartitionRef| {
        let (topic, topic_id) = encode_topic_ref(&partition.topic);
        v1::PartitionSelector { topic, topic_id, partition: Some(partition.partition.get()) }
    };
    v1::CancelReassignmentRequest { partitions: partitions.iter().map(one).collect() }
}

/// One partition of an answer, with its record as it now is.
#[must_use]
pub fn encode_reassigned(asked: &PartitionRef, outcome: &Reassigned) -> v1::ReassignedPartition {
    let (topic, topic_id) = encode_topic_ref(&asked.topic);
    let (record, error) = (outcome.as_ref().ok(), outcome.as_ref().err());
    v1::ReassignedPartition {
        topic,
        topic_id: record.map_or(topic_id, |record| record.topic_id.to_string()),
        partition: Some(asked.partition.get()),
        error: error.map(encode_error),
        record: record.map(|record| encode_partition(record, |_| None)),
    }
}

/// What became of each partition that was asked for.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_reassigned(partitions: Vec<v1::ReassignedPartition>) -> Decoded<Vec<Reassigned>> {
    let one = |answered: v1::ReassignedPartition| {
        if let Some(error) = answered.error {
            return Ok(Err(decode_error(error)?));
        }
        let record = required("record", answered.record)?;
        Ok(Ok(decode_partition(parse("topic_id", &answered.topic_id)?, &record)?.record))
    };
    let within = |(at, answered)| one(answered).map_err(|e: DecodeError| e.within("partitions", at));
    partitions.into_iter().enumerate().map(within).collect()
}

/// A reassignment on the wire.
#[must_use]
pub fn encode_reassignment(moving: &Reassignment) -> v1::Reassignment {
    v1::Reassignment {
        topic: moving.topic.to_string(),
        topic_id: moving.topic_id.to_string(),
        partition: Some(moving.partition.get()),
        leader_id: moving.leader.map(NodeId::get),
        target: ids(&moving.target),
        adding: moving.adding.iter().map(encode_added).collect(),
        removing: ids(&moving.removing),
    }
}

fn encode_added(added: &AddedReplica) -> v1::AddedReplica {
    v1::AddedReplica {
        node_id: Some(added.node.get()),
        in_sync: Some(added.in_sync),
        lag_records: added.lag_records,
        bytes_left: added.bytes_left,
        bytes_held: added.bytes_held,
        bytes_per_second: added.bytes_per_second,
        left_ms: added.left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// Reads what is being moved.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_reassignments(message: &v1::ListReassignmentsResponse) -> Decoded<Vec<Reassignment>> {
    let within = |(at, moving)| decode_reassignment(moving).map_err(|e| e.within("reassignments", at));
    message.reassignments.iter().enumerate().map(within).collect()
}

fn decode_reassignment(message: &v1::Reassignment) -> Decoded<Reassignment> {
    let added = |(at, added)| decode_added(added).map_err(|e| e.within("adding", at));
    Ok(Reassignment {
        topic: message.topic.parse().map_err(|e| DecodeError::invalid("topic", format!("{e}")))?,
        topic_id: parse("topic_id", &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        leader: optional_node("leader_id", message.leader_id)?,
        target: decode_nodes("target", &message.target)?,
        adding: message.adding.iter().enumerate().map(added).collect::<Decoded<_>>()?,
        removing: decode_nodes("removing", &message.removing)?,
    })
}

fn decode_added(message: &v1::AddedReplica) -> Decoded<AddedReplica> {
    Ok(AddedReplica {
        node: node("node_id", message.node_id)?,
        in_sync: required("in_sync", message.in_sync)?,
        lag_records: message.lag_records,
        bytes_left: message.bytes_left,
        bytes_held: message.bytes_held,
        bytes_per_second: message.bytes_per_second,
        left: message.left_ms.map(Duration::from_millis),
    })
}

/// Reads how a message names a partition.
pub(crate) fn decode_ref(topic: &str, topic_id: &str, partition: Option<i32>) -> Decoded<PartitionRef> {
    Ok(PartitionRef {
        topic: decode_topic_ref(topic, topic_id)?,
        partition: decode_partition_index(partition)?,
    })
}

/// Every element of field `partitions`, of which there has to be one.
fn some<M, T>(partitions: &[M], decode: impl Fn(&M) -> Decoded<T>) -> Decoded<Vec<T>> {
    if partitions.is_empty() {
        return Err(DecodeError::invalid("partitions", "one at least is needed"));
    }
    let within = |(at, asked)| decode(asked).map_err(|e| e.within("partitions", at));
    partitions.iter().enumerate().map(within).collect()
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.get()).collect()
}

#[cfg(test)]
mod tests {
    use highwater_types::{ErrorCode, TopicIdPartition};

    use super::*;

    fn node(raw: i32) -> NodeId {
        NodeId::new(raw).unwrap()
    }

    fn partition() -> PartitionRef {
        PartitionRef {
            topic: TopicRef::Name("t".parse().unwrap()),
            partition: PartitionIndex::new(3).unwrap(),
        }
    }

    #[test]
    fn requests_survive_the_wire_and_one_without_partitions_is_refused() {
        let asked = vec![Assignment { partition: partition(), replicas: vec![node(2), node(3)] }];
        assert_eq!(decode_reassign(&encode_reassign(&asked)), Ok(asked));
        assert_eq!(decode_cancel(&encode_cancel(&[partition()])), Ok(vec![partition()]));
        assert_eq!(decode_reassign(&Default::default()).unwrap_err().path(), "partitions");
        assert_eq!(decode_cancel(&Default::default()).unwrap_err().path(), "partitions");
    }

    #[test]
    fn what_is_not_valid_is_named_with_its_place() {
        let refused = |change: fn(&mut v1::ReplicaAssignment)| {
            let mut message =
                encode_reassign(&[Assignment { partition: partition(), replicas: vec![node(2)] }]);
            change(&mut message.partitions[0]);
            decode_reassign(&message).unwrap_err().path().to_owned()
        };
        assert_eq!(refused(|asked| asked.replicas = vec![-1]), "partitions[0].replicas");
        assert_eq!(refused(|asked| asked.partition = None), "partitions[0].partition");
        assert_eq!(refused(|asked| asked.topic.clear()), "partitions[0].topic");
    }

    #[test]
    fn each_partition_is_answered_for_itself() {
        let id = TopicIdPartition::new(TopicId::random(), partition().partition);
        let record = PartitionRecord::new(id, vec![node(2)]);
        let why = ReplicationError::new(ErrorCode::InvalidRequest, "no such node");
        let outcomes = vec![Ok(record), Err(why)];
        let answers = outcomes.iter().map(|outcome| encode_reassigned(&partition(), outcome)).collect();
        assert_eq!(decode_reassigned(answers), Ok(outcomes));
    }

    #[test]
    fn progress_survives_the_wire_and_what_is_not_known_stays_so() {
        let known = AddedReplica {
            node: node(4),
            in_sync: false,
            lag_records: Some(10),
            bytes_left: Some(0),
            bytes_held: Some(7),
            bytes_per_second: Some(100),
            left: Some(Duration::from_millis(1_500)),
        };
        let id = TopicIdPartition::new(TopicId::random(), partition().partition);
        let recorded = AddedReplica::recorded(&PartitionRecord::new(id, vec![node(5)]), node(5));
        let moving = Reassignment {
            topic: "t".parse().unwrap(),
            topic_id: id.topic_id,
            partition: id.partition,
            leader: Some(node(1)),
            target: vec![node(4), node(5)],
            adding: vec![known, recorded],
            removing: vec![node(1)],
        };
        let message = v1::ListReassignmentsResponse {
            node_id: Some(1),
            reassignments: vec![encode_reassignment(&moving)],
        };
        assert_eq!(decode_reassignments(&message), Ok(vec![moving]));
    }
}
