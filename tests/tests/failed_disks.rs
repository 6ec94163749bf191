//! Disks that fail below a pair of nodes, as real processes: the error is named, other partitions go on, nothing that was
//! acknowledged is lost, and the replica is back once the cause is gone. A leader whose disk failed leads no more.

use std::fs;
use std::path::PathBuf;

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, shape, to};
use system_tests::cluster::{Cluster, Plan};
use system_tests::disk::{ReadOnly, SmallDisk};
use system_tests::load::Load;
use system_tests::log_files::{LogBytes, base_offset, flip, segments};
use system_tests::traffic::Traffic;
use system_tests::{log_dump, wait};

const MIB: u64 = 1 << 20;
const NODES: [i32; 2] = [1, 2];
/// A batch of the records below: three of them fill a segment of 4 KiB.
const RECORD_BYTES: usize = 1000;

fn directory(cluster: &Cluster, node: i32, topic: &str) -> PathBuf {
    cluster.data_dir(node).join(format!("{topic}-0"))
}

/// Node 1 leads `t`, node 2 leads `other`; both have both.
async fn two_topics(plan: Plan, segment_bytes: &str) -> Cluster {
    let cluster = plan.start().await;
    let calls = Calls::of(cluster.leader(1));
    wait::until("both nodes to live", wait::SOON, async || {
        let request = v1::DescribeClusterRequest::default();
        let answer = calls.cluster.clone().describe_cluster(request).await.ok()?.into_inner();
        (answer.live_leader_svcs.len() == 2 && answer.live_follower_agents.len() == 2).then_some(())
    })
    .await;
    for (topic, replicas) in [("t", [1, 2]), ("other", [2, 1])] {
        calls.create_topic(topic, 1, &replicas, &[("segment.bytes", segment_bytes)]).await;
        let leader = Calls::of(cluster.leader(until_led(&cluster, topic).await));
        leader.until_in_sync(topic, 1).await;
    }
    cluster
}

async fn until_led(cluster: &Cluster, topic: &str) -> i32 {
    wait::until(&format!("{topic} to be led"), wait::SOON, async || led_by(cluster, topic).await).await
}

/// Who leads, as node 2 knows.
async fn led_by(cluster: &Cluster, topic: &str) -> Option<i32> {
    Calls::of(cluster.leader(2)).topic(topic).await?.partitions.first()?.leader_id
}

/// A record of the other topic is acknowledged by everybody who is in sync.
async fn other_goes_on(cluster: &Cluster) {
    let calls = Calls::of(cluster.leader(2));
    wait::until("the other topic to go on", wait::SOON, async || {
        let result = calls.produce(v1::Acks::All, to("other", 0, batch(1, 10))).await;
        result.error.is_none().then_some(())
    })
    .await;
}

/// The disk below node 1 fails while it leads: node 2 leads instead, and node 1 says why.
async fn moves_away(cluster: &Cluster, load: &Load, error: &str) {
    wait::until("node 2 to lead", wait::SOON, async || (led_by(cluster, "t").await? == 2).then_some(()))
        .await;
    load.goes_on().await;
    other_goes_on(cluster).await;
    assert_eq!(led_by(cluster, "other").await, Some(2));
    let said = cluster.leader(1).output();
    assert!(said.contains(error), "{said}");
}

