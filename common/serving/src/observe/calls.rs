//! A span and a duration for every call of a service, by OpenTelemetry's conventions for RPC.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::Either;
use highwater_node::MonotonicClock;
use highwater_telemetry::names::attribute;
use highwater_telemetry::{KeyValue, Moment, Span, SpanKind, Telemetry};
use highwater_types::{MonotonicTime, TraceContext};
use highwater_wire::{failure, trace};
use http::{Request, Response, Uri};
use tonic::Code;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::RecordLink;

/// The header of a status that comes without a message.
const STATUS_HEADER: &str = "grpc-status";

/// The calls that programs make of themselves all the time, to say that they live and to hear what changed. They begin no
/// trace, as idle polls do not; a caller that traces them is heeded.
const UPKEEP: [&str; 2] =
    ["highwater.v1.ClusterService/RegisterAgent", "highwater.v1.ClusterService/DescribeCluster"];

/// In a request's extensions: the span of the call, where it is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSpan(pub Option<TraceContext>);

impl CallSpan {
    /// The one of this request.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().copied().unwrap_or_default()
    }
}

/// In a response's extensions: what its handler knows. Absent where that is nothing, or the call is not traced.
#[derive(Clone, Debug, Default)]
pub struct CallNotes {
    /// Nothing came of it: no span, and not among the durations.
    pub idle: bool,
    /// More attributes of the span.
    pub attributes: Vec<KeyValue>,
    /// Traces of the records that it carried.
    pub links: Vec<RecordLink>,
    /// An event, and when it was.
    pub event: Option<(&'static str, MonotonicTime, Vec<KeyValue>)>,
}

/// A service whose calls are observed.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    telemetry: Telemetry,
    clock: MonotonicClock,
}

impl<S> Observed<S> {
    /// Observes the calls of `inner`.
    pub const fn new(inner: S, telemetry: Telemetry, clock: MonotonicClock) -> Self {
        Self { inner, telemetry, clock }
    }
}

impl<S: NamedService> NamedService for Observed<S> {
    const NAME: &'static str = S::NAME;
}

type Answer = Result<Response<Body>, Infallible>;

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = Answer> + Send>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if !self.telemetry.tracer().is_on() {
            return Either::Left(self.inner.call(request));
        }
        let parent = trace::extract(request.headers());
        let begins = parent.is_some() || !UPKEEP.contains(&method_of(request.uri()));
        let call = Call {
            telemetry: self.telemetry.clone(),
            clock: self.clock,
            uri: request.uri().clone(),
            parent,
            span: if begins { self.telemetry.tracer().begin(parent) } else { None },
            began: self.clock.now(),
        };
        if call.span.is_some() {
            request.extensions_mut().insert(CallSpan(call.span));
        }
        let answer = self.inner.call(request);
        Either::Right(Box::pin(async move {
            let mut response = answer.await?;
            let notes = response.extensions_mut().remove().unwrap_or_default();
            call.over(status(&response), notes);
            Ok(response)
        }))
    }
}

/// A call on its way.
struct Call {
    telemetry: Telemetry,
    clock: MonotonicClock,
    /// Shares its text with the request.
    uri: Uri,
    parent: Option<TraceContext>,
    span: Option<TraceContext>,
    began: MonotonicTime,
}

impl Call {
    fn over(self, status: Code, notes: CallNotes) {
        if notes.idle {
            return;
        }
        let (now, status_name) = (self.clock.now(), failure::code_name(status));
        let method = method_of(&self.uri);
        if let Some(meters) = self.telemetry.meters() {
            meters.served(method, status_name, now.since(self.began));
            if status != Code::Ok {
                meters.errors.add(1, &[KeyValue::new(attribute::ERROR_TYPE, status_name)]);
            }
        }
        let Some(context) = self.span else { return };
        let moment = Moment::now(now);
        let times = (moment.wall(self.began), moment.wall(now));
        let mut span = Span::new(context, method.to_owned(), SpanKind::Server, times)
            .with_parent(self.parent, true)
            .with(attribute::RPC_SYSTEM, "grpc")
            .with(attribute::RPC_METHOD, method.to_owned())
            .with(attribute::RPC_STATUS, status_name)
            .with_all(notes.attributes);
        for (link, attributes) in notes.links {
            span = span.with_link(link, attributes);
        }
        if let Some((event, at, attributes)) = notes.event {
            span = span.with_event(event, moment.wall(at), attributes);
        }
        if status != Code::Ok {
            span = span.with(attribute::ERROR_TYPE, status_name);
        }
        if is_servers_fault(status) {
            span = span.failed(status_name);
        }
        self.telemetry.tracer().record(span);
    }
}

/// The full name of the method, as the conventions want it.
fn method_of(uri: &Uri) -> &str {
    uri.path().trim_start_matches('/')
}

/// The answer's status: a failed unary call has it in the headers.
fn status(response: &Response<Body>) -> Code {
    response.headers().get(STATUS_HEADER).map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
}

/// The conventions call these a server's errors; the others are the caller's.
const fn is_servers_fault(status: Code) -> bool {
    matches!(
        status,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}
