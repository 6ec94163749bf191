//! A pair under load: consumers that fetch one small batch each time, beside a few appends that the follower fetches.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, to};
use system_tests::cluster::{Cluster, Plan, ServerId};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::Load;
use crate::figures::cpu_seconds;

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);

/// The topic that consumers read.
const READ: &str = "read";
/// The topic that is appended to and followed.
const WRITTEN: &str = "written";
/// How often a batch is appended.
const APPEND_EVERY: Duration = Duration::from_millis(5);

/// How long a pair's CPU is counted on after its load: what is gathered is sent within two seconds.
const AFTERWARDS: Duration = Duration::from_millis(2500);

/// A leader-svc and a follower-agent.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    load: Load,
    cluster: Cluster,
    connections: Vec<Calls>,
}

/// What a pair did under load, and what it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) fetches_per_s: f64,
    /// CPU of leader and agent by consumer fetch, in microseconds.
    pub(crate) both_us: f64,
    /// CPU of the leader by consumer fetch, in microseconds.
    pub(crate) leader_us: f64,
    /// CPU of the agent by append, in microseconds.
    pub(crate) agent_us: f64,
}

impl Pair {
    /// Starts it, with every setting at its default but for the collector.
    pub(crate) async fn start(name: &'static str, collector: Option<SocketAddr>, load: Load) -> Self {
        let mut plan = Plan::new().program(LEADER.0, LEADER.1).program(AGENT.0, AGENT.1);
        if let Some(address) = collector {
            for program in [LEADER.1, AGENT.1] {
                plan = plan.set(program, "otlp.endpoint", address);
            }
        }
        let cluster = plan.start().await;
        let calls = Calls::of(cluster.leader(LEADER.0));
        calls.until_nodes(2).await;
        for topic in [READ, WRITTEN] {
            calls.create_topic(topic, 1, &[LEADER.0, AGENT.0], &[]).await;
            calls.append(topic, 0, batch(1, 100)).await;
            calls.until_in_sync(topic, 1).await;
        }
        let connections = (0..load.connections).map(|_| Calls::of(cluster.leader(LEADER.0))).collect();
        Self { name, load, cluster, connections }
    }

    /// What it takes to be under load for the load's time, with what is told of it afterwards.
    pub(crate) async fn measure(&self) -> Measured {
        let before = self.cpu();
        let begun = Instant::now();
        let (fetched, appended) = self.work(begun + self.load.time).await;
        let took = begun.elapsed().as_secs_f64();
        sleep(AFTERWARDS).await;
        let after = self.cpu();
        let [leader, agent] = [after[0] - before[0], after[1] - before[1]];
        let micros = |seconds: f64, count: u32| seconds * 1e6 / f64::from(count);
        Measured {
            fetches_per_s: f64::from(fetched) / took,
            both_us: micros(leader + agent, fetched),
            leader_us: micros(leader, fetched),
            agent_us: micros(agent, appended),
        }
    }

    /// CPU seconds of leader and agent so far.
    fn cpu(&self) -> [f64; 2] {
        [LEADER, AGENT].map(|id| cpu_seconds(self.cluster.server(id).process().id()))
    }

    /// The load until then; how many fetches and appends it was.
    async fn work(&self, until: Instant) -> (u32, u32) {
        let every = Duration::from_secs(1) * self.load.connections / self.load.rate;
        let fetching = self.connections.iter().map(|calls| fetch_until(calls.clone(), every, until));
        let fetching = futures::future::join_all(fetching.map(tokio::spawn));
        let appending = tokio::spawn(append_until(self.connections[0].clone(), until));
        let (fetched, appended) = tokio::join!(fetching, appending);
        let fetched = fetched.into_iter().map(|count| count.expect("every fetch is answered")).sum();
        (fetched, appended.expect("every append is acknowledged"))
    }
}

/// Fetches the batch again and again; how often.
async fn fetch_until(calls: Calls, every: Duration, until: Instant) -> u32 {
    let mut pace = interval(every);
    // What was late is made up for, as far as the leader answers so fast.
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut count = 0;
    while Instant::now() < until {
        pace.tick().await;
        let answer = calls.fetch_one(READ, 0, 0).await;
        assert!(!answer.records.is_empty(), "there is a batch");
        count += 1;
    }
    count
}

/// Appends again and again; how often.
async fn append_until(calls: Calls, until: Instant) -> u32 {
    let mut pace = interval(APPEND_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0;
    while Instant::now() < until {
        pace.tick().await;
        let answer = calls.produce(v1::Acks::All, to(WRITTEN, 0, batch(1, 100))).await;
        assert!(answer.error.is_none(), "{:?}", answer.error);
        count += 1;
    }
    count
}
