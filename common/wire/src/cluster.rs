//! The records of the coordination store on the wire, so that a view rebuilt from DescribeCluster equals its source.
//!
//! What holds: encode and decode are inverse for every record; an endpoint beside a partition only helps people and
//! clients, it is not part of the record.

use std::collections::{BTreeSet, HashMap};

use highwater_proto::v1;
use highwater_types::{
    AdoptedHistory, ClusterId, Endpoint, IsrMember, LivenessRecord, NodeId, NodeRecord, NodeThrottles,
    PartitionEpoch, PartitionRecord, Program, Resignation, Throttle, TopicId, TopicProperties, TopicRecord,
    UncleanElection,
};

use crate::field::{
    DecodeError, Decoded, decode_partition_index, enumeration, node, offset, optional_epoch,
    optional_incarnation, optional_node, parse, required,
};
use crate::throttle::{ThrottleLeft, decode_left, decode_throttle, encode_throttle};

/// The program on the wire.
#[must_use]
pub const fn encode_program(program: Program) -> v1::Program {
    match program {
        Program::LeaderSvc => v1::Program::LeaderSvc,
        Program::FollowerAgent => v1::Program::FollowerAgent,
    }
}

/// Reads a program.
///
/// # Errors
/// It is unspecified or unknown.
pub fn decode_program(raw: i32) -> Decoded<Program> {
    let allowed = "PROGRAM_LEADER_SVC, PROGRAM_FOLLOWER_AGENT";
    match enumeration("program", raw, allowed)? {
        v1::Program::LeaderSvc => Ok(Program::LeaderSvc),
        v1::Program::FollowerAgent => Ok(Program::FollowerAgent),
        v1::Program::Unspecified => {
            Err(DecodeError::invalid("program", format!("is missing; allowed: {allowed}")))
        }
    }
}

/// A node's record on the wire.
#[must_use]
pub fn encode_node(record: &NodeRecord) -> v1::Node {
    v1::Node {
        node_id: Some(record.node.get()),
        leader_svc: record.leader_svc.as_ref().map(ToString::to_string),
        follower_agent: record.follower_agent.as_ref().map(ToString::to_string),
        disk_current: record.disk_current.map(|id| id.to_string()),
        disk_next: record.disk_next.map(|id| id.to_string()),
        version: Some(record.version),
        leader_throttle: record.throttles.leader.as_ref().map(encode_throttle),
        follower_throttle: record.throttles.follower.as_ref().map(encode_throttle),
    }
}

/// Reads a node's record.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_node(message: &v1::Node) -> Decoded<NodeRecord> {
    let endpoint = |path, text: &Option<String>| -> Decoded<Option<Endpoint>> {
        text.as_deref().map(|text| parse(path, text)).transpose()
    };
    Ok(NodeRecord {
        node: node("node_id", message.node_id)?,
        leader_svc: endpoint("leader_svc", &message.leader_svc)?,
        follower_agent: endpoint("follower_agent", &message.follower_agent)?,
        disk_current: optional_incarnation("disk_current", message.disk_current.as_deref())?,
        disk_next: optional_incarnation("disk_next", message.disk_next.as_deref())?,
        throttles: NodeThrottles {
            leader: throttle("leader_throttle", message.leader_throttle.as_ref())?,
            follower: throttle("follower_throttle", message.follower_throttle.as_ref())?,
        },
        version: required("version", message.version)?,
    })
}

fn throttle(field: &str, message: Option<&v1::ReplicationThrottle>) -> Decoded<Option<Throttle>> {
    let inside =
        |error: DecodeError| DecodeError::invalid(format!("{field}.{}", error.path()), error.problem());
    message.map(|message| decode_throttle(message).map_err(inside)).transpose()
}

/// A sign of life on the wire.
#[must_use]
pub fn encode_liveness(record: &LivenessRecord) -> v1::Liveness {
    v1::Liveness {
        node_id: Some(record.node.get()),
        program: encode_program(record.program).into(),
        counter: Some(record.counter),
    }
}

/// Reads a sign of life.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_liveness(message: &v1::Liveness) -> Decoded<LivenessRecord> {
    Ok(LivenessRecord {
        node: node("node_id", message.node_id)?,
        program: decode_program(message.program)?,
        counter: required("counter", message.counter)?,
    })
}

/// A topic with its partitions on the wire; `endpoint_of` tells where a node's leader-svc is reached.
#[must_use]
pub fn encode_topic<'a>(
    topic: &TopicRecord,
    partitions: impl IntoIterator<Item = &'a PartitionRecord>,
    endpoint_of: impl Fn(NodeId) -> Option<Endpoint>,
) -> v1::Topic {
    let properties = topic.properties.to_pairs().into_iter().map(|(key, value)| (key.to_owned(), value));
    v1::Topic {
        topic: topic.name.to_string(),
        topic_id: topic.id.to_string(),
        partition_count: Some(topic.partitions),
        properties: properties.collect(),
        deleted: topic.deleted,
        partitions: partitions.into_iter().map(|record| encode_partition(record, &endpoint_of)).collect(),
    }
}

