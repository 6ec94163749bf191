//! What sends: a thread with a runtime of its own, so that it needs no worker of the program's and takes none.
//!
//! What must hold: memory is bounded by the tracer's queue and one batch; a batch that is not taken is tried again with
//! back-off, as long as newer spans have room behind it, then dropped and counted; once told to stop, what is queued is sent,
//! each batch tried once, and nothing is waited for that the collector does not take.

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
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use crate::health::{Health, Signal};
use crate::meters::Meters;
use crate::otlp::OtlpEndpoint;

/// The most spans in one message.
const BATCH_MAX: usize = 512;

/// How long a batch may gather.
const GATHER: Duration = Duration::from_secs(2);

/// How often the queue is looked into meanwhile: the queue holds what 40,000 spans a second bring until the next look.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the collector may take for one message.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection to it may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is pinged while something is on its way, and how long that may take: a frozen one is found out.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How often a batch is tried at least, also where newer spans have no room.
const TRIES_MIN: u32 = 6;

/// How long a batch is tried at most: a collector that is there by then does not want it.
const TRIED_FOR: Duration = Duration::from_secs(600);

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

    /// Waits a little for more, unless the batch is full or there is no time. It looks from time to time, and is not woken
    /// by each span: waking a thread costs the program more than making a span.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) {
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH_MAX && Instant::now() < until {
            if timeout(LOOK_EVERY, stopped(&mut self.stop)).await.is_ok() {
                return;
            }
            while batch.len() < BATCH_MAX {
                let Ok(span) = self.queue.try_recv() else { break };
                batch.push(span);
            }
        }
    }

    async fn send_batch(&mut self, batch: Vec<SpanData>) {
        let (mut backoff, mut tries, began) = (BACKOFF, 0, Instant::now());
        loop {
            match within(self.exporter.export(batch.clone())).await {
                Ok(()) => return self.health.on_taken(Signal::Spans),
                Err(error) => self.health.on_failed(Signal::Spans, &error),
            }
            tries += 1;
            if *self.stop.borrow() || self.makes_room(tries, began.elapsed()) {
                return self.health.on_dropped(batch.len());
            }
            tokio::select! {
                () = sleep(backoff) => {}
                // Tried once more, at once.
                () = stopped(&mut self.stop) => {}
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Whether a batch that was tried so often, for so long, is dropped for those that wait behind it.
    fn makes_room(&self, tries: u32, tried_for: Duration) -> bool {
        let is_full = self.queue.capacity() == 0;
        (is_full && tries >= TRIES_MIN) || tried_for >= TRIED_FOR
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
            Ok(()) => health.on_taken(Signal::Metrics),
            Err(error) => health.on_failed(Signal::Metrics, &error),
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::SystemTime;

    use super::*;
    use crate::sampling::{Sampling, SamplingRatio};
    use crate::span::{Span, SpanKind};
    use crate::tracer::Tracer;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tracer() -> (Tracer, Spans, watch::Sender<bool>) {
        let sampling = Sampling { ratio: SamplingRatio::ALL, lag_bound: Duration::ZERO };
        let (tracer, queue, dropped) = Tracer::new(sampling);
        let channel = channel(&"collector:4317".parse().unwrap()).unwrap();
        let exporter = SpanExporter::builder().with_tonic().with_channel(channel).build().unwrap();
        let (stopping, stop) = watch::channel(false);
        (tracer, Spans { exporter, queue, health: Arc::new(Health::new(dropped)), stop }, stopping)
    }

    fn record(tracer: &Tracer, spans: usize) {
        for _ in 0..spans {
            let (context, now) = (tracer.begin(None).unwrap(), SystemTime::now());
            tracer.record(Span::new(context, "span".to_owned(), SpanKind::Internal, (now, now)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn spans_that_come_while_a_batch_gathers_are_in_it_and_wake_nobody() {
        let (tracer, mut spans, _stopping) = tracer();
        let (mut batch, woken) = (Vec::new(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let began = Instant::now();
        {
            let mut gathering = pin!(spans.gather(&mut batch));
            assert!(gathering.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            record(&tracer, 100);
            assert_eq!(woken.0.load(Ordering::Relaxed), 0);
            gathering.await;
        }
        assert_eq!((batch.len(), began.elapsed()), (100, GATHER));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_full_is_not_held_back() {
        let (tracer, mut spans, _stopping) = tracer();
        record(&tracer, 2 * BATCH_MAX + 1);
        let mut batch = Vec::new();
        let began = Instant::now();
        spans.queue.recv_many(&mut batch, BATCH_MAX).await;
        spans.gather(&mut batch).await;
        assert_eq!((batch.len(), began.elapsed()), (BATCH_MAX, Duration::ZERO), "there is more to come");
        batch.truncate(1);
        spans.gather(&mut batch).await;
        assert_eq!((batch.len(), began.elapsed()), (BATCH_MAX, LOOK_EVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_program_ends_the_gathering_at_once() {
        let (_tracer, mut spans, stopping) = tracer();
        let began = Instant::now();
        stopping.send_replace(true);
        spans.gather(&mut Vec::new()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_nobody_takes_is_tried_until_those_behind_it_need_its_room() {
        let (tracer, mut spans, _stopping) = tracer();
        record(&tracer, BATCH_MAX);
        let mut batch = Vec::new();
        spans.queue.recv_many(&mut batch, BATCH_MAX).await;
        assert!(!spans.makes_room(1_000, TRIED_FOR - Duration::from_secs(1)), "there is room");
        let began = Instant::now();
        spans.send_batch(batch.clone()).await;
        assert!(began.elapsed() >= TRIED_FOR, "an outage of minutes loses nothing: {:?}", began.elapsed());
        assert_eq!(spans.health.dropped_spans(), BATCH_MAX as u64);

        record(&tracer, spans.queue.max_capacity());
        let began = Instant::now();
        spans.send_batch(batch).await;
        assert!(began.elapsed() < TRIED_FOR / 4, "nor does it stand in the way: {:?}", began.elapsed());
        assert_eq!(spans.health.dropped_spans(), 2 * BATCH_MAX as u64, "and the newer ones are still there");
    }
}
