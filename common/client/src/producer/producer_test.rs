//! The producer against an in-process leader.

use std::pin::pin;
use std::task::Poll;

use highwater_proto::v1;
use highwater_records::{batches, decode_records};
use highwater_types::{
    Endpoint, ErrorCode, LeaderHint, NodeId, ReplicationError, TopicId, TopicProperties, TopicRecord,
};

use super::*;
use crate::ClientConfig;
use crate::fake::{FakeNode, led, tp};

fn config() -> ProducerConfig {
    ProducerConfig { delivery_timeout: Duration::from_secs(20), ..ProducerConfig::default() }
}

fn values(node: &FakeNode, topic: &str, partition: i32) -> Vec<String> {
    let state = node.state();
    let log = &state.logs[&(topic.to_owned(), partition)];
    let decoded =
        log.batches.iter().flat_map(|b| decode_records(&batches(b).next().unwrap().unwrap()).unwrap());
    decoded.map(|record| String::from_utf8(record.value.unwrap().to_vec()).unwrap()).collect()
}

fn at(partition: i32, value: &str) -> ProducerRecord {
    let partition = PartitionIndex::new(partition);
    ProducerRecord { partition, ..ProducerRecord::of_value(value.to_owned()) }
}

#[tokio::test]
async fn records_of_a_partition_keep_their_order_and_learn_their_offsets() {
    for compression in Compression::ALL {
        let node = FakeNode::start(1).await;
        let topic = node.add_topic("orders", 1, &node.endpoint, 0);
        let small = ProducerConfig { batch_bytes: 1000, compression, ..config() };
        let producer = Producer::new(node.client(), small).unwrap();
        let mut deliveries = Vec::new();
        for n in 0..500 {
            deliveries.push(producer.send(&topic, at(0, &format!("value {n}"))).await.unwrap());
        }
        producer.flush().await.unwrap();
        for (n, delivery) in deliveries.into_iter().enumerate() {
            let position = delivery.wait().await.unwrap();
            assert_eq!(position.offset, Offset::new(i64::try_from(n).unwrap()));
        }
        let expected: Vec<_> = (0..500).map(|n| format!("value {n}")).collect();
        assert_eq!(values(&node, "orders", 0), expected);
        assert!(
            node.state().logs[&("orders".to_owned(), 0)].batches.len() >= 5,
            "batches are closed by size"
        );
    }
}

#[tokio::test]
async fn one_request_is_in_flight_per_partition_and_the_next_batch_grows_meanwhile() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    let producer = Producer::new(node.client(), config()).unwrap();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(Mutex::new(false));
    let open = Arc::clone(&gate);
    node.state().on_produce = Some(Box::new(move |request| {
        let sent: Vec<_> = batches(&request.partitions[0].records).map(Result::unwrap).collect();
        arrived.send(sent.iter().map(|batch| batch.record_count()).collect::<Vec<_>>()).unwrap();
        // Shedding holds the batch at the producer as long as the test wants.
        let shed = || Some(Err(highwater_wire::status::overloaded("wait", Duration::from_millis(1))));
        if *open.lock().unwrap() { None } else { shed() }
    }));
    let first = producer.send(&topic, at(0, "first")).await.unwrap();
    assert_eq!(arrivals.recv().await, Some(vec![1]));
    for n in 0..100 {
        producer.send(&topic, at(0, &format!("value {n}"))).await.unwrap();
    }
    assert_eq!(arrivals.recv().await, Some(vec![1]), "the batch in flight is tried again before any other");
    *gate.lock().unwrap() = true;
    first.wait().await.unwrap();
    producer.flush().await.unwrap();
    let mut last = Vec::new();
    while let Ok(counts) = arrivals.try_recv() {
        last = counts;
    }
    assert_eq!(last, [100]);
    assert_eq!(values(&node, "orders", 0).len(), 101);
}

