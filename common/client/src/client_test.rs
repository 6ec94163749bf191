//! The client's calls: whom they reach, and when they end.

use highwater_types::{ErrorCode, LeaderHint, NodeId, ReplicationError};
use highwater_wire::admin::{CreateTopic, Placement};
use highwater_wire::status;

use super::*;
use crate::fake::{FakeNode, tp};

fn client_of(endpoints: Vec<Endpoint>, retry: Duration) -> Client {
    Client::new(ClientConfig { retry_timeout: retry, ..ClientConfig::new(endpoints) }).unwrap()
}

fn dead() -> Endpoint {
    "127.0.0.1:1".parse().unwrap()
}

fn create() -> CreateTopic {
    CreateTopic {
        name: "orders".parse().unwrap(),
        partitions: 1,
        placement: Placement::Factor(1),
        properties: highwater_types::TopicProperties::default(),
    }
}

#[tokio::test]
async fn any_node_that_answers_will_do() {
    let node = FakeNode::start(1).await;
    let client = client_of(vec![dead(), node.endpoint.clone()], Duration::from_secs(20));
    for _ in 0..3 {
        assert_eq!(client.describe_cluster().await.unwrap().cluster_id, Some(node.cluster.clone()));
    }
}

#[tokio::test]
async fn a_client_gives_up_in_time_and_says_why() {
    let client = client_of(vec![dead()], Duration::from_millis(300));
    let before = Instant::now();
    let error = client.describe_cluster().await.unwrap_err();
    assert!(before.elapsed() < Duration::from_secs(3));
    assert!(matches!(&error, ClientError::GaveUp { .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_topic_that_nobody_knows_does_not_cost_the_whole_retry_time() {
    let node = FakeNode::start(1).await;
    let client = client_of(vec![node.endpoint.clone()], Duration::from_secs(60));
    let before = Instant::now();
    let error = client.end_offset(&tp("missing", 0)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopicOrPartition));
    assert!(before.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_creation_that_may_have_been_made_is_not_repeated() {
    let node = FakeNode::start(1).await;
    node.state().on_create = Some(Box::new(|_| Some(Err(Status::unavailable("connection reset")))));
    let error = node.client().create_topic(&create()).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error}");
    assert_eq!(node.calls("create_topic"), 1);
}

#[tokio::test]
async fn a_creation_that_was_not_made_is_tried_at_the_node_that_was_named() {
    let (agent, leader) = (FakeNode::start(1).await, FakeNode::start(2).await);
    let hint = LeaderHint {
        leader: NodeId::new(2),
        epoch: highwater_types::LeaderEpoch::FIRST,
        endpoint: Some(leader.endpoint.clone()),
    };
    let error =
        ReplicationError::new(ErrorCode::NotLeaderOrFollower, "ask a leader-svc").with_leader(Some(hint));
    agent.state().on_create = Some(Box::new(move |_| Some(Err(status::from_error(&error)))));
    let exists = ReplicationError::new(ErrorCode::TopicAlreadyExists, "topic orders exists");
    leader.state().on_create = Some(Box::new(move |_| Some(Err(status::from_error(&exists)))));
    let error = agent.client().create_topic(&create()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TopicAlreadyExists), "{error}");
    assert_eq!((agent.calls("create_topic"), leader.calls("create_topic")), (1, 1));
}

#[tokio::test]
async fn a_frozen_node_costs_one_deadline_and_not_the_operation() {
    let frozen = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = FakeNode::start(1).await;
    let first = frozen.local_addr().unwrap().to_string().parse().unwrap();
    let client = Client::new(ClientConfig {
        request_timeout: Duration::from_millis(200),
        ..ClientConfig::new(vec![first, node.endpoint.clone()])
    })
    .unwrap();
    let before = Instant::now();
    client.describe_cluster().await.unwrap();
    let elapsed = before.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_secs(5)).contains(&elapsed), "{elapsed:?}");
}
