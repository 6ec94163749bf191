//! Replication lag in the real Jaeger, through the real collector, by deploy's configuration; and what a collector that is
//! not well costs replication.

#![allow(
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "figures for people; a panic fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use highwater_proto::v1;
use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_telemetry::names::{attribute, metric, span};
use highwater_types::{Program, TraceContext};
use system_tests::cluster::Cluster;
use system_tests::fake_collector::{FakeCollector, Mood};
use system_tests::parts;
use system_tests::traced_pair::{FAST, SLOW, TOPIC, TracedPair};
use system_tests::tracing_parts::{JaegerSpan, TracingParts};
use system_tests::wait;

fn operation() -> String {
    format!("{} {TOPIC}", span::REPLICATE)
}

fn trace_id(trace: TraceContext) -> String {
    format!("{:032x}", trace.trace_id())
}

/// The lag spans of both followers in a record's trace: the slow one's, then the other's.
async fn lags(parts: &TracingParts, trace: TraceContext) -> [JaegerSpan; 2] {
    let find = async || {
        let spans = parts.trace(&trace_id(trace)).await;
        let of = |follower: i32| {
            let is_it = |found: &&JaegerSpan| {
                found.operation == operation()
                    && found.tags.get(attribute::FOLLOWER_ID) == Some(&follower.to_string())
            };
            spans.iter().find(is_it).cloned()
        };
        Some([of(SLOW)?, of(FAST)?])
    };
    wait::until("the trace of the record", wait::SOON, find).await
}

fn assert_lags([slow, fast]: &[JaegerSpan; 2]) {
    let (slow_ms, fast_ms) = (slow.duration_us / 1000, fast.duration_us / 1000);
    println!("lag of the slow follower {slow_ms} ms, of the other {fast_ms} ms");
    assert!((300..=600).contains(&slow_ms), "the slow one: {slow_ms} ms");
    assert!(fast_ms + 150 <= slow_ms, "the other: {fast_ms} ms");
    for lag in [slow, fast] {
        let told: u64 = lag.tags[attribute::LAG_MS].parse().expect("never negative");
        assert!(told.abs_diff(lag.duration_us / 1000) <= 1, "{told}");
    }
}

/// Starts the pair and produces one record whose trace is known.
async fn one_record(parts: &TracingParts, prepare: impl FnOnce(&mut Cluster)) -> (TracedPair, TraceContext) {
    let pair = TracedPair::start(parts.otlp, prepare).await;
    pair.create_topic().await;
    pair.until_parked().await;
    let trace = TraceContext::new(0x5eed_0000 + u128::from(rand::random::<u32>()), 0x77, true).unwrap();
    pair.produce(trace).await;
    (pair, trace)
}

#[tokio::test(flavor = "multi_thread")]
async fn jaeger_shows_the_lag_of_each_follower_and_the_collectors_figures_agree() {
    let Some(parts) = TracingParts::start().await else { return };
    let (pair, trace) = one_record(&parts, |_| {}).await;
    let found = lags(&parts, trace).await;
    assert_lags(&found);
    let services = parts.services().await.expect("Jaeger answers");
    for service in ["leader-svc", "follower-agent"] {
        assert!(services.iter().any(|known| known == service), "{services:?}");
    }
    let whole = parts.trace(&trace_id(trace)).await;
    for (service, operation) in [
        ("leader-svc", "highwater.v1.LogService/Produce"),
        ("leader-svc", span::APPEND),
        ("leader-svc", span::HW_ADVANCE),
        ("follower-agent", span::REPLICA_APPEND),
        ("follower-agent", span::REPLICA_FLUSH),
    ] {
        let is_it = |found: &JaegerSpan| found.service == service && found.operation == operation;
        assert!(whole.iter().any(is_it), "{service} {operation} in {whole:?}");
    }
    for name in [attribute::PARTITION, attribute::LEADER_EPOCH, attribute::END_OFFSET, attribute::LAG_BYTES] {
        assert!(found.iter().all(|lag| lag.tags.contains_key(name)), "{name}");
    }
    assert_eq!(found[0].tags[attribute::LAG_CAUSE], "network");
    let search = async |follower: i32| {
        let of = ("follower-agent", &*operation());
        let found = parts
            .search(of, (attribute::FOLLOWER_ID, &follower.to_string()), Duration::from_millis(200))
            .await;
        found.len()
    };
    assert!(search(SLOW).await > 0, "a search for 200 ms finds the slow follower");
    assert_eq!(search(FAST).await, 0, "and not the other");
    the_collectors_p95_agrees(&parts, &pair).await;
    the_page_has_the_documented_names(&parts).await;
}

