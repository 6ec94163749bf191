//! Progress of one follower: the maximum counts, caught-up by arrivals, incarnations (S49, S50, S64).

use super::*;
use crate::test_values::{incarnation, millis, ms, offset};

fn arrival(now: u64, acknowledged: i64, leader_end: i64) -> Arrival {
    Arrival {
        now: millis(now),
        incarnation: incarnation(20),
        acknowledged: offset(acknowledged),
        fetch_offset: offset(acknowledged),
        log_start: None,
        high_watermark: None,
        paused: false,
        throttled: false,
        suspended: false,
        leader_end: offset(leader_end),
    }
}

fn admitted() -> FollowerProgress {
    let mut progress = FollowerProgress::at_leader_start(false, millis(0));
    progress.admit(incarnation(20)).unwrap();
    progress
}

#[test]
fn at_leader_start_nothing_is_known_and_members_have_a_grace_period() {
    let member = FollowerProgress::at_leader_start(true, millis(100));
    let other = FollowerProgress::at_leader_start(false, millis(100));
    assert_eq!((member.acknowledged(), member.last_caught_up()), (None, Some(millis(100))));
    assert_eq!((other.acknowledged(), other.last_caught_up()), (None, None));
    assert!(member.is_caught_up(offset(5), millis(110), ms(10)));
    assert!(!member.is_caught_up(offset(5), millis(111), ms(10)));
    assert!(!other.is_caught_up(Offset::ZERO, millis(100), ms(10)));
}

#[test]
fn within_an_incarnation_the_maximum_counts() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(1, 10, 20));
    progress.on_fetch(&arrival(2, 8, 20));
    assert_eq!(progress.acknowledged(), Some(offset(10)), "a late request takes nothing back");
    assert_eq!(progress.acknowledged_as(incarnation(21)), None);
}

#[test]
fn a_fetch_at_the_end_is_caught_up_now() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 20, 20));
    assert_eq!(progress.last_caught_up(), Some(millis(5)));
}

#[test]
fn a_fetch_that_reaches_an_earlier_end_is_caught_up_then() {
    // A busy partition: the follower never equals the end of now, but reaches the end of its previous fetch.
    let mut progress = admitted();
    progress.on_fetch(&arrival(10, 0, 100));
    assert_eq!(progress.last_caught_up(), None);
    progress.on_fetch(&arrival(20, 100, 200));
    assert_eq!(progress.last_caught_up(), Some(millis(10)));
    progress.on_fetch(&arrival(30, 150, 300));
    assert_eq!(progress.last_caught_up(), Some(millis(10)), "the end of arrival 20 is not reached");
    progress.on_fetch(&arrival(40, 200, 400));
    assert_eq!(progress.last_caught_up(), Some(millis(20)));
}

#[test]
fn an_acknowledgement_that_trails_several_fetches_still_catches_up() {
    // Reads ahead: each acknowledgement is four fetches late.
    let mut progress = admitted();
    for fetch in 0..40_i64 {
        progress.on_fetch(&arrival(fetch.unsigned_abs() * 10, (fetch - 3).max(0) * 100, (fetch + 1) * 100));
    }
    // Fetch 39 acknowledges 3600, which was the log end at fetch 35 (t = 350).
    assert_eq!(progress.last_caught_up(), Some(millis(350)));
}

#[test]
fn the_list_of_arrivals_is_bounded_and_the_oldest_survive() {
    let mut progress = admitted();
    for fetch in 0..10_000_i64 {
        progress.on_fetch(&arrival(fetch.unsigned_abs(), 0, fetch + 1));
    }
    assert_eq!(progress.arrivals.len(), MAX_OPEN_ARRIVALS);
    progress.on_fetch(&arrival(20_000, 3, 30_000));
    assert_eq!(progress.last_caught_up(), Some(millis(2)));
}

#[test]
fn equality_counts_however_old_the_fetch_is() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 20, 20));
    assert!(progress.is_caught_up(offset(20), millis(1_000_000), ms(10)));
    assert!(!progress.is_caught_up(offset(21), millis(1_000_000), ms(10)));
}

#[test]
fn a_refused_fetch_changes_nothing_that_counts() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 10, 20));
    let before = progress.clone();
    progress.on_refused(None, millis(6));
    progress.on_refused(Some(ErrorCode::OffsetOutOfRange), millis(7));
    assert_eq!(progress.acknowledged(), before.acknowledged());
    assert_eq!(progress.last_caught_up(), before.last_caught_up());
    assert_eq!(progress.refusal(), Some(ErrorCode::OffsetOutOfRange));
    progress.on_fetch(&arrival(8, 10, 20));
    assert_eq!((progress.refusal(), progress.is_diverging()), (None, false));
}

#[test]
fn a_new_incarnation_starts_unknown_and_the_old_one_is_never_accepted_again() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 20, 20));
    progress.admit(incarnation(21)).unwrap();
    assert_eq!(progress.acknowledged(), None);
    assert_eq!(progress.last_caught_up(), None);
    assert_eq!(progress.admit(incarnation(20)), Err(ErrorCode::StaleIncarnation));
    assert_eq!(progress.incarnation(), Some(incarnation(21)));
}

#[test]
fn incarnations_without_end_are_refused() {
    let mut progress = admitted();
    for raw in 0..MAX_RETIRED_INCARNATIONS as u64 {
        progress.admit(incarnation(100 + raw)).unwrap();
    }
    assert_eq!(progress.admit(incarnation(1000)), Err(ErrorCode::StaleIncarnation));
    assert_eq!(progress.retired.len(), MAX_RETIRED_INCARNATIONS);
}

#[test]
fn requests_that_are_counted_in_another_order_than_they_were_timed_take_no_time_back() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 0, 10));
    progress.on_fetch(&arrival(4, 0, 20));
    assert_eq!(progress.last_fetch(), Some(millis(5)));
    progress.on_refused(None, millis(3));
    assert_eq!(progress.last_fetch(), Some(millis(5)));
    progress.on_fetch(&arrival(6, 20, 30));
    assert_eq!(progress.last_caught_up(), Some(millis(5)));
}

#[test]
fn a_fetch_that_was_timed_before_an_excuse_ended_takes_no_time_back() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(5, 0, 10));
    progress.excuse(ms(20), millis(15));
    progress.on_fetch(&arrival(14, 0, 20));
    progress.on_fetch(&arrival(16, 20, 30));
    assert_eq!(progress.last_caught_up(), Some(millis(15)));
}

#[test]
fn a_read_for_a_fetch_from_before_a_new_assignment_excuses_nobody() {
    let mut progress = FollowerProgress::at_leader_start(false, millis(0));
    progress.on_read_begins(millis(5));
    progress.on_answered(Answered::default(), millis(900));
    assert_eq!((progress.last_fetch(), progress.last_caught_up()), (None, None));
    assert!(!progress.is_caught_up(offset(0), millis(900), ms(500)));
}

#[test]
fn a_follower_that_holds_itself_back_is_throttled_until_a_second_after_it_fetches_again() {
    let mut progress = admitted();
    progress.on_fetch(&arrival(1, 0, 100));
    assert!(!progress.is_throttled(millis(1)));
    progress.on_fetch(&Arrival { throttled: true, ..arrival(10, 10, 100) });
    assert!(progress.is_throttled(millis(10)));
    assert!(progress.is_throttled(millis(5_000)), "it has not asked since");
    progress.on_fetch(&arrival(6_000, 10, 100));
    assert!(progress.is_throttled(millis(7_000)), "a throttle that lets a little through is the same");
    assert!(!progress.is_throttled(millis(7_001)));
}
