//! Leaderships, and followers that are scripted by raw fetches.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails here shows where")]

mod support;

use std::path::Path;
use std::time::Duration;

use highwater_coordination::{Coordination as _, FileCoordination, FileOptions};
use highwater_log::PartitionLocks;
use highwater_proto::v1;
use highwater_types::{LeaderEpoch, NodeId, PartitionIndex, PartitionRecord, TopicIdPartition};
use support::{
    Node, batch, code, eventually, fetch_request, produce_request, shape, start, start_as, try_start,
};
use tokio::time::Instant;

const INCARNATION: &str = "00000000000000f2";

/// Registers node 2 as an agent, so that it can get replicas.
async fn register_agent(node: &Node, id: i32) {
    let record = v1::Node {
        node_id: Some(id),
        follower_agent: Some(format!("127.0.0.1:{}", 9000 + id)),
        version: Some(0),
        ..Default::default()
    };
    let request = v1::RegisterAgentRequest {
        node_id: Some(id),
        counter: Some(1),
        node: Some(record),
        ..Default::default()
    };
    let answer = node.cluster.clone().register_agent(request).await.unwrap().into_inner();
    assert_eq!(answer.written, Some(true));
}

/// A topic with a replica on this node and on each of `others`.
async fn replicated(node: &Node, others: &[i32], properties: &[(&str, &str)]) {
    for id in others {
        register_agent(node, *id).await;
    }
    let replicas = [1].iter().chain(others).copied().collect();
    let properties = properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    node.create(v1::CreateTopicRequest { topic: "t".into(), replicas, properties, ..Default::default() })
        .await;
}

/// A fetch of node `id` that has everything up to `offset`.
fn follower(id: i32, offset: i64, max_wait_ms: u32) -> v1::FetchRequest {
    let mut request = fetch_request("t", offset);
    request.replica_id = Some(id);
    request.max_wait_ms = Some(max_wait_ms);
    let partition = &mut request.partitions[0];
    partition.incarnation = Some(INCARNATION.into());
    partition.current_leader_epoch = Some(0);
    partition.acknowledged_offset = Some(offset);
    request
}

async fn isr(node: &Node) -> Vec<i32> {
    let topic = node.describe("t").await.unwrap();
    topic.partitions[0].isr.iter().map(|member| member.node_id.unwrap()).collect()
}

async fn high_watermark(node: &Node) -> i64 {
    node.fetch_one("t", 0).await.high_watermark.unwrap()
}

#[tokio::test]
async fn a_follower_joins_the_isr_and_moves_the_high_watermark_that_consumers_read_to() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    assert_eq!(isr(&node).await, [1], "a new partition starts with its leader alone");
    node.append("t", batch(2, 10)).await;
    assert_eq!(high_watermark(&node).await, 2, "the leader alone is the in-sync set");

    let first = node.fetch(follower(2, 0, 0)).await.partitions.remove(0);
    assert_eq!(shape(&first.records), [(0, 2, 0)]);
    assert_eq!(first.log_end_offset, Some(2));
    node.fetch(follower(2, 2, 0)).await;
    eventually(async || (isr(&node).await == [1, 2]).then_some(())).await;

    node.append("t", batch(3, 10)).await;
    assert_eq!(high_watermark(&node).await, 2, "the follower has not acknowledged it");
    let consumer = node.fetch_one("t", 0).await;
    assert_eq!(shape(&consumer.records), [(0, 2, 0)], "a consumer never reads beyond the high watermark");
    let between = node.fetch_one("t", 4).await;
    assert!(between.error.is_none() && between.records.is_empty(), "between HW and log end: empty, OK");

    let more = node.fetch(follower(2, 2, 0)).await.partitions.remove(0);
    assert_eq!(shape(&more.records), [(2, 3, 0)], "a follower reads to the log end");
    node.fetch(follower(2, 5, 0)).await;
    assert_eq!(high_watermark(&node).await, 5);
    node.stop().await;
}

