//! The stages that throttle what a leader sends to followers that are catching up: one before the long poll decides whom to
//! leave out, one before the read takes from the quota what is about to be read.
//!
//! What must hold: a throttled partition is left out of an answer while the others in it go on (S66), counts nothing towards
//! min bytes and ends no wait (S30, S70), so a fetch of throttled partitions only stays parked, up to its max wait; it goes on
//! as soon as the quota does. Nothing is held while a fetch is parked: bytes are reserved when they are about to be read. A
//! consumer passes, and a replica in sync is only counted (S67, S69). Progress is recorded once, however often the wait
//! behind is asked for anew (S25).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::Either;
use highwater_node::MonotonicClock;
use highwater_protocol::delayed_fetch::FetchCompletion;
use highwater_protocol::fetch::{FetchPartition, FetchRequest, PartitionResult, ThrottleReason};
use highwater_protocol::quota::Metering;
use highwater_types::NodeId;
use tower::{Layer, Service, ServiceExt as _};

use super::{Fetch, Fetched, Planned, before};
use crate::{PartitionHost, ReplicationThrottle};

/// How long a fetch is parked with partitions left out before it is looked at again: another rate holds by then, and a
/// cleared throttle holds nobody back.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The shortest such park: a timer's grain.
const SHORTEST_PARK: Duration = Duration::from_millis(1);

/// Puts the decision in front of the long poll.
#[derive(Clone, Debug)]
pub struct ThrottleLayer {
    context: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: Arc<dyn PartitionHost>,
    throttle: Arc<ReplicationThrottle>,
    clock: MonotonicClock,
}

impl ThrottleLayer {
    /// A throttle of the partitions of `host`.
    #[must_use]
    pub fn new(
        host: Arc<dyn PartitionHost>,
        throttle: Arc<ReplicationThrottle>,
        clock: MonotonicClock,
    ) -> Self {
        Self { context: Arc::new(Shared { host, throttle, clock }) }
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = Throttle<S>;

    fn layer(&self, inner: S) -> Throttle<S> {
        Throttle { context: Arc::clone(&self.context), inner }
    }
}

/// See [`ThrottleLayer`].
#[derive(Clone, Debug)]
pub struct Throttle<S> {
    context: Arc<Shared>,
    inner: S,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Fetched, E>> + Send>>;

impl<S> Service<Fetch> for Throttle<S>
where
    S: Service<Fetch, Response = Fetched> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Fetched;
    type Error = S::Error;
    type Future = Either<S::Future, Answer<S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, fetch: Fetch) -> Self::Future {
        let follower = fetch.request.replica.filter(|_| self.context.throttle.is_set());
        let Some(follower) = follower else { return Either::Left(self.inner.call(fetch)) };
        // The instance that is ready goes into the future; its clone takes the place.
        let spare = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, spare);
        Either::Right(Box::pin(Arc::clone(&self.context).answer(follower, fetch, inner)))
    }
}

impl Shared {
    async fn answer<S>(
        self: Arc<Self>,
        follower: NodeId,
        mut fetch: Fetch,
        mut inner: S,
    ) -> Result<Fetched, S::Error>
    where
        S: Service<Fetch, Response = Fetched>,
    {
        let max_wait = fetch.request.max_wait;
        let mut held = Duration::ZERO;
        loop {
            fetch.metering = self.metering(follower, &fetch.request);
            let (is_held, began) = (fetch.metering.contains(&Metering::Withheld), self.clock.now());
            let left = max_wait.saturating_sub(began.since(fetch.received));
            let left = before(fetch.deadline, left);
            let slice =
                if is_held { self.throttle.pause().clamp(SHORTEST_PARK, LOOK_AGAIN).min(left) } else { left };
            let mut asked = fetch.clone();
            asked.request.max_wait = slice;
            let answering = inner.ready().await?.call(asked);
            let mut fetched = answering.await?;
            if is_held {
                held += fetched.reading.since(began);
            }
            let is_over = slice == left || fetched.completion != FetchCompletion::TimeUp;
            if is_over && !(left > Duration::ZERO && self.came_too_late(&fetch.metering, &fetched)) {
                fetched.held = held;
                self.tell(&fetch.metering, &mut fetched);
                return Ok(fetched);
            }
            fetch.recorded = true;
        }
    }

