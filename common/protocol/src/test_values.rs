//! Short constructors for tests, so that a case reads like the logs in its comment (`0..4@1` = offsets 0 to 4, epoch 1).

use std::time::Duration;

use highwater_types::{
    EpochEntry, Incarnation, IsrMember, LeaderEpoch, LeaderEpochCache, MonotonicTime, NodeId, Offset,
    OffsetAndEpoch, PartitionEpoch, PartitionIndex, PartitionRecord, TopicId, TopicIdPartition,
};

use crate::fetch::{FetchPartition, LogFacts, TopicRef};

pub(crate) fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(crate) fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::new(raw).unwrap()
}

pub(crate) fn node(raw: i32) -> NodeId {
    NodeId::new(raw).unwrap()
}

pub(crate) fn incarnation(raw: u64) -> Incarnation {
    Incarnation::new(raw).unwrap()
}

pub(crate) fn member(raw: i32, incarnation_raw: u64) -> IsrMember {
    IsrMember { node: node(raw), incarnation: incarnation(incarnation_raw) }
}

pub(crate) fn at(offset_raw: i64, epoch_raw: i32) -> OffsetAndEpoch {
    OffsetAndEpoch { offset: offset(offset_raw), epoch: epoch(epoch_raw) }
}

pub(crate) fn millis(raw: u64) -> MonotonicTime {
    MonotonicTime::from_millis(raw)
}

pub(crate) fn ms(raw: u64) -> Duration {
    Duration::from_millis(raw)
}

/// A cache of (epoch, start offset).
pub(crate) fn cache(entries: &[(i32, i64)]) -> LeaderEpochCache {
    entries.iter().map(|(e, start)| EpochEntry { epoch: epoch(*e), start: offset(*start) }).collect()
}

pub(crate) fn topic() -> TopicId {
    "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap()
}

pub(crate) fn log(start: i64, end: i64, epochs: &LeaderEpochCache) -> LogFacts<'_> {
    LogFacts { log_start: offset(start), log_end: offset(end), epochs }
}

/// A record led by node 1.
pub(crate) fn record(
    replicas: &[i32],
    isr: &[IsrMember],
    leader_epoch: i32,
    version: u64,
) -> PartitionRecord {
    let id = TopicIdPartition::new(topic(), PartitionIndex::new(0).unwrap());
    PartitionRecord {
        isr: isr.to_vec(),
        leader: Some(node(1)),
        leader_epoch: Some(epoch(leader_epoch)),
        partition_epoch: PartitionEpoch::new(version),
        ..PartitionRecord::new(id, replicas.iter().copied().map(node).collect())
    }
}

/// A fetch of incarnation 20 in epoch 0 that holds what it reads from.
pub(crate) fn fetch(from: i64, last_fetched_epoch: Option<i32>) -> FetchPartition {
    FetchPartition {
        topic: TopicRef::Id(topic()),
        partition: PartitionIndex::new(0).unwrap(),
        incarnation: Some(incarnation(20)),
        current_leader_epoch: Some(epoch(0)),
        fetch_offset: offset(from),
        acknowledged_offset: Some(offset(from)),
        last_fetched_epoch: last_fetched_epoch.map(epoch),
        log_start: Some(Offset::ZERO),
        high_watermark: Some(Offset::ZERO),
        max_bytes: 1 << 20,
        paused: false,
        throttled: false,
        suspended: false,
        failed: false,
        order: None,
    }
}
