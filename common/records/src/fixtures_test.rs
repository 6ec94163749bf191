//! FX1–FX6: batches whose bytes were made, and checked, by others' code.

use highwater_types::{ErrorCode, LeaderEpoch, Offset, WallTime};

use crate::*;

const FX1: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX2: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8ffffffffffffffffffffffffffff00000000";
const FX3: &str = "0000000000000003000000420000000002fff0903e00300000000000000000000003e800000000000003e800000000000000070000ffffffff000000012000000008000000010c00000000000000";
const FX4: &str = "0000000000000000000000410000000502ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX5: &str = "0000000000000000000000810000000002c0b9d36600000000000900000000000003e800000000000003e8ffffffffffffffffffffffffffff0000000a0e000000010261000e000002010262000e000004010263000e000006010264000e000008010265000e00000a010266000e00000c010267000e00000e010268000e000010010269000e00001201026a00";
const FX6: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026300";

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn values(batch: &BatchView<'_>) -> Vec<String> {
    decode_records(batch)
        .unwrap()
        .into_iter()
        .map(|record| String::from_utf8(record.value.unwrap().to_vec()).unwrap())
        .collect()
}

#[test]
fn fx1_is_two_records_that_may_be_produced() {
    let bytes = unhex(FX1);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!((batch.size(), batch.base_offset(), batch.next_offset()), (77, offset(0), offset(2)));
    assert_eq!(batch.leader_epoch(), Some(LeaderEpoch::FIRST));
    assert_eq!(validate(&batch, ValidateMode::Produce), Ok(()));
    assert_eq!(validate(&batch, ValidateMode::Replicate), Ok(()));
    assert_eq!(values(&batch), ["a", "b"]);
    let stamps: Vec<_> = record_stamps(&batch).unwrap().map(Result::unwrap).collect();
    let at = |raw| RecordStamp { offset: offset(raw), timestamp: WallTime::from_millis(1000) };
    assert_eq!(stamps, [at(0), at(1)]);
}

#[test]
fn fx2_is_empty_and_still_covers_its_offsets() {
    let bytes = unhex(FX2);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!((batch.size(), batch.record_count()), (61, 0));
    assert_eq!((batch.base_offset(), batch.last_offset()), (offset(8737), offset(8747)));
    assert_eq!(batch.next_offset(), offset(8748));
    assert_eq!(validate(&batch, ValidateMode::Replicate), Ok(()));
    assert_eq!(decode_records(&batch), Ok(vec![]));
    let refusal = validate(&batch, ValidateMode::Produce).unwrap_err();
    assert_eq!((refusal.clone(), refusal.code()), (BatchError::Empty, ErrorCode::InvalidRecord));
}

#[test]
fn fx3_is_a_commit_marker_which_only_replication_accepts() {
    let bytes = unhex(FX3);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!((batch.size(), batch.base_offset(), batch.next_offset()), (78, offset(3), offset(4)));
    assert!(batch.is_control() && batch.is_transactional());
    assert_eq!((batch.producer_id(), batch.producer_epoch(), batch.base_sequence()), (7, 0, -1));
    assert_eq!(validate(&batch, ValidateMode::Replicate), Ok(()));
    let refusal = validate(&batch, ValidateMode::Produce).unwrap_err();
    assert_eq!((refusal.clone(), refusal.code()), (BatchError::Control, ErrorCode::InvalidRecord));
    let records = decode_records(&batch).unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(ControlRecord::decode(&records[0]), Some(ControlRecord::end_transaction(true, 0)));
}

#[test]
fn fx4_the_leader_epoch_is_outside_the_crc() {
    let bytes = unhex(FX4);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!(batch.leader_epoch(), LeaderEpoch::new(5));
    assert_eq!(validate(&batch, ValidateMode::Produce), Ok(()));

    let mut stamped = unhex(FX1);
    set_leader_epoch(&mut stamped, LeaderEpoch::new(5).unwrap()).unwrap();
    assert_eq!(stamped, bytes);
}

#[test]
fn fx5_is_ten_records_in_one_batch() {
    let bytes = unhex(FX5);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!((batch.size(), batch.record_count(), batch.next_offset()), (141, 10, offset(10)));
    assert_eq!(validate(&batch, ValidateMode::Produce), Ok(()));
    assert_eq!(values(&batch), ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
}

#[test]
fn fx6_a_changed_byte_is_refused_in_both_modes() {
    let bytes = unhex(FX6);
    let batch = BatchView::parse(&bytes).unwrap();
    assert!(!batch.crc_ok());
    for mode in [ValidateMode::Produce, ValidateMode::Replicate] {
        let refusal = validate(&batch, mode).unwrap_err();
        assert!(matches!(refusal, BatchError::BadChecksum { stored: 0xae55_0960, .. }), "{refusal}");
        assert_eq!(refusal.code(), ErrorCode::CorruptMessage);
    }
}

#[test]
fn the_builder_writes_fx1_byte_for_byte() {
    let mut builder = BatchBuilder::new(Compression::None).leader_epoch(LeaderEpoch::FIRST);
    for value in [b"a", b"b"] {
        builder.append(WallTime::from_millis(1000), None, Some(value), &[]).unwrap();
    }
    assert_eq!(builder.build().unwrap(), unhex(FX1));
}

#[test]
fn the_builder_writes_fx3_byte_for_byte() {
    let marker = BatchBuilder::new(Compression::None)
        .base_offset(offset(3))
        .leader_epoch(LeaderEpoch::FIRST)
        .producer(Producer { id: 7, epoch: 0, base_sequence: -1 })
        .transactional()
        .build_control(ControlRecord::end_transaction(true, 0), WallTime::from_millis(1000))
        .unwrap();
    assert_eq!(marker, unhex(FX3));
}
