//! One fetch loop: plan → fetch → apply → append; the next plan carries the acknowledgement.
//!
//! What must hold: one poll and one request beside it in flight (`members.rs` says which asks for what), over one
//! connection; the loop itself never waits for a disk, it hands records over; an answer is only handed to partitions that
//! are still the loop's, and they decide whether it is void (S5). A call that fails delays every partition of the loop by
//! the same wait, and replaces the connection unless the leader itself asked for the wait (S12); a partition that fails delays
//! itself only (KAFKA-8346). An idle loop has exactly one parked poll.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use highwater_node::MonotonicClock;
use highwater_protocol::Randomness;
use highwater_protocol::fetch::{
    FetchPartition, FetchRequest, FetchResponse, NO_SESSION, PartitionResult, TopicRef,
};
use highwater_protocol::follower::{Backoff, BackoffConfig, LeaderOffsets};
use highwater_telemetry::Telemetry;
use highwater_types::{
    ClusterId, ErrorCode, MonotonicTime, NodeId, Offset, ReplicationError, TopicIdPartition,
};
use highwater_wire::{Failure, FailureKind, Reached};
use tokio_util::sync::CancellationToken;

use super::gate::{Charges, Gate};
use super::held_time::HeldTime;
use super::mail::{Change, Mailbox};
use super::members::{Asks, Members};
use super::observe::{CallObserver, Carried, Trip, Way};
use super::status::LoopStatus;
use super::{Applied, Followed, LoopKey, RequestNumbers};
use crate::leader_endpoint::{FetchFailure, LeaderEndPoint};

/// After so many answers in a row in which the leader knows no partition, it is perhaps another program behind the old
/// address: the connection is replaced, with the name resolved afresh (qdrant#832).
const STRANGE_ANSWERS_MAX: u32 = 2;

/// The shortest wait for the throttle: a timer's grain.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The longest wait for the throttle before it is looked at again: another rate may hold by then.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a poll is left to wait before it is given up for one that names more partitions: many may come one by one.
const POLL_AT_LEAST: Duration = Duration::from_millis(20);

/// How the loops of this program fetch.
#[derive(Clone, Debug)]
pub(crate) struct FetchSettings {
    /// Who fetches.
    pub(crate) node: NodeId,
    /// The cluster that it belongs to.
    pub(crate) cluster: ClusterId,
    /// `replica.fetch.wait.max.ms`.
    pub(crate) wait_max: Duration,
    /// `replica.fetch.min.bytes`.
    pub(crate) min_bytes: u32,
    /// `replica.fetch.response.max.bytes`.
    pub(crate) response_max_bytes: u32,
    /// `replica.fetch.batch.max.bytes`.
    pub(crate) batch_max_bytes: u32,
    /// `replica.fetch.backoff.ms` and its limit.
    pub(crate) backoff: BackoffConfig,
    /// What the throttle lets requests ask for.
    pub(crate) gate: Gate,
    /// What is told of the fetches.
    pub(crate) telemetry: Telemetry,
    /// Where requests get their numbers.
    pub(crate) numbers: Arc<RequestNumbers>,
}

/// What a request asked for.
#[derive(Default)]
struct Sent {
    asks: Asks,
    charges: Charges,
    trip: Trip,
}

/// A request on its way.
struct InFlight {
    sent: Sent,
    answer: BoxFuture<'static, Result<FetchResponse, FetchFailure>>,
}

/// The leader's range of one partition, asked for on its behalf.
type Range<P> = (TopicIdPartition, <P as Followed>::Question, Result<LeaderOffsets, ErrorCode>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Poll,
    Beside,
}

#[expect(clippy::large_enum_variant, reason = "there is one at a time, and most are the large one")]
enum Event<P: Followed> {
    Answered(Which, Sent, Result<FetchResponse, FetchFailure>),
    Range(Range<P>),
    /// Mail came, or a time.
    Look,
}

/// A fetch loop.
pub(crate) struct FetchLoop<P: Followed, E> {
    settings: Arc<FetchSettings>,
    key: LoopKey,
    leader: Arc<E>,
    clock: MonotonicClock,
    mail: Arc<Mailbox<P>>,
    status: Arc<LoopStatus>,
    members: Members<P>,
    held: HeldTime,
    observer: CallObserver,
    poll: Option<InFlight>,
    beside: Option<InFlight>,
    ranges: FuturesUnordered<BoxFuture<'static, Range<P>>>,
    backoff: Backoff,
    randomness: Randomness,
    /// Nothing is sent before this time.
    resumes_at: Option<MonotonicTime>,
    strange_answers: u32,
}