#[tokio::test]
async fn a_producer_follows_a_hint_of_a_higher_epoch() {
    let (old, new) = (FakeNode::start(1).await, FakeNode::start(2).await);
    let topic = old.add_topic("orders", 1, &old.endpoint, 3);
    new.add_topic("orders", 1, &new.endpoint, 4);
    let hint = LeaderHint {
        leader: NodeId::new(2),
        epoch: highwater_types::LeaderEpoch::new(4).unwrap(),
        endpoint: Some(new.endpoint.clone()),
    };
    let error = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "moved").with_leader(Some(hint));
    let moved = v1::ProducePartitionResult {
        topic: "orders".into(),
        partition: Some(0),
        error: Some(highwater_wire::error::encode_error(&error)),
        ..Default::default()
    };
    old.state().on_produce = Some(Box::new(move |_| {
        Some(Ok(v1::ProduceResponse { partitions: vec![moved.clone()], ..Default::default() }))
    }));
    let producer = Producer::new(old.client(), config()).unwrap();
    let delivery = producer.send(&topic, at(0, "moved")).await.unwrap();
    assert_eq!(delivery.wait().await.unwrap().offset, Some(Offset::ZERO));
    assert_eq!(values(&new, "orders", 0), ["moved"]);
    assert_eq!((old.calls("produce"), new.calls("produce")), (1, 1), "the hint alone is enough");
}

#[tokio::test]
async fn a_terminal_error_fails_its_batch_at_once_and_the_flush_says_so() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    node.state().on_produce = Some(Box::new(|request| {
        let error = ReplicationError::new(ErrorCode::MessageTooLarge, "1 MiB is the most");
        let result = v1::ProducePartitionResult {
            topic: request.partitions[0].topic.clone(),
            partition: Some(0),
            error: Some(highwater_wire::error::encode_error(&error)),
            ..Default::default()
        };
        Some(Ok(v1::ProduceResponse { partitions: vec![result], ..Default::default() }))
    }));
    let producer = Producer::new(node.client(), config()).unwrap();
    let delivery = producer.send(&topic, at(0, "large")).await.unwrap();
    assert_eq!(delivery.wait().await.unwrap_err().code(), Some(ErrorCode::MessageTooLarge));
    assert_eq!(producer.flush().await.unwrap_err().code(), Some(ErrorCode::MessageTooLarge));
    producer.flush().await.expect("an error is told once");
    assert_eq!(node.calls("produce"), 1);
}

#[tokio::test]
async fn a_topic_that_is_created_anew_under_a_producer_is_another_one() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    let old = node.state().topics[0].topic_id.clone();
    let producer = Producer::new(node.client(), config()).unwrap();
    producer.send(&topic, at(0, "before")).await.unwrap().wait().await.unwrap();
    node.state().topics.clear();
    node.add_topic("orders", 1, &node.endpoint, 0);
    node.state().on_produce = Some(Box::new(move |request| {
        let asked = &request.partitions[0];
        let error = ReplicationError::new(ErrorCode::InconsistentTopicId, "topic 'orders' has another id");
        let result = v1::ProducePartitionResult {
            topic: asked.topic.clone(),
            partition: Some(0),
            error: Some(highwater_wire::error::encode_error(&error)),
            ..Default::default()
        };
        let answer = v1::ProduceResponse { partitions: vec![result], ..Default::default() };
        (asked.topic_id == old).then_some(Ok(answer))
    }));
    let error = producer.send(&topic, at(0, "after")).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InconsistentTopicId), "{error}");
    assert!(error.to_string().contains("created anew"), "{error}");
    let another = Producer::new(node.client(), config()).unwrap();
    another.send(&topic, at(0, "after")).await.unwrap().wait().await.unwrap();
    assert_eq!(values(&node, "orders", 0), ["before", "after"], "the fake keeps one log for a name");
}

