//! Replicas that are moved between real nodes by the command line: added ones catch up and join, removed ones leave and delete
//! their files, nothing that was acknowledged is missing meanwhile (KIP-455, design.md 6.12).
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::sync::Arc;
use std::time::Duration;

use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{Program, WallTime};
use serde_json::Value;
use system_tests::calls::Calls;
use system_tests::cluster::{Cluster, Plan};
use system_tests::history::{History, Outcome};
use system_tests::load::Load;
use system_tests::log_files::LogBytes;
use system_tests::tool::{BOUND, run_json};
use system_tests::traffic::Traffic;
use system_tests::{throttles, wait};

const TOPIC: &str = "orders";

/// What a throttled move has to carry: at 100 kB/s it takes far longer than what a test does meanwhile.
const SIZE: usize = 5_000_000;
/// In so many records, each a batch of its own: a leader tells bytes as exactly as what was appended at a time.
const RECORDS: usize = 250;

/// `highwater reassign …`, which has to succeed.
async fn reassign(cluster: &Cluster, args: &[&str]) -> Vec<Value> {
    let done = run_json(cluster, &[&["reassign"], args].concat()).await;
    assert_eq!(done.status.code(), Some(0), "{args:?}: {}", done.err);
    done.json()
}

/// Nodes with both programs that know each other, over this store or one in a directory, and a topic with these replicas.
async fn nodes(store: Option<&str>, count: i32, replicas: &[i32], properties: &[(&str, &str)]) -> Cluster {
    let mut plan = (1..=count).fold(Plan::new(), Plan::node);
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        plan = store.into_iter().fold(plan, |plan, store| plan.set(program, "coordination", store));
    }
    let cluster = plan.start().await;
    let all = usize::try_from(count).expect("a few");
    for node in 1..=count {
        let calls = Calls::of(cluster.leader(node));
        wait::until(&format!("node {node} to see the others"), wait::SOON, async || {
            let request = v1::DescribeClusterRequest::default();
            let answer = calls.cluster.clone().describe_cluster(request).await.ok()?.into_inner();
            let live = [answer.live_leader_svcs, answer.live_follower_agents];
            live.iter().all(|nodes| nodes.len() == all).then_some(())
        })
        .await;
    }
    let calls = Calls::of(cluster.leader(1));
    calls.create_topic(TOPIC, 1, replicas, properties).await;
    until(&cluster, "all in sync", |found| found.isr.len() == replicas.len()).await;
    cluster
}

/// Waits until the partition's record is as wanted, as any node knows it.
async fn until(cluster: &Cluster, what: &str, is_so: impl Fn(&v1::Partition) -> bool) -> v1::Partition {
    wait::until(what, BOUND, async || {
        for server in cluster.leaders() {
            let topic = Calls::of(server).topic(TOPIC).await;
            let found = topic.and_then(|topic| topic.partitions.into_iter().next());
            if let Some(found) = found.filter(&is_so) {
                return Some(found);
            }
        }
        None
    })
    .await
}

fn has_replica(cluster: &Cluster, node: i32) -> bool {
    cluster.data_dir(node).join(format!("{TOPIC}-0")).exists()
}

async fn until_deleted(cluster: &Cluster, node: i32) {
    wait::until(&format!("node {node} to delete its replica"), wait::SOON, async || {
        (!has_replica(cluster, node)).then_some(())
    })
    .await;
}

/// The replicas are these and no others; all hold what was acknowledged, in the same bytes.
async fn assert_moved(cluster: &Cluster, replicas: &[i32], mut load: Load) {
    load.goes_on().await;
    load.end().await;
    let found = until(cluster, "the replicas", |found| {
        found.replicas == replicas && found.isr.len() == replicas.len() && found.leader_id.is_some()
    })
    .await;
    assert!(found.adding.is_empty() && found.removing.is_empty(), "{found:?}");
    let leader = found.leader_id.expect("just looked");
    Calls::of(cluster.leader(leader)).until_in_sync(TOPIC, replicas.len() - 1).await;
    let end = Traffic::new(cluster.leader(leader).channel(), TOPIC, 0).read_all(&load.history).await;
    let bytes = |node| LogBytes::read(&cluster.data_dir(node).join(format!("{TOPIC}-0"))).bytes;
    for node in replicas.iter().copied().filter(|node| *node != leader) {
        Calls::of(cluster.agent(node)).until_followed_to(TOPIC, 1, end).await;
        assert!(bytes(node) == bytes(leader), "node {node} holds other bytes than the leader, node {leader}");
    }
    load.history.assert_holds();
}

