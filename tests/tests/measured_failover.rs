//! For how long nothing is acknowledged when a leader dies, stops or falls silent, or a follower in sync dies: from the last
//! acknowledgement before to the first one after, as producers of the client library see it. Medians and maxima are printed;
//! bounds are ten times what they are meant to be, because the machine may be shared.

#![allow(clippy::print_stdout, reason = "figures for people")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use highwater_client::{Client, ClientConfig, Producer, ProducerConfig, ProducerRecord};
use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{self, Calls};
use system_tests::cluster::{Cluster, ServerId};
use system_tests::tier::rounds;
use system_tests::trio::{
    NODES, TOPIC, leader, three_nodes_with_topic, until_all_in_sync, until_other_leader,
};
use system_tests::wait;
use tokio::task::{JoinHandle, JoinSet};

const PRODUCERS: usize = 4;
/// What is acknowledged after a gap, before it is believed that it is over: more than can have been on its way.
const ENOUGH: usize = 10 * PRODUCERS;
/// `broker.session.timeout.ms` as it is by default.
const SESSION: Duration = Duration::from_secs(3);
/// How long a program that is told to stop may take.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

/// Producers that send one record after the other, each as soon as the one before is acknowledged; and readers of followers, which
/// hold nothing up.
struct Load {
    acknowledged: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
    _readers: JoinSet<()>,
}

impl Load {
    async fn start(cluster: &Cluster) -> Self {
        let mut load = Self {
            acknowledged: Arc::default(),
            stop: Arc::default(),
            producers: Vec::new(),
            _readers: NODES.map(|node| wait_at(Calls::of(cluster.agent(node)))).into_iter().collect(),
        };
        for _ in 0..PRODUCERS {
            let bootstrap = cluster.leaders().map(|server| server.address().into()).collect();
            let client = Client::new(ClientConfig::new(bootstrap)).expect("there are nodes to ask");
            let config = ProducerConfig { linger: Duration::ZERO, ..ProducerConfig::default() };
            let producer = Producer::new(client, config).expect("good settings");
            let (acknowledged, stop) = (Arc::clone(&load.acknowledged), Arc::clone(&load.stop));
            load.producers.push(tokio::spawn(async move {
                let topic = TOPIC.parse().expect("a name");
                while !stop.load(Ordering::Relaxed) {
                    let record = ProducerRecord::of_value(vec![b'x'; 100]);
                    let delivery = producer.send(&topic, record).await.expect("there is room");
                    delivery.wait().await.expect("delivered");
                    acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                }
            }));
        }
        load.until_acknowledged(Instant::now()).await;
        load
    }

    /// Waits until enough was acknowledged after `since`.
    async fn until_acknowledged(&self, since: Instant) {
        wait::until("acknowledgements", 2 * wait::SOON, async || {
            (self.after(since).len() > ENOUGH + 1).then_some(())
        })
        .await;
    }

    /// The longest time without an acknowledgement that ended after `since`.
    fn gap(&self, since: Instant) -> Duration {
        let times = self.after(since);
        let gaps = times.iter().zip(times.iter().skip(1)).map(|(one, next)| next.duration_since(*one));
        gaps.max().expect("enough was acknowledged")
    }

    /// When something was acknowledged after `since`, and the last time before.
    fn after(&self, since: Instant) -> Vec<Instant> {
        let times = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        let first = times.partition_point(|at| *at < since).saturating_sub(1);
        times.get(first..).unwrap_or_default().to_vec()
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            producer.await.expect("every record is delivered");
        }
    }
}

/// Waits at an agent for what comes, again and again: a consumer that reads that follower.
async fn wait_at(agent: Calls) {
    let mut next = 0;
    loop {
        let request = v1::FetchRequest {
            max_wait_ms: Some(500),
            partitions: vec![calls::from(TOPIC, 0, next)],
            ..Default::default()
        };
        let answer = agent.log.clone().fetch(request).await.map(tonic::Response::into_inner);
        let found = answer.ok().and_then(|answer| answer.partitions.into_iter().next());
        match found.filter(|found| found.error.is_none()).and_then(|found| found.high_watermark) {
            Some(high_watermark) => next = high_watermark,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Prints what was measured and holds the longest against the bound.
fn report(what: &str, aim: Duration, bound: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let longest = times.last().copied().unwrap_or_default();
    println!("{what}: median {median:.3?}, max {longest:.3?} of {} (aim {aim:?}): {times:.3?}", times.len());
    assert!(median < bound, "{what}: {times:?}");
}

fn all_rounds() -> u32 {
    rounds(4, 20)
}

/// Kills the program that `whom` names of the leader's node, round by round.
async fn killed(what: &str, whom: impl Fn(i32) -> ServerId) {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster).await;
    let mut gaps = Vec::new();
    for _ in 0..all_rounds() {
        let id = whom(leader(&cluster).await);
        cluster.server_mut(id).kill();
        let since = Instant::now();
        load.until_acknowledged(since).await;
        gaps.push(load.gap(since));
        cluster.start_and_wait(id).await;
        until_all_in_sync(&cluster).await;
    }
    load.end().await;
    let aim = Duration::from_millis(500);
    report(what, aim, 10 * aim, gaps);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_svc_is_replaced_within_half_a_second() {
    killed("kill -9 of the leader-svc", |leads| (leads, Program::LeaderSvc)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_of_a_follower_in_sync_holds_acknowledgements_up_for_less_than_half_a_second() {
    let follower = |leads| NODES.into_iter().find(|node| *node != leads).expect("there are three");
    let what = "kill -9 of the agent of a follower in sync";
    killed(what, |leads| (follower(leads), Program::FollowerAgent)).await;
}

/// Both programs are stopped: ports accept, and nothing is ever answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaders_node_that_falls_silent_is_replaced_within_a_second_after_its_session() {
    let cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster).await;
    let mut gaps = Vec::new();
    for _ in 0..all_rounds() {
        let silent = leader(&cluster).await;
        for program in [cluster.leader(silent), cluster.agent(silent)] {
            program.process().freeze();
        }
        let since = Instant::now();
        load.until_acknowledged(since).await;
        gaps.push(load.gap(since));
        for program in [cluster.leader(silent), cluster.agent(silent)] {
            program.process().thaw();
        }
        until_all_in_sync(&cluster).await;
    }
    load.end().await;
    let grace = Duration::from_secs(1);
    report("the leader's whole node silent", SESSION + grace, SESSION + 10 * grace, gaps);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_svc_that_is_told_to_stop_hands_over_within_a_fifth_of_a_second() {
    let mut cluster = three_nodes_with_topic("fsync").await;
    let load = Load::start(&cluster).await;
    let (mut gaps, mut stops) = (Vec::new(), Vec::new());
    for _ in 0..all_rounds() {
        let old = leader(&cluster).await;
        let since = Instant::now();
        let status = cluster.server_mut((old, Program::LeaderSvc)).terminate(STOPPED_WITHIN).await;
        assert_eq!(status.code(), Some(0), "{}", cluster.leader(old).output());
        stops.push(since.elapsed());
        until_other_leader(&cluster, old).await;
        load.until_acknowledged(Instant::now()).await;
        gaps.push(load.gap(since));
        cluster.start_and_wait((old, Program::LeaderSvc)).await;
        until_all_in_sync(&cluster).await;
    }
    load.end().await;
    let aim = Duration::from_millis(200);
    report("SIGTERM of the leader-svc", aim, 10 * aim, gaps);
    report("SIGTERM of the leader-svc, until it has ended", STOPPED_WITHIN, STOPPED_WITHIN, stops);
}
