//! Bytes that rot where a log still grows, or grew until its program was killed (design.md 2, 6.3): what was acknowledged is read
//! again from who has it, and who joins gets past what nobody has.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::path::PathBuf;

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, shape};
use system_tests::cluster::{Cluster, Plan};
use system_tests::log_files::{self, LogBytes};
use system_tests::tool::run_json;
use system_tests::{log_dump, wait};

const RECORDS: i64 = 20;
const RECORD_BYTES: usize = 1000;
const PROGRAMS: [Program; 2] = [Program::LeaderSvc, Program::FollowerAgent];

/// These nodes, and a topic of which `replicas` hold `RECORDS` records, each a batch of its own, in one segment.
async fn filled_among(nodes: &[i32], replicas: &[i32], min_isr: &str) -> Cluster {
    let cluster = nodes.iter().fold(Plan::new(), |plan, node| plan.node(*node)).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(nodes.len()).await;
    leader.create_topic("t", 1, replicas, &[("min.insync.replicas", min_isr)]).await;
    leader.until_in_sync("t", replicas.len() - 1).await;
    for offset in 0..RECORDS {
        assert_eq!(leader.append("t", 0, batch(1, RECORD_BYTES)).await, offset);
    }
    cluster
}

/// The same with two nodes.
async fn filled(replicas: &[i32]) -> Cluster {
    filled_among(&[1, 2], replicas, "1").await
}

fn directory(cluster: &Cluster, node: i32) -> PathBuf {
    cluster.data_dir(node).join("t-0")
}

/// A byte of a record, and of what no CRC covers: the base offset, and the leader epoch.
const VALUE: usize = 500;
const BASE_OFFSET: usize = 5;
const EPOCH: usize = 14;

/// Flips this byte of the batch of this offset in a node's only segment.
fn rot(cluster: &Cluster, node: i32, offset: usize, byte: usize) {
    let segments = log_files::segments(&directory(cluster, node));
    assert_eq!(segments.len(), 1, "the active one");
    log_files::flip(&segments[0], offset * batch(1, RECORD_BYTES).len() + byte);
}

/// Waits until all records are read from a leader, and the logs are the same and whole.
async fn is_whole_on(cluster: &Cluster, nodes: &[i32]) {
    for offset in 0..RECORDS {
        wait::until(&format!("offset {offset} to be served"), wait::SOON, async || {
            for node in nodes {
                let fetched = Calls::of(cluster.leader(*node)).fetch_one("t", 0, offset).await;
                if fetched.error.is_none() && shape(&fetched.records).first().is_some_and(|b| b.0 == offset) {
                    return Some(());
                }
            }
            None
        })
        .await;
    }
    wait::until("the logs to be identical", wait::SOON, async || {
        let logs: Vec<_> =
            nodes.iter().map(|node| LogBytes::read(&directory(cluster, *node)).bytes).collect();
        logs.iter().all(|log| *log == logs[0]).then_some(())
    })
    .await;
    for node in nodes {
        let (good, findings) = log_dump::verify(&directory(cluster, *node));
        assert!(good, "node {node}: {findings:?}");
    }
}

