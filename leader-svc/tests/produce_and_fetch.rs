//! Records in and out of one node, by raw calls.

mod support;

use std::time::Duration;

use highwater_proto::v1;
use support::{
    batch, code, eventually, fetch_partition, fetch_request, produce_request, shape, start, start_as,
};
use tokio::time::Instant;

#[tokio::test]
async fn what_is_produced_is_fetched_with_offsets_and_epoch_assigned() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let topic = node.topic("t", &[]).await;
    assert_eq!(topic.partitions[0].leader_epoch, Some(0), "the first leadership is epoch 0");
    let first = node.produce("t", v1::Acks::All, batch(3, 10)).await;
    assert_eq!((first.base_offset, first.last_offset, first.leader_epoch), (Some(0), Some(2), Some(0)));
    assert_eq!((first.topic.as_str(), &first.topic_id), ("t", &topic.topic_id), "asked by name, told both");
    assert_eq!(node.append("t", batch(2, 10)).await, 3);
    let fetched = node.fetch_one("t", 0).await;
    assert_eq!(shape(&fetched.records), [(0, 3, 0), (3, 2, 0)]);
    assert_eq!((fetched.high_watermark, fetched.log_start_offset), (Some(5), Some(0)));
    assert_eq!((fetched.topic.as_str(), fetched.topic_id), ("t", topic.topic_id));
    assert!(fetched.appended_ns.is_some(), "the leader's append time of the first record");
    let rest = node.fetch_one("t", 4).await;
    assert_eq!(shape(&rest.records), [(3, 2, 0)], "from the batch that holds the offset");
    let end = node.fetch_one("t", 5).await;
    assert!(end.error.is_none() && end.records.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn plain_records_and_every_acks_reach_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    for durability in ["fsync", "page-cache"] {
        node.topic(durability, &[("durability", durability)]).await;
        for acks in [v1::Acks::None, v1::Acks::Leader, v1::Acks::All] {
            let mut request = produce_request(durability, acks, Vec::new());
            let record = v1::PlainRecord {
                value: Some(v1::plain_record::Value::ValueText("hello".into())),
                ..Default::default()
            };
            request.partitions[0].plain_records = vec![record];
            let mut answer = node.log.clone().produce(request).await.unwrap().into_inner();
            let result = answer.partitions.remove(0);
            assert_eq!(result.error, None, "{durability} {acks:?}");
            assert_eq!(result.base_offset.is_none(), acks == v1::Acks::None);
        }
        let read = eventually(async || {
            let request =
                v1::ReadRecordsRequest { topic: durability.into(), partition: Some(0), ..Default::default() };
            let answer = node.replication.clone().read_records(request).await.unwrap().into_inner();
            (answer.records.len() == 3).then_some(answer)
        })
        .await;
        assert_eq!(read.next_offset, Some(3));
        assert!(read.records.iter().all(|r| r.value_text.as_deref() == Some("hello")));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_parked_fetch_answers_soon_after_an_append() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    for round in 0..5 {
        let mut request = fetch_request("t", round);
        request.max_wait_ms = Some(30_000);
        let mut log = node.log.clone();
        let parked = tokio::spawn(async move { log.fetch(request).await.unwrap().into_inner() });
        node.until_parked(1).await;
        let began = Instant::now();
        assert_eq!(node.append("t", batch(1, 10)).await, round);
        let answer = parked.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(shape(&answer.partitions[0].records), [(round, 1, 0)]);
    }
    assert_eq!(node.purgatory.parked(), 0);
    node.stop().await;
}

#[tokio::test]
async fn a_callers_deadline_is_answered_before_it_fires() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let mut request = tonic::Request::new(v1::FetchRequest {
        max_wait_ms: Some(30_000),
        partitions: vec![fetch_partition("t", 0)],
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(2));
    let began = Instant::now();
    let answer = node.log.clone().fetch(request).await.expect("OK, not CANCELLED").into_inner();
    let waited = began.elapsed();
    assert!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(2), "{waited:?}");
    assert!(answer.partitions[0].error.is_none() && answer.partitions[0].records.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn min_bytes_are_waited_for_and_accumulate() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let mut request = fetch_request("t", 0);
    (request.max_wait_ms, request.min_bytes) = (Some(30_000), Some(4096));
    let mut log = node.log.clone();
    let parked = tokio::spawn(async move { log.fetch(request).await.unwrap().into_inner() });
    node.until_parked(1).await;
    let one = batch(1, 1000);
    for _ in 0..4096 / one.len() {
        node.append("t", one.clone()).await;
        assert_eq!(node.purgatory.parked(), 1, "not yet");
    }
    node.append("t", one.clone()).await;
    let answer = parked.await.unwrap();
    assert!(answer.partitions[0].records.len() >= 4096);
    let mut late = fetch_request("t", node.fetch_one("t", 0).await.high_watermark.unwrap());
    (late.max_wait_ms, late.min_bytes) = (Some(300), Some(4096));
    node.append("t", one).await;
    let began = Instant::now();
    let answer = node.fetch(late).await;
    assert!(began.elapsed() >= Duration::from_millis(290), "the wait is used up: {:?}", began.elapsed());
    assert!(!answer.partitions[0].records.is_empty(), "what there is comes then");
    node.stop().await;
}

#[tokio::test]
async fn caps_hold_and_a_larger_first_batch_still_passes() {
    // KAFKA-2338, KIP-74.
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[("max.message.bytes", "4MiB")]).await;
    node.append("t", batch(1, 3_000_000)).await;
    for _ in 0..20 {
        node.append("t", batch(1, 100_000)).await;
    }
    let mut request = fetch_request("t", 0);
    request.max_bytes = Some(1 << 20);
    let first = node.fetch(request.clone()).await.partitions.remove(0);
    assert_eq!(shape(&first.records), [(0, 1, 0)], "whole and alone");
    request.partitions[0].fetch_offset = Some(1);
    let next = node.fetch(request.clone()).await.partitions.remove(0);
    assert!(
        next.records.len() <= 1 << 20 && next.records.len() > (1 << 20) * 9 / 10,
        "{}",
        next.records.len()
    );
    request.partitions[0].partition_max_bytes = Some(250_000);
    let capped = node.fetch(request.clone()).await.partitions.remove(0);
    assert_eq!(shape(&capped.records).len(), 2);
    request.max_bytes = Some(0);
    request.max_wait_ms = Some(0);
    assert!(node.fetch(request).await.partitions[0].records.is_empty(), "0 overrides the first batch");
    node.stop().await;
}