#[tokio::test]
async fn a_batch_that_is_refused_for_itself_takes_no_other_with_it_and_leaves_no_hole() {
    const MOST: usize = 1000;
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    node.state().on_produce = Some(Box::new(move |request| {
        let partition = &request.partitions[0];
        if batches(&partition.records).all(|batch| batch.unwrap().size() <= MOST) {
            return None;
        }
        let error = ReplicationError::new(ErrorCode::MessageTooLarge, "1000 bytes is the most");
        let result = v1::ProducePartitionResult {
            topic: partition.topic.clone(),
            partition: Some(0),
            error: Some(highwater_wire::error::encode_error(&error)),
            ..Default::default()
        };
        Some(Ok(v1::ProduceResponse { partitions: vec![result], ..Default::default() }))
    }));
    let small = ProducerConfig { batch_bytes: 400, linger: Duration::ZERO, ..config() };
    let producer = Producer::new(node.client(), small).unwrap();
    let mut deliveries = Vec::new();
    for value in ["a".repeat(300), "b".repeat(MOST), "c".repeat(300)] {
        deliveries.push(producer.send(&topic, at(0, &value)).await.unwrap());
    }
    let mut outcomes = Vec::new();
    for delivery in deliveries {
        outcomes.push(delivery.wait().await.map_err(|error| error.code()));
    }
    assert_eq!(outcomes[0].as_ref().unwrap().offset, Offset::new(0));
    assert_eq!(outcomes[1], Err(Some(ErrorCode::MessageTooLarge)));
    assert_eq!(outcomes[2].as_ref().unwrap().offset, Offset::new(1), "its number follows that of the first");
}

#[tokio::test]
async fn batches_are_never_larger_than_the_topic_takes() {
    const MOST: usize = 500;
    let node = FakeNode::start(1).await;
    let topic = TopicRecord {
        id: TopicId::random(),
        name: "small".parse().unwrap(),
        partitions: 1,
        properties: TopicProperties { max_message_bytes: 500, ..TopicProperties::default() },
        deleted: false,
    };
    node.put_topic(&topic, &led(&topic, 0, 0), &node.endpoint);
    let producer = Producer::new(node.client(), config()).unwrap();
    for n in 0..100 {
        producer.send(&topic.name, at(0, &format!("value {n}"))).await.unwrap();
    }
    producer.flush().await.unwrap();
    assert_eq!(values(&node, "small", 0).len(), 100);
    let sizes: Vec<_> = node.state().logs[&("small".to_owned(), 0)].batches.iter().map(Bytes::len).collect();
    assert!(sizes.len() > 3 && sizes.iter().all(|size| *size <= MOST), "{sizes:?}");
}

#[tokio::test]
async fn send_waits_while_the_buffer_is_full() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 1, &node.endpoint, 0);
    let gate = Arc::new(Mutex::new(false));
    let open = Arc::clone(&gate);
    node.state().on_produce = Some(Box::new(move |_| {
        let shed = || Some(Err(highwater_wire::status::overloaded("wait", Duration::from_millis(1))));
        if *open.lock().unwrap() { None } else { shed() }
    }));
    let tight = ProducerConfig { batch_bytes: 500, buffer_bytes: 1000, ..config() };
    let producer = Producer::new(node.client(), tight).unwrap();
    for _ in 0..9 {
        producer.send(&topic, at(0, &"x".repeat(36))).await.unwrap();
    }
    let mut tenth = pin!(producer.send(&topic, at(0, &"x".repeat(137))));
    let polled = std::future::poll_fn(|cx| Poll::Ready(tenth.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "9 times 100 bytes are held, 201 do not fit into 1000");
    *gate.lock().unwrap() = true;
    tenth.await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(values(&node, "orders", 0).len(), 10);
    let huge = producer.send(&topic, at(0, &"x".repeat(2000))).await;
    assert!(matches!(huge, Err(ClientError::Usage(_))), "it would wait for ever");
}

