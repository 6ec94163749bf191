//! The stage that finds a fetch's partitions, records a follower's progress, and waits until there is something to say.
//!
//! What must hold: progress is recorded on arrival, inline, and never again when a parked fetch completes (S25); one
//! partition with an error, or one that diverges, ends the wait of all (S27); a parked fetch ends before its caller's
//! deadline, with OK (S79); what is answered is planned anew after the wait, so that it is of one moment (S22).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use highwater_node::MonotonicClock;
use highwater_protocol::delayed_fetch::{DelayedFetch, FetchCompletion, ParkedPartition};
use highwater_protocol::fetch::{FetchPartition, FetchRequest, ReadPlan, Requester};
use highwater_types::ReplicationError;
use tower::{Layer, Service};

use super::{Fetch, Planned, PlannedPartition, before};
use crate::purgatory::{FetchPurgatory, Watched};
use crate::registry::with_hint;
use crate::{HostedReplica, PartitionHost};

/// Puts the long poll in front of the stage that reads.
#[derive(Clone, Debug)]
pub struct LongPollLayer {
    context: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: Arc<dyn PartitionHost>,
    purgatory: Arc<FetchPurgatory>,
    clock: MonotonicClock,
    max_wait: Duration,
}

impl LongPollLayer {
    /// A long poll over the partitions of `host`. `max_wait` caps what a request may ask for.
    #[must_use]
    pub fn new(
        host: Arc<dyn PartitionHost>,
        purgatory: Arc<FetchPurgatory>,
        clock: MonotonicClock,
        max_wait: Duration,
    ) -> Self {
        Self { context: Arc::new(Shared { host, purgatory, clock, max_wait }) }
    }
}

impl<S> Layer<S> for LongPollLayer {
    type Service = LongPoll<S>;

    fn layer(&self, inner: S) -> LongPoll<S> {
        LongPoll { context: Arc::clone(&self.context), inner }
    }
}

/// See [`LongPollLayer`].
#[derive(Clone, Debug)]
pub struct LongPoll<S> {
    context: Arc<Shared>,
    inner: S,
}

impl<S> Service<Fetch> for LongPoll<S>
where
    S: Service<Planned> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, fetch: Fetch) -> Self::Future {
        let context = Arc::clone(&self.context);
        // The instance that is ready goes into the future; its clone takes the place.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        Box::pin(async move {
            let planned = context.plan(fetch).await;
            inner.call(planned).await
        })
    }
}

impl Shared {
    async fn plan(&self, fetch: Fetch) -> Planned {
        let requester = fetch.request.requester();
        let partitions = self.visit(&fetch.request, |replica, asked| {
            if fetch.recorded {
                replica.plan(requester, asked)
            } else {
                replica.on_fetch(requester, asked, fetch.received)
            }
        });
        let (delayed, watched) = match self.may_wait(requester, &fetch, &partitions) {
            Ok(waiting) => waiting,
            Err(completion) => {
                // One that is asked for anew was parked before.
                let parked = if fetch.recorded { self.parked(&fetch) } else { Duration::ZERO };
                return planned(fetch, partitions, completion, parked);
            }
        };
        drop(partitions);
        if let Requester::Follower(follower) = requester {
            watched.iter().for_each(|on| on.replica.on_parked(follower, delayed.deadline()));
        }
        let completion = self.purgatory.wait(delayed, requester, watched).await;
        let parked = self.parked(&fetch);
        let partitions = self.visit(&fetch.request, |replica, asked| replica.plan(requester, asked));
        planned(fetch, partitions, completion, parked)
    }

    /// How long a fetch whose wait is over was parked.
    fn parked(&self, fetch: &Fetch) -> Duration {
        self.clock.now().since(fetch.received)
    }

    /// Finds each partition of a request and plans its read by `plan`.
    fn visit(
        &self,
        request: &FetchRequest,
        plan: impl Fn(&dyn HostedReplica, &FetchPartition) -> Result<ReadPlan, ReplicationError>,
    ) -> Vec<PlannedPartition> {
        let view = self.host.view();
        let visit = |asked: &FetchPartition| {
            let found = self.host.locate(&view, &asked.topic, asked.partition);
            let plan = found.replica.and_then(|replica| {
                let plan = plan(&*replica, asked)?;
                Ok((replica, plan))
            });
            let plan = plan.map_err(|error| with_hint(&view, found.topic_id, asked.partition, error));
            PlannedPartition {
                topic: found.topic,
                topic_id: found.topic_id,
                partition: asked.partition,
                plan,
            }
        };
        request.partitions.iter().map(visit).collect()
    }

    /// The first check of S28: what the fetch waits on, or why it does not wait (S27).
    fn may_wait(
        &self,
        requester: Requester,
        fetch: &Fetch,
        partitions: &[PlannedPartition],
    ) -> Result<(DelayedFetch, Vec<Watched>), FetchCompletion> {
        let request = &fetch.request;
        let mut parked = Vec::with_capacity(partitions.len());
        let mut watched = Vec::with_capacity(partitions.len());
        for (slot, (asked, found)) in request.partitions.iter().zip(partitions).enumerate() {
            let (replica, plan) = found.plan.as_ref().map_err(|_| FetchCompletion::PartitionError)?;
            if plan.diverging.is_some() {
                return Err(FetchCompletion::Diverging);
            }
            let facts = replica.facts().map_err(|_| FetchCompletion::PartitionError)?;
            parked.push(ParkedPartition {
                leader_epoch: asked.current_leader_epoch.unwrap_or(facts.leader_epoch),
                fetch_offset: plan.from,
                max_bytes: asked.max_bytes.min(request.max_bytes),
                known_high_watermark: asked.high_watermark,
                withheld: fetch.is_withheld(slot),
            });
            watched.push(Watched { replica: Arc::clone(replica), request: asked.clone() });
        }
        let wait = before(fetch.deadline, request.max_wait.min(self.max_wait));
        let mut delayed = DelayedFetch::new(requester, request.min_bytes, wait, self.clock.now(), parked);
        let probed = watched
            .iter()
            .enumerate()
            .find_map(|(slot, on)| delayed.on_probe(slot, on.replica.probe(requester, &on.request)));
        match probed.or_else(|| delayed.completed()) {
            Some(completion) => Err(completion),
            None => Ok((delayed, watched)),
        }
    }
}

fn planned(
    fetch: Fetch,
    partitions: Vec<PlannedPartition>,
    completion: FetchCompletion,
    parked: Duration,
) -> Planned {
    Planned { fetch, partitions, completion, parked, metered_bytes: u64::MAX }
}

#[cfg(test)]
#[path = "long_poll_test.rs"]
mod tests;
