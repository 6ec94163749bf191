//! Real nodes over a real etcd: records flow, a leader restarts, and etcd dies and comes back under load without holding
//! up the data.

#![cfg(feature = "etcd")]
#![allow(clippy::print_stdout, reason = "figures for people")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, to};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::etcd::Etcd;
use system_tests::history::{History, Outcome};
use system_tests::log_files::LogBytes;
use system_tests::traffic::Traffic;
use system_tests::wait;

const LEADER: ServerId = (1, Program::LeaderSvc);
const TOPIC: &str = "orders";
/// How long etcd is away: more than twice the session timeout that the programs have by default.
const AWAY: Duration = Duration::from_secs(8);
/// A producer's pause after a record that was not acknowledged.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// One node with both programs, so that it always leads, and two followers, with a topic that all of them are in sync on.
async fn three_nodes(etcd: &Etcd) -> Cluster {
    let cluster = Plan::new()
        .node(1)
        .program(2, Program::FollowerAgent)
        .program(3, Program::FollowerAgent)
        .set(Program::LeaderSvc, "coordination", etcd.target())
        .set(Program::FollowerAgent, "coordination", etcd.target())
        .start()
        .await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(3).await;
    calls.create_topic(TOPIC, 1, &[1, 2, 3], &[("min.insync.replicas", "2")]).await;
    calls.until_in_sync(TOPIC, 2).await;
    cluster
}

