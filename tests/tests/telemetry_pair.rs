//! What the programs tell a collector: a record's trace from its Produce to both followers, the lag of each, metrics.

use std::collections::BTreeMap;
use std::process::Stdio;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_telemetry::names::{attribute, metric, span};
use highwater_types::{Program, TraceContext};
use system_tests::cluster::Cluster;
use system_tests::fake_collector::{FakeCollector, TakenSpan};
use system_tests::programs;
use system_tests::traced_pair::{FAST, SLOW, TOPIC, TracedPair};
use system_tests::wait;
use tokio::io::AsyncWriteExt as _;

const METHOD: &str = "highwater.v1.LogService";

type Attributes = BTreeMap<String, String>;

/// What a `replicate` span must say.
const LAG_ATTRIBUTES: [&str; 17] = [
    attribute::MESSAGING_SYSTEM,
    attribute::MESSAGING_OPERATION,
    attribute::TOPIC,
    attribute::PARTITION,
    attribute::FOLLOWER_ID,
    attribute::LEADER_ID,
    attribute::LEADER_EPOCH,
    attribute::FETCH_OFFSET,
    attribute::END_OFFSET,
    attribute::HIGH_WATERMARK,
    attribute::LOG_END,
    attribute::RECORDS,
    attribute::BYTES,
    attribute::LAG_RECORDS,
    attribute::LAG_BYTES,
    attribute::LAG_MS,
    attribute::LAG_CAUSE,
];

/// The spans of a trace by name, of one service.
fn of_trace(collector: &FakeCollector, trace: TraceContext, service: &str, name: &str) -> Vec<TakenSpan> {
    let id = format!("{:032x}", trace.trace_id());
    let mut found = collector.spans_of(service, name);
    found.retain(|taken| taken.trace_id() == id);
    found
}

