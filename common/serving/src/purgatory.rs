//! Where fetches wait: the core's purgatory, driven by real events and a real timer.
//!
//! What must hold:
//! - *check – register – check* (S28): whoever parks probes again after registering, so no event in between is lost.
//! - A wake visits only what waits on that partition, under one short lock, and touches no disk.
//! - A waiter whose future is dropped is gone (S80): the registration is removed by `Drop`.
//! - Once draining, nothing waits any more.
//!
//! Lock order: purgatory → a partition's core. Wake with no lock held.

use std::sync::Arc;

use highwater_node::MonotonicClock;
use highwater_protocol::delayed_fetch::{DelayedFetch, FetchCompletion};
use highwater_protocol::fetch::{FetchPartition, Requester};
use highwater_protocol::purgatory::{Purgatory, WaitId};
use highwater_types::TopicIdPartition;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::HostedReplica;

/// A partition that a parked fetch waits on.
#[derive(Debug)]
pub struct Watched {
    /// The replica that is asked.
    pub replica: Arc<dyn HostedReplica>,
    /// What the fetch wants from it.
    pub request: FetchPartition,
}

#[derive(Debug)]
struct Parked {
    fetch: DelayedFetch,
    requester: Requester,
    watched: Vec<Watched>,
    done: Option<oneshot::Sender<FetchCompletion>>,
}

impl Parked {
    /// Looks at one partition again.
    fn probe(&mut self, slot: usize) -> Option<FetchCompletion> {
        let watched = self.watched.get(slot)?;
        self.fetch.on_probe(slot, watched.replica.probe(self.requester, &watched.request))
    }
}

/// The parked fetches of this program.
#[derive(Debug)]
pub struct FetchPurgatory {
    clock: MonotonicClock,
    parked: Mutex<Purgatory<TopicIdPartition, Parked>>,
    draining: CancellationToken,
}

impl FetchPurgatory {
    /// An empty purgatory.
    #[must_use]
    pub fn new(clock: MonotonicClock) -> Self {
        Self { clock, parked: Mutex::new(Purgatory::new()), draining: CancellationToken::new() }
    }

    /// How many fetches are parked now.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.lock().len()
    }

    /// Something changed at a partition: records, high watermark, leadership, segment. Costs a look-up where nobody waits.
    pub fn wake(&self, partition: TopicIdPartition) {
        self.parked.lock().wake(&partition, |_, slot, parked| {
            if let Some(why) = parked.probe(slot)
                && let Some(done) = parked.done.take()
            {
                // The receiver can be gone: the handler was dropped and is about to unregister.
                let _gone = done.send(why);
            }
        });
    }

    /// Lets every parked fetch go, and parks none from now on.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Waits until `fetch` is to be answered, and says why. `watched` are its partitions, by slot; the caller has probed
    /// each once and found that it may wait.
    pub async fn wait(
        &self,
        fetch: DelayedFetch,
        requester: Requester,
        watched: Vec<Watched>,
    ) -> FetchCompletion {
        if let Some(why) = fetch.completed() {
            return why;
        }
        debug_assert_eq!(fetch.partitions(), watched.len(), "a slot per partition");
        let deadline = self.clock.instant(fetch.deadline());
        let (registration, done) = self.register(fetch, requester, watched);
        if let Some(why) = registration.check_again() {
            return why;
        }
        tokio::select! {
            biased;
            why = done => why.unwrap_or(FetchCompletion::Draining),
            () = self.draining.cancelled() => FetchCompletion::Draining,
            () = tokio::time::sleep_until(deadline) => FetchCompletion::TimeUp,
        }
    }

    fn register(
        &self,
        fetch: DelayedFetch,
        requester: Requester,
        watched: Vec<Watched>,
    ) -> (Registration<'_>, oneshot::Receiver<FetchCompletion>) {
        let keys = watched.iter().map(|w| w.replica.id()).collect();
        let (sender, receiver) = oneshot::channel();
        let parked = Parked { fetch, requester, watched, done: Some(sender) };
        let id = self.parked.lock().register(keys, parked);
        (Registration { purgatory: self, id }, receiver)
    }
}

/// Keeps a fetch parked; dropping it takes the fetch out.
struct Registration<'a> {
    purgatory: &'a FetchPurgatory,
    id: WaitId,
}

impl Registration<'_> {
    /// The second check of S28.
    fn check_again(&self) -> Option<FetchCompletion> {
        self.purgatory
            .parked
            .lock()
            .get_mut(self.id)
            .and_then(|parked| (0..parked.watched.len()).find_map(|slot| parked.probe(slot)))
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // Dropped after the lock: what a parked fetch holds may be the last reference to a replica.
        let removed = self.purgatory.parked.lock().remove(self.id);
        drop(removed);
    }
}
