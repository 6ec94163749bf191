//! What a follower does with one answer, rule by rule.

use highwater_types::{Durability, ErrorCode};

use super::super::follower_test_support::*;
use super::super::*;
use super::*;
use crate::fetch::{LogFacts, Snapshot};
use crate::test_values::{at, epoch, incarnation, millis, node, offset};

const MAX_ATTEMPTS: usize = 3;

fn random() -> Randomness {
    Randomness::new(7)
}

/// Follows epoch 5 with log `0..9@5`, high watermark 10.
fn at_ten() -> FollowerPartition {
    follower(5, 10, 5, 10)
}

#[test]
fn records_that_continue_the_log_are_appended_and_the_next_fetch_reads_after_them() {
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &records(30, 10, &[span(10, 15, 5), span(15, 20, 5)]));
    assert_eq!(action, FollowerAction::Append { generation: 0, bytes: 2 * BATCH_BYTES });
    assert_eq!((follower.fetch_offset(), follower.log_end()), (offset(20), offset(10)), "reads ahead");
    assert_eq!(ask(&follower, 1).acknowledged, offset(10), "the acknowledgement trails");
    follower.on_appended(0, 2 * BATCH_BYTES as u64, offset(20));
    assert_eq!((ask(&follower, 2).acknowledged, follower.lag()), (offset(20), Some(10)));
}

#[test]
fn an_answer_to_another_position_is_void() {
    let stale = |change: fn(&mut FetchPosition)| {
        let mut follower = at_ten();
        let mut sent = ask(&follower, 0).position;
        change(&mut sent);
        let before = format!("{follower:?}");
        let action =
            follower.on_answer(&sent, &records(30, 20, &[span(10, 20, 5)]), millis(0), &mut random());
        assert_eq!(before, format!("{follower:?}"), "nothing of it is applied");
        action
    };
    assert_eq!(stale(|sent| sent.fetch_offset = offset(9)), FollowerAction::Nothing);
    assert_eq!(stale(|sent| sent.last_fetched_epoch = Some(epoch(4))), FollowerAction::Nothing);
    assert_eq!(stale(|sent| sent.leader_epoch = epoch(4)), FollowerAction::Nothing);
    assert_eq!(stale(|sent| sent.incarnation = incarnation(21)), FollowerAction::Nothing);
    assert_eq!(stale(|sent| sent.generation = 9), FollowerAction::Nothing);
}

#[test]
fn a_truncation_voids_every_other_answer_and_queued_append() {
    let mut follower = at_ten();
    let parked = ask(&follower, 0);
    answer(&mut follower, 0, &records(30, 10, &[span(10, 20, 5)]));
    let diverging = AnswerFacts::Diverging(at(10, 5));
    let action = answer(&mut follower, 1, &diverging);
    assert_eq!(action, FollowerAction::Truncate { generation: 1, at: at(10, 5) });
    assert_eq!(follower.intent(millis(1)), FetchIntent::Not);
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!((follower.log_end(), follower.queued_bytes()), (offset(10), 0));
    follower.on_log_replaced(state(10, Some(5)), incarnation(20), Vec::new());
    let late =
        follower.on_answer(&parked.position, &records(30, 20, &[span(10, 20, 5)]), millis(2), &mut random());
    assert_eq!(late, FollowerAction::Nothing, "though offset and epochs are the same again");
}

#[test]
fn a_batch_of_a_newer_epoch_than_the_requests_is_left() {
    // KAFKA-18723: request epoch 5, answer 10@5 11@6.
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &records(12, 10, &[span(10, 11, 5), span(11, 12, 6)]));
    assert_eq!(action, FollowerAction::Append { generation: 0, bytes: BATCH_BYTES });
    follower.on_appended(0, BATCH_BYTES as u64, offset(11));
    assert_eq!(follower.log_end(), offset(11));
}

