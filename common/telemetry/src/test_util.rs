//! For tests: what was recorded, kept instead of sent.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::reader::MetricReader as _;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use crate::export::SharedReader;
use crate::sampling::{Sampling, SamplingRatio};
use crate::telemetry::Telemetry;

/// What a [`Telemetry`] recorded.
#[derive(Debug)]
pub struct Kept {
    spans: mpsc::Receiver<SpanData>,
    reader: SharedReader,
    /// Owns the instruments' pipeline.
    _provider: SdkMeterProvider,
}

/// A span that was recorded. Times are wall clock's, so that only those of one span and its events compare exactly.
#[derive(Debug, Clone)]
pub struct KeptSpan {
    /// Its name.
    pub name: String,
    /// When it began and ended.
    pub times: (SystemTime, SystemTime),
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// Its events: name, time, attributes.
    pub events: Vec<(String, SystemTime, BTreeMap<String, String>)>,
}

impl Telemetry {
    /// Records every trace, and keeps what it records.
    #[must_use]
    pub fn kept() -> (Self, Kept) {
        let sampling = Sampling { ratio: SamplingRatio::ALL, lag_bound: Duration::ZERO };
        let (telemetry, recorded) = Self::new(sampling, 0, opentelemetry_sdk::Resource::builder().build());
        (telemetry, Kept { spans: recorded.spans, reader: recorded.reader, _provider: recorded.provider })
    }
}

impl Kept {
    /// The spans since the last call.
    pub fn spans(&mut self) -> Vec<KeptSpan> {
        std::iter::from_fn(|| self.spans.try_recv().ok()).map(kept_span).collect()
    }

    /// A counter of fractions: its value with just these attributes; 0 when nothing was counted.
    ///
    /// # Panics
    /// When nothing collects any more.
    #[must_use]
    pub fn counted(&self, metric: &str, about: &[(&str, &str)]) -> f64 {
        let mut collected = ResourceMetrics::default();
        assert!(self.reader.collect(&mut collected).is_ok(), "the pipeline is there");
        let wanted = about.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let metrics = collected.scope_metrics().flat_map(|scope| scope.metrics());
        let of_name = metrics.filter(|found| found.name() == metric);
        let value = of_name.filter_map(|found| {
            let AggregatedMetrics::F64(MetricData::Sum(sum)) = found.data() else { return None };
            let point = sum.data_points().find(|point| texts(point.attributes()) == wanted)?;
            Some(point.value())
        });
        value.sum()
    }
}

fn kept_span(span: SpanData) -> KeptSpan {
    let event = |event: opentelemetry::trace::Event| {
        (event.name.into_owned(), event.timestamp, texts(event.attributes.iter()))
    };
    KeptSpan {
        name: span.name.into_owned(),
        times: (span.start_time, span.end_time),
        attributes: texts(span.attributes.iter()),
        events: span.events.events.into_iter().map(event).collect(),
    }
}

fn texts<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> BTreeMap<String, String> {
    attributes.map(|about| (about.key.to_string(), about.value.to_string())).collect()
}
