//! Broken histories, each kind reported, and what is none.

#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use super::*;

/// Two acknowledged records, one whose outcome is unknown, one refused.
fn history() -> History {
    let history = History::default();
    for value in ["a", "b", "c", "d"] {
        history.attempt("t-0", value.as_bytes());
    }
    history.outcome("t-0", b"a", Outcome::Acknowledged(0));
    history.outcome("t-0", b"b", Outcome::Acknowledged(1));
    history.outcome("t-0", b"d", Outcome::Refused);
    history
}

/// All of epoch 3.
fn read<'a>(records: &'a [(i64, &'a str)]) -> impl Iterator<Item = ReadRecord<'a>> {
    records.iter().map(|(offset, value)| ReadRecord { offset: *offset, epoch: 3, value: value.as_bytes() })
}

fn reading(records: &[(i64, &str)]) -> Vec<String> {
    let history = history();
    history.read("t-0", read(records));
    history.violations()
}

#[test]
fn what_was_acknowledged_is_enough_and_an_unknown_record_may_be_there() {
    assert_eq!(reading(&[(0, "a"), (1, "b")]), Vec::<String>::new());
    assert_eq!(reading(&[(0, "a"), (1, "b"), (5, "c")]), Vec::<String>::new());
}

#[test]
fn a_missing_or_moved_record_is_reported() {
    assert_eq!(reading(&[(0, "a")]), ["t-0: acknowledged 1 = b, found nothing"]);
    assert_eq!(reading(&[(0, "a"), (1, "c"), (2, "b")]), ["t-0: acknowledged 1 = b, found c"]);
    assert_eq!(reading(&[]).len(), 2);
}

#[test]
fn a_duplicate_is_reported() {
    assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "a")]), ["t-0: a is there more than once, at [0, 2]"]);
}

#[test]
fn what_nobody_produced_or_was_refused_is_reported() {
    assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "x")]), ["t-0: x at [2] was never produced"]);
    assert_eq!(reading(&[(0, "a"), (1, "b"), (2, "d")]), ["t-0: d at [2] was refused"]);
}

#[test]
fn a_reader_that_goes_back_is_reported() {
    assert_eq!(reading(&[(1, "b"), (0, "a")]), ["t-0: 0 was read after 1"]);
}

#[test]
fn two_readers_that_differ_are_reported() {
    let history = history();
    history.read("t-0", read(&[(0, "a"), (1, "b")]));
    history.read("t-0", read(&[(0, "a"), (1, "c")]));
    assert_eq!(history.violations(), ["t-0: 1 was b of epoch 3, then c of epoch 3"]);
}

#[test]
fn a_record_that_was_cut_and_appended_again_by_another_leader_is_reported() {
    let history = history();
    history.read("t-0", read(&[(0, "a"), (1, "b")]));
    history.read("t-0", [ReadRecord { offset: 1, epoch: 4, value: b"b" }]);
    assert_eq!(history.violations(), ["t-0: 1 was b of epoch 3, then b of epoch 4"]);
}

#[test]
fn what_somebody_read_and_is_not_there_in_the_end_is_reported() {
    let history = history();
    history.read("t-0", read(&[(0, "a"), (1, "b"), (2, "c")]));
    history.read_last("t-0", read(&[(0, "a"), (1, "b"), (2, "c")]));
    assert_eq!(history.violations(), Vec::<String>::new());
    history.read_last("t-0", read(&[(0, "a"), (1, "b")]));
    assert_eq!(history.violations(), ["t-0: 2 was c of epoch 3, and is not there in the end"]);
}

#[test]
fn records_of_a_producer_out_of_order_are_reported() {
    let history = History::default();
    let number = |value: &[u8]| (u64::from(value[0]), u64::from(value[1]));
    for value in ["a0", "a1", "a2", "b0", "b1"] {
        history.attempt("t-0", value.as_bytes());
    }
    history.read("t-0", read(&[(0, "a0"), (1, "b0"), (2, "a2"), (3, "b1")]));
    history.check_order(number);
    assert_eq!(history.violations(), Vec::<String>::new(), "a1 may be missing");
    history.read("t-0", read(&[(4, "a1")]));
    history.check_order(number);
    assert_eq!(history.violations(), ["t-0: a1 at 4 stands behind number 50 of its producer"]);
}

#[test]
#[should_panic(expected = "nothing was acknowledged")]
fn a_history_without_acknowledgements_proves_nothing() {
    History::default().assert_holds();
}
