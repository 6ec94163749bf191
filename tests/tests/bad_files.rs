//! What real programs find in a data directory (A6): torn tails and broken indexes are mended, what is not theirs is left
//! alone, and what belongs to another program, node or cluster is not touched.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_log::OsStorage;
use highwater_log::checkpoint::CheckpointFile;
use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, shape};
use system_tests::cluster::{Cluster, Plan, ServerId, is_serving};
use system_tests::log_files::LogBytes;
use system_tests::process::{CommandLine, Process};
use system_tests::{log_dump, log_files, ports, programs, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const STOPS_WITHIN: Duration = Duration::from_secs(5);
const BATCHES: i64 = 40;
const FIRST_SEGMENT: &str = "00000000000000000000";

async fn pair() -> Cluster {
    let cluster = Plan::new().program(1, LEADER.1).program(2, AGENT.1).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;
    for offset in 0..BATCHES {
        assert_eq!(leader.append("t", 0, batch(1, 1000)).await, offset);
    }
    Calls::of(cluster.agent(2)).until_followed_to("t", 1, BATCHES).await;
    cluster
}

/// A way to break a partition directory.
type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 5] = [
    ("a torn tail", |directory| {
        let log = directory.join(FIRST_SEGMENT).with_extension("log");
        let mut file = OpenOptions::new().append(true).open(log).expect("the log is there");
        // Half of a batch that would be the next one.
        let mut next = batch(1, 1000);
        next[..8].copy_from_slice(&BATCHES.to_be_bytes());
        file.write_all(&next[..500]).expect("there is room");
    }),
    ("an index of zeros", |directory| {
        for extension in ["index", "timeindex"] {
            fs::write(directory.join(FIRST_SEGMENT).with_extension(extension), [0; 4096]).expect("writable");
        }
    }),
    ("no index", |directory| {
        for extension in ["index", "timeindex"] {
            fs::remove_file(directory.join(FIRST_SEGMENT).with_extension(extension)).expect("it was there");
        }
    }),
    ("an empty epoch checkpoint", |directory| {
        fs::write(directory.join("leader-epoch-checkpoint"), "").expect("writable");
    }),
    ("no epoch checkpoint", |directory| {
        fs::remove_file(directory.join("leader-epoch-checkpoint")).expect("it was there");
    }),
];

async fn stop(cluster: &mut Cluster, server: ServerId, cleanly: bool) {
    if cleanly {
        let status = cluster.server_mut(server).terminate(STOPS_WITHIN).await;
        assert_eq!(status.code(), Some(0), "{}", cluster.server(server).output());
    } else {
        cluster.server_mut(server).kill();
    }
}

/// Every record is there, from any offset on, and looked up by an index or not.
async fn assert_all_readable(calls: &Calls, end: i64) {
    for from in [0, 1, 7, 20, 39, end - 1] {
        let fetched = wait::until("the records to be served", wait::SOON, async || {
            let fetched = calls.fetch_one("t", 0, from).await;
            (fetched.error.is_none() && fetched.high_watermark == Some(end)).then_some(fetched)
        })
        .await;
        let batches = shape(&fetched.records);
        assert_eq!((batches.first().map(|b| b.0), batches.last().map(|b| b.1)), (Some(from), Some(end - 1)));
    }
}

