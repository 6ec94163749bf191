//! What of a watched lag is told when, and what is dropped.

use super::*;

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime::from_millis(millis)
}

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn pending(generation: u64, end: i64) -> Pending {
    let delays = Delays { network: Duration::from_millis(300), ..Delays::default() };
    let carried = Carried {
        from: offset(end - 10),
        bytes: 1_000,
        delays,
        arrived: at(5_000),
        throttled: false,
        call: None,
        traces: Vec::new(),
    };
    Pending { carried, generation, end: offset(end), appended: None }
}

fn state(generation: u64, log_end: i64, held: i64) -> State {
    State {
        generation,
        log_end: offset(log_end),
        held: offset(held),
        high_watermark: offset(0),
        leader: NodeId::new(1).unwrap(),
        leader_epoch: LeaderEpoch::FIRST,
        leader_end: offset(100),
    }
}

fn ends(told: &[Pending]) -> Vec<i64> {
    told.iter().map(|pending| pending.end.get()).collect()
}

#[test]
fn a_lag_is_told_when_the_records_are_held_and_not_when_they_are_only_appended() {
    let watch = LagWatch::default();
    watch.push(pending(1, 20));
    watch.push(pending(1, 30));
    assert_eq!(ends(&watch.settle(&state(1, 20, 10), at(5_010))), [0; 0]);
    let told = watch.settle(&state(1, 30, 20), at(5_050));
    assert_eq!((ends(&told), told[0].appended), (vec![20], Some(at(5_010))), "the append's own time stays");
    assert_eq!(ends(&watch.settle(&state(1, 30, 30), at(5_060))), [30]);
    assert_eq!(ends(&watch.settle(&state(1, 30, 30), at(5_070))), [0; 0], "once");
}

#[test]
fn what_another_generation_brought_is_never_told() {
    let watch = LagWatch::default();
    watch.push(pending(1, 20));
    watch.push(pending(2, 20));
    assert_eq!(ends(&watch.settle(&state(2, 20, 20), at(5_010))), [20], "only the new one");
}

#[test]
fn what_waits_is_bounded() {
    let watch = LagWatch::default();
    for end in 0..PENDING_MAX as i64 + 3 {
        watch.push(pending(1, 20 + end));
    }
    let told = watch.settle(&state(1, 10_000, 10_000), at(6_000));
    assert_eq!((told.len(), told[0].end), (PENDING_MAX, offset(23)));
}

#[test]
fn attributes_tell_what_is_left_and_why_it_took_long() {
    let held = pending(1, 60);
    let attributes = lag_attributes(&held, &state(1, 60, 60), &held.carried.delays);
    let value = |name: &str| {
        let found = attributes.iter().find(|attribute| attribute.key.as_str() == name);
        found.map(|attribute| attribute.value.to_string()).unwrap()
    };
    assert_eq!(value(attribute::LAG_RECORDS), "40", "100 at the leader, 60 held");
    assert_eq!(value(attribute::LAG_BYTES), "4000", "100 bytes a record, as in the answer");
    assert_eq!(value(attribute::LAG_MS), "300");
    assert_eq!(value(attribute::LAG_CAUSE), "network");
    assert_eq!((value(attribute::RECORDS), value(attribute::BYTES)), ("10".to_owned(), "1000".to_owned()));
    assert_eq!(
        (value(attribute::FETCH_OFFSET), value(attribute::END_OFFSET)),
        ("50".to_owned(), "60".to_owned())
    );
}
