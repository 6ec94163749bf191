//! Acknowledged records that nobody has any more (design.md 2, 6.3): a leader that was alone in sync lost them. Its followers
//! replicate everything else, have the same on record as lost, and are in sync; consumers are told, and go on behind it.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use highwater_log::OsStorage;
use highwater_log::checkpoint::CheckpointFile;
use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, shape};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::{log_dump, log_files, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const STOPS_WITHIN: Duration = Duration::from_secs(5);
const RECORDS: i64 = 40;
/// What the follower holds when it stops.
const HELD: i64 = 4;

/// Which segments are lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Middle,
    Tail,
}

async fn stop(cluster: &mut Cluster, server: ServerId) {
    let status = cluster.server_mut(server).terminate(STOPS_WITHIN).await;
    assert_eq!(status.code(), Some(0), "{}", cluster.server(server).output());
}

async fn until_checkpointed(cluster: &Cluster) {
    let directory = cluster.data_dir(1).join("t-0");
    wait::until("the checkpoint", wait::SOON, async || {
        let state = CheckpointFile::read(&OsStorage, &directory).expect("readable").into_state()?;
        (state.high_watermark.offset.get() == RECORDS).then_some(())
    })
    .await;
}

/// Removes two segments with their indexes; answers their offsets.
fn lose(directory: &Path, lost: Lost) -> Range<i64> {
    let segments = log_files::segments(directory);
    assert!(segments.len() > 8, "{segments:?}");
    let from = match lost {
        Lost::Middle => segments.len() / 2,
        Lost::Tail => segments.len() - 2,
    };
    let end = segments.get(from + 2).map_or(RECORDS, |next| log_files::base_offset(next));
    let range = log_files::base_offset(&segments[from])..end;
    for segment in &segments[from..from + 2] {
        for extension in ["log", "index", "timeindex"] {
            fs::remove_file(segment.with_extension(extension)).expect("it was there");
        }
    }
    range
}

/// Node 1 led alone in sync, and has lost some of what only it held; node 2 is not back yet.
async fn lone_leader_with_a_loss(lost: Lost) -> (Cluster, Range<i64>) {
    let mut cluster = Plan::new().node(1).node(2).start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[("segment.bytes", "4096")]).await;
    leader.until_in_sync("t", 1).await;
    for _ in 0..HELD {
        leader.append("t", 0, batch(1, 1000)).await;
    }
    leader.until_in_sync("t", 1).await;
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        stop(&mut cluster, (2, program)).await;
    }
    for offset in HELD..RECORDS {
        assert_eq!(leader.append("t", 0, batch(1, 1000)).await, offset);
    }
    until_checkpointed(&cluster).await;
    stop(&mut cluster, LEADER).await;
    let range = lose(&cluster.data_dir(1).join("t-0"), lost);
    cluster.start_and_wait(LEADER).await;
    Calls::of(cluster.leader(1)).until_led("t").await;
    (cluster, range)
}

async fn until_leads_in_sync(leader: &Calls) {
    wait::until("it to lead, with its follower in sync", wait::SOON, async || {
        leader.are_in_sync("t", 1).await.then_some(())
    })
    .await;
}

/// Every record is served but what is lost, which is said to be.
async fn serves_all_but(calls: &Calls, lost: &Range<i64>, end: i64) {
    for offset in 0..end {
        let fetched = wait::until("the partition to be served", wait::SOON, async || {
            let fetched = calls.fetch_one("t", 0, offset).await;
            let is_answer = matches!(code(fetched.error.as_ref()), None | Some(v1::ErrorCode::DataLoss));
            (is_answer && fetched.high_watermark.is_none_or(|committed| committed >= end)).then_some(fetched)
        })
        .await;
        if lost.contains(&offset) {
            assert_eq!(code(fetched.error.as_ref()), Some(v1::ErrorCode::DataLoss), "{offset}: {fetched:?}");
        } else {
            assert_eq!(fetched.error, None, "offset {offset}");
            assert_eq!(shape(&fetched.records).first().map(|batch| batch.0), Some(offset));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_followers_of_a_leader_that_lost_records_replicate_all_the_rest_and_join_the_in_sync_set() {
    for kind in [Lost::Middle, Lost::Tail] {
        let (mut cluster, lost) = lone_leader_with_a_loss(kind).await;
        cluster.start_and_wait((2, Program::FollowerAgent)).await;
        let (leader, agent) = (Calls::of(cluster.leader(1)), Calls::of(cluster.agent(2)));
        leader.until_in_sync("t", 1).await;
        assert_eq!(
            leader.append("t", 0, batch(1, 1000)).await,
            RECORDS,
            "{kind:?}: no offset is given out again"
        );
        agent.until_followed_to("t", 1, RECORDS + 1).await;
        for calls in [&leader, &agent] {
            serves_all_but(calls, &lost, RECORDS + 1).await;
        }
        let row = agent.followed().await.remove(&("t".to_owned(), 0)).expect("it follows");
        let named = format!("offsets [{}, {}) are lost", lost.start, lost.end);
        assert!(row.reason.contains(&named), "{kind:?}: {}", row.reason);
        let row = leader.rows("t").await.remove(0);
        let told: Vec<_> = row.lost.iter().map(|lost| (lost.start_offset, lost.end_offset)).collect();
        assert_eq!(told, [(Some(lost.start), Some(lost.end))], "{kind:?}");

        // The loss outlives restarts. Readers met it, so each leader hands over, once, to the other one, in case that has the
        // records; then whoever leads leads on with the loss.
        cluster.server_mut((2, Program::FollowerAgent)).kill();
        cluster.start_and_wait((2, Program::FollowerAgent)).await;
        cluster.start_and_wait((2, Program::LeaderSvc)).await;
        let next = Calls::of(cluster.leader(2));
        until_leads_in_sync(&next).await;
        assert_eq!(
            code(next.fetch_one("t", 0, lost.start).await.error.as_ref()),
            Some(v1::ErrorCode::DataLoss)
        );
        until_leads_in_sync(&leader).await;
        stop(&mut cluster, LEADER).await;
        until_leads_in_sync(&next).await;
        serves_all_but(&next, &lost, RECORDS + 1).await;
        assert_eq!(next.append("t", 0, batch(1, 1000)).await, RECORDS + 1);
        next.until_in_sync("t", 1).await;
        assert_copies_are_equal_and_say_what_is_lost(&mut cluster, &lost).await;
    }
}

async fn assert_copies_are_equal_and_say_what_is_lost(cluster: &mut Cluster, lost: &Range<i64>) {
    for server in [(1, Program::FollowerAgent), (2, Program::LeaderSvc), (2, Program::FollowerAgent)] {
        stop(cluster, server).await;
    }
    let copies = [1, 2].map(|node| cluster.data_dir(node).join("t-0"));
    for copy in &copies {
        let (good, findings) = log_dump::verify(copy);
        let gone = findings.iter().find(|finding| finding.kind == "records_gone");
        let gone = gone.unwrap_or_else(|| panic!("{}: {findings:?}", copy.display()));
        assert!(
            !good && (gone.offset, gone.end_offset) == (Some(lost.start), Some(lost.end)),
            "{findings:?}"
        );
    }
    log_dump::assert_identical(&[&copies[0], &copies[1]]);
}