pub(crate) fn encode_partition(
    record: &PartitionRecord,
    endpoint_of: impl Fn(NodeId) -> Option<Endpoint>,
) -> v1::Partition {
    let nodes = |nodes: &[NodeId]| nodes.iter().map(|node| node.get()).collect();
    v1::Partition {
        partition: Some(record.partition.get()),
        leader_id: record.leader.map(NodeId::get),
        leader_epoch: record.leader_epoch.map(|epoch| epoch.get()),
        partition_epoch: Some(record.partition_epoch.get()),
        leader_endpoint: record.leader.and_then(endpoint_of).map(|endpoint| endpoint.to_string()),
        replicas: nodes(&record.replicas),
        isr: record.isr.iter().map(encode_member).collect(),
        adopted: record.adopted.as_ref().map(|history| v1::AdoptedHistory {
            importer_id: Some(history.importer.get()),
            highest_epoch: history.highest_epoch.map(|epoch| epoch.get()),
            log_end_offset: Some(history.log_end.get()),
        }),
        adding: nodes(&record.adding),
        removing: nodes(&record.removing),
        resigned: record.resigned.map(|resigned| v1::Resignation {
            node_id: Some(resigned.node.get()),
            successor_id: resigned.successor.map(NodeId::get),
        }),
        withdrawn: record.withdrawn.iter().map(encode_member).collect(),
        unclean: record.unclean.as_ref().map(|unclean| v1::UncleanElection {
            leader_epoch: Some(unclean.epoch.get()),
            log_end_offset: Some(unclean.log_end.get()),
            passed_over: unclean.passed_over.iter().map(encode_member).collect(),
        }),
    }
}

fn encode_member(member: &IsrMember) -> v1::InSyncReplica {
    v1::InSyncReplica { node_id: Some(member.node.get()), incarnation: member.incarnation.to_string() }
}

/// A topic as a peer described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedTopic {
    /// The topic's record.
    pub record: TopicRecord,
    /// Its partitions, by number; those of a tombstone are left out.
    pub partitions: Vec<DescribedPartition>,
}

/// A partition as a peer described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedPartition {
    /// The partition's record.
    pub record: PartitionRecord,
    /// Where its leader is reached, as far as the peer knows.
    pub leader_endpoint: Option<Endpoint>,
}

/// Reads a topic with its partitions.
///
/// # Errors
/// The field that is missing or not valid. A property that this program does not know is one: a newer node's topic must
/// not be served by a program that would ignore what it asks for.
pub fn decode_topic(message: &v1::Topic) -> Decoded<DescribedTopic> {
    let id = parse("topic_id", &message.topic_id)?;
    let partition = |(index, partition): (usize, &v1::Partition)| {
        decode_partition(id, partition).map_err(|e| e.within("partitions", index))
    };
    Ok(DescribedTopic {
        record: TopicRecord {
            id,
            name: message.topic.parse().map_err(|e| DecodeError::invalid("topic", format!("{e}")))?,
            partitions: required("partition_count", message.partition_count)?,
            properties: decode_properties(&message.properties)?,
            deleted: message.deleted,
        },
        partitions: message.partitions.iter().enumerate().map(partition).collect::<Decoded<_>>()?,
    })
}

/// Reads topic properties; what is left out has its default.
///
/// # Errors
/// A key or a value that is not valid, with what is allowed.
pub fn decode_properties(pairs: &HashMap<String, String>) -> Decoded<TopicProperties> {
    let mut properties = TopicProperties::default();
    // In the order of keys, so that of several wrong ones always the same is named.
    let mut pairs: Vec<_> = pairs.iter().collect();
    pairs.sort_unstable();
    for (key, value) in pairs {
        properties.set(key, value).map_err(|problem| DecodeError::invalid("properties", problem))?;
    }
    Ok(properties)
}

pub(crate) fn decode_partition(topic_id: TopicId, message: &v1::Partition) -> Decoded<DescribedPartition> {
    let record = PartitionRecord {
        topic_id,
        partition: decode_partition_index(message.partition)?,
        replicas: decode_nodes("replicas", &message.replicas)?,
        isr: message.isr.iter().map(decode_member).collect::<Decoded<_>>()?,
        leader: optional_node("leader_id", message.leader_id)?,
        leader_epoch: optional_epoch("leader_epoch", message.leader_epoch)?,
        partition_epoch: PartitionEpoch::new(required("partition_epoch", message.partition_epoch)?),
        adopted: message.adopted.as_ref().map(decode_adopted).transpose()?,
        adding: decode_nodes("adding", &message.adding)?,
        removing: decode_nodes("removing", &message.removing)?,
        resigned: message.resigned.as_ref().map(decode_resignation).transpose()?,
        withdrawn: message.withdrawn.iter().map(decode_member).collect::<Decoded<_>>()?,
        unclean: message.unclean.as_ref().map(decode_unclean).transpose()?,
    };
    let leader_endpoint =
        message.leader_endpoint.as_deref().map(|text| parse("leader_endpoint", text)).transpose()?;
    Ok(DescribedPartition { record, leader_endpoint })
}

