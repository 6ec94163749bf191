//! What removes records by itself, while others read and write.

mod support;

use std::time::Duration;

use highwater_proto::v1;
use highwater_records::batches;
use support::{batch, code, eventually, start_as};

#[tokio::test]
async fn records_and_log_start_of_an_answer_fit_together_while_retention_runs() {
    // KAFKA-7104.
    let dir = tempfile::tempdir().unwrap();
    let node = start_as(dir.path(), 1, &[("log.retention.check.interval.ms", "10ms")]).await;
    node.topic("t", &[("segment.bytes", "4096"), ("retention.bytes", "8192"), ("durability", "page-cache")])
        .await;
    let mut log = node.log.clone();
    let writer = tokio::spawn(async move {
        for _ in 0..300 {
            let request = support::produce_request("t", v1::Acks::Leader, batch(1, 1000));
            let answer = log.produce(request).await.unwrap().into_inner();
            assert_eq!(answer.partitions[0].error, None);
        }
    });
    let (mut offset, mut answers, mut passed) = (0, 0, 0);
    while !writer.is_finished() {
        let answer = node.fetch_one("t", offset).await;
        if answer.error.is_some() {
            assert_eq!(code(&answer.error), Some(v1::ErrorCode::OffsetOutOfRange));
            let list = v1::ListOffsetsRequest {
                replica_id: None,
                partitions: vec![v1::ListOffsetsPartition {
                    topic: "t".into(),
                    partition: Some(0),
                    position: v1::OffsetPosition::Earliest.into(),
                    ..Default::default()
                }],
            };
            let found = node.log.clone().list_offsets(list).await.unwrap().into_inner();
            offset = found.partitions[0].offset.unwrap();
            passed += 1;
            continue;
        }
        let log_start = answer.log_start_offset.unwrap();
        let last = batches(&answer.records).last().map(|batch| batch.unwrap().last_offset().get());
        if let Some(last) = last {
            assert!(log_start <= last + 1, "log start {log_start}, last offset {last}");
            answers += 1;
        }
        // Lag on purpose, so that retention catches up with the reader.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    writer.await.unwrap();
    assert!(answers > 0 && passed > 0, "{answers} answers, {passed} times overtaken");
    let left = eventually(async || {
        let log_start = node.fetch_one("t", 299).await.log_start_offset?;
        (log_start > 250).then_some(log_start)
    })
    .await;
    let early = node.fetch_one("t", left - 1).await;
    assert_eq!(code(&early.error), Some(v1::ErrorCode::OffsetOutOfRange), "below the log start");
    node.stop().await;
}
