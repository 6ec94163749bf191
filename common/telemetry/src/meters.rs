//! Counters and histograms, and what is looked at when metrics are sent.
//!
//! What holds: a gauge shows what its program says at that moment; what it says no more (a partition that is gone) is
//! not sent any more, and the cause of a lag that is over is sent as 0 before. The instruments are the same in both
//! programs; what a program does not know stays empty.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::Mutex;

use crate::bound::Kept;
use crate::ended::EndedSeries;
use crate::health::Health;
use crate::names::{attribute, metric};
use crate::series::{Fold, Series};
use crate::span::SCOPE;

/// Bounds of the histograms of times, in seconds.
const SECONDS: [f64; 16] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Every gauge: name, unit, what it is, and what it is of several partitions.
const GAUGES: &[(&str, &str, &str, Fold)] = &[
    (metric::LAG_RECORDS, "{record}", "Records that a follower lacks", Fold::Sum),
    (metric::LAG_BYTES, "By", "Bytes that a follower lacks", Fold::Sum),
    (metric::LAG_TIME, "s", "How long ago a follower had everything", Fold::Largest),
    (metric::LAGGING, "{replica}", "Replicas that lag, by cause", Fold::Sum),
    (
        metric::UNDER_REPLICATED,
        "{partition}",
        "Partitions with fewer replicas in sync than assigned",
        Fold::Sum,
    ),
    (metric::ISR_SIZE, "{replica}", "The size of the in-sync set", Fold::Smallest),
    (metric::FAILED, "{partition}", "Partitions that failed here", Fold::Sum),
    (metric::PARKED, "{fetch}", "Fetches parked now", Fold::Sum),
];