#[test]
fn holes_between_batches_are_legal_and_overlaps_are_not() {
    let mut holes = at_ten();
    let action = answer(&mut holes, 0, &records(3_000_000_011, 10, &[span(3_000_000_010, 3_000_000_011, 5)]));
    assert_eq!(action, FollowerAction::Append { generation: 0, bytes: BATCH_BYTES });
    let mut overlap = at_ten();
    let action = answer(&mut overlap, 0, &records(20, 10, &[span(10, 15, 5), span(14, 20, 5)]));
    assert_eq!(action, FollowerAction::Append { generation: 0, bytes: BATCH_BYTES }, "up to the overlap");
    let mut below = at_ten();
    assert_eq!(answer(&mut below, 0, &records(20, 10, &[span(9, 12, 5)])), FollowerAction::Nothing);
    assert!(matches!(below.state(millis(0)), PartitionFetchState::Delayed { .. }));
}

#[test]
fn an_epoch_that_falls_is_refused() {
    let mut follower = follower(7, 10, 6, 10);
    assert_eq!(answer(&mut follower, 0, &records(20, 10, &[span(10, 12, 5)])), FollowerAction::Nothing);
    assert!(matches!(follower.state(millis(0)), PartitionFetchState::Delayed { .. }));
}

#[test]
fn progress_comes_from_the_batch_header_so_an_empty_batch_moves_on() {
    // KAFKA-17076: batch 8737..8747 without records.
    let mut follower = follower(5, 8737, 5, 8737);
    answer(&mut follower, 0, &records(8748, 8737, &[span(8737, 8748, 5)]));
    follower.on_appended(0, BATCH_BYTES as u64, offset(8748));
    assert_eq!(ask(&follower, 1).position.fetch_offset, offset(8748));
}

#[test]
fn a_full_queue_pauses_and_drains() {
    let mut follower = at_ten();
    let mut next = 10;
    while !ask(&follower, 0).paused {
        let batch = span(next, next + 5, 5);
        assert!(matches!(
            answer(&mut follower, 0, &records(1000, 10, &[batch])),
            FollowerAction::Append { .. }
        ));
        next += 5;
    }
    assert_eq!(follower.queued_bytes(), 1000, "config().read_ahead_bytes");
    assert_eq!(ask(&follower, 0).max_bytes, 0);
    follower.on_appended(0, BATCH_BYTES as u64, offset(15));
    assert!(!ask(&follower, 0).paused);
}

#[test]
fn under_fsync_only_what_is_flushed_is_acknowledged() {
    let config = FollowerConfig { durability: Durability::Fsync, ..config() };
    let mut follower = FollowerPartition::new(config, start(5, state(10, Some(5)), 10)).unwrap();
    answer(&mut follower, 0, &records(20, 10, &[span(10, 20, 5)]));
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!(ask(&follower, 1).acknowledged, offset(10));
    assert!(!follower.owes_acknowledgement());
    follower.on_flushed(follower.log_version(), offset(20));
    assert_eq!(ask(&follower, 1).acknowledged, offset(20));
    assert!(follower.owes_acknowledgement());
    let sent = ask(&follower, 2);
    follower.on_sent(&sent);
    assert!(!follower.owes_acknowledgement());
}

#[test]
fn a_flush_that_a_truncation_overtook_acknowledges_nothing() {
    let config = FollowerConfig { durability: Durability::Fsync, ..config() };
    let log = LogState { flushed_end: offset(8), ..state(10, Some(5)) };
    let mut follower = FollowerPartition::new(config, start(5, log, 8)).unwrap();
    let flush_began = follower.log_version();
    answer(&mut follower, 0, &AnswerFacts::Diverging(at(9, 5)));
    follower.on_log_replaced(
        LogState { flushed_end: offset(8), ..state(9, Some(5)) },
        incarnation(20),
        Vec::new(),
    );
    follower.on_flushed(flush_began, offset(10));
    assert_eq!(follower.acknowledged(), offset(8));
}

