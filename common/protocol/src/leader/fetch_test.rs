//! A follower's fetch at the leader: order of checks, what counts and what does not (S18–S25, S60, S64).

use highwater_types::{Durability, ErrorCode};

use super::super::leader_test_support::*;
use super::super::*;
use crate::fetch::{FetchPartition, ReadPlan, RequestOrder, Requester};
use crate::lag_cause::LagCause;
use crate::test_values::{at, cache, epoch, incarnation, log, member, millis, ms, node, offset, record};

fn code(result: Result<ReadPlan, ReplicationError>) -> ErrorCode {
    result.unwrap_err().code
}

fn acknowledged(leader: &LeaderPartition, node_raw: i32) -> Option<Offset> {
    leader.describe(millis(0)).into_iter().find(|row| row.node == node(node_raw)).unwrap().acknowledged
}

#[test]
fn a_fetch_acknowledges_and_reads_to_the_log_end() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(1));
    let request = FetchPartition { acknowledged_offset: Some(offset(95)), ..fetch_of(2, 100) };
    let plan = send(&mut leader, 2, &request, 2).unwrap();
    assert_eq!((plan.from, plan.upper, plan.diverging), (offset(100), offset(110), None));
    assert_eq!(acknowledged(&leader, 2), Some(offset(95)), "the acknowledged offset, not where it reads");
}

#[test]
fn the_leaders_own_id_is_refused() {
    // fluvio#1624
    let mut leader = leader(&all());
    assert_eq!(code(send(&mut leader, 1, &fetch_of(1, 100), 1)), ErrorCode::InvalidRequest);
}

#[test]
fn the_epoch_comes_before_the_assignment() {
    let mut leader = leader(&all());
    let with_epoch = |raw| FetchPartition { current_leader_epoch: Some(epoch(raw)), ..fetch_of(9, 100) };
    assert_eq!(code(send(&mut leader, 9, &with_epoch(6), 1)), ErrorCode::FencedLeaderEpoch);
    assert_eq!(code(send(&mut leader, 9, &with_epoch(8), 1)), ErrorCode::UnknownLeaderEpoch);
    let unassigned = code(send(&mut leader, 9, &with_epoch(7), 1));
    assert_eq!(unassigned, ErrorCode::UnknownLeaderEpoch, "the assignment may not have arrived (S20)");
}

#[test]
fn fields_that_a_follower_must_send_are_asked_for() {
    let mut leader = leader_with(LeaderConfig { durability: Durability::Fsync, ..config() }, &all());
    let base = fetch_of(2, 100);
    for broken in [
        FetchPartition { incarnation: None, ..base.clone() },
        FetchPartition { current_leader_epoch: None, ..base.clone() },
        FetchPartition { acknowledged_offset: None, ..base.clone() },
        FetchPartition { acknowledged_offset: Some(offset(101)), ..base.clone() },
    ] {
        assert_eq!(code(send(&mut leader, 2, &broken, 1)), ErrorCode::InvalidRequest);
    }
    assert_eq!(acknowledged(&leader, 2), None);
    send(&mut leader, 2, &base, 1).unwrap();
}

#[test]
fn under_page_cache_an_absent_acknowledgement_is_the_fetch_offset() {
    let mut leader = leader(&all());
    send(&mut leader, 2, &FetchPartition { acknowledged_offset: None, ..fetch_of(2, 100) }, 1).unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(100)));
}

#[test]
fn a_diverging_fetch_acknowledges_nothing() {
    // KAFKA-13141: the follower holds 0..99@5 100@6; epoch 6 is not in this log.
    let mut leader = leader(&all());
    let request = FetchPartition { last_fetched_epoch: Some(epoch(6)), ..fetch_of(2, 101) };
    let plan = send(&mut leader, 2, &request, 1).unwrap();
    assert_eq!(plan.diverging, Some(at(100, 5)));
    assert!(!plan.has_records());
    assert_eq!(acknowledged(&leader, 2), None);
    assert_eq!(leader.high_watermark(), offset(90));
    assert_eq!(leader.describe(millis(2))[0].cause, LagCause::Truncating);
}

#[test]
fn an_out_of_range_fetch_acknowledges_nothing() {
    let mut leader = leader(&all());
    let request = FetchPartition { last_fetched_epoch: None, ..fetch_of(2, 101) };
    assert_eq!(code(send(&mut leader, 2, &request, 1)), ErrorCode::OffsetOutOfRange);
    assert_eq!(acknowledged(&leader, 2), None);
    assert_eq!(leader.describe(millis(2))[0].cause, LagCause::BackOff);
}

