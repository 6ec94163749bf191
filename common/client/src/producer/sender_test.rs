//! Sequence numbers that go round.

use highwater_records::{BatchBuilder, BatchView, Compression};
use highwater_types::WallTime;
use tokio::sync::Semaphore;
use tonic::Status;

use super::*;
use crate::fake::{FakeNode, tp};
use crate::producer::batch::OpenBatch;
use crate::producer::{ProducerConfig, ProducerRecord};

const ID: i64 = 7;

/// A batch of so many records, from sequence number `from` on.
fn appended(from: i32, records: i32) -> highwater_records::BatchHeader {
    let producer = Producer { id: ID, epoch: 0, base_sequence: from };
    let mut builder = BatchBuilder::new(Compression::None).producer(producer);
    for _ in 0..records {
        builder.append(WallTime::from_millis(1), None, Some(b"v"), &[]).unwrap();
    }
    *BatchView::parse(&builder.build().unwrap()).unwrap().header()
}

async fn closed(config: &ProducerConfig, records: i32) -> ClosedBatch {
    let mut open = OpenBatch::new(config);
    let memory = Arc::new(Semaphore::new(10));
    for _ in 0..records {
        let memory = Arc::clone(&memory).acquire_owned().await.unwrap();
        open.append(&ProducerRecord::of_value("v"), WallTime::from_millis(1), memory).unwrap();
    }
    open.close().unwrap()
}

#[tokio::test]
async fn a_batch_over_the_end_of_the_sequence_numbers_is_known_again_and_the_next_one_follows() {
    let node = FakeNode::start(1).await;
    node.add_topic("orders", 1, &node.endpoint, 0);
    let known = Arc::clone(&node.state().logs[&("orders".to_owned(), 0)].producers);
    known.lock().unwrap().insert(ID, appended(i32::MAX - 3, 2));
    let mut answers = 0;
    node.state().on_produced = Some(Box::new(move |_| {
        answers += 1;
        (answers == 1).then(|| Err(Status::unavailable("connection reset")))
    }));
    let producer = crate::Producer::new(node.client(), ProducerConfig::default()).unwrap();
    let mut identity = Identity::new(ID);
    identity.on_acknowledged(i32::MAX - 1);
    for (records, offset) in [(3, 0), (2, 3)] {
        let mut batch = closed(&producer.shared.config, records).await;
        let delivered =
            deliver(&producer.shared, &tp("orders", 0), &mut batch, Some(&mut identity), &mut None).await;
        assert_eq!(delivered, Ok(Offset::new(offset)));
    }
    let headers = node.state().logs[&("orders".to_owned(), 0)].headers();
    let sequences: Vec<_> = headers.iter().map(|h| (h.base_sequence(), h.last_sequence())).collect();
    assert_eq!(sequences, [(i32::MAX - 1, 0), (1, 2)]);
    assert_eq!(identity.of_next_batch().base_sequence, 3);
}