#[test]
fn a_flush_survives_what_voids_answers_only() {
    let config = FollowerConfig { durability: Durability::Fsync, ..config() };
    let log = LogState { flushed_end: offset(8), ..state(10, Some(5)) };
    let mut follower = FollowerPartition::new(config, start(5, log, 8)).unwrap();
    let flush_began = follower.log_version();
    let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    assert!(matches!(action, FollowerAction::AskOffsets { .. }));
    follower.on_flushed(flush_began, offset(10));
    assert_eq!(follower.acknowledged(), offset(10));
}

#[test]
fn unrepaired_damage_bounds_the_acknowledgement() {
    let damaged = FollowerStart { damage: vec![offset(4)..offset(8)], ..start(5, state(10, Some(5)), 10) };
    let mut follower = FollowerPartition::new(config(), damaged).unwrap();
    assert_eq!(follower.acknowledged(), offset(4));
    answer(&mut follower, 0, &records(10, 10, &[]));
    let lacks = |follower: &FollowerPartition| (follower.lag(), follower.lacking(), follower.is_damaged());
    assert_eq!(lacks(&follower), (Some(0), Some(6), true), "the leader counts what is acknowledged");
    follower.on_damage(Vec::new());
    assert_eq!(lacks(&follower), (Some(0), Some(0), false));
}

#[test]
fn the_high_watermark_follows_the_leaders_within_the_own_log() {
    let mut follower = follower(5, 10, 5, 4);
    answer(&mut follower, 0, &records(20, 8, &[]));
    assert_eq!(follower.high_watermark(), offset(8), "an empty answer carries it");
    answer(&mut follower, 1, &records(20, 15, &[span(10, 20, 5)]));
    assert_eq!(follower.high_watermark(), offset(10), "not above the own end");
    assert_eq!(
        ask(&follower, 2).high_watermark,
        offset(15),
        "what was heard is told, or the leader would not park"
    );
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!(follower.high_watermark(), offset(15));
    answer(&mut follower, 3, &records(20, 12, &[]));
    assert_eq!(follower.high_watermark(), offset(15), "falls only by truncation");
}

#[test]
fn leader_errors_that_may_pass_are_retried_without_end() {
    let mut follower = at_ten();
    let mut now = 0;
    for _ in 0..50 {
        assert_eq!(
            answer(&mut follower, now, &AnswerFacts::Error(ErrorCode::UnknownLeaderEpoch)),
            FollowerAction::Nothing
        );
        let FetchIntent::NotBefore(until) = follower.intent(millis(now)) else { panic!("delayed") };
        assert!(until.since(millis(now)) <= config().backoff.max);
        now = until.as_nanos() / 1_000_000 + 1;
    }
    assert_eq!(follower.state(millis(now)), PartitionFetchState::Fetching);
    answer(&mut follower, now, &records(20, 10, &[span(10, 20, 5)]));
    assert_eq!(follower.fetch_offset(), offset(20));
}

#[test]
fn a_running_delay_is_not_extended() {
    // S13: a second request of the same position was under way.
    let mut follower = at_ten();
    let sent = ask(&follower, 0).position;
    let error = AnswerFacts::Error(ErrorCode::NotLeaderOrFollower);
    follower.on_answer(&sent, &error, millis(0), &mut random());
    let first = follower.intent(millis(1));
    follower.on_answer(&sent, &error, millis(1), &mut random());
    assert_eq!(follower.intent(millis(1)), first);
}

#[test]
fn a_fenced_follower_waits_for_the_new_epoch() {
    let mut follower = at_ten();
    answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::FencedLeaderEpoch));
    let failed = PartitionFetchState::Failed { reason: FailureReason::Fenced, retry_at: None };
    assert_eq!(follower.state(millis(1_000_000)), failed);
    assert!(
        !follower.on_leader(node(1), epoch(5), state(10, Some(5)), millis(1)),
        "the same epoch is no news"
    );
    assert_eq!(follower.state(millis(1)), failed);
    assert!(follower.on_leader(node(3), epoch(6), state(10, Some(5)), millis(2)));
    assert_eq!(follower.state(millis(2)), PartitionFetchState::Fetching);
    assert_eq!((follower.leader(), ask(&follower, 2).position.leader_epoch), (node(3), epoch(6)));
}

