//! The `file` store: the conformance suite, and what only this store has: locks held by others, killed processes, foreign
//! files.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use futures::future::join_all;
use highwater_types::{Incarnation, IsrMember, PartitionIndex, TopicIdPartition, TopicProperties};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::conformance::FreshStore;
use crate::renewed_leadership;

struct Directory(TempDir);

fn fresh() -> Directory {
    Directory(tempfile::tempdir().unwrap())
}

#[async_trait]
impl FreshStore for Directory {
    async fn handle(&self) -> Arc<dyn Coordination> {
        Arc::new(FileCoordination::open(self.0.path(), FileOptions::default()).await.unwrap())
    }
}

crate::coordination_conformance!(fresh());

fn node(raw: i32) -> NodeId {
    NodeId::new(raw).unwrap()
}

fn candidate() -> crate::Candidate {
    crate::Candidate {
        node: node(1),
        incarnation: Incarnation::new(7).unwrap(),
        highest_epoch: None,
        log_end: highwater_types::Offset::ZERO,
    }
}

fn topic(partitions: i32) -> (TopicRecord, Vec<PartitionRecord>) {
    let record = TopicRecord {
        id: TopicId::random(),
        name: "orders".parse().unwrap(),
        partitions,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let ids = (0..partitions).map(|n| TopicIdPartition::new(record.id, PartitionIndex::new(n).unwrap()));
    let partitions = ids.map(|id| PartitionRecord::new(id, vec![node(1)])).collect();
    (record, partitions)
}

async fn led(store: &FileCoordination, partitions: i32) -> Vec<PartitionRecord> {
    let (record, records) = topic(partitions);
    store.create_topic(record, records.clone()).await.unwrap().committed().unwrap();
    let mut led = Vec::new();
    for new in records {
        let proposal = crate::first_leadership(&new, &candidate()).unwrap();
        led.push(store.swap_partition(proposal, new.partition_epoch).await.unwrap().committed().unwrap());
    }
    led
}

fn quick() -> FileOptions {
    FileOptions { busy_timeout: Duration::from_millis(100), ..FileOptions::default() }
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_is_an_outage_of_writes_and_ends_with_it() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), quick()).await.unwrap();
    let current = led(&store, 1).await.remove(0);

    let holder = Connection::open(dir.0.path().join("records.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let next = renewed_leadership(&current, &candidate()).unwrap();
    let begun = Instant::now();
    let blocked: Vec<_> =
        (0..20).map(|_| store.swap_partition(next.clone(), current.partition_epoch)).collect();
    for outcome in join_all(blocked).await {
        assert!(
            matches!(outcome, Err(CoordinationError::Unavailable(_))),
            "nothing was changed: {outcome:?}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "the waiting ones do not wait one after another");
    assert!(store.refresh().await.is_ok(), "reading goes on");
    assert!(store.renew_liveness(node(1), Program::LeaderSvc).await.is_ok(), "so do heartbeats");

    holder.execute_batch("ROLLBACK").unwrap();
    let after = store.swap_partition(next, current.partition_epoch).await.unwrap();
    assert_eq!(after.committed().map(|r| r.partition_epoch), Some(current.partition_epoch.next()));
}

#[tokio::test]
async fn a_reader_that_is_stopped_in_mid_transaction_holds_up_nobody() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), quick()).await.unwrap();
    let current = led(&store, 1).await.remove(0);
    let reader = Connection::open(dir.0.path().join("records.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM partition").unwrap();
    let next = renewed_leadership(&current, &candidate()).unwrap();
    let outcome = store.swap_partition(next, current.partition_epoch).await.unwrap();
    assert!(outcome.committed().is_some());
}

#[tokio::test]
async fn many_swaps_at_once_share_transactions_and_all_commit() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), FileOptions::default()).await.unwrap();
    let led = led(&store, 300).await;
    let swaps = led.iter().map(|current| {
        let next = renewed_leadership(current, &candidate()).unwrap();
        store.swap_partition(next, current.partition_epoch)
    });
    for outcome in join_all(swaps).await {
        assert!(outcome.unwrap().committed().is_some());
    }
    let view = store.refresh().await.unwrap();
    assert!(view.partitions().all(|(_, r)| r.leader_epoch.map(|e| e.get()) == Some(1)));
}

