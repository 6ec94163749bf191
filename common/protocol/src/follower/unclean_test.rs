//! Cuts below the high watermark: only after an unclean election that is newer than it (design.md 6.5, 6.13).

use highwater_types::{LeaderEpochCache, Offset, UncleanLoss};

use super::super::follower_test_support::*;
use super::super::*;
use super::*;
use crate::test_values::{at, epoch, millis, node, offset};

/// `0..9@5`, high watermark 8 told in epoch 5; now in epoch 6, whose leader parts at 3.
fn parted(unclean: Option<i32>) -> (FollowerPartition, u64, LeaderEpochCache) {
    let mut follower = FollowerPartition::new(config(), start(6, state(10, Some(5)), 8)).unwrap();
    follower.on_unclean_election(unclean.map(epoch));
    let action = answer(&mut follower, 0, &AnswerFacts::Diverging(at(3, 5)));
    let FollowerAction::Truncate { generation, .. } = action else { panic!("{action:?}") };
    (follower, generation, cache_of(&[(5, 0)]))
}

fn plan(follower: &mut FollowerPartition, generation: u64, epochs: &LeaderEpochCache) -> CutPlan {
    let log = LogFacts { log_start: Offset::ZERO, log_end: offset(10), epochs };
    follower.plan_cut(generation, at(3, 5), &log)
}

#[test]
fn without_an_unclean_election_it_is_refused_and_the_partition_fails() {
    let (mut follower, generation, epochs) = parted(None);
    assert_eq!(plan(&mut follower, generation, &epochs), CutPlan::Refused);
    let PartitionFetchState::Failed { reason, retry_at } = follower.state(millis(0)) else {
        panic!("it failed")
    };
    assert_eq!(reason, FailureReason::CutBelowHighWatermark { cut: offset(3), high_watermark: offset(8) });
    assert_eq!(retry_at, None, "a person, or a new leadership");
}

#[test]
fn an_unclean_election_that_is_not_newer_than_the_high_watermark_does_not_help() {
    for old in [4, 5] {
        let (mut follower, generation, epochs) = parted(Some(old));
        assert_eq!(plan(&mut follower, generation, &epochs), CutPlan::Refused, "epoch {old}");
    }
}

#[test]
fn after_a_newer_one_it_is_cut_and_what_is_lost_is_told() {
    let (mut follower, generation, epochs) = parted(Some(6));
    let loss = UncleanLoss { election: epoch(6), from: offset(3), committed: offset(8), end: offset(10) };
    assert_eq!(
        plan(&mut follower, generation, &epochs),
        CutPlan::To { end: offset(3), renew: false, loss: Some(loss) }
    );
    follower.on_log_replaced(state(3, Some(5)), follower.incarnation(), Vec::new());
    assert_eq!(follower.high_watermark(), offset(3), "the high watermark follows the cut (S43)");
}

/// A high watermark of the last second can have died with the leader that knew it.
#[test]
fn what_goes_above_the_high_watermark_is_told_as_well_when_the_election_came_after_it() {
    let cut = |unclean, high_watermark| {
        let mut follower =
            FollowerPartition::new(config(), start(6, state(10, Some(5)), high_watermark)).unwrap();
        follower.on_unclean_election(unclean);
        let action = answer(&mut follower, 0, &AnswerFacts::Diverging(at(3, 5)));
        let FollowerAction::Truncate { generation, .. } = action else { panic!("{action:?}") };
        match plan(&mut follower, generation, &cache_of(&[(5, 0)])) {
            CutPlan::To { end, loss, .. } if end == offset(3) => loss,
            other @ (CutPlan::To { .. } | CutPlan::Void | CutPlan::Refused) => panic!("{other:?}"),
        }
    };
    let loss = UncleanLoss { election: epoch(6), from: offset(3), committed: offset(2), end: offset(10) };
    assert_eq!(cut(Some(epoch(6)), 2), Some(loss));
    assert_eq!(cut(Some(epoch(6)), 3), Some(UncleanLoss { committed: offset(3), ..loss }));
    assert_eq!(cut(Some(epoch(5)), 2), None, "these records came after that election");
    assert_eq!(cut(None, 2), None);
}

#[test]
fn a_note_of_an_earlier_record_is_not_forgotten() {
    let (mut follower, generation, epochs) = parted(Some(6));
    follower.on_unclean_election(None);
    follower.on_unclean_election(Some(epoch(2)));
    assert!(matches!(plan(&mut follower, generation, &epochs), CutPlan::To { loss: Some(_), .. }));
}