/// deploy/observability.md says what Prometheus calls each metric.
async fn the_page_has_the_documented_names(parts: &TracingParts) {
    /// Not on a page where nothing failed and nothing is throttled.
    const ABSENT: [&str; 2] = ["replication_errors_total", "replication_throttle_duration_seconds_total"];
    const OF_THE_COLLECTOR: [&str; 2] = ["traces_span_metrics_", "target_info"];
    let is_ours = |name: &str| {
        ["replication_", "rpc_"].iter().chain(&OF_THE_COLLECTOR).any(|prefix| name.starts_with(prefix))
    };
    let words = include_str!("../../deploy/observability.md").lines().filter(|line| line.starts_with("| `"));
    let words = words.flat_map(|row| row.split('`').skip(1).step_by(2));
    let documented: BTreeSet<&str> = words.filter(|name| is_ours(name) && !name.contains('.')).collect();
    let shown = wait::until("every metric", wait::SOON, async || {
        let shown = parts.metric_names().await;
        documented.iter().all(|name| shown.contains(*name) || ABSENT.contains(name)).then_some(shown)
    })
    .await;
    let unknown: Vec<_> = shown.iter().filter(|name| !documented.contains(name.as_str())).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "names that are not documented");
}

/// M4: many lags, as traces and as the collector's histogram.
async fn the_collectors_p95_agrees(parts: &TracingParts, pair: &TracedPair) {
    const RECORDS: u64 = 20;
    // Prometheus takes a rate from what it has seen grow: it has to know the lag's series before.
    let is_known = async || parts.monitor(("follower-agent", &operation()), 0.95).await;
    wait::until("Jaeger's Monitor tab to know the lag", wait::SOON, is_known).await;
    let mut millis = Vec::new();
    for number in 1..=RECORDS {
        let trace = TraceContext::new(0xf00d_0000 + u128::from(number), 0x77, true).unwrap();
        pair.until_parked().await;
        pair.produce(trace).await;
        millis.push(lags(parts, trace).await[0].duration_us as f64 / 1000.0);
    }
    millis.sort_by(f64::total_cmp);
    let of_traces = millis[millis.len() * 95 / 100 - 1];
    let of_metrics = async || {
        let page = parts.metrics_page().await;
        let buckets = buckets(&page, SLOW);
        let count = buckets.last()?.1;
        (count >= RECORDS as f64).then(|| quantile(&buckets, 0.95))
    };
    let (low, high) = wait::until("the collector's histogram", wait::SOON, of_metrics).await;
    println!("p95 of the traces {of_traces} ms; by the collector's histogram between {low} and {high} ms");
    assert!((low..=high).contains(&of_traces), "{of_traces} is not between {low} and {high}");
    // The Monitor tab has both followers' lags together; of as many, the slow one's are the later half.
    let of_monitor = async || {
        let shown = parts.monitor(("follower-agent", &operation()), 0.95).await?;
        (low..=high).contains(&shown).then_some(shown)
    };
    let shown = wait::until("Jaeger's Monitor tab to agree", wait::SOON, of_monitor).await;
    println!("p95 of Jaeger's Monitor tab {shown} ms");
}

