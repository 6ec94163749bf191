//! Requests that change topics or register agents, and the selection of topics.

use std::collections::{BTreeSet, HashMap};

use highwater_proto::v1;
use highwater_protocol::fetch::TopicRef;
use highwater_types::{ClusterId, NodeId, NodeRecord, Offset, PartitionIndex, TopicName, TopicProperties};

use crate::caller::Caller;
use crate::cluster::{decode_node, decode_nodes, decode_properties};
use crate::fetch::check_count;
use crate::field::{DecodeError, Decoded, decode_topic_ref, node, offset, parse, required};
use crate::limits::MAX_PARTITIONS;

/// Who gets replicas of a topic's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// These nodes, each partition all of them; the preferred leader moves on by one with each partition. Not empty.
    Nodes(Vec<NodeId>),
    /// So many nodes, which the answering node chooses; at least 1.
    Factor(usize),
}

/// A topic to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// Its name.
    pub name: TopicName,
    /// How many partitions; at least 1.
    pub partitions: i32,
    /// Who gets replicas.
    pub placement: Placement,
    /// Its properties.
    pub properties: TopicProperties,
}

/// A topic to be created over existing directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptTopic {
    /// Its name.
    pub name: TopicName,
    /// The directory on the answering node that holds `NAME-N`.
    pub directory: String,
    /// Who gets replicas.
    pub placement: Placement,
    /// Its properties.
    pub properties: TopicProperties,
}

/// What was made of a directory that was adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedPartition {
    /// The partition.
    pub partition: PartitionIndex,
    /// The offset that the next record gets.
    pub log_end: Offset,
    /// The torn tail that was left out, in bytes.
    pub torn_bytes: u64,
}

/// Reads what was made of adopted directories; an older node tells nothing.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_adopted(message: &v1::AdoptTopicResponse) -> Decoded<Vec<AdoptedPartition>> {
    let one = |made: &v1::AdoptedPartition| {
        Ok(AdoptedPartition {
            partition: required("partition", made.partition.and_then(PartitionIndex::new))?,
            log_end: offset("log_end_offset", made.log_end_offset)?,
            torn_bytes: made.torn_bytes.unwrap_or(0),
        })
    };
    message.partitions.iter().map(one).collect()
}

/// An agent's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterAgent {
    /// The cluster that it belongs to; absent = none yet.
    pub cluster: Option<ClusterId>,
    /// Its node.
    pub node: NodeId,
    /// Its sign of life; absent = this is none.
    pub counter: Option<u64>,
    /// The node record that it wants written; its version is the one that it replaces.
    pub record: Option<NodeRecord>,
}

/// Reads a CreateTopic.
///
/// # Errors
/// The field that is not valid.
pub fn decode_create(message: &v1::CreateTopicRequest) -> Decoded<CreateTopic> {
    let partitions = message.partitions.unwrap_or(1);
    let most = i32::try_from(MAX_PARTITIONS).unwrap_or(i32::MAX);
    if !(1..=most).contains(&partitions) {
        return Err(DecodeError::invalid("partitions", format!("{partitions}: 1 to {most} is allowed")));
    }
    Ok(CreateTopic {
        name: decode_name(&message.topic)?,
        partitions,
        placement: decode_placement(message.replication_factor, &message.replicas)?,
        properties: decode_properties(&message.properties)?,
    })
}

/// The CreateTopic on the wire.
#[must_use]
pub fn encode_create(create: &CreateTopic) -> v1::CreateTopicRequest {
    let (replication_factor, replicas) = encode_placement(&create.placement);
    v1::CreateTopicRequest {
        topic: create.name.to_string(),
        partitions: Some(create.partitions),
        replication_factor,
        replicas,
        properties: encode_properties(&create.properties),
    }
}

/// Reads an AdoptTopic.
///
/// # Errors
/// The field that is not valid.
pub fn decode_adopt(message: &v1::AdoptTopicRequest) -> Decoded<AdoptTopic> {
    if message.directory.is_empty() {
        return Err(DecodeError::invalid("directory", "is missing: a path on the answering node"));
    }
    Ok(AdoptTopic {
        name: decode_name(&message.topic)?,
        directory: message.directory.clone(),
        placement: decode_placement(message.replication_factor, &message.replicas)?,
        properties: decode_properties(&message.properties)?,
    })
}

/// The AdoptTopic on the wire.
#[must_use]
pub fn encode_adopt(adopt: &AdoptTopic) -> v1::AdoptTopicRequest {
    let (replication_factor, replicas) = encode_placement(&adopt.placement);
    v1::AdoptTopicRequest {
        topic: adopt.name.to_string(),
        directory: adopt.directory.clone(),
        replication_factor,
        replicas,
        properties: encode_properties(&adopt.properties),
    }
}

/// Reads which topic a DeleteTopic means.
///
/// # Errors
/// The field that is not valid.
pub fn decode_delete(message: &v1::DeleteTopicRequest) -> Decoded<TopicRef> {
    let selector = message.topic.as_ref().ok_or_else(|| DecodeError::invalid("topic", "is missing"))?;
    decode_topic_ref(&selector.topic, &selector.topic_id)
}

/// Reads a selection of topics; empty = all.
///
/// # Errors
/// The field that is not valid.
pub fn decode_selection(topics: &[v1::TopicSelector]) -> Decoded<Vec<TopicRef>> {
    check_count("topics", topics.len())?;
    let one = |(index, selector): (usize, &v1::TopicSelector)| {
        decode_topic_ref(&selector.topic, &selector.topic_id).map_err(|e| e.within("topics", index))
    };
    topics.iter().enumerate().map(one).collect()
}