#[test]
fn a_parked_fetch_that_is_answered_counts_nothing() {
    let mut leader = leader(&all());
    let epochs = epochs();
    let plan = leader.plan_follower_read(node(2), &fetch_of(2, 100), &log(0, 100, &epochs)).unwrap();
    assert_eq!(plan.from, offset(100));
    assert_eq!(acknowledged(&leader, 2), None);
    assert_eq!(drain(&mut leader), []);
}

#[test]
fn a_replaced_incarnation_is_refused_for_good() {
    let mut leader = leader(&all());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    send(&mut leader, 2, &FetchPartition { incarnation: Some(incarnation(21)), ..fetch_of(2, 50) }, 2)
        .unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(50)), "a new incarnation's progress starts unknown");
    assert_eq!(code(send(&mut leader, 2, &fetch_of(2, 100), 3)), ErrorCode::StaleIncarnation);
    assert_eq!(acknowledged(&leader, 2), Some(offset(50)));
}

#[test]
fn a_cut_below_what_was_acknowledged_asks_for_a_new_incarnation_first() {
    // design.md 6.3: the follower acknowledged 100 and comes back with 0..59@5 60..99@4, which is not this log.
    let mut leader = leader(&all());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    let lost = FetchPartition { last_fetched_epoch: Some(epoch(4)), ..fetch_of(2, 100) };
    assert_eq!(code(send(&mut leader, 2, &lost, 2)), ErrorCode::StaleIncarnation);
    assert_eq!(
        code(send(&mut leader, 2, &fetch_of(2, 100), 3)),
        ErrorCode::StaleIncarnation,
        "not accepted again"
    );
    let renewed = FetchPartition { incarnation: Some(incarnation(21)), ..lost };
    assert_eq!(send(&mut leader, 2, &renewed, 4).unwrap().diverging, Some(at(0, 4)));
}

/// Whoever reads for itself only what was written a moment ago need not have it checked.
#[test]
fn only_a_fetch_of_an_in_sync_follower_is_told_as_one() {
    let mut leader = leader(&[member(1, 10), member(2, 20)]);
    for (raw, in_sync) in [(2, true), (3, false)] {
        let fetch = fetch_of(u64::try_from(raw).unwrap(), 100);
        assert_eq!(send(&mut leader, raw, &fetch, 1).unwrap().in_sync, in_sync, "node {raw}");
    }
    let epochs = epochs();
    for requester in [Requester::Consumer, Requester::Repair] {
        let plan = leader.plan_other_read(requester, &fetch_of(2, 100), &log(0, 100, &epochs)).unwrap();
        assert!(!plan.in_sync, "{requester:?}");
    }
}

/// The same request, as the one with this number of the follower's program's start.
fn numbered(start: u64, number: u64, request: FetchPartition) -> FetchPartition {
    FetchPartition { order: Some(RequestOrder { start, number }), ..request }
}

#[test]
fn a_late_copy_of_a_fetch_from_before_a_cut_is_answered_and_retires_nobody() {
    let mut leader = leader(&all());
    let differs = numbered(4, 1, FetchPartition { last_fetched_epoch: Some(epoch(4)), ..fetch_of(2, 100) });
    let cut = send(&mut leader, 2, &differs, 1).unwrap().diverging;
    assert_eq!(cut, Some(at(0, 4)));
    // It has cut and fetched everything again, in this life or, after a kill, in the next.
    for (now, start, number) in [(2, 4, 2), (3, 4, 3), (4, 9, 0)] {
        send(&mut leader, 2, &numbered(start, number, fetch_of(2, 100)), now).unwrap();
        drain(&mut leader);
        let before = leader.essence(millis(10));
        assert_eq!(send(&mut leader, 2, &differs, 10).unwrap().diverging, cut, "start {start}");
        assert_eq!(leader.essence(millis(10)), before, "and nothing followed from it");
    }
    assert_eq!(acknowledged(&leader, 2), Some(offset(100)));
    let lost = FetchPartition { order: None, ..differs.clone() };
    assert_eq!(code(send(&mut leader, 2, &numbered(9, 1, lost), 11)), ErrorCode::StaleIncarnation);
    assert_eq!(code(send(&mut leader, 2, &differs, 12)), ErrorCode::StaleIncarnation, "nor is it undone");
}

