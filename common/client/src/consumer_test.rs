//! The consumer against an in-process leader.

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{LeaderEpoch, MonotonicTime, ReplicationError};
use highwater_wire::fetch::{FetchResponse, PartitionResult, encode_response};

use super::*;
use crate::fake::{FakeNode, tp};

/// cases.md FX2: an empty batch at 8737..8747, next offset 8748.
const EMPTY_BATCH: &str = "000000000000222100000031000000000235fe512800000000000affffffffffffffff00000000000003e8ffffffffffffffffffffffffffff00000000";
/// cases.md FX3: a commit marker at 3, next offset 4.
const CONTROL_BATCH: &str = "0000000000000003000000420000000002fff0903e00300000000000000000000003e800000000000003e800000000000000070000ffffffff000000012000000008000000010c00000000000000";
/// cases.md FX1: records a and b at 0 and 1.
const TWO_RECORDS: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026200";
/// cases.md FX6: FX1 with a wrong CRC.
const WRONG_CRC: &str = "0000000000000000000000410000000002ae55096000000000000100000000000003e800000000000003e8ffffffffffffffffffffffffffff000000020e000000010261000e00000201026300";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn batch(base: i64, values: &[&str]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None)
        .base_offset(Offset::new(base).unwrap())
        .leader_epoch(LeaderEpoch::FIRST);
    for value in values {
        builder.append(WallTime::from_millis(base), None, Some(value.as_bytes()), &[]).unwrap();
    }
    builder.build().unwrap().to_vec()
}

fn values(polled: &Polled) -> Vec<String> {
    polled.records.iter().map(|r| String::from_utf8(r.value.as_ref().unwrap().to_vec()).unwrap()).collect()
}

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

async fn started(node: &FakeNode, start: StartAt, config: ConsumerConfig) -> Consumer {
    Consumer::start(&node.client(), &"orders".parse().unwrap(), &[], start, config).await.unwrap()
}

#[tokio::test]
async fn the_next_offset_comes_from_the_header_also_of_an_empty_batch() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &bytes(EMPTY_BATCH));
    let mut consumer = started(&node, StartAt::Offset(offset(8737)), ConsumerConfig::default()).await;
    let polled = consumer.poll().await.unwrap();
    assert!(polled.records.is_empty());
    assert_eq!((polled.next_offset, polled.high_watermark), (offset(8748), offset(8748)));
    node.append_raw("orders", 0, &batch(8748, &["after"]));
    let polled = consumer.poll().await.unwrap();
    assert_eq!((values(&polled), polled.next_offset), (vec!["after".to_owned()], offset(8749)));
}

#[tokio::test]
async fn control_batches_are_passed_over_and_gaps_are_too() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &bytes(TWO_RECORDS));
    node.append_raw("orders", 0, &bytes(CONTROL_BATCH));
    node.append_raw("orders", 0, &batch(1000, &["c"]));
    let mut consumer = started(&node, StartAt::Earliest, ConsumerConfig::default()).await;
    let polled = consumer.poll().await.unwrap();
    let offsets: Vec<_> = polled.records.iter().map(|record| record.offset.get()).collect();
    assert_eq!((offsets, polled.next_offset), (vec![0, 1, 1000], offset(1001)));
}

#[tokio::test]
async fn records_below_the_place_that_was_asked_for_are_left_out() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &batch(0, &["a", "b", "c"]));
    let mut consumer = started(&node, StartAt::Offset(offset(2)), ConsumerConfig::default()).await;
    assert_eq!(values(&consumer.poll().await.unwrap()), ["c"]);
}

#[tokio::test]
async fn an_empty_partition_answers_once_and_then_only_with_news() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 2, &node.endpoint, 0);
    let mut consumer = started(&node, StartAt::Latest, ConsumerConfig::default()).await;
    for _ in 0..2 {
        let polled = consumer.poll().await.unwrap();
        assert!(polled.records.is_empty() && polled.next_offset == polled.high_watermark);
    }
    node.append_raw("orders", 1, &batch(0, &["new"]));
    let polled = consumer.poll().await.unwrap();
    assert_eq!((polled.partition.clone(), values(&polled)), (tp("orders", 1), vec!["new".to_owned()]));
}