#[test]
fn the_epoch_already_held_keeps_offset_lag_and_delay() {
    let mut follower = at_ten();
    answer(&mut follower, 0, &records(50, 10, &[span(10, 20, 5)]));
    answer(&mut follower, 1, &AnswerFacts::Error(ErrorCode::NotLeaderOrFollower));
    let before = format!("{follower:?}");
    assert!(!follower.on_leader(node(1), epoch(5), state(10, Some(5)), millis(2)));
    assert!(!follower.on_leader(node(1), epoch(4), state(10, Some(5)), millis(2)), "an older one, too");
    assert_eq!(before, format!("{follower:?}"));
}

#[test]
fn a_new_epoch_discards_the_append_queue_and_read_ahead() {
    let mut follower = at_ten();
    answer(&mut follower, 0, &records(50, 10, &[span(10, 20, 5)]));
    assert!(follower.on_leader(node(1), epoch(6), state(10, Some(5)), millis(1)));
    assert_eq!((follower.fetch_offset(), follower.queued_bytes(), follower.lag()), (offset(10), 0, None));
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!(follower.log_end(), offset(10), "the queued append is void");
}

#[test]
fn bad_records_are_asked_for_again_a_bounded_number_of_times() {
    let mut follower = at_ten();
    let snapshot = Snapshot { high_watermark: offset(10), log_start: Offset::ZERO, log_end: offset(20) };
    let bad = AnswerFacts::Records { snapshot, batches: Vec::new(), bad: Some("CRC is wrong".to_owned()) };
    let mut now = 0;
    for _ in 0..MAX_ATTEMPTS {
        answer(&mut follower, now, &bad);
        assert!(matches!(follower.state(millis(now)), PartitionFetchState::Delayed { .. }));
        now += 10_000;
    }
    answer(&mut follower, now, &bad);
    let reason = FailureReason::BadRecords("CRC is wrong".to_owned());
    assert_eq!(follower.state(millis(now)), PartitionFetchState::Failed { reason, retry_at: None });
    follower.on_resume(state(10, Some(5)), millis(now));
    assert_eq!(follower.state(millis(now)), PartitionFetchState::Fetching);
}

#[test]
fn sound_batches_before_a_bad_one_are_kept() {
    let mut follower = at_ten();
    let snapshot = Snapshot { high_watermark: offset(10), log_start: Offset::ZERO, log_end: offset(20) };
    let answer_facts = AnswerFacts::Records {
        snapshot,
        batches: vec![span(10, 12, 5)],
        bad: Some("CRC is wrong".to_owned()),
    };
    assert_eq!(
        answer(&mut follower, 0, &answer_facts),
        FollowerAction::Append { generation: 0, bytes: BATCH_BYTES }
    );
}

#[test]
fn a_failed_disk_recovers_by_itself_a_bounded_number_of_times() {
    let mut follower = at_ten();
    let mut now = 0;
    for _ in 0..MAX_ATTEMPTS {
        follower.on_storage_failed("no space".to_owned(), millis(now), &mut random());
        let PartitionFetchState::Failed { retry_at: Some(at), .. } = follower.state(millis(now)) else {
            panic!("failed")
        };
        follower.on_tick(millis(now));
        assert_eq!(drain(&mut follower), []);
        now = at.as_nanos() / 1_000_000 + 1;
        follower.on_tick(millis(now));
        follower.on_tick(millis(now));
        assert_eq!(drain(&mut follower), [FollowerEffect::Recover], "once");
    }
    follower.on_storage_failed("no space".to_owned(), millis(now), &mut random());
    let PartitionFetchState::Failed { retry_at: None, .. } = follower.state(millis(now)) else {
        panic!("gave up")
    };

    assert!(
        follower.on_leader(node(1), epoch(6), state(10, Some(5)), millis(now)),
        "a new epoch tries again"
    );
    follower.on_tick(millis(now));
    assert_eq!(drain(&mut follower), [FollowerEffect::Recover]);
    follower.on_log_replaced(state(8, Some(5)), incarnation(20), Vec::new());
    assert_eq!(
        (ask(&follower, now).position.fetch_offset, follower.high_watermark()),
        (offset(8), offset(8))
    );
}

