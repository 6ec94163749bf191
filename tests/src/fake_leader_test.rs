//! The scripted leader, asked by a plain client.

use highwater_proto::v1::log_service_client::LogServiceClient;
use tonic::transport::Channel;

use super::*;
use crate::ports;

async fn faked() -> (FakeLeader, LogServiceClient<Channel>) {
    let fake = FakeLeader::start(ports::loopback()).await;
    let client =
        LogServiceClient::connect(format!("http://{}", fake.address())).await.expect("the fake listens");
    (fake, client)
}

fn fetch(topic_id: TopicId, offset: i64, max_wait_ms: u32) -> v1::FetchRequest {
    let asked = v1::FetchPartition {
        topic_id: topic_id.to_string(),
        partition: Some(0),
        fetch_offset: Some(offset),
        last_fetched_epoch: Some(4),
        acknowledged_offset: Some(offset - 1),
        ..Default::default()
    };
    v1::FetchRequest { max_wait_ms: Some(max_wait_ms), partitions: vec![asked], ..Default::default() }
}

#[tokio::test]
async fn canned_answers_come_in_order_and_then_fetches_are_parked() {
    let (fake, mut client) = faked().await;
    let topic = TopicId::random();
    fake.script_fetches([
        Answer::Give(v1::FetchResponse { throttle_ms: Some(7), ..Default::default() }),
        Answer::Fail(Status::unavailable("later")),
    ]);
    let first = client.fetch(fetch(topic, 1, 0)).await.expect("given").into_inner();
    assert_eq!(first.throttle_ms, Some(7));
    assert_eq!(client.fetch(fetch(topic, 2, 0)).await.expect_err("failed").message(), "later");
    let began = Instant::now();
    let parked = client.fetch(fetch(topic, 3, 80)).await.expect("nothing new").into_inner();
    assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
    let partition = parked.partitions.first().expect("one was asked for");
    assert_eq!((partition.topic_id.as_str(), partition.records.len()), (topic.to_string().as_str(), 0));
    let expected = [1, 2, 3].map(|offset| Position {
        fetch_offset: offset,
        acknowledged: offset - 1,
        last_epoch: Some(4),
    });
    assert_eq!(fake.positions(topic, 0), expected);
    let times: Vec<Instant> = fake.fetches().iter().map(|fetch| fetch.at).collect();
    assert!(times.is_sorted());
}

#[tokio::test]
async fn a_script_sees_the_request_and_how_many_came_before() {
    let (fake, mut client) = faked().await;
    let topic = TopicId::random();
    fake.on_fetch(|request, before| {
        let session_epoch = request.session_epoch;
        Some(Answer::Give(v1::FetchResponse {
            session_id: session_epoch,
            throttle_ms: u32::try_from(before).ok(),
            ..Default::default()
        }))
    });
    for before in 0..2 {
        let request = v1::FetchRequest { session_epoch: Some(9), ..fetch(topic, 0, 0) };
        let answer = client.fetch(request).await.expect("given").into_inner();
        assert_eq!((answer.session_id, answer.throttle_ms), (Some(9), Some(before)));
    }
}

#[tokio::test]
async fn a_call_that_is_never_answered_ends_by_its_deadline() {
    let (fake, mut client) = faked().await;
    fake.script_fetches([Answer::Never]);
    let mut request = Request::new(fetch(TopicId::random(), 0, 0));
    request.set_timeout(Duration::from_millis(50));
    assert!(client.fetch(request).await.is_err());
    assert_eq!(fake.fetches().len(), 1);
}

#[tokio::test]
async fn the_store_says_that_the_fake_leads_and_that_it_leads_again() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let address = ports::loopback();
    let topic = LedTopic {
        name: "t".parse().expect("a name"),
        partitions: 2,
        leader_epoch: 5,
        replicas: vec![1, 2],
        properties: TopicProperties::default(),
    };
    let id = lead(place.path(), address, topic).await;
    let partition = TopicIdPartition::new(id, PartitionIndex::new(1).expect("an index"));
    lead_again(place.path(), partition).await;
    let store = FileCoordination::open(place.path(), FileOptions::default()).await.expect("the store opens");
    let view = store.refresh().await.expect("the store can be read");
    let record = view.partition(partition).expect("created");
    assert_eq!((record.leader, record.leader_epoch), (NodeId::new(1), LeaderEpoch::new(6)));
    let node = view.node(NodeId::new(1).expect("a node id")).expect("registered");
    assert_eq!(node.leader_svc, Some(Endpoint::from(address)));
}