/// The lag span of one follower within a trace.
async fn lag_of(collector: &FakeCollector, trace: TraceContext, follower: i32) -> TakenSpan {
    let name = format!("{} {TOPIC}", span::REPLICATE);
    let find = async || {
        let found = of_trace(collector, trace, "follower-agent", &name);
        found.into_iter().find(|taken| taken.attribute(attribute::FOLLOWER_ID) == follower.to_string())
    };
    wait::until("the lag span", wait::SOON, find).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_records_trace_leads_to_both_followers_and_the_slow_one_is_seen_by_its_lag() {
    let collector = FakeCollector::start().await;
    let pair = TracedPair::start(collector.address(), |_| {}).await;
    pair.create_topic().await;
    pair.until_parked().await;
    let trace = TraceContext::new(0xabcd_ef01, 0x77, true).unwrap();
    pair.produce(trace).await;

    let (slow, fast) = (lag_of(&collector, trace, SLOW).await, lag_of(&collector, trace, FAST).await);
    assert!((300..=600).contains(&slow.millis()), "the slow one: {} ms", slow.millis());
    assert!(fast.millis() + 150 <= slow.millis(), "the other: {} ms", fast.millis());
    for lag in [&slow, &fast] {
        for name in LAG_ATTRIBUTES {
            assert!(!lag.attribute(name).is_empty(), "{name}");
        }
        assert_eq!(lag.attribute(attribute::RECORDS), "10");
        assert_eq!(lag.attribute(attribute::LAG_RECORDS), "0", "it holds everything now");
        let told: u64 = lag.attribute(attribute::LAG_MS).parse().unwrap();
        assert!(told.abs_diff(lag.millis()) <= 1, "{told} told, {} shown", lag.millis());
    }
    assert_eq!(slow.attribute(attribute::LAG_CAUSE), "network");

    let produce = one(&collector, trace, "leader-svc", &format!("{METHOD}/Produce")).await;
    assert_eq!(produce.span.parent_span_id, trace.span_id().to_be_bytes(), "below the producer's span");
    assert_eq!(produce.attribute(attribute::RPC_STATUS), "OK");
    let append = one(&collector, trace, "leader-svc", span::APPEND).await;
    let commit = one(&collector, trace, "leader-svc", span::HW_ADVANCE).await;
    assert_eq!(append.span.parent_span_id, produce.span.span_id);
    assert_eq!(commit.span.parent_span_id, produce.span.span_id);
    for lag in [&slow, &fast] {
        assert_eq!(lag.span.parent_span_id, append.span.span_id, "below the leader's append");
        for part in [span::REPLICA_APPEND, span::REPLICA_FLUSH] {
            let found = of_trace(&collector, trace, "follower-agent", part);
            assert!(found.iter().any(|part| part.span.parent_span_id == lag.span.span_id), "{part}");
        }
        the_fetch_that_carried_it_is_linked(&collector, &append, lag).await;
    }
}

/// The only span of a trace by that name.
async fn one(collector: &FakeCollector, trace: TraceContext, service: &str, name: &str) -> TakenSpan {
    let find = async || of_trace(collector, trace, service, name).into_iter().next();
    let found = wait::until(name, wait::SOON, find).await;
    assert_eq!(of_trace(collector, trace, service, name).len(), 1, "{name}");
    found
}

/// A lag span links to the fetch that brought the records, whose server's span links to the append.
async fn the_fetch_that_carried_it_is_linked(collector: &FakeCollector, append: &TakenSpan, lag: &TakenSpan) {
    let fetch = format!("{METHOD}/Fetch");
    let links_to =
        |from: &TakenSpan, to: &TakenSpan| from.span.links.iter().any(|link| link.span_id == to.span.span_id);
    let find = async || {
        let clients = collector.spans_of("follower-agent", &fetch);
        let client = clients.into_iter().find(|client| links_to(lag, client))?;
        let servers = collector.spans_of("leader-svc", &fetch);
        let server = servers.into_iter().find(|server| server.span.parent_span_id == client.span.span_id)?;
        let parks = collector.spans_of("leader-svc", span::PARK);
        let park = parks.into_iter().find(|park| park.span.parent_span_id == server.span.span_id)?;
        Some((client, server, park))
    };
    let (client, server, park) = wait::until("the fetch's spans", wait::SOON, find).await;
    assert_eq!(client.trace_id(), server.trace_id());
    assert_eq!(client.attribute(attribute::RPC_SYSTEM), "grpc");
    assert!(!client.attribute(attribute::SERVER_PORT).is_empty());
    assert!(links_to(&server, append), "to the records that it carried");
    assert_eq!(server.attribute(attribute::WAIT_OUTCOME), "min_bytes");
    assert_eq!(park.attribute(attribute::WAIT_OUTCOME), "min_bytes", "it was parked");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_polls_are_counted_and_have_no_spans_and_metrics_tell_how_replication_is() {
    let collector = FakeCollector::start().await;
    let polls_often = |cluster: &mut Cluster| {
        for agent in [SLOW, FAST] {
            cluster.server_mut((agent, Program::FollowerAgent)).set("replica.fetch.wait.max.ms", "200ms");
        }
    };
    let mut pair = TracedPair::start(collector.address(), polls_often).await;
    pair.create_topic().await;
    pair.produce(TraceContext::new(1, 1, true).unwrap()).await;
    let idle = |service: &str| {
        let values = collector.metric(service, metric::FETCHES);
        let is_idle =
            |about: &Attributes| about.get(attribute::FETCH_OUTCOME).is_some_and(|outcome| outcome == "idle");
        values.iter().filter(|(_, about)| is_idle(about)).map(|(value, _)| *value).sum::<f64>()
    };
    let spans = || ["follower-agent", "leader-svc"].map(|service| fetch_spans(&collector, service));
    let (agent_before, spans_before) = (idle("follower-agent"), spans());
    wait::until("idle polls", wait::SOON, async || {
        (idle("follower-agent") > agent_before + 6.0).then_some(())
    })
    .await;
    assert!(idle("leader-svc") > 0.0);
    let idle_polls = 6;
    for (after, before) in spans().into_iter().zip(spans_before) {
        assert!(after < before + idle_polls, "no span per idle poll: {before} before, {after} after");
    }

    let value = |service: &str, name: &str| collector.metric(service, name).first().map(|(value, _)| *value);
    assert_eq!(value("leader-svc", metric::UNDER_REPLICATED), Some(0.0));
    assert_eq!(value("leader-svc", metric::FAILED), Some(0.0));
    assert_eq!(value("follower-agent", metric::FAILED), Some(0.0));
    wait::until("parked polls", wait::SOON, async || {
        (value("leader-svc", metric::PARKED)? >= 1.0).then_some(())
    })
    .await;
    for (service, names) in [
        ("leader-svc", &[metric::ISR_SIZE, metric::LAG_BYTES, metric::LAG_TIME, metric::FETCH_WAIT][..]),
        ("leader-svc", &[metric::APPEND, metric::FLUSH, metric::LAG_RECORDS, metric::RPC_SERVER_DURATION]),
        ("follower-agent", &[metric::APPEND, metric::FLUSH, metric::LAG, metric::LAG_RECORDS]),
        ("follower-agent", &[metric::RPC_CLIENT_DURATION]),
    ] {
        for name in names {
            assert!(!collector.metric(service, name).is_empty(), "{service} sends no {name}");
        }
    }
    a_dead_follower_is_told_of(&collector, &mut pair).await;
}

async fn a_dead_follower_is_told_of(collector: &FakeCollector, pair: &mut TracedPair) {
    pair.cluster.server_mut((SLOW, Program::FollowerAgent)).kill();
    let calls = pair.calls();
    let sent = system_tests::calls::to(TOPIC, 0, system_tests::calls::batch(5, 100));
    calls.produce(v1::Acks::Leader, sent).await;
    let lag = async || {
        let values = collector.metric("leader-svc", metric::LAG_RECORDS);
        values.iter().find_map(|(value, about)| {
            let is_it = about.get(attribute::FOLLOWER_ID) == Some(&SLOW.to_string())
                && about.get(attribute::TOPIC).is_some_and(|topic| topic == TOPIC);
            (is_it && *value >= 5.0).then_some(())
        })
    };
    wait::until("the dead follower's lag", wait::SOON, lag).await;
    let same_word = async || {
        let rows = calls.rows(TOPIC).await;
        let described = rows.first()?.followers.iter().find(|row| row.replica_id == Some(SLOW))?.cause();
        let told = collector.metric("leader-svc", metric::LAGGING);
        let is_it = |about: &Attributes| {
            about.get(attribute::FOLLOWER_ID) == Some(&SLOW.to_string())
                && about.get(attribute::TOPIC).is_some_and(|topic| topic == TOPIC)
        };
        let told = told.iter().find(|(_, about)| is_it(about))?.1.get(attribute::LAG_CAUSE)?.clone();
        (told == highwater_wire::lag::cause_name(described)).then_some(told)
    };
    let cause = wait::until("the cause, in one word everywhere", wait::SOON, same_word).await;
    assert_ne!(cause, "none");
    // It has a replica of either topic.
    wait::until("both partitions to lack a replica", wait::SOON, async || {
        let values = collector.metric("leader-svc", metric::UNDER_REPLICATED);
        values.first().is_some_and(|(value, _)| *value == 2.0).then_some(())
    })
    .await;
}

fn fetch_spans(collector: &FakeCollector, service: &str) -> usize {
    collector.spans_of(service, &format!("{METHOD}/Fetch")).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_produced_by_the_tool_is_found_by_the_trace_that_it_prints_or_is_given() {
    let collector = FakeCollector::start().await;
    let pair = TracedPair::start(collector.address(), |_| {}).await;
    pair.create_topic().await;
    let printed = tool_produces(&pair, &["--trace"]).await;
    let given = TraceContext::new(0xfeed, 0x77, true).unwrap();
    let told = tool_produces(&pair, &["--traceparent", &given.to_string()]).await;
    assert_eq!(told, format!("{:032x}", given.trace_id()));
    for id in [printed, told] {
        let find = async || {
            let calls = collector.spans_of("leader-svc", &format!("{METHOD}/Produce"));
            calls.into_iter().find(|call| call.trace_id() == id)
        };
        wait::until("the Produce of that trace", wait::SOON, find).await;
    }
}

/// With the ratio 0 no trace begins by itself; the records of a producer that traces them are followed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_its_producer_traces_is_followed_to_both_followers_whatever_the_ratio() {
    let collector = FakeCollector::start().await;
    let traces_nothing = |cluster: &mut Cluster| {
        let agents = [(SLOW, Program::FollowerAgent), (FAST, Program::FollowerAgent)];
        for id in [(1, Program::LeaderSvc)].into_iter().chain(agents) {
            cluster.server_mut(id).set("otlp.traces.sample.ratio", "0");
            cluster.server_mut(id).set("otlp.traces.lag.ms", "1h");
        }
    };
    let pair = TracedPair::start(collector.address(), traces_nothing).await;
    pair.create_topic().await;
    pair.until_parked().await;
    pair.produce(TraceContext::new(0xdead, 0x77, false).unwrap()).await;
    let printed = tool_produces(&pair, &["--trace"]).await;
    let trace = TraceContext::new(u128::from_str_radix(&printed, 16).expect("an id"), 1, true).unwrap();
    let append = one(&collector, trace, "leader-svc", span::APPEND).await;
    for follower in [SLOW, FAST] {
        let lag = lag_of(&collector, trace, follower).await;
        assert_eq!(lag.span.parent_span_id, append.span.span_id, "below the leader's append");
        assert_eq!(lag.attribute(attribute::RECORDS), "1");
    }
    let others = collector.spans().into_iter().filter(|taken| taken.trace_id() != printed);
    assert_eq!(others.map(|taken| taken.span.name).collect::<Vec<_>>(), Vec::<String>::new());
}

/// The trace that `highwater produce` prints.
async fn tool_produces(pair: &TracedPair, options: &[&str]) -> String {
    let mut command = tokio::process::Command::from(programs::command("highwater"));
    command.args(["produce", TOPIC, "--bootstrap", &pair.cluster.bootstrap()]).args(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tool = command.spawn().expect("the tool starts");
    tool.stdin.take().expect("a pipe").write_all(b"one\n").await.expect("it reads");
    let output = tool.wait_with_output().await.expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let last = text.lines().last().and_then(|line| line.trim().strip_prefix("trace "));
    last.unwrap_or_else(|| panic!("no trace in {text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_failed_tells_its_status_by_name() {
    let collector = FakeCollector::start().await;
    let mut pair = TracedPair::start(collector.address(), |_| {}).await;
    pair.create_topic().await;
    pair.cluster.server_mut((1, Program::LeaderSvc)).kill();
    let find = async || {
        let calls = collector.spans_of("follower-agent", &format!("{METHOD}/Fetch"));
        calls.into_iter().find(|call| call.attributes.contains_key(attribute::ERROR_TYPE))
    };
    let failed = wait::until("a failed call", wait::SOON, find).await;
    let status = failed.attribute(attribute::RPC_STATUS);
    assert_eq!(failed.attribute(attribute::ERROR_TYPE), status);
    assert!(["UNAVAILABLE", "UNKNOWN", "CANCELLED", "INTERNAL"].contains(&status), "{status}");
    assert_eq!(failed.span.status.as_ref().map(|status| status.code), Some(2), "an error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_traceparent_begins_a_new_trace_and_the_call_is_served() {
    let collector = FakeCollector::start().await;
    let pair = TracedPair::start(collector.address(), |_| {}).await;
    let mut client = ClusterServiceClient::new(pair.cluster.leader(1).channel());
    let mut request = tonic::Request::new(v1::DescribeTopicsRequest::default());
    request.metadata_mut().insert("traceparent", "00-12345-67-01".parse().unwrap());
    client.describe_topics(request).await.expect("it is served");
    let find = async || {
        collector.spans_of("leader-svc", "highwater.v1.ClusterService/DescribeTopics").into_iter().next()
    };
    let span = wait::until("the call's span", wait::SOON, find).await;
    assert!(span.span.parent_span_id.is_empty(), "a root");
    assert_ne!(span.trace_id(), "0".repeat(32));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_programs_make_all_the_time_begin_no_trace_but_a_caller_that_traces_them_is_heeded() {
    let collector = FakeCollector::start().await;
    let pair = TracedPair::start(collector.address(), |_| {}).await;
    let mut client = ClusterServiceClient::new(pair.cluster.leader(1).channel());
    for _ in 0..3 {
        client.describe_cluster(v1::DescribeClusterRequest::default()).await.expect("it is served");
        let unnamed = v1::RegisterAgentRequest::default();
        client.register_agent(unnamed).await.expect_err("it names no node");
    }
    let trace = TraceContext::new(0xbea7, 0x77, true).unwrap();
    let mut request = tonic::Request::new(v1::DescribeClusterRequest::default());
    request.metadata_mut().insert("traceparent", trace.to_string().parse().expect("it is text"));
    client.describe_cluster(request).await.expect("it is served");
    one(&collector, trace, "leader-svc", "highwater.v1.ClusterService/DescribeCluster").await;
    let upkeep = |taken: &TakenSpan| {
        ["DescribeCluster", "RegisterAgent"].iter().any(|method| taken.span.name.ends_with(method))
    };
    // What was called before it was sent before it, or with it.
    let spans = collector.spans().into_iter().filter(upkeep);
    assert_eq!(spans.map(|taken| taken.trace_id()).collect::<Vec<_>>(), [format!("{:032x}", 0xbea7)]);
}
