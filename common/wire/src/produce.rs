//! Produce: the request and the answer, in both directions.
//!
//! What holds: a partition is named at most once, and has either batches or plain records. The batches themselves are
//! checked where they are appended; here they are bytes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use highwater_proto::v1;
use highwater_proto::v1::plain_record::{Key, Value};
use highwater_protocol::fetch::{ThrottleReason, TopicRef};
use highwater_types::{ClusterId, LeaderEpoch, Offset, PartitionIndex, ReplicationError, WallTime};

use crate::error::{decode_error, encode_error};
use crate::fetch::{check_count, encode_throttle_reason, millis};
use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, enumeration,
    optional_epoch, optional_offset, parse,
};

/// How long `acks=all` may take when the request does not say.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// When a Produce is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acks {
    /// At once, before the append (`acks=0`).
    None,
    /// When the leader holds the records (`acks=1`).
    Leader,
    /// When every in-sync replica holds them, at least `min.insync.replicas` (`acks=all`).
    #[default]
    All,
}

/// Records to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// The cluster that the requester means; absent = not checked.
    pub cluster: Option<ClusterId>,
    /// When to answer.
    pub acks: Acks,
    /// How long `Acks::All` may take.
    pub timeout: Duration,
    /// What to append; each partition at most once.
    pub partitions: Vec<ProducePartition>,
}

/// What to append to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducePartition {
    /// The topic.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// The leader epoch that the requester knows; absent = not checked.
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// What to append.
    pub records: ProduceRecords,
}

/// Records in one of their two forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProduceRecords {
    /// Whole batches, unchecked; not empty.
    Batches(Bytes),
    /// Records that the leader builds into a batch; not empty.
    Plain(Vec<PlainRecord>),
}

/// A record before it has an offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainRecord {
    /// The key; absent = null.
    pub key: Option<Bytes>,
    /// The value; absent = null.
    pub value: Option<Bytes>,
    /// The headers, in order; a value that is absent = null.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The record's time; absent = the leader's clock.
    pub timestamp: Option<WallTime>,
}

/// What became of the records of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceResult {
    /// The topic, as the request named it.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// Where the records are, or why not.
    pub outcome: Result<Produced, ReplicationError>,
}

/// Where appended records are. Empty for [`Acks::None`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Produced {
    /// The offset of the first record.
    pub base_offset: Option<Offset>,
    /// The offset of the last record.
    pub last_offset: Option<Offset>,
    /// The leader epoch in which they were appended.
    pub leader_epoch: Option<LeaderEpoch>,
    /// The first offset in the leader's log.
    pub log_start: Option<Offset>,
}

/// Reads a request.
///
/// # Errors
/// The field that is not valid.
pub fn decode_request(message: v1::ProduceRequest) -> Decoded<ProduceRequest> {
    if message.partitions.is_empty() {
        return Err(DecodeError::invalid("partitions", "is empty: name at least one partition"));
    }
    check_count("partitions", message.partitions.len())?;
    let acks = match enumeration("acks", message.acks, "ACKS_NONE, ACKS_LEADER, ACKS_ALL")? {
        v1::Acks::Unspecified | v1::Acks::All => Acks::All,
        v1::Acks::Leader => Acks::Leader,
        v1::Acks::None => Acks::None,
    };
    let mut seen = BTreeSet::new();
    let mut partitions = Vec::with_capacity(message.partitions.len());
    for (index, partition) in message.partitions.into_iter().enumerate() {
        let decoded = decode_partition(partition).map_err(|e| e.within("partitions", index))?;
        if !seen.insert((decoded.topic.clone(), decoded.partition)) {
            let twice = DecodeError::invalid("partition", "is named twice: one answer could not tell which");
            return Err(twice.within("partitions", index));
        }
        partitions.push(decoded);
    }
    Ok(ProduceRequest {
        cluster: message.cluster_id.map(|text| parse("cluster_id", &text)).transpose()?,
        acks,
        timeout: message.timeout_ms.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.into())),
        partitions,
    })
}

