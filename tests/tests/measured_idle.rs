//! What an idle pair costs (A5; liftbridge#313, KAFKA-3159, KAFKA-9731): two fetches a second whatever the number of
//! partitions, before and after segments rolled, and next to no processor time.
#![allow(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "figures for people; a panic fails the test"
)]

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use highwater_types::Program;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan};
use system_tests::tier::{Tier, tier};
use system_tests::wait;

const PARTITIONS: i32 = 100;
const WINDOW: Duration = Duration::from_secs(10);
/// The largest share of a core that an idle program takes in the tier `long`, by hand on a quiet machine (KAFKA-9731).
const SHARE_MAX: f64 = 0.02;
/// The same elsewhere, ten times the usual 1.4 %: a share of a core says as much of the machine as of the program. The very
/// same program, without optimisation, was seen to take 1.9 % and, hours later and nothing else running, 10 %.
const SHARE_MAX_ANYWHERE: f64 = 0.15;
/// How often its threads may wait in a second, on any machine: who works while idle wakes up. Usual are 20 to 32.
const WAITS_MAX: f64 = 100.0;
/// Two a second for the window, ± 10 %: polls of 500 ms. A machine that is slow to wake up makes fewer, never more.
const FETCHES: RangeInclusive<u64> = 18..=22;
const FETCHES_ANYWHERE: RangeInclusive<u64> = 10..=22;

/// How many fetches the agent has sent; it has one loop.
async fn fetches(agent: &Calls) -> u64 {
    let fetchers = agent.fetchers().await.fetchers;
    assert_eq!(fetchers.len(), 1, "one leader, one loop");
    fetchers[0].fetches.expect("loops count")
}

/// Measures an idle window. Nobody asks the programs anything meanwhile.
async fn idle_window(cluster: &Cluster, agent: &Calls, what: &str) {
    let used = || [cluster.leader(1), cluster.agent(2)].map(|server| server.process().usage());
    let (began, sent, before) = (Instant::now(), fetches(agent).await, used());
    wait::always("the window lasts", WINDOW, async || true).await;
    let (after, sent, window) = (used(), fetches(agent).await - sent, began.elapsed());
    let shares = [0, 1].map(|n| (after[n].cpu - before[n].cpu).as_secs_f64() / window.as_secs_f64());
    let waits = [0, 1].map(|n| after[n].waits.saturating_sub(before[n].waits) as f64 / window.as_secs_f64());
    println!(
        "{what}: {sent} fetches in {window:?}; shares of a core: {shares:.4?}, waits a second: {waits:.0?}"
    );
    assert!(window < WINDOW + Duration::from_millis(500), "the machine was too busy to measure: {window:?}");
    let (share_max, expected) =
        if tier() == Tier::Long { (SHARE_MAX, FETCHES) } else { (SHARE_MAX_ANYWHERE, FETCHES_ANYWHERE) };
    assert!(expected.contains(&sent), "{what}: {sent} fetches in {window:?}");
    for (server, n) in [(cluster.leader(1), 0), (cluster.agent(2), 1)] {
        assert!(waits[n] < WAITS_MAX, "{what}: {server} woke up {} times a second", waits[n]);
        assert!(shares[n] < share_max, "{what}: {server} used {} of a core", shares[n]);
    }
}

#[tokio::test]
async fn an_idle_follower_of_a_hundred_partitions_polls_twice_a_second_also_after_a_roll() {
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent);
    let cluster = plan.start().await;
    let (calls, agent) = (Calls::of(cluster.leader(1)), Calls::of(cluster.agent(2)));
    calls.until_nodes(2).await;
    let small = [("segment.bytes", "1024"), ("min.insync.replicas", "2")];
    calls.create_topic("t", PARTITIONS, &[1, 2], &small).await;
    calls.until_in_sync("t", 1).await;
    agent.until_followed_to("t", PARTITIONS, 0).await;
    idle_window(&cluster, &agent, "empty").await;

    for partition in 0..PARTITIONS {
        // The second batch does not fit into the segment of the first.
        assert_eq!(calls.append("t", partition, batch(5, 150)).await, 0);
        assert_eq!(calls.append("t", partition, batch(5, 150)).await, 5);
    }
    agent.until_followed_to("t", PARTITIONS, 10).await;
    let rolled = cluster.data_dir(2).join(format!("t-{}/00000000000000000005.log", PARTITIONS - 1));
    assert!(rolled.exists(), "the segments rolled");
    calls.until_in_sync("t", 1).await;
    idle_window(&cluster, &agent, "after a roll").await;
}
