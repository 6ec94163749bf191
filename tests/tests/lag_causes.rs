//! What is told of a lag while one side is dead or frozen: by the leader, by the agent, and by `highwater lag`.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use serde_json::Value;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::{programs, wait};
use tokio::process::Command;

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);

/// Node 1 leads a topic of which node 2 holds everything: a record.
async fn pair() -> (Cluster, [Calls; 2]) {
    let plan = Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::FollowerAgent)
        .set(Program::FollowerAgent, "replica.socket.keepalive.ms", "200ms")
        .set(Program::FollowerAgent, "replica.socket.keepalive.timeout.ms", "200ms");
    let cluster = plan.start().await;
    let calls = [cluster.leader(1), cluster.agent(2)].map(Calls::of);
    calls[0].until_nodes(2).await;
    calls[0].create_topic("t", 1, &[1, 2], &[]).await;
    calls[0].append("t", 0, batch(1, 100)).await;
    calls[0].until_in_sync("t", 1).await;
    until_well(&calls[1]).await;
    (cluster, calls)
}

async fn followed(agent: &Calls) -> v1::FollowedPartition {
    agent.followed().await.remove(&("t".to_owned(), 0)).expect("it follows the partition")
}

async fn until_well(agent: &Calls) {
    wait::until("the agent to hold everything", wait::SOON, async || {
        let row = followed(agent).await;
        ((row.lag_records, row.cause()) == (Some(0), v1::LagCause::None)).then_some(())
    })
    .await;
}

/// Waits until the agent has called the leader in vain several times, and looks at every row meanwhile: from the first
/// failure on no row may say that all is well.
async fn until_told(agent: &Calls) -> v1::FollowedPartition {
    wait::until("failed calls", wait::SOON, async || {
        let mut described = agent.fetchers().await;
        let fetcher = described.fetchers.first_mut().expect("it has a loop");
        let failures = fetcher.failures.expect("it is told");
        let row = fetcher.partitions.pop().expect("it has the partition");
        if failures > 0 {
            assert_eq!(
                (row.lag_records, row.cause()),
                (None, v1::LagCause::Network),
                "{failures} failures: {row:?}"
            );
            assert!(!fetcher.last_error.is_empty(), "{failures} failures");
        }
        (failures >= 5).then_some(row)
    })
    .await
}

/// `highwater lag`, asked at the agent: its output.
async fn lag(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = Command::new(programs::path("highwater"));
    command.arg("lag").args(arguments).arg("--bootstrap").arg(cluster.agent(2).address().to_string());
    let done = command.output().await.expect("the program is there");
    String::from_utf8(done.stdout).expect("it is text")
}

#[tokio::test]
async fn the_agent_of_a_dead_leader_says_so_and_the_lag_command_asks_it() {
    let (mut cluster, [_, agent]) = pair().await;
    cluster.server_mut(LEADER).kill();
    let row = until_told(&agent).await;
    assert_eq!(row.log_end_offset, Some(1), "what it holds is known: {row:?}");
    let told = wait::until("the leader to be known as dead", wait::SOON, async || {
        let line = lag(&cluster, &["--output", "json"]).await;
        let rows: Vec<Value> =
            line.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
        rows.into_iter().find(|row| row["type"] == "leaderless" && row["leader_state"] == "dead")
    })
    .await;
    assert_eq!((&told["replica"], &told["cause"]), (&2.into(), &"network".into()), "{told}");
    assert_eq!((&told["log_end_offset"], &told["acknowledged_offset"]), (&1.into(), &1.into()), "{told}");
    let error = told["error"].as_str().expect("the agent's error is told");
    let table = lag(&cluster, &[]).await;
    assert!(table.contains("network: dead"), "{table}");
    assert!(table.contains("node 2 cannot fetch from node 1: "), "{error}: {table}");

    cluster.start_and_wait(LEADER).await;
    until_well(&agent).await;
}

#[tokio::test]
async fn where_nobody_knows_the_cluster_the_lag_command_tells_what_the_agent_that_it_was_given_knows() {
    let (mut cluster, [_, agent]) = pair().await;
    cluster.server_mut(LEADER).kill();
    until_told(&agent).await;
    let store = cluster.coordination_dir();
    std::fs::rename(&store, store.with_extension("away")).expect("it is ours");
    let told = wait::until("the agent to lose its session", wait::SOON, async || {
        let lines = lag(&cluster, &["--output", "json", "--timeout", "300ms"]).await;
        let rows: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
        (rows.len() == 2 && rows[1]["type"] == "unreachable" && rows[1].get("node").is_none()).then_some(rows)
    })
    .await;
    assert_eq!((&told[0]["type"], &told[0]["cause"]), (&"leaderless".into(), &"network".into()), "{told:?}");
    assert_eq!((&told[0]["in_sync"], &told[0]["log_end_offset"]), (&Value::Null, &1.into()), "{told:?}");
}

#[tokio::test]
async fn the_agent_of_a_frozen_leader_tells_no_lag_that_it_cannot_know() {
    let (cluster, [leader, agent]) = pair().await;
    cluster.leader(1).process().freeze();
    until_told(&agent).await;
    cluster.leader(1).process().thaw();
    until_well(&agent).await;
    leader.append("t", 0, batch(1, 100)).await;
    agent.until_followed_to("t", 1, 2).await;
}

#[tokio::test]
async fn a_frozen_agent_is_soon_told_as_not_fetching() {
    let (cluster, [leader, _]) = pair().await;
    cluster.server(AGENT).process().freeze();
    // Its parked poll ends with nothing; then there is a record.
    wait::until("the agent's poll to be over", wait::SOON, async || {
        (leader.rows("t").await[0].followers[0].last_fetch_age_ms > Some(1_000)).then_some(())
    })
    .await;
    let began = Instant::now();
    leader.produce(v1::Acks::Leader, system_tests::calls::to("t", 0, batch(1, 100))).await;
    wait::until("the agent to be told as not fetching", wait::SOON, async || {
        (leader.rows("t").await[0].followers[0].cause() == v1::LagCause::NotFetching).then_some(())
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}, less than replica.lag.time.max.ms",
        began.elapsed()
    );
    cluster.server(AGENT).process().thaw();
}
