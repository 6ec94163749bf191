//! Sequences, duplicates, cuts and snapshots of idempotent producers (design.md 6.10).

use super::*;
use crate::test_values::offset;

fn batch(producer: i64, first: i32, last: i32) -> Sequenced {
    Sequenced { producer, epoch: 0, first_sequence: first, last_sequence: last, timestamp: 1_000 }
}

/// Producer 7 has appended batches of one record each, sequences and offsets 0 to `count - 1`.
fn after_singles(count: i32) -> ProducerStates {
    let mut states = ProducerStates::default();
    for sequence in 0..count {
        states.on_appended(
            &batch(7, sequence, sequence),
            offset(sequence.into()),
            offset(i64::from(sequence) + 1),
        );
    }
    states
}

#[test]
fn an_unknown_producer_begins_at_sequence_0_only() {
    let states = ProducerStates::default();
    assert_eq!(states.check(&batch(7, 0, 4)), Ok(Admission::New));
    assert_eq!(states.check(&batch(7, 1, 4)), Err(SequenceError::UnknownProducer));
}

#[test]
fn the_next_sequence_is_new_and_a_hole_is_not() {
    let states = after_singles(3);
    assert_eq!(states.check(&batch(7, 3, 9)), Ok(Admission::New));
    assert_eq!(states.check(&batch(7, 4, 9)), Err(SequenceError::OutOfOrder { expected: 3 }));
    assert_eq!(states.check(&batch(8, 0, 0)), Ok(Admission::New), "another producer is its own");
}

#[test]
fn a_duplicate_is_an_exact_match_among_the_last_five() {
    let states = after_singles(7);
    for sequence in 2..7 {
        let found =
            Admission::Duplicate { first: offset(sequence.into()), next: offset(i64::from(sequence) + 1) };
        assert_eq!(states.check(&batch(7, sequence, sequence)), Ok(found));
    }
    let out = Err(SequenceError::OutOfOrder { expected: 7 });
    assert_eq!(states.check(&batch(7, 1, 1)), out, "the sixth");
    assert_eq!(states.check(&batch(7, 5, 6)), out, "two batches are not one");
    assert_eq!(states.check(&batch(7, 6, 7)), out, "an overlap is no duplicate");
}

#[test]
fn sequences_wrap_around_after_the_largest() {
    let mut states = ProducerStates::default();
    let big = Sequenced { first_sequence: i32::MAX - 1, last_sequence: i32::MAX, ..batch(7, 0, 0) };
    states.on_appended(&big, offset(0), offset(2));
    assert_eq!(states.check(&batch(7, 0, 3)), Ok(Admission::New));
    assert_eq!(states.check(&batch(7, 1, 3)), Err(SequenceError::OutOfOrder { expected: 0 }));
    let across = Sequenced { first_sequence: i32::MAX, last_sequence: 1, ..batch(7, 0, 0) };
    let mut states = ProducerStates::default();
    states.on_appended(&across, offset(0), offset(3));
    assert_eq!(states.check(&batch(7, 2, 2)), Ok(Admission::New));
    assert_eq!(states.check(&across), Ok(Admission::Duplicate { first: offset(0), next: offset(3) }));
}

#[test]
fn a_new_epoch_begins_at_0_and_fences_the_old_one() {
    let mut states = after_singles(3);
    let of_epoch = |epoch, first| Sequenced { epoch, ..batch(7, first, first) };
    assert_eq!(states.check(&of_epoch(1, 3)), Err(SequenceError::OutOfOrder { expected: 0 }));
    assert_eq!(states.check(&of_epoch(1, 0)), Ok(Admission::New));
    states.on_appended(&of_epoch(1, 0), offset(3), offset(4));
    assert_eq!(states.check(&of_epoch(0, 3)), Err(SequenceError::Fenced { current: 1 }));
    assert_eq!(states.check(&of_epoch(1, 0)), Ok(Admission::Duplicate { first: offset(3), next: offset(4) }));
}

#[test]
fn what_was_admitted_counts_at_once_and_can_be_taken_back() {
    let mut states = after_singles(1);
    let before = states.clone();
    let mut undo = Undo::default();
    assert_eq!(states.admit(&batch(7, 1, 1), offset(1), offset(2), &mut undo), Ok(Admission::New));
    let twice = states.admit(&batch(7, 1, 1), offset(2), offset(3), &mut undo);
    assert_eq!(twice, Ok(Admission::Duplicate { first: offset(1), next: offset(2) }), "of the same write");
    assert_eq!(states.admit(&batch(9, 0, 0), offset(2), offset(3), &mut undo), Ok(Admission::New));
    assert!(states.admit(&batch(9, 5, 5), offset(3), offset(4), &mut undo).is_err());
    states.undo(undo);
    assert_eq!(states, before, "nothing was appended");
}

