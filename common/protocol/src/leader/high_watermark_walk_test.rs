//! When the high watermark moves, over whole transitions (S55–S62, design.md 6.8).

use highwater_types::Durability;

use super::super::leader_test_support::*;
use super::super::*;
use crate::fetch::FetchPartition;
use crate::test_values::{incarnation, member, millis, node, offset, record};

#[test]
fn it_waits_for_every_member_of_the_set() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(1));
    send(&mut leader, 2, &fetch_of(2, 110), 2).unwrap();
    assert_eq!(leader.high_watermark(), offset(90), "node 3 has not fetched in this epoch (S60)");
    send(&mut leader, 3, &fetch_of(3, 105), 3).unwrap();
    assert_eq!(leader.high_watermark(), offset(105));
    assert_eq!(
        drain(&mut leader),
        [LeaderEffect::HighWatermarkAdvanced(offset(105)), LeaderEffect::TellFollowers(offset(105))]
    );
}

#[test]
fn under_fsync_only_what_the_leader_flushed_counts() {
    let mut leader = leader_with(LeaderConfig { durability: Durability::Fsync, ..config() }, &alone());
    assert_eq!(leader.high_watermark(), offset(100));
    leader.on_append(offset(110), millis(1));
    assert_eq!(leader.high_watermark(), offset(100), "appended is not flushed (LEADER_UNFLUSHED)");
    leader.on_flushed(offset(105), millis(2));
    assert_eq!(leader.high_watermark(), offset(105));
    leader.on_flushed(offset(103), millis(3));
    assert_eq!(leader.flushed_end(), offset(105), "a late flush takes nothing back");
}

#[test]
fn under_page_cache_the_leaders_append_counts() {
    let mut leader = leader(&alone());
    leader.on_append(offset(110), millis(1));
    assert_eq!(leader.high_watermark(), offset(110));
}

#[test]
fn replicas_that_are_being_added_do_not_raise_the_minimum() {
    let mut leader = leader_with(LeaderConfig { min_insync_replicas: 3, ..config() }, &alone());
    assert!(leader.check_min_isr().is_err());
    let mut moving = record(&[1, 2, 3], &alone(), 7, 4);
    moving.adding = vec![node(2), node(3)];
    leader.on_record(&moving, millis(1));
    assert_eq!(leader.check_min_isr(), Ok(()), "one replica is in use (design.md 6.12)");
}

#[test]
fn it_stands_still_below_min_isr() {
    let mut leader = leader_with(LeaderConfig { min_insync_replicas: 2, ..config() }, &alone());
    leader.on_append(offset(110), millis(1));
    send(&mut leader, 2, &fetch_of(2, 110), 2).unwrap();
    assert_eq!(
        leader.high_watermark(),
        offset(90),
        "the joining node counts for the minimum once it is committed"
    );
    assert_eq!(leader.check_min_isr().unwrap_err().code, ErrorCode::NotEnoughReplicas);
    assert_eq!(leader.commit_status(offset(110)), CommitStatus::NotEnoughReplicas);
    leader.on_record(&record(&[1, 2, 3], &[member(1, 10), member(2, 20)], 7, 4), millis(3));
    assert_eq!(leader.high_watermark(), offset(110));
    assert_eq!(leader.commit_status(offset(110)), CommitStatus::Committed);
    assert_eq!(leader.commit_status(offset(111)), CommitStatus::Pending);
}

#[test]
fn the_minimum_is_never_above_the_number_of_replicas() {
    let leader = leader_with(LeaderConfig { min_insync_replicas: 5, ..config() }, &all());
    assert_eq!(leader.check_min_isr(), Ok(()));
}

#[test]
fn a_pending_member_holds_it_at_once() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    assert!(leader.is_isr_change_pending());
    leader.on_append(offset(110), millis(2));
    assert_eq!(leader.high_watermark(), offset(100), "maximal set (S55)");
    send(&mut leader, 2, &fetch_of(2, 108), 3).unwrap();
    assert_eq!(leader.high_watermark(), offset(108));
}

#[test]
fn it_waits_for_a_caught_up_replica_that_is_about_to_join() {
    // S57: node 3 caught up at 100 while a change is under way; later appends wait for it.
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    send(&mut leader, 3, &fetch_of(3, 100), 2).unwrap();
    leader.on_append(offset(110), millis(3));
    send(&mut leader, 2, &fetch_of(2, 110), 4).unwrap();
    assert_eq!(leader.high_watermark(), offset(100));
    send(&mut leader, 3, &fetch_of(3, 110), 5).unwrap();
    assert_eq!(leader.high_watermark(), offset(110));
}