/// A producer that goes on until it is told to stop; it counts what is acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    fn start(cluster: &Cluster, history: &Arc<History>) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut traffic = Traffic::new(cluster.leader(1).channel(), TOPIC, 0);
        let (until, count, history) = (Arc::clone(&stop), Arc::clone(&acknowledged), Arc::clone(history));
        let task = tokio::spawn(async move {
            for number in 0_u64.. {
                if until.load(Ordering::SeqCst) {
                    return;
                }
                let outcome = traffic.produce(&history, &format!("record-{number}")).await;
                if matches!(outcome, Outcome::Acknowledged(_)) {
                    count.fetch_add(1, Ordering::SeqCst);
                } else {
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
            }
        });
        Self { stop, acknowledged, task }
    }

    /// Waits until so many more are acknowledged.
    async fn goes_on(&self, more: u64, what: &str) {
        let from = self.acknowledged.load(Ordering::SeqCst);
        wait::until(what, wait::SOON, async || {
            (self.acknowledged.load(Ordering::SeqCst) >= from + more).then_some(())
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("the producer does not panic");
    }
}

async fn epoch(cluster: &Cluster) -> Option<i32> {
    let topic = Calls::of(cluster.leader(1)).topic(TOPIC).await?;
    topic.partitions.first().and_then(|partition| partition.leader_epoch)
}

/// Everything that was acknowledged is there, and all replicas hold the same bytes.
async fn assert_identical(cluster: &Cluster, history: &History) {
    let mut reader = Traffic::new(cluster.leader(1).channel(), TOPIC, 0);
    Calls::of(cluster.leader(1)).until_in_sync(TOPIC, 2).await;
    let end = reader.read_all(history).await;
    for node in [2, 3] {
        Calls::of(cluster.agent(node)).until_followed_to(TOPIC, 1, end).await;
    }
    history.assert_holds();
    let log = |node| LogBytes::read(&cluster.data_dir(node).join(format!("{TOPIC}-0")));
    let leader = log(1);
    assert_eq!((leader.good, leader.end), (leader.bytes.len(), end));
    for node in [2, 3] {
        assert!(log(node).bytes == leader.bytes, "node {node} holds other bytes than the leader");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_work_over_etcd_through_a_leaders_restart_and_an_outage_of_etcd() {
    let Some(mut etcd) = Etcd::start(1).await else { return };
    let mut cluster = three_nodes(&etcd).await;
    let history = Arc::new(History::default());
    let load = Load::start(&cluster, &history);
    load.goes_on(50, "records over etcd").await;

    let before = epoch(&cluster).await.expect("the partition is led");
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait(LEADER).await;
    Calls::of(cluster.leader(1)).until_led(TOPIC).await;
    load.goes_on(50, "records after the leader's restart").await;
    let after = epoch(&cluster).await.expect("the partition is led");
    assert!(after > before, "a restarted leader leads in a new epoch: {before}, then {after}");

    Calls::of(cluster.leader(1)).until_in_sync(TOPIC, 2).await;
    etcd.process_mut(0).kill();
    let (away, mut most) = (Instant::now(), Duration::ZERO);
    while away.elapsed() < AWAY {
        let begun = Instant::now();
        load.goes_on(20, "records while etcd is away").await;
        most = most.max(begun.elapsed());
    }
    println!("etcd was away for {:?}; 20 records took at most {most:?}", away.elapsed());
    etcd.start_again(0).await;
    let back = Instant::now();
    let calls = Calls::of(cluster.leader(1));
    let described = wait::until("the cluster to be described", wait::SOON, async || {
        let request = v1::DescribeClusterRequest::default();
        calls.cluster.clone().describe_cluster(request).await.ok()
    })
    .await
    .into_inner();
    println!("described {:?} after etcd was back", back.elapsed());
    assert_eq!(described.nodes.len(), 3);
    calls.create_topic("later", 1, &[1, 2, 3], &[]).await;
    load.goes_on(50, "records after etcd came back").await;
    load.end().await;
    assert_identical(&cluster, &history).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_etcd_refuses_writes_while_a_member_of_the_in_sync_set_is_silent() {
    let Some(mut etcd) = Etcd::start(1).await else { return };
    let cluster = three_nodes(&etcd).await;
    let calls = Calls::of(cluster.leader(1));
    let written = async || calls.produce(v1::Acks::Leader, to(TOPIC, 0, batch(1, 10))).await.error;
    assert_eq!(written().await, None);
    etcd.process_mut(0).kill();
    // Longer than the session: both members fetch in its epoch, so neither can lead.
    wait::always("it is written on", AWAY / 2, async || written().await.is_none()).await;

    // It could have been elected behind this leader's back, for all that the leader knows.
    let agent = (3, Program::FollowerAgent);
    cluster.server(agent).process().freeze();
    let refused = wait::until("a refusal", wait::SOON, async || written().await).await;
    assert_eq!(code(Some(&refused)), Some(v1::ErrorCode::LeaderNotAvailable));
    assert!(refused.message.contains("node 3"), "{refused:?}");
    let end = Calls::of(cluster.leader(1)).rows(TOPIC).await[0].log_end_offset;
    cluster.server(agent).process().thaw();
    wait::until("writes to be taken again", wait::SOON, async || written().await.is_none().then_some(()))
        .await;
    assert!(Calls::of(cluster.leader(1)).rows(TOPIC).await[0].log_end_offset > end);

    cluster.server(agent).process().freeze();
    wait::until("a refusal", wait::SOON, async || written().await).await;
    etcd.start_again(0).await;
    wait::until("writes under a session", wait::SOON, async || written().await.is_none().then_some(())).await;
    cluster.server(agent).process().thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_came_back_empty_deletes_no_data() {
    let Some(mut etcd) = Etcd::start(1).await else { return };
    let mut cluster = three_nodes(&etcd).await;
    let history = Arc::new(History::default());
    let load = Load::start(&cluster, &history);
    load.goes_on(100, "records over etcd").await;
    load.end().await;
    assert_identical(&cluster, &history).await;
    let directory = |cluster: &Cluster, node| cluster.data_dir(node).join(format!("{TOPIC}-0"));
    let bytes = |cluster: &Cluster, node| LogBytes::read(&directory(cluster, node)).bytes;
    let had: Vec<_> = [1, 2, 3].map(|node| bytes(&cluster, node)).into();

    etcd.process_mut(0).kill();
    etcd.start_empty(0).await;
    for id in [LEADER, (2, Program::FollowerAgent)] {
        wait::until("the loss to be told", wait::SOON, async || {
            cluster.server(id).output().contains("came back empty").then_some(())
        })
        .await;
    }
    // A program that starts does not take the empty store for its own either.
    cluster.server_mut(LEADER).kill();
    cluster.start(LEADER);
    wait::until("the restarted leader to refuse", wait::SOON, async || {
        cluster.server(LEADER).output().contains("coordination store has never seen node 1").then_some(())
    })
    .await;
    for (node, had) in [1, 2, 3].into_iter().zip(&had) {
        assert!(bytes(&cluster, node) == *had, "node {node} has all that it had");
    }
}

/// A host that boots faster than the store, and a store that answers nobody for a while.
#[tokio::test(flavor = "multi_thread")]
async fn programs_that_start_while_etcd_is_silent_or_away_wait_for_it() {
    let Some(mut etcd) = Etcd::start(1).await else { return };
    let mut cluster = three_nodes(&etcd).await;
    let programs = [LEADER, (1, Program::FollowerAgent)];
    for is_killed in [false, true] {
        for server in programs {
            cluster.server_mut(server).kill();
        }
        if is_killed {
            etcd.process_mut(0).kill();
        } else {
            etcd.process_mut(0).freeze();
        }
        for server in programs {
            cluster.start(server);
        }
        for server in programs {
            wait::until("several attempts to join", wait::SOON, async || {
                let said = cluster.server(server).output();
                (said.matches("could not join the cluster; trying on").count() >= 2).then_some(())
            })
            .await;
        }
        if is_killed {
            etcd.start_again(0).await;
        } else {
            etcd.process_mut(0).thaw();
        }
        for server in programs {
            cluster.serving(server).await;
        }
        Calls::of(cluster.leader(1)).until_in_sync(TOPIC, 2).await;
    }
}
