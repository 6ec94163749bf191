//! Each lettered case of a parked fetch, and what must not end a wait.

use super::*;
use crate::test_values::{epoch, millis, ms, node, offset};

fn parked(from: i64) -> ParkedPartition {
    ParkedPartition {
        leader_epoch: epoch(1),
        fetch_offset: offset(from),
        max_bytes: 1000,
        known_high_watermark: Some(offset(10)),
        withheld: false,
    }
}

/// Log end and high watermark 10, one segment from 0.
fn facts() -> ProbeFacts {
    ProbeFacts {
        leader_epoch: epoch(1),
        upper: offset(10),
        log_end: offset(10),
        active_segment: offset(0),
        available_bytes: 0,
        propagated_high_watermark: offset(10),
        diverging: false,
    }
}

fn appended(bytes: u64) -> Probe {
    Probe::Readable(ProbeFacts { upper: offset(11), log_end: offset(11), available_bytes: bytes, ..facts() })
}

fn follower(min_bytes: u32, partitions: Vec<ParkedPartition>) -> DelayedFetch {
    DelayedFetch::new(Requester::Follower(node(2)), min_bytes, ms(500), millis(1000), partitions)
}

fn one(partition: ParkedPartition, probe: Probe) -> Option<FetchCompletion> {
    follower(1, vec![partition]).on_probe(0, probe)
}

#[test]
fn a_caught_up_fetch_waits_until_its_time_is_up() {
    let mut fetch = follower(1, vec![parked(10)]);
    assert_eq!(fetch.on_probe(0, Probe::Readable(facts())), None);
    assert_eq!(fetch.deadline(), millis(1500));
    assert_eq!(fetch.on_time(millis(1499)), None);
    assert_eq!(fetch.on_time(millis(1500)), Some(FetchCompletion::TimeUp));
}

#[test]
fn a_fetch_that_must_not_wait_or_asks_for_nothing_is_answered_at_once() {
    let at_once = |min_bytes, wait, partitions: Vec<_>| {
        DelayedFetch::new(Requester::Consumer, min_bytes, ms(wait), millis(0), partitions).completed()
    };
    assert_eq!(at_once(1, 0, vec![parked(10)]), Some(FetchCompletion::NoWait));
    assert_eq!(at_once(1, 500, vec![]), Some(FetchCompletion::NoWait));
    assert_eq!(at_once(0, 500, vec![parked(10)]), Some(FetchCompletion::NoWait));
    assert_eq!(at_once(1, 500, vec![parked(10)]), None);
}

#[test]
fn a_to_d_a_partition_that_cannot_be_read_ends_the_wait() {
    for why in [
        FetchCompletion::LeadershipLost,
        FetchCompletion::ReplicaGone,
        FetchCompletion::UnknownPartition,
        FetchCompletion::StorageFailed,
    ] {
        assert_eq!(one(parked(10), Probe::Unreadable(why)), Some(why));
    }
}

#[test]
fn e_another_epoch_ends_the_wait() {
    let probe = Probe::Readable(ProbeFacts { leader_epoch: epoch(2), ..facts() });
    assert_eq!(one(parked(10), probe), Some(FetchCompletion::EpochFenced));
}

#[test]
fn f_an_offset_in_an_older_segment_or_beyond_the_end_ends_the_wait() {
    let rolled = ProbeFacts { active_segment: offset(9), available_bytes: 1, ..facts() };
    let mut fetch = follower(1_000_000, vec![parked(5)]);
    assert_eq!(fetch.on_probe(0, Probe::Readable(rolled)), Some(FetchCompletion::OffsetLeftBehind));
    assert_eq!(one(parked(11), Probe::Readable(facts())), Some(FetchCompletion::OffsetLeftBehind));
}

#[test]
fn f_a_roll_at_the_log_end_leaves_nobody_behind() {
    // liftbridge#313, KAFKA-3159: the active segment is empty and begins where the fetch reads.
    let rolled = ProbeFacts { active_segment: offset(10), ..facts() };
    assert_eq!(one(parked(10), Probe::Readable(rolled)), None);
}

#[test]
fn f_a_consumer_at_the_high_watermark_is_not_left_behind_by_a_roll() {
    let rolled = ProbeFacts { active_segment: offset(20), log_end: offset(20), ..facts() };
    let mut fetch = DelayedFetch::new(Requester::Consumer, 1, ms(500), millis(0), vec![parked(10)]);
    assert_eq!(fetch.on_probe(0, Probe::Readable(rolled)), None);
}

#[test]
fn g_bytes_accumulate_over_partitions_each_counted_once() {
    let mut fetch = follower(100, vec![parked(10), parked(10)]);
    assert_eq!(fetch.on_probe(0, appended(60)), None);
    assert_eq!(fetch.on_probe(0, appended(70)), None, "the same bytes again");
    assert_eq!(fetch.on_probe(1, appended(29)), None);
    assert_eq!(fetch.on_probe(1, appended(30)), Some(FetchCompletion::EnoughBytes));
}

#[test]
fn g_a_partition_counts_at_most_its_cap() {
    let mut fetch = follower(1500, vec![parked(10), parked(10)]);
    assert_eq!(fetch.on_probe(0, appended(1_000_000)), None);
    assert_eq!(fetch.on_probe(1, appended(500)), Some(FetchCompletion::EnoughBytes));
}

#[test]
fn g_a_withheld_partition_counts_nothing_and_is_not_left_behind() {
    // S30, S70: else it would be answered again and again without getting anything.
    let withheld = ParkedPartition { withheld: true, ..parked(5) };
    let probe = ProbeFacts { active_segment: offset(9), available_bytes: 500, ..facts() };
    assert_eq!(one(withheld, Probe::Readable(probe)), None);
}

#[test]
fn h_a_divergence_ends_the_wait() {
    let probe = Probe::Readable(ProbeFacts { diverging: true, ..facts() });
    assert_eq!(one(parked(10), probe), Some(FetchCompletion::Diverging));
}

#[test]
fn i_only_a_high_watermark_that_the_follower_does_not_know_is_news() {
    let news = Probe::Readable(ProbeFacts { propagated_high_watermark: offset(11), ..facts() });
    let unknown = ParkedPartition { known_high_watermark: None, ..parked(10) };
    assert_eq!(one(parked(10), news), Some(FetchCompletion::HighWatermarkNews));
    assert_eq!(one(parked(10), Probe::Readable(facts())), None, "an equal one parks (KIP-1166)");
    assert_eq!(one(unknown, news), None);
    let mut consumer = DelayedFetch::new(Requester::Consumer, 1, ms(500), millis(0), vec![parked(10)]);
    assert_eq!(consumer.on_probe(0, news), None, "a consumer is woken by bytes");
}

#[test]
fn a_completed_fetch_keeps_its_first_reason() {
    let mut fetch = follower(1, vec![parked(10)]);
    assert_eq!(fetch.on_immediate(FetchCompletion::PartitionError), Some(FetchCompletion::PartitionError));
    assert_eq!(fetch.on_probe(0, appended(50)), Some(FetchCompletion::PartitionError));
    assert_eq!(fetch.on_time(millis(9999)), Some(FetchCompletion::PartitionError));
}
