//! What producers may not send, and what replication takes all the same.

use bytes::BytesMut;

use super::*;
use crate::{BatchBuilder, Compression, Header, Producer};

fn at(millis: i64) -> WallTime {
    WallTime::from_millis(millis)
}

fn three_records(compression: Compression) -> BytesMut {
    let mut builder = BatchBuilder::new(compression);
    for (index, value) in [b"one", b"two", b"six"].into_iter().enumerate() {
        let headers = [Header { key: "h".to_owned(), value: None }];
        builder.append(at(1000 + i64::try_from(index).unwrap()), Some(b"k"), Some(value), &headers).unwrap();
    }
    builder.build().unwrap()
}

/// Overwrites bytes and makes the CRC right again: what a faulty producer would send.
fn patched(mut bytes: BytesMut, at: usize, with: &[u8]) -> BytesMut {
    bytes[at..at + with.len()].copy_from_slice(with);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn produce(bytes: &[u8]) -> Result<(), BatchError> {
    validate(&BatchView::parse(bytes).unwrap(), ValidateMode::Produce)
}

fn replicate(bytes: &[u8]) -> Result<(), BatchError> {
    validate(&BatchView::parse(bytes).unwrap(), ValidateMode::Replicate)
}

#[test]
fn attributes_that_only_logs_and_coordinators_set_are_refused_from_producers() {
    let cases: [(i16, BatchError); 4] = [
        (0x10, BatchError::Transactional),
        (0x40, BatchError::BadAttributes { attributes: 0x40 }),
        (0x08, BatchError::BadAttributes { attributes: 0x08 }),
        (0x80, BatchError::BadAttributes { attributes: 0x80 }),
    ];
    for (bits, refusal) in cases {
        let bytes = patched(three_records(Compression::None), 21, &bits.to_be_bytes());
        assert_eq!(produce(&bytes), Err(refusal));
        assert_eq!(replicate(&bytes), Ok(()));
    }
}

#[test]
fn an_unknown_codec_is_refused_from_producers() {
    for codec in 5..=7 {
        let bytes = patched(three_records(Compression::None), 22, &[codec]);
        assert_eq!(produce(&bytes), Err(BatchError::UnknownCompression { codec }));
    }
}

#[test]
fn a_count_that_does_not_fit_the_offsets_is_refused() {
    for (count, replicated) in [(-1, false), (0, true), (2, true), (4, false), (i32::MAX, false)] {
        let bytes = patched(three_records(Compression::None), 57, &i32::to_be_bytes(count));
        let refusal = BatchError::BadRecordCount { count, last_offset_delta: 2 };
        let produced = if count == 0 { BatchError::Empty } else { refusal.clone() };
        assert_eq!(replicate(&bytes), if replicated { Ok(()) } else { Err(refusal.clone()) });
        assert_eq!(produce(&bytes), Err(if count < 0 { refusal } else { produced }));
    }
}

#[test]
fn a_count_that_does_not_fit_the_content_is_refused_for_every_codec() {
    for compression in Compression::ALL {
        let fewer = patched(three_records(compression), 57, &2_i32.to_be_bytes());
        let fewer = patched(fewer, 23, &1_i32.to_be_bytes());
        assert_eq!(produce(&fewer), Err(BatchError::TrailingBytes { count: 2 }), "{compression}");
        let more = patched(three_records(compression), 57, &4_i32.to_be_bytes());
        let more = patched(more, 23, &3_i32.to_be_bytes());
        assert!(matches!(produce(&more), Err(BatchError::BadRecord { index: 3, .. })), "{compression}");
    }
}

#[test]
fn offset_deltas_must_count_up() {
    // The second record's offset delta: length, attributes, timestamp delta before it.
    let bytes = three_records(Compression::None);
    let second = 61 + 1 + usize::from(bytes[61] / 2);
    let bytes = patched(bytes, second + 3, &[0x04]);
    assert!(matches!(produce(&bytes), Err(BatchError::BadRecord { index: 1, .. })));
    assert_eq!(replicate(&bytes), Ok(()), "the follower does not look into records");
}

#[test]
fn the_maximum_timestamp_must_be_that_of_the_records() {
    for compression in Compression::ALL {
        let bytes = patched(three_records(compression), 35, &1003_i64.to_be_bytes());
        assert!(matches!(produce(&bytes), Err(BatchError::BadTimestamp { timestamp: 1003, .. })));
    }
}

#[test]
fn strange_timestamps_are_taken_as_they_are() {
    for stamps in [[-1, -1], [-1, i64::MAX], [i64::MAX, -1], [0, 86_400_000]] {
        let mut builder = BatchBuilder::new(Compression::None);
        for stamp in stamps {
            builder.append(at(stamp), None, Some(b"v"), &[]).unwrap();
        }
        let bytes = builder.build().unwrap();
        assert_eq!(produce(&bytes), Ok(()), "{stamps:?}");
        let batch = BatchView::parse(&bytes).unwrap();
        let decoded: Vec<i64> =
            crate::record_stamps(&batch).unwrap().map(|s| s.unwrap().timestamp.as_millis()).collect();
        assert_eq!(decoded, stamps);
    }
}

#[test]
fn negative_timestamps_are_refused() {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(at(-2), None, Some(b"v"), &[]).unwrap();
    assert!(matches!(
        produce(&builder.build().unwrap()),
        Err(BatchError::BadTimestamp { timestamp: -2, .. })
    ));
}

#[test]
fn producer_fields_belong_together() {
    for (id, epoch, base_sequence, good) in [
        (-1, -1, -1, true),
        (7, 0, 0, true),
        (7, 0, -1, false),
        (7, -1, 0, false),
        (-1, 0, 0, false),
        (-2, -1, -1, false),
    ] {
        let mut builder =
            BatchBuilder::new(Compression::None).producer(Producer { id, epoch, base_sequence });
        builder.append(at(1), None, None, &[]).unwrap();
        let expected =
            if good { Ok(()) } else { Err(BatchError::BadProducer { id, epoch, sequence: base_sequence }) };
        assert_eq!(produce(&builder.build().unwrap()), expected);
    }
}

#[test]
fn lengths_inside_a_record_are_held_to_the_record() {
    let good = three_records(Compression::None);
    // Length of the key, of the value, the number of headers: each replaced by 63, which is more than there is.
    for within in [4, 6, 10] {
        let bytes = patched(good.clone(), 61 + within, &[0x7e]);
        assert!(matches!(produce(&bytes), Err(BatchError::BadRecord { index: 0, .. })), "byte {within}");
    }
    // The record's own length: longer and shorter than its content, negative, and a varint that does not end.
    for with in [&[good[61] + 2][..], &[good[61] - 2], &[0x03], &[0xff; 11]] {
        let bytes = patched(good.clone(), 61, with);
        assert!(matches!(produce(&bytes), Err(BatchError::BadRecord { index: 0, .. })), "{with:?}");
    }
}

#[test]
fn a_decompression_bomb_is_refused() {
    let mut builder = BatchBuilder::new(Compression::Zstd);
    let megabyte = vec![0; 1 << 20];
    for _ in 0..257 {
        builder.append(at(1), None, Some(&megabyte), &[]).unwrap();
    }
    let bytes = builder.build().unwrap();
    assert!(bytes.len() < 100_000, "a bomb of {} bytes", bytes.len());
    let refusal = produce(&bytes).unwrap_err();
    assert_eq!(refusal, BatchError::DecompressedTooLarge { limit: crate::MAX_DECOMPRESSED_BYTES });
}
