//! Topics: created, described, deleted; and what a stop and a start leave of them.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_proto::v1;
use support::{batch, code, eventually, start, start_as};
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

#[tokio::test]
async fn partitions_are_spread_and_described_with_their_leaders() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (start_as(dir.path(), 1, &[]).await, start_as(dir.path(), 2, &[]).await);
    let properties = [("segment.bytes".to_owned(), "1MiB".to_owned())].into();
    let request = v1::CreateTopicRequest {
        topic: "spread".into(),
        partitions: Some(4),
        replication_factor: Some(2),
        properties,
        ..Default::default()
    };
    // The first node may not have seen the second one's sign of life yet.
    let created = eventually(async || one.cluster.clone().create_topic(request.clone()).await.ok()).await;
    assert_eq!(created.into_inner().topic.unwrap().partition_count, Some(4));
    let topic = eventually(async || {
        let topic = two.describe("spread").await?;
        topic.partitions.iter().all(|p| p.leader_endpoint.is_some()).then_some(topic)
    })
    .await;
    let leaders: Vec<i32> = topic.partitions.iter().map(|p| p.leader_id.unwrap()).collect();
    assert_eq!(leaders, [1, 2, 1, 2], "the preferred ones, in turns");
    assert_eq!(topic.properties["segment.bytes"], "1048576");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn what_cannot_be_created_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    node.topic("t", &[]).await;
    let refused = async |request: v1::CreateTopicRequest| {
        let status = node.cluster.clone().create_topic(request).await.map(|_| ()).unwrap_err();
        (status.code(), status.get_details_error_info().unwrap().reason)
    };
    let named = |topic: &str| v1::CreateTopicRequest { topic: topic.into(), ..Default::default() };
    assert_eq!(refused(named("t")).await, (Code::AlreadyExists, "TOPIC_ALREADY_EXISTS".into()));
    assert_eq!(refused(named("..")).await.0, Code::InvalidArgument);
    assert_eq!(refused(named(&"x".repeat(100_000))).await.0, Code::InvalidArgument);
    let many = v1::CreateTopicRequest { replication_factor: Some(3), ..named("u") };
    assert_eq!(refused(many).await, (Code::InvalidArgument, "INVALID_REQUEST".into()));
    let stranger = v1::CreateTopicRequest { replicas: vec![1, 9], ..named("u") };
    assert_eq!(refused(stranger).await.0, Code::InvalidArgument);
    let properties = [("segment.bytes".to_owned(), "10 MB/x".to_owned())].into();
    assert_eq!(refused(v1::CreateTopicRequest { properties, ..named("u") }).await.0, Code::InvalidArgument);
    let properties = [("min.insync.replicas".to_owned(), "2".to_owned())].into();
    let unacknowledged = v1::CreateTopicRequest { properties, ..named("u") };
    assert_eq!(refused(unacknowledged).await, (Code::InvalidArgument, "INVALID_CONFIG".into()));
    assert!(node.describe("u").await.is_none());
    node.stop().await;
}

#[tokio::test]
async fn a_deleted_topics_directory_goes_and_its_name_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let old = node.topic("t", &[]).await;
    node.append("t", batch(3, 10)).await;
    let directory = dir.path().join("data-1/t-0");
    assert!(directory.exists());
    let stray = dir.path().join("data-1/stray-7");
    std::fs::create_dir(&stray).unwrap();
    let mut log = node.log.clone();
    let mut parked = support::fetch_request("t", 3);
    parked.max_wait_ms = Some(30_000);
    let parked = tokio::spawn(async move { log.fetch(parked).await.unwrap().into_inner() });
    node.until_parked(1).await;
    let selector = v1::TopicSelector { topic: "t".into(), topic_id: String::new() };
    let request = v1::DeleteTopicRequest { topic: Some(selector.clone()) };
    let deleted = node.cluster.clone().delete_topic(request).await.unwrap().into_inner();
    assert_eq!(deleted.topic_id, old.topic_id);
    let ended = parked.await.unwrap().partitions.remove(0);
    assert!(ended.error.is_some(), "a parked fetch learns of it");
    eventually(async || (!directory.exists()).then_some(())).await;
    assert!(stray.exists(), "a directory that no record knows is kept");
    let again = v1::DeleteTopicRequest { topic: Some(selector) };
    let status = node.cluster.clone().delete_topic(again).await.map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Code::NotFound);

    let new = node.topic("t", &[]).await;
    assert_ne!(new.topic_id, old.topic_id, "a re-created name is another id");
    assert_eq!(node.fetch_one("t", 0).await.high_watermark, Some(0));
    let mut request = support::fetch_request("", 0);
    request.partitions[0].topic_id = old.topic_id;
    assert_eq!(code(&node.fetch(request).await.partitions[0].error), Some(v1::ErrorCode::UnknownTopicId));
    node.stop().await;
    assert!(stray.exists());
}