fn decode_partition(message: v1::ProducePartition) -> Decoded<ProducePartition> {
    let records = match (message.records.is_empty(), message.plain_records.is_empty()) {
        (true, true) => Err(DecodeError::invalid("records", "is empty: records or plain_records are needed")),
        (false, false) => Err(DecodeError::invalid("records", "give records or plain_records, not both")),
        (false, true) => Ok(ProduceRecords::Batches(message.records)),
        (true, false) => {
            Ok(ProduceRecords::Plain(message.plain_records.into_iter().map(decode_plain).collect()))
        }
    }?;
    Ok(ProducePartition {
        topic: decode_topic_ref(&message.topic, &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        current_leader_epoch: optional_epoch("current_leader_epoch", message.current_leader_epoch)?,
        records,
    })
}

fn decode_plain(message: v1::PlainRecord) -> PlainRecord {
    PlainRecord {
        key: message.key.map(|key| match key {
            Key::KeyBytes(bytes) => bytes,
            Key::KeyText(text) => text.into(),
        }),
        value: message.value.map(|value| match value {
            Value::ValueBytes(bytes) => bytes,
            Value::ValueText(text) => text.into(),
        }),
        headers: message.headers.into_iter().map(|header| (header.key, header.value)).collect(),
        timestamp: message.timestamp_ms.map(WallTime::from_millis),
    }
}

/// The request on the wire.
#[must_use]
pub fn encode_request(request: ProduceRequest) -> v1::ProduceRequest {
    let acks = match request.acks {
        Acks::None => v1::Acks::None,
        Acks::Leader => v1::Acks::Leader,
        Acks::All => v1::Acks::All,
    };
    v1::ProduceRequest {
        cluster_id: request.cluster.map(Into::into),
        acks: acks.into(),
        timeout_ms: Some(millis(request.timeout)),
        partitions: request.partitions.into_iter().map(encode_partition).collect(),
    }
}

fn encode_partition(partition: ProducePartition) -> v1::ProducePartition {
    let (topic, topic_id) = encode_topic_ref(&partition.topic);
    let (records, plain_records) = match partition.records {
        ProduceRecords::Batches(bytes) => (bytes, Vec::new()),
        ProduceRecords::Plain(plain) => (Bytes::new(), plain.into_iter().map(encode_plain).collect()),
    };
    v1::ProducePartition {
        topic,
        topic_id,
        partition: Some(partition.partition.get()),
        current_leader_epoch: partition.current_leader_epoch.map(|epoch| epoch.get()),
        plain_records,
        records,
    }
}

fn encode_plain(record: PlainRecord) -> v1::PlainRecord {
    let header = |(key, value)| v1::RecordHeader { key, value };
    v1::PlainRecord {
        key: record.key.map(Key::KeyBytes),
        value: record.value.map(Value::ValueBytes),
        headers: record.headers.into_iter().map(header).collect(),
        timestamp_ms: record.timestamp.map(WallTime::as_millis),
    }
}

/// The answer on the wire, for a producer that is not, or is, held back by a quota.
#[must_use]
pub fn encode_response(
    results: Vec<ProduceResult>,
    throttle: Option<(Duration, ThrottleReason)>,
) -> v1::ProduceResponse {
    v1::ProduceResponse {
        partitions: results.into_iter().map(encode_result).collect(),
        throttle_ms: Some(throttle.map_or(0, |(span, _)| millis(span))),
        throttle_reason: encode_throttle_reason(throttle.map(|(_, reason)| reason)).into(),
    }
}

fn encode_result(result: ProduceResult) -> v1::ProducePartitionResult {
    let (topic, topic_id) = encode_topic_ref(&result.topic);
    let (produced, error) = match result.outcome {
        Ok(produced) => (produced, None),
        Err(error) => (Produced::default(), Some(encode_error(&error))),
    };
    v1::ProducePartitionResult {
        topic,
        topic_id,
        partition: Some(result.partition.get()),
        error,
        base_offset: produced.base_offset.map(Offset::get),
        last_offset: produced.last_offset.map(Offset::get),
        leader_epoch: produced.leader_epoch.map(|epoch| epoch.get()),
        log_start_offset: produced.log_start.map(Offset::get),
    }
}

/// Reads an answer: the results, and how long to hold back.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_response(message: v1::ProduceResponse) -> Decoded<(Vec<ProduceResult>, Duration)> {
    let result = |(index, result): (usize, v1::ProducePartitionResult)| {
        decode_result(result).map_err(|e| e.within("partitions", index))
    };
    let results = message.partitions.into_iter().enumerate().map(result).collect::<Decoded<_>>()?;
    Ok((results, Duration::from_millis(message.throttle_ms.unwrap_or(0).into())))
}

fn decode_result(message: v1::ProducePartitionResult) -> Decoded<ProduceResult> {
    let produced = Produced {
        base_offset: optional_offset("base_offset", message.base_offset)?,
        last_offset: optional_offset("last_offset", message.last_offset)?,
        leader_epoch: optional_epoch("leader_epoch", message.leader_epoch)?,
        log_start: optional_offset("log_start_offset", message.log_start_offset)?,
    };
    Ok(ProduceResult {
        topic: decode_topic_ref(&message.topic, &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        outcome: message.error.map(decode_error).transpose()?.map_or(Ok(produced), Err),
    })
}

#[cfg(test)]
#[path = "produce_test.rs"]
mod tests;