#[test]
fn an_append_and_a_flush_that_fail_together_count_once() {
    let log = LogState { flushed_end: offset(8), ..state(10, Some(5)) };
    let mut follower = FollowerPartition::new(config(), start(5, log, 8)).unwrap();
    assert!(follower.needs_flush());
    follower.on_storage_failed("append".to_owned(), millis(0), &mut random());
    let first = follower.state(millis(0));
    for _ in 0..2 * MAX_ATTEMPTS {
        follower.on_storage_failed("flush".to_owned(), millis(1), &mut random());
    }
    assert_eq!(follower.state(millis(1)), first);
    assert!(!follower.needs_flush(), "a failed log is recovered, not flushed");
}

#[test]
fn an_append_that_succeeds_ends_the_row_of_disk_failures() {
    let mut follower = at_ten();
    for _ in 0..2 * MAX_ATTEMPTS {
        follower.on_storage_failed("no space".to_owned(), millis(0), &mut random());
        assert!(matches!(follower.state(millis(0)), PartitionFetchState::Failed { retry_at: Some(_), .. }));
        let end = follower.log_end().get();
        follower.on_log_replaced(state(end, Some(5)), incarnation(20), Vec::new());
        let FollowerAction::Append { generation, bytes } =
            answer(&mut follower, 0, &records(100, 10, &[span(end, end + 1, 5)]))
        else {
            panic!("appends")
        };
        follower.on_appended(generation, bytes as u64, offset(end + 1));
    }
}

#[test]
fn out_of_range_inside_the_leaders_range_keeps_the_log_and_does_not_loop() {
    // KAFKA-2143: during a leader move; never a wipe. KAFKA-15608: no identical request without a wait.
    let mut follower = at_ten();
    let mut now = 0;
    let mut without_wait = 0;
    while !matches!(follower.state(millis(now)), PartitionFetchState::Failed { .. }) {
        match follower.intent(millis(now)) {
            FetchIntent::Ask(_) => {
                without_wait += 1;
                assert!(without_wait <= 3, "no identical request more than 3 times in a row without a wait");
                let action = answer(&mut follower, now, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
                let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
                let range = LeaderOffsets { log_start: Offset::ZERO, log_end: offset(50) };
                let action = follower.on_leader_offsets(generation, Ok(range), millis(now), &mut random());
                assert_eq!(action, FollowerAction::Nothing);
                assert_eq!(follower.log_end(), offset(10));
            }
            FetchIntent::NotBefore(until) => {
                without_wait = 0;
                now = until.as_nanos() / 1_000_000 + 1;
            }
            FetchIntent::Not => panic!("neither waits nor asks"),
        }
    }
    assert!(now > 0, "it waited");
}

#[test]
fn out_of_range_above_the_leaders_end_never_cuts() {
    // design.md 6.5: no epoch says where the logs part.
    let mut follower = at_ten();
    let mut now = 0;
    while !matches!(follower.state(millis(now)), PartitionFetchState::Failed { .. }) {
        let FollowerAction::AskOffsets { generation } =
            answer(&mut follower, now, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange))
        else {
            panic!("asks")
        };
        let range = LeaderOffsets { log_start: Offset::ZERO, log_end: offset(6) };
        let action = follower.on_leader_offsets(generation, Ok(range), millis(now), &mut random());
        assert_eq!((action, follower.log_end()), (FollowerAction::Nothing, offset(10)));
        now += 10_000;
    }
    let reason = FailureReason::AheadOfLeader { log_end: offset(10), leader_end: offset(6) };
    assert_eq!(follower.state(millis(now)), PartitionFetchState::Failed { reason, retry_at: None });
}

