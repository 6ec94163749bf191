//! A partition that fails stops nobody but itself, and heals without a restart (cases.md section A, KAFKA-8346): its
//! directory cannot be written when it is opened, when a segment is closed, or when the log has to be cut; and it is cut
//! where offsets are the same and epochs are not (redpanda#11360).

use std::path::PathBuf;
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::{Program, TopicProperties};
use system_tests::calls::{Calls, batch};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::disk::ReadOnly;
use system_tests::fake_log::FakeLog;
use system_tests::faked::Faked;
use system_tests::log_files::LogBytes;
use system_tests::wait;

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
/// For how long the failed partition must bother nobody.
const A_WHILE: Duration = Duration::from_secs(10);
/// Two of these records do not fit into the smallest segment: every append closes one.
const RECORD_BYTES: usize = 600;

/// A leader and a follower that share one loop and one connection, and a topic of three empty partitions.
async fn three_partitions() -> Cluster {
    let cluster = Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::FollowerAgent)
        .set(Program::FollowerAgent, "num.replica.fetchers", 1)
        .start()
        .await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 3, &[1, 2], &[("segment.bytes", "1024")]).await;
    leader.until_in_sync("t", 1).await;
    cluster
}

fn directory(cluster: &Cluster, node: i32, partition: i32) -> PathBuf {
    cluster.data_dir(node).join(format!("t-{partition}"))
}

async fn append_to_all(cluster: &Cluster, batches: usize) {
    let leader = Calls::of(cluster.leader(1));
    for _ in 0..batches {
        for partition in 0..3 {
            leader.append("t", partition, batch(1, RECORD_BYTES)).await;
        }
    }
}

/// How many partitions have failed.
async fn failed(agent: &Calls) -> usize {
    agent.followed().await.values().filter(|row| row.state() == v1::FetchState::Failed).count()
}

/// Waits until partition 1 alone has failed, and the others are at `end`; then sees that it stays so.
async fn only_partition_one_fails(cluster: &mut Cluster, end: i64) {
    let agent = Calls::of(cluster.agent(2));
    let as_wanted = async || {
        let followed = agent.followed().await;
        let row = |partition| followed.get(&("t".to_owned(), partition));
        let others =
            [0, 2].iter().all(|other| row(*other).is_some_and(|row| row.log_end_offset == Some(end)));
        let state = row(1).map(v1::FollowedPartition::state);
        others && state == Some(v1::FetchState::Failed) && failed(&agent).await == 1
    };
    wait::until("partition 1 alone to fail", wait::SOON, async || as_wanted().await.then_some(())).await;
    // While it is retried, it shows for a moment as what it tries to be.
    wait::always("the others and the program go on", A_WHILE, async || failed(&agent).await <= 1).await;
    wait::until("partition 1 to be failed still", wait::SOON, async || as_wanted().await.then_some(())).await;
    assert!(cluster.server_mut(AGENT).process_mut().ended().is_none(), "the program lives");
}

async fn until_healed(cluster: &mut Cluster, end: i64) {
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 3, end).await;
    assert_eq!(failed(&agent).await, 0);
    assert!(cluster.server_mut(AGENT).process_mut().ended().is_none(), "without a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_opened_fails_alone_and_heals_in_a_new_epoch() {
    let mut cluster = three_partitions().await;
    assert!(cluster.server_mut(AGENT).terminate(wait::SOON).await.success());
    let read_only = ReadOnly::new(&directory(&cluster, 2, 1));
    append_to_all(&cluster, 100).await;
    cluster.start_and_wait(AGENT).await;
    only_partition_one_fails(&mut cluster, 100).await;
    assert_eq!(LogBytes::read(&directory(&cluster, 2, 1)).end, 0);
    drop(read_only);
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait(LEADER).await;
    until_healed(&mut cluster, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_appended_to_fails_alone_and_heals_in_a_new_epoch() {
    let mut cluster = three_partitions().await;
    let read_only = ReadOnly::new(&directory(&cluster, 2, 1));
    append_to_all(&cluster, 100).await;
    only_partition_one_fails(&mut cluster, 100).await;
    let kept = LogBytes::read(&directory(&cluster, 2, 1));
    assert!(kept.end <= 1, "the first append needs no new segment, the second does: {}", kept.end);
    assert!(LogBytes::read(&directory(&cluster, 1, 1)).bytes.starts_with(&kept.bytes));
    drop(read_only);
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait(LEADER).await;
    until_healed(&mut cluster, 100).await;
    let bytes = |node| LogBytes::read(&directory(&cluster, node, 1)).bytes;
    assert!(bytes(1) == bytes(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_cut_fails_alone_and_heals_in_a_new_epoch() {
    let properties = TopicProperties { segment_bytes: 1024, ..TopicProperties::default() };
    let mut faked = Faked::new(3, 0, properties).await;
    for partition in 0..3 {
        let log = FakeLog::starting_at(0).batches(0, 100, RECORD_BYTES).committed_to(10);
        faked.logs.set(partition, log);
    }
    let agent = faked.start_agent().await;
    wait::until("all to be flushed, and 10 of it committed", wait::SOON, async || {
        let followed = agent.followed().await;
        let done = |row: &v1::FollowedPartition| {
            (row.acknowledged_offset, row.high_watermark) == (Some(100), Some(10))
        };
        (followed.len() == 3 && followed.values().all(done)).then_some(())
    })
    .await;

    // In epoch 1 the leader has lost what followed offset 10, and written anew.
    let read_only = ReadOnly::new(&faked.directory(1));
    faked.logs.set(1, FakeLog::starting_at(0).batches(0, 10, RECORD_BYTES).batches(1, 100, RECORD_BYTES));
    for other in [0, 2] {
        faked
            .logs
            .set(other, FakeLog::starting_at(0).batches(0, 100, RECORD_BYTES).batches(1, 10, RECORD_BYTES));
    }
    for partition in 0..3 {
        faked.lead_again(partition).await;
    }
    only_partition_one_fails(&mut faked.cluster, 110).await;
    drop(read_only);
    faked.lead_again(1).await;
    until_healed(&mut faked.cluster, 110).await;
    for partition in 0..3 {
        assert!(faked.log(partition).bytes == faked.logs.get(partition).bytes());
    }
}