/// What a program says when it is looked at: values by gauge.
#[derive(Debug, Default)]
pub struct Observations(BTreeMap<&'static str, Vec<(f64, Vec<KeyValue>)>>);

impl Observations {
    /// A gauge's value, one of [`metric`]'s gauges.
    #[expect(clippy::cast_precision_loss, reason = "a figure for a chart")]
    pub fn count(&mut self, gauge: &'static str, value: u64, attributes: Vec<KeyValue>) {
        self.value(gauge, value as f64, attributes);
    }

    /// A gauge's value that is no count.
    pub fn value(&mut self, gauge: &'static str, value: f64, attributes: Vec<KeyValue>) {
        debug_assert!(GAUGES.iter().any(|(name, ..)| *name == gauge), "{gauge} is a gauge");
        self.0.entry(gauge).or_default().push((value, attributes));
    }
}

/// Says what the gauges show now. Runs on the thread that sends; it must not wait.
type Source = Box<dyn Fn(&mut Observations) + Send + Sync>;

/// The instruments.
pub struct Meters {
    server_calls: Kept<Histogram<f64>, (String, &'static str)>,
    /// [`metric::RPC_CLIENT_DURATION`].
    pub client_calls: Histogram<f64>,
    fetches: Kept<Counter<u64>, [&'static str; 2]>,
    fetch_wait: Kept<Histogram<f64>, [&'static str; 2]>,
    /// [`metric::APPEND`].
    pub append: Histogram<f64>,
    /// [`metric::FLUSH`].
    pub flush: Histogram<f64>,
    /// [`metric::LAG`].
    pub lag: Histogram<f64>,
    /// [`metric::THROTTLE`].
    pub throttle: Counter<f64>,
    /// [`metric::ERRORS`].
    pub errors: Counter<u64>,
    observed: Arc<Mutex<Observations>>,
    sources: Mutex<Vec<Source>>,
    series: Series,
    /// Causes of lags that were told.
    ended: Mutex<EndedSeries>,
    health: Arc<Health>,
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

impl Meters {
    pub(crate) fn new(provider: &SdkMeterProvider, health: &Arc<Health>, series: Series) -> Self {
        let meter = provider.meter(SCOPE);
        let seconds =
            |name| meter.f64_histogram(name).with_unit("s").with_boundaries(SECONDS.to_vec()).build();
        let observed = Arc::<Mutex<Observations>>::default();
        for (name, unit, about, _) in GAUGES {
            show(&meter, (name, unit, about), Arc::clone(&observed));
        }
        count_drops(&meter, Arc::clone(health));
        Self {
            server_calls: Kept::new(seconds(metric::RPC_SERVER_DURATION)),
            client_calls: seconds(metric::RPC_CLIENT_DURATION),
            fetches: Kept::new(meter.u64_counter(metric::FETCHES).with_unit("{fetch}").build()),
            fetch_wait: Kept::new(seconds(metric::FETCH_WAIT)),
            append: seconds(metric::APPEND),
            flush: seconds(metric::FLUSH),
            lag: seconds(metric::LAG),
            throttle: meter.f64_counter(metric::THROTTLE).with_unit("s").build(),
            errors: meter.u64_counter(metric::ERRORS).with_unit("{error}").build(),
            observed,
            sources: Mutex::default(),
            series,
            ended: Mutex::default(),
            health: Arc::clone(health),
        }
    }

    /// A call of `method` was served with this status ([`metric::RPC_SERVER_DURATION`]).
    pub fn served(&self, method: &str, status: &'static str, took: Duration) {
        let is = |(kept, code): &(String, &str)| kept == method && *code == status;
        self.server_calls.record(took.as_secs_f64(), is, || {
            let about = [
                KeyValue::new(attribute::RPC_SYSTEM, "grpc"),
                KeyValue::new(attribute::RPC_METHOD, method.to_owned()),
                KeyValue::new(attribute::RPC_STATUS, status),
            ];
            ((method.to_owned(), status), about.to_vec())
        });
    }

    /// A fetch of this kind of requester ended in this way ([`metric::FETCHES`]).
    pub fn fetched(&self, outcome: &'static str, requester: &'static str) {
        let key = [outcome, requester];
        self.fetches.record(
            1,
            |kept| *kept == key,
            || {
                let about = [
                    KeyValue::new(attribute::FETCH_OUTCOME, outcome),
                    KeyValue::new(attribute::REQUESTER, requester),
                ];
                (key, about.to_vec())
            },
        );
    }

    /// A fetch of this kind of requester was parked for so long, until this happened ([`metric::FETCH_WAIT`]).
    pub fn waited(&self, outcome: &'static str, requester: &'static str, parked: Duration) {
        let key = [outcome, requester];
        self.fetch_wait.record(
            parked.as_secs_f64(),
            |kept| *kept == key,
            || {
                let about = [
                    KeyValue::new(attribute::WAIT_OUTCOME, outcome),
                    KeyValue::new(attribute::REQUESTER, requester),
                ];
                (key, about.to_vec())
            },
        );
    }

    /// Has `source` asked each time before metrics are sent.
    pub fn observe(&self, source: impl Fn(&mut Observations) + Send + Sync + 'static) {
        self.sources.lock().push(Box::new(source));
    }

    /// Asks what the gauges show now.
    pub(crate) fn look(&self) {
        let mut seen = Observations::default();
        for source in &*self.sources.lock() {
            source(&mut seen);
        }
        for (name, .., fold) in GAUGES {
            if let Some(values) = seen.0.get_mut(name) {
                self.series.bound(values, *fold);
            }
        }
        let lagging = seen.0.entry(metric::LAGGING).or_default();
        self.ended.lock().add_to(lagging, self.health.failed_metrics(), self.series.limit());
        *self.observed.lock() = seen;
    }
}

fn show(
    meter: &Meter,
    (name, unit, about): (&'static str, &'static str, &'static str),
    observed: Arc<Mutex<Observations>>,
) {
    let callback = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
        for (value, attributes) in observed.lock().0.get(name).into_iter().flatten() {
            observer.observe(*value, attributes);
        }
    };
    let _gauge = meter
        .f64_observable_gauge(name)
        .with_unit(unit)
        .with_description(about)
        .with_callback(callback)
        .build();
}

fn count_drops(meter: &Meter, health: Arc<Health>) {
    let _counter = meter
        .u64_observable_counter(metric::DROPPED)
        .with_description("Telemetry that the collector did not take")
        .with_callback(move |observer| {
            observer.observe(health.dropped_spans(), &[KeyValue::new(attribute::SIGNAL, "spans")]);
            observer.observe(health.failed_metrics(), &[KeyValue::new(attribute::SIGNAL, "metrics")]);
        })
        .build();
}