#[tokio::test]
async fn a_refusal_in_a_shared_transaction_leaves_the_others_alone() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), FileOptions::default()).await.unwrap();
    let current = led(&store, 2).await;
    let good = renewed_leadership(&current[0], &candidate()).unwrap();
    let mut bad = renewed_leadership(&current[1], &candidate()).unwrap();
    bad.isr.push(IsrMember { node: node(9), incarnation: Incarnation::new(1).unwrap() });
    let outcomes = join_all(vec![
        store.swap_partition(bad, current[1].partition_epoch),
        store.swap_partition(good, current[0].partition_epoch),
    ])
    .await;
    let [refused, committed] = outcomes.try_into().unwrap();
    let (refused, committed): (Result<_, _>, Result<_, _>) =
        if refused.is_err() { (refused, committed) } else { (committed, refused) };
    assert!(matches!(refused, Err(CoordinationError::Invalid(_))), "{refused:?}");
    assert!(matches!(committed, Ok(CasOutcome::Committed(_))), "{committed:?}");
}

#[tokio::test]
async fn what_is_not_a_store_of_this_format_is_refused() {
    let dir = fresh();
    std::fs::write(dir.0.path().join("records.db"), "not a database, but long enough to look at it").unwrap();
    let error = FileCoordination::open(dir.0.path(), quick()).await.unwrap_err();
    assert!(matches!(error, CoordinationError::Unreadable(_)), "{error}");

    let dir = fresh();
    let newer = Connection::open(dir.0.path().join("records.db")).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    let error = FileCoordination::open(dir.0.path(), quick()).await.unwrap_err();
    assert!(error.to_string().contains("format 99"), "{error}");

    let error = FileCoordination::open(Path::new("/proc/none"), quick()).await.unwrap_err();
    assert!(matches!(error, CoordinationError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn an_unreadable_record_is_named_and_stops_only_what_reads_it() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), quick()).await.unwrap();
    let current = led(&store, 2).await;
    let vandal = Connection::open(dir.0.path().join("records.db")).unwrap();
    vandal.execute("UPDATE partition SET record = '{}' WHERE partition = 0", ()).unwrap();
    let swap = |i: usize| {
        store.swap_partition(
            renewed_leadership(&current[i], &candidate()).unwrap(),
            current[i].partition_epoch,
        )
    };
    let error = swap(0).await.unwrap_err();
    assert!(
        matches!(&error, CoordinationError::Unreadable(text) if text.contains("missing field")),
        "{error}"
    );
    assert!(swap(1).await.unwrap().committed().is_some());
}

const WRITER_DIRECTORY: &str = "HIGHWATER_TEST_WRITER_DIRECTORY";

/// Not a test of its own: the process that the next test kills. Swaps without end and prints each committed version.
#[tokio::test]
#[ignore = "started by another test, as a process"]
async fn writer_process() {
    let Ok(directory) = std::env::var(WRITER_DIRECTORY) else { return };
    let store = FileCoordination::open(Path::new(&directory), FileOptions::default()).await.unwrap();
    let view = store.refresh().await.unwrap();
    let mut current = PartitionRecord::clone(view.partitions().next().unwrap().1);
    drop(view);
    loop {
        let next = renewed_leadership(&current, &candidate()).unwrap();
        current = store.swap_partition(next, current.partition_epoch).await.unwrap().into_current();
        println!("committed {}", current.partition_epoch);
        store.renew_liveness(node(1), Program::LeaderSvc).await.unwrap();
    }
}