#[tokio::test]
async fn a_replica_is_added_and_another_removed_under_load_without_a_missing_record() {
    let cluster = nodes(None, 4, &[1, 2, 3], &[("min.insync.replicas", "2")]).await;
    let load = Load::start(&cluster, &[1, 2, 3, 4], TOPIC).await;
    let rows = reassign(&cluster, &["orders:0", "--replicas", "1,2,4", "--wait=60s"]).await;
    assert_eq!(
        (&rows[0]["adding"], &rows[0]["removing"]),
        (&serde_json::json!([4]), &serde_json::json!([3]))
    );
    until_deleted(&cluster, 3).await;
    assert_moved(&cluster, &[1, 2, 4], load).await;
    assert!(reassign(&cluster, &["list"]).await.is_empty(), "nothing is being moved any more");
}

/// A leader whose own replica is removed; its successor ends the move.
async fn move_a_leader(store: Option<&str>) {
    let cluster = nodes(store, 4, &[1, 2, 3], &[("min.insync.replicas", "2")]).await;
    until(&cluster, "node 1 to lead", |found| found.leader_id == Some(1)).await;
    let load = Load::start(&cluster, &[1, 2, 3, 4], TOPIC).await;
    reassign(&cluster, &[TOPIC, "--replicas", "2,3,4", "--wait=60s"]).await;
    let said = cluster.leader(1).output();
    assert!(said.contains("hands the leadership over: this node's replica is removed"), "{said}");
    until_deleted(&cluster, 1).await;
    assert_moved(&cluster, &[2, 3, 4], load).await;
}