#[test]
fn of_two_fetches_that_arrive_in_the_wrong_order_the_later_one_counts() {
    let mut leader = leader(&all());
    let poll = FetchPartition { acknowledged_offset: Some(offset(80)), suspended: true, ..fetch_of(2, 100) };
    let beside = FetchPartition { acknowledged_offset: Some(offset(90)), max_bytes: 0, ..fetch_of(2, 100) };
    send(&mut leader, 2, &numbered(4, 6, beside.clone()), 20).unwrap();
    drain(&mut leader);
    let before = leader.essence(millis(30));
    let late = send(&mut leader, 2, &numbered(4, 5, poll), 30).unwrap();
    assert_eq!((late.from, late.upper), (offset(100), offset(100)), "it is served");
    assert_eq!(leader.essence(millis(30)), before);
    assert!(
        !leader.describe(millis(30)).iter().any(|row| row.cause == LagCause::Paused),
        "nor described by it"
    );
    // The same request once more, as when a throttle asks on its behalf again, is not overtaken.
    send(&mut leader, 2, &numbered(4, 6, beside), 40).unwrap();
    let row = leader.describe(millis(40)).into_iter().find(|row| row.node == node(2)).unwrap();
    assert_eq!(row.last_fetch_age, Some(Duration::ZERO));
}

#[test]
fn an_incarnation_that_was_never_seen_replaces_none_by_a_late_fetch() {
    let mut leader = leader(&all());
    let renewed = FetchPartition { incarnation: Some(incarnation(21)), ..fetch_of(2, 50) };
    send(&mut leader, 2, &numbered(4, 2, renewed.clone()), 1).unwrap();
    let of_before = numbered(4, 1, fetch_of(2, 100));
    assert_eq!(code(send(&mut leader, 2, &of_before, 2)), ErrorCode::StaleIncarnation);
    send(&mut leader, 2, &numbered(4, 3, renewed), 3).unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(50)));
}

#[test]
fn without_a_place_no_fetch_is_known_to_be_overtaken() {
    let mut leader = leader(&all());
    send(&mut leader, 2, &numbered(4, 2, fetch_of(2, 50)), 1).unwrap();
    send(&mut leader, 2, &fetch_of(2, 80), 2).unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(80)));
    send(&mut leader, 2, &numbered(4, 1, fetch_of(2, 100)), 3).unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(80)), "the place of before still holds");
}

#[test]
fn a_new_leadership_knows_no_place() {
    let mut leader = leader(&all());
    let stale = FetchPartition { current_leader_epoch: Some(epoch(6)), ..fetch_of(2, 50) };
    send(&mut leader, 2, &numbered(9, 9, stale), 1).unwrap_err();
    send(&mut leader, 2, &numbered(4, 1, fetch_of(2, 100)), 2).unwrap();
    assert_eq!(acknowledged(&leader, 2), Some(offset(100)), "a fenced fetch is nobody's latest");
}

#[test]
fn after_the_end_every_fetch_is_refused_and_nothing_counts() {
    let mut leader = leader(&all());
    leader.resign();
    assert_eq!(code(send(&mut leader, 2, &fetch_of(2, 100), 1)), ErrorCode::NotLeaderOrFollower);
    let epochs = epochs();
    let consumer = FetchPartition { incarnation: None, ..fetch_of(2, 50) };
    let read = leader.plan_other_read(Requester::Consumer, &consumer, &log(0, 100, &epochs));
    assert_eq!(code(read), ErrorCode::NotLeaderOrFollower);
    assert_eq!((leader.high_watermark(), acknowledged(&leader, 2)), (offset(90), None));
}

#[test]
fn the_answers_high_watermark_includes_what_this_fetch_acknowledged() {
    let mut leader = leader(&[member(1, 10), member(2, 20)]);
    let plan = send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    assert_eq!(plan.snapshot.high_watermark, offset(100));
}

#[test]
fn the_epoch_without_records_cuts_a_follower_that_has_its_own() {
    // KAFKA-15608 / KAFKA-20961: leader 0..9@5, epochs (5,0)(8,10); the follower's cache also holds (6,10).
    let epochs = cache(&[(5, 0), (8, 10)]);
    let start = LeaderStart {
        record: record(&[1, 2, 3], &all(), 8, 3),
        log_end: offset(10),
        flushed_end: offset(10),
        high_watermark: offset(10),
        ..start(&all())
    };
    let mut leader = LeaderPartition::new(config(), start, millis(0)).unwrap();
    let mut ask = |from, last| {
        let request = FetchPartition {
            current_leader_epoch: Some(epoch(8)),
            last_fetched_epoch: Some(epoch(last)),
            ..fetch_of(2, from)
        };
        leader.on_follower_fetch(node(2), &request, &log(0, 10, &epochs), millis(1)).unwrap().diverging
    };
    assert_eq!(ask(10, 6), Some(at(10, 5)));
    assert_eq!(ask(10, 5), None);
}

