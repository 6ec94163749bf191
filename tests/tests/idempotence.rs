//! `highwater produce` while answers are lost, and while the leader dies, stops and changes: each line is in the topic once.
//!
//! A proxy before the leader holds its answers until a batch of every partition is committed without its producer knowing;
//! then the connections are cut, or the leader ends as well. So in each round every partition gets a copy of a batch that it
//! has. That copies are sent is shown by a producer that does not number its batches.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_proto::v1;
use highwater_records::{batches, decode_records};
use highwater_types::Program;
use system_tests::calls::Calls;
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::proxy::Proxy;
use system_tests::tier::rounds;
use system_tests::{programs, wait};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

const TOPIC: &str = "lines";
const PARTITIONS: i32 = 3;
/// Longer than any answer is held.
const HELD: Duration = Duration::from_secs(3600);
/// The load: so many lines each time.
const LINES: u32 = 20;
const LINES_EVERY: Duration = Duration::from_millis(5);

/// How a round ends.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The connections are cut.
    Cut,
    /// The leader is killed and started again: it reads its producers from the log.
    Killed,
    /// The leader stops and is started again: it keeps a snapshot of its producers.
    Stopped,
}

/// `highwater produce`, and who feeds it with lines until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    feed: JoinHandle<u32>,
    program: JoinHandle<Output>,
}

impl Load {
    fn start(bootstrap: &str, args: &[&str]) -> Self {
        let mut program: Child = Command::new(programs::path("highwater"))
            .args(["produce", TOPIC, "--key-separator", "="])
            .args(args)
            .env("HIGHWATER_BOOTSTRAP", bootstrap)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is there");
        let mut stdin = program.stdin.take().expect("it is piped");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let feed = tokio::spawn(async move {
            let mut pace = interval(LINES_EVERY);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                pace.tick().await;
                let lines: String = (sent..sent + LINES).map(|n| format!("{}={n}\n", n % 100)).collect();
                stdin.write_all(lines.as_bytes()).await.expect("the program reads");
                sent += LINES;
            }
            sent
        });
        let program = tokio::spawn(async move { program.wait_with_output().await.expect("it is ours") });
        Self { stop, feed, program }
    }

    /// Ends it; how many lines there were. Every one was acknowledged.
    async fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.feed.await.expect("the program reads to the end");
        let done = tokio::time::timeout(2 * wait::SOON, self.program).await;
        let done = done.expect("it ends in time").expect("no panic");
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && err.is_empty(), "{}: {err}", done.status);
        sent
    }
}

/// One leader behind a proxy.
struct Scene {
    cluster: Cluster,
    proxy: Proxy,
}

const LEADER: ServerId = (1, Program::LeaderSvc);

impl Scene {
    async fn start() -> Self {
        let plan = Plan::new().program(1, Program::LeaderSvc);
        let proxy = Proxy::start(plan.address(LEADER)).await;
        let cluster = plan.advertise(LEADER, proxy.address()).start().await;
        Calls::of(cluster.leader(1)).create_topic(TOPIC, PARTITIONS, &[1], &[]).await;
        Self { cluster, proxy }
    }

    /// Every partition commits what its producer is not told; then `fault` strikes.
    async fn round(&mut self, fault: Fault) {
        until_committed(&self.cluster, &[1], "after what was before").await;
        self.proxy.answer_late_on_open(HELD);
        until_committed(&self.cluster, &[1], "without an answer").await;
        match fault {
            Fault::Cut => {}
            Fault::Killed => self.cluster.server_mut(LEADER).kill(),
            Fault::Stopped => {
                let status = self.cluster.server_mut(LEADER).terminate(wait::SOON).await;
                assert!(status.success(), "{status}: {}", self.cluster.leader(1).output());
            }
        }
        self.proxy.cut_open();
        if !matches!(fault, Fault::Cut) {
            self.cluster.start(LEADER);
        }
    }
}

/// Waits until something more is committed in every partition.
async fn until_committed(cluster: &Cluster, nodes: &[i32], what: &str) {
    let before = wait::until("leaders", wait::SOON, async || committed(cluster, nodes).await).await;
    wait::until(&format!("{what}: more in each partition than {before:?}"), wait::SOON, async || {
        let now = committed(cluster, nodes).await?;
        before.iter().all(|(index, offset)| now.get(index) > Some(offset)).then_some(())
    })
    .await;
}

