//! What a loop tells of its fetches, and what an answer says about the way of its records.

use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::fetch::{FetchResponse, Fetched};
use highwater_protocol::lag_cause::Delays;
use highwater_serving::observe::{MESSAGING_SYSTEM, count, follower_attribute, throttle_side, throttled};
use highwater_telemetry::names::{attribute, event};
use highwater_telemetry::{KeyValue, Moment, Span, SpanKind, Telemetry};
use highwater_types::{MonotonicTime, NodeId, Offset, ThrottleSide, TraceContext};
use highwater_wire::Failure;
use highwater_wire::failure::code_name;
use highwater_wire::status::reason_of;

use super::LoopKey;

/// The method of every call of a loop.
const METHOD: &str = "highwater.v1.LogService/Fetch";

/// A request on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trip {
    /// When it went out.
    pub(super) at: MonotonicTime,
    /// The call's span, where it is traced.
    pub(super) call: Option<TraceContext>,
    /// Whether it does more than acknowledge.
    pub(super) wants_records: bool,
    /// How long this node's throttle kept something out of requests before it.
    pub(super) held: Duration,
}

/// An answer's way, without its partitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    call: Option<TraceContext>,
    received: MonotonicTime,
    answered: MonotonicTime,
    /// The round trip, without the time that the leader held the request.
    network: Duration,
    arrived: MonotonicTime,
    throttled: bool,
}

impl Way {
    /// Of this answer to `trip`, which arrived now. Each difference is of one node's clock (design.md 7).
    pub(super) fn of(trip: Trip, answer: &FetchResponse, now: MonotonicTime) -> Self {
        let held = answer.answered.since(answer.received);
        Self {
            call: trip.call,
            received: answer.received,
            answered: answer.answered,
            network: now.since(trip.at).saturating_sub(held),
            arrived: now,
            throttled: answer.throttle_reason.is_some(),
        }
    }

    /// What came of a partition read from `from`; `None` when there are no records, or the leader does not know when it
    /// appended them. `held_back` tells whether this node's throttle left the partition out a moment ago.
    pub(super) fn carried(
        &self,
        from: Offset,
        fetched: &Fetched,
        held_back: impl FnOnce() -> bool,
    ) -> Option<Carried> {
        let appended = fetched.appended.filter(|_| !fetched.records.is_empty())?;
        let delays = Delays {
            behind: self.received.since(appended),
            leader: self.answered.since(appended.max(self.received)),
            network: self.network,
            disk: Duration::ZERO,
        };
        Some(Carried {
            from,
            bytes: fetched.records.len(),
            delays,
            arrived: self.arrived,
            throttled: self.throttled || held_back(),
            call: self.call,
            traces: fetched.traces.clone(),
        })
    }
}

/// Records of one partition that an answer brought, and what they had behind them then.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// The first record's offset.
    pub(crate) from: Offset,
    /// How many bytes they are.
    pub(crate) bytes: usize,
    /// Their way so far; the disk's part is to come.
    pub(crate) delays: Delays,
    /// When they arrived.
    pub(crate) arrived: MonotonicTime,
    /// A quota held them back: the leader's its answer, or this node's what it asks for.
    pub(crate) throttled: bool,
    /// The call that brought them, where it is traced.
    pub(crate) call: Option<TraceContext>,
    /// Under which traces some of them were produced.
    pub(crate) traces: Vec<(Offset, TraceContext)>,
}

/// Tells of a loop's calls. What is the same in all of them is made once.
#[derive(Debug)]
pub(super) struct CallObserver {
    telemetry: Telemetry,
    /// Of every call, by the conventions.
    about: [KeyValue; 4],
    /// Of one that was answered.
    answered: [KeyValue; 5],
    /// Of its span besides.
    of_span: [KeyValue; 5],
}

impl CallObserver {
    /// Of the loop that `node` has for `leader`.
    pub(super) fn new(telemetry: Telemetry, node: NodeId, leader: &LoopKey) -> Self {
        let endpoint = leader.endpoint.as_str();
        let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
        let [system, method, address, port] = [
            KeyValue::new(attribute::RPC_SYSTEM, "grpc"),
            KeyValue::new(attribute::RPC_METHOD, METHOD),
            KeyValue::new(attribute::SERVER_ADDRESS, Arc::<str>::from(host)),
            KeyValue::new(attribute::SERVER_PORT, port.parse().unwrap_or(0_i64)),
        ];
        let about = [system, method, address, port];
        let [system, method, address, port] = about.clone();
        Self {
            telemetry,
            about,
            answered: [system, method, address, port, KeyValue::new(attribute::RPC_STATUS, "OK")],
            of_span: [
                KeyValue::new(attribute::MESSAGING_SYSTEM, MESSAGING_SYSTEM),
                KeyValue::new(attribute::MESSAGING_OPERATION, "fetch"),
                KeyValue::new(attribute::MESSAGING_OPERATION_TYPE, "receive"),
                KeyValue::new(attribute::LEADER_ID, i64::from(leader.leader.get())),
                follower_attribute(node),
            ],
        }
    }

