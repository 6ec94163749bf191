//! A leader for transition tests: node 1 (incarnation 10) leads, with followers 2 and 3 (incarnations 20, 30).

use highwater_types::{Durability, IsrMember, LeaderEpochCache, Offset};

use super::{LeaderConfig, LeaderEffect, LeaderPartition, LeaderStart};
use crate::fetch::{FetchPartition, ReadPlan};
use crate::test_values::{cache, epoch, fetch, incarnation, log, member, millis, ms, node, offset, record};
use highwater_types::ReplicationError;

pub(super) fn config() -> LeaderConfig {
    LeaderConfig {
        durability: Durability::PageCache,
        min_insync_replicas: 1,
        replica_lag_time_max: ms(30_000),
        high_watermark_propagation: ms(20),
        isr_retry: ms(500),
    }
}

/// Epoch 7 begins at log end 100 with the high watermark 90: `0..99@5`.
pub(super) fn start(isr: &[IsrMember]) -> LeaderStart {
    LeaderStart {
        node: node(1),
        record: record(&[1, 2, 3], isr, 7, 3),
        log_start: Offset::ZERO,
        log_end: offset(100),
        flushed_end: offset(100),
        high_watermark: offset(90),
    }
}

pub(super) fn leader_with(config: LeaderConfig, isr: &[IsrMember]) -> LeaderPartition {
    LeaderPartition::new(config, start(isr), millis(0)).unwrap()
}

pub(super) fn leader(isr: &[IsrMember]) -> LeaderPartition {
    leader_with(config(), isr)
}

pub(super) fn alone() -> Vec<IsrMember> {
    vec![member(1, 10)]
}

pub(super) fn all() -> Vec<IsrMember> {
    vec![member(1, 10), member(2, 20), member(3, 30)]
}

pub(super) fn epochs() -> LeaderEpochCache {
    cache(&[(5, 0), (7, 100)])
}

/// A fetch of node `raw` (incarnation `raw * 10`) in epoch 7, which holds what it reads from.
pub(super) fn fetch_of(raw: u64, from: i64) -> FetchPartition {
    let last_epoch = if from > 100 { 7 } else { 5 };
    FetchPartition {
        incarnation: Some(incarnation(raw * 10)),
        current_leader_epoch: Some(epoch(7)),
        ..fetch(from, (from > 0).then_some(last_epoch))
    }
}

pub(super) fn send(
    leader: &mut LeaderPartition,
    from: i32,
    request: &FetchPartition,
    now: u64,
) -> Result<ReadPlan, ReplicationError> {
    let (end, epochs) = (leader.log_end(), epochs());
    leader.on_follower_fetch(node(from), request, &log(0, end.get(), &epochs), millis(now))
}

pub(super) fn drain(leader: &mut LeaderPartition) -> Vec<LeaderEffect> {
    std::iter::from_fn(|| leader.poll_effect()).collect()
}
