//! The ordered check of a fetch: epoch, leadership, range, divergence (S18–S26).

use highwater_types::{ErrorCode, LeaderEpochCache, Offset};

use super::*;
use crate::test_values::{at, cache, epoch, fetch, log, offset};

const FOLLOWER: Requester = Requester::Follower(match NodeId::new(2) {
    Some(node) => node,
    None => unreachable!(),
});

fn facts<'a>(log: LogFacts<'a>, high_watermark: i64) -> PartitionFacts<'a> {
    PartitionFacts { leader_epoch: epoch(5), is_leader: true, high_watermark: offset(high_watermark), log }
}

fn code<T: std::fmt::Debug>(result: Result<T, ReplicationError>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn an_older_epoch_is_fenced_a_newer_one_unknown_and_an_absent_one_not_checked() {
    assert_eq!(code(check_epoch(Some(epoch(4)), epoch(5))), ErrorCode::FencedLeaderEpoch);
    assert_eq!(code(check_epoch(Some(epoch(6)), epoch(5))), ErrorCode::UnknownLeaderEpoch);
    assert_eq!(check_epoch(Some(epoch(5)), epoch(5)), Ok(()));
    assert_eq!(check_epoch(None, epoch(5)), Ok(()));
}

#[test]
fn the_epoch_is_checked_before_the_leadership() {
    let epochs = cache(&[(5, 0)]);
    let not_leading = PartitionFacts { is_leader: false, ..facts(log(0, 10, &epochs), 10) };
    let stale = FetchPartition { current_leader_epoch: Some(epoch(4)), ..fetch(0, None) };
    let current = FetchPartition { current_leader_epoch: Some(epoch(5)), ..fetch(0, None) };
    assert_eq!(code(check_leadership(FOLLOWER, &stale, &not_leading)), ErrorCode::FencedLeaderEpoch);
    assert_eq!(code(check_leadership(FOLLOWER, &current, &not_leading)), ErrorCode::NotLeaderOrFollower);
    assert_eq!(check_leadership(Requester::Consumer, &current, &not_leading), Ok(()));
}

#[test]
fn below_the_log_start_is_out_of_range_before_a_divergence_is_seen() {
    // KAFKA-12996: the epoch asked for would diverge, too.
    let epochs = cache(&[(3, 20), (5, 30)]);
    assert_eq!(check_position(offset(10), Some(epoch(2)), &log(20, 40, &epochs)), Position::OutOfRange);
    assert_eq!(
        check_position(offset(25), Some(epoch(2)), &log(20, 40, &epochs)),
        Position::Diverging(at(20, 2))
    );
}

#[test]
fn a_lower_epoch_or_an_earlier_end_diverges() {
    // leader: 0@1 1@3 2@5
    let epochs = cache(&[(1, 0), (3, 1), (5, 2)]);
    let log = log(0, 3, &epochs);
    assert_eq!(check_position(offset(3), Some(epoch(4)), &log), Position::Diverging(at(2, 3)));
    assert_eq!(check_position(offset(2), Some(epoch(2)), &log), Position::Diverging(at(1, 1)));
    assert_eq!(check_position(offset(1), Some(epoch(0)), &log), Position::Diverging(at(0, 0)));
    assert_eq!(
        check_position(offset(2), Some(epoch(1)), &log),
        Position::Diverging(at(1, 1)),
        "its end is earlier"
    );
    assert_eq!(check_position(offset(1), Some(epoch(1)), &log), Position::Agrees);
    assert_eq!(check_position(offset(0), None, &log), Position::Agrees);
    assert_eq!(check_position(offset(3), Some(epoch(5)), &log), Position::Agrees);
    assert_eq!(
        check_position(offset(4), Some(epoch(5)), &log),
        Position::Diverging(at(3, 5)),
        "beyond the end"
    );
}

#[test]
fn an_epoch_above_all_known_is_out_of_range_and_never_a_place_to_cut() {
    let epochs = cache(&[(5, 0)]);
    assert_eq!(check_position(offset(3), Some(epoch(6)), &log(0, 10, &epochs)), Position::OutOfRange);
    assert_eq!(
        check_position(offset(0), Some(epoch(0)), &log(0, 0, &LeaderEpochCache::new())),
        Position::OutOfRange
    );
}

#[test]
fn without_an_epoch_only_the_range_counts() {
    let epochs = cache(&[(5, 5)]);
    let log = log(5, 10, &epochs);
    assert_eq!(check_position(offset(4), None, &log), Position::OutOfRange);
    assert_eq!(check_position(offset(5), None, &log), Position::Agrees);
    assert_eq!(check_position(offset(10), None, &log), Position::Agrees);
    assert_eq!(check_position(offset(11), None, &log), Position::OutOfRange);
}

#[test]
fn a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark() {
    let epochs = cache(&[(5, 0)]);
    let facts = facts(log(0, 10, &epochs), 7);
    assert_eq!(plan_read(FOLLOWER, &fetch(3, None), &facts).unwrap().upper, offset(10));
    let plan = plan_read(Requester::Consumer, &fetch(3, None), &facts).unwrap();
    assert_eq!((plan.from, plan.upper, plan.has_records()), (offset(3), offset(7), true));
    let expected = Snapshot { high_watermark: offset(7), log_start: Offset::ZERO, log_end: offset(10) };
    assert_eq!(plan.snapshot, expected, "all three are of one moment (S22)");
}

#[test]
fn a_repair_reads_to_the_log_end_and_from_the_leader_only() {
    let epochs = cache(&[(5, 0)]);
    let leading = facts(log(0, 10, &epochs), 7);
    assert_eq!(plan_read(Requester::Repair, &fetch(3, None), &leading).unwrap().upper, offset(10));
    let following = PartitionFacts { is_leader: false, ..leading };
    let current = FetchPartition { current_leader_epoch: Some(epoch(5)), ..fetch(3, None) };
    let refused = check_leadership(Requester::Repair, &current, &following);
    assert_eq!(code(refused), ErrorCode::NotLeaderOrFollower);
}

#[test]
fn a_consumer_between_high_watermark_and_log_end_gets_an_empty_answer() {
    let epochs = cache(&[(5, 0)]);
    let facts = facts(log(0, 10, &epochs), 7);
    let plan = plan_read(Requester::Consumer, &fetch(9, None), &facts).unwrap();
    assert!(!plan.has_records());
    assert_eq!(code(plan_read(Requester::Consumer, &fetch(11, None), &facts)), ErrorCode::OffsetOutOfRange);
}

#[test]
fn a_diverging_position_reads_nothing() {
    let epochs = cache(&[(1, 0), (5, 4)]);
    let plan = plan_read(FOLLOWER, &fetch(6, Some(2)), &facts(log(0, 10, &epochs), 7)).unwrap();
    assert_eq!(plan.diverging, Some(at(4, 1)));
    assert!(!plan.has_records());
}

#[test]
fn no_epoch_is_undefined_and_never_the_log_end() {
    // KAFKA-6857
    let epochs = cache(&[(1, 0), (5, 4)]);
    let log = log(0, 10, &epochs);
    assert_eq!(epoch_end_offset(None, &log), None);
    assert_eq!(epoch_end_offset(Some(epoch(5)), &log), Some(at(10, 5)));
    assert_eq!(epoch_end_offset(Some(epoch(3)), &log), Some(at(4, 1)));
    assert_eq!(epoch_end_offset(Some(epoch(0)), &log), Some(at(0, 0)));
    assert_eq!(epoch_end_offset(Some(epoch(6)), &log), None);
}