#[tokio::test]
async fn acks_all_waits_for_the_isr_and_acks_1_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    node.fetch(follower(2, 0, 0)).await;
    eventually(async || (isr(&node).await == [1, 2]).then_some(())).await;

    let mut request = produce_request("t", v1::Acks::All, batch(1, 10));
    request.timeout_ms = Some(300);
    let result = node.log.clone().produce(request).await.unwrap().into_inner().partitions.remove(0);
    assert_eq!(code(&result.error), Some(v1::ErrorCode::RequestTimedOut), "the follower stands still");
    assert_eq!(node.produce("t", v1::Acks::Leader, batch(1, 10)).await.base_offset, Some(1));
    assert_eq!(high_watermark(&node).await, 0);

    let mut log = node.log.clone();
    let waits = tokio::spawn(async move {
        log.produce(produce_request("t", v1::Acks::All, batch(1, 10))).await.unwrap().into_inner()
    });
    eventually(async || {
        (node.fetch(follower(2, 0, 0)).await.partitions[0].log_end_offset == Some(3)).then_some(())
    })
    .await;
    assert!(!waits.is_finished());
    node.fetch(follower(2, 3, 0)).await;
    let result = waits.await.unwrap().partitions.remove(0);
    assert_eq!((result.error, result.base_offset), (None, Some(2)));
    node.stop().await;
}

#[tokio::test]
async fn a_parked_follower_is_told_of_a_new_high_watermark_and_then_parks_again() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2, 3], &[]).await;
    for id in [2, 3] {
        node.fetch(follower(id, 0, 0)).await;
        eventually(async || isr(&node).await.contains(&id).then_some(())).await;
    }
    node.append("t", batch(1, 10)).await;
    let mut request = follower(2, 1, 30_000);
    request.partitions[0].high_watermark = Some(0);
    let mut log = node.log.clone();
    let parked = tokio::spawn(async move { log.fetch(request).await.unwrap().into_inner() });
    node.until_parked(1).await;
    node.fetch(follower(3, 1, 0)).await;
    let told = parked.await.unwrap().partitions.remove(0);
    assert_eq!((told.high_watermark, told.records.len()), (Some(1), 0));
    let mut idle = follower(2, 1, 200);
    idle.partitions[0].high_watermark = Some(1);
    let began = Instant::now();
    node.fetch(idle).await;
    assert!(began.elapsed() >= Duration::from_millis(195), "an equal high watermark parks (KIP-1166)");
    node.stop().await;
}

#[tokio::test]
async fn min_insync_replicas_refuse_acks_all_before_the_append() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[("min.insync.replicas", "2")]).await;
    let refused = node.produce("t", v1::Acks::All, batch(1, 10)).await;
    assert_eq!(code(&refused.error), Some(v1::ErrorCode::NotEnoughReplicas));
    assert_eq!(node.append("t", batch(1, 10)).await, 0, "nothing of the refused one is in the log");
    assert_eq!(high_watermark(&node).await, 0, "the high watermark stands still below the minimum (S58)");
    node.fetch(follower(2, 1, 0)).await;
    eventually(async || (high_watermark(&node).await == 1).then_some(())).await;
    node.stop().await;
}

#[tokio::test]
async fn fetches_that_no_follower_of_this_leadership_sends_count_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    node.append("t", batch(1, 10)).await;
    let refused = async |change: fn(&mut v1::FetchRequest)| {
        let mut request = follower(2, 1, 0);
        change(&mut request);
        code(&node.fetch(request).await.partitions[0].error)
    };
    let own = refused(|r| r.replica_id = Some(1)).await;
    assert_eq!(own, Some(v1::ErrorCode::InvalidRequest), "the leader's own id (fluvio#1624)");
    let stranger = refused(|r| r.replica_id = Some(7)).await;
    assert_eq!(stranger, Some(v1::ErrorCode::UnknownLeaderEpoch), "not an assigned replica (S20)");
    let newer = refused(|r| r.partitions[0].current_leader_epoch = Some(5)).await;
    assert_eq!(newer, Some(v1::ErrorCode::UnknownLeaderEpoch));
    let unacknowledged = refused(|r| r.partitions[0].acknowledged_offset = None).await;
    assert_eq!(unacknowledged, Some(v1::ErrorCode::InvalidRequest), "mandatory under fsync");
    let beyond = refused(|r| r.partitions[0].fetch_offset = Some(9)).await;
    assert_eq!(beyond, Some(v1::ErrorCode::OffsetOutOfRange));
    assert_eq!(isr(&node).await, [1]);
    node.stop().await;
}