fn start_writer(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file::tests::writer_process", "--ignored", "--nocapture"])
        .env(WRITER_DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads what the writer prints until it has committed `count` times, kills it, and returns the last version that it is
/// known to have committed.
fn kill_after(writer: &mut Child, count: usize) -> u64 {
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let version = |line: String| line.strip_prefix("committed ").and_then(|version| version.parse().ok());
    let mut reported: u64 = lines.by_ref().filter_map(version).take(count).last().unwrap();
    writer.kill().unwrap();
    for version in lines.filter_map(version) {
        reported = version;
    }
    writer.wait().unwrap();
    reported
}

#[tokio::test]
async fn changes_by_another_process_are_told_of_by_the_kernel() {
    let dir = fresh();
    let id = led(&FileCoordination::open(dir.0.path(), quick()).await.unwrap(), 1).await.remove(0).id();
    // Without a sign it looks at nothing, since it is asked for nothing either.
    let options = FileOptions { poll_interval: Duration::from_secs(3600), ..FileOptions::default() };
    let store = FileCoordination::open(dir.0.path(), options).await.unwrap();
    assert!(store._signs.is_some(), "the kernel tells");
    let mut view = store.view();
    let mut writer = start_writer(dir.0.path());
    let reported = tokio::task::spawn_blocking(move || kill_after(&mut writer, 20)).await.unwrap();
    let last_seen = view.wait_for(|view| view.partition(id).unwrap().partition_epoch.get() >= reported);
    tokio::time::timeout(Duration::from_secs(5), last_seen).await.expect("the last change is seen").unwrap();
}

fn renew(store: &FileCoordination) -> impl Future<Output = Result<Liveness, CoordinationError>> {
    store.renew_liveness(node(1), Program::LeaderSvc)
}

#[tokio::test]
async fn a_store_that_was_moved_away_takes_no_change_until_it_is_back() {
    let dir = fresh();
    let (place, aside) = (dir.0.path().join("store"), dir.0.path().join("aside"));
    let store = FileCoordination::open(&place, quick()).await.unwrap();
    let current = led(&store, 1).await.remove(0);
    let next = renewed_leadership(&current, &candidate()).unwrap();
    renew(&store).await.unwrap();

    std::fs::rename(&place, &aside).unwrap();
    let swap = || store.swap_partition(next.clone(), current.partition_epoch);
    for outcome in [swap().await.map(drop), renew(&store).await.map(drop), store.refresh().await.map(drop)] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CoordinationError::Unavailable(_)), "nothing was changed: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{}/records.db is gone", place.display())), "{text}");
    }

    std::fs::rename(&aside, &place).unwrap();
    assert!(swap().await.unwrap().committed().is_some());
    renew(&store).await.unwrap();
    let other = FileCoordination::open(&place, quick()).await.unwrap();
    assert_eq!(other.view.current().partition(current.id()), store.view.current().partition(current.id()));
}

#[tokio::test]
async fn another_store_in_the_place_of_the_lost_one_is_not_taken_for_it() {
    let dir = fresh();
    let place = dir.0.path().join("store");
    let store = FileCoordination::open(&place, quick()).await.unwrap();
    let current = led(&store, 1).await.remove(0);
    std::fs::rename(&place, dir.0.path().join("aside")).unwrap();
    let other = FileCoordination::open(&place, quick()).await.unwrap();
    renew(&other).await.unwrap();

    let next = renewed_leadership(&current, &candidate()).unwrap();
    let error = store.swap_partition(next, current.partition_epoch).await.unwrap_err();
    assert!(matches!(error, CoordinationError::Unavailable(_)), "nothing was changed: {error}");
    assert!(error.to_string().contains("records.db was replaced by another file"), "{error}");
    assert!(renew(&store).await.unwrap_err().to_string().contains("was replaced"));
    assert_eq!(
        store.view.current().partition(current.id()).map(|r| r.partition_epoch),
        Some(current.partition_epoch)
    );
}

#[tokio::test]
async fn lost_counters_are_no_sign_of_life() {
    let dir = fresh();
    let store = FileCoordination::open(dir.0.path(), quick()).await.unwrap();
    renew(&store).await.unwrap();
    for entry in std::fs::read_dir(dir.0.path()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("heartbeats-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let error = renew(&store).await.unwrap_err();
    assert!(error.to_string().contains("/heartbeats-"), "{error}");
    assert!(store.refresh().await.is_ok(), "the records are there");
}

#[test]
fn a_killed_process_loses_no_committed_version_and_blocks_nobody() {
    let dir = fresh();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = runtime.block_on(FileCoordination::open(dir.0.path(), FileOptions::default())).unwrap();
    let id = runtime.block_on(led(&store, 1)).remove(0).id();
    for round in 1..=4_u64 {
        let mut writer = start_writer(dir.0.path());
        let reported = kill_after(&mut writer, 10);
        assert!(reported >= 10 * round, "round {round}: the writer wrote");

        let view = runtime.block_on(store.refresh()).unwrap();
        let current = PartitionRecord::clone(view.partition(id).unwrap());
        assert!(current.partition_epoch.get() >= reported, "round {round}: {current:?}, {reported} reported");
        let next = renewed_leadership(&current, &candidate()).unwrap();
        let outcome = runtime.block_on(store.swap_partition(next, current.partition_epoch)).unwrap();
        assert!(outcome.committed().is_some(), "round {round}");
        runtime.block_on(store.renew_liveness(node(1), Program::LeaderSvc)).unwrap();
    }
}