fn decode_member(message: &v1::InSyncReplica) -> Decoded<IsrMember> {
    Ok(IsrMember {
        node: node("isr.node_id", message.node_id)?,
        incarnation: parse("isr.incarnation", &message.incarnation)?,
    })
}

fn decode_resignation(message: &v1::Resignation) -> Decoded<Resignation> {
    Ok(Resignation {
        node: node("resigned.node_id", message.node_id)?,
        successor: optional_node("resigned.successor_id", message.successor_id)?,
    })
}

fn decode_unclean(message: &v1::UncleanElection) -> Decoded<UncleanElection> {
    let epoch = optional_epoch("unclean.leader_epoch", message.leader_epoch)?;
    Ok(UncleanElection {
        epoch: required("unclean.leader_epoch", epoch)?,
        log_end: offset("unclean.log_end_offset", message.log_end_offset)?,
        passed_over: message.passed_over.iter().map(decode_member).collect::<Decoded<_>>()?,
    })
}

fn decode_adopted(message: &v1::AdoptedHistory) -> Decoded<AdoptedHistory> {
    Ok(AdoptedHistory {
        importer: node("adopted.importer_id", message.importer_id)?,
        highest_epoch: optional_epoch("adopted.highest_epoch", message.highest_epoch)?,
        log_end: offset("adopted.log_end_offset", message.log_end_offset)?,
    })
}

/// Reads a list of node ids.
pub(crate) fn decode_nodes(path: &str, raw: &[i32]) -> Decoded<Vec<NodeId>> {
    raw.iter().map(|raw| node(path, Some(*raw))).collect()
}

/// The head of a DescribeCluster answer; the records are in its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedCluster {
    /// The cluster's id; absent until a node created it.
    pub cluster_id: Option<ClusterId>,
    /// The version of the state; only equality means something.
    pub version: u64,
    /// The node that answered.
    pub node: NodeId,
    /// The program that answered.
    pub program: Program,
    /// Whether the state is still the known one; there are no records then.
    pub unchanged: bool,
    /// The nodes.
    pub nodes: Vec<NodeRecord>,
    /// The programs that the answering one sees alive.
    pub live: BTreeSet<(NodeId, Program)>,
    /// The topics, tombstones included.
    pub topics: Vec<DescribedTopic>,
    /// How long throttles still live, as the answering program reckons.
    pub throttles_left: ThrottleLeft,
}

/// Reads a DescribeCluster answer.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_cluster(message: &v1::DescribeClusterResponse) -> Decoded<DescribedCluster> {
    let id = &message.cluster_id;
    let node_at = |(index, node): (usize, &v1::Node)| decode_node(node).map_err(|e| e.within("nodes", index));
    let topic_at =
        |(index, topic): (usize, &v1::Topic)| decode_topic(topic).map_err(|e| e.within("topics", index));
    Ok(DescribedCluster {
        cluster_id: (!id.is_empty()).then(|| parse("cluster_id", id)).transpose()?,
        version: required("version", message.version)?,
        node: node("node_id", message.node_id)?,
        program: decode_program(message.program)?,
        unchanged: message.unchanged,
        nodes: message.nodes.iter().enumerate().map(node_at).collect::<Decoded<_>>()?,
        live: decode_live(message)?,
        topics: message.topics.iter().enumerate().map(topic_at).collect::<Decoded<_>>()?,
        throttles_left: decode_left(&message.nodes),
    })
}

fn decode_live(message: &v1::DescribeClusterResponse) -> Decoded<BTreeSet<(NodeId, Program)>> {
    let leading = message.live_leader_svcs.iter().map(|id| (*id, Program::LeaderSvc));
    let following = message.live_follower_agents.iter().map(|id| (*id, Program::FollowerAgent));
    let one = |(id, program)| match program {
        Program::LeaderSvc => Ok((node("live_leader_svcs", Some(id))?, program)),
        Program::FollowerAgent => Ok((node("live_follower_agents", Some(id))?, program)),
    };
    leading.chain(following).map(one).collect()
}

/// The message without records that says "still the version that you know"; the base of every other answer.
#[must_use]
pub fn cluster_head(
    cluster_id: Option<&ClusterId>,
    version: u64,
    node: NodeId,
    program: Program,
) -> v1::DescribeClusterResponse {
    v1::DescribeClusterResponse {
        cluster_id: cluster_id.map(ToString::to_string).unwrap_or_default(),
        version: Some(version),
        node_id: Some(node.get()),
        program: encode_program(program).into(),
        unchanged: true,
        ..v1::DescribeClusterResponse::default()
    }
}

#[cfg(test)]
#[path = "cluster_test.rs"]
mod tests;