#[tokio::test]
async fn a_restarted_leader_leads_in_the_next_epoch_with_everything_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    node.append("t", batch(3, 10)).await;
    node.stop().await;
    let node = start(dir.path()).await;
    let topic = node.leads("t").await;
    assert_eq!(topic.partitions[0].leader_epoch, Some(1));
    assert_eq!(node.append("t", batch(1, 10)).await, 3);
    assert_eq!(shape(&node.fetch_one("t", 0).await.records), [(0, 3, 0), (3, 1, 1)]);

    let mut fenced = fetch_request("t", 0);
    fenced.partitions[0].current_leader_epoch = Some(0);
    let error = node.fetch(fenced).await.partitions.remove(0).error;
    assert_eq!(code(&error), Some(v1::ErrorCode::FencedLeaderEpoch));
    let hint = error.unwrap().leader.unwrap();
    assert_eq!((hint.leader_id, hint.leader_epoch), (Some(1), Some(1)));
    assert!(hint.endpoint.is_some(), "who leads now, and where");
    node.stop().await;
}

#[tokio::test]
async fn a_log_whose_checkpoint_is_gone_is_not_electable_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    node.append("t", batch(1, 10)).await;
    node.stop().await;
    std::fs::remove_file(dir.path().join("data-1/t-0/checkpoint")).unwrap();
    let node = start(dir.path()).await;
    let error = eventually(async || {
        let error = node.fetch_one("t", 0).await.error?;
        (code(&Some(error.clone())) == Some(v1::ErrorCode::LeaderNotAvailable)).then_some(error)
    })
    .await;
    assert!(error.message.contains("incarnation"), "{}", error.message);
    assert_eq!(node.describe("t").await.unwrap().partitions[0].leader_epoch, Some(0), "no new leadership");
    node.stop().await;
}

#[tokio::test]
async fn a_second_node_takes_a_first_leadership_when_the_preferred_one_does_not_live() {
    let dir = tempfile::tempdir().unwrap();
    let first = start_as(dir.path(), 1, &[("broker.session.timeout.ms", "600ms")]).await;
    let second = start_as(dir.path(), 2, &[("broker.session.timeout.ms", "600ms")]).await;
    let request = v1::CreateTopicRequest { topic: "both".into(), replicas: vec![1, 2], ..Default::default() };
    let topic = first.create(request).await;
    assert_eq!(topic.partitions[0].leader_id, Some(1), "the preferred one, while it lives");
    // The second node sees the record a moment later.
    let hint = eventually(async || {
        let away = second.fetch_one("both", 0).await.error;
        let elsewhere = code(&away) == Some(v1::ErrorCode::NotLeaderOrFollower);
        away.filter(|_| elsewhere).and_then(|error| error.leader)
    })
    .await;
    assert_eq!((hint.leader_id, hint.leader_epoch), (Some(1), Some(0)));
    first.stop().await;

    let request = v1::CreateTopicRequest { topic: "late".into(), replicas: vec![1, 2], ..Default::default() };
    second.cluster.clone().create_topic(request).await.unwrap();
    let topic = second.leads("late").await;
    assert_eq!((topic.partitions[0].leader_id, topic.partitions[0].leader_epoch), (Some(2), Some(0)));
    second.stop().await;
}

#[tokio::test]
async fn a_log_that_the_nodes_other_program_holds_is_led_once_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let topic = node.topic("t", &[]).await;
    node.append("t", batch(1, 10)).await;
    node.stop().await;
    let partition = TopicIdPartition::new(topic.topic_id.parse().unwrap(), PartitionIndex::new(0).unwrap());
    let locks = PartitionLocks::open(&dir.path().join("data-1")).unwrap();
    let held = locks.try_lock(partition).unwrap().expect("the stopped leader holds nothing");
    let node = start(dir.path()).await;
    let error = eventually(async || {
        let error = node.fetch_one("t", 0).await.error;
        let held = error.as_ref().is_some_and(|e| e.message.contains("holds the log"));
        held.then_some(error)
    })
    .await;
    assert_eq!(code(&error), Some(v1::ErrorCode::ReplicaNotAvailable));
    drop(held);
    node.leads("t").await;
    assert_eq!(node.append("t", batch(1, 10)).await, 1);
    node.stop().await;
}

#[tokio::test]
async fn a_second_process_on_one_directory_does_not_start_and_takes_nothing_from_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let refused = try_start(dir.path(), 1, &[]).await.err().expect("the directory is in use").to_string();
    assert!(refused.contains("another leader-svc runs on this data directory"), "{refused}");
    assert_eq!(node.append("t", batch(1, 10)).await, 0, "the first goes on");
    node.stop().await;
    start(dir.path()).await.stop().await;
}

