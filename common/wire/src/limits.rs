//! How large a message may be, on both sides of a call (S81; cases.md: tonic's 4 MiB default).
//!
//! What holds: a limit is derived from what was agreed about *records* (max bytes, and the largest batch, because a first
//! batch passes whole, S32) plus headroom for everything around them. A limit on the payload alone would refuse an answer
//! that obeys it.

/// Room for a message's own fields and framing, in bytes.
const MESSAGE_HEADROOM: usize = 64 * 1024;

/// Room for the fields of one partition's answer beside its records, in bytes: names, ids, offsets, an error with its
/// hint, up to [`MAX_TRACES`] trace contexts and [`MAX_LOST_RANGES`] lost ranges.
const PARTITION_HEADROOM: usize = 12 * 1024;

/// The most trace contexts in one partition's answer.
pub const MAX_TRACES: usize = 16;

/// The most lost ranges that one partition's answer tells of: as many as a checkpoint holds.
pub const MAX_LOST_RANGES: usize = 64;

/// The most leaderships that are told of one lost range: the newest, on which a follower goes on behind it.
pub const MAX_LOST_EPOCHS: usize = 4;

/// The most partitions that one request may name.
pub const MAX_PARTITIONS: usize = 100_000;

/// The largest answer to DescribeCluster, DescribeTopics and the replication views that a client takes, in bytes: about
/// 100,000 partitions.
pub const DESCRIPTION_LIMIT: usize = 128 << 20;

/// The largest message that an answer to a Fetch can be: decode limit of the caller, in bytes.
#[must_use]
pub const fn fetch_response(max_bytes: u32, largest_batch: u32, partitions: usize) -> usize {
    records(max_bytes, largest_batch).saturating_add(partitions.saturating_mul(PARTITION_HEADROOM))
}

/// The largest message that a request with `records` bytes of records can be: decode limit of the service, in bytes.
#[must_use]
pub const fn produce_request(records: usize, partitions: usize) -> usize {
    records.saturating_add(MESSAGE_HEADROOM).saturating_add(partitions.saturating_mul(PARTITION_HEADROOM))
}

/// The largest answer to a ReadRecords, in bytes. Decoded records can be larger than their compressed batch; the service
/// stops at `max_bytes` of decoded data, and at least one record passes.
#[must_use]
pub const fn read_records_response(max_bytes: u32, largest_batch: u32) -> usize {
    // Every value may travel twice: as bytes and as text.
    records(max_bytes, largest_batch).saturating_mul(2).saturating_add(MESSAGE_HEADROOM)
}

const fn records(max_bytes: u32, largest_batch: u32) -> usize {
    let records = max_bytes as usize + largest_batch as usize;
    records.saturating_add(MESSAGE_HEADROOM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch;
    use bytes::Bytes;
    use highwater_protocol::fetch::{
        FetchResponse, Fetched, LostRange, PartitionResult, Snapshot, ThrottleReason,
    };
    use highwater_types::{
        EpochEntry, ErrorCode, LeaderEpoch, LeaderHint, MonotonicTime, NodeId, Offset, OffsetAndEpoch,
        PartitionIndex, ReplicationError, TopicId, TraceContext,
    };
    use prost::Message as _;
    use std::time::Duration;

    fn largest(outcome: Result<Fetched, ReplicationError>, partitions: usize) -> FetchResponse {
        let began = EpochEntry { epoch: LeaderEpoch::new(i32::MAX).unwrap(), start: Offset::MAX };
        let epochs = vec![began; 2 * MAX_LOST_EPOCHS];
        let lost = LostRange { start: Offset::MAX, end: Offset::MAX, epochs };
        let one = PartitionResult {
            topic: Some("x".repeat(249).parse().unwrap()),
            topic_id: Some(TopicId::random()),
            partition: PartitionIndex::new(i32::MAX).unwrap(),
            outcome,
            lost: vec![lost; 2 * MAX_LOST_RANGES],
        };
        FetchResponse {
            session_id: i32::MAX,
            received: MonotonicTime::from_nanos(u64::MAX),
            answered: MonotonicTime::from_nanos(u64::MAX),
            throttle: Duration::from_secs(u64::from(u32::MAX)),
            throttle_reason: Some(ThrottleReason::ClientQuota),
            partitions: vec![one; partitions],
        }
    }

    #[test]
    fn the_largest_answer_that_obeys_max_bytes_is_within_the_limit() {
        let snapshot = Snapshot { high_watermark: Offset::MAX, log_start: Offset::MAX, log_end: Offset::MAX };
        let cut = OffsetAndEpoch { offset: Offset::MAX, epoch: LeaderEpoch::new(i32::MAX).unwrap() };
        for max_bytes in [4_194_303_u32, 4_194_304, 4_194_305, 8_388_608, 10_485_760] {
            for partitions in [1_usize, 200] {
                let each = max_bytes as usize / partitions;
                let fetched = Fetched {
                    diverging: Some(cut),
                    records: Bytes::from(vec![0; each]),
                    appended: Some(MonotonicTime::from_nanos(u64::MAX)),
                    traces: vec![
                        (Offset::MAX, TraceContext::new(u128::MAX, u64::MAX, true).unwrap());
                        MAX_TRACES
                    ],
                    ..Fetched::empty(snapshot)
                };
                let message = fetch::encode_response(largest(Ok(fetched), partitions));
                assert!(message.encoded_len() > each * partitions);
                assert!(message.encoded_len() <= fetch_response(max_bytes, 0, partitions), "{max_bytes}");
            }
        }
    }

    #[test]
    fn an_answer_of_errors_only_is_within_the_limit() {
        let endpoint = format!("{}:9400", "h".repeat(255)).parse().unwrap();
        let hint =
            LeaderHint { leader: NodeId::new(i32::MAX), epoch: LeaderEpoch::FIRST, endpoint: Some(endpoint) };
        let error =
            ReplicationError::new(ErrorCode::Internal, "\u{1F600}".repeat(10_000)).with_leader(Some(hint));
        for partitions in [1, 1_000] {
            let message = fetch::encode_response(largest(Err(error.clone()), partitions));
            assert!(message.encoded_len() <= fetch_response(0, 0, partitions));
        }
    }
}
