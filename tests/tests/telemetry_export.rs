//! What a program pays for its telemetry when the collector is well, hangs, refuses, is absent, or comes back: nothing
//! but the spans that are dropped and counted (cases.md L: opentelemetry-rust#2583, #3380, restate#592).

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use highwater_telemetry::names::{attribute, metric};
use highwater_telemetry::{
    Exporter, KeyValue, OtlpSettings, Sampling, SamplingRatio, ServiceIdentity, Span, SpanKind, Telemetry,
};
use highwater_types::NodeId;
use system_tests::fake_collector::{FakeCollector, Mood};
use system_tests::wait;
use tokio::time::timeout;

/// Of one metric.
const SERIES_MAX: u32 = 3_000;

/// A program's end may take this long in all.
const END_BOUND: Duration = Duration::from_secs(5);

fn telemetry(collector: &FakeCollector) -> (Telemetry, Exporter) {
    let settings = OtlpSettings {
        endpoint: Some(collector.address().to_string().parse().unwrap()),
        sampling: Sampling { ratio: SamplingRatio::ALL, lag_bound: Duration::from_secs(1) },
        metrics_interval: Duration::from_millis(100),
        series_max: SERIES_MAX,
    };
    let who = ServiceIdentity {
        program: "leader-svc",
        version: "1.2.3",
        node: NodeId::new(7).unwrap(),
        address: "host:9400".to_owned(),
    };
    Telemetry::start(&settings, &who).unwrap()
}

fn record(telemetry: &Telemetry, number: i64) {
    let now = SystemTime::now();
    let context = telemetry.tracer().begin(None).expect("everything is sampled");
    let span = Span::new(context, format!("span {number}"), SpanKind::Internal, (now, now));
    telemetry.tracer().record(span.with("number", number));
}

/// Makes ten spans and ends; how long the end took.
async fn ten_spans_and_the_end(collector: &FakeCollector) -> Duration {
    let (telemetry, exporter) = telemetry(collector);
    for number in 0..10 {
        record(&telemetry, number);
    }
    let begun = Instant::now();
    exporter.finish().await;
    begun.elapsed()
}

fn names(collector: &FakeCollector) -> BTreeSet<String> {
    collector.spans().into_iter().map(|taken| taken.span.name).collect()
}