/// The histogram of the slow follower's lag: upper bound in milliseconds, and how many are not above it.
fn buckets(page: &str, follower: i32) -> Vec<(f64, f64)> {
    let wanted =
        [format!("span_name=\"{}\"", operation()), format!("replication_follower_id=\"{follower}\"")];
    let lines = page.lines().filter(|line| {
        line.starts_with("traces_span_metrics_duration_milliseconds_bucket{")
            && wanted.iter().all(|label| line.contains(label))
    });
    let mut sums = BTreeMap::<u64, f64>::new();
    for line in lines {
        let bound = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a bound");
        let bound = if bound == "+Inf" { f64::MAX } else { bound.parse().expect("a number") };
        let count: f64 = line.rsplit("} ").next().and_then(|n| n.split(' ').next()).unwrap().parse().unwrap();
        // Positive numbers are in the order of their bits. Other causes are other series.
        *sums.entry(bound.to_bits()).or_default() += count;
    }
    sums.into_iter().map(|(bound, count)| (f64::from_bits(bound), count)).collect()
}

/// The bucket that a quantile lies in.
fn quantile(buckets: &[(f64, f64)], share: f64) -> (f64, f64) {
    let rank = buckets.last().expect("there are buckets").1 * share;
    let at = buckets.iter().position(|(_, count)| *count >= rank).expect("the last one holds all");
    (if at == 0 { 0.0 } else { buckets[at - 1].0 }, buckets[at].0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followers_clock_that_is_off_changes_no_lag() {
    let Some(faketime) = parts::find("faketime") else { return };
    let library = faketime.join("usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1");
    let Some(parts) = TracingParts::start().await else { return };
    for offset in ["+3s", "-3s"] {
        let clock_is_off = |cluster: &mut Cluster| {
            let variables = [
                ("LD_PRELOAD", library.to_str().expect("a plain path")),
                ("FAKETIME", offset),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            cluster.server_mut((SLOW, Program::FollowerAgent)).set_env(variables);
        };
        let (_pair, trace) = one_record(&parts, clock_is_off).await;
        let found = lags(&parts, trace).await;
        assert_lags(&found);
        let apart_us = found[0].start_us.abs_diff(found[1].start_us);
        println!("with {offset} the spans begin {} ms apart", apart_us / 1000);
        assert!((2_000_000..=4_000_000).contains(&apart_us), "the clock is off, and Jaeger moved nothing");
    }
}

/// A pair whose collector is in one state all the time, and how long each `acks=all` record took: until both followers held it.
struct Observed {
    state: &'static str,
    collector: FakeCollector,
    pair: TracedPair,
    times: Vec<Duration>,
}

/// More spans than the queue of a program holds, with what is taken out of it until the flood is over.
const FLOOD: u64 = 6_000;

impl Observed {
    async fn start(state: &'static str, mood: Option<Mood>) -> Self {
        let mut collector = FakeCollector::absent();
        if let Some(mood) = mood {
            collector.appear().await;
            collector.be(mood);
        }
        let pair = TracedPair::start(collector.address(), |_| {}).await;
        let calls = pair.calls();
        calls.create_topic(TOPIC, 1, &[1, SLOW, FAST], &[]).await;
        calls.until_in_sync(TOPIC, 2).await;
        Self { state, collector, pair, times: Vec::new() }
    }

    /// Fills the queue of each program: what comes then is dropped, unless somebody waits.
    async fn flood(&self) {
        let cluster = &self.pair.cluster;
        for server in [cluster.leader(1), cluster.agent(SLOW), cluster.agent(FAST)] {
            let client = ReplicationServiceClient::new(server.channel());
            let calls = futures::stream::iter(1..=FLOOD).map(|number| {
                let mut client = client.clone();
                async move {
                    let trace = TraceContext::new(number.into(), 1, true).unwrap();
                    let mut request = tonic::Request::new(v1::DescribeFetchersRequest::default());
                    request.metadata_mut().insert("traceparent", trace.to_string().parse().unwrap());
                    // Whatever it answers, it is a call of a trace.
                    drop(client.describe_fetchers(request).await);
                }
            });
            calls.buffer_unordered(64).collect::<()>().await;
        }
    }

    async fn produce(&mut self) {
        let trace = TraceContext::new(self.times.len() as u128 + 1, 1, true).unwrap();
        let begun = Instant::now();
        self.pair.produce(trace).await;
        self.times.push(begun.elapsed());
    }

    /// How much longer a record took here than there, round by round; the median.
    fn ratio_to(&self, other: &Self) -> f64 {
        let pairs = self.times.iter().zip(&other.times);
        let mut ratios: Vec<f64> = pairs.map(|(a, b)| a.as_secs_f64() / b.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    }

    /// The collector gets well: every program has dropped something by then, so its queue was full.
    async fn until_it_tells_what_was_dropped(&mut self) {
        self.collector.be(Mood::Takes);
        if self.state == "absent" {
            self.collector.appear().await;
        }
        for service in ["leader-svc", "follower-agent"] {
            let dropped = async || {
                let told = self.collector.metric(service, metric::DROPPED);
                let is_spans = |about: &BTreeMap<String, String>| about[attribute::SIGNAL] == "spans";
                told.iter().any(|(value, about)| *value > 0.0 && is_spans(about)).then_some(())
            };
            wait::until("the dropped spans", wait::SOON, dropped).await;
        }
    }

    async fn stop(&mut self) {
        for id in [(1, Program::LeaderSvc), (SLOW, Program::FollowerAgent)] {
            let status = self.pair.cluster.server_mut(id).terminate(Duration::from_secs(5)).await;
            assert!(status.success(), "{}: {status}", self.state);
            let about = self.pair.cluster.server(id).warnings();
            let about: Vec<_> = about.iter().filter(|line| line.contains("OTLP")).collect();
            assert!(about.len() <= 1, "{}: {about:?}", self.state);
        }
    }
}

/// How far two pairs may be apart that differ in nothing but what their collectors do, beyond what two do that differ in
/// nothing at all.
const NOISE: f64 = 1.25;

/// M5. Each round is a record to each pair, in an order of its own, so that whatever else the machine does meets all alike. Two
/// pairs have a collector that is well: how far these are apart is what the machine does by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_well_costs_replication_nothing_and_one_warning() {
    const ROUNDS: usize = 200;
    let states = [
        ("well", Some(Mood::Takes)),
        ("well too", Some(Mood::Takes)),
        ("absent", None),
        ("hangs", Some(Mood::Hangs)),
        ("refuses", Some(Mood::Refuses)),
    ];
    let mut all = Vec::new();
    for (state, mood) in states {
        let observed = Observed::start(state, mood).await;
        if mood != Some(Mood::Takes) {
            observed.flood().await;
        }
        all.push(observed);
    }
    for _ in 0..ROUNDS {
        let mut order: Vec<_> = all.iter_mut().map(|observed| (rand::random::<u64>(), observed)).collect();
        order.sort_unstable_by_key(|(place, _)| *place);
        for (_, observed) in order {
            observed.produce().await;
        }
    }
    let [well, well_too, ill @ ..] = &mut all[..] else { unreachable!("five states") };
    let quiet = well_too.ratio_to(well);
    let bound = NOISE * quiet.max(1.0 / quiet);
    println!("two collectors that are well: ratio {quiet:.3}, so {bound:.3} is allowed");
    for observed in ill {
        // To both of them together: what one pair has by chance is not taken for the collector's.
        let ratio = (observed.ratio_to(well) * observed.ratio_to(well_too)).sqrt();
        println!("{}: ratio {ratio:.3}", observed.state);
        assert!(ratio <= bound, "{}: {ratio:.3}, {bound:.3} is allowed", observed.state);
        observed.until_it_tells_what_was_dropped().await;
        observed.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_restarted_gets_what_comes_afterwards() {
    let mut collector = FakeCollector::start().await;
    let pair = TracedPair::start(collector.address(), |_| {}).await;
    pair.create_topic().await;
    let seen = async |collector: &FakeCollector, trace: TraceContext| {
        let id = trace_id(trace);
        let find = async || {
            let lags = collector.spans_of("follower-agent", &operation());
            (lags.iter().filter(|lag| lag.trace_id() == id).count() == 2).then_some(())
        };
        wait::until("both lags", wait::SOON, find).await;
    };
    let (first, second) = (TraceContext::new(11, 1, true).unwrap(), TraceContext::new(12, 1, true).unwrap());
    pair.produce(first).await;
    seen(&collector, first).await;
    collector.vanish().await;
    pair.produce(second).await;
    collector.appear().await;
    seen(&collector, second).await;
}
