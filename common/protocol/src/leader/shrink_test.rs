//! Who leaves the in-sync set, and when (S50, S51, S53–S55, design.md 4, 6.3, 6.6).

use std::time::Duration;

use highwater_types::{ErrorCode, PartitionEpoch};

use super::super::leader_test_support::*;
use super::super::*;
use crate::fetch::{FetchPartition, RequestOrder};
use crate::test_values::{epoch, incarnation, member, millis, ms, node, offset, record};

const BOUND: u64 = 30_000;
const WATCH: u64 = BOUND / 4;

fn proposals(leader: &mut LeaderPartition) -> Vec<IsrProposal> {
    let effects = drain(leader).into_iter();
    effects.filter_map(|e| if let LeaderEffect::ProposeIsr(p) = e { Some(p) } else { None }).collect()
}

fn proposal(version: u64, isr: &[IsrMember]) -> IsrProposal {
    IsrProposal { expected: PartitionEpoch::new(version), isr: isr.to_vec() }
}

fn without_3() -> Vec<IsrMember> {
    vec![member(1, 10), member(2, 20)]
}

/// Ticks as a program does, until `until`; what was proposed meanwhile.
fn tick_until(leader: &mut LeaderPartition, until: u64) -> Vec<(u64, IsrProposal)> {
    let mut proposed = Vec::new();
    while let Some(due) = leader.next_deadline().filter(|due| *due <= millis(until)) {
        leader.on_tick(due);
        let at = due.as_nanos() / 1_000_000;
        proposed.extend(proposals(leader).into_iter().map(|p| (at, p)));
    }
    proposed
}

/// All three are in sync and hold everything at time 1.
fn in_sync(config: LeaderConfig) -> LeaderPartition {
    let mut leader = leader_with(config, &all());
    for raw in [2, 3] {
        send(&mut leader, raw, &fetch_of(u64::try_from(raw).unwrap(), 100), 1).unwrap();
    }
    assert_eq!(proposals(&mut leader), []);
    leader
}

/// A follower that reads every `every` ms, always up to the end of then.
fn keeps_up(leader: &mut LeaderPartition, raw: i32, now: u64) {
    let end = leader.log_end().get();
    send(leader, raw, &fetch_of(u64::try_from(raw).unwrap(), end), now).unwrap();
}

#[test]
fn a_leader_without_a_session_is_followed_as_long_as_every_member_fetches_in_its_epoch() {
    let mut leader = in_sync(config());
    let followed = |leader: &LeaderPartition, now| leader.check_followed(millis(now), ms(3_000)).err();
    assert_eq!(followed(&leader, 3_000), None);
    let refused = followed(&leader, 3_001).unwrap();
    assert_eq!(refused.code, ErrorCode::LeaderNotAvailable);
    assert!(refused.to_string().contains("node 2"), "{refused}");
    keeps_up(&mut leader, 2, 3_001);
    assert!(followed(&leader, 3_001).unwrap().to_string().contains("node 3"));
    // A fetch of another epoch shows nothing.
    let newer = FetchPartition { current_leader_epoch: Some(epoch(8)), ..fetch_of(3, 100) };
    send(&mut leader, 3, &newer, 3_001).unwrap_err();
    assert!(followed(&leader, 3_001).is_some());
    keeps_up(&mut leader, 3, 3_001);
    assert_eq!(followed(&leader, 3_001), None);
}

#[test]
fn a_leader_without_a_session_goes_on_alone_and_waits_for_whom_it_has_not_heard_of() {
    let followed = |isr: &[IsrMember]| leader(isr).check_followed(millis(0), ms(3_000)).is_ok();
    assert_eq!((followed(&alone()), followed(&all())), (true, false));
}

