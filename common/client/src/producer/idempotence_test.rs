//! What retries do to the log: lost answers, leaders that move, forget, or lose what was acknowledged (design.md 6.10).

use highwater_proto::v1;
use highwater_records::{BatchHeader, batches, decode_records};
use highwater_types::{ErrorCode, LeaderHint, NodeId, ReplicationError};
use tonic::Status;

use super::*;
use crate::fake::{FakeLog, FakeNode};

const SEED: u64 = 7;

fn config() -> ProducerConfig {
    ProducerConfig { delivery_timeout: Duration::from_secs(20), ..ProducerConfig::default() }
}

/// A node that leads `orders` with so many partitions, and a producer of its.
async fn start(partitions: i32, config: ProducerConfig) -> (FakeNode, TopicName, Producer) {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", partitions, &node.endpoint, 0);
    let producer = Producer::with_seed(node.client(), config, SEED).unwrap();
    (node, topic, producer)
}

fn at(partition: i32, value: &str) -> ProducerRecord {
    let partition = PartitionIndex::new(partition);
    ProducerRecord { partition, ..ProducerRecord::of_value(value.to_owned()) }
}

/// Sends a batch of one record to partition 0, and waits; its offset.
async fn deliver(producer: &Producer, topic: &TopicName, value: &str) -> Result<i64, ClientError> {
    let delivery = producer.send(topic, at(0, value)).await.unwrap();
    delivery.wait().await.map(|position| position.offset.unwrap().get())
}

/// Loses the answers to the next so many requests that append.
fn lose_answers(node: &FakeNode, mut count: u32) {
    node.state().on_produced = Some(Box::new(move |_| {
        let lost = count > 0;
        count = count.saturating_sub(1);
        lost.then(|| Err(Status::unavailable("connection reset")))
    }));
}

fn log(node: &FakeNode, partition: i32) -> FakeLog {
    node.state().logs[&("orders".to_owned(), partition)].clone()
}

fn values(log: &FakeLog) -> Vec<String> {
    let decoded =
        log.batches.iter().flat_map(|b| decode_records(&batches(b).next().unwrap().unwrap()).unwrap());
    decoded.map(|record| String::from_utf8(record.value.unwrap().to_vec()).unwrap()).collect()
}

/// Epoch, first and last sequence number of each batch.
fn sequences(headers: &[BatchHeader]) -> Vec<(i16, i32, i32)> {
    headers.iter().map(|h| (h.producer_epoch(), h.base_sequence(), h.last_sequence())).collect()
}

/// The answer that partition 0 gives instead of appending.
fn refusal(error: &ReplicationError) -> v1::ProduceResponse {
    let result = v1::ProducePartitionResult {
        topic: "orders".into(),
        partition: Some(0),
        error: Some(highwater_wire::error::encode_error(error)),
        ..Default::default()
    };
    v1::ProduceResponse { partitions: vec![result], ..Default::default() }
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_sent_again_as_it_was_and_appended_once() {
    for compression in Compression::ALL {
        let (node, topic, producer) = start(1, ProducerConfig { compression, ..config() }).await;
        let tries = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&tries);
        node.state().on_produce = Some(Box::new(move |request| {
            noted.lock().unwrap().push(request.partitions[0].records.clone());
            None
        }));
        lose_answers(&node, 2);
        let original = deliver(&producer, &topic, "again").await;
        assert_eq!(original, Ok(0), "the answer to the copy is that to the original");
        assert_eq!(deliver(&producer, &topic, "next").await, Ok(1));
        let tries = tries.lock().unwrap();
        assert_eq!(tries.len(), 4);
        assert!(tries[0] == tries[1] && tries[1] == tries[2]);
        let log = log(&node, 0);
        assert_eq!(values(&log), ["again", "next"]);
        assert_eq!(sequences(&log.headers()), [(0, 0, 0), (0, 1, 1)]);
    }
}