impl<P: Followed, E: LeaderEndPoint> FetchLoop<P, E> {
    /// A loop without partitions; `seed` is for its jitter.
    pub(crate) fn new(
        settings: Arc<FetchSettings>,
        key: LoopKey,
        leader: Arc<E>,
        clock: MonotonicClock,
        mail: Arc<Mailbox<P>>,
        status: Arc<LoopStatus>,
        seed: u64,
    ) -> Self {
        let backoff = Backoff::new(settings.backoff);
        let observer = CallObserver::new(settings.telemetry.clone(), settings.node, &key);
        Self {
            settings,
            key,
            leader,
            clock,
            mail,
            status,
            members: Members::default(),
            held: HeldTime::default(),
            observer,
            poll: None,
            beside: None,
            ranges: FuturesUnordered::new(),
            backoff,
            randomness: Randomness::new(seed),
            resumes_at: None,
            strange_answers: 0,
        }
    }

    /// Fetches until told to stop; requests in flight are then given up.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.take_mail();
            self.members.tick(self.clock.now());
            self.look_at_throttle();
            self.send();
            self.held.look(self.members.holds_any(), self.clock.now());
            let wake = [self.resumes_at, self.members.next_due(), self.throttle_resumes(), self.poll_ends()];
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = next_event(&mut self.poll, &mut self.beside, &mut self.ranges) => event,
                () = self.mail.arrived() => Event::Look,
                () = until(&self.clock, wake.into_iter().flatten().min()) => Event::Look,
            };
            self.on_event(event);
        }
    }

    /// Counts how long the throttle has kept something out of requests, and lets it out once the quota goes on.
    fn look_at_throttle(&mut self) {
        let passed = self.held.passed(self.clock.now());
        self.observer.held(passed);
        if self.settings.gate.throttle().pause().is_zero() {
            self.members.release();
        }
    }

    /// When to look at the partitions that the throttle keeps out of requests.
    fn throttle_resumes(&self) -> Option<MonotonicTime> {
        let pause = self.settings.gate.throttle().pause().clamp(SHORTEST_PAUSE, LOOK_AGAIN);
        self.members.holds_any().then(|| self.clock.now().after(pause))
    }

    fn take_mail(&mut self) {
        let (changes, ready) = self.mail.take();
        for change in changes {
            match change {
                Change::Add(partition) => self.members.add(partition),
                Change::Remove(id) => self.members.remove(id),
            }
        }
        for id in ready {
            self.members.look_at(id);
        }
    }

    /// Sends what can be sent now.
    fn send(&mut self) {
        let now = self.clock.now();
        if self.resumes_at.is_some_and(|at| at > now) {
            return;
        }
        self.resumes_at = None;
        self.send_poll(now);
        if self.beside.is_none() {
            let poll = self.poll.as_ref().map(|poll| &poll.sent.asks);
            let asks = self.members.for_beside(poll, now, &self.settings.gate);
            self.beside = asks.map(|(asks, charges)| self.request(asks, charges, Duration::ZERO));
        }
        if self.poll_ends().is_some_and(|at| at <= now) {
            // What it acknowledged, the next one acknowledges; what it perhaps brings just now, that one reads again.
            self.poll = None;
            self.send_poll(now);
        }
    }

    /// When the poll is given up for one that names more.
    fn poll_ends(&self) -> Option<MonotonicTime> {
        let poll = self.poll.as_ref().filter(|_| self.beside.is_none())?;
        let is_one_missing = self.members.is_missing_in(&poll.sent.asks, self.clock.now());
        is_one_missing.then(|| poll.sent.trip.at.after(POLL_AT_LEAST))
    }

    fn send_poll(&mut self, now: MonotonicTime) {
        // A poll that goes out while the request beside it still reads would read the same once more. That one never waits
        // at the leader, so its answer is near.
        let is_read_beside = self.beside.as_ref().is_some_and(|beside| beside.sent.asks.wants_records());
        if self.poll.is_none() && !is_read_beside {
            let asks = self.members.for_poll(now, &self.settings.gate);
            self.poll = asks.map(|(asks, charges)| self.request(asks, charges, self.settings.wait_max));
        }
    }

    fn request(&mut self, asks: Asks, charges: Charges, max_wait: Duration) -> InFlight {
        let order = Some(self.settings.numbers.next());
        let partitions = asks.iter().map(|(id, ask)| {
            if let Some(partition) = self.members.get(id) {
                partition.on_sent(ask);
            }
            FetchPartition { order, ..ask.to_partition(TopicRef::Id(id.topic_id), id.partition) }
        });
        let request = FetchRequest {
            cluster: Some(self.settings.cluster.clone()),
            replica: Some(self.settings.node),
            repair: false,
            session_id: 0,
            session_epoch: NO_SESSION,
            max_wait,
            min_bytes: self.settings.min_bytes,
            max_bytes: if asks.wants_records() { self.settings.response_max_bytes } else { 0 },
            partitions: partitions.collect(),
            forgotten: Vec::new(),
        };
        let largest = self.members.largest_batch(&asks).max(self.settings.batch_max_bytes);
        self.status.sent();
        let wants_records = asks.wants_records();
        // One that only acknowledges brings nothing that is worth a trace.
        let call = if wants_records { self.settings.telemetry.tracer().begin(None) } else { None };
        let is_let_out = wants_records && (charges.is_metered() || !self.members.holds_any());
        let held = if is_let_out { self.held.take() } else { Duration::ZERO };
        let trip = Trip { at: self.clock.now(), call, wants_records, held };
        InFlight { sent: Sent { asks, charges, trip }, answer: self.leader.fetch(request, largest, call) }
    }

    fn on_event(&mut self, event: Event<P>) {
        match event {
            Event::Answered(which, sent, Ok(answer)) => self.on_answer(which, sent, answer),
            Event::Answered(_, sent, Err(FetchFailure::TooLarge(message))) => {
                self.on_too_large(&sent.asks, &message)
            }
            Event::Answered(_, sent, Err(FetchFailure::Call(failure))) => {
                self.observer.failed(sent.trip, &failure, self.clock.now());
                self.on_failure(&failure);
            }
            Event::Range((id, question, range)) => {
                if let Some(partition) = self.members.get(id) {
                    partition.on_leader_offsets(question, range, self.clock.now());
                    self.members.look_at(id);
                }
            }
            Event::Look => self.members.hold_on(&self.settings.gate),
        }
    }

    fn on_answer(&mut self, which: Which, sent: Sent, answer: FetchResponse) {
        let Sent { asks, mut charges, trip } = sent;
        let now = self.clock.now();
        if self.status.succeeded() {
            tracing::info!(leader = %self.key.leader, endpoint = %self.key.endpoint, "the leader answers again");
        }
        self.backoff.reset();
        self.note_whether_strange(&answer);
        let bytes: usize =
            answer.partitions.iter().filter_map(|p| p.outcome.as_ref().ok()).map(|f| f.records.len()).sum();
        self.status.received(bytes);
        self.observer.answered(trip, &answer, bytes, now);
        let way = Way::of(trip, &answer, now);
        for result in answer.partitions {
            if let (Some(id), Ok(found)) = (result.id(), &result.outcome) {
                self.settings.gate.brought(&mut charges, id, found.records.len());
            }
            self.apply(&asks, result, &way);
        }
        if which == Which::Beside && bytes == 0 {
            self.members.brought_nothing(&asks);
        }
    }

    fn apply(&mut self, asks: &Asks, result: PartitionResult, way: &Way) {
        let asked = result.id().and_then(|id| Some((id, asks.get(id)?)));
        let Some((id, ask)) = asked else {
            let named = result
                .topic
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| result.topic_id.map(|id| id.to_string()));
            tracing::warn!(leader = %self.key.leader, topic = named, partition = %result.partition, "an answer names a partition that was not asked for");
            return;
        };
        let Some(partition) = self.members.get(id).map(Arc::clone) else { return };
        let carried = self.carried(ask.position.fetch_offset, &result, way);
        let now = self.clock.now();
        let applied = partition.on_answer(&ask.position, result.outcome, &result.lost, now);
        if let (Applied::Records, Some(carried)) = (&applied, carried) {
            partition.on_carried(carried);
        }
        if let Applied::AskOffsets(question, epoch) = applied {
            let range = self.leader.range(id, epoch);
            self.ranges.push(Box::pin(async move { (id, question, range.await) }));
        }
        if ask.max_bytes > 0 {
            self.members.fits(id);
        }
        self.members.answered(id, matches!(applied, Applied::Records));
    }

    /// What an answer says about the way of a partition's records, where anybody wants to know.
    fn carried(&self, from: Offset, result: &PartitionResult, way: &Way) -> Option<Carried> {
        self.settings.telemetry.meters()?;
        let held_back = || result.id().is_some_and(|id| self.settings.gate.holds_back(id));
        way.carried(from, result.outcome.as_ref().ok()?, held_back)
    }

    /// An old address may belong to another program by now, which knows nothing of what it is asked.
    fn note_whether_strange(&mut self, answer: &FetchResponse) {
        let knows_nothing = |result: &PartitionResult| {
            let code = result.outcome.as_ref().err().map(|error| error.code);
            matches!(
                code,
                Some(
                    ErrorCode::NotLeaderOrFollower
                        | ErrorCode::UnknownTopicId
                        | ErrorCode::UnknownTopicOrPartition
                )
            )
        };
        if answer.partitions.is_empty() || !answer.partitions.iter().all(knows_nothing) {
            self.strange_answers = 0;
            return;
        }
        self.strange_answers += 1;
        if self.strange_answers >= STRANGE_ANSWERS_MAX {
            self.strange_answers = 0;
            self.leader.reconnect();
        }
    }

    /// One partition's batch is larger than this program takes: found out by asking for each alone.
    fn on_too_large(&mut self, asks: &Asks, message: &str) {
        let Some((id, ask)) = self.members.too_large(asks) else { return };
        if let Some(partition) = self.members.get(id) {
            let error = ReplicationError::new(ErrorCode::MessageTooLarge, message);
            partition.on_answer(&ask.position, Err(error), &[], self.clock.now());
        }
        self.members.look_at(id);
    }

    fn on_failure(&mut self, failure: &Failure) {
        // Both go: what is wrong with one call is wrong with the connection, or with the leader.
        self.poll = None;
        self.beside = None;
        // A refusal that no retry helps comes perhaps from another program behind the old address.
        if failure.reached != Reached::Program || failure.kind == FailureKind::Terminal {
            self.leader.reconnect();
        }
        // What the leader asks for is a minimum: the jitter comes on top, else all agents come back together (grpc-rust#2189).
        let delay = self.backoff.next_delay(&mut self.randomness);
        let wait = failure.retry_after.map_or(delay, |asked| asked.saturating_add(delay / 2).max(delay));
        let resumes_at = self.clock.now().after(wait);
        self.resumes_at = Some(resumes_at);
        if self.status.failed(failure, resumes_at) {
            tracing::warn!(
                leader = %self.key.leader, endpoint = %self.key.endpoint, fetcher = self.key.fetcher, error = %failure,
                "a fetch failed; its partitions wait"
            );
        }
    }
}

/// The next answer. Can be dropped without losing one.
async fn next_event<P: Followed>(
    poll: &mut Option<InFlight>,
    beside: &mut Option<InFlight>,
    ranges: &mut FuturesUnordered<BoxFuture<'static, Range<P>>>,
) -> Event<P> {
    tokio::select! {
        (sent, answer) = answered(beside) => Event::Answered(Which::Beside, sent, answer),
        (sent, answer) = answered(poll) => Event::Answered(Which::Poll, sent, answer),
        Some(range) = ranges.next() => Event::Range(range),
    }
}

/// The answer of a request; never when there is none. Takes the request out.
async fn answered(request: &mut Option<InFlight>) -> (Sent, Result<FetchResponse, FetchFailure>) {
    let Some(in_flight) = request.as_mut() else { return std::future::pending().await };
    let answer = (&mut in_flight.answer).await;
    let sent = request.take().map(|in_flight| in_flight.sent).unwrap_or_default();
    (sent, answer)
}

async fn until(clock: &MonotonicClock, time: Option<MonotonicTime>) {
    match time {
        Some(time) => tokio::time::sleep_until(clock.instant(time)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "fetch_loop_test.rs"]
mod tests;