#[tokio::test]
async fn a_thousand_parked_fetches_wait_and_end_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let mut request = fetch_request("t", 0);
    request.max_wait_ms = Some(30_000);
    let parked: Vec<_> = (0..1_000)
        .map(|_| {
            let (mut log, request) = (node.log.clone(), request.clone());
            tokio::spawn(async move { log.fetch(request).await })
        })
        .collect();
    node.until_parked(1_000).await;
    parked[0].abort();
    node.until_parked(999).await;
    let began = Instant::now();
    node.stop.cancel();
    let mut ended = 0;
    for poll in parked.into_iter().skip(1) {
        let answer = poll.await.unwrap().expect("an empty OK").into_inner();
        ended += usize::from(answer.partitions[0].records.is_empty());
    }
    assert_eq!(ended, 999);
    node.running.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn one_partition_with_an_error_ends_the_poll_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let mut request = fetch_request("t", 0);
    request.max_wait_ms = Some(30_000);
    request.partitions.push(fetch_partition("nowhere", 0));
    let began = Instant::now();
    let answer = node.fetch(request).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(answer.partitions[0].error.is_none());
    assert_eq!(code(&answer.partitions[1].error), Some(v1::ErrorCode::UnknownTopicOrPartition));
    node.stop().await;
}

#[tokio::test]
async fn many_producers_at_once_share_the_log_without_gap_or_loss() {
    let dir = tempfile::tempdir().unwrap();
    let node = start_as(dir.path(), 1, &[("queued.max.requests", "8")]).await;
    node.topic("t", &[]).await;
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let mut log = node.log.clone();
            tokio::spawn(async move {
                let mut offsets = Vec::new();
                for _ in 0..10 {
                    let request = produce_request("t", v1::Acks::All, batch(2, 100));
                    let result = log.produce(request).await.unwrap().into_inner().partitions.remove(0);
                    assert_eq!(result.error, None);
                    offsets.push(result.base_offset.unwrap());
                }
                offsets
            })
        })
        .collect();
    let mut offsets = Vec::new();
    for task in tasks {
        offsets.extend(task.await.unwrap());
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (0..320).map(|n| n * 2).collect::<Vec<_>>());
    let fetched = node.fetch_one("t", 0).await;
    assert_eq!(fetched.high_watermark, Some(640), "acknowledged is committed");
    assert_eq!(shape(&fetched.records).len(), 320);
    node.stop().await;
}