/// Once the cause is gone node 1 is in sync again, with all that was acknowledged.
async fn heals(cluster: &Cluster, mut load: Load) {
    load.goes_on().await;
    load.end().await;
    let calls = Calls::of(cluster.leader(2));
    calls.until_in_sync("t", 1).await;
    Traffic::new(cluster.leader(2).channel(), "t", 0).read_all(&load.history).await;
    load.history.assert_holds();
    let bytes = NODES.map(|node| LogBytes::read(&directory(cluster, node, "t")).bytes);
    assert!(bytes[0] == bytes[1], "the logs are identical");
    other_goes_on(cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_directory_cannot_be_written_is_followed_by_another_and_comes_back() {
    // Its agent cannot open the log either; the new leader hears of it long before node 1 would leave for its lag, 30 s.
    let plan = Plan::new().node(1).node(2);
    let cluster = two_topics(plan, "4096").await;
    let load = Load::start(&cluster, &NODES, "t").await;
    let read_only = ReadOnly::new(&directory(&cluster, 1, "t"));
    moves_away(&cluster, &load, "Read-only file system").await;
    drop(read_only);
    heals(&cluster, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_on_a_full_disk_of_two_mib_is_followed_by_another_and_comes_back() {
    let plan = Plan::new().node(1).node(2);
    let disk = SmallDisk::mount(&plan.data_dir(1), 2 * MIB);
    let cluster = two_topics(plan, "262144").await;
    let load = Load::start(&cluster, &NODES, "t").await;
    disk.fill();
    moves_away(&cluster, &load, "No space left").await;
    disk.free();
    heals(&cluster, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_on_a_full_disk_of_two_mib_holds_nobody_up_and_comes_back() {
    let plan = Plan::new().node(1).node(2);
    let disk = SmallDisk::mount(&plan.data_dir(1), 2 * MIB);
    let cluster = two_topics(plan, "262144").await;
    // Node 2 leads both, so that node 1 follows only.
    cluster.leader(1).process().freeze();
    wait::until("node 2 to lead", wait::SOON, async || (led_by(&cluster, "t").await? == 2).then_some(()))
        .await;
    cluster.leader(1).process().thaw();
    let load = Load::start(&cluster, &NODES, "t").await;
    disk.fill();
    let agent = Calls::of(cluster.agent(1));
    wait::until("the failure to be reported", wait::SOON, async || {
        let row = agent.followed().await.remove(&("t".to_owned(), 0))?;
        (row.state() == v1::FetchState::Failed && row.reason.contains("No space left")).then_some(())
    })
    .await;
    // Long before it would for its lag, 30 s: it says so.
    wait::until("it to be out of the in-sync set", wait::SOON, async || {
        let topic = Calls::of(cluster.leader(2)).topic("t").await?;
        (topic.partitions.first()?.isr.len() == 1).then_some(())
    })
    .await;
    load.goes_on().await;
    other_goes_on(&cluster).await;
    disk.free();
    heals(&cluster, load).await;
}

/// Only readers of a closed segment meet it. It is told with its place, and the follower reads the records from its leader
/// again, without a restart: under a new incarnation, because it had lost what it had acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_a_followers_closed_segment_is_named_to_its_reader_and_repaired() {
    let cluster = two_topics(Plan::new().node(1).node(2), "4096").await;
    let leader = Calls::of(cluster.leader(1));
    for offset in 0..40 {
        assert_eq!(leader.append("t", 0, batch(1, RECORD_BYTES)).await, offset);
    }
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 1, 40).await;
    let before = incarnation(&leader).await;
    let all = segments(&directory(&cluster, 2, "t"));
    let segment = all.get(all.len() / 2).expect("there are many").clone();
    let (base, size) = (base_offset(&segment), batch(1, RECORD_BYTES).len());
    flip(&segment, size + 500);

    let met = agent.fetch_one("t", 0, base + 1).await.error;
    assert_eq!(code(met.as_ref()), Some(v1::ErrorCode::DataLoss));
    let message = met.expect("an error").message;
    for place in [format!("offset {}", base + 1), format!("byte {size} of segment {base}")] {
        assert!(message.contains(&place), "{message}");
    }
    for offset in (0..40).filter(|offset| *offset != base + 1) {
        let fetched = agent.fetch_one("t", 0, offset).await;
        assert_eq!(
            (fetched.error, shape(&fetched.records).first().map(|batch| batch.0)),
            (None, Some(offset))
        );
    }
    assert_eq!(leader.fetch_one("t", 0, base + 1).await.error, None, "the leader has it");
    other_goes_on(&cluster).await;

    wait::until("the same read to succeed", wait::SOON, async || {
        agent.fetch_one("t", 0, base + 1).await.error.is_none().then_some(())
    })
    .await;
    let said = cluster.agent(2).output();
    let damage = format!("offsets [{}, {}) are damaged", base + 1, base + 2);
    for what in [&damage, "incarnation renewed"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let bytes = NODES.map(|node| LogBytes::read(&directory(&cluster, node, "t")).bytes);
    assert!(bytes[0] == bytes[1], "the logs are identical");
    leader.until_in_sync("t", 1).await;
    assert_ne!(incarnation(&leader).await, before, "it had lost what it had acknowledged");
    assert_eq!(leader.append("t", 0, batch(1, RECORD_BYTES)).await, 40);
    agent.until_followed_to("t", 1, 41).await;
    let (good, findings) = log_dump::verify(&directory(&cluster, 2, "t"));
    assert!(good, "{findings:?}");
}

/// Node 2's, by which it is in sync.
async fn incarnation(leader: &Calls) -> String {
    wait::until("node 2 to be in sync", wait::SOON, async || {
        let isr = leader.topic("t").await?.partitions.first()?.isr.clone();
        isr.into_iter().find(|member| member.node_id == Some(2)).map(|member| member.incarnation)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_segment_that_a_follower_lacks_when_it_starts_is_read_again() {
    let mut cluster = two_topics(Plan::new().node(1).node(2), "4096").await;
    let leader = Calls::of(cluster.leader(1));
    for offset in 0..40 {
        assert_eq!(leader.append("t", 0, batch(1, RECORD_BYTES)).await, offset);
    }
    Calls::of(cluster.agent(2)).until_followed_to("t", 1, 40).await;
    let all = segments(&directory(&cluster, 2, "t"));
    let segment = all.get(all.len() / 2).expect("there are many").clone();
    cluster.server_mut((2, Program::FollowerAgent)).kill();
    fs::remove_file(&segment).expect("it is there");
    cluster.start_and_wait((2, Program::FollowerAgent)).await;
    wait::until("the logs to be identical", wait::SOON, async || {
        let bytes = NODES.map(|node| LogBytes::read(&directory(&cluster, node, "t")).bytes);
        (bytes[0] == bytes[1]).then_some(())
    })
    .await;
    leader.until_in_sync("t", 1).await;
    assert_eq!(Calls::of(cluster.agent(2)).fetch_one("t", 0, base_offset(&segment)).await.error, None);
}
