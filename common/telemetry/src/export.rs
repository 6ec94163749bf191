//! What sends: a thread with a runtime of its own, so that it needs no worker of the program's and takes none.
//!
//! What must hold: memory is bounded by the tracer's queue and one batch; a batch that is not taken is tried again with
//! back-off, a few times, then dropped and counted; once told to stop, what is queued is sent, each batch tried once, and
//! nothing is waited for that the collector does not take.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry_otlp::{
    MetricExporter, RetryPolicy, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter as _;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint};

use crate::health::Health;
use crate::meters::Meters;
use crate::otlp::OtlpEndpoint;

/// The most spans in one message.
const BATCH_MAX: usize = 512;

/// How long a batch may gather.
const GATHER: Duration = Duration::from_millis(500);

/// How long the collector may take for one message.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection to it may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is pinged while something is on its way, and how long that may take: a frozen one is found out.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How often a batch is tried.
const TRIES_MAX: u32 = 6;

/// The first wait before another try; each further one is twice as long, up to the longest.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// What is sent, and where to.
pub(crate) struct Outgoing {
    pub(crate) endpoint: OtlpEndpoint,
    pub(crate) resource: Resource,
    pub(crate) spans: mpsc::Receiver<SpanData>,
    pub(crate) reader: SharedReader,
    pub(crate) meters: Arc<Meters>,
    pub(crate) metrics_interval: Duration,
    pub(crate) health: Arc<Health>,
}

/// Starts sending, on a thread of its own. `stop` ends it; the answer comes when everything was sent or given up.
pub(crate) fn start(outgoing: Outgoing, stop: watch::Receiver<bool>) -> io::Result<oneshot::Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (done, is_done) = oneshot::channel();
    let work = move || {
        match runtime.block_on(send_all(outgoing, stop)) {
            Ok(()) => {}
            Err(error) => tracing::error!(%error, "telemetry is not sent"),
        }
        // Nobody waits when the program does not end in order.
        let _nobody = done.send(());
    };
    std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
    Ok(is_done)
}

async fn send_all(
    outgoing: Outgoing,
    stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let channel = channel(&outgoing.endpoint)?;
    let Outgoing { resource, spans, reader, meters, metrics_interval, health, .. } = outgoing;
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_channel(channel.clone())
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    exporter.set_resource(&resource);
    let metrics = MetricExporter::builder()
        .with_tonic()
        .with_channel(channel)
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    let spans = Spans { exporter, queue: spans, health: Arc::clone(&health), stop: stop.clone() };
    tokio::join!(spans.send(), send_metrics(metrics, &reader, &meters, metrics_interval, &health, stop));
    Ok(())
}

fn channel(endpoint: &OtlpEndpoint) -> Result<Channel, tonic::transport::Error> {
    Ok(Endpoint::from_shared(endpoint.uri())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .connect_lazy())
}

struct Spans {
    exporter: SpanExporter,
    queue: mpsc::Receiver<SpanData>,
    health: Arc<Health>,
    stop: watch::Receiver<bool>,
}

impl Spans {
    async fn send(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            tokio::select! {
                biased;
                taken = self.queue.recv_many(&mut batch, BATCH_MAX) => if taken == 0 { return },
                () = stopped(&mut self.stop) => self.queue.close(),
            }
            self.gather(&mut batch).await;
            if !batch.is_empty() {
                self.send_batch(std::mem::take(&mut batch)).await;
            }
        }
    }

    /// Waits a little for more, unless there is no time.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) {
        let until = Instant::now() + GATHER;
        while !*self.stop.borrow() && batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            tokio::select! {
                more = timeout_at(until, self.queue.recv_many(batch, room)) => match more {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return,
                },
                () = stopped(&mut self.stop) => return,
            }
        }
    }

    async fn send_batch(&mut self, batch: Vec<SpanData>) {
        let mut backoff = BACKOFF;
        for attempt in 1..=TRIES_MAX {
            match within(self.exporter.export(batch.clone())).await {
                Ok(()) => return self.health.on_taken(),
                Err(error) => self.health.on_failed(&error),
            }
            if attempt == TRIES_MAX || *self.stop.borrow() {
                break;
            }
            tokio::select! {
                () = sleep(backoff) => {}
                // Tried once more, at once.
                () = stopped(&mut self.stop) => {}
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
        self.health.on_dropped(batch.len());
    }
}

async fn send_metrics(
    exporter: MetricExporter,
    reader: &SharedReader,
    meters: &Meters,
    interval: Duration,
    health: &Health,
    mut stop: watch::Receiver<bool>,
) {
    let mut collected = ResourceMetrics::default();
    loop {
        let is_last = timeout(interval, stopped(&mut stop)).await.is_ok();
        meters.look();
        let sent = match reader.collect(&mut collected) {
            Ok(()) => within(exporter.export(&collected)).await,
            Err(error) => Err(error.to_string()),
        };
        match sent {
            Ok(()) => health.on_taken(),
            Err(error) => health.on_failed_metrics(&error),
        }
        if is_last {
            return;
        }
    }
}

/// The export's outcome, in bounded time: the exporter's own time-out does not cover the wait for a connection.
async fn within(export: impl Future<Output = OTelSdkResult>) -> Result<(), String> {
    match timeout(EXPORT_TIMEOUT, export).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {EXPORT_TIMEOUT:?}")),
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender is gone when the program ends without a word.
    let _gone = stop.wait_for(|stop| *stop).await;
}

/// A reader that is asked by what sends.
#[derive(Clone, Debug)]
pub(crate) struct SharedReader(Arc<ManualReader>);

impl SharedReader {
    pub(crate) fn new() -> Self {
        Self(Arc::new(ManualReader::builder().build()))
    }
}

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, bound: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(bound)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