    /// Whether another request took what the quota had left, so that the answer is empty for that reason alone.
    fn came_too_late(&self, metering: &[Metering], fetched: &Fetched) -> bool {
        let is_empty = |result: &PartitionResult| {
            result.outcome.as_ref().is_ok_and(|found| found.records.is_empty() && found.diverging.is_none())
        };
        fetched.completion == FetchCompletion::EnoughBytes
            && metering.contains(&Metering::Metered)
            && fetched.response.partitions.iter().all(is_empty)
            && !self.throttle.pause().is_zero()
    }

    fn metering(&self, follower: NodeId, request: &FetchRequest) -> Vec<Metering> {
        let view = self.host.view();
        let of = |asked: &FetchPartition| {
            let located = self.host.locate(&view, &asked.topic, asked.partition);
            // An error is answered, whatever the quota.
            let Ok(replica) = located.replica else { return Metering::Free };
            let in_sync = || replica.is_in_sync(follower, asked);
            let metering = self.throttle.metering(replica.topic(), asked.partition, in_sync);
            if metering == Metering::Withheld {
                self.throttle.held(follower, replica.id());
            }
            metering
        };
        request.partitions.iter().map(of).collect()
    }

    /// Tells a follower that is catching up how long the quota lets nothing more through, or else how long it held
    /// this fetch back.
    fn tell(&self, metering: &[Metering], fetched: &mut Fetched) {
        let is_held = |m: &Metering| matches!(m, Metering::Metered | Metering::Withheld);
        let pause = self.throttle.pause();
        let told = if pause.is_zero() { fetched.held } else { pause };
        if metering.iter().any(is_held) && !told.is_zero() {
            fetched.response.throttle = told;
            fetched.response.throttle_reason = Some(ThrottleReason::ReplicationQuota);
        }
    }
}

/// Puts the quota in front of the read.
#[derive(Clone, Debug)]
pub struct ChargeLayer {
    throttle: Arc<ReplicationThrottle>,
}

impl ChargeLayer {
    /// Takes from `throttle` what is read.
    #[must_use]
    pub const fn new(throttle: Arc<ReplicationThrottle>) -> Self {
        Self { throttle }
    }
}

impl<S> Layer<S> for ChargeLayer {
    type Service = Charge<S>;

    fn layer(&self, inner: S) -> Charge<S> {
        Charge { throttle: Arc::clone(&self.throttle), inner }
    }
}

/// See [`ChargeLayer`].
#[derive(Clone, Debug)]
pub struct Charge<S> {
    throttle: Arc<ReplicationThrottle>,
    inner: S,
}

impl<S> Service<Planned> for Charge<S>
where
    S: Service<Planned, Response = Fetched>,
    S::Future: Send + 'static,
{
    type Response = Fetched;
    type Error = S::Error;
    type Future = Either<S::Future, Answer<S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut planned: Planned) -> Self::Future {
        let counts = |m: &Metering| matches!(m, Metering::Metered | Metering::Counted);
        if !planned.fetch.metering.iter().any(counts) {
            return Either::Left(self.inner.call(planned));
        }
        let metering = planned.fetch.metering.clone();
        let has_records = |(slot, partition): (usize, &super::PlannedPartition)| {
            metering.get(slot) == Some(&Metering::Metered)
                && partition.plan.as_ref().is_ok_and(|(_, plan)| plan.has_records())
        };
        let wants = planned.partitions.iter().enumerate().any(has_records);
        let wanted = if wants { u64::from(planned.fetch.request.max_bytes) } else { 0 };
        let mut reservation = self.throttle.reserve(wanted);
        planned.metered_bytes = reservation.bytes();
        let throttle = Arc::clone(&self.throttle);
        let answered = self.inner.call(planned);
        Either::Right(Box::pin(async move {
            let fetched = answered.await?;
            reservation.used(bytes_of(&fetched, &metering, Metering::Metered));
            throttle.count(bytes_of(&fetched, &metering, Metering::Counted));
            Ok(fetched)
        }))
    }
}

fn bytes_of(fetched: &Fetched, metering: &[Metering], kind: Metering) -> u64 {
    let of_kind = fetched.response.partitions.iter().zip(metering).filter(|(_, m)| **m == kind);
    let bytes = of_kind.filter_map(|(result, _)| Some(result.outcome.as_ref().ok()?.records.len() as u64));
    bytes.sum()
}

#[cfg(test)]
#[path = "throttle_test.rs"]
mod tests;
