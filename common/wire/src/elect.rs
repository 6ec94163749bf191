//! Elections that a person orders.

use highwater_proto::v1;
use highwater_protocol::fetch::TopicRef;
use highwater_types::{NodeId, PartitionIndex};

use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, enumeration, node,
};

/// What is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The leader hands over to the preferred replica.
    Preferred,
    /// The answering node leads, although acknowledged records may be missing from its log.
    Unclean,
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectLeader {
    /// The topic.
    pub topic: TopicRef,
    /// The partition.
    pub partition: PartitionIndex,
    /// What is ordered.
    pub election: Election,
}

/// Reads an ElectLeader.
///
/// # Errors
/// The field that is not valid.
pub fn decode_elect(message: &v1::ElectLeaderRequest) -> Decoded<ElectLeader> {
    const ALLOWED: &str = "ELECTION_PREFERRED, ELECTION_UNCLEAN";
    let election = match enumeration("election", message.election, ALLOWED)? {
        v1::Election::Preferred => Election::Preferred,
        v1::Election::Unclean => Election::Unclean,
        v1::Election::Unspecified => {
            return Err(DecodeError::invalid("election", format!("is missing; allowed: {ALLOWED}")));
        }
    };
    Ok(ElectLeader {
        topic: decode_topic_ref(&message.topic, &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        election,
    })
}

/// The ElectLeader on the wire.
#[must_use]
pub fn encode_elect(order: &ElectLeader) -> v1::ElectLeaderRequest {
    let (topic, topic_id) = encode_topic_ref(&order.topic);
    let election = match order.election {
        Election::Preferred => v1::Election::Preferred,
        Election::Unclean => v1::Election::Unclean,
    };
    v1::ElectLeaderRequest {
        topic,
        topic_id,
        partition: Some(order.partition.get()),
        election: election.into(),
    }
}

/// Who leads, or is to lead next, by an answer.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_elected(message: &v1::ElectLeaderResponse) -> Decoded<NodeId> {
    node("node_id", message.node_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_comes_back_as_it_was_sent_and_one_without_an_election_is_refused() {
        for election in [Election::Preferred, Election::Unclean] {
            let order = ElectLeader {
                topic: TopicRef::Name("t".parse().unwrap()),
                partition: PartitionIndex::new(3).unwrap(),
                election,
            };
            assert_eq!(decode_elect(&encode_elect(&order)).unwrap(), order);
            let without = v1::ElectLeaderRequest { election: 0, ..encode_elect(&order) };
            assert_eq!(decode_elect(&without).unwrap_err().path(), "election");
        }
    }
}
