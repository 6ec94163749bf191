//! The replication lag of what was fetched (design.md 7): from the leader's append until it is held here, told when it is.
//!
//! What must hold: the lag is made of differences of single clocks, so no clock skew enters, and the span's start is its
//! end less the lag; what a truncation or a new epoch voided is not told; what waits to be told is bounded. Nothing here
//! decides anything about replication.

use std::collections::VecDeque;
use std::time::Duration;

use highwater_protocol::follower::FollowerPartition;
use highwater_protocol::lag_cause::{Delays, cause_of_answer};
use highwater_serving::observe::{MESSAGING_SYSTEM, count, millis};
use highwater_telemetry::names::{attribute, span};
use highwater_telemetry::{KeyValue, Moment, Span, SpanKind};
use highwater_types::{LeaderEpoch, MonotonicTime, NodeId, Offset, TraceContext};
use parking_lot::Mutex;

use super::{FollowedPartition, QUEUED_ANSWERS_MAX};
use crate::fetcher::Carried;

/// Answers whose lag is still to be told, at most: those that wait for their append, and those that wait for a flush.
const PENDING_MAX: usize = 4 * QUEUED_ANSWERS_MAX;

/// What waits to be held.
#[derive(Debug, Default)]
pub(super) struct LagWatch {
    pending: Mutex<VecDeque<Pending>>,
    last: Mutex<Option<LastWay>>,
}

/// How the last records came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastWay {
    /// Where their time went.
    pub(crate) delays: Delays,
    /// A quota held them back, the leader's or this node's.
    pub(crate) throttled: bool,
}

#[derive(Clone, Debug)]
struct Pending {
    carried: Carried,
    /// Void once the partition's is another one.
    generation: u64,
    /// The offset after the records.
    end: Offset,
    appended: Option<MonotonicTime>,
}

/// The partition as it is when a lag is told.
#[derive(Clone, Copy, Debug)]
struct State {
    generation: u64,
    log_end: Offset,
    held: Offset,
    high_watermark: Offset,
    leader: NodeId,
    leader_epoch: LeaderEpoch,
    leader_end: Offset,
}

impl State {
    fn of(core: &FollowerPartition) -> Self {
        Self {
            generation: core.generation(),
            log_end: core.log_end(),
            held: core.acknowledged(),
            high_watermark: core.high_watermark(),
            leader: core.leader(),
            leader_epoch: core.leader_epoch(),
            leader_end: core.leader_log_end().unwrap_or_else(|| core.log_end()),
        }
    }
}

impl LagWatch {
    fn push(&self, pending: Pending) {
        let mut waiting = self.pending.lock();
        if waiting.len() == PENDING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(pending);
        debug_assert!(waiting.len() <= PENDING_MAX, "what waits is bounded");
    }

    /// Takes out what is held by now.
    fn settle(&self, state: &State, now: MonotonicTime) -> Vec<Pending> {
        let mut waiting = self.pending.lock();
        waiting.retain(|pending| pending.generation == state.generation);
        for pending in waiting.iter_mut().filter(|pending| pending.end <= state.log_end) {
            pending.appended.get_or_insert(now);
        }
        let held = waiting.partition_point(|pending| pending.end <= state.held);
        waiting.drain(..held).collect()
    }
}

impl FollowedPartition {
    /// How the last records came; `None` before the first.
    pub(crate) fn last_way(&self) -> Option<LastWay> {
        *self.lags.last.lock()
    }

    /// Records were taken: their lag is told when they are held.
    pub(super) fn watch_lag(&self, carried: Carried) {
        let (generation, end) = self.replica.inspect(|core| (core.generation(), core.fetch_offset()));
        self.lags.push(Pending { carried, generation, end, appended: None });
        // They may have been appended meanwhile.
        self.settle_lags();
    }

    /// Something was appended or flushed.
    pub(super) fn settle_lags(&self) {
        if self.lags.pending.lock().is_empty() {
            return;
        }
        let state = self.replica.inspect(State::of);
        let now = self.context.clocks.monotonic.now();
        for held in self.lags.settle(&state, now) {
            self.tell_lag(&held, &state, now);
        }
    }