#[tokio::test]
async fn offsets_are_listed_by_position_time_and_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    for time in [1_000, 2_000, 3_000] {
        let mut request = produce_request("t", v1::Acks::All, Vec::new());
        let record = v1::PlainRecord { timestamp_ms: Some(time), ..Default::default() };
        request.partitions[0].plain_records = vec![record];
        let answer = node.log.clone().produce(request).await.unwrap().into_inner();
        assert_eq!(answer.partitions[0].error, None);
    }
    let list = async |position: v1::OffsetPosition, timestamp_ms: Option<i64>| {
        let partition = v1::ListOffsetsPartition {
            topic: "t".into(),
            partition: Some(0),
            position: position.into(),
            timestamp_ms,
            ..Default::default()
        };
        let request = v1::ListOffsetsRequest { replica_id: None, partitions: vec![partition] };
        let mut answer = node.log.clone().list_offsets(request).await.unwrap().into_inner();
        let found = answer.partitions.remove(0);
        assert_eq!(found.error, None);
        assert_eq!(found.topic_id.len(), 36, "asked by name, told the id as well");
        (found.offset, found.leader_epoch)
    };
    assert_eq!(list(v1::OffsetPosition::Earliest, None).await, (Some(0), Some(0)));
    assert_eq!(list(v1::OffsetPosition::Latest, None).await, (Some(3), Some(0)));
    assert_eq!(list(v1::OffsetPosition::Unspecified, Some(1_500)).await, (Some(1), Some(0)));
    assert_eq!(list(v1::OffsetPosition::Unspecified, Some(9_000)).await, (None, None));

    let epoch_end = async |leader_epoch| {
        let partition = v1::OffsetsForLeaderEpochPartition {
            topic: "t".into(),
            partition: Some(0),
            leader_epoch,
            ..Default::default()
        };
        let request = v1::OffsetsForLeaderEpochRequest { replica_id: None, partitions: vec![partition] };
        let mut answer = node.log.clone().offsets_for_leader_epoch(request).await.unwrap().into_inner();
        let found = answer.partitions.remove(0);
        (found.leader_epoch, found.end_offset)
    };
    assert_eq!(epoch_end(Some(0)).await, (Some(0), Some(3)));
    assert_eq!(epoch_end(Some(9)).await, (None, None), "above every known epoch: undefined");
    assert_eq!(epoch_end(None).await, (None, None), "no epoch is never the log end (KAFKA-6857)");
    node.stop().await;
}

#[tokio::test]
async fn questions_for_offsets_and_epochs_are_fenced_as_a_fetch_is() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    node.stop().await;
    let node = start(dir.path()).await;
    assert_eq!(node.leads("t").await.partitions[0].leader_epoch, Some(1));
    let ask = async |topic: &str, current_leader_epoch: Option<i32>| {
        let offsets = v1::ListOffsetsPartition {
            topic: topic.into(),
            partition: Some(0),
            position: v1::OffsetPosition::Latest.into(),
            current_leader_epoch,
            ..Default::default()
        };
        let epochs = v1::OffsetsForLeaderEpochPartition {
            topic: topic.into(),
            partition: Some(0),
            leader_epoch: Some(0),
            current_leader_epoch,
            ..Default::default()
        };
        let offsets = v1::ListOffsetsRequest { replica_id: None, partitions: vec![offsets] };
        let epochs = v1::OffsetsForLeaderEpochRequest { replica_id: None, partitions: vec![epochs] };
        let mut offsets = node.log.clone().list_offsets(offsets).await.unwrap().into_inner();
        let mut epochs = node.log.clone().offsets_for_leader_epoch(epochs).await.unwrap().into_inner();
        [offsets.partitions.remove(0).error, epochs.partitions.remove(0).error].map(|error| code(&error))
    };
    assert_eq!(ask("t", Some(0)).await, [Some(v1::ErrorCode::FencedLeaderEpoch); 2]);
    assert_eq!(ask("t", Some(2)).await, [Some(v1::ErrorCode::UnknownLeaderEpoch); 2]);
    assert_eq!(ask("t", Some(1)).await, [None; 2]);
    assert_eq!(ask("t", None).await, [None; 2]);
    assert_eq!(ask("nobody-knows", None).await, [Some(v1::ErrorCode::UnknownTopicOrPartition); 2]);
    node.stop().await;
}
