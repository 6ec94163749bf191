//! Which loops there are: one per leader's address and fetcher number, as long as it has partitions.
//!
//! What must hold: a partition is in one loop at most; the mapping is that of [`LoopKey`]; a partition that stays in its
//! loop is not touched (S4); a loop without partitions ends (S16); a loop that died by a panic is started anew with its
//! partitions. All ends are told before the first is waited for (S17).

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use highwater_node::MonotonicClock;
use highwater_types::{Endpoint, NodeId, TopicIdPartition};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::fetch_loop::{FetchLoop, FetchSettings};
use super::mail::{Change, Mailbox};
use super::status::{LoopReport, LoopStatus};
use super::{Followed, LoopKey};
use crate::leader_endpoint::Connector;

/// The loops of this program.
#[derive(Debug)]
pub(crate) struct FetcherManager<P, C> {
    settings: Arc<FetchSettings>,
    fetchers: NonZeroU32,
    clock: MonotonicClock,
    connector: C,
    loops: Mutex<Loops<P>>,
}

#[derive(Debug)]
struct Loops<P> {
    running: BTreeMap<LoopKey, Running<P>>,
    placed: BTreeMap<TopicIdPartition, LoopKey>,
}

#[derive(Debug)]
struct Running<P> {
    partitions: BTreeMap<TopicIdPartition, Arc<P>>,
    mail: Arc<Mailbox<P>>,
    status: Arc<LoopStatus>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl<P: Followed, C: Connector> FetcherManager<P, C> {
    /// Without loops.
    pub(crate) fn new(
        settings: FetchSettings,
        fetchers: NonZeroU32,
        clock: MonotonicClock,
        connector: C,
    ) -> Self {
        let loops = Mutex::new(Loops { running: BTreeMap::new(), placed: BTreeMap::new() });
        Self { settings: Arc::new(settings), fetchers, clock, connector, loops }
    }

    /// Puts a partition into the loop of its leader; takes it out of another one. The same place again changes nothing.
    pub(crate) fn place(&self, partition: &Arc<P>, leader: NodeId, endpoint: &Endpoint) {
        let id = partition.id();
        let key = LoopKey::of(id, leader, endpoint.clone(), self.fetchers);
        let mut loops = self.loops.lock();
        if loops.placed.get(&id) == Some(&key) {
            return;
        }
        loops.take_out(id);
        let running =
            loops.running.entry(key.clone()).or_insert_with(|| self.start(key.clone(), BTreeMap::new()));
        running.join(partition);
        loops.placed.insert(id, key);
    }

    /// Whether the throttle of this node's fetching leaves a partition out of requests.
    pub(crate) fn holds_back(&self, id: TopicIdPartition) -> bool {
        self.settings.gate.holds_back(id)
    }

    /// Takes a partition out of its loop.
    pub(crate) fn take_out(&self, id: TopicIdPartition) {
        self.loops.lock().take_out(id);
    }

    /// Starts loops anew that died.
    pub(crate) fn revive(&self) {
        let mut loops = self.loops.lock();
        for (key, running) in &mut loops.running {
            if running.task.is_finished() && !running.stop.is_cancelled() {
                tracing::error!(leader = %key.leader, fetcher = key.fetcher, "a fetch loop died; it is started anew");
                *running = self.start(key.clone(), std::mem::take(&mut running.partitions));
            }
        }
    }

    /// Ends every loop.
    pub(crate) async fn shut_down(&self) {
        let ended = {
            let mut loops = self.loops.lock();
            loops.placed.clear();
            std::mem::take(&mut loops.running)
        };
        for running in ended.values() {
            running.stop.cancel();
        }
        for (key, mut running) in ended {
            for partition in running.partitions.values() {
                partition.attach(None);
            }
            if let Err(died) = (&mut running.task).await {
                tracing::error!(leader = %key.leader, fetcher = key.fetcher, error = %died, "a fetch loop had died");
            }
        }
    }

    /// Every loop with its partitions, in the order of keys.
    pub(crate) fn describe(&self) -> Vec<(LoopReport, Vec<Arc<P>>)> {
        let loops = self.loops.lock();
        let report = |(key, running): (&LoopKey, &Running<P>)| {
            (running.status.report(key.clone()), running.partitions.values().map(Arc::clone).collect())
        };
        loops.running.iter().map(report).collect()
    }

    fn start(&self, key: LoopKey, partitions: BTreeMap<TopicIdPartition, Arc<P>>) -> Running<P> {
        let (mail, status, stop) = (Arc::default(), Arc::default(), CancellationToken::new());
        let leader = self.connector.connect(&key.endpoint);
        let fetch_loop = FetchLoop::new(
            Arc::clone(&self.settings),
            key,
            leader,
            self.clock,
            Arc::clone(&mail),
            Arc::clone(&status),
            rand::random(),
        );
        let task = tokio::spawn(fetch_loop.run(stop.clone()));
        let mut running = Running { partitions: BTreeMap::new(), mail, status, stop, task };
        for partition in partitions.into_values() {
            running.join(&partition);
        }
        running
    }
}

impl<P> Drop for Running<P> {
    /// Its task ends by itself; what it has in flight is void for the partitions that were taken out.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl<P: Followed> Running<P> {
    fn join(&mut self, partition: &Arc<P>) {
        self.partitions.insert(partition.id(), Arc::clone(partition));
        partition.attach(Some(self.mail.ready()));
        self.mail.change(Change::Add(Arc::clone(partition)));
    }
}

impl<P: Followed> Loops<P> {
    /// Takes a partition out; its loop ends when it was the last.
    fn take_out(&mut self, id: TopicIdPartition) {
        let Some(key) = self.placed.remove(&id) else { return };
        let Some(running) = self.running.get_mut(&key) else { return };
        if let Some(partition) = running.partitions.remove(&id) {
            partition.attach(None);
        }
        running.mail.change(Change::Remove(id));
        if running.partitions.is_empty() {
            self.running.remove(&key);
        }
        debug_assert!(
            self.placed.values().all(|key| self.running.contains_key(key)),
            "every place is a loop's"
        );
    }
}

#[cfg(test)]
#[path = "manager_test.rs"]
mod tests;
