//! The whole cluster goes down at once, as real processes, and comes back: what was acknowledged is there, or nobody leads
//! before a person says so.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use highwater_proto::v1;
use system_tests::calls::{Calls, batch, to};
use system_tests::cluster::{Cluster, Plan};
use system_tests::load::Load;
use system_tests::log_files::LogBytes;
use system_tests::power_loss::Unflushed;
use system_tests::tier::rounds;
use system_tests::traffic::Traffic;
use system_tests::{tool, wait};

const NODES: [i32; 3] = [1, 2, 3];
const TOPIC: &str = "t";
/// For how long nobody may lead: many times what a take-over takes.
const A_WHILE: Duration = Duration::from_secs(4);

/// Three nodes that have the topic, all in sync.
async fn cluster(plan: Plan, durability: &str) -> Cluster {
    cluster_with(plan, durability, &[]).await
}

async fn cluster_with(plan: Plan, durability: &str, properties: &[(&str, &str)]) -> Cluster {
    let cluster = plan.start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(3).await;
    let properties = [&[("durability", durability), ("min.insync.replicas", "2")], properties].concat();
    calls.create_topic(TOPIC, 1, &NODES, &properties).await;
    until_all_have_everything(&cluster).await;
    cluster
}

fn over_the_shim() -> Plan {
    NODES.into_iter().fold(Plan::new(), |plan, node| plan.node(node).with_power_loss(node))
}

fn plain() -> Plan {
    NODES.into_iter().fold(Plan::new(), Plan::node)
}

/// Who leads, as a node knows.
async fn leader(cluster: &Cluster) -> Option<i32> {
    for node in NODES {
        if let Some(topic) = Calls::of(cluster.leader(node)).topic(TOPIC).await {
            return topic.partitions.first()?.leader_id;
        }
    }
    None
}

/// Waits until all three are in sync and have what the leader has; says who that is.
async fn until_all_have_everything(cluster: &Cluster) -> i32 {
    wait::until("all three to have everything", wait::SOON, async || {
        let leader = leader(cluster).await?;
        Calls::of(cluster.leader(leader)).are_in_sync(TOPIC, 2).await.then_some(leader)
    })
    .await
}

fn directory(cluster: &Cluster, node: i32) -> PathBuf {
    cluster.data_dir(node).join(format!("{TOPIC}-0"))
}

fn lose_all_power(cluster: &mut Cluster, unflushed: impl Fn(i32) -> Unflushed) {
    cluster.kill_all(&NODES);
    for node in NODES {
        cluster.lose_power(node, unflushed(node));
    }
}

async fn loses_power_again_and_again(seed: Option<u64>) {
    let mut cluster = cluster(over_the_shim(), "fsync").await;
    let mut load = Load::start(&cluster, &NODES, TOPIC).await;
    for round in 0..u64::from(rounds(3, 30)) {
        load.goes_on().await;
        let unflushed = |node: i32| {
            seed.map_or(Unflushed::Lost, |seed| {
                Unflushed::Torn(seed + 10 * round + u64::from(node.unsigned_abs()))
            })
        };
        let old = leader(&cluster).await.expect("somebody leads");
        lose_all_power(&mut cluster, unflushed);
        // What only the old leader flushed shows as lost where it comes back when another leads.
        if round % 3 != 2 {
            let others: Vec<_> = NODES.into_iter().filter(|node| *node != old).collect();
            cluster.start_all(&others).await;
            until_another_leads(&cluster, &others).await;
            cluster.start_all(&[old]).await;
        } else {
            cluster.start_all(&NODES).await;
        }
        // By itself: nobody orders an election.
        load.goes_on().await;
        until_all_in_sync(&cluster).await;
    }
    load.end().await;
    let leader = until_all_have_everything(&cluster).await;
    let end = Traffic::new(cluster.leader(leader).channel(), TOPIC, 0).read_all(&load.history).await;
    load.history.assert_holds();
    let kept = LogBytes::read(&directory(&cluster, leader));
    assert_eq!((kept.end, kept.good), (end, kept.bytes.len()));
    for node in NODES {
        assert!(LogBytes::read(&directory(&cluster, node)).bytes == kept.bytes, "node {node}");
    }
}