#[tokio::test]
async fn a_leader_that_is_removed_hands_over_first() {
    move_a_leader(None).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_leader_that_is_removed_hands_over_first_over_etcd_too() {
    let Some(etcd) = system_tests::etcd::Etcd::start(1).await else { return };
    move_a_leader(Some(&etcd.target())).await;
}

/// A topic that cannot be on other nodes soon, because what they catch up with is throttled, and what is in it.
async fn throttled(count: i32, replicas: &[i32]) -> (Cluster, Arc<History>) {
    let properties = [("durability", "page-cache"), ("min.insync.replicas", "1")];
    let cluster = nodes(None, count, replicas, &properties).await;
    let (calls, history) = (Calls::of(cluster.leader(1)), Arc::<History>::default());
    let (partition, size) = (format!("{TOPIC}-0"), SIZE / RECORDS);
    for number in 0..RECORDS {
        let value = format!("{number:0size$}");
        history.attempt(&partition, value.as_bytes());
        let mut builder = BatchBuilder::new(Compression::None);
        builder.append(WallTime::from_millis(1000), None, Some(value.as_bytes()), &[]).expect("small");
        let batch = builder.build().expect("a batch has records");
        let offset = calls.append(TOPIC, 0, batch.to_vec()).await;
        history.outcome(&partition, value.as_bytes(), Outcome::Acknowledged(offset));
    }
    calls.until_in_sync(TOPIC, replicas.len() - 1).await;
    let rate = v1::SetReplicationThrottleRequest { leader_rate: "100kB/s".into(), ..Default::default() };
    throttles::set(&calls, rate).await;
    (cluster, history)
}

/// Every leader-svc may send as fast as it can.
async fn unthrottle(cluster: &Cluster, through: i32) {
    let request = v1::ClearReplicationThrottleRequest::default();
    let cleared =
        Calls::of(cluster.leader(through)).cluster.clone().clear_replication_throttle(request).await;
    cleared.expect("the throttle is cleared");
}

#[tokio::test]
async fn a_move_under_a_throttle_shows_how_far_it_is_and_when_it_will_be_done() {
    let (cluster, _) = throttled(2, &[1]).await;
    let done = run_json(&cluster, &["reassign", TOPIC, "--replicas", "1,2", "--wait=5s"]).await;
    assert_eq!(done.status.code(), Some(1), "it takes longer: {}", done.err);
    let lines: Vec<&str> = done.err.lines().filter(|line| line.starts_with("orders-0 to node 2: ")).collect();
    assert!(lines.iter().any(|line| line.contains("kB/s, ") && line.ends_with(" left")), "{lines:?}");
    assert!(done.err.contains("not done in time: orders-0 to node 2: "), "{}", done.err);

    let rows = wait::until("a pace", wait::SOON, async || {
        let rows = reassign(&cluster, &["list", TOPIC]).await;
        rows[0]["left_ms"].is_number().then_some(rows)
    })
    .await;
    let row = &rows[0];
    assert_eq!(
        (&row["added"], &row["in_sync"], &row["leader"]),
        (&2.into(), &false.into(), &1.into()),
        "{row}"
    );
    let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
    assert!((50_000..=200_000).contains(&number("bytes_per_second")), "{row}");
    assert!(number("lag_records") > 0 && number("bytes_held") > 0, "{row}");
    let all = number("bytes_held") + number("bytes_left");
    assert!(all.abs_diff(SIZE as u64) < 100_000, "{row}");
    // At about 100 kB/s.
    let expected = number("bytes_left") / 100;
    assert!((expected / 2..=expected * 2).contains(&number("left_ms")), "{row}");
    let agent = v1::ListReassignmentsRequest::default();
    let told = Calls::of(cluster.agent(2)).cluster.clone().list_reassignments(agent).await;
    let told = told.expect("an agent knows the record").into_inner().reassignments;
    assert_eq!((&told[0].target, told[0].adding[0].bytes_left), (&vec![1, 2], None), "it does not lead");
    let topic = run_json(&cluster, &["topics", "describe", TOPIC]).await.json();
    assert_eq!(topic[0]["partitions"][0]["adding"], serde_json::json!([2]), "{topic:?}");

    unthrottle(&cluster, 1).await;
    reassign(&cluster, &[TOPIC, "--replicas", "1,2", "--wait=60s"]).await;
    until(&cluster, "two in sync", |found| found.isr.len() == 2 && found.adding.is_empty()).await;
}

#[tokio::test]
async fn a_move_that_is_cancelled_midway_leaves_the_replicas_of_before() {
    let (cluster, history) = throttled(3, &[1, 2]).await;
    let load = Load::after(history, &cluster, &[1, 2], TOPIC).await;
    reassign(&cluster, &["orders:0", "--replicas", "3,1"]).await;
    wait::until("node 3 to follow", wait::SOON, async || has_replica(&cluster, 3).then_some(())).await;
    wait::always("node 2 keeps what it has until node 3 is in sync", Duration::from_secs(2), async || {
        has_replica(&cluster, 2)
    })
    .await;
    let rows = reassign(&cluster, &["orders:0", "--cancel"]).await;
    assert_eq!(rows[0]["adding"], serde_json::json!([]), "{rows:?}");
    until_deleted(&cluster, 3).await;
    assert_moved(&cluster, &[1, 2], load).await;
    let again = run_json(&cluster, &["reassign", "orders:0", "--cancel"]).await;
    assert_eq!(again.status.code(), Some(1));
    assert!(
        again.json()[0]["error"].as_str().is_some_and(|why| why.contains("no reassignment is under way"))
    );
}

#[tokio::test]
async fn the_replication_factor_goes_from_one_to_three_and_back() {
    let cluster = nodes(None, 3, &[1], &[]).await;
    let load = Load::start(&cluster, &[1, 2, 3], TOPIC).await;
    reassign(&cluster, &[TOPIC, "--replicas", "1,2,3", "--wait=60s"]).await;
    until(&cluster, "three in sync", |found| found.isr.len() == 3).await;
    load.goes_on().await;
    // To one that does not lead.
    reassign(&cluster, &[TOPIC, "--replicas", "3", "--wait=60s"]).await;
    for gone in [1, 2] {
        until_deleted(&cluster, gone).await;
    }
    assert_moved(&cluster, &[3], load).await;
}

#[tokio::test]
async fn a_move_goes_on_when_its_leader_is_killed_in_the_middle_of_it() {
    let (mut cluster, history) = throttled(4, &[1, 2, 3]).await;
    let load = Load::after(history, &cluster, &[1, 2, 3, 4], TOPIC).await;
    reassign(&cluster, &["orders:0", "--replicas", "2,3,4"]).await;
    wait::until("node 4 to follow", wait::SOON, async || has_replica(&cluster, 4).then_some(())).await;
    cluster.server_mut((1, Program::LeaderSvc)).kill();
    let found =
        until(&cluster, "another leader", |found| found.leader_id.is_some_and(|leader| leader != 1)).await;
    assert_eq!((found.adding, found.removing), (vec![4], vec![1]), "the record keeps the move");
    unthrottle(&cluster, 2).await;
    until(&cluster, "the end of the move", |found| found.replicas == [2, 3, 4]).await;
    // Its agent deletes what its leader-svc held.
    until_deleted(&cluster, 1).await;
    cluster.start_and_wait((1, Program::LeaderSvc)).await;
    assert_moved(&cluster, &[2, 3, 4], load).await;
    assert!(!has_replica(&cluster, 1));
}

#[tokio::test]
async fn a_node_that_was_down_deletes_the_replica_that_was_taken_from_it_when_it_is_back() {
    let mut cluster = nodes(None, 3, &[1, 2, 3], &[]).await;
    let load = Load::start(&cluster, &[1, 2, 3], TOPIC).await;
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        cluster.server_mut((3, program)).kill();
    }
    reassign(&cluster, &[TOPIC, "--replicas", "1,2", "--wait=60s"]).await;
    assert!(has_replica(&cluster, 3), "nobody deletes it for the node");
    cluster.start_and_wait((3, Program::FollowerAgent)).await;
    until_deleted(&cluster, 3).await;
    assert_moved(&cluster, &[1, 2], load).await;
}

