//! The real collector, Prometheus and Jaeger, by the configuration that deploy has, and what they answer over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::{CommandLine, Process};
use crate::{parts, ports, programs, wait};

/// How far around now a search looks, in seconds: clocks of the programs may be off.
const AROUND_NOW: Duration = Duration::from_secs(600);

/// What Prometheus 3 says that it takes, as far as text is concerned.
const PROMETHEUS_3_ACCEPTS: &str =
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// A collector that sends to Jaeger.
#[derive(Debug)]
pub struct TracingParts {
    /// Where programs send telemetry to.
    pub otlp: SocketAddr,
    jaeger_http: SocketAddr,
    metrics: SocketAddr,
    // Declared, and so dropped, before the folder that they write to.
    _collector: Process,
    _jaeger: Process,
    _prometheus: Process,
    _place: TempDir,
}

impl TracingParts {
    /// Starts all, and waits until they are well. `None`: a part was left out.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start() -> Option<Self> {
        let jaeger = parts::find("jaeger")?.join("jaeger");
        let collector = parts::find("otelcol")?.join("otelcol");
        let place = tempfile::tempdir().expect("a temporary directory");
        let [otlp, jaeger_otlp, jaeger_http, jaeger_grpc, jaeger_health, metrics, health, prometheus] =
            std::array::from_fn(|_| ports::loopback());
        let store = start_prometheus(&place, prometheus, metrics)?;
        let jaeger = run(
            &place,
            "jaeger",
            (&jaeger, "deploy/jaeger/jaeger.yaml"),
            &[
                ("JAEGER_OTLP", jaeger_otlp),
                ("JAEGER_HTTP", jaeger_http),
                ("JAEGER_GRPC", jaeger_grpc),
                ("JAEGER_HEALTH", jaeger_health),
                ("PROMETHEUS", prometheus),
            ],
        );
        let collector = run(
            &place,
            "otelcol",
            (&collector, "deploy/otel-collector/collector.yaml"),
            &[
                ("COLLECTOR_OTLP", otlp),
                ("COLLECTOR_JAEGER", jaeger_otlp),
                ("COLLECTOR_METRICS", metrics),
                ("COLLECTOR_HEALTH", health),
            ],
        );
        let parts = Self {
            otlp,
            jaeger_http,
            metrics,
            _collector: collector,
            _jaeger: jaeger,
            _prometheus: store,
            _place: place,
        };
        wait::until("Jaeger", wait::SOON, async || parts.services().await).await;
        wait::until("the collector", wait::SOON, async || get(health, "/").await).await;
        wait::until("Prometheus", wait::SOON, async || get(prometheus, "/-/ready").await).await;
        Some(parts)
    }

    /// The services that Jaeger knows; `None` while it does not answer.
    pub async fn services(&self) -> Option<Vec<String>> {
        let answer = self.jaeger("/api/services").await?;
        let names = answer.get("data")?.as_array().cloned().unwrap_or_default();
        Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// The spans of a trace; none while it is not there.
    pub async fn trace(&self, id: &str) -> Vec<JaegerSpan> {
        let answer = self.jaeger(&format!("/api/traces/{id}")).await;
        answer.map(|answer| spans(&answer)).unwrap_or_default()
    }

    /// The traces that a search finds: an operation of a service whose tag has a value and that lasts at least so long.
    pub async fn search(
        &self,
        (service, operation): (&str, &str),
        (tag, value): (&str, &str),
        at_least: Duration,
    ) -> Vec<JaegerSpan> {
        let micros =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros();
        let (start, end) = (SystemTime::now() - AROUND_NOW, SystemTime::now() + AROUND_NOW);
        let operation = operation.replace(' ', "%20");
        let tags = format!("%7B%22{tag}%22%3A%22{value}%22%7D");
        let path = format!(
            "/api/traces?service={service}&operation={operation}&tags={tags}&minDuration={}ms&limit=1000&start={}&end={}",
            at_least.as_millis(),
            micros(start),
            micros(end)
        );
        self.jaeger(&path).await.map(|answer| spans(&answer)).expect("Jaeger answers")
    }

    /// What the collector shows to Prometheus.
    pub async fn metrics_page(&self) -> String {
        get(self.metrics, "/metrics").await.unwrap_or_default()
    }

    /// The names of the metrics on that page, as Prometheus 3 asks for it: it would take names with dots.
    pub async fn metric_names(&self) -> BTreeSet<String> {
        let page = get_as(self.metrics, "/metrics", PROMETHEUS_3_ACCEPTS).await.unwrap_or_default();
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    }

    /// A quantile of an operation's durations, in milliseconds, as Jaeger's Monitor tab shows it for the last minute; `None`
    /// while it shows none.
    pub async fn monitor(&self, (service, operation): (&str, &str), quantile: f64) -> Option<f64> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
        let path = format!(
            "/api/metrics/latencies?service={service}&quantile={quantile}&groupByOperation=true&spanKind=consumer\
             &endTs={now}&lookback=60000&step=5000&ratePer=60000"
        );
        let answer = self.jaeger(&path).await?;
        let is_it = |shown: &&Value| {
            shown["labels"].as_array().is_some_and(|l| l.iter().any(|l| l["value"] == operation))
        };
        let shown = answer.get("metrics")?.as_array()?.iter().find(is_it)?;
        let newest = shown["metricPoints"].as_array()?.last()?;
        let value = newest.pointer("/gaugeValue/doubleValue")?;
        // What has not grown has no quantile: the text NaN.
        value.as_f64().or_else(|| value.as_str()?.parse().ok())
    }

    async fn jaeger(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&get(self.jaeger_http, path).await?).ok()
    }
}

