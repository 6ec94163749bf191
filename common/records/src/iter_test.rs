//! Walking concatenations: whole, cut off, and of things that are no batches.

use highwater_types::WallTime;

use super::*;
use crate::{BatchBuilder, Compression, stamp_batches};

fn log_of(batch_count: usize) -> Vec<u8> {
    let mut log = Vec::new();
    for index in 0..batch_count {
        let mut builder = BatchBuilder::new(Compression::None);
        builder.append(WallTime::from_millis(7), None, Some(&vec![b'x'; index]), &[]).unwrap();
        log.extend_from_slice(&builder.build().unwrap());
    }
    stamp_batches(&mut log, Offset::ZERO, highwater_types::LeaderEpoch::FIRST).unwrap();
    log
}

#[test]
fn every_cut_ends_after_the_last_whole_batch_and_says_what_is_missing() {
    let log = log_of(3);
    let ends: Vec<usize> = batches(&log)
        .scan(0, |end, batch| {
            *end += batch.unwrap().size();
            Some(*end)
        })
        .collect();
    assert_eq!(ends.last(), Some(&log.len()));
    for cut in 0..log.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let start = if whole == 0 { 0 } else { ends[whole - 1] };
        let mut walk = batches(&log[..cut]);
        assert_eq!(walk.by_ref().take(whole).filter(Result::is_ok).count(), whole);
        assert_eq!(walk.consumed(), start);
        if cut > start {
            let Some(Err(BatchError::Partial { need, have })) = walk.next() else { panic!("cut at {cut}") };
            assert_eq!(have, cut - start);
            assert!(need > have && need <= ends[whole] - start, "needs {need} at cut {cut}");
        }
        assert!(walk.next().is_none(), "fused, cut at {cut}");
        assert_eq!(walk.consumed(), start);
    }
}

#[test]
fn old_message_formats_are_named() {
    for magic in [0_u8, 1, 3, 255] {
        let mut bytes = vec![0; 30];
        bytes[11] = 18;
        bytes[16] = magic;
        let error = batches(&bytes).next().unwrap().unwrap_err();
        assert_eq!(error, BatchError::UnsupportedMagic { magic: magic.cast_signed() });
    }
}

#[test]
fn impossible_lengths_are_refused_before_anything_is_made_of_them() {
    for length in [i32::MIN, -1, 0, 13, 14, 48] {
        let mut bytes = log_of(1);
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        assert_eq!(batches(&bytes).next().unwrap().unwrap_err(), BatchError::BadLength { length });
    }
    let mut bytes = log_of(1);
    bytes[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    let have = bytes.len();
    let need = 12 + usize::try_from(i32::MAX).unwrap();
    assert_eq!(batches(&bytes).next().unwrap().unwrap_err(), BatchError::Partial { need, have });
}

#[test]
fn offsets_that_are_no_offsets_are_refused() {
    for (base, delta) in [(-1_i64, 0_i32), (0, -1), (i64::MAX, 0), (i64::MAX - 1, 1), (i64::MIN, i32::MIN)] {
        let mut bytes = log_of(1);
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        bytes[23..27].copy_from_slice(&delta.to_be_bytes());
        let error = batches(&bytes).next().unwrap().unwrap_err();
        assert_eq!(error, BatchError::BadOffsets { base_offset: base, last_offset_delta: delta });
    }
}

#[test]
fn a_good_batch_after_damage_is_found_and_after_a_torn_tail_there_is_none() {
    let log = log_of(3);
    let second = batches(&log).next().unwrap().unwrap().size();
    let mut damaged = log.clone();
    damaged[30] ^= 1;
    assert_eq!(find_valid_batch(&damaged, Offset::ZERO), Some(second));
    assert_eq!(find_valid_batch(&damaged[second - 5..], Offset::ZERO), Some(5), "starting at any byte");
    let later = find_valid_batch(&damaged, Offset::ZERO.advance(2)).unwrap();
    assert!(later > second, "batches below the wanted offset do not count");
    assert_eq!(find_valid_batch(&log[second - 20..second], Offset::ZERO), None);
    assert_eq!(find_valid_batch(&[], Offset::ZERO), None);
    assert_eq!(find_valid_batch(&[0; 4096], Offset::ZERO), None);
}

#[test]
fn the_search_for_a_good_batch_gives_up_on_text_made_of_false_beginnings() {
    // Every 17th byte begins something that looks like a large batch; without a bound this is the square of the length.
    let mut one = log_of(1);
    one[8..12].copy_from_slice(&600_000_i32.to_be_bytes());
    let mut bytes: Vec<u8> = one.iter().copied().cycle().take(one.len() * 10_000).collect();
    bytes.extend_from_slice(&vec![0; 600_000]);
    assert_eq!(find_valid_batch(&bytes, Offset::ZERO), None);
}
