//! Elections that a person or a topic orders, by the command line and real processes: the preferred leader leads again; a
//! replica that lacks acknowledged records leads only where that is allowed, and what is lost is told.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::ops::RangeInclusive;
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::Program;
use serde_json::Value;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan};
use system_tests::log_files::LogBytes;
use system_tests::{tool, wait};

/// For how long nobody may lead: many times what a take-over takes.
const A_WHILE: Duration = Duration::from_secs(4);

/// `highwater elect t-0 …` through node `through`: its exit code, its only line of JSON, what it complained of.
async fn elect(cluster: &Cluster, through: i32, args: &[&str]) -> (Option<i32>, Value, String) {
    highwater(cluster, through, &[&["elect", "t-0"], args].concat()).await
}

/// What `highwater topics describe t` says of the unclean election of its partition.
async fn loss_report(cluster: &Cluster, through: i32) -> Value {
    let (code, topic, said) = highwater(cluster, through, &["topics", "describe", "t"]).await;
    assert_eq!(code, Some(0), "{said}");
    topic["partitions"][0]["unclean"].clone()
}

async fn highwater(cluster: &Cluster, through: i32, args: &[&str]) -> (Option<i32>, Value, String) {
    let through = cluster.leader(through).address().to_string();
    let done = tool::run_with(&through, &[args, &["--output", "json"]].concat(), b"").await;
    (done.status.code(), done.line(), done.err)
}

async fn partition(cluster: &Cluster, through: i32) -> Option<v1::Partition> {
    Calls::of(cluster.leader(through)).topic("t").await?.partitions.into_iter().next()
}

async fn until_led_by(cluster: &Cluster, through: i32, leader: i32, isr: RangeInclusive<usize>) {
    wait::until(&format!("node {leader} to lead {isr:?} in sync"), wait::SOON, async || {
        let found = partition(cluster, through).await?;
        (found.leader_id == Some(leader) && isr.contains(&found.isr.len())).then_some(())
    })
    .await;
}

/// Two nodes that see each other; node 1 leads the topic, both are in sync.
async fn two_nodes(properties: &[(&str, &str)]) -> Cluster {
    let cluster = Plan::new().node(1).node(2).start().await;
    for node in [1, 2] {
        let calls = Calls::of(cluster.leader(node));
        wait::until("both nodes to live", wait::SOON, async || {
            let request = v1::DescribeClusterRequest::default();
            let answer = calls.cluster.clone().describe_cluster(request).await.ok()?.into_inner();
            (answer.live_leader_svcs.len() == 2).then_some(())
        })
        .await;
    }
    Calls::of(cluster.leader(1)).create_topic("t", 1, &[1, 2], properties).await;
    until_led_by(&cluster, 1, 1, 2..=2).await;
    cluster
}

#[tokio::test]
async fn the_preferred_replica_leads_again_when_a_person_says_so() {
    let mut cluster = two_nodes(&[]).await;
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    // Its agent lives, and follows.
    until_led_by(&cluster, 2, 2, 1..=2).await;
    let (code, _, said) = elect(&cluster, 2, &["--timeout", "1s"]).await;
    assert_eq!(code, Some(1), "node 1 is dead: {said}");
    assert!(said.contains("node 1, the preferred replica, is not in sync"), "{said}");

    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    until_led_by(&cluster, 2, 2, 2..=2).await;
    let before = partition(&cluster, 2).await.and_then(|found| found.leader_epoch);
    let (code, elected, said) = elect(&cluster, 2, &["--preferred"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        (&elected["partition"], &elected["leader"], &elected["lost"]),
        (&"t-0".into(), &1.into(), &Value::Null)
    );
    assert!(elected["leader_epoch"].as_i64() > before.map(i64::from), "{elected}, before {before:?}");
    Calls::of(cluster.leader(1)).append("t", 0, batch(1, 10)).await;
    until_led_by(&cluster, 1, 1, 2..=2).await;
    assert_eq!(elect(&cluster, 1, &[]).await.0, Some(0), "it leads already");
}

/// Node 1 holds 15 records that it acknowledged, node 2 only ten of them; then node 1 dies with both its programs.
async fn lose_the_only_member(properties: &[(&str, &str)]) -> Cluster {
    let mut cluster = two_nodes(properties).await;
    let calls = Calls::of(cluster.leader(1));
    calls.append("t", 0, batch(10, 100)).await;
    calls.until_in_sync("t", 1).await;
    cluster.server_mut((2, Program::FollowerAgent)).kill();
    until_led_by(&cluster, 1, 1, 1..=1).await;
    calls.append("t", 0, batch(5, 200)).await;
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        cluster.server_mut((1, program)).kill();
    }
    cluster.start_and_wait((2, Program::FollowerAgent)).await;
    cluster
}

