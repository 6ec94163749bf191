//! What a follower makes of records that its leader has lost.

use highwater_types::{Durability, EpochEntry, ErrorCode};

use super::super::follower_test_support::*;
use super::super::{FollowerConfig, FollowerStart, LogState, PartitionFetchState};
use super::*;
use crate::Randomness;
use crate::follower::AnswerFacts;
use crate::test_values::{epoch, incarnation, millis, node, offset};

const DATA_LOSS: AnswerFacts = AnswerFacts::Error(ErrorCode::DataLoss);

fn lost(start: i64, end: i64) -> LostRange {
    LostRange { start: offset(start), end: offset(end), epochs: Vec::new() }
}

fn own(start: i64, end: i64) -> Range<Offset> {
    offset(start)..offset(end)
}

/// Follows in epoch 5 with 0..10, of which these are damaged.
fn damaged(damage: Vec<Range<Offset>>) -> FollowerPartition {
    let start = FollowerStart { damage, ..start(5, state(10, Some(5)), 10) };
    FollowerPartition::new(config(), start).unwrap()
}

/// Asks, hears what the leader has lost, and then `answer`.
fn hear(
    follower: &mut FollowerPartition,
    now: u64,
    lost: &[LostRange],
    answer: &AnswerFacts,
) -> FollowerAction {
    let sent = ask(follower, now);
    follower.on_sent(&sent);
    follower.on_leader_lost(&sent.position, lost);
    follower.on_answer(&sent.position, answer, millis(now), &mut Randomness::new(now))
}

#[test]
fn what_the_leader_has_lost_is_passed_over_and_fetching_goes_on_behind_it() {
    let mut follower = follower(5, 10, 5, 10);
    let began = EpochEntry { epoch: epoch(5), start: offset(16) };
    let gone = LostRange { epochs: vec![began], ..lost(8, 20) };
    let action = hear(&mut follower, 0, std::slice::from_ref(&gone), &DATA_LOSS);
    assert_eq!(action, FollowerAction::PassOver { generation: follower.generation(), lost: gone });
    assert_eq!(follower.state(millis(0)), PartitionFetchState::Truncating, "it asks nothing meanwhile");
    follower.on_log_replaced(state(20, Some(5)), incarnation(20), vec![own(10, 20)]);
    assert_eq!(ask(&follower, 0).position.fetch_offset, offset(20), "at once");
    assert_eq!((follower.acknowledged(), follower.is_damaged()), (offset(20), false));
    assert_eq!(follower.repairable(), []);
}

#[test]
fn damage_of_the_leader_that_is_not_on_record_as_lost_is_waited_for() {
    for gone in [vec![], vec![lost(0, 10)], vec![lost(11, 20)]] {
        let mut follower = follower(5, 10, 5, 10);
        assert_eq!(hear(&mut follower, 0, &gone, &DATA_LOSS), FollowerAction::Nothing);
        assert!(matches!(follower.state(millis(0)), PartitionFetchState::Delayed { .. }));
    }
}

#[test]
fn nothing_is_passed_over_before_what_is_queued_in_front_of_it_is_appended() {
    let mut follower = follower(5, 10, 5, 10);
    let gone = [lost(12, 20)];
    hear(&mut follower, 0, &gone, &records(30, 10, &[span(10, 12, 5)]));
    assert_eq!(hear(&mut follower, 1, &gone, &DATA_LOSS), FollowerAction::Nothing);
    follower.on_appended(follower.generation(), 100, offset(12));
    assert!(matches!(hear(&mut follower, 9_000, &gone, &DATA_LOSS), FollowerAction::PassOver { .. }));
}

#[test]
fn only_what_the_leader_can_repair_bounds_the_acknowledgement() {
    let mut follower = damaged(vec![own(2, 4), own(6, 9)]);
    let empty = records(10, 10, &[]);
    for (gone, acknowledged, repairable) in [
        (vec![], 2, vec![own(2, 4), own(6, 9)]),
        (vec![lost(2, 4)], 6, vec![own(6, 9)]),
        (vec![lost(0, 3), lost(6, 8)], 3, vec![own(3, 4), own(8, 9)]),
        (vec![lost(2, 4), lost(7, 8)], 6, vec![own(6, 7), own(8, 9)]),
        (vec![lost(0, 10)], 10, vec![]),
    ] {
        hear(&mut follower, 0, &gone, &empty);
        assert_eq!(follower.acknowledged(), offset(acknowledged), "{gone:?}");
        assert_eq!(follower.repairable(), repairable, "{gone:?}");
    }
    assert!(follower.owes_acknowledgement(), "and what is held now is acknowledged at once");
}

#[test]
fn the_next_leader_may_have_what_this_one_has_lost() {
    let mut follower = damaged(vec![own(4, 8)]);
    hear(&mut follower, 0, &[lost(4, 8)], &records(10, 10, &[]));
    assert_eq!(follower.acknowledged(), offset(10));
    let before = ask(&follower, 0).position;
    assert!(follower.on_leader(node(3), epoch(6), state(10, Some(5)), millis(1)));
    assert_eq!((follower.acknowledged(), follower.repairable()), (offset(4), vec![own(4, 8)]));
    follower.on_leader_lost(&before, &[lost(4, 8)]);
    assert_eq!(
        follower.acknowledged(),
        offset(4),
        "a late answer of the leader of before says nothing of it"
    );
}

#[test]
fn what_was_acknowledged_behind_a_loss_is_not_forgotten_by_the_next_leadership() {
    let mut follower = damaged(vec![own(4, 8)]);
    hear(&mut follower, 0, &[lost(4, 8)], &records(10, 10, &[]));
    hear(&mut follower, 1, &[lost(4, 8)], &records(10, 10, &[]));
    assert!(follower.on_leader(node(3), epoch(6), state(10, Some(5)), millis(1)));
    assert_eq!(follower.acknowledged(), offset(4), "now the damage bounds it");
    assert!(
        follower.loses_acknowledged(offset(9)),
        "a disk that fails takes what the leader of before counted"
    );
    assert!(!follower.loses_acknowledged(offset(10)));
}

#[test]
fn a_lost_tail_beyond_the_leaders_end_is_forgotten_where_the_logs_are_equal() {
    let config = FollowerConfig { durability: Durability::Fsync, ..config() };
    let log = LogState { flushed_end: offset(8), ..state(10, Some(5)) };
    let start = FollowerStart { damage: vec![own(3, 4), own(10, 14)], ..start(5, log, 10) };
    let mut follower = FollowerPartition::new(config, start).unwrap();
    hear(&mut follower, 0, &[], &records(12, 10, &[]));
    assert_eq!(drain(&mut follower), [], "the leader has some of it");
    hear(&mut follower, 1, &[], &records(12, 10, &[span(10, 12, 5)]));
    hear(&mut follower, 2, &[], &records(12, 10, &[]));
    assert_eq!(drain(&mut follower), [], "which is not appended yet");
    follower.on_appended(follower.generation(), 100, offset(12));
    hear(&mut follower, 3, &[], &records(12, 10, &[]));
    let generation = follower.generation();
    assert_eq!(drain(&mut follower), [FollowerEffect::ForgetLostTail { generation }]);
    follower.on_damage(vec![own(3, 4)]);
    hear(&mut follower, 4, &[], &records(12, 10, &[]));
    assert_eq!(drain(&mut follower), [], "what lies within the log is no tail");
}