#[test]
fn a_member_that_stays_behind_for_the_bound_leaves() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    let mut proposed = Vec::new();
    for now in (1_000..=40_000).step_by(1_000) {
        keeps_up(&mut leader, 2, now);
        proposed.extend(tick_until(&mut leader, now));
    }
    assert_eq!(proposed.len(), 1, "one change, pending until its record is seen");
    let (at, what) = &proposed[0];
    assert_eq!(*what, proposal(3, &without_3()));
    assert!((BOUND..=BOUND + WATCH + 1).contains(at), "after {at} ms");
    assert_eq!(leader.high_watermark(), offset(100), "it counts until the record says so (SHRINK_EARLY)");
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Committed, millis(40_001));
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(40_002));
    assert_eq!(leader.high_watermark(), offset(110));
}

#[test]
fn an_idle_member_that_holds_everything_stays_whatever_the_time_and_costs_no_tick() {
    let mut leader = in_sync(config());
    leader.on_tick(millis(25));
    assert_eq!(leader.next_deadline(), None, "nothing to look at");
    leader.on_tick(millis(10 * BOUND));
    assert_eq!(proposals(&mut leader), [], "equality counts (S50)");
}

#[test]
fn a_member_behind_a_busy_log_stays_while_its_fetches_reach_the_end_of_the_one_before() {
    // Never at the end of now, always at that of its last fetch: the two-fetch rule (S49).
    let mut leader = in_sync(config());
    let mut last_end = 100;
    for now in (500..=3 * BOUND).step_by(500) {
        let end = leader.log_end().get();
        leader.on_append(offset(end + 10), millis(now));
        send(&mut leader, 2, &fetch_of(2, last_end), now).unwrap();
        send(&mut leader, 3, &fetch_of(3, last_end), now).unwrap();
        last_end = end + 10;
        assert_eq!(tick_until(&mut leader, now), [], "at {now}");
    }
}

#[test]
fn a_member_that_fetches_but_falls_ever_further_behind_leaves_and_does_not_come_back_at_once() {
    let mut leader = in_sync(config());
    let mut proposed = Vec::new();
    for now in (500..=2 * BOUND).step_by(500) {
        let end = leader.log_end().get();
        leader.on_append(offset(end + 10), millis(now));
        keeps_up(&mut leader, 2, now);
        send(&mut leader, 3, &fetch_of(3, 100 + i64::try_from(now).unwrap() / 500), now).unwrap();
        proposed.extend(proposals(&mut leader));
        proposed.extend(tick_until(&mut leader, now).into_iter().map(|(_, p)| p));
        if let Some(change) = proposed.last()
            && leader.partition_epoch() == PartitionEpoch::new(3)
        {
            leader.on_record(&record(&[1, 2, 3], &change.isr, 7, 4), millis(now));
        }
    }
    assert_eq!(proposed, [proposal(3, &without_3())]);
}

#[test]
fn members_have_the_whole_bound_after_the_leader_started() {
    let mut leader = leader(&all());
    assert_eq!(tick_until(&mut leader, BOUND), [], "nobody has fetched, nobody is late (S53)");
    let late = tick_until(&mut leader, BOUND + WATCH + 1);
    assert_eq!(late.into_iter().map(|(_, p)| p).collect::<Vec<_>>(), [proposal(3, &alone())]);
}

#[test]
fn a_leader_that_was_paused_throws_nobody_out() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    assert_eq!(tick_until(&mut leader, 2 * WATCH), []);
    let back = 100 * BOUND;
    leader.on_tick(millis(back));
    assert_eq!(proposals(&mut leader), [], "nobody could fetch from a leader that stood still");
    let late = tick_until(&mut leader, back + BOUND + WATCH);
    assert_eq!(late.len(), 1, "who does not fetch now leaves");
    assert!(late[0].0 >= back + BOUND / 2, "after a time in which it could, not at {}", late[0].0);
}

