//! A disk that is full (tokio#4296, tokio#6325): the append that fails is reported, what was acknowledged is there, and
//! the follower goes on when there is room.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, to};
use system_tests::cluster::{Plan, ServerId};
use system_tests::disk::SmallDisk;
use system_tests::log_files::LogBytes;
use system_tests::relay::{Relay, Seen};
use system_tests::{ports, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const MIB: u64 = 1 << 20;

async fn row(agent: &Calls) -> Option<v1::FollowedPartition> {
    agent.followed().await.remove(&("t".to_owned(), 0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_never_acknowledged_over() {
    let at = ports::loopback();
    let plan =
        Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).advertise(LEADER, at);
    let disk = SmallDisk::mount(&plan.data_dir(2), MIB);
    let acknowledged = Arc::new(AtomicI64::new(0));
    let noted = Arc::clone(&acknowledged);
    let _relay = Relay::start(at, plan.address(LEADER), move |seen| {
        if let Seen::Request(request, _) = seen {
            let said = request
                .partitions
                .iter()
                .filter_map(|asked| asked.acknowledged_offset.or(asked.fetch_offset));
            noted.fetch_max(said.max().unwrap_or(0), Ordering::SeqCst);
        }
    })
    .await;
    let mut cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[("segment.bytes", "262144")]).await;
    leader.until_in_sync("t", 1).await;
    for _ in 0..150 {
        leader.append("t", 0, batch(2, 10_000)).await;
    }

    for life in 0..3 {
        let agent = Calls::of(cluster.agent(2));
        let failed = wait::until("the failure to be reported", wait::SOON, async || {
            row(&agent).await.filter(|row| row.state() == v1::FetchState::Failed)
        })
        .await;
        assert!(failed.reason.contains("No space left"), "life {life}: {}", failed.reason);
        cluster.server_mut(AGENT).kill();
        let kept = LogBytes::read(&cluster.data_dir(2).join("t-0"));
        let said = acknowledged.load(Ordering::SeqCst);
        assert!(
            0 < said && said <= kept.end,
            "life {life}: {said} acknowledged, the log ends at {}",
            kept.end
        );
        assert!(kept.end < 300, "life {life}: the disk is full");
        let leaders = LogBytes::read(&cluster.data_dir(1).join("t-0"));
        assert!(leaders.bytes.starts_with(kept.good_bytes()), "life {life}");
        cluster.start_and_wait(AGENT).await;
    }
    disk.resize(16 * MIB);
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 1, 300).await;
    let read = |node| LogBytes::read(&cluster.data_dir(node).join("t-0"));
    assert!(read(1).bytes == read(2).bytes);
}

/// The leader epoch of `t`.
async fn epoch(leader: &Calls) -> i32 {
    let topic = leader.topic("t").await.expect("it is there");
    topic.partitions.first().and_then(|partition| partition.leader_epoch).expect("it was led")
}

/// Each leadership is an epoch: one that the next append ends must not be taken every few seconds. Without any room it cannot
/// even begin; with a little, it does and ends with the next append.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_is_full_stands_ever_more_rarely_and_leads_again_with_room() {
    tokio::join!(stands_ever_more_rarely(0), stands_ever_more_rarely(MIB / 16));
}

async fn stands_ever_more_rarely(room: u64) {
    let plan = Plan::new().program(1, Program::LeaderSvc);
    let disk = SmallDisk::mount(&plan.data_dir(1), MIB);
    let cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(1).await;
    leader.create_topic("t", 1, &[1], &[("segment.bytes", "262144")]).await;
    leader.append("t", 0, batch(1, 1_000)).await;
    disk.fill_but(room);
    let first = epoch(&leader).await;
    let produce = async |records| {
        let result = leader.produce(v1::Acks::Leader, to("t", 0, records)).await;
        code(result.error.as_ref())
    };
    // The producer tries all the time.
    let tried = Duration::from_secs(12);
    wait::always("there is no room", tried, async || produce(batch(2, 100_000)).await.is_some()).await;
    // Pauses of half a second, one, two, four, eight: five of them take longer than that.
    let used = epoch(&leader).await - first;
    assert!((2..=5).contains(&used), "{used} epochs in {tried:?} with room for {room} bytes");
    let said = cluster.leader(1).output();
    let told = said.lines().filter(|line| line.contains("the disk ended the leadership")).count();
    assert_eq!(told, 1, "{said}");
    let leaderships = said.lines().filter(|line| line.contains("leading partition")).count();
    assert_eq!(leaderships > 1, room > 0, "{said}");
    disk.free();
    let again = async || produce(batch(1, 10_000)).await.is_none().then_some(());
    wait::until("the leader to write again", Duration::from_secs(60), again).await;
}

/// The leader's disk is full: another one leads. Both are: they do not pass the leadership to and fro.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_passes_the_leadership_on_and_two_do_not_pass_it_to_and_fro() {
    let plan = Plan::new().node(1).node(2);
    let disks = [1, 2].map(|node| SmallDisk::mount(&plan.data_dir(node), MIB));
    let cluster = plan.start().await;
    let calls = [1, 2].map(|node| Calls::of(cluster.leader(node)));
    calls[0].until_nodes(2).await;
    calls[0].create_topic("t", 1, &[1, 2], &[("segment.bytes", "262144")]).await;
    calls[0].until_in_sync("t", 1).await;
    calls[0].append("t", 0, batch(1, 1_000)).await;
    disks[0].fill();
    let produce = async |node: usize, records| {
        let result = calls[node].produce(v1::Acks::Leader, to("t", 0, records)).await;
        code(result.error.as_ref())
    };
    assert!(produce(0, batch(2, 10_000)).await.is_some(), "there is no room");
    let passed_on = async || produce(1, batch(1, 1_000)).await.is_none().then_some(());
    wait::until("the other node to lead", wait::SOON, passed_on).await;
    disks[1].fill();
    let first = epoch(&calls[1]).await;
    wait::always("there is no room anywhere", Duration::from_secs(8), async || {
        produce(0, batch(2, 10_000)).await.is_some() && produce(1, batch(2, 10_000)).await.is_some()
    })
    .await;
    let used = epoch(&calls[1]).await - first;
    // Each pauses for half a second, one, two, four; a resignation is an epoch of its own at most.
    assert!(used <= 20, "{used} epochs in eight seconds");
    disks.iter().for_each(SmallDisk::free);
    let again = async || {
        let wrote =
            produce(0, batch(1, 1_000)).await.is_none() || produce(1, batch(1, 1_000)).await.is_none();
        wrote.then_some(())
    };
    wait::until("one of them to write again", Duration::from_secs(60), again).await;
}
