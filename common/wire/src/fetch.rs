//! Fetch: the request and the answer, in both directions.
//!
//! What holds: an absent limit becomes its default, a limit of 0 stays 0 (design.md 3); what is mandatory for a follower
//! is checked here, what depends on the topic (`acknowledged_offset` under `fsync`) where the topic is known. Bytes of
//! records are moved, never copied.

use std::time::Duration;

use highwater_proto::v1;
/// What Fetch decodes into and encodes from; for those who may not depend on the core.
pub use highwater_protocol::fetch::{
    DEFAULT_MAX_BYTES, DEFAULT_MAX_WAIT, DEFAULT_MIN_BYTES, FetchPartition, FetchRequest, FetchResponse,
    Fetched, LostRange, NO_SESSION, PartitionResult, RequestOrder, Snapshot, ThrottleReason, TopicRef,
};
use highwater_types::{EpochEntry, MonotonicTime, Offset, OffsetAndEpoch, PartitionIndex, TraceContext};

use crate::caller::Caller;
use crate::error::{decode_error, encode_error};
use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, enumeration, epoch,
    offset, optional_epoch, optional_incarnation, optional_node, optional_offset, parse, required,
};
use crate::limits::{MAX_LOST_EPOCHS, MAX_LOST_RANGES, MAX_PARTITIONS, MAX_TRACES};

/// Reads a request.
///
/// # Errors
/// The field that is not valid, contradicts `caller`, or asks for what is not offered (READ_COMMITTED).
pub fn decode_request(caller: &Caller, message: v1::FetchRequest) -> Decoded<FetchRequest> {
    check_isolation(message.isolation_level)?;
    let replica = optional_node("replica_id", message.replica_id)?;
    caller.check_replica(replica)?;
    caller.check_repair(message.repair, replica)?;
    let session_id = message.session_id.unwrap_or(0);
    let session_epoch = message.session_epoch.unwrap_or(NO_SESSION);
    // An incremental request of a session may name no partition; any other asks for nothing.
    if message.partitions.is_empty() && session_epoch <= 0 {
        return Err(DecodeError::invalid("partitions", "is empty: name at least one partition"));
    }
    check_count("partitions", message.partitions.len())?;
    check_count("forgotten", message.forgotten.len())?;
    let max_bytes = message.max_bytes.unwrap_or(DEFAULT_MAX_BYTES);
    let order = decode_order(message.request_start, message.request_number)?;
    let partition = |(index, partition): (usize, v1::FetchPartition)| {
        let decoded = decode_partition(partition, max_bytes, replica.is_some());
        let decoded = decoded.map_err(|e| e.within("partitions", index))?;
        Ok(FetchPartition { order, ..decoded })
    };
    let forgotten = |(index, partition): (usize, v1::ForgottenPartition)| {
        decode_forgotten(&partition).map_err(|e| e.within("forgotten", index))
    };
    Ok(FetchRequest {
        cluster: message.cluster_id.map(|text| parse("cluster_id", &text)).transpose()?,
        replica,
        repair: message.repair,
        session_id,
        session_epoch,
        max_wait: message.max_wait_ms.map_or(DEFAULT_MAX_WAIT, |ms| Duration::from_millis(ms.into())),
        min_bytes: message.min_bytes.unwrap_or(DEFAULT_MIN_BYTES),
        max_bytes,
        partitions: message.partitions.into_iter().enumerate().map(partition).collect::<Decoded<_>>()?,
        forgotten: message.forgotten.into_iter().enumerate().map(forgotten).collect::<Decoded<_>>()?,
    })
}

/// Both numbers or none: one without the other places no request.
fn decode_order(start: Option<u64>, number: Option<u64>) -> Decoded<Option<RequestOrder>> {
    if start.is_none() && number.is_none() {
        return Ok(None);
    }
    let (start, number) = (required("request_start", start)?, required("request_number", number)?);
    Ok(Some(RequestOrder { start, number }))
}