/// One worker: nothing that ends the program may need it and hold it at the same time.
#[tokio::test(flavor = "current_thread")]
async fn with_one_worker_the_last_span_arrives_and_the_end_is_prompt() {
    let collector = FakeCollector::start().await;
    let took = ten_spans_and_the_end(&collector).await;
    assert!(took < END_BOUND, "{took:?}");
    assert_eq!(names(&collector), (0..10).map(|n| format!("span {n}")).collect());
    let taken = &collector.spans()[0];
    assert_eq!(taken.service(), "leader-svc");
    for (name, value) in [
        ("service.namespace", "highwater"),
        ("service.instance.id", "host:9400"),
        ("service.version", "1.2.3"),
        ("replication.node.id", "7"),
    ] {
        assert_eq!(taken.resource.get(name).map(String::as_str), Some(value), "{name}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_collector_that_hangs_refuses_or_is_absent_does_not_hold_the_end() {
    for mood in [Some(Mood::Hangs), Some(Mood::Refuses), None] {
        let collector = match mood {
            Some(mood) => {
                let collector = FakeCollector::start().await;
                collector.be(mood);
                collector
            }
            None => FakeCollector::absent(),
        };
        let took = ten_spans_and_the_end(&collector).await;
        assert!(took < END_BOUND, "{mood:?}: {took:?}");
        assert_eq!(collector.spans().len(), 0, "{mood:?}");
    }
}

/// A TCP listener that accepts and never says a word: no HTTP/2 at all.
#[tokio::test(flavor = "current_thread")]
async fn a_port_that_never_answers_does_not_hold_the_end() {
    let collector = FakeCollector::absent();
    let _silent = std::net::TcpListener::bind(collector.address()).unwrap();
    let took = ten_spans_and_the_end(&collector).await;
    assert!(took < END_BOUND, "{took:?}");
}

#[tokio::test]
async fn what_was_recorded_while_the_collector_was_away_arrives_when_it_is_back() {
    let mut collector = FakeCollector::absent();
    let gone = tokio::net::TcpListener::bind(collector.address()).await.unwrap();
    let (telemetry, exporter) = telemetry(&collector);
    record(&telemetry, 1);
    // It was tried, in vain.
    drop(timeout(wait::SOON, gone.accept()).await.expect("the exporter comes").unwrap());
    drop(gone);
    collector.appear().await;
    wait::until("the span arrives", wait::SOON, async || {
        (names(&collector).contains("span 1")).then_some(())
    })
    .await;
    collector.vanish().await;
    record(&telemetry, 2);
    collector.appear().await;
    wait::until("the next span arrives", wait::SOON, async || {
        (names(&collector).contains("span 2")).then_some(())
    })
    .await;
    exporter.finish().await;
}

#[tokio::test]
async fn spans_beyond_the_bound_are_dropped_without_a_wait_and_counted() {
    const MANY: i64 = 20_000;
    let collector = FakeCollector::start().await;
    collector.be(Mood::Hangs);
    let (telemetry, exporter) = telemetry(&collector);
    let begun = Instant::now();
    for number in 0..MANY {
        record(&telemetry, number);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody waited: {:?}", begun.elapsed());
    collector.be(Mood::Takes);
    let counted = || {
        let values = collector.metric("leader-svc", metric::DROPPED);
        values.iter().find(|(_, about)| about.values().any(|v| v == "spans")).map_or(0.0, |(value, _)| *value)
    };
    let told_of = || collector.spans().len() as f64 + counted();
    let all = async || (told_of() >= MANY as f64).then_some(());
    wait::until("every span is sent or counted", wait::SOON, all).await;
    exporter.finish().await;
    assert!(counted() > 0.0 && told_of() == MANY as f64, "none is both: {} counted", counted());
}

/// The SDK's own bound is 2,000; of a gauge beyond it only one value would be left.
#[tokio::test]
async fn a_gauge_has_a_series_for_each_partition_up_to_the_bound_and_beyond_it_one_for_all() {
    for (partitions, series) in [(SERIES_MAX, SERIES_MAX), (SERIES_MAX + 1, 1)] {
        let collector = FakeCollector::start().await;
        let (telemetry, exporter) = telemetry(&collector);
        telemetry.meters().expect("it is on").observe(move |seen| {
            for partition in 0..partitions {
                let about = KeyValue::new(attribute::PARTITION, partition.to_string());
                seen.count(metric::LAG_RECORDS, 2, vec![about]);
            }
        });
        let sent = async || {
            let values = collector.metric("leader-svc", metric::LAG_RECORDS);
            (!values.is_empty()).then_some(values)
        };
        let values = wait::until("the gauge", wait::SOON, sent).await;
        assert_eq!(values.len(), series as usize);
        let all: f64 = values.iter().map(|(value, _)| value).sum();
        assert_eq!(all, f64::from(partitions) * 2.0);
        exporter.finish().await;
    }
}

#[tokio::test]
async fn telemetry_tells_nothing_about_itself() {
    let collector = FakeCollector::start().await;
    let (telemetry, exporter) = telemetry(&collector);
    record(&telemetry, 1);
    wait::until("several messages came", wait::SOON, async || (collector.messages() > 5).then_some(())).await;
    exporter.finish().await;
    assert_eq!(names(&collector), ["span 1".to_owned()].into(), "messages to the collector have no spans");
    assert_eq!(
        collector.metric_names(),
        [metric::DROPPED],
        "nor are they measured, but for what was dropped"
    );
    assert_eq!(collector.traced_messages(), 0, "nor are they calls of a trace");
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_recorded() {
    let settings = OtlpSettings {
        endpoint: None,
        sampling: Sampling { ratio: SamplingRatio::ALL, lag_bound: Duration::ZERO },
        metrics_interval: Duration::from_secs(1),
        series_max: SERIES_MAX,
    };
    let who = ServiceIdentity {
        program: "leader-svc",
        version: "1",
        node: NodeId::new(7).unwrap(),
        address: String::new(),
    };
    let (telemetry, exporter) = Telemetry::start(&settings, &who).unwrap();
    assert!(!telemetry.tracer().is_on() && telemetry.meters().is_none());
    assert_eq!(telemetry.tracer().begin(None), None);
    exporter.finish().await;
}
