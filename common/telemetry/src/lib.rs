//! What the programs tell about themselves: log lines on standard error, traces and metrics by OTLP.
//!
//! What must hold:
//! - Without an endpoint nothing is exported and nothing is paid: a [`Telemetry`] that is off does nothing.
//! - Nobody ever waits for telemetry. Spans go into a bounded queue, or are dropped and counted; whatever the collector
//!   does happens on a thread and a runtime of their own, so that a program with one worker ends as well as another
//!   (opentelemetry-rust#2583); the end of the program waits for the last spans, bounded.
//! - Whether something is traced is decided before a span is made ([`Sampling`]), and a span is made when it is over,
//!   from times that were measured anyway: what turned out to be idle never becomes one. That is why spans are built
//!   here and not by `tracing`, whose spans begin when they are made; the lag span could not be one either.
//! - Telemetry about telemetry does not exist: what sends has no spans and no metrics but what it had to drop.
//!
//! | module | holds |
//! |---|---|
//! | [`log`] | log lines |
//! | [`names`] | every name that is exported |
//! | [`sampling`] | what is traced |
//! | [`span`] | a span that is over |
//! | [`tracer`] | where spans go |
//! | [`meters`] | counters, histograms, and what is looked at when metrics are sent |
//! | [`otlp`] | where to, and as whom |
//!
//! Deliberately absent: what the spans and metrics of a program are, which the programs know.

mod bound;
mod ended;
mod export;
mod health;
pub mod log;
pub mod meters;
pub mod names;
pub mod otlp;
pub mod sampling;
mod series;
pub mod span;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod tracer;

pub use log::{LogError, LogFormat, check_filter, init};
pub use meters::{Meters, Observations};
pub use opentelemetry::KeyValue;
pub use otlp::{OtlpEndpoint, OtlpSettings, ServiceIdentity};
pub use sampling::{Sampling, SamplingRatio};
pub use span::{Moment, Span, SpanKind};
pub use telemetry::{Exporter, Telemetry};
pub use tracer::Tracer;