#[test]
fn out_of_range_below_the_leaders_start_restarts_there() {
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
    let range = LeaderOffsets { log_start: offset(40), log_end: offset(50) };
    let stale = follower.on_leader_offsets(generation - 1, Ok(range), millis(0), &mut random());
    assert_eq!(stale, FollowerAction::Nothing);
    let action = follower.on_leader_offsets(generation, Ok(range), millis(0), &mut random());
    assert_eq!(action, FollowerAction::RestartAt { generation: generation + 1, offset: offset(40) });
    let twice = follower.on_leader_offsets(generation, Ok(range), millis(0), &mut random());
    assert_eq!(twice, FollowerAction::Nothing);
}

#[test]
fn a_range_that_cannot_be_had_is_asked_for_again_later() {
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
    let unreachable = Err(ErrorCode::LeaderNotAvailable);
    assert_eq!(
        follower.on_leader_offsets(generation, unreachable, millis(0), &mut random()),
        FollowerAction::Nothing
    );
    assert!(matches!(follower.state(millis(0)), PartitionFetchState::Delayed { .. }));
    assert_eq!(ask(&follower, 10_000).position.fetch_offset, offset(10));
}

#[test]
fn a_leader_that_fences_the_question_for_its_range_stops_the_partition_until_the_new_epoch() {
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
    let fenced = Err(ErrorCode::FencedLeaderEpoch);
    let action = follower.on_leader_offsets(generation, fenced, millis(0), &mut random());
    assert_eq!((action, follower.log_end()), (FollowerAction::Nothing, offset(10)));
    let failed = PartitionFetchState::Failed { reason: FailureReason::Fenced, retry_at: None };
    assert_eq!(follower.state(millis(1_000_000)), failed);
    assert!(follower.on_leader(node(3), epoch(6), state(10, Some(5)), millis(2)));
    assert_eq!(follower.state(millis(2)), PartitionFetchState::Fetching);
}

#[test]
fn an_answer_without_records_tells_the_lag() {
    // S68, KAFKA-15080: else an idle partition would be throttled as one that lags.
    let mut follower = at_ten();
    assert_eq!(follower.lag(), None);
    answer(&mut follower, 0, &records(10, 10, &[]));
    assert_eq!(follower.lag(), Some(0));
}

#[test]
fn a_cut_below_what_this_incarnation_acknowledged_renews_it_first() {
    // The leader lost 8..9@5 within epoch 5, high watermark 8.
    let mut follower = follower(5, 10, 5, 8);
    answer(&mut follower, 0, &records(10, 8, &[]));
    let action = answer(&mut follower, 1, &AnswerFacts::Diverging(at(8, 5)));
    let FollowerAction::Truncate { generation, at: found } = action else { panic!("{action:?}") };
    let epochs = cache_of(&[(5, 0)]);
    let log = LogFacts { log_start: Offset::ZERO, log_end: offset(10), epochs: &epochs };
    assert_eq!(
        follower.plan_cut(generation, found, &log),
        CutPlan::To { end: offset(8), renew: true, loss: None }
    );
    assert_eq!(follower.plan_cut(generation - 1, found, &log), CutPlan::Void);
    follower.on_log_replaced(state(8, Some(5)), incarnation(21), Vec::new());
    assert_eq!(ask(&follower, 2).position.incarnation, incarnation(21));
}

#[test]
fn an_acknowledgement_that_was_found_to_differ_is_none() {
    // KIP-101: the returning leader offers 10 in the new epoch, and is told at once that the logs part at 8.
    let mut follower = follower(6, 10, 5, 8);
    let action = answer(&mut follower, 0, &AnswerFacts::Diverging(at(8, 5)));
    let FollowerAction::Truncate { generation, at: found } = action else { panic!("{action:?}") };
    let epochs = cache_of(&[(5, 0)]);
    let log = LogFacts { log_start: Offset::ZERO, log_end: offset(10), epochs: &epochs };
    assert_eq!(
        follower.plan_cut(generation, found, &log),
        CutPlan::To { end: offset(8), renew: false, loss: None }
    );
    assert!(follower.loses_acknowledged(offset(9)), "a loss of its own would count it: nobody knows");
}