#[tokio::test]
async fn a_producer_that_does_not_number_its_batches_repeats_records() {
    for (acks, idempotence) in [(Acks::All, false), (Acks::Leader, true), (Acks::None, true)] {
        let (node, topic, producer) = start(1, ProducerConfig { acks, idempotence, ..config() }).await;
        lose_answers(&node, 1);
        assert_eq!(deliver(&producer, &topic, "twice").await, Ok(1));
        let log = log(&node, 0);
        assert_eq!(values(&log), ["twice", "twice"]);
        assert_eq!(sequences(&log.headers()), [(-1, -1, -1); 2], "{acks:?}");
    }
}

#[tokio::test]
async fn every_partition_has_its_own_sequence_under_the_producers_one_id() {
    let (node, topic, producer) = start(3, ProducerConfig { batch_bytes: 150, ..config() }).await;
    let mut answers = 0;
    node.state().on_produced = Some(Box::new(move |_| {
        answers += 1;
        (answers % 2 == 1).then(|| Err(Status::unavailable("connection reset")))
    }));
    for n in 0..30 {
        producer.send(&topic, at(n % 3, &format!("{n}"))).await.unwrap();
    }
    producer.flush().await.unwrap();
    let mut ids = Vec::new();
    for partition in 0..3 {
        let log = log(&node, partition);
        let expected: Vec<_> = (0..10).map(|n| (3 * n + partition).to_string()).collect();
        assert_eq!(values(&log), expected);
        let mut next = 0;
        for header in log.headers() {
            assert_eq!((header.producer_epoch(), header.base_sequence()), (0, next));
            next = header.last_sequence() + 1;
            ids.push(header.producer_id());
        }
        assert_eq!(next, 10);
    }
    assert!(ids.len() >= 6 && ids.iter().all(|id| *id == ids[0] && *id >= 0), "{ids:?}");
}

#[tokio::test]
async fn ids_follow_from_the_seed_and_differ_without_one() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (node, topic, seeded) = start(1, config()).await;
        deliver(&seeded, &topic, "a").await.unwrap();
        let random = Producer::new(node.client(), config()).unwrap();
        deliver(&random, &topic, "b").await.unwrap();
        ids.push(log(&node, 0).headers().iter().map(BatchHeader::producer_id).collect::<Vec<_>>());
    }
    assert_eq!(ids[0][0], ids[1][0]);
    assert_ne!(ids[0][1], ids[1][1]);
}

#[tokio::test]
async fn a_producer_that_was_forgotten_between_its_batches_goes_on_under_a_new_id() {
    let (node, topic, producer) = start(1, config()).await;
    deliver(&producer, &topic, "a").await.unwrap();
    log(&node, 0).producers.lock().unwrap().clear();
    assert_eq!(deliver(&producer, &topic, "b").await, Ok(1));
    assert_eq!(deliver(&producer, &topic, "c").await, Ok(2));
    let headers = log(&node, 0).headers();
    assert_eq!(sequences(&headers), [(0, 0, 0), (0, 0, 0), (0, 1, 1)]);
    assert_ne!(headers[0].producer_id(), headers[1].producer_id());
    assert_eq!(headers[1].producer_id(), headers[2].producer_id());
}

#[tokio::test]
async fn a_producer_that_was_forgotten_between_two_tries_says_what_is_unknown() {
    let (node, topic, producer) = start(1, config()).await;
    deliver(&producer, &topic, "a").await.unwrap();
    let producers = log(&node, 0).producers;
    let mut is_first = true;
    node.state().on_produced = Some(Box::new(move |_| {
        producers.lock().unwrap().clear();
        std::mem::take(&mut is_first).then(|| Err(Status::unavailable("connection reset")))
    }));
    let error = deliver(&producer, &topic, "b").await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }));
    assert_eq!(error.code(), Some(ErrorCode::UnknownProducer));
    let id = log(&node, 0).headers()[0].producer_id();
    let expected = format!(
        "the outcome of a batch of orders-0 (records: 1; producer {id}, epoch 0, from sequence 1 on) is unknown"
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(producer.flush().await.unwrap_err(), error, "the flush says so, too");
    assert_eq!(deliver(&producer, &topic, "c").await, Ok(2));
    let log = log(&node, 0);
    assert_eq!(values(&log), ["a", "b", "c"], "it was there, and is not repeated");
    assert_eq!(sequences(&log.headers()), [(0, 0, 0), (0, 1, 1), (1, 0, 0)]);
}