/// The high watermark of every partition, once all are led by these nodes.
async fn committed(cluster: &Cluster, nodes: &[i32]) -> Option<BTreeMap<i32, i64>> {
    let mut all = BTreeMap::new();
    for node in nodes {
        let topics = vec![v1::TopicSelector { topic: TOPIC.to_owned(), ..Default::default() }];
        let request = v1::DescribeReplicationRequest { topics };
        // It may be dead at present.
        let Ok(answer) = Calls::of(cluster.leader(*node)).replication.describe_replication(request).await
        else {
            continue;
        };
        let led = answer.into_inner().partitions;
        all.extend(led.iter().filter_map(|row| Some((row.partition?, row.high_watermark?))));
    }
    (all.len() == usize::try_from(PARTITIONS).expect("a few")).then_some(all)
}

/// The number of each line of a partition, in the order of the log.
async fn read(calls: &Calls, partition: i32) -> Vec<u32> {
    let (mut lines, mut next) = (Vec::new(), 0);
    loop {
        let answer = calls.fetch_one(TOPIC, partition, next).await;
        assert!(answer.error.is_none(), "{:?}", answer.error);
        if answer.records.is_empty() {
            assert_eq!(answer.high_watermark, Some(next));
            return lines;
        }
        for batch in batches(&answer.records) {
            let batch = batch.expect("whole batches");
            for record in decode_records(&batch).expect("whole records") {
                let value = record.value.expect("every line has a value");
                lines.push(std::str::from_utf8(&value).expect("it is text").parse().expect("a number"));
            }
            next = batch.next_offset().get();
        }
    }
}

/// All partitions together have each line once, and each partition its lines in order.
async fn assert_each_line_is_there_once(calls: &Calls, sent: u32) {
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        let lines = read(calls, partition).await;
        assert!(
            lines.is_sorted_by(|one, next| one < next),
            "partition {partition} is in order, without copies"
        );
        assert!(lines.len() > 100, "partition {partition} took part");
        all.extend(lines);
    }
    all.sort_unstable();
    let expected: Vec<u32> = (0..sent).collect();
    assert!(all == expected, "{} lines of {sent}", all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_is_there_once_whatever_becomes_of_answers_and_leader() {
    let mut scene = Scene::start().await;
    let load = Load::start(&scene.proxy.address().to_string(), &[]);
    for _ in 0..rounds(1, 20) {
        for fault in [Fault::Cut, Fault::Killed, Fault::Stopped, Fault::Cut, Fault::Killed] {
            scene.round(fault).await;
        }
    }
    let sent = load.end().await;
    assert_each_line_is_there_once(&Calls::of(scene.cluster.leader(1)), sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_is_there_once_when_leaders_change() {
    const NODES: [i32; 2] = [1, 2];
    let mut cluster = Plan::new().node(1).node(2).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic(TOPIC, PARTITIONS, &NODES, &[]).await;
    calls.until_in_sync(TOPIC, 1).await;
    let load = Load::start(&cluster.bootstrap(), &[]);
    let (mut next, mut other) = (1, 2);
    for _ in 0..rounds(4, 40) {
        until_committed(&cluster, &NODES, "before a death").await;
        cluster.server_mut((next, Program::LeaderSvc)).kill();
        wait::until("the other to lead", wait::SOON, async || committed(&cluster, &[other]).await).await;
        cluster.start_and_wait((next, Program::LeaderSvc)).await;
        wait::until("both in sync", wait::SOON, async || {
            let rows = Calls::of(cluster.leader(other)).rows(TOPIC).await;
            let mut followers = rows.iter().flat_map(|row| &row.followers);
            (rows.len() == 3 && followers.all(|follower| follower.in_sync == Some(true))).then_some(())
        })
        .await;
        (next, other) = (other, next);
    }
    let sent = load.end().await;
    assert_each_line_is_there_once(&Calls::of(cluster.leader(next)), sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_not_numbered_are_there_twice_after_a_lost_answer() {
    let mut scene = Scene::start().await;
    let load = Load::start(&scene.proxy.address().to_string(), &["--idempotence=false"]);
    scene.round(Fault::Cut).await;
    let sent = usize::try_from(load.end().await).expect("a few");
    let calls = Calls::of(scene.cluster.leader(1));
    for partition in 0..PARTITIONS {
        let mut lines = read(&calls, partition).await;
        let there = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert!(lines.len() < there, "partition {partition}: {there} lines of {sent}, and each once");
    }
}