#[test]
fn who_was_gone_and_missed_something_does_not_hold_it_until_it_has_caught_up_again() {
    let mut leader = leader(&all());
    send(&mut leader, 3, &fetch_of(3, 100), 1).unwrap();
    send(&mut leader, 2, &fetch_of(2, 100), 2).unwrap();
    leader.on_follower_gone(node(3), millis(3));
    let without_3 = [member(1, 10), member(2, 20)];
    leader.on_record(&record(&[1, 2, 3], &without_3, 7, 4), millis(4));
    leader.on_append(offset(110), millis(5));
    send(&mut leader, 2, &fetch_of(2, 110), 6).unwrap();
    assert_eq!(leader.high_watermark(), offset(110));
    // It is back after a moment, within the time in which it had been caught up, and fetches as fast as a throttle lets it.
    for (now, held, end) in [(10, 100, 120), (20, 105, 130)] {
        send(&mut leader, 3, &fetch_of(3, held), now).unwrap();
        leader.on_append(offset(end), millis(now + 1));
        send(&mut leader, 2, &fetch_of(2, end), now + 2).unwrap();
        assert_eq!(leader.high_watermark(), offset(end));
    }
    // It has what the log had when an earlier fetch of it arrived: from now on it is waited for.
    send(&mut leader, 3, &fetch_of(3, 130), 30).unwrap();
    leader.on_append(offset(140), millis(31));
    send(&mut leader, 2, &fetch_of(2, 140), 32).unwrap();
    assert_eq!(leader.high_watermark(), offset(130));
}

#[test]
fn a_replica_that_stopped_long_ago_does_not_hold_it() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 50), 1).unwrap();
    leader.on_append(offset(110), millis(2));
    assert_eq!(leader.high_watermark(), offset(110), "it never was caught up");
}

#[test]
fn an_old_entry_of_a_renewed_incarnation_holds_it_until_it_is_replaced() {
    let two = [member(1, 10), member(2, 20)];
    let mut leader = leader(&two);
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    assert_eq!(leader.high_watermark(), offset(100));
    leader.on_append(offset(110), millis(2));
    let renewed = FetchPartition { incarnation: Some(incarnation(21)), ..fetch_of(2, 110) };
    send(&mut leader, 2, &renewed, 3).unwrap();
    assert_eq!(leader.high_watermark(), offset(100), "the set still names incarnation 20");
    leader.on_record(&record(&[1, 2, 3], &[member(1, 10), member(2, 21)], 7, 4), millis(4));
    assert_eq!(leader.high_watermark(), offset(110));
}

#[test]
fn a_shrink_by_record_lets_it_go_on() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(1));
    send(&mut leader, 2, &fetch_of(2, 110), 2).unwrap();
    leader.on_record(&record(&[1, 2, 3], &[member(1, 10), member(2, 20)], 7, 4), millis(3));
    assert_eq!(leader.high_watermark(), offset(110));
}

#[test]
fn followers_are_told_at_most_once_per_propagation_time() {
    let mut leader = leader(&alone());
    drain(&mut leader);
    leader.on_append(offset(101), millis(5));
    leader.on_append(offset(102), millis(10));
    assert_eq!(
        drain(&mut leader),
        [LeaderEffect::HighWatermarkAdvanced(offset(102))],
        "told at the start of time 0"
    );
    assert_eq!((leader.propagated_high_watermark(), leader.next_deadline()), (offset(100), Some(millis(20))));
    leader.on_tick(millis(20));
    assert_eq!(drain(&mut leader), [LeaderEffect::TellFollowers(offset(102))]);
    assert_eq!(leader.next_deadline(), None);
}

#[test]
fn it_never_passes_the_log_end_that_was_reported() {
    // The fetch handler may see an append in the log before the core is told of it.
    let mut leader = leader(&[member(1, 10), member(2, 20)]);
    let epochs = epochs();
    let ahead = crate::test_values::log(0, 120, &epochs);
    leader.on_follower_fetch(node(2), &fetch_of(2, 120), &ahead, millis(1)).unwrap();
    assert_eq!(leader.high_watermark(), offset(100));
    leader.on_append(offset(120), millis(2));
    assert_eq!(leader.high_watermark(), offset(120));
}
