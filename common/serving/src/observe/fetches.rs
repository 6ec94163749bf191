//! What is told of a Fetch that was served: counted always, with a span and its children when something came of it.

use std::ops::Range;

use highwater_node::MonotonicClock;
use highwater_protocol::fetch::{self, FetchRequest, FetchResponse, PartitionResult};
use highwater_telemetry::names::{attribute, event, span};
use highwater_telemetry::{KeyValue, Meters, Moment, Span, SpanKind, Telemetry};
use highwater_types::{MonotonicTime, NodeId, ThrottleSide, TraceContext};
use highwater_wire::status::reason_of;

use super::{
    CallNotes, CallSpan, MESSAGING_SYSTEM, RecordLink, count, follower_attribute, millis, throttle_side,
    throttled,
};
use crate::fetch::Fetched;

/// Links of one span, at most: the traces of records in an answer.
const LINKS_MAX: usize = 16;

/// What a request asked, as far as it is told.
#[derive(Clone, Copy, Debug)]
pub struct FetchAsked {
    follower: Option<NodeId>,
    wants_records: bool,
}

impl FetchAsked {
    /// By this request.
    #[must_use]
    pub fn by(request: &FetchRequest) -> Self {
        Self { follower: request.replica, wants_records: request.max_bytes > 0 }
    }
}

/// Tells of fetches.
#[derive(Clone, Copy, Debug)]
pub struct FetchObserver<'a> {
    telemetry: &'a Telemetry,
    clock: MonotonicClock,
}

impl<'a> FetchObserver<'a> {
    /// One that tells `telemetry`.
    #[must_use]
    pub const fn new(telemetry: &'a Telemetry, clock: MonotonicClock) -> Self {
        Self { telemetry, clock }
    }

    /// A fetch was answered; `call` is its span. The notes are for the response, where there are any.
    #[must_use]
    pub fn answered(&self, call: CallSpan, asked: FetchAsked, fetched: &Fetched) -> Option<CallNotes> {
        let meters = self.telemetry.meters()?;
        let answer = Answer::of(&fetched.response);
        tell(meters, asked, &answer, fetched);
        if !answer.is_worth_a_span() {
            return Some(CallNotes { idle: true, ..CallNotes::default() });
        }
        let context = call.0?;
        self.record_parts(context, &answer, fetched);
        Some(notes(asked, &answer, fetched))
    }

    /// The park and the read, below the call. A throttle's event is between the two.
    fn record_parts(&self, call: TraceContext, answer: &Answer, fetched: &Fetched) {
        let (moment, tracer) = (Moment::now(self.clock.now()), self.telemetry.tracer());
        let record = |name, when: Range<MonotonicTime>, about| {
            let Some(context) = tracer.below(call) else { return };
            let times = (moment.wall(when.start), moment.wall(when.end));
            let part = Span::new(context, name, SpanKind::Internal, times).with_parent(Some(call), false);
            tracer.record(part.with_all([about]));
        };
        if !fetched.parked.is_zero() {
            let outcome = KeyValue::new(attribute::WAIT_OUTCOME, fetched.completion.name());
            record(span::PARK, fetched.park(), outcome);
        }
        if answer.bytes > 0 {
            record(span::READ, fetched.read(), KeyValue::new(attribute::BYTES, count(answer.bytes)));
        }
    }
}

/// What an answer holds.
struct Answer {
    bytes: usize,
    /// How many partitions it tells of.
    told: usize,
    failed: Vec<&'static str>,
}

impl Answer {
    fn of(response: &FetchResponse) -> Self {
        let failed = response.partitions.iter().filter_map(|result| result.outcome.as_ref().err());
        Self {
            bytes: told(response).map(|(_, fetched)| fetched.records.len()).sum(),
            told: told(response).count(),
            failed: failed.map(|error| reason_of(error.code)).collect(),
        }
    }

    const fn is_worth_a_span(&self) -> bool {
        self.told > 0 || !self.failed.is_empty()
    }

    fn outcome(&self, asked: FetchAsked) -> &'static str {
        if self.told > 0 {
            "productive"
        } else if !self.failed.is_empty() {
            "failed"
        } else if asked.wants_records {
            "idle"
        } else {
            "acknowledgement"
        }
    }
}

/// Partitions with records, or that differ.
fn told(response: &FetchResponse) -> impl Iterator<Item = (&PartitionResult, &fetch::Fetched)> {
    let found = response.partitions.iter().filter_map(|result| Some((result, result.outcome.as_ref().ok()?)));
    found.filter(|(_, fetched)| !fetched.records.is_empty() || fetched.diverging.is_some())
}

fn tell(meters: &Meters, asked: FetchAsked, answer: &Answer, fetched: &Fetched) {
    let requester = if asked.follower.is_some() { "follower" } else { "consumer" };
    meters.fetched(answer.outcome(asked), requester);
    meters.waited(fetched.completion.name(), requester, fetched.parked);
    for code in &answer.failed {
        meters.errors.add(1, &[KeyValue::new(attribute::ERROR_TYPE, *code)]);
    }
    if !fetched.held.is_zero() {
        meters.throttle.add(fetched.held.as_secs_f64(), &[throttle_side(ThrottleSide::Leader)]);
    }
}

fn notes(asked: FetchAsked, answer: &Answer, fetched: &Fetched) -> CallNotes {
    let mut attributes = vec![
        KeyValue::new(attribute::MESSAGING_SYSTEM, MESSAGING_SYSTEM),
        KeyValue::new(attribute::MESSAGING_OPERATION, "fetch"),
        KeyValue::new(attribute::MESSAGING_OPERATION_TYPE, "receive"),
        KeyValue::new(attribute::WAIT_OUTCOME, fetched.completion.name()),
        KeyValue::new(attribute::WAIT_MS, millis(fetched.parked)),
        KeyValue::new(attribute::PARTITIONS, count(answer.told)),
        KeyValue::new(attribute::BYTES, count(answer.bytes)),
    ];
    attributes.extend(asked.follower.map(follower_attribute));
    let mut partitions = told(&fetched.response);
    if let (Some((result, only)), None) = (partitions.next(), partitions.next()) {
        attributes.extend(names(result));
        attributes.push(KeyValue::new(attribute::HIGH_WATERMARK, only.snapshot.high_watermark.get()));
        attributes.push(KeyValue::new(attribute::LOG_END, only.snapshot.log_end.get()));
    }
    if let Some(code) = answer.failed.first() {
        attributes.push(KeyValue::new(attribute::ERROR_TYPE, *code));
    }
    let held = || (event::THROTTLE, fetched.park().end, throttled(ThrottleSide::Leader, fetched.held));
    CallNotes {
        idle: false,
        attributes,
        links: told(&fetched.response).flat_map(links).take(LINKS_MAX).collect(),
        event: (!fetched.held.is_zero()).then(held),
    }
}

fn links<'a>(
    (result, fetched): (&'a PartitionResult, &'a fetch::Fetched),
) -> impl Iterator<Item = RecordLink> + 'a {
    fetched.traces.iter().map(|(offset, context)| {
        let mut attributes: Vec<KeyValue> = names(result).collect();
        attributes.push(KeyValue::new(attribute::BASE_OFFSET, offset.get()));
        (*context, attributes)
    })
}

fn names(result: &PartitionResult) -> impl Iterator<Item = KeyValue> + use<> {
    let topic = result.topic.as_ref().map(|topic| KeyValue::new(attribute::TOPIC, topic.to_string()));
    topic.into_iter().chain([KeyValue::new(attribute::PARTITION, result.partition.get().to_string())])
}
