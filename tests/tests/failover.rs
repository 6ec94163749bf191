//! Leaders that die or stop under load, as real processes: another in-sync node leads, nothing that was acknowledged is
//! missing, and nothing is there twice. Tests under load print for how long nothing was acknowledged; what that may be is not
//! held here, because the machine is shared.

#![allow(clippy::print_stdout, reason = "the gaps are figures for people")]

use std::time::{Duration, Instant};

use highwater_client::{Client, ClientConfig, Producer, ProducerConfig, ProducerRecord};
use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
#[cfg(feature = "etcd")]
use system_tests::etcd::Etcd;
use system_tests::load::{ENOUGH, Load};
use system_tests::log_files::LogBytes;
use system_tests::traffic::Traffic;
use system_tests::trio::{
    NODES, TOPIC, leader, leader_by, partition, three_nodes, three_nodes_with_topic,
    until_all_have_everything, until_all_in_sync, until_other_leader,
};
#[cfg(feature = "etcd")]
use system_tests::trio::{create_topic, three_nodes_by};
use system_tests::wait;

use self::holders::{Holders, watch_holders};

#[path = "failover/holders.rs"]
mod holders;

const KILLS: usize = 5;

/// Waits until so many records were acknowledged after the longest gap since `since`.
async fn until_acknowledged_again(load: &Load, since: Instant) -> Duration {
    wait::until("acknowledgements again", wait::SOON, async || {
        let (gap, after) = load.gap(since);
        (after > ENOUGH && gap > Duration::ZERO).then_some(gap)
    })
    .await
}

/// All replicas end where the leader ends, and hold what was acknowledged, in the same bytes.
async fn assert_nothing_is_lost(cluster: &Cluster, mut load: Load) {
    load.end().await;
    until_all_in_sync(cluster).await;
    until_all_have_everything(cluster).await;
    let leader = leader(cluster).await;
    let end = Traffic::new(cluster.leader(leader).channel(), TOPIC, 0).read_all(&load.history).await;
    let bytes = |node| LogBytes::read(&cluster.data_dir(node).join(format!("{TOPIC}-0"))).bytes;
    for node in NODES.into_iter().filter(|node| *node != leader) {
        Calls::of(cluster.agent(node)).until_followed_to(TOPIC, 1, end).await;
        Traffic::new(cluster.agent(node).channel(), TOPIC, 0).read_all(&load.history).await;
        assert!(bytes(node) == bytes(leader), "node {node} holds other bytes than the leader, node {leader}");
    }
    println!("{} records were acknowledged", load.history.acknowledged());
    load.history.assert_holds();
}

