//! Indexes held against the batches of a segment of base 100: offsets 100..103 at byte 0, 103..106, 106..107.

use highwater_records::BatchView;
use highwater_types::WallTime;

use super::*;
use crate::log::fixture_test::{NOW, batch_dated, o};

/// Three batches, dated a second apart, the second earlier than the first.
fn batches() -> Vec<(u64, Vec<u8>)> {
    let now = NOW.as_millis();
    let mut position = 0;
    let mut made = Vec::new();
    for (base, count, timestamp) in [(100, 3, now), (103, 3, now - 1000), (106, 1, now + 1000)] {
        let mut bytes = batch_dated(count, 20, WallTime::from_millis(timestamp)).to_vec();
        highwater_records::set_base_offset(&mut bytes, o(base)).unwrap();
        let size = bytes.len() as u64;
        made.push((position, bytes));
        position += size;
    }
    made
}

fn state_with(bytes: &[u8], kind: IndexKind, may_have_room: bool, bad: Option<usize>) -> IndexState {
    let mut check = IndexCheck::new(bytes, kind, o(100), may_have_room);
    for (at, (position, bytes)) in batches().iter().enumerate() {
        if bad == Some(at) {
            let error = highwater_records::BatchError::Empty;
            let bytes = bytes.len() as u64;
            check.on_bad(&BadBytes { position: *position, bytes, error, batch: None, resumes_at: None });
        } else {
            check.on_batch(*position, BatchView::parse(bytes).unwrap().header());
        }
    }
    check.finish()
}

fn state(bytes: &[u8], kind: IndexKind) -> IndexState {
    state_with(bytes, kind, false, None)
}

fn offsets(entries: &[(u32, u64)]) -> Vec<u8> {
    let entry = |(relative, position): &(u32, u64)| {
        [relative.to_be_bytes(), u32::try_from(*position).unwrap().to_be_bytes()].concat()
    };
    entries.iter().flat_map(entry).collect()
}

fn times(entries: &[(i64, u32)]) -> Vec<u8> {
    let entry = |(after_now, relative): &(i64, u32)| {
        let timestamp = (NOW.as_millis() + after_now).to_be_bytes();
        [timestamp.as_slice(), &relative.to_be_bytes()].concat()
    };
    entries.iter().flat_map(entry).collect()
}

fn second() -> u64 {
    batches()[1].0
}

fn third() -> u64 {
    batches()[2].0
}

#[track_caller]
fn assert_bad(state: &IndexState, expected: &str) {
    assert!(matches!(state, IndexState::Bad { reason } if reason.contains(expected)), "{state:?}");
}

#[test]
fn sparse_and_empty_indexes_are_good() {
    for entries in [vec![], vec![(5, second())], vec![(5, second()), (6, third())], vec![(6, third())]] {
        assert_eq!(state(&offsets(&entries), IndexKind::Offset), IndexState::Good, "{entries:?}");
    }
    for entries in [vec![], vec![(0, 2)], vec![(0, 2), (1000, 6)], vec![(0, 5)], vec![(1000, 6)]] {
        assert_eq!(state(&times(&entries), IndexKind::Time), IndexState::Good, "{entries:?}");
    }
}

#[test]
fn one_entry_may_stand_for_several_batches_as_kafkas_followers_write_it() {
    assert_eq!(state(&offsets(&[(6, second())]), IndexKind::Offset), IndexState::Good);
}

#[test]
fn entries_that_lead_to_wrong_places_are_told() {
    for entry in [(5, second() + 1), (2, second()), (5, third())] {
        assert_bad(&state(&offsets(&[entry]), IndexKind::Offset), "is not where");
    }
    for entry in [(1, 2), (-1000, 5), (1000, 5)] {
        assert_bad(&state(&times(&[entry]), IndexKind::Time), "is not the largest");
    }
}

#[test]
fn entries_beyond_the_batches_are_told() {
    assert_bad(&state(&offsets(&[(5, second()), (9, third() + 1000)]), IndexKind::Offset), "beyond");
    assert_bad(&state(&offsets(&[(7, third())]), IndexKind::Offset), "beyond");
    assert_bad(&state(&times(&[(2000, 9)]), IndexKind::Time), "beyond");
}

#[test]
fn what_is_no_index_is_told() {
    assert_bad(&state(&offsets(&[(6, third()), (5, second())]), IndexKind::Offset), "does not rise");
    assert_bad(&state(&[1; 7], IndexKind::Offset), "no whole number");
    assert_bad(&state(&[1; 13], IndexKind::Time), "no whole number");
}

#[test]
fn zeros_after_the_entries_are_room_only_where_kafka_may_have_left_it() {
    for (mut bytes, kind) in
        [(offsets(&[(5, second())]), IndexKind::Offset), (times(&[(0, 2)]), IndexKind::Time)]
    {
        let used = bytes.len();
        bytes.resize(used * 10, 0);
        let spare = used as u64 * 9;
        assert_eq!(state_with(&bytes, kind, true, None), IndexState::Preallocated { spare });
        assert_bad(&state(&bytes, kind), "are zero");
        let all_zero = vec![0; used * 10];
        assert_eq!(
            state_with(&all_zero, kind, true, None),
            IndexState::Preallocated { spare: spare + used as u64 }
        );
    }
}

#[test]
fn entries_of_bad_batches_are_not_the_indexs_fault() {
    let entries = offsets(&[(5, second() + 7), (6, third())]);
    assert_bad(&state(&entries, IndexKind::Offset), "position");
    assert_eq!(state_with(&entries, IndexKind::Offset, false, Some(1)), IndexState::Good);
    let largest_was_in_the_bad_one = times(&[(500, 5)]);
    assert_bad(&state(&largest_was_in_the_bad_one, IndexKind::Time), "is not the largest");
    assert_eq!(state_with(&largest_was_in_the_bad_one, IndexKind::Time, false, Some(1)), IndexState::Good);
}
