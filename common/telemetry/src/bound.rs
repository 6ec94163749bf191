//! Series that are looked up once: what is recorded for every call hashes no attributes.
//!
//! What holds: a key has one series for as long as the program runs, and there are at most [`SERIES_MAX`]; what comes after
//! them is recorded with its attributes each time, so a caller that makes keys up costs time and no memory here.

use std::fmt;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram};
use parking_lot::RwLock;

/// The most series of one instrument that are kept.
const SERIES_MAX: usize = 64;

/// An instrument whose series are kept by a key.
pub(crate) struct Kept<I: Instrument, K> {
    instrument: I,
    series: RwLock<Vec<(K, I::Series)>>,
}

impl<I: Instrument, K> fmt::Debug for Kept<I, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("series", &self.series.read().len()).finish_non_exhaustive()
    }
}

impl<I: Instrument, K> Kept<I, K> {
    pub(crate) const fn new(instrument: I) -> Self {
        Self { instrument, series: RwLock::new(Vec::new()) }
    }

    /// Records `value` in the series whose key `is` that; `about` says its key and attributes where it is not kept yet.
    pub(crate) fn record(
        &self,
        value: I::Value,
        is: impl Fn(&K) -> bool,
        about: impl FnOnce() -> (K, Vec<KeyValue>),
    ) {
        if let Some((_, series)) = self.series.read().iter().find(|(key, _)| is(key)) {
            return I::record_in(series, value);
        }
        let (key, attributes) = about();
        self.instrument.record(value, &attributes);
        let mut kept = self.series.write();
        if kept.len() < SERIES_MAX && !kept.iter().any(|(key, _)| is(key)) {
            kept.push((key, self.instrument.series(&attributes)));
        }
    }
}

/// What can be recorded with attributes, and without them in a series of its own.
pub(crate) trait Instrument {
    /// What is recorded.
    type Value;
    /// One series.
    type Series;

    /// Records with attributes.
    fn record(&self, value: Self::Value, attributes: &[KeyValue]);

    /// The series with these attributes.
    fn series(&self, attributes: &[KeyValue]) -> Self::Series;

    /// Records in a series.
    fn record_in(series: &Self::Series, value: Self::Value);
}

impl Instrument for Histogram<f64> {
    type Value = f64;
    type Series = BoundHistogram<f64>;

    fn record(&self, value: f64, attributes: &[KeyValue]) {
        Self::record(self, value, attributes);
    }

    fn series(&self, attributes: &[KeyValue]) -> BoundHistogram<f64> {
        self.bind(attributes)
    }

    fn record_in(series: &BoundHistogram<f64>, value: f64) {
        series.record(value);
    }
}

impl Instrument for Counter<u64> {
    type Value = u64;
    type Series = BoundCounter<u64>;

    fn record(&self, value: u64, attributes: &[KeyValue]) {
        self.add(value, attributes);
    }

    fn series(&self, attributes: &[KeyValue]) -> BoundCounter<u64> {
        self.bind(attributes)
    }

    fn record_in(series: &BoundCounter<u64>, value: u64) {
        series.add(value);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
    use opentelemetry_sdk::metrics::reader::MetricReader as _;

    use super::*;
    use crate::export::SharedReader;

    /// Every series of the only counter, by the value of its attribute.
    fn counted(reader: &SharedReader) -> Vec<(String, u64)> {
        let mut collected = ResourceMetrics::default();
        reader.collect(&mut collected).unwrap();
        let scope = collected.scope_metrics().next().expect("it has counted");
        let metric = scope.metrics().next().expect("one counter");
        let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else { panic!("a sum") };
        let of = |point: &opentelemetry_sdk::metrics::data::SumDataPoint<u64>| {
            (point.attributes().next().expect("one").value.to_string(), point.value())
        };
        let mut all: Vec<_> = sum.data_points().map(of).collect();
        all.sort();
        all
    }

    fn counter() -> (SharedReader, SdkMeterProvider, Kept<Counter<u64>, u32>) {
        let reader = SharedReader::new();
        let provider = SdkMeterProvider::builder().with_reader(reader.clone()).build();
        let counter = provider.meter("test").u64_counter("calls").build();
        (reader, provider, Kept::new(counter))
    }

    #[test]
    fn a_key_that_comes_again_adds_to_its_own_series() {
        let (reader, _provider, kept) = counter();
        for key in [1, 2, 1, 1] {
            kept.record(10, |k| *k == key, || (key, vec![KeyValue::new("key", key.to_string())]));
        }
        assert_eq!(counted(&reader), [("1".to_owned(), 30), ("2".to_owned(), 10)]);
        assert_eq!(kept.series.read().len(), 2);
        // And it is told again and again, also when nothing was added.
        assert_eq!(counted(&reader), [("1".to_owned(), 30), ("2".to_owned(), 10)]);
    }

    #[test]
    fn more_keys_than_are_kept_are_counted_all_the_same() {
        let (reader, _provider, kept) = counter();
        let keys = u32::try_from(SERIES_MAX).unwrap() + 10;
        for key in (0..keys).chain(0..keys) {
            kept.record(1, |k| *k == key, || (key, vec![KeyValue::new("key", key.to_string())]));
        }
        assert_eq!(kept.series.read().len(), SERIES_MAX);
        let counted = counted(&reader);
        assert!(
            counted.len() == keys as usize && counted.iter().all(|(_, count)| *count == 2),
            "{counted:?}"
        );
    }
}