async fn broken_and_started_again(server: ServerId, cleanly: bool) {
    let mut cluster = pair().await;
    let directory = cluster.data_dir(server.0).join("t-0");
    let mut end = BATCHES;
    for (damage, inflict) in DAMAGES {
        // A torn tail after a clean stop is another fault than this one: nobody was writing.
        if cleanly && damage == "a torn tail" {
            continue;
        }
        stop(&mut cluster, server, cleanly).await;
        inflict(&directory);
        cluster.start_and_wait(server).await;
        let leader = Calls::of(cluster.leader(1));
        assert_eq!(leader.append("t", 0, batch(1, 1000)).await, end, "after {damage}");
        end += 1;
        let agent = Calls::of(cluster.agent(2));
        agent.until_followed_to("t", 1, end).await;
        for calls in [&leader, &agent] {
            assert_all_readable(calls, end).await;
        }
        assert!(!cluster.server(server).output().contains("panicked"), "after {damage}");
    }
    for server in [LEADER, AGENT] {
        stop(&mut cluster, server, true).await;
    }
    let copies = [1, 2].map(|node| cluster.data_dir(node).join("t-0"));
    for copy in &copies {
        let (good, findings) = log_dump::verify(copy);
        assert!(good, "{findings:?}");
    }
    log_dump::assert_identical(&[&copies[0], &copies[1]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_mends_its_files() {
    broken_and_started_again(LEADER, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stopped_cleanly_trusts_no_index_and_no_checkpoint() {
    broken_and_started_again(LEADER, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_follower_mends_its_files() {
    broken_and_started_again(AGENT, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_stopped_cleanly_trusts_no_index_and_no_checkpoint() {
    broken_and_started_again(AGENT, true).await;
}

#[tokio::test]
async fn foreign_files_are_left_alone_and_a_stray_partition_is_reported() {
    let mut cluster = pair().await;
    for (server, node) in [(LEADER, 1), (AGENT, 2)] {
        stop(&mut cluster, server, true).await;
        let data = cluster.data_dir(node);
        fs::create_dir(data.join("lost+found")).expect("writable");
        fs::write(data.join("notes.txt"), "mine").expect("writable");
        fs::write(data.join("t-0/notes.txt"), "mine too").expect("writable");
        fs::create_dir(data.join("other-3")).expect("writable");
        fs::write(data.join("other-3/00000000000000000000.log"), batch(2, 10)).expect("writable");
        cluster.start_and_wait(server).await;
        wait::until("the stray to be reported", wait::SOON, async || {
            let output = cluster.server(server).output();
            output.lines().any(|line| line.contains("stray") && line.contains("other-3")).then_some(())
        })
        .await;
        assert!(data.join("lost+found").is_dir());
        assert_eq!(fs::read(data.join("notes.txt")).expect("kept"), b"mine");
        assert_eq!(fs::read(data.join("t-0/notes.txt")).expect("kept"), b"mine too");
        let kept = fs::read(data.join("other-3/00000000000000000000.log")).expect("a stray is kept");
        assert!(kept == batch(2, 10), "as it was");
    }
    let leader = Calls::of(cluster.leader(1));
    assert_eq!(leader.append("t", 0, batch(1, 1000)).await, BATCHES);
    Calls::of(cluster.agent(2)).until_followed_to("t", 1, BATCHES + 1).await;
}

/// One more program on a directory that is in use.
fn one_more(
    cluster: &Cluster,
    name: &str,
    node: i32,
    data: &Path,
    store: &Path,
) -> (Process, std::net::SocketAddr) {
    let address = ports::loopback();
    let line = CommandLine::new(programs::path(name))
        .args(["--node-id", &node.to_string(), "--listen", &address.to_string()])
        .args(["--data-dir", &data.display().to_string()])
        .args(["--coordination", &format!("file:{}", store.display())]);
    (Process::start("one more", &line, &cluster.place().join(format!("one-more-{address}"))), address)
}

#[tokio::test]
async fn another_nodes_or_clusters_volume_is_refused_by_both_programs() {
    let mut cluster = pair().await;
    for server in [LEADER, AGENT] {
        stop(&mut cluster, server, true).await;
    }
    let other_store = cluster.place().join("other-store");
    for (name, node) in [("leader-svc", 1), ("follower-agent", 2)] {
        let data = cluster.data_dir(node);
        let before = fs::read(data.join("meta.properties")).expect("the volume is marked");
        let (mut other_node, _) = one_more(&cluster, name, 7, &data, &cluster.coordination_dir());
        let status = other_node.end_within(wait::SOON).await;
        assert_eq!(status.code(), Some(1), "{}", other_node.output());
        let said = other_node.output();
        assert!(said.contains(&format!("node {node}")) && said.contains("node 7"), "both are named: {said}");
        // A store that has a cluster already: another one.
        let (_founder, founder_address) =
            one_more(&cluster, "leader-svc", 8, &cluster.place().join("new"), &other_store);
        wait::until("another cluster", wait::SOON, async || is_serving(founder_address).await.then_some(()))
            .await;
        let (mut other_cluster, _) = one_more(&cluster, name, node, &data, &other_store);
        let status = other_cluster.end_within(wait::SOON).await;
        assert_eq!(status.code(), Some(1), "{}", other_cluster.output());
        assert!(other_cluster.output().contains("cluster"), "{}", other_cluster.output());
        for said in [said, other_cluster.output()] {
            assert!(!said.contains("panicked"), "{said}");
        }
        assert_eq!(fs::read(data.join("meta.properties")).expect("kept"), before);
    }
}

#[tokio::test]
async fn a_second_process_of_a_program_on_one_directory_ends_and_takes_nothing_from_the_first() {
    let cluster = pair().await;
    let mut end = BATCHES;
    for (name, node) in [("leader-svc", 1), ("follower-agent", 2)] {
        let (mut second, _) =
            one_more(&cluster, name, node, &cluster.data_dir(node), &cluster.coordination_dir());
        let status = second.end_within(wait::SOON).await;
        let said = second.output();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("another {name} runs on this data directory")), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        // Neither the logs nor the node's address went over.
        assert_eq!(Calls::of(cluster.leader(1)).append("t", 0, batch(1, 1000)).await, end);
        end += 1;
        Calls::of(cluster.agent(2)).until_followed_to("t", 1, end).await;
    }
}

/// Batches of about 1 kB in segments of 4 KiB: three in each.
const SMALL_SEGMENTS: [(&str, &str); 1] = [("segment.bytes", "4096")];

/// The base of a segment in the middle of node `node`'s copy of `topic`, and where the next one begins.
fn a_middle_segment(cluster: &Cluster, node: i32, topic: &str) -> (PathBuf, i64, i64) {
    let segments = log_files::segments(&cluster.data_dir(node).join(format!("{topic}-0")));
    assert!(segments.len() > 8, "{segments:?}");
    let at = segments.len() / 2;
    (segments[at].clone(), log_files::base_offset(&segments[at]), log_files::base_offset(&segments[at + 1]))
}

/// Waits until the node's checkpoint says that all batches are committed: it is written once a second.
async fn until_checkpointed(cluster: &Cluster, node: i32, topic: &str) {
    let directory = cluster.data_dir(node).join(format!("{topic}-0"));
    wait::until("the checkpoint", wait::SOON, async || {
        let state = CheckpointFile::read(&OsStorage, &directory).expect("readable").into_state()?;
        (state.high_watermark.offset.get() == BATCHES).then_some(())
    })
    .await;
}

fn remove_segment(log: &Path, extensions: &[&str]) {
    for extension in extensions {
        fs::remove_file(log.with_extension(extension)).expect("it was there");
    }
}

/// What is lost is said to be lost; everything else is served, and taken.
async fn serves_all_but(leader: &Calls, topic: &str, lost: std::ops::Range<i64>, end: i64) {
    for offset in 0..end {
        let fetched = wait::until("the partition to be served", wait::SOON, async || {
            let fetched = leader.fetch_one(topic, 0, offset).await;
            let is_starting = matches!(
                code(fetched.error.as_ref()),
                Some(
                    v1::ErrorCode::NotLeaderOrFollower
                        | v1::ErrorCode::ReplicaNotAvailable
                        | v1::ErrorCode::LeaderNotAvailable
                )
            );
            (!is_starting).then_some(fetched)
        })
        .await;
        if lost.contains(&offset) {
            assert_eq!(
                code(fetched.error.as_ref()),
                Some(v1::ErrorCode::DataLoss),
                "offset {offset}: {fetched:?}"
            );
        } else {
            assert_eq!(fetched.error, None, "offset {offset}");
            assert_eq!(shape(&fetched.records).first().map(|batch| batch.0), Some(offset));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_leader_without_a_middle_segment_answers_data_loss_there_and_serves_the_rest() {
    for (cleanly, extensions) in [(true, &["log", "index", "timeindex"][..]), (false, &["log"][..])] {
        let mut cluster = Plan::new().program(1, LEADER.1).start().await;
        let leader = Calls::of(cluster.leader(1));
        leader.until_nodes(1).await;
        for topic in ["holed", "whole"] {
            leader.create_topic(topic, 1, &[1], &SMALL_SEGMENTS).await;
            for offset in 0..BATCHES {
                assert_eq!(leader.append(topic, 0, batch(1, 1000)).await, offset);
            }
        }
        until_checkpointed(&cluster, 1, "holed").await;
        stop(&mut cluster, LEADER, cleanly).await;
        let (segment, from, to) = a_middle_segment(&cluster, 1, "holed");
        remove_segment(&segment, extensions);
        let (good, findings) = log_dump::verify(&cluster.data_dir(1).join("holed-0"));
        let gone = findings.iter().find(|finding| finding.kind == "records_gone").expect("verify names it");
        assert!(!good && (gone.offset, gone.end_offset) == (Some(from), Some(to)), "{findings:?}");

        cluster.start_and_wait(LEADER).await;
        let leader = Calls::of(cluster.leader(1));
        serves_all_but(&leader, "holed", from..to, BATCHES).await;
        serves_all_but(&leader, "whole", 0..0, BATCHES).await;
        assert_eq!(leader.append("holed", 0, batch(1, 1000)).await, BATCHES, "no offset is given out again");
        let said = cluster.leader(1).output();
        assert!(said.contains(&format!("offsets [{from}, {to}) are damaged or gone")), "{said}");
        // It is known by now, and stays so.
        stop(&mut cluster, LEADER, true).await;
        cluster.start_and_wait(LEADER).await;
        serves_all_but(&Calls::of(cluster.leader(1)), "holed", from..to, BATCHES + 1).await;
    }
}

/// `BATCHES` records in topic `t`, led by node 1 and followed by node 2, which both have them.
async fn fill_small_segments(cluster: &Cluster) {
    fill_small_segments_of(cluster, &[1, 2]).await;
}

/// The same on these nodes.
async fn fill_small_segments_of(cluster: &Cluster, replicas: &[i32]) {
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(replicas.len()).await;
    leader.create_topic("t", 1, replicas, &SMALL_SEGMENTS).await;
    leader.until_in_sync("t", replicas.len() - 1).await;
    for _ in 0..BATCHES {
        leader.append("t", 0, batch(1, 1000)).await;
    }
    Calls::of(cluster.agent(2)).until_followed_to("t", 1, BATCHES).await;
}

/// A leader with `BATCHES` records in topic `t`, and its follower, stopped, that had all of them; the segment that it lacks now, and
/// that segment's offsets.
async fn follower_without_a_middle_segment(
    cleanly: bool,
    extensions: &[&str],
) -> (Cluster, PathBuf, i64, i64) {
    let mut cluster = Plan::new().program(1, LEADER.1).program(2, AGENT.1).start().await;
    fill_small_segments(&cluster).await;
    let (segment, from, to) = take_a_middle_segment(&mut cluster, cleanly, extensions).await;
    (cluster, segment, from, to)
}

/// Stops the follower, and takes a segment from it.
async fn take_a_middle_segment(
    cluster: &mut Cluster,
    cleanly: bool,
    extensions: &[&str],
) -> (PathBuf, i64, i64) {
    until_checkpointed(cluster, 2, "t").await;
    stop(cluster, AGENT, cleanly).await;
    let (segment, from, to) = a_middle_segment(cluster, 2, "t");
    remove_segment(&segment, extensions);
    (segment, from, to)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_without_a_middle_segment_gets_it_from_its_leader_again() {
    for (cleanly, extensions) in [(true, &["log", "index", "timeindex"][..]), (false, &["log"][..])] {
        let (mut cluster, _, from, to) = follower_without_a_middle_segment(cleanly, extensions).await;
        let leader = Calls::of(cluster.leader(1));
        cluster.start_and_wait(AGENT).await;
        Calls::of(cluster.agent(2)).until_followed_to("t", 1, BATCHES).await;
        let said = wait::until("the repair", wait::SOON, async || {
            let said = cluster.agent(2).output();
            said.contains("repaired from the leader").then_some(said)
        })
        .await;
        assert!(said.contains(&format!("offsets [{from}, {to}) are damaged or gone")), "{said}");
        assert_eq!(leader.append("t", 0, batch(1, 1000)).await, BATCHES);
        Calls::of(cluster.agent(2)).until_followed_to("t", 1, BATCHES + 1).await;
        leader.until_in_sync("t", 1).await;
        for server in [AGENT, LEADER] {
            stop(&mut cluster, server, true).await;
        }
        let copies = [1, 2].map(|node| cluster.data_dir(node).join("t-0"));
        assert_eq!(log_files::segments(&copies[0]).len(), log_files::segments(&copies[1]).len());
        for copy in &copies {
            assert_eq!(log_dump::verify(copy), (true, vec![]));
        }
        log_dump::assert_identical(&[&copies[0], &copies[1]]);
    }
}

/// The leader's copy of the same records rots, so the repair cannot succeed, and the damage is the cause for as long as anybody
/// looks: the third replica, which has them, is in sync but cannot lead, so the leader does not give them up for lost.
#[tokio::test(flavor = "multi_thread")]
async fn damage_on_a_follower_is_the_cause_of_its_lag_for_leader_and_follower() {
    let plan = Plan::new().program(1, LEADER.1).program(2, AGENT.1).program(3, AGENT.1);
    let mut cluster = plan.start().await;
    fill_small_segments_of(&cluster, &[1, 2, 3]).await;
    let (segment, from, to) = take_a_middle_segment(&mut cluster, true, &["log", "index", "timeindex"]).await;
    let leader = Calls::of(cluster.leader(1));
    let leaders = cluster.data_dir(1).join("t-0").join(segment.file_name().expect("a file"));
    fs::write(
        &leaders,
        vec![0; usize::try_from(fs::metadata(&leaders).expect("there").len()).expect("small")],
    )
    .expect("writable");
    cluster.start_and_wait(AGENT).await;

    let agent = Calls::of(cluster.agent(2));
    let (row, seen) = wait::until("the damage to be the cause", wait::SOON, async || {
        let row = agent.followed().await.remove(&("t".to_owned(), 0))?;
        let seen = leader.rows("t").await.first()?.followers.first()?.clone();
        let is_cause = |cause| cause == v1::LagCause::FollowerDisk;
        (is_cause(row.cause()) && is_cause(seen.cause())).then_some((row, seen))
    })
    .await;
    assert_eq!((row.state(), row.log_end_offset), (v1::FetchState::Fetching, Some(BATCHES)), "it goes on");
    assert_eq!((row.acknowledged_offset, seen.acknowledged_offset), (Some(from), Some(from)));
    assert!(row.reason.contains(&format!("offsets [{from}, {to}) are damaged")), "{}", row.reason);
    // Not for a moment only.
    wait::always("it is damaged", Duration::from_secs(6), async || {
        let row = agent.followed().await.remove(&("t".to_owned(), 0));
        row.is_some_and(|row| row.cause() == v1::LagCause::FollowerDisk)
    })
    .await;
    let said = cluster.agent(2).output();
    assert!(said.contains("not repaired; trying on"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_log_is_damaged_hands_over_to_a_node_that_has_the_records() {
    for other_is_up in [true, false] {
        let mut cluster = Plan::new().node(1).node(2).start().await;
        fill_small_segments(&cluster).await;
        let other = (2, LEADER.1);
        let leader = Calls::of(cluster.leader(1));
        if !other_is_up {
            // Which node 1 takes over once it knows that the other one is down.
            leader.create_topic("led-by-2", 1, &[2, 1], &[]).await;
            Calls::of(cluster.leader(2)).until_in_sync("led-by-2", 1).await;
            cluster.server_mut(other).kill();
            wait::until("the take-over", wait::SOON, async || {
                let topic = leader.topic("led-by-2").await?;
                (topic.partitions.first()?.leader_id == Some(1)).then_some(())
            })
            .await;
        }
        let (segment, base, _) = a_middle_segment(&cluster, 1, "t");
        log_files::flip(&segment, batch(1, 1000).len() + 500);
        let error = leader.fetch_one("t", 0, base + 1).await.error;
        assert_eq!(code(error.as_ref()), Some(v1::ErrorCode::DataLoss), "{error:?}");
        if !other_is_up {
            serves_all_but(&leader, "t", base + 1..base + 2, BATCHES).await;
            cluster.start_and_wait(other).await;
        }
        serves_all_but(&Calls::of(cluster.leader(2)), "t", 0..0, BATCHES).await;
        let output = cluster.leader(1).output();
        assert!(output.contains("its own log is damaged"), "{output}");
        // What it had lost it reads from who leads now.
        wait::until("the logs to be identical", wait::SOON, async || {
            let [one, two] = [1, 2].map(|node| LogBytes::read(&cluster.data_dir(node).join("t-0")).bytes);
            (one == two).then_some(())
        })
        .await;
        Calls::of(cluster.leader(2)).until_in_sync("t", 1).await;
        serves_all_but(&Calls::of(cluster.agent(1)), "t", 0..0, BATCHES).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_the_active_segment_is_no_record_for_people() {
    let cluster = Plan::new().program(1, LEADER.1).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(1).await;
    leader.create_topic("t", 1, &[1], &[]).await;
    for _ in 0..2 {
        leader.append("t", 0, batch(1, 1000)).await;
    }
    let read = async |offset| {
        let (topic, partition) = ("t".to_owned(), Some(0));
        let request = v1::ReadRecordsRequest { topic, partition, offset: Some(offset), ..Default::default() };
        leader.replication.clone().read_records(request).await.map(|read| read.into_inner().records.len())
    };
    assert_eq!(read(0).await.expect("both are whole"), 2);
    let segment = log_files::segments(&cluster.data_dir(1).join("t-0")).remove(0);
    log_files::flip(&segment, batch(1, 1000).len() + 500);
    let refused = read(1).await.expect_err("a byte of its value is another one");
    assert_eq!(refused.code(), tonic::Code::DataLoss, "{refused}");
    assert!(refused.message().contains("offset 1"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_a_closed_segment_is_answered_as_data_loss_where_it_is() {
    let mut cluster = Plan::new().program(1, LEADER.1).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(1).await;
    // While it runs, in the second batch: in a value; in the length, by which the batches after it are found.
    let flipped = [("value", 500), ("length", 8)];
    for topic in ["value", "length", "whole"] {
        leader.create_topic(topic, 1, &[1], &SMALL_SEGMENTS).await;
        for _ in 0..BATCHES {
            leader.append(topic, 0, batch(1, 1000)).await;
        }
    }
    let size = batch(1, 1000).len();
    for (topic, at) in flipped {
        let (segment, base, _) = a_middle_segment(&cluster, 1, topic);
        log_files::flip(&segment, size + at);
        let error = leader.fetch_one(topic, 0, base + 1).await.error.expect("data loss");
        for place in [format!("offset {}", base + 1), format!("byte {size} of segment {base}")] {
            assert!(error.message.contains(&place), "{error:?}");
        }
        // It goes on record at once, and only that.
        wait::until("the damage to be known", wait::SOON, async || {
            let error = leader.fetch_one(topic, 0, base + 1).await.error.expect("data loss");
            let range = format!("[{}, {})", base + 1, base + 2);
            error.message.contains(&range).then_some(())
        })
        .await;
        serves_all_but(&leader, topic, base + 1..base + 2, BATCHES).await;
        serves_all_but(&leader, "whole", 0..0, BATCHES).await;
        log_files::flip(&segment, size + at);
    }
    // What is there again is found when the log is opened.
    stop(&mut cluster, LEADER, true).await;
    cluster.start_and_wait(LEADER).await;
    let leader = Calls::of(cluster.leader(1));
    for (topic, _) in flipped {
        serves_all_but(&leader, topic, 0..0, BATCHES).await;
    }
    assert!(!cluster.leader(1).output().contains("panicked"));
}