#[tokio::test]
async fn the_cluster_is_described_and_a_change_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let describe = async |known_version, max_wait_ms| {
        let request = v1::DescribeClusterRequest { known_version, max_wait_ms: Some(max_wait_ms) };
        node.cluster.clone().describe_cluster(request).await.unwrap().into_inner()
    };
    let first = describe(None, 0).await;
    assert_eq!((first.node_id, first.cluster_id.len()), (Some(1), 22));
    assert!(first.nodes[0].leader_svc.is_some() && first.nodes[0].disk_current.is_some());
    let began = Instant::now();
    let same = describe(first.version, 200).await;
    assert!(same.unchanged && same.topics.is_empty() && began.elapsed() >= Duration::from_millis(195));
    let (mut cluster, known_version) = (node.cluster.clone(), first.version);
    let waiting = tokio::spawn(async move {
        let request = v1::DescribeClusterRequest { known_version, max_wait_ms: Some(30_000) };
        cluster.describe_cluster(request).await.unwrap().into_inner()
    });
    node.topic("t", &[]).await;
    let changed = waiting.await.unwrap();
    assert!(!changed.unchanged && changed.topics.iter().any(|topic| topic.topic == "t"));
    node.stop().await;
}

#[tokio::test]
async fn an_agent_is_registered_renewed_and_refused_on_an_old_version() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let register = async |version: Option<u64>, counter| {
        let record = version.map(|version| v1::Node {
            node_id: Some(2),
            follower_agent: Some("127.0.0.1:9402".into()),
            version: Some(version),
            ..Default::default()
        });
        let request =
            v1::RegisterAgentRequest { node_id: Some(2), counter, node: record, ..Default::default() };
        node.cluster.clone().register_agent(request).await.unwrap().into_inner()
    };
    let first = register(Some(0), None).await;
    assert_eq!((first.written, first.node.unwrap().version), (Some(true), Some(1)));
    assert!(first.liveness.is_empty());
    let stale = register(Some(0), None).await;
    assert_eq!((stale.written, stale.node.unwrap().version), (Some(false), Some(1)));
    let counter = |answer: v1::RegisterAgentResponse| {
        let agent = v1::Program::FollowerAgent;
        answer.liveness.iter().find(|l| l.node_id == Some(2) && l.program() == agent).unwrap().counter
    };
    let (before, after) = (counter(register(None, Some(1)).await), counter(register(None, Some(2)).await));
    assert!(before < after, "each sign of life raises the counter");
    node.stop().await;
}

#[tokio::test]
async fn a_stop_leaves_every_log_clean_and_the_next_start_serves_them_all() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let request = v1::CreateTopicRequest { topic: "many".into(), partitions: Some(30), ..Default::default() };
    node.create(request).await;
    for partition in 0..30 {
        let mut request = support::produce_request("many", v1::Acks::All, batch(1, 100));
        request.partitions[0].partition = Some(partition);
        let answer = node.log.clone().produce(request).await.unwrap().into_inner();
        assert_eq!(answer.partitions[0].error, None);
    }
    let began = Instant::now();
    node.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let node = start(dir.path()).await;
    let topic = node.leads("many").await;
    let epochs: BTreeSet<_> = topic.partitions.iter().map(|p| p.leader_epoch.unwrap()).collect();
    assert_eq!(epochs, BTreeSet::from([1]));
    for partition in 0..30 {
        let mut request = support::fetch_request("many", 0);
        request.partitions[0].partition = Some(partition);
        assert_eq!(node.fetch(request).await.partitions[0].high_watermark, Some(1));
    }
    node.stop().await;
}

#[tokio::test]
async fn health_says_serving_without_any_follower_and_reflection_lists_the_services() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    for service in ["", "highwater.v1.LogService", "highwater.v1.ClusterService"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let answer = HealthClient::new(node.channel.clone()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    node.stop().await;
}
