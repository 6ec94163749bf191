//! What leader-svc tells of itself: a Produce with its parts, and how far the followers are.

use highwater_protocol::lag_cause::LagCause;
use highwater_serving::observe::{
    CallNotes, CallSpan, MESSAGING_SYSTEM, count, follower_attribute, partition_attributes,
};
use highwater_serving::{FetchPurgatory, HostedReplica as _, Hosting, Registry};
use highwater_telemetry::names::{attribute, metric, span};
use highwater_telemetry::{KeyValue, Moment, Observations, Span, SpanKind, Telemetry};
use highwater_types::{MonotonicTime, Offset, TraceContext};
use highwater_wire::produce::ProduceResult;
use highwater_wire::status::reason_of;

use crate::partition::LedPartition;

/// A Produce was answered: counts its errors; the notes are for the response, where `call` is traced.
pub(crate) fn produced(
    telemetry: &Telemetry,
    call: CallSpan,
    results: &[ProduceResult],
) -> Option<CallNotes> {
    let meters = telemetry.meters()?;
    let errors = results.iter().filter_map(|result| result.outcome.as_ref().err());
    let codes = errors.map(|error| KeyValue::new(attribute::ERROR_TYPE, reason_of(error.code)));
    for code in codes.clone() {
        meters.errors.add(1, &[code]);
    }
    call.0?;
    let about = [
        KeyValue::new(attribute::MESSAGING_SYSTEM, MESSAGING_SYSTEM),
        KeyValue::new(attribute::MESSAGING_OPERATION, "produce"),
        KeyValue::new(attribute::MESSAGING_OPERATION_TYPE, "send"),
        KeyValue::new(attribute::PARTITIONS, count(results.len())),
    ];
    let attributes = about.into_iter().chain(codes.take(1)).collect();
    Some(CallNotes { attributes, ..CallNotes::default() })
}

/// The way of one append of a Produce that is traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendTrace {
    /// The call's span.
    call: TraceContext,
    /// The append's, which followers link to.
    pub(crate) append: TraceContext,
    began: MonotonicTime,
}

impl LedPartition {
    /// An append of a call that is traced begins.
    pub(crate) fn begin_append(&self, call: Option<TraceContext>) -> Option<AppendTrace> {
        let call = call?;
        let append = self.telemetry().tracer().below(call)?;
        Some(AppendTrace { call, append, began: self.now() })
    }

    /// It was appended.
    pub(crate) fn record_append(&self, trace: &AppendTrace, base: Offset, end: Offset) {
        self.record_part(trace, (span::APPEND, trace.append), trace.began, |span| {
            span.with(attribute::BASE_OFFSET, base.get()).with(attribute::END_OFFSET, end.get())
        });
    }

    /// The in-sync replicas hold it; they were waited for from `began` on.
    pub(crate) fn record_commit(&self, trace: &AppendTrace, began: MonotonicTime, end: Offset) {
        let Some(context) = self.telemetry().tracer().below(trace.call) else { return };
        self.record_part(trace, (span::HW_ADVANCE, context), began, |span| {
            span.with(attribute::HIGH_WATERMARK, self.replica().high_watermark().get())
                .with(attribute::END_OFFSET, end.get())
        });
    }

    fn record_part(
        &self,
        trace: &AppendTrace,
        (name, context): (&'static str, TraceContext),
        began: MonotonicTime,
        about: impl FnOnce(Span) -> Span,
    ) {
        let now = self.now();
        let moment = Moment::now(now);
        let part = Span::new(context, name, SpanKind::Internal, (moment.wall(began), moment.wall(now)))
            .with_parent(Some(trace.call), false)
            .with_all(partition_attributes(self.topic(), self.id().partition));
        self.telemetry().tracer().record(about(part));
    }
}

/// What the gauges show.
pub(crate) fn observe(
    seen: &mut Observations,
    registry: &Registry<LedPartition>,
    purgatory: &FetchPurgatory,
    now: MonotonicTime,
) {
    let mut under_replicated = 0;
    for partition in registry.online() {
        let record = partition.record();
        let about = partition_attributes(partition.topic(), record.partition);
        seen.count(metric::ISR_SIZE, record.isr.len() as u64, about.to_vec());
        // A replica that is being added is not missing yet.
        under_replicated += u64::from(record.isr.len() < record.replicas.len() - record.adding.len());
        for (row, lag_bytes) in partition.replica().describe(now) {
            let about = || [&about[..], &[follower_attribute(row.node)]].concat();
            if let Some(records) = row.lag_records {
                seen.count(metric::LAG_RECORDS, records, about());
            }
            if let Some(bytes) = lag_bytes {
                seen.count(metric::LAG_BYTES, bytes, about());
            }
            if let Some(time) = row.lag_time {
                seen.value(metric::LAG_TIME, time.as_secs_f64(), about());
            }
            if row.cause != LagCause::None {
                let cause = KeyValue::new(attribute::LAG_CAUSE, row.cause.name());
                seen.count(metric::LAGGING, 1, [about(), vec![cause]].concat());
            }
        }
    }
    let is_failed = |id: &_| matches!(registry.get(*id), Some(Hosting::Failed(_)));
    let failed = registry.ids().iter().filter(|id| is_failed(id)).count();
    seen.count(metric::FAILED, failed as u64, Vec::new());
    seen.count(metric::UNDER_REPLICATED, under_replicated, Vec::new());
    seen.count(metric::PARKED, purgatory.parked() as u64, Vec::new());
}