#[test]
fn a_new_leadership_alone_makes_no_high_watermark_newer() {
    // Epoch 6 was an unclean election, epoch 7 a clean one of the same leader; nothing was heard in 6.
    let mut follower = FollowerPartition::new(config(), start(6, state(10, Some(5)), 8)).unwrap();
    follower.on_unclean_election(Some(epoch(6)));
    assert!(follower.on_leader(node(1), epoch(7), state(10, Some(5)), millis(0)));
    assert_eq!(follower.high_watermark_epoch(), Some(epoch(5)), "what the checkpoint stores");
    let action = answer(&mut follower, 0, &AnswerFacts::Diverging(at(3, 5)));
    let FollowerAction::Truncate { generation, .. } = action else { panic!("{action:?}") };
    let epochs = cache_of(&[(5, 0)]);
    assert!(matches!(plan(&mut follower, generation, &epochs), CutPlan::To { loss: Some(_), .. }));
}

#[test]
fn what_the_new_leader_told_is_committed_again() {
    // The elected leader of epoch 6 holds everything after all, and tells a high watermark as high.
    let mut follower = FollowerPartition::new(config(), start(6, state(10, Some(5)), 8)).unwrap();
    follower.on_unclean_election(Some(epoch(6)));
    answer(&mut follower, 0, &records(10, 7, &[]));
    assert_eq!(follower.high_watermark_epoch(), Some(epoch(5)), "7 says nothing of 8");
    answer(&mut follower, 1, &records(10, 9, &[]));
    assert_eq!((follower.high_watermark(), follower.high_watermark_epoch()), (offset(9), Some(epoch(6))));
    let action = answer(&mut follower, 2, &AnswerFacts::Diverging(at(3, 5)));
    let FollowerAction::Truncate { generation, .. } = action else { panic!("{action:?}") };
    let epochs = cache_of(&[(5, 0)]);
    assert_eq!(plan(&mut follower, generation, &epochs), CutPlan::Refused);
}

#[test]
fn an_undefined_answer_never_cuts_even_after_an_unclean_election() {
    // The leader does not know the epoch: out of range, and its log ends lower.
    let mut follower = FollowerPartition::new(config(), start(6, state(10, Some(5)), 8)).unwrap();
    follower.on_unclean_election(Some(epoch(6)));
    let mut now = 0;
    loop {
        let action = answer(&mut follower, now, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
        let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
        let range = LeaderOffsets { log_start: Offset::ZERO, log_end: offset(3) };
        let next =
            follower.on_leader_offsets(generation, Ok(range), millis(now), &mut crate::Randomness::new(1));
        assert_eq!(next, FollowerAction::Nothing);
        assert_eq!(follower.log_end(), offset(10));
        match follower.state(millis(now)) {
            PartitionFetchState::Delayed { .. } => now += 60_000,
            PartitionFetchState::Failed { reason, .. } => {
                assert!(matches!(reason, FailureReason::AheadOfLeader { .. }));
                break;
            }
            other @ (PartitionFetchState::Truncating | PartitionFetchState::Fetching) => panic!("{other:?}"),
        }
        assert!(now < 60_000_000, "retries are bounded");
    }
}

/// It began anew at the leader's log start, and then a leader was elected that ends before that.
#[test]
fn an_empty_log_above_the_elected_leaders_begins_anew_there() {
    let restart = |log: LogState, unclean: Option<i32>| {
        let begun = FollowerStart { high_watermark_epoch: Some(epoch(5)), ..start(6, log, 10) };
        let mut follower = FollowerPartition::new(config(), begun).unwrap();
        follower.on_unclean_election(unclean.map(epoch));
        let action = answer(&mut follower, 0, &AnswerFacts::Error(ErrorCode::OffsetOutOfRange));
        let FollowerAction::AskOffsets { generation } = action else { panic!("{action:?}") };
        let range = LeaderOffsets { log_start: offset(2), log_end: offset(6) };
        follower.on_leader_offsets(generation, Ok(range), millis(0), &mut crate::Randomness::new(7))
    };
    let empty = LogState { log_start: offset(10), ..state(10, None) };
    let action = restart(empty, Some(6));
    assert!(matches!(action, FollowerAction::RestartAt { offset: at, .. } if at == offset(2)), "{action:?}");
    assert_eq!(restart(empty, Some(5)), FollowerAction::Nothing, "not newer than the high watermark");
    assert_eq!(restart(empty, None), FollowerAction::Nothing);
    assert_eq!(
        restart(state(10, Some(5)), Some(6)),
        FollowerAction::Nothing,
        "its records are not given up so"
    );
}