#[test]
fn a_record_that_names_another_leader_makes_no_leadership() {
    let mut other = start(&all());
    other.record.leader = Some(node(2));
    assert_eq!(
        LeaderPartition::new(config(), other, millis(0)).unwrap_err().code,
        ErrorCode::NotLeaderOrFollower
    );
    let not_in_the_set = start(&[member(2, 20)]);
    assert!(LeaderPartition::new(config(), not_in_the_set, millis(0)).is_err());
}

#[test]
fn a_row_tells_lag_age_and_cause() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(10));
    send(&mut leader, 2, &fetch_of(2, 100), 1000).unwrap();
    let rows = leader.describe(millis(1500));
    assert_eq!(rows.iter().map(|row| row.node).collect::<Vec<_>>(), [node(2), node(3)]);
    assert_eq!((rows[0].lag_records, rows[0].cause, rows[0].in_sync), (Some(10), LagCause::CatchingUp, true));
    assert_eq!(rows[0].last_fetch_age, Some(Duration::from_millis(500)));
    assert_eq!((rows[1].lag_records, rows[1].cause, rows[1].in_sync), (None, LagCause::NotFetching, true));

    send(
        &mut leader,
        2,
        &FetchPartition { acknowledged_offset: Some(offset(105)), ..fetch_of(2, 110) },
        2000,
    )
    .unwrap();
    assert_eq!(leader.describe(millis(2000))[0].cause, LagCause::FollowerDisk);
    send(&mut leader, 2, &fetch_of(2, 110), 3000).unwrap();
    assert_eq!(leader.describe(millis(3000))[0].cause, LagCause::None);
    assert_eq!(leader.describe(millis(3000))[0].lag_time, Some(Duration::ZERO));
}

/// The cause of node 2's lag.
fn cause(leader: &LeaderPartition, at: u64) -> LagCause {
    leader.describe(millis(at))[0].cause
}

/// Node 2 fetched the end at 1000, and then there was more.
fn fetched_and_appended(config: LeaderConfig, request: &FetchPartition) -> LeaderPartition {
    let mut leader = leader_with(config, &all());
    send(&mut leader, 2, request, 1000).unwrap();
    leader.on_append(offset(110), millis(1001));
    leader
}

#[test]
fn who_owes_a_fetch_and_sends_none_for_six_seconds_does_not_fetch() {
    let leader = fetched_and_appended(config(), &fetch_of(2, 100));
    assert_eq!((cause(&leader, 7000), cause(&leader, 7001)), (LagCause::CatchingUp, LagCause::NotFetching));

    let short = LeaderConfig { replica_lag_time_max: ms(2000), ..config() };
    let leader = fetched_and_appended(short, &fetch_of(2, 100));
    assert_eq!((cause(&leader, 3000), cause(&leader, 3001)), (LagCause::CatchingUp, LagCause::NotFetching));
}

#[test]
fn a_parked_fetch_is_no_silence_and_its_answer_ends_the_park() {
    let mut leader = fetched_and_appended(config(), &fetch_of(2, 100));
    leader.on_follower_parked(node(2), millis(16_000));
    assert_eq!(cause(&leader, 15_999), LagCause::CatchingUp, "it may wait for more bytes than there are");
    assert_eq!(
        (cause(&leader, 22_000), cause(&leader, 22_001)),
        (LagCause::CatchingUp, LagCause::NotFetching)
    );
    leader.on_follower_answered(node(2), Answered::default(), millis(2000));
    assert_eq!((cause(&leader, 8000), cause(&leader, 8001)), (LagCause::CatchingUp, LagCause::NotFetching));
}

#[test]
fn who_said_that_it_will_send_nothing_has_until_the_bound() {
    let held_back = FetchPartition { throttled: true, ..fetch_of(2, 100) };
    let leader = fetched_and_appended(config(), &held_back);
    assert_eq!(
        (cause(&leader, 31_000), cause(&leader, 31_001)),
        (LagCause::Throttled, LagCause::NotFetching)
    );

    let appends = FetchPartition { paused: true, ..fetch_of(2, 100) };
    let leader = fetched_and_appended(config(), &appends);
    assert_eq!(
        (cause(&leader, 31_000), cause(&leader, 31_001)),
        (LagCause::FollowerDisk, LagCause::NotFetching)
    );
}