#[tokio::test]
async fn a_place_that_is_gone_ends_the_reading_or_resets_it() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.state().logs.get_mut(&("orders".to_owned(), 0)).unwrap().start = 10;
    node.append_raw("orders", 0, &batch(10, &["kept"]));
    let start = StartAt::Offset(offset(3));
    let error = started(&node, start, ConsumerConfig::default()).await.poll().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
    let earliest = ConsumerConfig { reset: ResetPolicy::Earliest, ..ConsumerConfig::default() };
    assert_eq!(values(&started(&node, start, earliest).await.poll().await.unwrap()), ["kept"]);
    let latest = ConsumerConfig { reset: ResetPolicy::Latest, ..ConsumerConfig::default() };
    let polled = started(&node, start, latest).await.poll().await.unwrap();
    assert_eq!((polled.records.len(), polled.next_offset), (0, offset(11)));
}

#[tokio::test]
async fn a_time_after_every_record_is_the_end() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &batch(0, &["old"]));
    let start = StartAt::Time(WallTime::from_millis(i64::MAX));
    let polled = started(&node, start, ConsumerConfig::default()).await.poll().await.unwrap();
    assert_eq!((polled.records.len(), polled.next_offset), (0, offset(1)));
}

#[tokio::test]
async fn a_damaged_batch_is_fetched_again_and_then_reported() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &bytes(WRONG_CRC));
    let mut consumer = started(&node, StartAt::Earliest, ConsumerConfig::default()).await;
    let error = consumer.poll().await.unwrap_err();
    assert!(matches!(&error, ClientError::Corrupt { problem, .. } if problem.contains("CRC")), "{error}");
    assert_eq!(node.calls("fetch"), 1 + CORRUPT_TRIES);
    assert_eq!(consumer.poll().await, Err(ClientError::Closed), "no partition is left");
}

/// What a leader answers that lacks records which it should have.
fn lacks_records() -> v1::FetchResponse {
    let partition = PartitionResult {
        topic: Some("orders".parse().unwrap()),
        topic_id: None,
        partition: PartitionIndex::new(0).unwrap(),
        outcome: Err(ReplicationError::new(ErrorCode::DataLoss, "offsets 0 to 3 were lost")),
        lost: Vec::new(),
    };
    encode_response(FetchResponse {
        session_id: 0,
        received: MonotonicTime::ZERO,
        answered: MonotonicTime::ZERO,
        throttle: Duration::ZERO,
        throttle_reason: None,
        partitions: vec![partition],
    })
}

#[tokio::test]
async fn records_that_the_leader_lacks_are_read_from_the_next_one_or_end_the_reading() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.append_raw("orders", 0, &batch(0, &["a"]));
    let mut answers = 0;
    node.state().on_fetch = Some(Box::new(move |_| {
        answers += 1;
        (answers <= 3).then(|| Ok(lacks_records()))
    }));
    let mut consumer = started(&node, StartAt::Earliest, ConsumerConfig::default()).await;
    assert_eq!(values(&consumer.poll().await.unwrap()), ["a"]);

    node.state().on_fetch = Some(Box::new(|_| Some(Ok(lacks_records()))));
    let begun = Instant::now();
    let mut consumer = started(&node, StartAt::Earliest, ConsumerConfig::default()).await;
    let error = consumer.poll().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::DataLoss), "{error}");
    assert!(begun.elapsed() >= DATA_LOSS_PATIENCE);
}

/// cases.md E, tonic's 4 MiB default: an answer that obeys max bytes always decodes.
#[tokio::test]
async fn a_catch_up_never_meets_the_decode_limit() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    let value = "x".repeat(99_000);
    let count = 220;
    for base in 0..count {
        node.append_raw("orders", 0, &batch(base, &[&value]));
    }
    // One batch that no answer may be cut for.
    node.append_raw("orders", 0, &batch(count, &["y".repeat(12 << 20).as_str()]));
    for max_bytes in [4_194_303, 4_194_304, 4_194_305, 8_388_608, 10_485_760] {
        let config = ConsumerConfig { max_bytes, ..ConsumerConfig::default() };
        let mut consumer = started(&node, StartAt::Earliest, config).await;
        let (mut read, mut largest) = (0, 0);
        while read <= count {
            let polled = consumer.poll().await.unwrap();
            read += i64::try_from(polled.records.len()).unwrap();
            largest = largest.max(polled.records.len() * 99_000);
            assert_eq!(polled.next_offset.get(), read);
        }
        assert!(largest > 4_000_000, "answers are as large as they may be: {largest}");
    }
}

#[tokio::test]
async fn a_partition_that_the_topic_does_not_have_is_refused() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    let beyond = [PartitionIndex::new(1).unwrap()];
    let config = ConsumerConfig::default();
    let refused = Consumer::start(&node.client(), &topic, &beyond, StartAt::Earliest, config).await;
    assert!(matches!(refused, Err(ClientError::Usage(_))));
}