    fn tell_lag(&self, held: &Pending, state: &State, now: MonotonicTime) {
        let carried = &held.carried;
        let delays = Delays { disk: now.since(carried.arrived), ..carried.delays };
        *self.lags.last.lock() = Some(LastWay { delays, throttled: carried.throttled });
        if let Some(meters) = self.context.telemetry.meters() {
            meters.lag.record(delays.lag().as_secs_f64(), &self.about);
        }
        let Some((context, parent)) = self.lag_context(carried, delays.lag()) else { return };
        let moment = Moment::now(now);
        let name = format!("{} {}", span::REPLICATE, self.topic.name);
        let times = (moment.before(delays.lag()), moment.before(Duration::ZERO));
        let mut replicate = Span::new(context, name, SpanKind::Consumer, times)
            .with_parent(parent, true)
            .with_all(self.about.clone())
            .with_all(lag_attributes(held, state, &delays));
        let others = carried.traces.iter().map(|(_, trace)| *trace).chain(carried.call);
        for link in others.filter(|link| parent != Some(*link)) {
            replicate = replicate.with_link(link, Vec::new());
        }
        self.context.telemetry.tracer().record(replicate);
        self.record_disk(context, held, &moment, now);
    }

    /// The span's context and its parent: the append of the first traced record, else the call that brought the records;
    /// a trace of its own where neither is traced and the lag is above the bound.
    fn lag_context(&self, carried: &Carried, lag: Duration) -> Option<(TraceContext, Option<TraceContext>)> {
        let tracer = self.context.telemetry.tracer();
        match carried.traces.first().map(|(_, trace)| *trace).or(carried.call) {
            Some(parent) => Some((tracer.below(parent)?, Some(parent))),
            None => Some((tracer.begin_for_lag(lag)?, None)),
        }
    }

    /// The append and the flush, below the lag.
    fn record_disk(&self, lag: TraceContext, held: &Pending, moment: &Moment, now: MonotonicTime) {
        let tracer = self.context.telemetry.tracer();
        let below = |name, from, until| {
            let Some(context) = tracer.below(lag) else { return };
            let times = (moment.wall(from), moment.wall(until));
            let part = Span::new(context, name, SpanKind::Internal, times).with_parent(Some(lag), false);
            tracer.record(part.with(attribute::BYTES, count(held.carried.bytes)));
        };
        let appended = held.appended.unwrap_or(now);
        below(span::REPLICA_APPEND, held.carried.arrived, appended);
        if self.is_fsync() {
            below(span::REPLICA_FLUSH, appended, now);
        }
    }
}

fn lag_attributes(held: &Pending, state: &State, delays: &Delays) -> Vec<KeyValue> {
    let carried = &held.carried;
    let (records, left) = (held.end.since(carried.from), state.leader_end.since(state.held));
    // What is left is known in records only; its bytes are taken to be as many per record.
    let bytes_left = (carried.bytes as u64).saturating_mul(left) / records.max(1);
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    vec![
        KeyValue::new(attribute::MESSAGING_SYSTEM, MESSAGING_SYSTEM),
        KeyValue::new(attribute::MESSAGING_OPERATION, "replicate"),
        KeyValue::new(attribute::MESSAGING_OPERATION_TYPE, "process"),
        KeyValue::new(attribute::RECORDS, number(records)),
        KeyValue::new(attribute::BYTES, count(carried.bytes)),
        KeyValue::new(attribute::LEADER_ID, i64::from(state.leader.get())),
        KeyValue::new(attribute::LEADER_EPOCH, i64::from(state.leader_epoch.get())),
        KeyValue::new(attribute::FETCH_OFFSET, carried.from.get()),
        KeyValue::new(attribute::END_OFFSET, held.end.get()),
        KeyValue::new(attribute::HIGH_WATERMARK, state.high_watermark.get()),
        KeyValue::new(attribute::LOG_END, state.leader_end.get()),
        KeyValue::new(attribute::LAG_RECORDS, number(left)),
        KeyValue::new(attribute::LAG_BYTES, number(bytes_left)),
        KeyValue::new(attribute::LAG_MS, millis(delays.lag())),
        KeyValue::new(attribute::LAG_CAUSE, cause_of_answer(delays, left, carried.throttled).name()),
    ]
}

#[cfg(test)]
#[path = "lag_test.rs"]
mod tests;