/// Everything is killed right after the last record, so that no checkpoint knows of it yet; and a byte of it, or before it, rots.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_what_was_written_just_before_a_kill_is_read_again() {
    for (rotten, offset, byte) in
        [(1, 16, VALUE), (2, 16, VALUE), (1, 19, VALUE), (1, 16, BASE_OFFSET), (1, 16, EPOCH)]
    {
        let mut cluster = filled(&[1, 2]).await;
        Calls::of(cluster.agent(2)).until_followed_to("t", 1, RECORDS).await;
        for (node, program) in [1, 2].into_iter().flat_map(|node| PROGRAMS.map(|program| (node, program))) {
            cluster.server_mut((node, program)).kill();
        }
        rot(&cluster, rotten, offset, byte);
        for (node, program) in [1, 2].into_iter().flat_map(|node| PROGRAMS.map(|program| (node, program))) {
            cluster.start_and_wait((node, program)).await;
        }
        is_whole_on(&cluster, &[1, 2]).await;
        let said: String = PROGRAMS.map(|program| cluster.server((rotten, program)).output()).concat();
        let damage = format!("offsets [{offset}, {})", offset + 1);
        assert!(said.contains(&damage), "node {rotten}, byte {byte} of {offset}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_active_segment_rots_hands_over_and_reads_it_again() {
    for byte in [VALUE, BASE_OFFSET] {
        let cluster = filled(&[1, 2]).await;
        Calls::of(cluster.agent(2)).until_followed_to("t", 1, RECORDS).await;
        rot(&cluster, 1, 7, byte);
        let leader = Calls::of(cluster.leader(1));
        let met = leader.fetch_one("t", 0, 7).await.error;
        assert_eq!(code(met.as_ref()), Some(v1::ErrorCode::DataLoss), "byte {byte}: {met:?}");
        is_whole_on(&cluster, &[1, 2]).await;
        assert!(cluster.leader(1).output().contains("its own log is damaged"), "byte {byte}");
        Calls::of(cluster.leader(2)).until_in_sync("t", 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_gets_past_what_rotted_in_the_active_segment_of_a_leader_that_is_alone() {
    let cluster = filled(&[1]).await;
    rot(&cluster, 1, 7, VALUE);
    let moved = run_json(&cluster, &["reassign", "t:0", "--replicas", "1,2", "--wait=60s"]).await;
    assert_eq!(moved.status.code(), Some(0), "{}", moved.err);
    // Who joined may have the records: then it would lead with more than node 1 has.
    wait::until("node 2 to lead, with both in sync", wait::SOON, async || {
        let led = Calls::of(cluster.leader(2)).topic("t").await?.partitions.first()?.clone();
        (led.leader_id == Some(2) && led.isr.len() == 2).then_some(())
    })
    .await;
    let leader = Calls::of(cluster.leader(2));
    assert_eq!(leader.append("t", 0, batch(1, RECORD_BYTES)).await, RECORDS);
    Calls::of(cluster.agent(1)).until_followed_to("t", 1, RECORDS + 1).await;
    for (node, offset) in [1, 2].into_iter().flat_map(|node| (0..=RECORDS).map(move |offset| (node, offset)))
    {
        let expected = (offset == 7).then_some(v1::ErrorCode::DataLoss);
        assert_eq!(met_on(&cluster, node, offset).await, expected, "node {node}, offset {offset}");
    }
}

/// What a reader of this offset is told by that program of the node which has the log now: a reader of what is lost makes the
/// leadership move once more.
async fn met_on(cluster: &Cluster, node: i32, offset: i64) -> Option<v1::ErrorCode> {
    wait::until(&format!("an answer of node {node}"), wait::SOON, async || {
        for calls in [Calls::of(cluster.leader(node)), Calls::of(cluster.agent(node))] {
            let fetched = calls.fetch_one("t", 0, offset).await;
            match code(fetched.error.as_ref()) {
                None if !fetched.records.is_empty() => return Some(None),
                Some(v1::ErrorCode::DataLoss) => return Some(Some(v1::ErrorCode::DataLoss)),
                _ => {}
            }
        }
        None
    })
    .await
}

/// Each replica lacks what the two others have. A leader that hands over to one that lacks a record itself, and has said so, leaves
/// a partition that nobody may lead.
#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_that_rot_in_different_places_make_each_other_whole() {
    const NODES: [i32; 3] = [1, 2, 3];
    let cluster = filled_among(&NODES, &NODES, "2").await;
    for follower in [2, 3] {
        Calls::of(cluster.agent(follower)).until_followed_to("t", 1, RECORDS).await;
    }
    for (node, offset) in NODES.into_iter().zip([5, 10, 15]) {
        rot(&cluster, node, offset, VALUE);
    }
    // As fast as a reader can: it meets the second rotten record before the first replica is in sync again.
    wait::until("a reader to get everything", 2 * wait::SOON, async || {
        let read = run_json(&cluster, &["consume", "t"]).await;
        (read.status.success() && read.json().len() == usize::try_from(RECORDS).unwrap()).then_some(())
    })
    .await;
    is_whole_on(&cluster, &NODES).await;
    let said: String = NODES.map(|node| cluster.leader(node).output()).concat();
    assert!(said.contains("its own log is damaged"), "{said}");
    wait::until("all to be in sync", wait::SOON, async || {
        let topic = Calls::of(cluster.leader(1)).topic("t").await?;
        (topic.partitions.first()?.isr.len() == NODES.len()).then_some(())
    })
    .await;
}

/// Nobody has read what rotted, when the good copies are to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_only_removes_replicas_keeps_them_until_the_one_that_stays_is_whole() {
    const NODES: [i32; 3] = [1, 2, 3];
    let cluster = filled_among(&NODES, &NODES, "1").await;
    for follower in [2, 3] {
        Calls::of(cluster.agent(follower)).until_followed_to("t", 1, RECORDS).await;
    }
    for offset in [5, 15] {
        rot(&cluster, 2, offset, VALUE);
    }
    let moved = run_json(&cluster, &["reassign", "t:0", "--replicas", "2", "--wait=60s"]).await;
    assert_eq!(moved.status.code(), Some(0), "{}", moved.err);
    let topic = Calls::of(cluster.leader(2)).topic("t").await.unwrap();
    assert_eq!(topic.partitions[0].replicas, [2]);
    is_whole_on(&cluster, &[2]).await;
    let said = cluster.leader(2).output();
    assert!(said.contains("no replica leaves"), "{said}");
}