#[test]
fn what_the_leader_takes_to_read_is_not_the_followers_lag() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    send(&mut leader, 3, &fetch_of(3, 100), 20).unwrap();
    leader.on_follower_reads(node(3), millis(20));
    let slow = BOUND + BOUND / 2;
    for now in (1_000..=slow).step_by(1_000) {
        keeps_up(&mut leader, 2, now);
        assert_eq!(tick_until(&mut leader, now), [], "node 3 waits for the leader's disk at {now}");
    }
    let read = Duration::from_millis(slow - 20);
    leader.on_follower_answered(
        node(3),
        Answered { end: Some(offset(110)), read, ..Answered::default() },
        millis(slow),
    );
    assert_eq!(tick_until(&mut leader, slow + BOUND - WATCH), [], "and has all its time after it");
}

#[test]
fn a_read_whose_end_is_never_told_protects_for_the_bound_only() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    send(&mut leader, 3, &fetch_of(3, 100), 20).unwrap();
    leader.on_follower_reads(node(3), millis(20));
    let mut left = None;
    for now in (1_000..=3 * BOUND).step_by(1_000) {
        keeps_up(&mut leader, 2, now);
        left = left.or_else(|| tick_until(&mut leader, now).first().map(|(at, _)| *at));
    }
    let left = left.expect("it died while it was read for");
    assert!((2 * BOUND..=2 * BOUND + 2 * WATCH).contains(&left), "left at {left}");
}

#[test]
fn a_follower_that_is_gone_leaves_at_once() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    leader.on_follower_gone(node(3), millis(20));
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())]);
}

#[test]
fn an_idle_follower_that_is_gone_leaves_too_so_that_the_next_append_does_not_wait() {
    let mut leader = in_sync(config());
    leader.on_follower_gone(node(2), millis(20));
    assert_eq!(proposals(&mut leader), [proposal(3, &[member(1, 10), member(3, 30)])]);
}

#[test]
fn who_is_gone_stays_while_the_set_would_be_too_small_without_it() {
    let mut leader = in_sync(LeaderConfig { min_insync_replicas: 2, ..config() });
    leader.on_follower_gone(node(3), millis(20));
    leader.on_follower_gone(node(2), millis(21));
    let first = proposals(&mut leader);
    assert_eq!(first, [proposal(3, &without_3())], "one of the two can go");
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(30));
    assert_eq!(proposals(&mut leader), [], "the other holds min.insync.replicas");
    let lagging = tick_until(&mut leader, BOUND + 2 * WATCH);
    assert_eq!(lagging, [], "it holds everything");
}

#[test]
fn who_was_back_for_a_moment_that_nobody_saw_is_gone_again_and_who_fetches_is_not() {
    let mut leader = in_sync(config());
    leader.on_follower_gone(node(3), millis(20));
    send(&mut leader, 3, &fetch_of(3, 100), 21).unwrap();
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Conflict, millis(22));
    leader.on_record(&record(&[1, 2, 3], &all(), 7, 4), millis(23));
    drain(&mut leader);
    for still_refused in [40, 1_000] {
        leader.on_follower_still_gone(node(3), millis(still_refused));
        assert_eq!(proposals(&mut leader), [], "it fetched since");
    }
    leader.on_follower_parked(node(3), millis(1_800));
    leader.on_follower_still_gone(node(3), millis(2_500));
    assert_eq!(proposals(&mut leader), [], "and that fetch was parked so long");
    leader.on_follower_still_gone(node(3), millis(3_000));
    assert_eq!(proposals(&mut leader), [proposal(4, &without_3())]);
}

#[test]
fn who_was_gone_and_fetches_again_is_not_taken_out() {
    let mut leader = leader_with(LeaderConfig { min_insync_replicas: 3, ..config() }, &all());
    send(&mut leader, 3, &fetch_of(3, 100), 1).unwrap();
    leader.on_follower_gone(node(3), millis(20));
    send(&mut leader, 3, &fetch_of(3, 100), 21).unwrap();
    leader.on_config(config(), millis(22));
    send(&mut leader, 2, &fetch_of(2, 100), 23).unwrap();
    assert_eq!(proposals(&mut leader), []);
}