/// Node 1 returns, cuts what was lost, keeps it beside the log and tells of it.
async fn assert_loss_is_told(cluster: &mut Cluster) {
    let calls = Calls::of(cluster.leader(2));
    assert_eq!(calls.append("t", 0, batch(3, 100)).await, 10, "where node 2 ended");
    let found = partition(cluster, 2).await.and_then(|found| found.unclean).expect("the record says so");
    let passed_over: Vec<_> = found.passed_over.iter().map(|member| member.node_id).collect();
    assert_eq!((found.log_end_offset, passed_over), (Some(10), vec![Some(1)]));
    let said = cluster.leader(2).output();
    assert!(said.contains("leads by an unclean election"), "{said}");
    let report = loss_report(cluster, 2).await;
    assert_eq!((&report["leader_epoch"], &report["from_offset"]), (&1.into(), &10.into()), "{report}");
    let passed_over = &report["passed_over"][0];
    assert_eq!((&passed_over["node"], &passed_over["lost"]), (&1.into(), &Value::Null), "not back yet");

    for program in [Program::FollowerAgent, Program::LeaderSvc] {
        cluster.start_and_wait((1, program)).await;
    }
    until_led_by(cluster, 2, 2, 2..=2).await;
    let log = |node| LogBytes::read(&cluster.data_dir(node).join("t-0"));
    assert!(log(1).bytes == log(2).bytes, "node 1 follows");
    assert_eq!(log(1).end, 13);
    let said = cluster.agent(1).output();
    assert!(said.contains("an unclean election lost records"), "{said}");
    // Whether its last checkpoint knew of all that was committed is a matter of the second in which it died.
    let is_exact = |report: &Value| {
        let lost = &report["passed_over"][0]["lost"];
        (&lost["from_offset"], &lost["end_offset"]) == (&10.into(), &15.into())
    };
    let report = loss_report(cluster, 2).await;
    assert!(is_exact(&report), "{report}");
    cluster.server_mut((1, Program::FollowerAgent)).kill();
    cluster.start_and_wait((1, Program::FollowerAgent)).await;
    wait::until("the exact loss to be told again", wait::SOON, async || {
        is_exact(&loss_report(cluster, 2).await).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_lacks_records_leads_only_when_a_person_says_so_and_tells_what_is_lost() {
    let mut cluster = lose_the_only_member(&[]).await;
    wait::always("nobody leads instead of node 1", A_WHILE, async || {
        partition(&cluster, 2).await.is_none_or(|found| found.leader_id == Some(1))
    })
    .await;
    let (code, elected, said) = elect(&cluster, 2, &["--unclean"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((&elected["leader"], &elected["lost"]["from_offset"]), (&2.into(), &10.into()), "{elected}");
    assert_eq!(elected["lost"]["passed_over"], serde_json::json!([1]), "{elected}");
    assert_loss_is_told(&mut cluster).await;

    let (code, _, said) = elect(&cluster, 2, &["--unclean", "--node", "1"]).await;
    assert_eq!(code, Some(1), "who lives keeps its leadership: {said}");
    assert!(said.contains("node 2 leads, and its leader-svc lives"), "{said}");
}

#[tokio::test]
async fn a_topic_that_allows_it_is_led_by_who_lacks_records_once_nobody_in_sync_is_left() {
    let mut cluster = lose_the_only_member(&[("unclean.leader.election.enable", "true")]).await;
    until_led_by(&cluster, 2, 2, 1..=1).await;
    assert_loss_is_told(&mut cluster).await;
}