#[tokio::test]
async fn keys_decide_the_partition_and_records_without_one_take_turns() {
    let node = FakeNode::start(1).await;
    let topic = node.add_topic("orders", 3, &node.endpoint, 0);
    let small = ProducerConfig { batch_bytes: 400, ..config() };
    let producer = Producer::new(node.client(), small).unwrap();
    let keyed = ProducerRecord { key: Some(Bytes::from("foobar")), ..ProducerRecord::of_value("v") };
    let delivery = producer.send(&topic, keyed).await.unwrap();
    assert_eq!(delivery.partition().partition, partition_for_key(b"foobar", 3).unwrap());
    for n in 0..100 {
        producer.send(&topic, ProducerRecord::of_value(n.to_string())).await.unwrap();
    }
    producer.flush().await.unwrap();
    for partition in 0..3 {
        assert!(values(&node, "orders", partition).len() > 10, "partition {partition}");
    }
    let beyond = producer.send(&topic, at(3, "v")).await;
    assert!(matches!(beyond, Err(ClientError::Usage(_))));
    assert_eq!(tp("orders", 2).partition.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_open_batch_is_taken_when_it_has_lingered() {
    let config = ProducerConfig { linger: Duration::from_millis(40), ..config() };
    let queue = PartitionQueue::default();
    let memory = Arc::new(Semaphore::new(1000));
    let permit = Arc::clone(&memory).acquire_many_owned(100).await.unwrap();
    let before = tokio::time::Instant::now();
    queue.push(&at(0, "v"), WallTime::from_millis(0), permit, &config, 1000).unwrap();
    let taken = queue.take(&config).await;
    assert_eq!((taken.records, before.elapsed()), (1, config.linger));
    assert_eq!(memory.available_permits(), 900, "memory is held until the batch has an outcome");
    drop(taken);
    assert_eq!(memory.available_permits(), 1000);
}

/// Longer than the test, so that neither the connection nor the call ends by itself.
const FOR_EVER: Duration = Duration::from_secs(600);

/// A topic of one partition that node 1 leads, which listens and never answers; only the other node says so.
fn led_by_a_silent_node(node: &FakeNode, silent: &tokio::net::TcpListener) -> (TopicRecord, Endpoint) {
    let topic = TopicRecord {
        id: TopicId::random(),
        name: "orders".parse().unwrap(),
        partitions: 1,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let endpoint = silent.local_addr().unwrap().to_string().parse().unwrap();
    node.put_topic(&topic, &led(&topic, 1, 1), &endpoint);
    (topic, endpoint)
}

#[tokio::test]
async fn no_try_lasts_longer_than_its_batch_has_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = FakeNode::start(1).await;
    let (topic, _) = led_by_a_silent_node(&node, &silent);
    let mut settings = ClientConfig::new(vec![node.endpoint.clone()]);
    settings.request_timeout = FOR_EVER;
    settings.transport.keepalive_interval = FOR_EVER;
    let config = ProducerConfig { delivery_timeout: Duration::from_millis(300), ..config() };
    let producer = Producer::new(Client::new(settings).unwrap(), config).unwrap();
    let delivery = producer.send(&topic.name, at(0, "value")).await.unwrap();
    let ended = tokio::time::timeout(FOR_EVER / 2, delivery.wait()).await.expect("it ends");
    assert!(matches!(ended, Err(ClientError::OutcomeUnknown { .. })), "{ended:?}");
}

#[tokio::test]
async fn a_leader_that_is_silent_is_left_once_another_node_leads() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = FakeNode::start(1).await;
    let (topic, endpoint) = led_by_a_silent_node(&node, &silent);
    let mut settings = ClientConfig::new(vec![node.endpoint.clone(), endpoint]);
    settings.request_timeout = FOR_EVER;
    settings.transport.keepalive_interval = FOR_EVER;
    let producer = Producer::new(Client::new(settings).unwrap(), config()).unwrap();
    let delivery = producer.send(&topic.name, at(0, "value")).await.unwrap();
    let (_connection, _) = silent.accept().await.unwrap();
    node.put_topic(&topic, &led(&topic, 2, 2), &node.endpoint);
    assert_eq!(delivery.wait().await.unwrap().offset, Offset::new(0));
    assert_eq!(values(&node, "orders", 0), ["value"]);
}