#[tokio::test]
async fn a_newer_leadership_ends_this_one_and_everybody_who_waits_learns_who_leads() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    node.fetch(follower(2, 0, 0)).await;
    eventually(async || (isr(&node).await == [1, 2]).then_some(())).await;
    let mut fetch = fetch_request("t", 0);
    fetch.max_wait_ms = Some(30_000);
    let mut log = node.log.clone();
    let parked = tokio::spawn(async move { log.fetch(fetch).await.unwrap().into_inner() });
    node.until_parked(1).await;
    let mut log = node.log.clone();
    let waits = tokio::spawn(async move {
        log.produce(produce_request("t", v1::Acks::All, batch(1, 10))).await.unwrap().into_inner()
    });
    let reached = async || node.fetch(follower(2, 0, 0)).await.partitions[0].log_end_offset == Some(1);
    eventually(async || reached().await.then_some(())).await;

    // Node 2 takes over, as its leader-svc would.
    let store = FileCoordination::open(&dir.path().join("store"), FileOptions::default()).await.unwrap();
    let record =
        store.view().borrow().partitions().next().map(|(_, record)| record.as_ref().clone()).unwrap();
    let next = PartitionRecord {
        leader: NodeId::new(2),
        leader_epoch: record.leader_epoch.map(LeaderEpoch::next),
        ..record.clone()
    };
    store.swap_partition(next, record.partition_epoch).await.unwrap();

    for error in
        [parked.await.unwrap().partitions.remove(0).error, waits.await.unwrap().partitions.remove(0).error]
    {
        assert_eq!(code(&error), Some(v1::ErrorCode::NotLeaderOrFollower));
        let hint = error.unwrap().leader.expect("who leads now");
        assert_eq!((hint.leader_id, hint.leader_epoch), (Some(2), Some(1)));
    }
    let locks = PartitionLocks::open(&dir.path().join("data-1")).unwrap();
    drop(eventually(async || locks.try_lock(record.id()).unwrap()).await);
    node.stop().await;
}

#[tokio::test]
async fn rows_of_replication_tell_each_followers_lag_and_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2, 3], &[]).await;
    node.append("t", batch(2, 100)).await;
    node.fetch(follower(2, 0, 0)).await;
    let rows = async || {
        let answer = node
            .replication
            .clone()
            .describe_replication(v1::DescribeReplicationRequest::default())
            .await
            .unwrap()
            .into_inner();
        answer.partitions[0].clone()
    };
    let led = rows().await;
    assert_eq!((led.topic.as_str(), led.log_end_offset, led.leader_epoch), ("t", Some(2), Some(0)));
    assert_eq!(led.flushed_offset, Some(2), "acks=1 under fsync waits for the flush");
    let (two, three) = (&led.followers[0], &led.followers[1]);
    assert_eq!((two.replica_id, two.lag_records, two.acknowledged_offset), (Some(2), Some(2), Some(0)));
    assert!(two.lag_bytes.unwrap() > 200);
    assert_eq!(two.cause(), v1::LagCause::CatchingUp);
    assert_eq!((three.acknowledged_offset, three.cause()), (None, v1::LagCause::NotFetching));
    node.fetch(follower(2, 2, 0)).await;
    let two = rows().await.followers[0].clone();
    assert_eq!((two.lag_records, two.lag_ms, two.cause()), (Some(0), Some(0), v1::LagCause::None));
    node.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_alone_is_answered_at_once_without_records() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    replicated(&node, &[2], &[]).await;
    node.append("t", batch(2, 10)).await;
    let mut request = follower(2, 2, 0);
    request.max_bytes = Some(0);
    request.partitions[0].acknowledged_offset = Some(1);
    let answer = node.fetch(request).await.partitions.remove(0);
    assert!(answer.error.is_none() && answer.records.is_empty());
    let mut nameless = follower(2, 0, 0);
    nameless.partitions[0].incarnation = None;
    let status = node.log.clone().fetch(nameless).await.map(|_| ()).unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "a follower names its incarnation");
    node.stop().await;
}

#[tokio::test]
async fn another_nodes_volume_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path()).await.stop().await;
    let data: &Path = &dir.path().join("data-1");
    let settings = [("data.dir", data.to_str().unwrap())];
    let error = try_start(dir.path(), 5, &settings).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("belongs to node 1"), "{error}");
}
