//! How the collector does, for the log: one warning when it begins to fail, one line when it takes telemetry again.
//!
//! What must hold: a collector that comes and goes gets a warning a minute at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The shortest time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

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
    is_failing: bool,
    warned: Option<Instant>,
    /// Dropped spans that the log has told of.
    told: u64,
}

impl State {
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

    /// Metrics were not taken; the next ones say the same and more.
    pub(crate) fn on_failed_metrics(&self, error: &str) {
        self.failed_metrics.fetch_add(1, Ordering::Relaxed);
        self.on_failed(error);
    }

    /// The collector did not take something.
    pub(crate) fn on_failed(&self, error: &str) {
        let mut state = self.state.lock();
        let begins = !std::mem::replace(&mut state.is_failing, true);
        if begins && state.may_warn(Instant::now()) {
            tracing::warn!(
                error,
                "the OTLP collector takes no telemetry: spans are kept as far as there is room, then dropped"
            );
        }
    }

    /// The collector took something.
    pub(crate) fn on_taken(&self) {
        let dropped = self.dropped_spans();
        let mut state = self.state.lock();
        let ends = std::mem::replace(&mut state.is_failing, false);
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