fn median(gaps: &mut [Duration]) -> Duration {
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

async fn kill_leaders(mut cluster: Cluster, what: &str) {
    let load = Load::start(&cluster, &NODES, TOPIC).await;
    let mut gaps = Vec::new();
    for _ in 0..KILLS {
        let old = leader(&cluster).await;
        let id: ServerId = (old, Program::LeaderSvc);
        let since = Instant::now();
        cluster.server_mut(id).kill();
        until_told_everywhere(&cluster, old).await;
        gaps.push(until_acknowledged_again(&load, since).await);
        cluster.start_and_wait(id).await;
        until_all_in_sync(&cluster).await;
    }
    println!("{what}: a killed leader: median {:?}, all {gaps:?}", median(&mut gaps.clone()));
    assert_nothing_is_lost(&cluster, load).await;
}

/// Waits until every program that runs names the same leader: all of them when they are asked for the topic, and each
/// leader-svc that does not lead when it is asked for records.
async fn until_told_everywhere(cluster: &Cluster, dead: i32) {
    let hint = async |node: i32| {
        let error = Calls::of(cluster.leader(node)).fetch_one(TOPIC, 0, 0).await.error?;
        let is_hint = error.code() == v1::ErrorCode::NotLeaderOrFollower;
        error.leader.filter(|_| is_hint)?.leader_id
    };
    wait::until("every program to name the next leader", wait::SOON, async || {
        let mut told = Vec::new();
        for node in NODES {
            told.push(partition(&Calls::of(cluster.agent(node))).await?.leader_id?);
            if node != dead {
                told.push(partition(&Calls::of(cluster.leader(node))).await?.leader_id?);
            }
        }
        let leader = *told.first()?;
        for node in NODES.into_iter().filter(|node| *node != dead && *node != leader) {
            told.push(hint(node).await?);
        }
        told.iter().all(|named| *named == leader && leader != dead).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_by_another_and_nothing_acknowledged_is_lost() {
    kill_leaders(three_nodes_with_topic("fsync").await, "fsync").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_of_a_cached_topic_is_followed_by_another_and_nothing_acknowledged_is_lost() {
    kill_leaders(three_nodes_with_topic("page-cache").await, "page-cache").await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn over_etcd_a_killed_leader_is_followed_by_another_and_nothing_acknowledged_is_lost() {
    let Some(etcd) = Etcd::start(1).await else { return };
    let over_etcd = |plan: Plan| {
        let programs = [Program::LeaderSvc, Program::FollowerAgent];
        programs.into_iter().fold(plan, |plan, program| plan.set(program, "coordination", etcd.target()))
    };
    let cluster = three_nodes_by(over_etcd).await;
    create_topic(&cluster, "fsync").await;
    kill_leaders(cluster, "fsync, over etcd").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_hands_over_and_ends_well() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster, &NODES, TOPIC).await;
    let mut gaps = Vec::new();
    for _ in 0..3 {
        let old = leader(&cluster).await;
        let id: ServerId = (old, Program::LeaderSvc);
        let since = Instant::now();
        let status = cluster.server_mut(id).terminate(Duration::from_secs(5)).await;
        assert_eq!(status.code(), Some(0), "{}", cluster.leader(old).output());
        let stopped = since.elapsed();
        until_other_leader(&cluster, old).await;
        let gap = until_acknowledged_again(&load, since).await;
        let said = cluster.leader(old).output();
        assert!(said.contains("gave the leadership up"), "node {old} resigned:\n{said}");
        println!("node {old} stopped after {stopped:?}");
        gaps.push(gap);
        cluster.start_and_wait(id).await;
        until_all_in_sync(&cluster).await;
    }
    println!("a leader that is told to stop: median {:?}, all {gaps:?}", median(&mut gaps.clone()));
    assert_nothing_is_lost(&cluster, load).await;
}

/// Its port accepts, but it does nothing: only its session tells. When it goes on it does not know yet that it leads no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_is_replaced_when_its_session_is_over_and_acknowledges_nothing_afterwards() {
    let cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster, &NODES, TOPIC).await;
    let old = leader(&cluster).await;
    let since = Instant::now();
    cluster.leader(old).process().freeze();
    let others: Vec<i32> = NODES.into_iter().filter(|node| *node != old).collect();
    wait::until("another leader", wait::SOON, async || {
        leader_by(&cluster, &others).await.filter(|leader| *leader != old)
    })
    .await;
    let gap = until_acknowledged_again(&load, since).await;
    println!("a frozen leader: {gap:?}");
    cluster.leader(old).process().thaw();
    assert_nothing_is_lost(&cluster, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_returns_cuts_what_nobody_else_had() {
    let mut cluster = three_nodes().await;
    let calls = Calls::of(cluster.leader(1));
    calls.create_topic(TOPIC, 1, &NODES, &[("durability", "page-cache")]).await;
    until_all_in_sync(&cluster).await;
    assert_eq!(leader(&cluster).await, 1, "the preferred one");
    calls.append(TOPIC, 0, batch(10, 100)).await;
    calls.until_in_sync(TOPIC, 2).await;

    for node in [2, 3] {
        cluster.agent(node).process().freeze();
    }
    for _ in 0..5 {
        calls.append(TOPIC, 0, batch(10, 200)).await;
    }
    let log = |cluster: &Cluster, node| LogBytes::read(&cluster.data_dir(node).join(format!("{TOPIC}-0")));
    assert_eq!(log(&cluster, 1).end, 60, "it has what nobody else has");
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    for node in [2, 3] {
        cluster.agent(node).process().thaw();
    }
    let next = until_other_leader(&cluster, 1).await;
    let calls = Calls::of(cluster.leader(next));
    // What answered their parked fetches they may have.
    let others_ended = calls.append(TOPIC, 0, batch(7, 100)).await;
    assert!((10..60).contains(&others_ended), "{others_ended}");
    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    until_all_have_everything(&cluster).await;
    let kept = log(&cluster, next);
    assert_eq!((kept.end, kept.good), (others_ended + 7, kept.bytes.len()));
    for node in NODES {
        assert!(log(&cluster, node).bytes == kept.bytes, "node {node}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_a_node_never_hold_a_log_at_once() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster, &NODES, TOPIC).await;
    let mut held = Holders::default();
    for _ in 0..KILLS {
        let old = leader(&cluster).await;
        let others: Vec<i32> = NODES.into_iter().filter(|node| *node != old).collect();
        cluster.server_mut((old, Program::LeaderSvc)).kill();
        let taken = async {
            wait::until("another leader", wait::SOON, async || {
                leader_by(&cluster, &others).await.filter(|leader| *leader != old)
            })
            .await
        };
        watch_holders(&cluster, &others, taken, &mut held).await;
        cluster.start((old, Program::LeaderSvc));
        watch_holders(&cluster, &NODES, until_all_in_sync(&cluster), &mut held).await;
    }
    println!("{held:?}");
    assert!(held.by_leader_svc > 0 && held.by_agent > 0, "what is looked for can be seen: {held:?}");
    assert_nothing_is_lost(&cluster, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_agent_is_dead_takes_over_and_one_whose_agent_hangs_leaves_it_to_another() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster, &NODES, TOPIC).await;
    assert_eq!(leader(&cluster).await, 1, "the preferred one");
    cluster.agent(2).process().freeze();
    let since = Instant::now();
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    assert_eq!(until_other_leader(&cluster, 1).await, 3, "node 2 cannot have its log");
    println!("another node led {:?} after the death, beside an agent that hung", since.elapsed());
    // It is a follower in sync until it has lagged for long enough: nothing is acknowledged without it.
    cluster.agent(2).process().thaw();
    until_acknowledged_again(&load, since).await;
    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    until_all_in_sync(&cluster).await;

    cluster.server_mut((1, Program::FollowerAgent)).kill();
    cluster.server_mut((2, Program::LeaderSvc)).kill();
    let since = Instant::now();
    cluster.server_mut((3, Program::LeaderSvc)).kill();
    assert_eq!(until_other_leader(&cluster, 3).await, 1, "no other leader-svc runs");
    println!("over a dead agent: {:?}", until_acknowledged_again(&load, since).await);
    cluster.start_and_wait((1, Program::FollowerAgent)).await;
    cluster.start_and_wait((2, Program::LeaderSvc)).await;
    cluster.start_and_wait((3, Program::LeaderSvc)).await;
    assert_nothing_is_lost(&cluster, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_the_next_leader_by_itself() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let bootstrap = vec![cluster.leader(3).address().into()];
    let client = Client::new(ClientConfig::new(bootstrap)).expect("a node to ask");
    let producer = Producer::new(client, ProducerConfig::default()).expect("good settings");
    let topic = TOPIC.parse().expect("a name");
    let send = async |value: &'static str| {
        let sent = producer.send(&topic, ProducerRecord::of_value(value)).await.expect("there is room");
        sent.wait().await.expect("delivered").offset.map(|offset| offset.get())
    };
    assert_eq!(send("before").await, Some(0));
    assert_eq!(leader(&cluster).await, 1, "the preferred one");
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    assert_eq!(send("after a death").await, Some(1));
    let next = leader(&cluster).await;
    let status = cluster.server_mut((next, Program::LeaderSvc)).terminate(Duration::from_secs(5)).await;
    assert!(status.success(), "node {next} ended with {status}");
    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    assert_eq!(send("after a hand-over").await, Some(2));
}

/// As `deploy/` has it: one leader-svc, and agents on nodes of their own.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_leader_svc_of_a_cluster_keeps_its_leadership() {
    let mut cluster = Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::FollowerAgent)
        .program(3, Program::FollowerAgent)
        .start()
        .await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(3).await;
    calls.create_topic(TOPIC, 1, &NODES, &[]).await;
    calls.until_in_sync(TOPIC, 2).await;
    let id = (1, Program::LeaderSvc);
    let status = cluster.server_mut(id).terminate(Duration::from_secs(5)).await;
    assert_eq!(status.code(), Some(0), "{}", cluster.leader(1).output());
    let said = cluster.leader(1).output();
    assert!(!said.contains("the leadership up"), "there is nobody to give it to:\n{said}");
    let found = partition(&Calls::of(cluster.agent(2))).await.expect("the agent answers");
    assert_eq!(found.leader_id, Some(1), "nobody else can lead");
    cluster.start_and_wait(id).await;
    calls.append(TOPIC, 0, batch(1, 10)).await;
    calls.until_in_sync(TOPIC, 2).await;
}

/// Kafka 4.4 lost both copies here: the leader came back first, with nothing, and the others cut what they had.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_directory_is_gone_leaves_the_leadership_to_who_has_the_records() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let calls = Calls::of(cluster.leader(1));
    assert_eq!(leader(&cluster).await, 1, "the preferred one");
    calls.append(TOPIC, 0, batch(30, 100)).await;
    calls.until_in_sync(TOPIC, 2).await;
    // First who could take over, last whom the leader could miss: the record stays as it is.
    let leaders = [2, 3, 1].map(|node| (node, Program::LeaderSvc));
    for id in leaders.into_iter().chain(NODES.map(|node| (node, Program::FollowerAgent))) {
        cluster.server_mut(id).kill();
    }
    let directory = |cluster: &Cluster, node| cluster.data_dir(node).join(format!("{TOPIC}-0"));
    let had = LogBytes::read(&directory(&cluster, 2)).bytes;
    std::fs::remove_dir_all(directory(&cluster, 1)).expect("it is there");
    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    wait::until("the leadership to be given up", wait::SOON, async || {
        partition(&Calls::of(cluster.leader(1))).await.filter(|found| found.leader_id.is_none()).map(drop)
    })
    .await;
    cluster.start_and_wait((1, Program::FollowerAgent)).await;
    for node in [2, 3] {
        cluster.start((node, Program::LeaderSvc));
        cluster.start((node, Program::FollowerAgent));
    }
    until_other_leader(&cluster, 1).await;
    until_all_have_everything(&cluster).await;
    for node in NODES {
        assert!(LogBytes::read(&directory(&cluster, node)).bytes == had, "node {node} has what there was");
    }
}
