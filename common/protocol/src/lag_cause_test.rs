//! A test per cause, and which goes before which.

use super::*;

const LAGS: LagFacts = LagFacts {
    lag_records: Some(10),
    leader_unknown: false,
    paused: false,
    disk_failed: false,
    unanswered: false,
    backing_off: false,
    truncating: false,
    silent: false,
    throttled: false,
    awaits_disk: false,
    delays: None,
};

fn millis(behind: u64, leader: u64, network: u64, disk: u64) -> Delays {
    let ms = Duration::from_millis;
    Delays { behind: ms(behind), leader: ms(leader), network: ms(network), disk: ms(disk) }
}

#[test]
fn a_replica_that_lacks_nothing_has_no_cause_whatever_was_slow() {
    let facts = LagFacts {
        lag_records: Some(0),
        paused: true,
        throttled: true,
        silent: true,
        delays: Some(millis(900, 900, 900, 900)),
        ..LAGS
    };
    assert_eq!(facts.cause(), LagCause::None);
}

#[test]
fn an_unknown_leader_is_the_cause_also_while_nothing_is_known_to_be_lacking() {
    let facts = LagFacts { lag_records: Some(0), leader_unknown: true, ..LAGS };
    assert_eq!(facts.cause(), LagCause::LeaderUnknown);
}

#[test]
fn a_paused_replica_is_paused() {
    assert_eq!(LagFacts { paused: true, backing_off: true, ..LAGS }.cause(), LagCause::Paused);
}

#[test]
fn a_wait_after_an_error_is_a_back_off() {
    assert_eq!(LagFacts { backing_off: true, silent: true, ..LAGS }.cause(), LagCause::BackOff);
    assert_eq!(LagFacts { lag_records: None, backing_off: true, ..LAGS }.cause(), LagCause::BackOff);
}

#[test]
fn a_leader_that_does_not_answer_is_behind_the_network_also_while_the_follower_waits() {
    let facts = LagFacts { unanswered: true, backing_off: true, ..LAGS };
    assert_eq!(facts.cause(), LagCause::Network);
    assert_eq!(LagFacts { lag_records: None, ..facts }.cause(), LagCause::Network);
    assert_eq!(LagFacts { leader_unknown: true, ..facts }.cause(), LagCause::LeaderUnknown);
    assert_eq!(LagFacts { disk_failed: true, ..facts }.cause(), LagCause::FollowerDisk);
}

#[test]
fn a_wait_for_a_failed_disk_is_the_disks() {
    let facts = LagFacts { disk_failed: true, backing_off: true, silent: true, ..LAGS };
    assert_eq!(facts.cause(), LagCause::FollowerDisk);
}

#[test]
fn a_cut_is_a_truncation() {
    assert_eq!(LagFacts { truncating: true, awaits_disk: true, ..LAGS }.cause(), LagCause::Truncating);
}

#[test]
fn a_silent_replica_is_not_fetching() {
    assert_eq!(LagFacts { silent: true, throttled: true, ..LAGS }.cause(), LagCause::NotFetching);
    assert_eq!(LagFacts { lag_records: None, silent: true, ..LAGS }.cause(), LagCause::NotFetching);
}

#[test]
fn a_quota_goes_before_what_is_slow_because_of_it() {
    let facts = LagFacts { throttled: true, delays: Some(millis(0, 500, 0, 0)), ..LAGS };
    assert_eq!(facts.cause(), LagCause::Throttled);
}

#[test]
fn the_slowest_part_is_the_cause() {
    for (delays, cause) in [
        (millis(0, 300, 200, 100), LagCause::LeaderSlow),
        (millis(0, 200, 300, 100), LagCause::Network),
        (millis(0, 100, 200, 300), LagCause::FollowerDisk),
        (millis(5_000, 0, 100, 0), LagCause::Network),
        (millis(5_000, 99, 99, 99), LagCause::CatchingUp),
    ] {
        assert_eq!(LagFacts { delays: Some(delays), ..LAGS }.cause(), cause, "{delays:?}");
    }
}

#[test]
fn what_is_read_and_not_held_waits_for_the_disk() {
    assert_eq!(LagFacts { awaits_disk: true, ..LAGS }.cause(), LagCause::FollowerDisk);
}

#[test]
fn a_replica_that_reads_older_records_catches_up() {
    assert_eq!(LAGS.cause(), LagCause::CatchingUp);
    assert_eq!(LagFacts { lag_records: None, ..LAGS }.cause(), LagCause::CatchingUp);
}

#[test]
fn an_answer_is_late_for_its_slowest_part_and_a_prompt_one_for_nothing() {
    assert_eq!(cause_of_answer(&millis(2, 3, 4, 5), 0, false), LagCause::None);
    assert_eq!(cause_of_answer(&millis(2, 3, 4, 5), 7, false), LagCause::CatchingUp);
    assert_eq!(cause_of_answer(&millis(0, 0, 300, 5), 0, false), LagCause::Network);
    assert_eq!(cause_of_answer(&millis(900, 0, 0, 0), 0, false), LagCause::CatchingUp);
    assert_eq!(cause_of_answer(&millis(900, 0, 0, 0), 0, true), LagCause::Throttled);
}

#[test]
fn the_parts_add_up_to_the_lag() {
    assert_eq!(millis(1, 20, 300, 4_000).lag(), Duration::from_millis(4_321));
}

#[test]
fn every_cause_has_a_word_of_its_own() {
    let words: std::collections::BTreeSet<_> = LagCause::ALL.iter().map(|cause| cause.name()).collect();
    assert_eq!(words.len(), LagCause::ALL.len());
}

#[test]
fn a_quota_known_besides_is_a_cause_in_its_place_and_none_where_nothing_is_lacking() {
    for cause in LagCause::ALL {
        assert_eq!(cause.if_throttled(false), cause);
    }
    assert_eq!(LagCause::CatchingUp.if_throttled(true), LagCause::Throttled);
    assert_eq!(LagCause::LeaderSlow.if_throttled(true), LagCause::Throttled);
    assert_eq!(LagCause::NotFetching.if_throttled(true), LagCause::NotFetching);
    assert_eq!(LagCause::None.if_throttled(true), LagCause::None);
}
