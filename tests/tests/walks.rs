//! How a follower finds back to its leader's log, with real programs over gRPC: the walks of KIP-101 and KIP-279 and the cases
//! of truncation and of the in-sync set (cases.md B and C), question by question, and the divergence that a real Kafka
//! resolved. The same walks on the core alone: `common/protocol/src/follower/walks_test.rs`.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::{Durability, Program, TopicProperties};
use system_tests::calls::{Calls, batch, from, shape};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::fake_leader::Answer;
use system_tests::fake_log::FakeLog;
use system_tests::faked::Faked;
use system_tests::fixtures::Fixture;
use system_tests::log_files::LogBytes;
use system_tests::placed::{Placed, Recorded, TOPIC, place};
use system_tests::relay::{Relay, Seen};
use system_tests::{ports, tool, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
/// For how long nothing may change.
const A_WHILE: Duration = Duration::from_secs(2);

/// What a follower asked: where it reads, and the epoch of its last record; and where the leader said that the logs differ.
type Turn = (i64, Option<i32>, Option<(i32, i64)>);

/// What a follower and its leader said to each other; the same turn twice in a row, as of idle polls, is one.
#[derive(Debug, Clone, Default)]
struct Dialogue(Arc<Mutex<(Vec<Turn>, Vec<v1::PartitionError>)>>);

impl Dialogue {
    /// Notes what passes the relay.
    fn listen(&self) -> impl FnMut(Seen<'_>) + Send + 'static {
        let noted = Arc::clone(&self.0);
        move |seen| {
            let Seen::Answer(request, answer) = seen else { return };
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            // What only acknowledges asks for nothing.
            let asked = request.partitions.iter().filter(|_| request.max_bytes != Some(0));
            for (asked, result) in asked.zip(&answer.partitions) {
                let diverging = result.diverging_epoch.as_ref();
                let diverging =
                    diverging.map(|at| (at.leader_epoch.expect("an epoch"), at.end_offset.expect("an end")));
                let turn = (asked.fetch_offset.expect("an offset"), asked.last_fetched_epoch, diverging);
                if noted.0.last() != Some(&turn) {
                    noted.0.push(turn);
                }
                noted.1.extend(result.error.clone());
            }
        }
    }

    /// All turns; none had an error.
    fn turns(&self) -> Vec<Turn> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(noted.1, [], "no question is refused");
        noted.0.clone()
    }
}

fn log(cluster: &Cluster, node: i32) -> LogBytes {
    LogBytes::read(&cluster.data_dir(node).join(format!("{TOPIC}-0")))
}

/// The leaderships that a directory knows: each epoch and where it began.
fn epochs(directory: &Path) -> Vec<(i32, i64)> {
    let text = fs::read_to_string(directory.join("leader-epoch-checkpoint")).unwrap_or_default();
    let entry = |line: &str| {
        let (epoch, start) = line.split_once(' ')?;
        Some((epoch.parse().ok()?, start.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

async fn until_epochs(cluster: &Cluster, node: i32, expected: &[(i32, i64)]) {
    let directory = cluster.data_dir(node).join(format!("{TOPIC}-0"));
    wait::until(&format!("node {node} to know {expected:?}"), wait::SOON, async || {
        (epochs(&directory) == expected).then_some(())
    })
    .await;
}

async fn until_led_in(calls: &Calls, node: i32, epoch: i32) {
    wait::until(&format!("node {node} to lead in epoch {epoch}"), wait::SOON, async || {
        let partition = calls.topic(TOPIC).await?.partitions.remove(0);
        let is_led = (partition.leader_id, partition.leader_epoch) == (Some(node), Some(epoch));
        (is_led && calls.fetch_one(TOPIC, 0, 0).await.error.is_none()).then_some(())
    })
    .await;
}

fn recorded(leader_epoch: i32) -> Recorded {
    let properties = TopicProperties::default();
    Recorded { leader: 1, leader_epoch, isr: vec![1], unclean: None, properties }
}

/// The leader-svc of node 1 leads from its directory, in the epoch after the recorded one; then the agent of node 2 follows it
/// from its own until both have the same. Returns what they said to each other.
async fn walk(leader: Placed, follower: Placed, recorded: Recorded) -> (Cluster, Vec<Turn>) {
    let at = ports::loopback();
    let plan =
        Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).advertise(LEADER, at);
    let dialogue = Dialogue::default();
    let relay = Relay::start(at, plan.address(LEADER), dialogue.listen()).await;
    let mut cluster = plan.without_starting();
    let epoch = recorded.leader_epoch + 1;
    place(&cluster, &[leader, follower], recorded).await;
    cluster.start_and_wait(LEADER).await;
    let calls = Calls::of(cluster.leader(1));
    until_led_in(&calls, 1, epoch).await;
    cluster.start_and_wait(AGENT).await;
    calls.until_in_sync(TOPIC, 1).await;
    let leaders = log(&cluster, 1);
    // A poll shows once it is answered.
    wait::until("a poll at the end", wait::SOON, async || {
        dialogue.turns().last().is_some_and(|turn| (turn.0, turn.2) == (leaders.end, None)).then_some(())
    })
    .await;
    drop(relay);
    assert_eq!(leaders.good, leaders.bytes.len());
    assert!(log(&cluster, 2).bytes == leaders.bytes, "the logs are identical");
    let topic = calls.topic(TOPIC).await.expect("it is there");
    assert_eq!(topic.partitions[0].isr.len(), 2, "the follower is in sync");
    (cluster, dialogue.turns())
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_6361_as_many_rounds_as_it_takes_find_the_common_prefix() {
    let follower = Placed::of_batches(2, &[(0, 1), (2, 1), (4, 1)]);
    let leader = Placed::of_batches(1, &[(1, 1), (3, 1), (5, 1)]);
    let (cluster, turns) = walk(leader, follower, recorded(5)).await;
    assert_eq!(
        turns,
        [
            (3, Some(4), Some((3, 2))),
            (2, Some(2), Some((1, 1))),
            (1, Some(0), Some((0, 0))),
            (0, None, None),
            (3, Some(5), None),
        ]
    );
    until_epochs(&cluster, 2, &[(1, 0), (3, 1), (5, 2)]).await;
}

/// KIP-279: A led in epoch 1, B in epoch 2 from offset 11 on, A again in epoch 3 from 21 on; B's batch ended before, at, or after
/// the offset at which A's epoch 3 begins.
#[tokio::test(flavor = "multi_thread")]
async fn kip_279_a_batch_of_a_leadership_in_between_is_cut_wherever_it_ends() {
    for last in [15, 20, 25] {
        let leader = Placed::of_batches(1, &[(1, 11), (1, 10), (3, 10)]);
        let follower = Placed::of_batches(2, &[(1, 11), (2, last - 10)]);
        let (cluster, turns) = walk(leader, follower, recorded(3)).await;
        let expected = [(last + 1, Some(2), Some((1, 21))), (11, Some(1), None), (31, Some(3), None)];
        assert_eq!(turns, expected, "up to {last}");
        until_epochs(&cluster, 2, &[(1, 0), (3, 21)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_15608_an_epoch_without_records_is_cut_and_nothing_loops() {
    let leader = Placed::of_batches(1, &[(5, 10)]).without_epoch_checkpoint();
    let follower = Placed::of_batches(2, &[(5, 10)]).leadership_without_records(6);
    let (cluster, turns) = walk(leader, follower, recorded(7)).await;
    assert_eq!(turns, [(10, Some(6), Some((5, 10))), (10, Some(5), None)]);
    until_epochs(&cluster, 1, &[(5, 0), (8, 10)]).await;
    assert_eq!(log(&cluster, 2).end, 10, "no record was cut");
}

/// Both replicas hold both records; the follower knows of one only that it is committed. It restarts, the leader dies.
#[tokio::test(flavor = "multi_thread")]
async fn kip_101_given_1_a_restart_with_a_late_high_watermark_loses_nothing() {
    let mut cluster = Plan::new().program(1, Program::LeaderSvc).node(2).without_starting();
    let leader = Placed::of_batches(1, &[(0, 1), (0, 1)]).committed(2, 0);
    let follower = Placed::of_batches(2, &[(0, 1), (0, 1)]).committed(1, 0);
    place(&cluster, &[leader, follower], Recorded { isr: vec![1, 2], ..recorded(0) }).await;
    cluster.start_and_wait(LEADER).await;
    until_led_in(&Calls::of(cluster.leader(1)), 1, 1).await;
    // So that the follower starts while it cannot hear of the second record.
    cluster.leader(1).process().freeze();
    cluster.start_and_wait(AGENT).await;
    let agent = Calls::of(cluster.agent(2));
    let positions = async || {
        let row = agent.followed().await.remove(&(TOPIC.to_owned(), 0))?;
        Some((row.log_end_offset?, row.high_watermark?))
    };
    wait::until("the follower to have its log", wait::SOON, positions).await;
    wait::always("nothing is cut", A_WHILE, async || positions().await == Some((2, 1))).await;
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait((2, Program::LeaderSvc)).await;
    let calls = Calls::of(cluster.leader(2));
    let fetched = wait::until("node 2 to serve both records", wait::SOON, async || {
        assert_eq!(log(&cluster, 2).end, 2, "at every moment");
        let fetched = calls.fetch_one(TOPIC, 0, 0).await;
        (fetched.high_watermark == Some(2)).then_some(fetched)
    })
    .await;
    assert_eq!(shape(&fetched.records), [(0, 0, 1, 0), (1, 1, 1, 0)]);
}

/// A holds two records, B one; both are down. B is back first and writes a record of its own, then A comes.
#[tokio::test(flavor = "multi_thread")]
async fn kip_101_given_2_the_returning_leader_cuts_what_the_new_one_does_not_have() {
    let at = ports::loopback();
    let other = (2, Program::LeaderSvc);
    let plan = Plan::new().node(1).node(2).advertise(other, at);
    let dialogue = Dialogue::default();
    let _relay = Relay::start(at, plan.address(other), dialogue.listen()).await;
    let mut cluster = plan.without_starting();
    let old = Placed::of_batches(1, &[(0, 1), (0, 1)]).committed(1, 0);
    let new = Placed::of_batches(2, &[(0, 1)]).committed(1, 0);
    place(&cluster, &[old, new], Recorded { isr: vec![1, 2], ..recorded(0) }).await;
    cluster.start_and_wait(AGENT).await;
    cluster.start_and_wait(other).await;
    let calls = Calls::of(cluster.leader(2));
    until_led_in(&calls, 2, 1).await;
    assert_eq!(calls.append(TOPIC, 0, batch(1, 10)).await, 1);
    for program in [Program::LeaderSvc, Program::FollowerAgent] {
        cluster.start_and_wait((1, program)).await;
    }
    calls.until_in_sync(TOPIC, 1).await;
    let expected = [(2, Some(0), Some((0, 1))), (1, Some(0), None), (2, Some(1), None)];
    wait::until("a poll at the end", wait::SOON, async || (dialogue.turns().len() >= 3).then_some(())).await;
    assert_eq!(dialogue.turns(), expected);
    assert!(log(&cluster, 1).bytes == log(&cluster, 2).bytes, "the logs are identical");
    assert_eq!(log(&cluster, 1).end, 2);
    until_epochs(&cluster, 1, &[(0, 0), (1, 1)]).await;
}

/// One answer says that the logs differ, and that offset 8 is committed: of the leader's log, not of the follower's.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_14704_a_diverging_answer_moves_the_high_watermark_only_by_the_cut() {
    let mut faked = Faked::new(1, 2, TopicProperties::default()).await;
    let common = || FakeLog::starting_at(0).batches(1, 5, 10);
    faked.logs.set(0, common().batches(2, 3, 10).committed_to(5));
    let agent = faked.start_agent().await;
    let row = async || agent.followed().await.remove(&(TOPIC.to_owned(), 0));
    let positions = async || {
        let row = row().await?;
        Some((row.log_end_offset?, row.high_watermark?, row.last_fetched_epoch?))
    };
    let until = async |what: &str, expected: (i64, i64, i32)| {
        wait::until(what, wait::SOON, async || {
            let (end, high_watermark, epoch) = positions().await?;
            assert!(high_watermark <= 5 || epoch == 3, "{high_watermark} is of the leader's log: {epoch}");
            ((end, high_watermark, epoch) == expected).then_some(())
        })
        .await;
    };
    until("8 records of which 5 are committed", (8, 5, 2)).await;

    let hold_back = Arc::new(AtomicBool::new(true));
    let (logs, topic, held) = (faked.logs.clone(), faked.topic.to_string(), Arc::clone(&hold_back));
    faked.fake.on_fetch(move |request, _| {
        let answer = logs.fetch(&topic, request)?;
        let Answer::Give(given) = &answer else { return Some(answer) };
        let has_records = given.partitions.iter().any(|partition| !partition.records.is_empty());
        (!has_records || !held.load(Ordering::SeqCst)).then_some(answer)
    });
    faked.logs.set(0, common().batches(3, 3, 20));
    faked.lead_again(0).await;
    until("the cut", (5, 5, 1)).await;
    wait::always("nothing more is committed", A_WHILE, async || positions().await == Some((5, 5, 1))).await;
    hold_back.store(false, Ordering::SeqCst);
    until("the leader's records", (8, 8, 3)).await;
    assert!(faked.log(0).bytes == faked.logs.get(0).bytes());
}

/// What node 2 asks for when it has everything below `offset`.
fn followers_fetch(offset: i64) -> v1::FetchRequest {
    let partition = v1::FetchPartition {
        incarnation: Some("00000000000000c3".to_owned()),
        current_leader_epoch: Some(2),
        last_fetched_epoch: Some(1),
        acknowledged_offset: Some(offset),
        ..from(TOPIC, 0, offset)
    };
    v1::FetchRequest {
        replica_id: Some(2),
        max_wait_ms: Some(0),
        partitions: vec![partition],
        ..Default::default()
    }
}

/// The leader of epoch 2 has 100 records, of which it knows 90 to be committed; the follower outside of the in-sync set has 95.
/// With `min.insync.replicas` 2 nothing is committed before it is in.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_7128_reaching_the_old_high_watermark_lets_nobody_into_the_in_sync_set() {
    let mut cluster =
        Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).without_starting();
    let leader = Placed::of_batches(1, &[(1, 90), (1, 5), (1, 5)]).committed(90, 1);
    let properties = TopicProperties { min_insync_replicas: 2, ..TopicProperties::default() };
    let outside = Placed::of_batches(2, &[(1, 90), (1, 5)]).committed(90, 1);
    place(&cluster, &[leader, outside], Recorded { properties, ..recorded(1) }).await;
    cluster.start_and_wait(LEADER).await;
    let calls = Calls::of(cluster.leader(1));
    until_led_in(&calls, 1, 2).await;
    // The follower is played: nothing runs on node 2.
    let state = async || {
        let isr = calls.topic(TOPIC).await?.partitions.remove(0).isr.len();
        Some((isr, calls.fetch_one(TOPIC, 0, 0).await.high_watermark?))
    };
    assert_eq!(state().await, Some((1, 90)));
    let error = calls.fetch(followers_fetch(95)).await.partitions.remove(0).error;
    assert_eq!(error, None);
    wait::always("it is not let in", A_WHILE, async || state().await == Some((1, 90))).await;
    let error = calls.fetch(followers_fetch(100)).await.partitions.remove(0).error;
    assert_eq!(error, None);
    wait::until("both to be in sync", wait::SOON, async || {
        let (isr, high_watermark) = state().await?;
        assert!(high_watermark >= 90, "it never falls: {high_watermark}");
        ((isr, high_watermark) == (2, 100)).then_some(())
    })
    .await;
}

/// What a real broker made of an unclean election: it cut its 15 records and fetched the new leader's nine.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_leaders_directory_of_kafka_ends_as_kafkas_own_did_after_an_unclean_election() {
    let fixture = Fixture::unpack("divergence");
    let kafkas = |what: &str| fixture.root().join("divergence").join(what).join("div-0");
    let new_leader = Placed::of_directory(1, &kafkas("B-new-leader")).committed(29, 2);
    let old_leader = Placed::of_directory(2, &kafkas("A-old-leader-before-rejoin")).committed(35, 0);
    let properties = TopicProperties { durability: Durability::PageCache, ..TopicProperties::default() };
    let recorded = Recorded { unclean: Some((2, 20, 2)), properties, ..recorded(2) };
    let (cluster, turns) = walk(new_leader, old_leader, recorded).await;
    assert_eq!(turns, [(35, Some(0), Some((0, 20))), (20, Some(0), None), (29, Some(2), None)]);
    assert!(log(&cluster, 2).bytes == LogBytes::read(&kafkas("C-old-leader-after-rejoin")).bytes);
    until_epochs(&cluster, 2, &epochs(&kafkas("C-old-leader-after-rejoin"))).await;

    let described = tool::run_json(&cluster, &["topics", "describe", TOPIC]).await.code(0).line();
    let lost = &described["partitions"][0]["unclean"]["passed_over"][0]["lost"];
    assert_eq!((&lost["from_offset"], &lost["end_offset"]), (&20.into(), &35.into()), "{described}");
}