#[tokio::test]
async fn a_leader_that_has_lost_acknowledged_records_is_told_by_the_next_batch() {
    let (node, topic, producer) = start(1, config()).await;
    deliver(&producer, &topic, "a").await.unwrap();
    deliver(&producer, &topic, "b").await.unwrap();
    {
        let mut state = node.state();
        let log = state.logs.get_mut(&("orders".to_owned(), 0)).unwrap();
        log.batches.pop();
        let newest = log.headers()[0];
        log.producers.lock().unwrap().insert(newest.producer_id(), newest);
    }
    let error = deliver(&producer, &topic, "c").await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OutOfOrderSequence));
    assert!(matches!(error, ClientError::Answered { .. }), "nothing about this batch is unknown: {error}");
    assert!(error.to_string().contains("acknowledged before are not in the leader's log"), "{error}");
    assert_eq!(deliver(&producer, &topic, "d").await, Ok(1));
    let log = log(&node, 0);
    assert_eq!(values(&log), ["a", "d"]);
    assert_ne!(log.headers()[0].producer_id(), log.headers()[1].producer_id());
}

#[tokio::test]
async fn a_new_leader_knows_what_the_old_one_appended_without_an_answer() {
    let (old, topic, producer) = start(1, config()).await;
    let new = FakeNode::start(2).await;
    new.add_topic("orders", 1, &new.endpoint, 1);
    deliver(&producer, &topic, "a").await.unwrap();
    let (moved, has_moved) = watch::channel(false);
    let hint = LeaderHint {
        leader: NodeId::new(2),
        epoch: highwater_types::LeaderEpoch::new(1).unwrap(),
        endpoint: Some(new.endpoint.clone()),
    };
    let (lost, mut losses) = tokio::sync::mpsc::unbounded_channel();
    old.state().on_produced = Some(Box::new(move |_| {
        lost.send(()).unwrap();
        Some(Err(Status::unavailable("connection reset")))
    }));
    let delivery = producer.send(&topic, at(0, "b")).await.unwrap();
    losses.recv().await.unwrap();
    old.state().on_produce = Some(Box::new(move |_| {
        if !*has_moved.borrow() {
            return Some(Err(highwater_wire::status::overloaded("wait", Duration::from_millis(1))));
        }
        let error = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "moved");
        let error = error.with_leader(Some(hint.clone()));
        Some(Ok(refusal(&error)))
    }));
    new.state().logs.insert(("orders".to_owned(), 0), log(&old, 0));
    moved.send(true).unwrap();
    assert_eq!(delivery.wait().await.unwrap().offset, Offset::new(1));
    assert_eq!(deliver(&producer, &topic, "c").await, Ok(2));
    assert_eq!(values(&log(&new, 0)), ["a", "b", "c"]);
    assert_eq!(sequences(&log(&new, 0).headers()), [(0, 0, 0), (0, 1, 1), (0, 2, 2)]);
}

#[tokio::test]
async fn a_copy_that_comes_after_its_batch_was_given_up_is_refused() {
    let (node, topic, producer) = start(1, config()).await;
    deliver(&producer, &topic, "a").await.unwrap();
    let copy = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&copy);
    node.state().on_produce = Some(Box::new(move |request| {
        let is_first = kept.lock().unwrap().replace(request.partitions[0].records.clone()).is_none();
        if is_first {
            return Some(Err(Status::unavailable("connection reset")));
        }
        let too_large = ReplicationError::new(ErrorCode::MessageTooLarge, "the topic has changed meanwhile");
        Some(Ok(refusal(&too_large)))
    }));
    let error = deliver(&producer, &topic, "b").await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "the first try may come yet: {error}");
    assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
    node.state().on_produce = None;
    assert_eq!(deliver(&producer, &topic, "c").await, Ok(1));
    let copy = copy.lock().unwrap().take().unwrap();
    let late = node.state().logs.get_mut(&("orders".to_owned(), 0)).unwrap().append(&copy);
    assert_eq!(late.unwrap_err().code, ErrorCode::InvalidProducerEpoch);
    assert_eq!(sequences(&log(&node, 0).headers()), [(0, 0, 0), (1, 0, 0)]);
}