    /// A call was answered with `bytes` of records: counted, and with a span when something came of it.
    pub(super) fn answered(&self, trip: Trip, answer: &FetchResponse, bytes: usize, now: MonotonicTime) {
        let Some(meters) = self.telemetry.meters() else { return };
        let mut failed = 0;
        for error in answer.partitions.iter().filter_map(|result| result.outcome.as_ref().err()) {
            failed += 1;
            meters.errors.add(1, &[KeyValue::new(attribute::ERROR_TYPE, reason_of(error.code))]);
        }
        let outcome = if bytes > 0 {
            "productive"
        } else if failed > 0 {
            "failed"
        } else if trip.wants_records {
            "idle"
        } else {
            "acknowledgement"
        };
        self.count(outcome);
        if bytes > 0 || failed > 0 {
            meters.client_calls.record(now.since(trip.at).as_secs_f64(), &self.answered);
            self.record(trip, now, |span| {
                span.with_all(self.answered.clone()).with(attribute::BYTES, count(bytes))
            });
        }
    }

    /// A call failed: by the conventions for clients every status but OK is an error.
    pub(super) fn failed(&self, trip: Trip, failure: &Failure, now: MonotonicTime) {
        self.count("failed");
        let name = code_name(failure.status);
        let (status, why) =
            (KeyValue::new(attribute::RPC_STATUS, name), KeyValue::new(attribute::ERROR_TYPE, name));
        let Some(meters) = self.telemetry.meters() else { return };
        meters.errors.add(1, std::slice::from_ref(&why));
        let about = [&self.about[..], &[status, why]].concat();
        meters.client_calls.record(now.since(trip.at).as_secs_f64(), &about);
        self.record(trip, now, |span| span.with_all(about).failed(failure.message.clone()));
    }

    /// This node's throttle kept something out of requests for so long.
    pub(super) fn held(&self, span: Duration) {
        if let Some(meters) = self.telemetry.meters().filter(|_| !span.is_zero()) {
            meters.throttle.add(span.as_secs_f64(), &[throttle_side(ThrottleSide::Follower)]);
        }
    }

    fn count(&self, outcome: &'static str) {
        if let Some(meters) = self.telemetry.meters() {
            meters.fetched(outcome, "follower");
        }
    }

    fn record(&self, trip: Trip, now: MonotonicTime, more: impl FnOnce(Span) -> Span) {
        let Some(context) = trip.call else { return };
        let moment = Moment::now(now);
        let began = moment.wall(trip.at);
        let mut span = Span::new(context, METHOD, SpanKind::Client, (began, moment.wall(now)))
            .with_all(self.of_span.clone());
        if !trip.held.is_zero() {
            span = span.with_event(event::THROTTLE, began, throttled(ThrottleSide::Follower, trip.held));
        }
        self.telemetry.tracer().record(more(span));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use highwater_protocol::fetch::Snapshot;

    use super::*;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::from_millis(millis)
    }

    /// Of an answer that the leader got at 5,000, made at 5,200, by its clock; sent at 100 and here at 340, by ours.
    fn way() -> Way {
        let answer = FetchResponse {
            session_id: 0,
            received: at(5_000),
            answered: at(5_200),
            throttle: Duration::ZERO,
            throttle_reason: None,
            partitions: Vec::new(),
        };
        Way::of(Trip { at: at(100), ..Trip::default() }, &answer, at(340))
    }

    fn fetched(appended: Option<u64>) -> Fetched {
        let offset = Offset::ZERO;
        let snapshot = Snapshot { high_watermark: offset, log_start: offset, log_end: offset };
        Fetched {
            records: Bytes::from_static(b"records"),
            appended: appended.map(at),
            ..Fetched::empty(snapshot)
        }
    }

    #[test]
    fn the_network_has_what_the_leader_did_not_hold() {
        let delays = way().carried(Offset::ZERO, &fetched(Some(5_150)), || false).unwrap().delays;
        assert_eq!((delays.behind, delays.leader), (Duration::ZERO, Duration::from_millis(50)));
        assert_eq!(delays.network, Duration::from_millis(40));
        assert_eq!(delays.lag(), Duration::from_millis(90), "(answered - appended) + (round trip - hold)");
    }

    #[test]
    fn what_lay_there_before_it_was_asked_for_was_behind() {
        let delays = way().carried(Offset::ZERO, &fetched(Some(3_000)), || false).unwrap().delays;
        assert_eq!((delays.behind, delays.leader), (Duration::from_secs(2), Duration::from_millis(200)));
        assert_eq!(delays.lag(), Duration::from_millis(2_240));
    }

    #[test]
    fn what_the_own_throttle_held_back_is_told_as_throttled() {
        let throttled = |held| way().carried(Offset::ZERO, &fetched(Some(3_000)), || held).unwrap().throttled;
        assert!(throttled(true) && !throttled(false));
    }

    #[test]
    fn without_records_or_their_time_nothing_is_measured() {
        assert!(way().carried(Offset::ZERO, &fetched(None), || false).is_none());
        let empty = Fetched { records: Bytes::new(), ..fetched(Some(5_000)) };
        assert!(way().carried(Offset::ZERO, &empty, || false).is_none());
    }
}
