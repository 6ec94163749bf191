//! Stamping leaves a valid batch valid, and gives contiguous offsets.

use highwater_types::WallTime;

use super::*;
use crate::{BatchBuilder, Compression, ValidateMode, batches, validate};

fn two_batches() -> Vec<u8> {
    let mut bytes = Vec::new();
    for count in [3, 2] {
        let mut builder = BatchBuilder::new(Compression::None).base_offset(Offset::new(77).unwrap());
        for _ in 0..count {
            builder.append(WallTime::from_millis(1), Some(b"k"), Some(b"v"), &[]).unwrap();
        }
        bytes.extend_from_slice(&builder.build().unwrap());
    }
    bytes
}

#[test]
fn offsets_follow_each_other_and_the_crc_stays_right() {
    let mut bytes = two_batches();
    let epoch = LeaderEpoch::new(9).unwrap();
    let next = stamp_batches(&mut bytes, Offset::new(100).unwrap(), epoch).unwrap();
    assert_eq!(next, Offset::new(105).unwrap());
    let stamped: Vec<_> = batches(&bytes).map(Result::unwrap).collect();
    assert_eq!(stamped.iter().map(|b| b.base_offset().get()).collect::<Vec<_>>(), [100, 103]);
    for batch in stamped {
        assert_eq!(batch.leader_epoch(), Some(epoch));
        assert_eq!(validate(&batch, ValidateMode::Produce), Ok(()));
    }
}

#[test]
fn a_batch_that_became_a_producers_is_as_if_it_was_built_as_its() {
    let producer = Producer { id: i64::MAX - 1, epoch: 3, base_sequence: i32::MAX };
    for compression in Compression::ALL {
        let build = |mut builder: BatchBuilder| {
            builder.append(WallTime::from_millis(1), Some(b"k"), Some(&[7; 1000]), &[]).unwrap();
            builder.build().unwrap()
        };
        let expected = build(BatchBuilder::new(compression).producer(producer));
        // The batch behind it is not touched.
        let mut both = [build(BatchBuilder::new(compression)).as_ref(), &two_batches()].concat();
        set_producer(&mut both, producer).unwrap();
        assert_eq!(both, [expected.as_ref(), &two_batches()].concat(), "{compression:?}");
    }
    let mut torn = two_batches();
    torn.truncate(70);
    let before = torn.clone();
    assert!(set_producer(&mut torn, producer).is_err());
    assert_eq!(torn, before);
}

#[test]
fn offsets_that_are_used_up_are_an_error() {
    let last = Offset::new(i64::MAX - 4).unwrap();
    let error = stamp_batches(&mut two_batches(), last, LeaderEpoch::FIRST).unwrap_err();
    let base_offset = i64::MAX - 1;
    assert_eq!(error, BatchError::BadOffsets { base_offset, last_offset_delta: 1 });
}

#[test]
fn less_than_a_header_cannot_be_stamped() {
    let mut bytes = [0; 60];
    let partial = Err(BatchError::Partial { need: 61, have: 60 });
    assert_eq!(set_base_offset(&mut bytes, Offset::ZERO), partial);
    assert_eq!(set_leader_epoch(&mut bytes, LeaderEpoch::FIRST), partial);
    assert_eq!(bytes, [0; 60]);
}