#[test]
fn this_leaders_own_throttle_and_its_read_are_not_the_followers_silence() {
    let mut leader = fetched_and_appended(config(), &fetch_of(2, 100));
    leader.on_follower_parked(node(2), millis(9000));
    leader.on_follower_answered(node(2), Answered { throttled: true, ..Answered::default() }, millis(9000));
    assert_eq!(cause(&leader, 10_000), LagCause::Throttled);
    leader.on_follower_reads(node(2), millis(10_001));
    assert_eq!(cause(&leader, 30_000), LagCause::CatchingUp, "the leader reads for it");
}

#[test]
fn what_is_on_the_way_is_on_the_network_until_the_bound_unless_the_follower_is_dead() {
    let mut leader = fetched_and_appended(config(), &fetch_of(2, 100));
    let answered = Answered { end: Some(offset(105)), ..Answered::default() };
    leader.on_follower_answered(node(2), answered, millis(1001));
    assert_eq!((cause(&leader, 31_000), cause(&leader, 31_001)), (LagCause::Network, LagCause::NotFetching));
    leader.on_follower_gone(node(2), millis(1100));
    assert_eq!(cause(&leader, 1101), LagCause::NotFetching, "its port refuses");
}

#[test]
fn an_answer_that_nobody_comes_back_from_is_on_the_network_and_a_quota_is_told() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(10));
    send(&mut leader, 2, &fetch_of(2, 100), 1000).unwrap();
    let answered = Answered { end: Some(offset(105)), read: Duration::from_millis(2), ..Answered::default() };
    leader.on_follower_answered(node(2), answered, millis(1000));
    let cause = |leader: &LeaderPartition, at| leader.describe(millis(at))[0].cause;
    assert_eq!(cause(&leader, 1099), LagCause::CatchingUp);
    assert_eq!(cause(&leader, 1100), LagCause::Network);
    send(&mut leader, 2, &fetch_of(2, 100), 1150).unwrap();
    assert_eq!(
        cause(&leader, 1200),
        LagCause::Network,
        "a fetch that did not see the answer changes nothing"
    );
    send(
        &mut leader,
        2,
        &FetchPartition { acknowledged_offset: Some(offset(100)), ..fetch_of(2, 105) },
        1300,
    )
    .unwrap();
    assert_eq!(cause(&leader, 1301), LagCause::Network, "the last answer took 300 ms");
    leader.on_follower_answered(node(2), answered, millis(1301));
    send(
        &mut leader,
        2,
        &FetchPartition { acknowledged_offset: Some(offset(100)), ..fetch_of(2, 105) },
        1310,
    )
    .unwrap();
    assert_eq!(cause(&leader, 1311), LagCause::CatchingUp);

    leader.on_follower_answered(
        node(2),
        Answered { read: Duration::from_millis(200), ..answered },
        millis(1400),
    );
    assert_eq!(cause(&leader, 1400), LagCause::LeaderSlow);
    leader.on_follower_answered(node(2), Answered { throttled: true, ..answered }, millis(1400));
    assert_eq!(cause(&leader, 1400), LagCause::Throttled);
    // A quota that lets a little through and pauses again is one throttle.
    leader.on_follower_answered(node(2), answered, millis(1500));
    assert_eq!(cause(&leader, 2400), LagCause::Throttled);
    assert_ne!(cause(&leader, 2401), LagCause::Throttled);

    let refused = Answered { refusal: Some(ErrorCode::DataLoss), ..Answered::default() };
    leader.on_follower_answered(node(2), refused, millis(2500));
    assert_eq!(cause(&leader, 2500), LagCause::BackOff, "what cannot be read is refused");
}

#[test]
fn a_follower_that_a_person_paused_is_told_as_paused_until_it_fetches_again() {
    let mut leader = leader(&all());
    leader.on_append(offset(110), millis(1));
    let cause = |leader: &LeaderPartition, at| leader.describe(millis(at))[0].cause;
    let suspended = FetchPartition { suspended: true, max_bytes: 0, ..fetch_of(2, 100) };
    send(&mut leader, 2, &suspended, 10).unwrap();
    assert_eq!(cause(&leader, 11), LagCause::Paused);
    assert_eq!(cause(&leader, 3_600_000), LagCause::Paused, "it is silent because it is paused");
    send(&mut leader, 2, &fetch_of(2, 100), 3_600_001).unwrap();
    assert_eq!(cause(&leader, 3_600_002), LagCause::CatchingUp);
}
