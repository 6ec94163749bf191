//! Real programs from their start to their end: what a start refuses, and how a stop goes.

use std::time::Duration;

use highwater_node::grpc::LIVENESS;
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_types::Program;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId, is_serving, says_serving};
use system_tests::{programs, wait};
use tokio::net::TcpStream;
use tonic::Code;

const LEADER: ServerId = (1, Program::LeaderSvc);
const LOG_SERVICE: &str = "highwater.v1.LogService";
/// How long a stop may take, whatever else goes on.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

async fn leader() -> Cluster {
    Plan::new().program(1, Program::LeaderSvc).start().await
}

/// Creates a topic of one partition and waits until it is led.
async fn create_topic(cluster: &Cluster, name: &str) {
    let channel = cluster.leader(1).channel();
    let request = v1::CreateTopicRequest { topic: name.to_owned(), replicas: vec![1], ..Default::default() };
    ClusterServiceClient::new(channel.clone()).create_topic(request).await.expect("the topic is new");
    wait::until("the first leadership", wait::SOON, async || {
        let answer = fetch(channel.clone(), name, 0).await.ok()?;
        answer.partitions.iter().all(|partition| partition.error.is_none()).then_some(())
    })
    .await;
}

async fn fetch(
    channel: tonic::transport::Channel,
    topic: &str,
    max_wait_ms: u32,
) -> Result<v1::FetchResponse, tonic::Status> {
    let asked = v1::FetchPartition {
        topic: topic.to_owned(),
        partition: Some(0),
        fetch_offset: Some(0),
        ..Default::default()
    };
    let request =
        v1::FetchRequest { max_wait_ms: Some(max_wait_ms), partitions: vec![asked], ..Default::default() };
    Ok(LogServiceClient::new(channel).fetch(request).await?.into_inner())
}

#[tokio::test]
async fn a_stopped_leader_ends_with_0_and_serves_again() {
    let mut cluster = leader().await;
    let status = cluster.server_mut(LEADER).terminate(STOPS_WITHIN).await;
    assert_eq!(status.code(), Some(0), "{}", cluster.leader(1).output());
    cluster.start_and_wait(LEADER).await;
    assert_eq!(cluster.leader(1).warnings(), Vec::<String>::new());
}

/// It waits for a store that accepts and says nothing.
#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_program_that_is_told_to_stop_while_it_starts_ends_with_0() {
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        let store = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = store.local_addr().expect("it is bound");
        let plan =
            Plan::new().program(1, program).set(program, "coordination", format!("etcd:http://{address}"));
        let mut cluster = plan.without_starting();
        cluster.start((1, program));
        let _connection = store.accept().await.expect("it connects");
        let status = cluster.server_mut((1, program)).terminate(STOPS_WITHIN).await;
        assert_eq!(status.code(), Some(0), "{}", cluster.server((1, program)).output());
    }
}