#[test]
fn who_is_gone_does_not_join_and_holds_up_nothing() {
    let mut leader = leader_with(LeaderConfig { min_insync_replicas: 2, ..config() }, &alone());
    send(&mut leader, 3, &fetch_of(3, 100), 1).unwrap();
    assert_eq!(proposals(&mut leader).len(), 1);
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Conflict, millis(2));
    leader.on_follower_gone(node(3), millis(3));
    leader.on_record(&record(&[1, 2, 3], &alone(), 7, 4), millis(4));
    assert_eq!(proposals(&mut leader), []);
}

#[test]
fn a_follower_that_is_gone_waits_for_the_change_that_is_under_way() {
    let mut leader = leader_with(config(), &without_3());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    send(&mut leader, 3, &fetch_of(3, 100), 2).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &all())]);
    leader.on_follower_gone(node(2), millis(3));
    assert_eq!(proposals(&mut leader), [], "one at a time (S54)");
    leader.on_record(&record(&[1, 2, 3], &all(), 7, 4), millis(4));
    assert_eq!(proposals(&mut leader), [proposal(4, &[member(1, 10), member(3, 30)])]);
}

#[test]
fn an_unknown_shrink_counts_both_ways_until_a_newer_record_is_seen() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    keeps_up(&mut leader, 2, 15);
    leader.on_follower_gone(node(3), millis(20));
    assert_eq!(proposals(&mut leader).len(), 1);
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Unknown, millis(30));
    leader.on_record(&record(&[1, 2, 3], &all(), 7, 3), millis(31));
    assert_eq!(leader.high_watermark(), offset(100), "node 3 may still be in it");
    assert_eq!(leader.isr(), all());
    leader.on_tick(millis(530));
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())], "again, against the same version");
}

#[test]
fn an_entry_whose_incarnation_was_replaced_leaves_while_the_new_one_catches_up() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    send(&mut leader, 3, &FetchPartition { incarnation: Some(incarnation(31)), ..fetch_of(3, 0) }, 20)
        .unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())]);
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(30));
    send(&mut leader, 3, &FetchPartition { incarnation: Some(incarnation(31)), ..fetch_of(3, 110) }, 40)
        .unwrap();
    assert_eq!(proposals(&mut leader), [proposal(4, &[member(1, 10), member(2, 20), member(3, 31)])]);
}

#[test]
fn a_member_that_left_joins_again_once_it_holds_everything() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    leader.on_follower_gone(node(3), millis(20));
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(30));
    keeps_up(&mut leader, 2, 40);
    assert_eq!(leader.high_watermark(), offset(110));
    drain(&mut leader);
    send(&mut leader, 3, &fetch_of(3, 105), 50).unwrap();
    assert_eq!(proposals(&mut leader), [], "below the high watermark");
    send(&mut leader, 3, &fetch_of(3, 110), 60).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(4, &all())]);
}

#[test]
fn an_append_that_ends_equality_finds_the_sessions_last_poll() {
    // A session does not visit idle partitions: the last fetch seen here is 10 bounds old.
    let idle = 10 * BOUND;
    let mut polled = in_sync(config());
    for raw in [2, 3] {
        polled.on_session_poll(node(raw), millis(idle - 100));
    }
    polled.on_append(offset(110), millis(idle));
    assert_eq!(tick_until(&mut polled, idle + BOUND - 100), [], "healthy followers have their time");

    let mut silent = in_sync(config());
    silent.on_session_poll(node(2), millis(idle - 100));
    silent.on_append(offset(110), millis(idle));
    let late = tick_until(&mut silent, idle + WATCH);
    assert_eq!(late.into_iter().map(|(_, p)| p).collect::<Vec<_>>(), [proposal(3, &without_3())]);
}

#[test]
fn a_session_poll_of_a_member_that_is_behind_says_nothing() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    leader.on_session_poll(node(3), millis(BOUND));
    keeps_up(&mut leader, 2, 20);
    let late = tick_until(&mut leader, BOUND + 2 * WATCH);
    assert_eq!(late.into_iter().map(|(_, p)| p).collect::<Vec<_>>(), [proposal(3, &without_3())]);
}

