//! Follows the throttles that the coordination store records: hands the node's own to its program, and removes those whose
//! time to live is over.
//!
//! A throttle lives for so long from when a program first saw it, on that program's own monotonic clock: no clocks are
//! compared. Whichever program of the cluster gets to its end first removes it from the store, and with it everybody's.
//! A restarted program sees it anew, so it ends late only where every program that can write was restarted meanwhile;
//! then it lives for its whole time once more. A program that cannot write leaves the removal to those that can, and itself
//! is throttled no longer.

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, Coordination, CoordinationError, update_node};
use highwater_node::MonotonicClock;
use highwater_types::{MonotonicTime, NodeId};
use tokio_util::sync::CancellationToken;

use super::ReplicationThrottle;
use super::lives::{Key, ThrottleLives};

/// The pause before a removal is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct ThrottleKeeper {
    node: NodeId,
    throttle: Arc<ReplicationThrottle>,
    coordination: Arc<dyn Coordination>,
    clock: MonotonicClock,
    lives: Arc<ThrottleLives>,
}

impl ThrottleKeeper {
    /// A keeper for the program's `throttle` on `node`; `lives` tells others when each ends. What is recorded now holds from
    /// here on: a program that makes its keeper before it replicates never goes without.
    #[must_use]
    pub fn new(
        node: NodeId,
        throttle: Arc<ReplicationThrottle>,
        coordination: Arc<dyn Coordination>,
        clock: MonotonicClock,
        lives: Arc<ThrottleLives>,
    ) -> Self {
        let keeper = Self { node, throttle, coordination, clock, lives };
        let view = Arc::clone(&keeper.coordination.view().borrow());
        keeper.look(&view, clock.now());
        keeper
    }

    fn look(&self, view: &ClusterView, now: MonotonicTime) {
        self.lives.observe(view, now);
        self.apply(view, now);
    }

    /// Follows the records until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut view = self.coordination.view();
        loop {
            let now = self.clock.now();
            let current = Arc::clone(&view.borrow_and_update());
            self.look(&current, now);
            let removed_all = self.remove(self.lives.over(now)).await;
            let again = (!removed_all).then(|| self.clock.now().after(RETRY));
            let wake = [self.lives.next_end(now), again].into_iter().flatten().min();
            tokio::select! {
                () = stop.cancelled() => return,
                // The store's handle lives as long as the program.
                changed = view.changed() => if changed.is_err() { return },
                () = sleep_until(&self.clock, wake) => {}
            }
        }
    }

    /// Hands the node's own throttle over, unless its life is over.
    fn apply(&self, view: &ClusterView, now: MonotonicTime) {
        let side = self.throttle.side();
        let throttle = view.node(self.node).and_then(|record| record.throttles.of(side));
        self.throttle.set(throttle.filter(|t| !self.lives.is_over((self.node, side, t.id), now)));
    }

    /// Removes throttles from the store; answers whether none is left to be removed by this program.
    async fn remove(&self, over: Vec<Key>) -> bool {
        let mut all = true;
        for (node, side, id) in over {
            let removed = update_node(&*self.coordination, node, |record| {
                let place = record.throttles.of_mut(side);
                // Another may have been set since.
                if place.as_ref().is_some_and(|throttle| throttle.id == id) {
                    *place = None;
                }
            });
            match removed.await {
                Ok(_) => {
                    tracing::info!(%node, %side, "a throttle of replication came to the end of its time to live")
                }
                Err(CoordinationError::ReadOnly) => {}
                Err(error) => {
                    tracing::debug!(%node, %side, %error, "could not remove a throttle; trying again");
                    all = false;
                }
            }
        }
        all
    }
}

async fn sleep_until(clock: &MonotonicClock, time: Option<MonotonicTime>) {
    match time {
        Some(time) => tokio::time::sleep_until(clock.instant(time)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "keeper_test.rs"]
mod tests;
