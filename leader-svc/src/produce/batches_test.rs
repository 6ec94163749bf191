//! Which batches a producer may append: the byte fixtures of real batches, good and bad.

use super::*;

const FX1: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX2: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8ffffffffffffffffffffffffffff00000000";
const FX3: &str = "0000000000000003000000420000000002fff0903e00300000000000000000000003e800000000000003e800000000000000070000ffffffff000000012000000008000000010c00000000000000";
const FX4: &str = "0000000000000000000000410000000502ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
const FX6: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026300";

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// How many records pass.
async fn outcome(bytes: Vec<u8>) -> Result<i32, ErrorCode> {
    let records = ProduceRecords::Batches(bytes.into());
    let checked = check(records, 1 << 20, WallTime::from_millis(5)).await.map_err(|e| e.code)?;
    Ok(batches(&checked.bytes).map(|batch| batch.unwrap().record_count()).sum())
}

#[tokio::test]
async fn a_good_batch_passes_whatever_epoch_it_carries() {
    assert_eq!(outcome(unhex(FX1)).await, Ok(2));
    assert_eq!(outcome(unhex(FX4)).await, Ok(2), "the epoch is outside the CRC; the leader stamps its own");
    assert_eq!(outcome([unhex(FX1), unhex(FX1)].concat()).await, Ok(4));
}

#[tokio::test]
async fn what_producers_may_not_send_is_refused_with_its_own_code() {
    assert_eq!(outcome(unhex(FX2)).await, Err(ErrorCode::InvalidRecord), "empty");
    assert_eq!(outcome(unhex(FX3)).await, Err(ErrorCode::InvalidRecord), "control");
    assert_eq!(outcome(unhex(FX6)).await, Err(ErrorCode::CorruptMessage), "CRC");
    for magic in [0, 1, 3] {
        let mut bytes = unhex(FX1);
        bytes[16] = magic;
        assert_eq!(outcome(bytes).await, Err(ErrorCode::Unsupported), "magic {magic}");
    }
    let mut torn = unhex(FX1);
    torn.pop();
    assert_eq!(outcome(torn).await, Err(ErrorCode::CorruptMessage), "torn");
    assert_eq!(outcome(vec![0; 7]).await, Err(ErrorCode::CorruptMessage), "shorter than a header");
}

#[tokio::test]
async fn one_bad_batch_refuses_those_beside_it() {
    let both = [unhex(FX1), unhex(FX6)].concat();
    let records = ProduceRecords::Batches(both.into());
    let error = check(records, 1 << 20, WallTime::from_millis(5)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::CorruptMessage);
    assert!(error.message.contains("batch 1"), "{error}");
}

#[tokio::test]
async fn a_batch_above_max_message_bytes_is_refused() {
    let records = ProduceRecords::Batches(unhex(FX1).into());
    let error = check(records, 76, WallTime::from_millis(5)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::MessageTooLarge);
    assert!(error.message.contains("77 bytes") && error.message.contains("76"), "{error}");
}

#[tokio::test]
async fn damage_inside_compressed_content_is_found() {
    let mut builder = BatchBuilder::new(Compression::Zstd);
    builder.append(WallTime::from_millis(1), None, Some(&[7; 1000]), &[]).unwrap();
    let good = builder.build().unwrap();
    assert_eq!(outcome(good.to_vec()).await, Ok(1));
    // A count that the content does not hold, under a correct CRC.
    let mut lying = good.to_vec();
    lying[57..61].copy_from_slice(&2_i32.to_be_bytes());
    lying[23..27].copy_from_slice(&1_i32.to_be_bytes());
    let crc = crc_of(&lying);
    lying[17..21].copy_from_slice(&crc.to_be_bytes());
    assert!(outcome(lying).await.is_err());
}

/// The CRC that the header should carry.
fn crc_of(batch: &[u8]) -> u32 {
    highwater_records::BatchView::parse(batch).unwrap().compute_crc()
}

#[tokio::test]
async fn plain_records_become_one_batch() {
    let plain = PlainRecord {
        key: None,
        value: Some(Bytes::from_static(b"hello")),
        headers: vec![("h".into(), None)],
        timestamp: None,
    };
    let records = ProduceRecords::Plain(vec![plain.clone(), plain]);
    let checked = check(records, 1 << 20, WallTime::from_millis(77)).await.unwrap();
    let all: Vec<_> = batches(&checked.bytes).map(Result::unwrap).collect();
    assert_eq!((all.len(), all[0].record_count()), (1, 2));
    let decoded = highwater_records::decode_records(&all[0]).unwrap();
    assert_eq!(decoded[1].value.as_deref(), Some(&b"hello"[..]));
    assert_eq!(decoded[0].timestamp, WallTime::from_millis(77), "the leader's clock where none is given");
    assert_eq!(decoded[0].headers[0].key, "h");
}