#[test]
fn a_cut_rolls_the_state_back() {
    let mut states = after_singles(5);
    assert!(states.truncate_to(offset(3)), "all that there was is remembered");
    assert_eq!(states, after_singles(3));
    assert_eq!(states.check(&batch(7, 3, 3)), Ok(Admission::New), "no duplicate of what was cut");
    assert!(states.truncate_to(offset(0)));
    assert!(states.is_empty());
    assert_eq!(states.check(&batch(7, 3, 3)), Err(SequenceError::UnknownProducer));
}

#[test]
fn a_cut_into_a_batch_takes_the_batch() {
    let mut states = ProducerStates::default();
    states.on_appended(&batch(7, 0, 4), offset(0), offset(5));
    states.on_appended(&batch(7, 5, 9), offset(5), offset(10));
    assert!(states.truncate_to(offset(7)));
    assert_eq!(states.check(&batch(7, 5, 9)), Ok(Admission::New));
}

#[test]
fn a_cut_beyond_what_is_remembered_asks_for_the_log() {
    assert!(!after_singles(7).truncate_to(offset(5)), "batches 0 and 1 belong to the last five again");
    assert!(!after_singles(7).truncate_to(offset(1)));
    assert!(after_singles(7).truncate_to(offset(7)), "nothing is cut");
    let mut other_epoch = after_singles(2);
    other_epoch.on_appended(&Sequenced { epoch: 1, ..batch(7, 0, 0) }, offset(2), offset(3));
    assert!(!other_epoch.truncate_to(offset(2)), "the older epoch was forgotten");
}

#[test]
fn who_was_silent_longest_is_forgotten_first() {
    let mut states = ProducerStates::default();
    for producer in 0..10_001 {
        states.on_appended(&batch(producer, 0, 0), offset(producer), offset(producer + 1));
    }
    assert_eq!(states.len(), 10_000);
    assert_eq!(states.check(&batch(0, 1, 1)), Err(SequenceError::UnknownProducer));
    assert_eq!(states.check(&batch(1, 1, 1)), Ok(Admission::New));
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))
}

#[test]
fn a_snapshot_keeps_every_producer_with_its_newest_batch() {
    let mut states = after_singles(3);
    let across =
        Sequenced { producer: 9, epoch: 4, first_sequence: i32::MAX, last_sequence: 1, timestamp: 5 };
    states.on_appended(&across, offset(3), offset(6));
    let bytes = states.encode(checksum);
    let read = ProducerStates::decode(&bytes, checksum).unwrap();
    assert_eq!(read.check(&batch(7, 3, 3)), Ok(Admission::New));
    let newest = Admission::Duplicate { first: offset(2), next: offset(3) };
    assert_eq!(read.check(&batch(7, 2, 2)), Ok(newest));
    assert_eq!(read.check(&across), Ok(Admission::Duplicate { first: offset(3), next: offset(6) }));
    assert_eq!(read.encode(checksum), bytes);
    let mut cut = read;
    assert!(!cut.truncate_to(offset(4)), "what came before is in the log only");
}

#[test]
fn every_byte_of_a_snapshot_is_checked() {
    let bytes = after_singles(2).encode(checksum);
    assert_eq!(ProducerStates::decode(&[], checksum), Err(BadSnapshot::Checksum));
    for length in 0..bytes.len() {
        assert!(ProducerStates::decode(&bytes[..length], checksum).is_err(), "{length} bytes");
    }
    for position in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[position] ^= 0x40;
        assert!(ProducerStates::decode(&bad, checksum).is_err(), "byte {position}");
    }
}

#[test]
fn entries_that_cannot_be_are_refused_even_under_a_right_checksum() {
    let good = after_singles(1).encode(checksum);
    // Producer id, epoch, last sequence, last offset, offset delta: each negative.
    for at in [10, 18, 20, 24, 32] {
        let mut bad = good.clone();
        bad[at] |= 0x80;
        let sum = checksum(&bad[6..]);
        bad[2..6].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(ProducerStates::decode(&bad, checksum), Err(BadSnapshot::Entries), "byte {at}");
    }
}