/// Prometheus by deploy's configuration, which has no variables: the collector's address is put in. `None`: it was left out.
fn start_prometheus(place: &TempDir, listen: SocketAddr, collector: SocketAddr) -> Option<Process> {
    let program = parts::find("prometheus")?.join("usr/bin/prometheus");
    let deployed = std::fs::read_to_string(programs::repository().join("deploy/prometheus/prometheus.yml"))
        .expect("deploy has a configuration");
    let config = deployed.replace("otel-collector:8889", &collector.to_string());
    assert_ne!(config, deployed, "the collector's address is there");
    let file = place.path().join("prometheus.yml");
    std::fs::write(&file, config).expect("the place is ours");
    let line = CommandLine::new(&program).args([
        format!("--config.file={}", file.display()),
        format!("--web.listen-address={listen}"),
        format!("--storage.tsdb.path={}", place.path().join("prometheus").display()),
    ]);
    Some(Process::start("prometheus", &line, &place.path().join("prometheus.log")))
}

fn run(
    place: &TempDir,
    name: &str,
    (program, config): (&Path, &str),
    addresses: &[(&str, SocketAddr)],
) -> Process {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let environment = addresses.iter().map(|(variable, address)| {
        // Jaeger wants a URL.
        let (variable, value) = match *variable {
            "PROMETHEUS" => ("JAEGER_PROMETHEUS", format!("http://{address}")),
            variable => (variable, address.to_string()),
        };
        (std::ffi::OsString::from(variable), std::ffi::OsString::from(value))
    });
    let faster = [(std::ffi::OsString::from("COLLECTOR_FLUSH"), std::ffi::OsString::from("500ms"))];
    let line = CommandLine::new(program)
        .args([std::ffi::OsString::from("--config"), root.join(config).into()])
        .envs(environment.chain(faster));
    Process::start(name, &line, &place.path().join(format!("{name}.log")))
}

/// The body of an answer of status 200; `None` for every other, and when nobody answers.
async fn get(address: SocketAddr, path: &str) -> Option<String> {
    get_as(address, path, "*/*").await
}

async fn get_as(address: SocketAddr, path: &str, accepts: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: {accepts}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// A span as Jaeger answers it.
#[derive(Debug, Clone)]
pub struct JaegerSpan {
    /// `service.name`.
    pub service: String,
    /// The span's name.
    pub operation: String,
    /// When it began, in microseconds since 1970.
    pub start_us: u64,
    /// How long it lasted, in microseconds.
    pub duration_us: u64,
    /// Its attributes, as text.
    pub tags: std::collections::BTreeMap<String, String>,
}

fn spans(answer: &Value) -> Vec<JaegerSpan> {
    let traces = answer.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    traces.iter().flat_map(spans_of).collect()
}

fn spans_of(trace: &Value) -> Vec<JaegerSpan> {
    let spans = trace.get("spans").and_then(Value::as_array).cloned().unwrap_or_default();
    spans.iter().filter_map(|span| one_span(trace, span)).collect()
}

fn one_span(trace: &Value, span: &Value) -> Option<JaegerSpan> {
    let process = span.get("processID")?.as_str()?;
    let service = trace.get("processes")?.get(process)?.get("serviceName")?.as_str()?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let tags = span.get("tags")?.as_array()?.iter();
    Some(JaegerSpan {
        service: service.to_owned(),
        operation: span.get("operationName")?.as_str()?.to_owned(),
        start_us: span.get("startTime")?.as_u64()?,
        duration_us: span.get("duration")?.as_u64()?,
        tags: tags.filter_map(|tag| Some((text(tag.get("key")?), text(tag.get("value")?)))).collect(),
    })
}
