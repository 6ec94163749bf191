//! An OTLP collector that keeps what it is sent, and behaves badly when told to: refuses, or never answers.
//!
//! What must hold: it can be started, stopped and started again on one address; what it took stays.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
pub use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span as ProtoSpan;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use highwater_wire::trace::TRACEPARENT_KEY;

use crate::ports;

/// What it does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Takes it.
    Takes,
    /// Answers UNAVAILABLE.
    Refuses,
    /// Never answers.
    Hangs,
}

/// A span as it was sent, with its resource.
#[derive(Debug, Clone)]
pub struct TakenSpan {
    /// Attributes of the program.
    pub resource: BTreeMap<String, String>,
    /// Its own attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// The rest.
    pub span: ProtoSpan,
}

impl TakenSpan {
    /// `service.name`.
    #[must_use]
    pub fn service(&self) -> &str {
        self.resource.get("service.name").map_or("", String::as_str)
    }

    /// An attribute, as text.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).unwrap_or_else(|| panic!("{} has no {name}: {self:?}", self.span.name))
    }

    /// How long it lasted, in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        (self.span.end_time_unix_nano - self.span.start_time_unix_nano) / 1_000_000
    }

    /// The trace's id, in hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        self.span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[derive(Debug)]
struct Shared {
    mood: Mutex<Mood>,
    spans: Mutex<Vec<TakenSpan>>,
    /// The newest state of each metric, by service and name.
    metrics: Mutex<BTreeMap<(String, String), Metric>>,
    messages: Mutex<usize>,
    /// How many of them named a trace that they belong to.
    traced: Mutex<usize>,
}

/// The collector.
#[derive(Debug)]
pub struct FakeCollector {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

impl FakeCollector {
    /// A collector that does not run yet.
    #[must_use]
    pub fn absent() -> Self {
        let shared = Shared {
            mood: Mutex::new(Mood::Takes),
            spans: Mutex::default(),
            metrics: Mutex::default(),
            messages: Mutex::default(),
            traced: Mutex::default(),
        };
        Self { address: ports::loopback(), shared: Arc::new(shared), server: None }
    }

    /// A collector that runs.
    pub async fn start() -> Self {
        let mut collector = Self::absent();
        collector.appear().await;
        collector
    }

    /// It listens from now on.
    ///
    /// # Panics
    /// When it cannot.
    pub async fn appear(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is ours");
        let service = Service(Arc::clone(&self.shared));
        let server = Server::builder()
            .add_service(TraceServiceServer::new(service.clone()))
            .add_service(MetricsServiceServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        self.server = Some(tokio::spawn(async move {
            if let Err(error) = server.await {
                panic!("the fake collector failed: {error}");
            }
        }));
    }

    /// It is gone, with its connections.
    pub async fn vanish(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _aborted = server.await;
        }
    }

    /// How it behaves from now on.
    pub fn be(&self, mood: Mood) {
        *lock(&self.shared.mood) = mood;
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many messages came, taken or not.
    #[must_use]
    pub fn messages(&self) -> usize {
        *lock(&self.shared.messages)
    }

    /// How many messages came as calls of a trace.
    #[must_use]
    pub fn traced_messages(&self) -> usize {
        *lock(&self.shared.traced)
    }

    /// The spans that it took.
    #[must_use]
    pub fn spans(&self) -> Vec<TakenSpan> {
        lock(&self.shared.spans).clone()
    }

    /// The spans whose name begins so, of one program.
    #[must_use]
    pub fn spans_of(&self, service: &str, name: &str) -> Vec<TakenSpan> {
        self.spans()
            .into_iter()
            .filter(|taken| taken.service() == service && taken.span.name.starts_with(name))
            .collect()
    }

    /// The newest values of a metric of one program, with their attributes; of a histogram the counts.
    #[must_use]
    pub fn metric(&self, service: &str, name: &str) -> Vec<(f64, BTreeMap<String, String>)> {
        let metrics = lock(&self.shared.metrics);
        let Some(metric) = metrics.get(&(service.to_owned(), name.to_owned())) else { return Vec::new() };
        match metric.data.as_ref() {
            Some(metric::Data::Gauge(gauge)) => numbers(&gauge.data_points),
            Some(metric::Data::Sum(sum)) => numbers(&sum.data_points),
            Some(metric::Data::Histogram(histogram)) => {
                let point = |p: &opentelemetry_proto::tonic::metrics::v1::HistogramDataPoint| {
                    (p.count as f64, texts(&p.attributes))
                };
                histogram.data_points.iter().map(point).collect()
            }
            other => panic!("{name} is something else: {other:?}"),
        }
    }

    /// The names of every metric that any program sent.
    #[must_use]
    pub fn metric_names(&self) -> Vec<String> {
        lock(&self.shared.metrics).keys().map(|(_, name)| name.clone()).collect()
    }
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

fn numbers(
    points: &[opentelemetry_proto::tonic::metrics::v1::NumberDataPoint],
) -> Vec<(f64, BTreeMap<String, String>)> {
    let value = |value: &Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsDouble(value)) => *value,
        Some(number_data_point::Value::AsInt(value)) => *value as f64,
        None => f64::NAN,
    };
    points.iter().map(|point| (value(&point.value), texts(&point.attributes))).collect()
}

/// Attributes as text.
#[must_use]
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(truth)) => truth.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

#[derive(Debug, Clone)]
struct Service(Arc<Shared>);

impl Service {
    async fn on_message<M>(&self, request: &Request<M>) -> Result<(), Status> {
        *lock(&self.0.messages) += 1;
        *lock(&self.0.traced) += usize::from(request.metadata().contains_key(TRACEPARENT_KEY));
        let mood = *lock(&self.0.mood);
        match mood {
            Mood::Takes => Ok(()),
            Mood::Refuses => Err(Status::unavailable("not today")),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.on_message(&request).await?;
        for resource in request.into_inner().resource_spans {
            let about = texts(&resource.resource.unwrap_or_default().attributes);
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let taken = |span: ProtoSpan| TakenSpan {
                resource: about.clone(),
                attributes: texts(&span.attributes),
                span,
            };
            lock(&self.0.spans).extend(spans.map(taken));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.on_message(&request).await?;
        for resource in request.into_inner().resource_metrics {
            let about = texts(&resource.resource.unwrap_or_default().attributes);
            let service = about.get("service.name").cloned().unwrap_or_default();
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                lock(&self.0.metrics).insert((service.clone(), metric.name.clone()), metric);
            }
        }
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
