//! ListOffsets and OffsetsForLeaderEpoch, in both directions.
//!
//! What holds: every query carries the leader epoch that the requester knows, where it knows one (design.md 3).

use highwater_proto::v1;
use highwater_protocol::fetch::TopicRef;
use highwater_types::{
    LeaderEpoch, NodeId, Offset, OffsetAndEpoch, PartitionIndex, ReplicationError, WallTime,
};

use crate::caller::Caller;
use crate::error::{decode_error, encode_error};
use crate::fetch::check_count;
use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, enumeration, offset,
    optional_epoch, optional_node, optional_offset, required,
};

/// A partition in a query, with the leadership that the requester believes in (S19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionQuery<Q> {
    /// The topic.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// The leader epoch that the requester knows; absent = not checked.
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// What is asked.
    pub query: Q,
}

/// A request of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsRequest<Q> {
    /// The follower's node; absent = a consumer.
    pub replica: Option<NodeId>,
    /// The partitions.
    pub partitions: Vec<PartitionQuery<Q>>,
}

/// The answer about one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionAnswer<A> {
    /// The topic, as the request named it.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// What was found, or why not.
    pub outcome: Result<A, ReplicationError>,
}

/// Which offset ListOffsets looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetQuery {
    /// The first retained offset.
    Earliest,
    /// The end: the high watermark for consumers, the log end for followers (S35).
    Latest,
    /// The first record at or after this time.
    AtOrAfter(WallTime),
}

/// What ListOffsets found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundOffset {
    /// The offset; absent when no record is that late.
    pub offset: Option<Offset>,
    /// The found record's time; absent for positions.
    pub timestamp: Option<WallTime>,
    /// The leader epoch there, where known.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// The leader epoch whose end is asked for; absent = none, whose end is undefined (KAFKA-6857).
pub type EpochQuery = Option<LeaderEpoch>;

/// Where the epoch ends; absent = undefined, which never truncates (design.md 6.5).
pub type EpochEnd = Option<OffsetAndEpoch>;

/// Reads a ListOffsets request.
///
/// # Errors
/// The field that is not valid, or contradicts `caller`.
pub fn decode_list_request(
    caller: &Caller,
    message: v1::ListOffsetsRequest,
) -> Decoded<OffsetsRequest<OffsetQuery>> {
    decode_request(caller, message.replica_id, message.partitions, |partition| {
        Ok(PartitionQuery {
            topic: decode_topic_ref(&partition.topic, &partition.topic_id)?,
            partition: decode_partition_index(partition.partition)?,
            current_leader_epoch: optional_epoch("current_leader_epoch", partition.current_leader_epoch)?,
            query: decode_offset_query(partition.position, partition.timestamp_ms)?,
        })
    })
}

fn decode_offset_query(position: i32, timestamp_ms: Option<i64>) -> Decoded<OffsetQuery> {
    let allowed = "OFFSET_POSITION_EARLIEST, OFFSET_POSITION_LATEST";
    match (enumeration("position", position, allowed)?, timestamp_ms) {
        (v1::OffsetPosition::Unspecified, Some(ms)) => Ok(OffsetQuery::AtOrAfter(WallTime::from_millis(ms))),
        (v1::OffsetPosition::Unspecified, None) => {
            Err(DecodeError::invalid("position", "a position or a timestamp_ms is needed"))
        }
        (_, Some(_)) => Err(DecodeError::invalid("timestamp_ms", "give a position or a time, not both")),
        (v1::OffsetPosition::Earliest, None) => Ok(OffsetQuery::Earliest),
        (v1::OffsetPosition::Latest, None) => Ok(OffsetQuery::Latest),
    }
}

/// The ListOffsets request on the wire.
#[must_use]
pub fn encode_list_request(request: OffsetsRequest<OffsetQuery>) -> v1::ListOffsetsRequest {
    let partition = |asked: PartitionQuery<OffsetQuery>| {
        let (topic, topic_id) = encode_topic_ref(&asked.topic);
        let (position, time) = match asked.query {
            OffsetQuery::Earliest => (v1::OffsetPosition::Earliest, None),
            OffsetQuery::Latest => (v1::OffsetPosition::Latest, None),
            OffsetQuery::AtOrAfter(time) => (v1::OffsetPosition::Unspecified, Some(time.as_millis())),
        };
        v1::ListOffsetsPartition {
            topic,
            topic_id,
            partition: Some(asked.partition.get()),
            current_leader_epoch: asked.current_leader_epoch.map(|epoch| epoch.get()),
            position: position.into(),
            timestamp_ms: time,
        }
    };
    v1::ListOffsetsRequest {
        replica_id: request.replica.map(|node| node.get()),
        partitions: request.partitions.into_iter().map(partition).collect(),
    }
}

/// The ListOffsets answer on the wire.
#[must_use]
pub fn encode_list_response(answers: Vec<PartitionAnswer<FoundOffset>>) -> v1::ListOffsetsResponse {
    let result = |answer: PartitionAnswer<FoundOffset>| {
        let (topic, topic_id) = encode_topic_ref(&answer.topic);
        let (found, error) = split(answer.outcome);
        v1::ListOffsetsPartitionResult {
            topic,
            topic_id,
            partition: Some(answer.partition.get()),
            error,
            offset: found.offset.map(Offset::get),
            timestamp_ms: found.timestamp.map(WallTime::as_millis),
            leader_epoch: found.leader_epoch.map(|epoch| epoch.get()),
        }
    };
    v1::ListOffsetsResponse { partitions: answers.into_iter().map(result).collect() }
}