#[test]
fn who_is_paused_by_a_person_leaves_at_once_and_comes_back_when_it_is_resumed() {
    let mut leader = in_sync(config());
    let suspended = FetchPartition { suspended: true, ..fetch_of(3, 100) };
    send(&mut leader, 3, &suspended, 20).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())]);
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(21));
    send(&mut leader, 3, &suspended, 22).unwrap();
    assert_eq!(proposals(&mut leader), [], "it holds everything, and does not join");
    leader.on_append(offset(110), millis(23));
    keeps_up(&mut leader, 2, 24);
    assert_eq!(leader.high_watermark(), offset(110), "and holds up nothing");
    send(&mut leader, 3, &fetch_of(3, 110), 25).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(4, &all())]);
}

#[test]
fn who_is_paused_by_a_person_stays_while_the_set_would_be_too_small_without_it() {
    let mut leader = in_sync(LeaderConfig { min_insync_replicas: 3, ..config() });
    let suspended = FetchPartition { suspended: true, ..fetch_of(3, 100) };
    send(&mut leader, 3, &suspended, 20).unwrap();
    assert_eq!(proposals(&mut leader), []);
}

#[test]
fn who_says_that_its_replica_failed_leaves_at_once_acknowledges_nothing_and_comes_back() {
    let mut leader = in_sync(config());
    leader.on_append(offset(110), millis(10));
    let failed = FetchPartition { failed: true, ..fetch_of(3, 110) };
    let refused = send(&mut leader, 3, &failed, 20).unwrap_err();
    assert_eq!(refused.code, ErrorCode::StorageError);
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())]);
    keeps_up(&mut leader, 2, 21);
    assert_eq!(leader.high_watermark(), offset(100), "what it says to hold does not count");
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(22));
    assert_eq!(leader.high_watermark(), offset(110));
    send(&mut leader, 3, &fetch_of(3, 110), 23).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(4, &all())], "it is recovered");
}

#[test]
fn an_incarnation_that_was_replaced_leaves_at_once_and_the_new_one_joins_when_it_is_whole() {
    let mut leader = in_sync(config());
    assert!(leader.is_followed_by(node(3)));
    let renewed = |from, held| FetchPartition {
        incarnation: Some(incarnation(31)),
        acknowledged_offset: Some(offset(held)),
        ..fetch_of(3, from)
    };
    send(&mut leader, 3, &renewed(100, 60), 20).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &without_3())], "it repairs what it lost");
    assert!(!leader.is_followed_by(node(3)), "it cannot lead by the set that names the old one");
    leader.on_record(&record(&[1, 2, 3], &without_3(), 7, 4), millis(21));
    send(&mut leader, 3, &renewed(100, 100), 22).unwrap();
    let joined = [without_3(), vec![IsrMember { node: node(3), incarnation: incarnation(31) }]].concat();
    assert_eq!(proposals(&mut leader), [proposal(4, &joined)]);
}

#[test]
fn news_of_a_failure_that_a_later_fetch_overtook_or_of_another_leadership_is_none() {
    let mut leader = in_sync(config());
    let order = |number| Some(RequestOrder { start: 1, number });
    send(&mut leader, 3, &FetchPartition { order: order(2), ..fetch_of(3, 100) }, 10).unwrap();
    let failed = FetchPartition { failed: true, ..fetch_of(3, 100) };
    send(&mut leader, 3, &FetchPartition { order: order(1), ..failed.clone() }, 20).unwrap();
    assert_eq!(proposals(&mut leader), []);
    let of_another = FetchPartition { current_leader_epoch: Some(epoch(6)), ..failed };
    let refused = send(&mut leader, 3, &of_another, 30).unwrap_err();
    assert_eq!((refused.code, proposals(&mut leader)), (ErrorCode::FencedLeaderEpoch, vec![]));
}