/// Kalatori#332, hyper#2787: only one of several signals was handled, or the end waited for a connection without bound.
#[tokio::test]
async fn a_stop_answers_parked_fetches_and_waits_for_no_silent_connection() {
    let mut cluster = leader().await;
    create_topic(&cluster, "t").await;
    let address = cluster.leader(1).address();
    let _silent = TcpStream::connect(address).await.expect("it listens");
    let parked: Vec<_> =
        (0..3).map(|_| tokio::spawn(fetch(cluster.leader(1).channel(), "t", 30_000))).collect();
    wait::always("fetches are parked", Duration::from_millis(300), async || {
        parked.iter().all(|p| !p.is_finished())
    })
    .await;

    let status = cluster.server_mut(LEADER).terminate(STOPS_WITHIN).await;
    assert_eq!(status.code(), Some(0), "{}", cluster.leader(1).output());
    for fetch in parked {
        match fetch.await.expect("the task ends") {
            Ok(answer) => assert!(answer.partitions.iter().all(|partition| partition.records.is_empty())),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
    assert!(!is_serving(address).await);
}

#[tokio::test]
async fn a_killed_leader_serves_again_at_the_same_address() {
    let mut cluster = leader().await;
    create_topic(&cluster, "t").await;
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait(LEADER).await;
    let channel = cluster.leader(1).channel();
    wait::until("the next leadership", wait::SOON, async || {
        let answer = fetch(channel.clone(), "t", 0).await.ok()?;
        answer.partitions.iter().all(|partition| partition.error.is_none()).then_some(())
    })
    .await;
}

/// What a CreateTopic of one replica on node 1 comes to.
async fn try_create(cluster: &Cluster, name: &str) -> Result<(), tonic::Status> {
    let request = v1::CreateTopicRequest { topic: name.to_owned(), replicas: vec![1], ..Default::default() };
    ClusterServiceClient::new(cluster.leader(1).channel()).create_topic(request).await.map(drop)
}

async fn describe(cluster: &Cluster) -> Result<(), tonic::Status> {
    let request = v1::DescribeClusterRequest::default();
    ClusterServiceClient::new(cluster.leader(1).channel()).describe_cluster(request).await.map(drop)
}

/// SQLite goes on with a file that was deleted under it, and reports success: what it wrote would be gone with the program.
#[tokio::test]
async fn a_store_that_is_lost_under_a_running_leader_stops_changes_but_not_the_data() {
    let cluster = leader().await;
    let calls = Calls::of(cluster.leader(1));
    create_topic(&cluster, "t").await;
    assert_eq!(calls.append("t", 0, batch(1, 10)).await, 0);
    describe(&cluster).await.expect("the store is there");
    let (store, aside) = (cluster.coordination_dir(), cluster.place().join("aside"));
    std::fs::rename(&store, &aside).expect("the store can be moved");

    let refused = try_create(&cluster, "u").await.expect_err("there is no store");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let lost = format!("{}/records.db is gone", store.display());
    assert!(refused.message().contains(&lost), "{refused}");
    // What the leader knows may be old from now on, so it tells no more about the cluster.
    wait::until("the session to end", wait::SOON, async || {
        describe(&cluster).await.err().filter(|status| status.code() == Code::Unavailable)
    })
    .await;
    // Whoever picks a node by health picks another; whoever would restart this one does not.
    let health = async |service| says_serving(cluster.leader(1).address(), service).await;
    wait::until("health to say so", wait::SOON, async || (!health(LOG_SERVICE).await).then_some(())).await;
    assert!(health(LIVENESS).await, "a restart brings no store back");
    let refused = describe(&cluster).await.expect_err("there is no store");
    assert!(refused.message().contains("the store is out of reach"), "{refused}");
    assert_eq!(calls.append("t", 0, batch(1, 10)).await, 1, "data moves on");
    let warnings = cluster.leader(1).warnings();
    let of_store = warnings.iter().filter(|line| line.contains(&lost)).count();
    assert!((1..=2).contains(&of_store), "of the records once and of the session once: {warnings:?}");

    std::fs::rename(&aside, &store).expect("the store can be put back");
    wait::until("the session to be renewed", wait::SOON, async || describe(&cluster).await.ok()).await;
    try_create(&cluster, "u").await.expect("the same store is there again");
    wait::until("health to serve again", wait::SOON, async || health(LOG_SERVICE).await.then_some(())).await;
}

#[test]
fn a_wrong_setting_ends_the_start_and_says_what_is_allowed() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let file = place.path().join("leader.toml");
    std::fs::write(&file, "node.id = 1\nreplica.fetch.wait.max = \"1s\"\nfetch.max.bytes = \"10 MB/x\"\n")
        .expect("a new file");
    let output = programs::command("leader-svc")
        .args(["--check-config", "--config"])
        .arg(&file)
        .args(["--data-dir", "d", "--coordination", "file:c"])
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["replica.fetch.wait.max", "fetch.max.bytes", "10 MB/x"] {
        assert!(said.contains(part), "{part} is named in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}
