//! Traces and metrics of one process, from its settings to its end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::{mpsc, oneshot, watch};

use crate::export::{self, Outgoing, SharedReader};
use crate::health::Health;
use crate::meters::Meters;
use crate::otlp::{OtlpSettings, ServiceIdentity};
use crate::sampling::Sampling;
use crate::series::Series;
use crate::tracer::Tracer;

/// How long the end of a program waits for the last spans; well within the time that a program has to end.
const LAST_WORDS: Duration = Duration::from_millis(1_500);

/// What a program records with. Cheap to clone; does nothing when it is off.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    tracer: Tracer,
    meters: Option<Arc<Meters>>,
}

impl Telemetry {
    /// Records nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self { tracer: Tracer::off(), meters: None }
    }

    /// Records, and sends to the collector of `settings`; off when they name none. The collector need not be there.
    ///
    /// # Errors
    /// The thread that sends could not be started.
    pub fn start(settings: &OtlpSettings, who: &ServiceIdentity) -> io::Result<(Self, Exporter)> {
        let Some(endpoint) = &settings.endpoint else { return Ok((Self::off(), Exporter(None))) };
        let resource = who.resource();
        let (telemetry, recorded) = Self::new(settings.sampling, settings.series_max, resource.clone());
        let Recorded { spans, reader, provider, meters, health } = recorded;
        let outgoing = Outgoing {
            endpoint: endpoint.clone(),
            resource,
            spans,
            reader,
            meters,
            metrics_interval: settings.metrics_interval,
            health,
        };
        let (stop, stopped) = watch::channel(false);
        let done = export::start(outgoing, stopped)?;
        Ok((telemetry, Exporter(Some(Running { stop, done, provider }))))
    }

    /// Records; what it records comes out of the other part.
    pub(crate) fn new(sampling: Sampling, series_max: u32, resource: Resource) -> (Self, Recorded) {
        let (tracer, spans, dropped) = Tracer::new(sampling);
        let health = Arc::new(Health::new(dropped));
        let (reader, series) = (SharedReader::new(), Series { max: series_max });
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(move |_| series.stream())
            .build();
        let meters = Arc::new(Meters::new(&provider, &health, series));
        let telemetry = Self { tracer, meters: Some(Arc::clone(&meters)) };
        (telemetry, Recorded { spans, reader, provider, meters, health })
    }

    /// What decides on and takes spans.
    #[must_use]
    pub const fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// The instruments; `None` when it is off.
    #[must_use]
    pub fn meters(&self) -> Option<&Arc<Meters>> {
        self.meters.as_ref()
    }
}

/// What a [`Telemetry`] records, on its way out.
pub(crate) struct Recorded {
    pub(crate) spans: mpsc::Receiver<SpanData>,
    pub(crate) reader: SharedReader,
    /// Owns the instruments' pipeline.
    pub(crate) provider: SdkMeterProvider,
    meters: Arc<Meters>,
    health: Arc<Health>,
}

/// What sends. Dropped without [`Exporter::finish`], the last spans and metrics may be lost.
#[derive(Debug)]
pub struct Exporter(Option<Running>);

#[derive(Debug)]
struct Running {
    stop: watch::Sender<bool>,
    done: oneshot::Receiver<()>,
    /// Owns the instruments' pipeline.
    provider: SdkMeterProvider,
}

impl Exporter {
    /// Sends what is left, as far as the collector takes it in bounded time.
    pub async fn finish(self) {
        let Some(Running { stop, done, provider }) = self.0 else { return };
        stop.send_replace(true);
        if tokio::time::timeout(LAST_WORDS, done).await.is_err() {
            tracing::info!("the OTLP collector did not take the last telemetry in time");
        }
        drop(provider);
    }
}
