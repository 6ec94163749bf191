//! Properties: what is built is valid and decodes to what went in; any flipped byte under the CRC is refused; no bytes at
//! all make anything panic.

use bytes::{Bytes, BytesMut};
use highwater_types::{Offset, WallTime};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::*;

fn some_bytes() -> impl Strategy<Value = Option<Bytes>> {
    option::of(vec(any::<u8>(), 0..200).prop_map(Bytes::from))
}

fn timestamp() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1), Just(i64::MAX), 0..2_000_000_000_000_i64, Just(1_700_000_000_000)]
}

fn record() -> impl Strategy<Value = Record> {
    let headers = vec(("[a-zü]{0,5}", some_bytes()), 0..4);
    (timestamp(), some_bytes(), some_bytes(), headers).prop_map(|(timestamp, key, value, headers)| Record {
        offset: Offset::ZERO,
        timestamp: WallTime::from_millis(timestamp),
        sequence: -1,
        key,
        value,
        headers: headers.into_iter().map(|(key, value)| Header { key, value }).collect(),
    })
}

fn codec() -> impl Strategy<Value = Compression> {
    proptest::sample::select(Compression::ALL.to_vec())
}

fn build(compression: Compression, base: i64, base_sequence: i32, records: &[Record]) -> BytesMut {
    let mut builder = BatchBuilder::new(compression).base_offset(Offset::new(base).unwrap());
    if base_sequence >= 0 {
        builder = builder.producer(Producer { id: 5, epoch: 1, base_sequence });
    }
    for record in records {
        builder
            .append(record.timestamp, record.key.as_deref(), record.value.as_deref(), &record.headers)
            .unwrap();
    }
    let uncompressed = builder.uncompressed_size();
    let built = builder.build().unwrap();
    assert!(compression != Compression::None || built.len() == uncompressed);
    built
}

/// Everything that can be asked of bytes.
fn exercise(bytes: &[u8]) {
    for batch in batches(bytes).flatten() {
        let _ = validate(&batch, ValidateMode::Produce);
        let _ = validate(&batch, ValidateMode::Replicate);
        let _ = (batch.last_offset(), batch.last_sequence(), batch.delete_horizon());
        for record in records(&batch).into_iter().flatten().flatten() {
            let _ = ControlRecord::decode(&record);
        }
        let _ = record_stamps(&batch).map(Iterator::count);
    }
    let _ = find_valid_batch(bytes, Offset::ZERO);
    let _ = stamp_batches(&mut bytes.to_vec(), Offset::ZERO, highwater_types::LeaderEpoch::FIRST);
}

proptest! {
    #[test]
    fn what_is_built_is_valid_and_decodes_to_what_went_in(
        compression in codec(),
        base in 0..i64::MAX / 2,
        base_sequence in prop_oneof![Just(-1), 0..100, i32::MAX - 3..=i32::MAX],
        input in vec(record(), 1..20),
    ) {
        let bytes = build(compression, base, base_sequence, &input);
        let batch = BatchView::parse(&bytes).unwrap();
        prop_assert_eq!(batch.size(), bytes.len());
        prop_assert_eq!(validate(&batch, ValidateMode::Produce), Ok(()));
        prop_assert_eq!(validate(&batch, ValidateMode::Replicate), Ok(()));
        let decoded = decode_records(&batch).unwrap();
        prop_assert_eq!(batch.next_offset().since(batch.base_offset()), input.len() as u64);
        prop_assert_eq!(decoded.last().unwrap().sequence, batch.last_sequence());
        let expected: Vec<Record> = input.into_iter().zip(0_i64..).map(|(record, index)| {
            let wrapped = i64::from(base_sequence) + index - if i64::from(base_sequence) + index > i64::from(i32::MAX) { 1 << 31 } else { 0 };
            let sequence = if base_sequence < 0 { -1 } else { i32::try_from(wrapped).unwrap() };
            Record { offset: Offset::new(base + index).unwrap(), sequence, ..record }
        }).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn any_flipped_bit_under_the_crc_is_refused(
        compression in codec(),
        input in vec(record(), 1..8),
        at in any::<proptest::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut bytes = build(compression, 0, -1, &input);
        // The CRC itself (17..21) and all that it covers.
        let position = 17 + at.index(bytes.len() - 17);
        bytes[position] ^= 1 << bit;
        if let Ok(batch) = BatchView::parse(&bytes) {
            for mode in [ValidateMode::Produce, ValidateMode::Replicate] {
                let refused = matches!(validate(&batch, mode), Err(BatchError::BadChecksum { .. }));
                prop_assert!(refused);
            }
        } else {
            // Only the last offset delta (23..27) can make the header itself impossible.
            prop_assert!((23..27).contains(&position));
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        exercise(&bytes);
    }

    #[test]
    fn bytes_under_a_good_header_and_a_good_crc_do_not_panic(
        codec in 0..8_u8,
        last_offset_delta in prop_oneof![0..4_i32, Just(i32::MAX)],
        count in prop_oneof![0..5_i32, any::<i32>()],
        payload in vec(prop_oneof![any::<u8>(), Just(0x02), Just(0x0e), Just(0xff)], 0..200),
    ) {
        let record = Record {
            offset: Offset::ZERO, timestamp: NO_TIMESTAMP, sequence: -1, key: None, value: None, headers: vec![],
        };
        let mut bytes = build(Compression::None, 0, -1, &[record]).to_vec();
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&payload);
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[22] = codec;
        bytes[23..27].copy_from_slice(&last_offset_delta.to_be_bytes());
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        exercise(&bytes);
    }

    #[test]
    fn a_damaged_compressed_payload_does_not_panic(
        compression in codec(),
        input in vec(record(), 1..20),
        flips in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = build(compression, 0, -1, &input).to_vec();
        for (at, with) in flips {
            let position = HEADER_BYTES + at.index(bytes.len() - HEADER_BYTES);
            bytes[position] = with;
        }
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        exercise(&bytes);
    }
}
