//! Whole walks of a follower against a leader, from the cases that other systems met.

use highwater_types::ErrorCode;

use super::follower_test_support::*;
use super::*;
use crate::Randomness;
use crate::test_values::{epoch, millis, offset};

fn following(own: &TestLog, leader_epoch: i32, high_watermark: i64) -> FollowerPartition {
    FollowerPartition::new(config(), start(leader_epoch, own.state(), high_watermark)).unwrap()
}

#[test]
fn kafka_6361_several_rounds_find_the_common_prefix() {
    // KIP-279. Follower 0@0 1@2 2@4, leader 0@1 1@3 2@5, current epoch 5.
    let mut own = TestLog::of_epochs(&[0, 2, 4]);
    let leader = TestLog::of_epochs(&[1, 3, 5]);
    let mut follower = following(&own, 5, 0);
    let asked = fetch_until_settled(&mut follower, &mut own, &leader);
    assert_eq!(
        asked,
        [
            (3, Some(4), Some((3, 2))),
            (2, Some(2), Some((1, 1))),
            (1, Some(0), Some((0, 0))),
            (0, None, None),
            (3, Some(5), None),
        ]
    );
    assert_eq!(own, leader);
    assert_eq!(own.epochs, cache_of(&[(1, 0), (3, 1), (5, 2)]));
}

#[test]
fn kip_279_a_batch_of_a_leadership_in_between_is_cut_wherever_it_ends() {
    // The leader led in epoch 1 up to 20 and again in epoch 3; the follower led in epoch 2 from 11 on, and its batch ended
    // before, at, or after the offset at which epoch 3 begins.
    let leader = TestLog::of_epochs(&[&[1; 21][..], &[3; 10]].concat());
    for last in [15, 20, 25] {
        let mut own = TestLog::of_epochs(&[&[1; 11][..], &vec![2; last - 10]].concat());
        let mut follower = following(&own, 3, 0);
        let asked = fetch_until_settled(&mut follower, &mut own, &leader);
        let end = i64::try_from(last).unwrap() + 1;
        assert_eq!(
            asked,
            [(end, Some(2), Some((1, 21))), (11, Some(1), None), (31, Some(3), None)],
            "up to {last}"
        );
        assert_eq!(own, leader);
    }
}

#[test]
fn kip_101_given_1_a_restart_cuts_nothing() {
    // B holds 0..1@0 and knows the high watermark 1: it starts at its log end, not at the high watermark.
    let own = TestLog::of_epochs(&[0, 0]);
    let follower = following(&own, 0, 1);
    assert_eq!((follower.log_end(), follower.high_watermark()), (offset(2), offset(1)));
    assert_eq!(ask(&follower, 0).position.fetch_offset, offset(2));
}

#[test]
fn kip_101_given_2_the_returning_leader_cuts_what_the_new_one_does_not_have() {
    // A 0..1@0, B 0@0 led epoch 1 and wrote 1@1.
    let mut own = TestLog::of_epochs(&[0, 0]);
    let leader = TestLog::of_epochs(&[0, 1]);
    let mut follower = following(&own, 1, 1);
    let asked = fetch_until_settled(&mut follower, &mut own, &leader);
    assert_eq!(asked, [(2, Some(0), Some((0, 1))), (1, Some(0), None), (2, Some(1), None)]);
    assert_eq!(own, leader);
}

#[test]
fn kafka_15608_an_epoch_without_records_is_cut_and_nothing_loops() {
    // Leader 0..9@5, leads again in epoch 8 from offset 10; the follower's cache also holds (6,10).
    let mut own = TestLog::of_epochs(&[5; 10]);
    own.epochs.assign(epoch(6), offset(10));
    let mut leader = TestLog::of_epochs(&[5; 10]);
    leader.epochs.assign(epoch(8), offset(10));
    let mut follower = following(&own, 8, 10);
    let asked = fetch_until_settled(&mut follower, &mut own, &leader);
    assert_eq!(asked, [(10, Some(6), Some((5, 10))), (10, Some(5), None)]);
    assert_eq!(follower.log_end(), offset(10), "no record was cut");
}

#[test]
fn redpanda_11360_the_same_offset_of_another_epoch_is_cut_and_not_skipped() {
    // Follower 0..2@1, leader 0@1 1..2@2: offsets 1 and 2 exist on both.
    let mut own = TestLog::of_epochs(&[1, 1, 1]);
    let leader = TestLog::of_epochs(&[1, 2, 2]);
    let mut follower = following(&own, 2, 1);
    fetch_until_settled(&mut follower, &mut own, &leader);
    assert_eq!(own, leader);
}

