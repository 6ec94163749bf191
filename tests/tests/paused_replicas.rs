//! Replicas that a person pauses and resumes by the command line, on a real agent: what a pause stops, where it is told, and
//! what ends it.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::time::Duration;

use highwater_proto::v1;
use highwater_types::Program;
use serde_json::Value;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan};
use system_tests::throttles::{AGENT, pair};
use system_tests::{tool, wait};

const TOPIC: &str = "orders";

/// A leader and a follower in sync, with ten records.
async fn in_sync() -> Cluster {
    let cluster = pair().start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic(TOPIC, 1, &[1, 2], &[]).await;
    calls.append(TOPIC, 0, batch(10, 100)).await;
    calls.until_in_sync(TOPIC, 1).await;
    cluster
}

/// What `highwater …` printed as JSON, its exit code and what it complained of.
async fn highwater(cluster: &Cluster, args: &[&str]) -> (Option<i32>, Value, String) {
    let done = tool::run_json(cluster, args).await;
    (done.status.code(), done.line(), done.err)
}

async fn replica(cluster: &Cluster, what: &str) -> Value {
    let (code, done, said) = highwater(cluster, &["replica", what, "orders:0", "--node", "2"]).await;
    assert_eq!(code, Some(0), "{said}");
    done
}

/// The follower's row of `highwater lag`.
async fn lag(cluster: &Cluster) -> Value {
    highwater(cluster, &["lag", TOPIC]).await.1
}

async fn followed(cluster: &Cluster) -> v1::FollowedPartition {
    let followed = Calls::of(cluster.agent(2)).followed().await;
    followed.into_values().next().expect("it follows the partition")
}

async fn until_paused_in_lag(cluster: &Cluster) {
    wait::until("the leader to say why", wait::SOON, async || {
        (lag(cluster).await["cause"] == "paused").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_paused_replica_fetches_nothing_says_so_everywhere_and_leaves_the_in_sync_set() {
    let cluster = in_sync().await;
    let calls = Calls::of(cluster.leader(1));
    let done = replica(&cluster, "pause").await;
    assert_eq!((&done["paused"], &done["changed"]), (&true.into(), &true.into()));
    assert_eq!(replica(&cluster, "pause").await["changed"], Value::from(false), "it is paused already");
    calls.append(TOPIC, 0, batch(5, 100)).await;
    let fetches = async || Calls::of(cluster.agent(2)).fetchers().await.fetchers[0].fetches.unwrap_or(0);
    let before = fetches().await;
    wait::always("it appends nothing", Duration::from_secs(1), async || {
        followed(&cluster).await.log_end_offset == Some(10)
    })
    .await;
    assert!(fetches().await - before <= 3, "and asks for nothing");
    let row = followed(&cluster).await;
    assert_eq!((row.state(), row.cause()), (v1::FetchState::Paused, v1::LagCause::Paused));
    until_paused_in_lag(&cluster).await;
    wait::until("it to be out of the in-sync set", wait::SOON, async || {
        (lag(&cluster).await["in_sync"] == false).then_some(())
    })
    .await;
    assert_eq!(lag(&cluster).await["cause"], "paused", "it is silent because it is paused");
    let read = Calls::of(cluster.agent(2)).fetch_one(TOPIC, 0, 0).await;
    assert!(read.error.is_none() && !read.records.is_empty(), "what it has stays readable: {read:?}");

    let done = replica(&cluster, "resume").await;
    assert_eq!((&done["paused"], &done["changed"]), (&false.into(), &true.into()));
    calls.until_in_sync(TOPIC, 1).await;
    assert_eq!(followed(&cluster).await.log_end_offset, Some(15));
    assert_eq!(lag(&cluster).await["cause"], "none");
    assert_eq!(replica(&cluster, "resume").await["changed"], Value::from(false));
}

#[tokio::test]
async fn a_pause_outlives_its_leader_and_ends_with_the_agent() {
    let mut cluster = in_sync().await;
    replica(&cluster, "pause").await;
    let leader = (1, Program::LeaderSvc);
    cluster.server_mut(leader).kill();
    cluster.start_and_wait(leader).await;
    Calls::of(cluster.leader(1)).append(TOPIC, 0, batch(5, 100)).await;
    // The new leadership is told as well.
    until_paused_in_lag(&cluster).await;
    assert_eq!(followed(&cluster).await.log_end_offset, Some(10));
    cluster.server_mut(AGENT).terminate(wait::SOON).await;
    cluster.start_and_wait(AGENT).await;
    Calls::of(cluster.leader(1)).until_in_sync(TOPIC, 1).await;
}

#[tokio::test]
async fn what_cannot_be_paused_is_refused_with_the_reason() {
    let cluster = Plan::new().node(1).node(2).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic(TOPIC, 1, &[1], &[]).await;
    for (args, code, why) in [
        (["orders:0", "--node", "1"], 1, "node 1 leads the partition"),
        (["orders:0", "--node", "2"], 1, "node 2 has no replica of orders-0"),
        (["orders:0", "--node", "9"], 2, "no follower-agent of it is registered"),
        (["orders:3", "--node", "1"], 1, "there is no 3"),
        (["orders", "--node", "1"], 2, "which partition of orders?"),
    ] {
        let (exit, _, said) = highwater(&cluster, &[&["replica", "pause"], &args[..]].concat()).await;
        assert_eq!(exit, Some(code), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let request = v1::PauseReplicaRequest { topic: TOPIC.into(), partition: Some(0), ..Default::default() };
    let refused = calls.replication.clone().pause_replica(request).await.unwrap_err();
    assert!(refused.message().contains("ask the node's follower-agent"), "{refused:?}");
}
