//! A leader and two agents whose telemetry is on, one of which gets its answers late: what the tests of traces look at.

use std::net::SocketAddr;
use std::time::Duration;

use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_types::{Program, TraceContext};
use tonic::Request;

use crate::calls::{Calls, batch, to};
use crate::cluster::{Cluster, Plan, ServerId};
use crate::proxy::Proxy;
use crate::wait;

/// How much later the slow agent gets its answers.
pub const LATE: Duration = Duration::from_millis(300);

/// How long an idle poll waits: long, so that records find the agents waiting.
const PARK: &str = "5s";

/// A poll of this age is far from its end.
const PARKED_FOR_MS: u64 = 3_000;

/// The topic of both agents.
pub const TOPIC: &str = "orders";

/// A topic that only the slow agent follows.
const FIRST: &str = "first";

/// The agent whose answers are late.
pub const SLOW: i32 = 2;

/// The other one.
pub const FAST: i32 = 3;

const LEADER: ServerId = (1, Program::LeaderSvc);

/// The pair, and the proxy before its leader.
#[derive(Debug)]
pub struct TracedPair {
    /// The programs.
    pub cluster: Cluster,
    proxy: Proxy,
}

impl TracedPair {
    /// Starts it, with every trace recorded; `prepare` may change the cluster before it starts.
    ///
    /// # Panics
    /// When it does not serve.
    pub async fn start(collector: SocketAddr, prepare: impl FnOnce(&mut Cluster)) -> Self {
        let plan = Plan::new().program(1, Program::LeaderSvc);
        let plan = plan.program(SLOW, Program::FollowerAgent).program(FAST, Program::FollowerAgent);
        let proxy = Proxy::start(plan.address(LEADER)).await;
        let mut plan = plan.advertise(LEADER, proxy.address());
        for program in [Program::LeaderSvc, Program::FollowerAgent] {
            plan = plan
                .set(program, "otlp.endpoint", collector)
                .set(program, "otlp.traces.sample.ratio", "1")
                .set(program, "otlp.metrics.interval.ms", "200ms");
        }
        let plan = plan.set(Program::FollowerAgent, "replica.fetch.wait.max.ms", PARK);
        let mut cluster = plan.without_starting();
        prepare(&mut cluster);
        for id in [LEADER, (SLOW, Program::FollowerAgent), (FAST, Program::FollowerAgent)] {
            cluster.start_and_wait(id).await;
        }
        let pair = Self { cluster, proxy };
        pair.calls().until_nodes(3).await;
        pair
    }

    /// The leader, to be called.
    #[must_use]
    pub fn calls(&self) -> Calls {
        Calls::of(self.cluster.leader(1))
    }

    /// Creates [`TOPIC`]; the slow agent's answers are late from now on.
    pub async fn create_topic(&self) {
        let calls = self.calls();
        // Only the slow agent follows this one, so only its connection is open.
        calls.create_topic(FIRST, 1, &[1, SLOW], &[]).await;
        calls.until_in_sync(FIRST, 1).await;
        wait::until("the connection", wait::SOON, async || (self.proxy.open() > 0).then_some(())).await;
        self.proxy.answer_late_on_open(LATE);
        calls.create_topic(TOPIC, 1, &[1, SLOW, FAST], &[]).await;
        calls.until_in_sync(TOPIC, 2).await;
        // Ends the slow agent's poll, which is older than the topic: the next one names both.
        calls.append(FIRST, 0, batch(1, 100)).await;
    }

    /// Produces one batch of ten records with `acks=all`, as a part of this trace.
    ///
    /// # Panics
    /// When it is not acknowledged.
    pub async fn produce(&self, trace: TraceContext) {
        let mut client = LogServiceClient::new(self.cluster.leader(1).channel());
        let mut request = Request::new(v1::ProduceRequest {
            acks: v1::Acks::All.into(),
            partitions: vec![to(TOPIC, 0, batch(10, 100))],
            ..Default::default()
        });
        request.metadata_mut().insert("traceparent", trace.to_string().parse().expect("it is text"));
        let answer = client.produce(request).await.expect("the leader answers").into_inner();
        let error = answer.partitions.first().expect("one partition").error.as_ref();
        assert!(error.is_none(), "{error:?}");
    }

    /// Waits until both agents have a poll parked at the leader: they have everything, know that it is committed, and
    /// asked less than a wait ago.
    pub async fn until_parked(&self) {
        for (topic, followers) in [(FIRST, 1), (TOPIC, 2)] {
            let parked = async || self.are_parked(topic, followers).await.then_some(());
            wait::until("both agents to be parked", wait::SOON, parked).await;
        }
    }

    async fn are_parked(&self, topic: &str, followers: usize) -> bool {
        let rows = self.calls().rows(topic).await;
        rows.first().is_some_and(|row| {
            let waits = |follower: &v1::FollowerProgress| {
                follower.lag_records == Some(0)
                    && follower.high_watermark == row.high_watermark
                    && follower.last_fetch_age_ms.is_some_and(|age| age < PARKED_FOR_MS)
            };
            row.followers.len() == followers && row.followers.iter().all(waits)
        })
    }
}