#[test]
fn kafka_14704_a_diverging_answer_moves_the_high_watermark_only_by_the_cut() {
    // LEO 8 (0..4@1 5..7@2), high watermark 5; the answer says diverging (1,5), whatever its high watermark is.
    let mut own = TestLog::of_epochs(&[1, 1, 1, 1, 1, 2, 2, 2]);
    let leader = TestLog::of_epochs(&[1, 1, 1, 1, 1, 3, 3, 3]);
    let mut follower = following(&own, 3, 5);
    let sent = ask(&follower, 0);
    let diverging = leader.serve(&sent, offset(8));
    let action = answer(&mut follower, 0, &diverging);
    assert_eq!(follower.high_watermark(), offset(5), "before the cut");
    execute(&mut follower, &mut own, &action, &diverging);
    assert_eq!((follower.log_end(), follower.high_watermark()), (offset(5), offset(5)), "after it");

    let sent = ask(&follower, 1);
    let rest = leader.serve(&sent, offset(8));
    let action = answer(&mut follower, 1, &rest);
    assert_eq!(follower.high_watermark(), offset(5), "the new 5..7 are not in the log yet");
    execute(&mut follower, &mut own, &action, &rest);
    assert_eq!(follower.high_watermark(), offset(8));
}

#[test]
fn kafka_7104_a_log_start_inside_the_answer_is_followed_as_far_as_the_log_goes() {
    let mut follower = follower(1, 116_617, 1, 116_617);
    let snapshot = crate::fetch::Snapshot {
        high_watermark: offset(116_753),
        log_start: offset(116_753),
        log_end: offset(116_753),
    };
    let batches = vec![span(116_617, 116_619, 1)];
    let facts = AnswerFacts::Records { snapshot, batches, bad: None };
    let FollowerAction::Append { generation, bytes } = answer(&mut follower, 0, &facts) else {
        panic!("appends")
    };
    drain(&mut follower);
    follower.on_appended(generation, bytes as u64, offset(116_619));
    let expected = [
        FollowerEffect::HighWatermarkAdvanced(offset(116_619)),
        FollowerEffect::RaiseLogStart(offset(116_619)),
    ];
    assert_eq!(drain(&mut follower), expected, "high watermark first, log start not above it");
    follower.on_log_start(offset(116_619));

    // Then out of range, and on to the leader's start.
    let action = answer(&mut follower, 1, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
    let range = LeaderOffsets { log_start: offset(116_753), log_end: offset(116_753) };
    let action = follower.on_leader_offsets(generation, Ok(range), millis(2), &mut Randomness::new(1));
    let FollowerAction::RestartAt { offset: at, .. } = action else { panic!("{action:?}") };
    assert_eq!(at, offset(116_753));
    let log = LogState { log_start: at, log_end: at, flushed_end: at, last_epoch: None };
    follower.on_log_replaced(log, follower.incarnation(), Vec::new());
    assert_eq!((follower.log_start(), follower.high_watermark()), (at, at));
    assert_eq!(follower.state(millis(3)), PartitionFetchState::Fetching);
}

#[test]
fn a_cut_below_the_high_watermark_is_refused() {
    // Only an unclean election makes it legal (design.md 6.5).
    let mut own = TestLog::of_epochs(&[1, 1, 1]);
    let leader = TestLog::of_epochs(&[1, 2]);
    let mut follower = following(&own, 2, 3);
    let sent = ask(&follower, 0);
    let diverging = leader.serve(&sent, offset(2));
    let action = answer(&mut follower, 0, &diverging);
    execute(&mut follower, &mut own, &action, &diverging);
    let reason = FailureReason::CutBelowHighWatermark { cut: offset(1), high_watermark: offset(3) };
    assert_eq!(follower.state(millis(1)), PartitionFetchState::Failed { reason, retry_at: None });
    assert_eq!(own.end(), offset(3), "nothing was cut");
    assert_eq!(follower.intent(millis(1)), FetchIntent::Not);
}

#[test]
fn an_empty_log_begins_at_the_leaders_first_batch_even_when_it_starts_before() {
    // S47: the leader's log start 15 lies inside its batch 10..19.
    let log =
        LogState { log_start: offset(15), log_end: offset(15), flushed_end: offset(15), last_epoch: None };
    let mut follower = FollowerPartition::new(config(), start(1, log, 15)).unwrap();
    let action = answer(&mut follower, 0, &records(30, 15, &[span(10, 20, 1), span(20, 30, 1)]));
    assert_eq!(action, FollowerAction::Append { generation: 0, bytes: 2 * BATCH_BYTES });
    assert_eq!(follower.fetch_offset(), offset(30));
}

#[test]
fn a_log_never_begins_above_the_directorys_highest_epoch() {
    let below = FollowerStart { highest_epoch: Some(epoch(9)), ..start(8, state(0, None), 0) };
    assert_eq!(FollowerPartition::new(config(), below).unwrap_err().code, ErrorCode::FencedLeaderEpoch);
    let below = start(8, state(3, Some(9)), 0);
    assert!(FollowerPartition::new(config(), below).is_err());
}