#[tokio::test]
async fn replicas_that_cannot_be_are_refused_with_the_reason() {
    let cluster = nodes(None, 2, &[1, 2], &[]).await;
    let before = until(&cluster, "its record", |_| true).await;
    for (args, why) in [
        (&["orders:0", "--replicas", "1,9"][..], "node 9 is not registered; the cluster's nodes are 1, 2"),
        (&["orders:0", "--replicas", "1,1"], "replicas must be distinct"),
        (&["orders:0", "--cancel"], "no reassignment is under way"),
    ] {
        let done = run_json(&cluster, &[&["reassign"], args].concat()).await;
        assert_eq!(done.status.code(), Some(1), "{args:?}: {}", done.err);
        assert!(done.json()[0]["error"].as_str().is_some_and(|told| told.contains(why)), "{:?}", done.json());
    }
    for (args, code, why) in [
        (&["orders:7", "--replicas", "1"][..], 2, "there is no orders:7: the topic has 1 partitions"),
        (&["nowhere", "--replicas", "1"], 1, "topic 'nowhere' is not known"),
        (&["orders"], 2, "--replicas"),
        (&["orders", "--cancel"], 1, "no partition of orders is being moved"),
    ] {
        let done = run_json(&cluster, &[&["reassign"], args].concat()).await;
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", done.err);
        assert!(done.err.contains(why), "{args:?}: {}", done.err);
    }
    reassign(&cluster, &["orders:0", "--replicas", "1,2"]).await;
    let after = until(&cluster, "its record", |_| true).await;
    assert_eq!(after.partition_epoch, before.partition_epoch, "nothing was changed by all that");

    // An agent names a node that can.
    let request = v1::ReassignReplicasRequest {
        partitions: vec![v1::ReplicaAssignment {
            topic: TOPIC.into(),
            partition: Some(0),
            replicas: vec![1],
            ..Default::default()
        }],
    };
    let refused = Calls::of(cluster.agent(2)).cluster.clone().reassign_replicas(request).await.unwrap_err();
    assert!(refused.message().contains("ask a leader-svc"), "{refused:?}");
}
