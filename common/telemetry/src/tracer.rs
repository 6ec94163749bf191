//! Where spans go: into a bounded queue, or nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use highwater_types::TraceContext;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use crate::sampling::Sampling;
use crate::span::Span;

/// Spans that wait to be sent, at most: some MiB. While the collector takes none, what comes later is dropped.
pub(crate) const QUEUE_MAX: usize = 4096;

/// Decides what is traced, and takes the spans. Cheap to clone; does nothing when it is off.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    sampling: Sampling,
    queue: mpsc::Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// Records nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// A tracer, the spans that it takes, and how many it dropped.
    pub(crate) fn new(sampling: Sampling) -> (Self, mpsc::Receiver<SpanData>, Arc<AtomicU64>) {
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let shared = Shared { sampling, queue, dropped: Arc::clone(&dropped) };
        (Self(Some(Arc::new(shared))), spans, dropped)
    }

    /// Whether anything is recorded at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The context of a span below `parent`, or of a new trace where there is none; `None` when it is not to be traced.
    /// The span is made and recorded when it is over, if it is worth it.
    #[must_use]
    pub fn begin(&self, parent: Option<TraceContext>) -> Option<TraceContext> {
        let shared = self.0.as_ref()?;
        if !shared.sampling.includes(parent, rand::random()) {
            return None;
        }
        parent.map_or_else(|| TraceContext::new(rand::random(), span_id(), true), child)
    }

    /// The context of a span below one that is traced.
    #[must_use]
    pub fn below(&self, parent: TraceContext) -> Option<TraceContext> {
        self.0.as_ref()?;
        child(parent)
    }

    /// The context of a span of its own for a lag that is always traced.
    #[must_use]
    pub fn begin_for_lag(&self, lag: Duration) -> Option<TraceContext> {
        let shared = self.0.as_ref()?;
        let is_in = shared.sampling.includes_lag(lag);
        if is_in { TraceContext::new(rand::random(), span_id(), true) } else { None }
    }

    /// Takes a span; drops it, and counts that, when too many wait. Never blocks.
    pub fn record(&self, span: Span) {
        let Some(shared) = &self.0 else { return };
        if shared.queue.try_send(span.into_data()).is_err() {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn child(parent: TraceContext) -> Option<TraceContext> {
    parent.with_span(span_id())
}

fn span_id() -> u64 {
    rand::random_range(1..=u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::span::SpanKind;

    fn tracer(ratio: &str) -> (Tracer, mpsc::Receiver<SpanData>, Arc<AtomicU64>) {
        Tracer::new(Sampling { ratio: ratio.parse().unwrap(), lag_bound: Duration::from_secs(1) })
    }

    #[test]
    fn a_tracer_that_is_off_begins_nothing() {
        let parent = TraceContext::new(1, 2, true);
        assert_eq!(Tracer::off().begin(parent), None);
        assert_eq!(Tracer::off().begin_for_lag(Duration::MAX), None);
        assert!(!Tracer::off().is_on());
    }

    #[test]
    fn a_span_of_a_traced_caller_is_of_its_trace() {
        let (tracer, _spans, _) = tracer("0");
        let parent = TraceContext::new(1, 2, true).unwrap();
        let own = tracer.begin(Some(parent)).unwrap();
        assert_eq!(own.trace_id(), 1);
        assert_ne!(own.span_id(), 2);
        assert_eq!(tracer.begin(None), None);
        assert!(tracer.begin_for_lag(Duration::from_secs(1)).is_some());
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let (tracer, mut spans, dropped) = tracer("1");
        let now = SystemTime::now();
        for _ in 0..QUEUE_MAX + 3 {
            let context = tracer.begin(None).unwrap();
            tracer.record(Span::new(context, "x", SpanKind::Internal, (now, now)));
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert!(spans.try_recv().is_ok());
        drop(spans);
        let context = tracer.begin(None).unwrap();
        tracer.record(Span::new(context, "x", SpanKind::Internal, (now, now)));
        assert_eq!(dropped.load(Ordering::Relaxed), 4, "nobody sends any more");
    }
}