/// Reads a ListOffsets answer.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_list_response(message: v1::ListOffsetsResponse) -> Decoded<Vec<PartitionAnswer<FoundOffset>>> {
    each(message.partitions, |result| {
        let found = FoundOffset {
            offset: optional_offset("offset", result.offset)?,
            timestamp: result.timestamp_ms.map(WallTime::from_millis),
            leader_epoch: optional_epoch("leader_epoch", result.leader_epoch)?,
        };
        Ok(PartitionAnswer {
            topic: decode_topic_ref(&result.topic, &result.topic_id)?,
            partition: decode_partition_index(result.partition)?,
            outcome: result.error.map(decode_error).transpose()?.map_or(Ok(found), Err),
        })
    })
}

/// Reads an OffsetsForLeaderEpoch request.
///
/// # Errors
/// The field that is not valid, or contradicts `caller`.
pub fn decode_epoch_request(
    caller: &Caller,
    message: v1::OffsetsForLeaderEpochRequest,
) -> Decoded<OffsetsRequest<EpochQuery>> {
    decode_request(caller, message.replica_id, message.partitions, |partition| {
        Ok(PartitionQuery {
            topic: decode_topic_ref(&partition.topic, &partition.topic_id)?,
            partition: decode_partition_index(partition.partition)?,
            current_leader_epoch: optional_epoch("current_leader_epoch", partition.current_leader_epoch)?,
            query: optional_epoch("leader_epoch", partition.leader_epoch)?,
        })
    })
}

/// The OffsetsForLeaderEpoch request on the wire.
#[must_use]
pub fn encode_epoch_request(request: OffsetsRequest<EpochQuery>) -> v1::OffsetsForLeaderEpochRequest {
    let partition = |asked: PartitionQuery<EpochQuery>| {
        let (topic, topic_id) = encode_topic_ref(&asked.topic);
        v1::OffsetsForLeaderEpochPartition {
            topic,
            topic_id,
            partition: Some(asked.partition.get()),
            current_leader_epoch: asked.current_leader_epoch.map(|epoch| epoch.get()),
            leader_epoch: asked.query.map(|epoch| epoch.get()),
        }
    };
    v1::OffsetsForLeaderEpochRequest {
        replica_id: request.replica.map(|node| node.get()),
        partitions: request.partitions.into_iter().map(partition).collect(),
    }
}

/// The OffsetsForLeaderEpoch answer on the wire.
#[must_use]
pub fn encode_epoch_response(answers: Vec<PartitionAnswer<EpochEnd>>) -> v1::OffsetsForLeaderEpochResponse {
    let result = |answer: PartitionAnswer<EpochEnd>| {
        let (topic, topic_id) = encode_topic_ref(&answer.topic);
        let (end, error) = split(answer.outcome);
        v1::OffsetsForLeaderEpochPartitionResult {
            topic,
            topic_id,
            partition: Some(answer.partition.get()),
            error,
            leader_epoch: end.map(|end| end.epoch.get()),
            end_offset: end.map(|end| end.offset.get()),
        }
    };
    v1::OffsetsForLeaderEpochResponse { partitions: answers.into_iter().map(result).collect() }
}

/// Reads an OffsetsForLeaderEpoch answer.
///
/// # Errors
/// The field that is missing or not valid; an epoch without its end, or the reverse.
pub fn decode_epoch_response(
    message: v1::OffsetsForLeaderEpochResponse,
) -> Decoded<Vec<PartitionAnswer<EpochEnd>>> {
    each(message.partitions, |result| {
        let end = match (optional_epoch("leader_epoch", result.leader_epoch)?, result.end_offset) {
            (None, None) => None,
            (Some(epoch), raw) => Some(OffsetAndEpoch { offset: offset("end_offset", raw)?, epoch }),
            (None, Some(_)) => required("leader_epoch", None)?,
        };
        Ok(PartitionAnswer {
            topic: decode_topic_ref(&result.topic, &result.topic_id)?,
            partition: decode_partition_index(result.partition)?,
            outcome: result.error.map(decode_error).transpose()?.map_or(Ok(end), Err),
        })
    })
}

fn decode_request<M, Q>(
    caller: &Caller,
    replica_id: Option<i32>,
    partitions: Vec<M>,
    decode: impl FnMut(M) -> Decoded<PartitionQuery<Q>>,
) -> Decoded<OffsetsRequest<Q>> {
    let replica = optional_node("replica_id", replica_id)?;
    caller.check_replica(replica)?;
    if partitions.is_empty() {
        return Err(DecodeError::invalid("partitions", "is empty: name at least one partition"));
    }
    check_count("partitions", partitions.len())?;
    Ok(OffsetsRequest { replica, partitions: each(partitions, decode)? })
}

fn each<M, T>(partitions: Vec<M>, mut decode: impl FnMut(M) -> Decoded<T>) -> Decoded<Vec<T>> {
    let one = |(index, message)| decode(message).map_err(|e| e.within("partitions", index));
    partitions.into_iter().enumerate().map(one).collect()
}

fn split<A: Default>(outcome: Result<A, ReplicationError>) -> (A, Option<v1::PartitionError>) {
    match outcome {
        Ok(answer) => (answer, None),
        Err(error) => (A::default(), Some(encode_error(&error))),
    }
}

#[cfg(test)]
#[path = "offsets_test.rs"]
mod tests;
