//! How the collector does, for the log: one warning when it begins to fail, one line when it takes telemetry again.
//!
//! What must hold: a collector that comes and goes gets a warning a minute at most; one that takes spans and refuses metrics, or
//! the other way round, is not said to be well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The shortest time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Spans,
    Metrics,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Health {
    /// Spans that were dropped.
    dropped: Arc<AtomicU64>,
    /// Exports of metrics that failed.
    failed_metrics: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    spans_fail: bool,
    metrics_fail: bool,
    warned: Option<Instant>,
    /// Dropped spans that the log has told of.
    told: u64,
}

impl State {
    /// Whether `signal` fails, from now on; whether it did before.
    fn set_failing(&mut self, signal: Signal, fails: bool) -> bool {
        let failing = match signal {
            Signal::Spans => &mut self.spans_fail,
            Signal::Metrics => &mut self.metrics_fail,
        };
        std::mem::replace(failing, fails)
    }

    fn may_warn(&mut self, now: Instant) -> bool {
        let may = self.warned.is_none_or(|at| now.duration_since(at) >= WARNING_INTERVAL);
        if may {
            self.warned = Some(now);
        }
        may
    }
}

impl Health {
    pub(crate) fn new(dropped: Arc<AtomicU64>) -> Self {
        Self { dropped, failed_metrics: AtomicU64::new(0), state: Mutex::default() }
    }

    pub(crate) fn dropped_spans(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn failed_metrics(&self) -> u64 {
        self.failed_metrics.load(Ordering::Relaxed)
    }

    /// Spans were given up.
    pub(crate) fn on_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }

    /// The collector did not take something.
    pub(crate) fn on_failed(&self, signal: Signal, error: &str) {
        let consequence = match signal {
            Signal::Spans => "spans: they are kept as far as there is room, then dropped",
            Signal::Metrics => "metrics: what it gets next says the same and more",
        };
        if signal == Signal::Metrics {
            self.failed_metrics.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        let begins = !state.set_failing(signal, true);
        if begins && state.may_warn(Instant::now()) {
            tracing::warn!(error, "the OTLP collector takes no {consequence}");
        }
    }

    /// The collector took something.
    pub(crate) fn on_taken(&self, signal: Signal) {
        let dropped = self.dropped_spans();
        let mut state = self.state.lock();
        let ends = state.set_failing(signal, false) && !state.spans_fail && !state.metrics_fail;
        let news = dropped.saturating_sub(state.told);
        if ends {
            state.told = dropped;
            tracing::info!(dropped_spans = news, "the OTLP collector takes telemetry again");
        } else if news > 0 && state.may_warn(Instant::now()) {
            state.told = dropped;
            tracing::warn!(dropped_spans = news, "spans were dropped: more came than could be sent");
        }
    }
}

#[cfg(test)]
#[path = "health_test.rs"]
mod tests;