async fn until_another_leads(cluster: &Cluster, others: &[i32]) {
    wait::until("another node to lead", wait::SOON, async || {
        let topic = Calls::of(cluster.leader(*others.first()?)).topic(TOPIC).await?;
        others.contains(&topic.partitions.first()?.leader_id?).then_some(())
    })
    .await;
}

async fn until_all_in_sync(cluster: &Cluster) {
    wait::until("all three in sync", wait::SOON, async || {
        let topic = Calls::of(cluster.leader(leader(cluster).await?)).topic(TOPIC).await?;
        (topic.partitions.first()?.isr.len() == NODES.len()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_fsync_a_cluster_without_power_comes_back_by_itself_with_all_that_was_acknowledged() {
    loses_power_again_and_again(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_fsync_a_cluster_whose_unflushed_writes_are_torn_comes_back_by_itself_too() {
    loses_power_again_and_again(Some(4271)).await;
}

/// Whether any node takes a record.
async fn is_written_to(cluster: &Cluster) -> bool {
    for node in NODES {
        let result =
            Calls::of(cluster.leader(node)).produce(v1::Acks::Leader, to(TOPIC, 0, batch(1, 10))).await;
        if result.error.is_none() {
            return true;
        }
    }
    false
}

/// All three lost power after some records were acknowledged under `page-cache`, and are up again.
async fn without_power_under_page_cache(properties: &[(&str, &str)]) -> Cluster {
    let mut cluster = cluster_with(over_the_shim(), "page-cache", properties).await;
    let calls = Calls::of(cluster.leader(leader(&cluster).await.expect("it is led")));
    for _ in 0..20 {
        let result = calls.produce(v1::Acks::All, to(TOPIC, 0, batch(1, 100))).await;
        assert_eq!(result.error, None);
    }
    lose_all_power(&mut cluster, |_| Unflushed::Lost);
    cluster.start_all(&NODES).await;
    cluster
}

async fn described(cluster: &Cluster) -> serde_json::Value {
    tool::run_json(cluster, &["topics", "describe", TOPIC]).await.code(0).line()["partitions"][0].clone()
}

/// Somebody leads uncleanly, and the others follow; what was passed over is told.
async fn until_led_uncleanly(cluster: &Cluster) -> i32 {
    wait::until("somebody to lead", wait::SOON, async || is_written_to(cluster).await.then_some(())).await;
    let leader = until_all_have_everything(cluster).await;
    until_all_in_sync(cluster).await;
    let partition = described(cluster).await;
    let passed_over = partition["unclean"]["passed_over"].as_array();
    assert_eq!(passed_over.map(Vec::len), Some(NODES.len()), "{partition}");
    assert_eq!(partition["withdrawn"], serde_json::json!([]), "all have new replicas");
    leader
}

/// Nobody knows any more whether it has everything that was acknowledged; a person decides, and is told what may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn under_page_cache_nobody_leads_after_a_loss_of_all_power_before_a_person_says_so() {
    let cluster = without_power_under_page_cache(&[]).await;
    wait::always("nobody leads", A_WHILE, async || !is_written_to(&cluster).await).await;
    let partition = described(&cluster).await;
    let withdrawn = partition["withdrawn"].as_array();
    assert_eq!(withdrawn.map(Vec::len), Some(NODES.len()), "each has said that it cannot lead: {partition}");

    // Whom to choose: all logs are told, although none is open.
    let lag = tool::run_json(&cluster, &["lag", TOPIC]).await.code(0).json();
    let ends: Vec<_> =
        lag.iter().map(|row| (row["replica"].as_i64(), row["log_end_offset"].as_i64())).collect();
    let held = |node: i32| LogBytes::read(&cluster.data_dir(node).join("t-0")).end;
    assert_eq!(ends, NODES.map(|node| (Some(node.into()), Some(held(node)))), "{lag:?}");

    // Nothing need be stopped for it.
    let done = tool::run(&cluster, &["elect", "t-0", "--unclean", "--node", "2"]).await;
    assert!(done.status.success() && done.text().contains("is lost"), "{}", done.text());
    assert_eq!(until_led_uncleanly(&cluster).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_page_cache_a_topic_that_allows_it_is_led_again_by_itself_after_a_loss_of_all_power() {
    let cluster = without_power_under_page_cache(&[("unclean.leader.election.enable", "true")]).await;
    until_led_uncleanly(&cluster).await;
}

/// The page cache outlives the programs.
#[tokio::test(flavor = "multi_thread")]
async fn under_page_cache_a_cluster_whose_programs_are_all_killed_comes_back_by_itself_with_everything() {
    let mut cluster = cluster(plain(), "page-cache").await;
    let mut load = Load::start(&cluster, &NODES, TOPIC).await;
    for _ in 0..rounds(2, 20) {
        load.goes_on().await;
        cluster.kill_all(&NODES);
        cluster.start_all(&NODES).await;
        load.goes_on().await;
    }
    load.end().await;
    let leader = until_all_have_everything(&cluster).await;
    Traffic::new(cluster.leader(leader).channel(), TOPIC, 0).read_all(&load.history).await;
    load.history.assert_holds();
}

/// Kafka 4.4 lost both copies here: whoever had lost its directory was elected, and the others cut what they had.
async fn nothing_is_lost_with_one_replicas(lose: fn(&Cluster, i32)) {
    let mut cluster = cluster(plain(), "fsync").await;
    for (is_leader, comes_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let what = format!("of the leader: {is_leader}, started first: {comes_first}");
        let leads = leader(&cluster).await.expect("it is led");
        let calls = Calls::of(cluster.leader(leads));
        for _ in 0..10 {
            assert_eq!(calls.produce(v1::Acks::All, to(TOPIC, 0, batch(3, 100))).await.error, None, "{what}");
        }
        until_all_have_everything(&cluster).await;
        let had = LogBytes::read(&directory(&cluster, leads)).bytes;
        cluster.kill_all(&NODES);
        let loser =
            if is_leader { leads } else { NODES.into_iter().find(|node| *node != leads).expect("three") };
        lose(&cluster, loser);

        let others: Vec<i32> = NODES.into_iter().filter(|node| *node != loser).collect();
        if comes_first {
            cluster.start_all(&[loser]).await;
            wait::always("it does not lead alone", A_WHILE / 2, async || {
                let result = Calls::of(cluster.leader(loser))
                    .produce(v1::Acks::Leader, to(TOPIC, 0, batch(1, 10)))
                    .await;
                result.error.is_some()
            })
            .await;
            cluster.start_all(&others).await;
        } else {
            cluster.start_all(&others).await;
            cluster.start_all(&[loser]).await;
        }
        until_all_have_everything(&cluster).await;
        for node in NODES {
            assert!(LogBytes::read(&directory(&cluster, node)).bytes == had, "{what}: node {node}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_partition_directory_is_gone_when_all_start_again_costs_nothing() {
    nothing_is_lost_with_one_replicas(|cluster, node| {
        fs::remove_dir_all(directory(cluster, node)).expect("it is there");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_empty_when_all_start_again_costs_nothing() {
    nothing_is_lost_with_one_replicas(|cluster, node| {
        fs::remove_dir_all(cluster.data_dir(node)).expect("it is there");
        fs::create_dir(cluster.data_dir(node)).expect("the place is ours");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_checkpoint_is_gone_when_all_start_again_costs_nothing() {
    nothing_is_lost_with_one_replicas(|cluster, node| {
        fs::remove_file(directory(cluster, node).join("checkpoint")).expect("it is there");
    })
    .await;
}