fn check_isolation(raw: i32) -> Decoded<()> {
    let allowed = "ISOLATION_LEVEL_READ_UNCOMMITTED";
    match enumeration("isolation_level", raw, allowed)? {
        v1::IsolationLevel::Unspecified | v1::IsolationLevel::ReadUncommitted => Ok(()),
        v1::IsolationLevel::ReadCommitted => Err(DecodeError::unsupported(
            "isolation_level",
            "ISOLATION_LEVEL_READ_COMMITTED is not offered: there is no transactions coordinator",
        )),
    }
}

pub(crate) fn check_count(path: &str, count: usize) -> Decoded<()> {
    if count <= MAX_PARTITIONS {
        return Ok(());
    }
    Err(DecodeError::invalid(path, format!("{count} entries; at most {MAX_PARTITIONS} are allowed")))
}

fn decode_partition(
    message: v1::FetchPartition,
    max_bytes: u32,
    is_follower: bool,
) -> Decoded<FetchPartition> {
    let fetch_offset = offset("fetch_offset", message.fetch_offset)?;
    let acknowledged_offset = optional_offset("acknowledged_offset", message.acknowledged_offset)?;
    if let Some(acknowledged) = acknowledged_offset.filter(|acknowledged| *acknowledged > fetch_offset) {
        return Err(DecodeError::invalid(
            "acknowledged_offset",
            format!("{acknowledged} is above fetch_offset {fetch_offset}: nobody holds what it has not read"),
        ));
    }
    let incarnation = optional_incarnation("incarnation", message.incarnation.as_deref())?;
    let current_leader_epoch = optional_epoch("current_leader_epoch", message.current_leader_epoch)?;
    if is_follower {
        required("incarnation", incarnation)?;
        required("current_leader_epoch", current_leader_epoch)?;
    }
    Ok(FetchPartition {
        topic: decode_topic_ref(&message.topic, &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        incarnation,
        current_leader_epoch,
        fetch_offset,
        acknowledged_offset,
        last_fetched_epoch: optional_epoch("last_fetched_epoch", message.last_fetched_epoch)?,
        log_start: optional_offset("log_start_offset", message.log_start_offset)?,
        high_watermark: optional_offset("high_watermark", message.high_watermark)?,
        max_bytes: message.partition_max_bytes.unwrap_or(max_bytes),
        paused: message.paused,
        throttled: message.throttled,
        suspended: message.suspended,
        failed: message.failed,
        order: None,
    })
}

fn decode_forgotten(message: &v1::ForgottenPartition) -> Decoded<(TopicRef, PartitionIndex)> {
    Ok((decode_topic_ref(&message.topic, &message.topic_id)?, decode_partition_index(message.partition)?))
}

/// The request on the wire.
#[must_use]
pub fn encode_request(request: FetchRequest) -> v1::FetchRequest {
    let forgotten = |(topic, partition): (TopicRef, PartitionIndex)| {
        let (topic, topic_id) = encode_topic_ref(&topic);
        v1::ForgottenPartition { topic, topic_id, partition: Some(partition.get()) }
    };
    // All partitions of a request have its place.
    let order = request.partitions.first().and_then(|partition| partition.order);
    v1::FetchRequest {
        cluster_id: request.cluster.map(Into::into),
        replica_id: request.replica.map(|node| node.get()),
        session_id: Some(request.session_id),
        session_epoch: Some(request.session_epoch),
        max_wait_ms: Some(millis(request.max_wait)),
        min_bytes: Some(request.min_bytes),
        max_bytes: Some(request.max_bytes),
        isolation_level: v1::IsolationLevel::ReadUncommitted.into(),
        partitions: request.partitions.into_iter().map(encode_partition).collect(),
        forgotten: request.forgotten.into_iter().map(forgotten).collect(),
        request_start: order.map(|order| order.start),
        request_number: order.map(|order| order.number),
        repair: request.repair,
    }
}

fn encode_partition(partition: FetchPartition) -> v1::FetchPartition {
    let (topic, topic_id) = encode_topic_ref(&partition.topic);
    v1::FetchPartition {
        topic,
        topic_id,
        partition: Some(partition.partition.get()),
        incarnation: partition.incarnation.map(|incarnation| incarnation.to_string()),
        current_leader_epoch: partition.current_leader_epoch.map(|epoch| epoch.get()),
        fetch_offset: Some(partition.fetch_offset.get()),
        last_fetched_epoch: partition.last_fetched_epoch.map(|epoch| epoch.get()),
        log_start_offset: partition.log_start.map(Offset::get),
        high_watermark: partition.high_watermark.map(Offset::get),
        partition_max_bytes: Some(partition.max_bytes),
        acknowledged_offset: partition.acknowledged_offset.map(Offset::get),
        paused: partition.paused,
        throttled: partition.throttled,
        suspended: partition.suspended,
        failed: partition.failed,
    }
}

/// The answer on the wire.
#[must_use]
pub fn encode_response(response: FetchResponse) -> v1::FetchResponse {
    v1::FetchResponse {
        session_id: Some(response.session_id),
        partitions: response.partitions.into_iter().map(encode_result).collect(),
        received_ns: Some(response.received.as_nanos()),
        answered_ns: Some(response.answered.as_nanos()),
        throttle_ms: Some(millis(response.throttle)),
        throttle_reason: encode_throttle_reason(response.throttle_reason).into(),
    }
}

fn encode_result(result: PartitionResult) -> v1::FetchPartitionResult {
    let common = v1::FetchPartitionResult {
        topic: result.topic.map(Into::into).unwrap_or_default(),
        topic_id: result.topic_id.map(|id| id.to_string()).unwrap_or_default(),
        partition: Some(result.partition.get()),
        lost: result.lost.into_iter().take(MAX_LOST_RANGES).map(encode_lost).collect(),
        ..v1::FetchPartitionResult::default()
    };
    let fetched = match result.outcome {
        Err(error) => return v1::FetchPartitionResult { error: Some(encode_error(&error)), ..common },
        Ok(fetched) => fetched,
    };
    let trace = |(offset, context): (Offset, TraceContext)| v1::RecordTrace {
        offset: Some(offset.get()),
        traceparent: context.to_string(),
    };
    v1::FetchPartitionResult {
        high_watermark: Some(fetched.snapshot.high_watermark.get()),
        log_start_offset: Some(fetched.snapshot.log_start.get()),
        log_end_offset: Some(fetched.snapshot.log_end.get()),
        diverging_epoch: fetched.diverging.map(|at| v1::DivergingEpoch {
            leader_epoch: Some(at.epoch.get()),
            end_offset: Some(at.offset.get()),
        }),
        appended_ns: fetched.appended.map(MonotonicTime::as_nanos),
        traces: fetched.traces.into_iter().take(MAX_TRACES).map(trace).collect(),
        records: fetched.records,
        ..common
    }
}

/// What a leader has lost, on the wire.
#[must_use]
pub fn encode_lost(lost: LostRange) -> v1::LostRange {
    let epoch = |entry: EpochEntry| v1::EpochStart {
        leader_epoch: Some(entry.epoch.get()),
        start_offset: Some(entry.start.get()),
    };
    let older = lost.epochs.len().saturating_sub(MAX_LOST_EPOCHS);
    v1::LostRange {
        start_offset: Some(lost.start.get()),
        end_offset: Some(lost.end.get()),
        epochs: lost.epochs.into_iter().skip(older).map(epoch).collect(),
    }
}

/// Reads an answer.
///
/// # Errors
/// The field that is missing or not valid: the peer does not speak this protocol.
pub fn decode_response(message: v1::FetchResponse) -> Decoded<FetchResponse> {
    let result = |(index, result): (usize, v1::FetchPartitionResult)| {
        decode_result(result).map_err(|e| e.within("partitions", index))
    };
    Ok(FetchResponse {
        session_id: message.session_id.unwrap_or(0),
        received: MonotonicTime::from_nanos(required("received_ns", message.received_ns)?),
        answered: MonotonicTime::from_nanos(required("answered_ns", message.answered_ns)?),
        throttle: Duration::from_millis(message.throttle_ms.unwrap_or(0).into()),
        throttle_reason: decode_throttle_reason(message.throttle_reason),
        partitions: message.partitions.into_iter().enumerate().map(result).collect::<Decoded<_>>()?,
    })
}

/// In order and without overlap, as whoever works with them expects; nothing else is a range.
fn decode_lost(messages: Vec<v1::LostRange>) -> Decoded<Vec<LostRange>> {
    let began = |entry: v1::EpochStart| {
        Ok(EpochEntry {
            epoch: epoch("lost.epochs.leader_epoch", entry.leader_epoch)?,
            start: offset("lost.epochs.start_offset", entry.start_offset)?,
        })
    };
    let mut lost: Vec<LostRange> = Vec::with_capacity(messages.len());
    for message in messages {
        let start = offset("lost.start_offset", message.start_offset)?;
        let end = offset("lost.end_offset", message.end_offset)?;
        if end <= start || lost.last().is_some_and(|before| start < before.end) {
            return Err(DecodeError::invalid("lost", format!("{start}..{end} is empty or out of order")));
        }
        lost.push(LostRange {
            start,
            end,
            epochs: message.epochs.into_iter().map(began).collect::<Decoded<_>>()?,
        });
    }
    Ok(lost)
}

fn decode_result(mut message: v1::FetchPartitionResult) -> Decoded<PartitionResult> {
    let optional_text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(PartitionResult {
        topic: optional_text(&message.topic).map(|text| parse("topic", &text)).transpose()?,
        topic_id: optional_text(&message.topic_id).map(|text| parse("topic_id", &text)).transpose()?,
        partition: decode_partition_index(message.partition)?,
        lost: decode_lost(std::mem::take(&mut message.lost))?,
        outcome: match message.error {
            Some(error) => Err(decode_error(error)?),
            None => Ok(decode_fetched(message)?),
        },
    })
}

fn decode_fetched(message: v1::FetchPartitionResult) -> Decoded<Fetched> {
    let diverging = |at: v1::DivergingEpoch| {
        Ok(OffsetAndEpoch {
            offset: offset("diverging_epoch.end_offset", at.end_offset)?,
            epoch: epoch("diverging_epoch.leader_epoch", at.leader_epoch)?,
        })
    };
    // A trace context that is malformed belongs to no trace; the records are as good.
    let trace = |trace: v1::RecordTrace| {
        let context = trace.traceparent.parse().ok();
        let offset = offset("traces.offset", trace.offset);
        context.map(|context| offset.map(|offset| (offset, context)))
    };
    Ok(Fetched {
        snapshot: Snapshot {
            high_watermark: offset("high_watermark", message.high_watermark)?,
            log_start: offset("log_start_offset", message.log_start_offset)?,
            log_end: offset("log_end_offset", message.log_end_offset)?,
        },
        diverging: message.diverging_epoch.map(diverging).transpose()?,
        records: message.records,
        appended: message.appended_ns.map(MonotonicTime::from_nanos),
        traces: message.traces.into_iter().take(MAX_TRACES).filter_map(trace).collect::<Decoded<_>>()?,
    })
}

pub(crate) const fn encode_throttle_reason(reason: Option<ThrottleReason>) -> v1::ThrottleReason {
    match reason {
        None => v1::ThrottleReason::Unspecified,
        Some(ThrottleReason::ReplicationQuota) => v1::ThrottleReason::ReplicationQuota,
        Some(ThrottleReason::ClientQuota) => v1::ThrottleReason::ClientQuota,
    }
}

/// A reason that this program does not know is left out: it only explains.
fn decode_throttle_reason(raw: i32) -> Option<ThrottleReason> {
    match v1::ThrottleReason::try_from(raw).ok()? {
        v1::ThrottleReason::Unspecified => None,
        v1::ThrottleReason::ReplicationQuota => Some(ThrottleReason::ReplicationQuota),
        v1::ThrottleReason::ClientQuota => Some(ThrottleReason::ClientQuota),
    }
}

/// Whole milliseconds, rounded up so that a wait is never shorter than asked; at most `u32::MAX`.
pub(crate) fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "fetch_test.rs"]
mod tests;