#[test]
fn a_stale_incarnation_is_renewed_after_a_wait() {
    let mut follower = at_ten();
    let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::StaleIncarnation));
    assert_eq!(action, FollowerAction::RenewIncarnation { generation: 1 });
    follower.on_log_replaced(state(10, Some(5)), incarnation(21), Vec::new());
    let FetchIntent::NotBefore(until) = follower.intent(millis(0)) else {
        panic!("waits: renewing must not spin")
    };
    assert_eq!(ask(&follower, until.as_nanos() / 1_000_000 + 1).position.incarnation, incarnation(21));
}

#[test]
fn a_cut_that_changes_nothing_is_not_repeated_without_a_wait() {
    let mut follower = at_ten();
    let diverging = AnswerFacts::Diverging(at(10, 5));
    assert!(matches!(answer(&mut follower, 0, &diverging), FollowerAction::Truncate { .. }));
    follower.on_log_replaced(state(10, Some(5)), incarnation(20), Vec::new());
    assert_eq!(answer(&mut follower, 0, &diverging), FollowerAction::Nothing);
    assert!(matches!(follower.intent(millis(0)), FetchIntent::NotBefore(_)));
}

#[test]
fn out_of_range_while_appends_are_under_way_waits_for_them() {
    let mut follower = at_ten();
    answer(&mut follower, 0, &records(50, 10, &[span(10, 20, 5)]));
    let action = answer(&mut follower, 1, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    assert_eq!(action, FollowerAction::Nothing);
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!(follower.log_end(), offset(20), "they were not voided");
    let action = answer(&mut follower, 10_000, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
    assert!(matches!(action, FollowerAction::AskOffsets { .. }));
}

#[test]
fn an_append_that_the_log_refuses_voids_what_is_queued_behind_it() {
    // The CRC of 10..14 is wrong; 15..19 was read ahead.
    let mut follower = at_ten();
    answer(&mut follower, 0, &records(30, 10, &[span(10, 15, 5)]));
    answer(&mut follower, 1, &records(30, 10, &[span(15, 20, 5)]));
    follower.on_append_refused(0, Some(epoch(5)), "CRC is wrong".to_owned(), millis(2), &mut random());
    follower.on_appended(0, BATCH_BYTES as u64, offset(20));
    assert_eq!(
        (follower.log_end(), follower.fetch_offset(), follower.queued_bytes()),
        (offset(10), offset(10), 0)
    );
    let FetchIntent::NotBefore(until) = follower.intent(millis(2)) else { panic!("waits") };
    assert_eq!(ask(&follower, until.as_nanos() / 1_000_000 + 1).position.fetch_offset, offset(10));
}

#[test]
fn a_log_start_is_asked_for_once() {
    let mut follower = at_ten();
    let snapshot = Snapshot { high_watermark: offset(10), log_start: offset(4), log_end: offset(10) };
    let empty = AnswerFacts::Records { snapshot, batches: Vec::new(), bad: None };
    answer(&mut follower, 0, &empty);
    answer(&mut follower, 1, &empty);
    assert_eq!(drain(&mut follower), [FollowerEffect::RaiseLogStart(offset(4))]);
    assert_eq!(ask(&follower, 1).log_start, Offset::ZERO, "it is not raised yet");
    assert_eq!(follower.readable_from(), offset(4), "what is below was never compared with the leader");
    follower.on_log_start(offset(4));
    assert_eq!(ask(&follower, 2).log_start, offset(4));
}

#[test]
fn a_filled_tail_is_acknowledged() {
    let damaged = FollowerStart { damage: vec![offset(4)..offset(8)], ..start(5, state(10, Some(5)), 10) };
    let mut follower = FollowerPartition::new(config(), damaged).unwrap();
    follower.on_damage(vec![offset(7)..offset(8)]);
    assert_eq!(follower.acknowledged(), offset(7));
    follower.on_damage(Vec::new());
    assert_eq!(follower.acknowledged(), offset(10));
}
