//! A span that is over, made from times that were measured anyway.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use highwater_types::{MonotonicTime, TraceContext};
use opentelemetry::trace::{Event, Link, SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

pub use opentelemetry::trace::SpanKind;

/// The name of what made the spans.
pub(crate) const SCOPE: &str = "highwater";

/// One moment by both clocks: turns a measured time into one that people read.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    wall: SystemTime,
    monotonic: MonotonicTime,
}

impl Moment {
    /// Now, which is `monotonic` by the program's monotonic clock.
    #[must_use]
    pub fn now(monotonic: MonotonicTime) -> Self {
        Self { wall: SystemTime::now(), monotonic }
    }

    /// When `time` was; this moment for a later one.
    #[must_use]
    pub fn wall(&self, time: MonotonicTime) -> SystemTime {
        self.before(self.monotonic.since(time))
    }

    /// `ago` before this moment.
    #[must_use]
    pub fn before(&self, ago: Duration) -> SystemTime {
        self.wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// A span.
#[derive(Debug)]
pub struct Span(SpanData);

impl Span {
    /// A span that began and ended, without a parent.
    #[must_use]
    pub fn new(
        context: TraceContext,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        (start, end): (SystemTime, SystemTime),
    ) -> Self {
        Self(SpanData {
            span_context: sdk_context(context, false),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: kind,
            name: name.into(),
            start_time: start,
            // A wall clock may have been set back meanwhile.
            end_time: end.max(start),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder(SCOPE).build(),
        })
    }

    /// Below a span of the same trace; `is_remote` when that is another program's.
    #[must_use]
    pub fn with_parent(mut self, parent: Option<TraceContext>, is_remote: bool) -> Self {
        if let Some(parent) = parent {
            debug_assert_eq!(
                self.0.span_context.trace_id(),
                TraceId::from(parent.trace_id()),
                "of one trace"
            );
            self.0.parent_span_id = SpanId::from(parent.span_id());
            self.0.parent_span_is_remote = is_remote;
        }
        self
    }

    /// With an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.attributes.push(KeyValue::new(name, value));
        self
    }

    /// With an attribute where there is a value.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// With attributes.
    #[must_use]
    pub fn with_all(mut self, attributes: impl IntoIterator<Item = KeyValue>) -> Self {
        self.0.attributes.extend(attributes);
        self
    }

    /// With an event.
    #[must_use]
    pub fn with_event(mut self, name: &'static str, time: SystemTime, attributes: Vec<KeyValue>) -> Self {
        self.0.events.events.push(Event::new(name, time, attributes, 0));
        self
    }

    /// With a link to another trace.
    #[must_use]
    pub fn with_link(mut self, to: TraceContext, attributes: Vec<KeyValue>) -> Self {
        self.0.links.links.push(Link::new(sdk_context(to, true), attributes, 0));
        self
    }

    /// It failed; `why` is for people.
    #[must_use]
    pub fn failed(mut self, why: impl Into<Cow<'static, str>>) -> Self {
        self.0.status = Status::error(why);
        self
    }

    pub(crate) fn into_data(self) -> SpanData {
        self.0
    }
}

fn sdk_context(context: TraceContext, is_remote: bool) -> SpanContext {
    let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    let (trace, span) = (TraceId::from(context.trace_id()), SpanId::from(context.span_id()));
    SpanContext::new(trace, span, flags, is_remote, TraceState::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_places_measured_times_on_the_wall_clock() {
        let moment = Moment::now(MonotonicTime::from_millis(1_000));
        assert_eq!(moment.wall(MonotonicTime::from_millis(700)), moment.before(Duration::from_millis(300)));
        assert_eq!(moment.wall(MonotonicTime::from_millis(2_000)), moment.before(Duration::ZERO));
    }

    #[test]
    fn a_span_never_ends_before_it_began() {
        let now = SystemTime::now();
        let context = TraceContext::new(1, 2, true).unwrap();
        let early = now - Duration::from_secs(3);
        let data = Span::new(context, "x", SpanKind::Internal, (now, early)).into_data();
        assert_eq!(data.start_time, data.end_time);
    }
}