/// Reads a RegisterAgent.
///
/// # Errors
/// The field that is not valid, or contradicts `caller`; a node record of another node.
pub fn decode_register(caller: &Caller, message: &v1::RegisterAgentRequest) -> Decoded<RegisterAgent> {
    let own = node("node_id", message.node_id)?;
    if caller.node.is_some_and(|in_metadata| in_metadata != own) {
        return Err(DecodeError::invalid(
            "node_id",
            format!("{own} is not the caller's node in the metadata"),
        ));
    }
    let record = message.node.as_ref().map(decode_node).transpose()?;
    if record.as_ref().is_some_and(|record| record.node != own) {
        return Err(DecodeError::invalid("node.node_id", "an agent registers its own node only"));
    }
    Ok(RegisterAgent {
        cluster: message.cluster_id.as_deref().map(|text| parse("cluster_id", text)).transpose()?,
        node: own,
        counter: message.counter,
        record,
    })
}

fn decode_name(topic: &str) -> Decoded<TopicName> {
    topic.parse().map_err(|e| DecodeError::invalid("topic", format!("{e}")))
}

fn decode_placement(factor: Option<i32>, replicas: &[i32]) -> Decoded<Placement> {
    if replicas.is_empty() {
        let raw = factor.unwrap_or(1);
        let factor = usize::try_from(raw).ok().filter(|factor| *factor >= 1);
        return factor.map(Placement::Factor).ok_or_else(|| {
            DecodeError::invalid("replication_factor", format!("{raw}: at least 1 is needed"))
        });
    }
    if factor.is_some() {
        return Err(DecodeError::invalid("replication_factor", "give it or replicas, not both"));
    }
    let nodes = decode_nodes("replicas", replicas)?;
    let distinct: BTreeSet<_> = nodes.iter().collect();
    if distinct.len() != nodes.len() {
        return Err(DecodeError::invalid("replicas", "names a node twice"));
    }
    Ok(Placement::Nodes(nodes))
}

fn encode_placement(placement: &Placement) -> (Option<i32>, Vec<i32>) {
    match placement {
        Placement::Factor(factor) => (Some(i32::try_from(*factor).unwrap_or(i32::MAX)), Vec::new()),
        Placement::Nodes(nodes) => (None, nodes.iter().map(|node| node.get()).collect()),
    }
}

fn encode_properties(properties: &TopicProperties) -> HashMap<String, String> {
    properties.to_pairs().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_types::Program;

    fn n(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    #[test]
    fn requests_about_topics_survive_the_wire() {
        for placement in [Placement::Factor(3), Placement::Nodes(vec![n(2), n(0)])] {
            let create = CreateTopic {
                name: "a".parse().unwrap(),
                partitions: 3,
                placement: placement.clone(),
                properties: TopicProperties { min_insync_replicas: 2, ..TopicProperties::default() },
            };
            assert_eq!(decode_create(&encode_create(&create)), Ok(create));
            let adopt = AdoptTopic {
                name: "a".parse().unwrap(),
                directory: "/x".into(),
                placement,
                properties: TopicProperties::default(),
            };
            assert_eq!(decode_adopt(&encode_adopt(&adopt)), Ok(adopt));
        }
    }

    #[test]
    fn a_name_is_enough_to_create_a_topic() {
        let message = v1::CreateTopicRequest { topic: "a".into(), ..Default::default() };
        let create = decode_create(&message).unwrap();
        assert_eq!((create.partitions, create.placement), (1, Placement::Factor(1)));
    }

    #[test]
    fn what_cannot_be_created_is_refused_with_the_field() {
        let refused = |change: fn(&mut v1::CreateTopicRequest)| {
            let mut message = v1::CreateTopicRequest { topic: "a".into(), ..Default::default() };
            change(&mut message);
            decode_create(&message).unwrap_err().path().to_owned()
        };
        assert_eq!(refused(|m| m.topic = "..".into()), "topic");
        assert_eq!(refused(|m| m.partitions = Some(0)), "partitions");
        assert_eq!(refused(|m| m.partitions = Some(i32::MAX)), "partitions");
        assert_eq!(refused(|m| m.replication_factor = Some(0)), "replication_factor");
        assert_eq!(refused(|m| m.replicas = vec![1, 1]), "replicas");
        assert_eq!(refused(|m| m.replicas = vec![-1]), "replicas");
        let both = |m: &mut v1::CreateTopicRequest| {
            m.replicas = vec![1];
            m.replication_factor = Some(1);
        };
        assert_eq!(refused(both), "replication_factor");
        let property = |m: &mut v1::CreateTopicRequest| {
            m.properties.insert("segment.bytes".into(), "10 MB/x".into());
        };
        assert_eq!(refused(property), "properties");
    }

    #[test]
    fn an_agent_registers_only_itself() {
        let caller = Caller::node(Program::FollowerAgent, n(2));
        let message = |id, record: Option<i32>| v1::RegisterAgentRequest {
            node_id: Some(id),
            counter: Some(0),
            node: record.map(|id| crate::cluster::encode_node(&NodeRecord::new(n(id)))),
            ..Default::default()
        };
        let registered = decode_register(&caller, &message(2, Some(2))).unwrap();
        assert_eq!((registered.node, registered.counter), (n(2), Some(0)));
        assert_eq!(decode_register(&caller, &message(3, None)).unwrap_err().path(), "node_id");
        assert_eq!(decode_register(&caller, &message(2, Some(3))).unwrap_err().path(), "node.node_id");
    }
}
