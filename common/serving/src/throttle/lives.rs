//! When each throttle of the cluster ends, as this program reckons it: from when it first saw it, on its own clock.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_coordination::ClusterView;
use highwater_types::{MonotonicTime, NodeId, Throttle, ThrottleSide};
use parking_lot::Mutex;

/// One throttle of the cluster, by its id.
pub(super) type Key = (NodeId, ThrottleSide, u64);

/// See the module. The keeper fills it in, whoever describes the cluster reads it.
#[derive(Debug, Default)]
pub struct ThrottleLives {
    ends: Mutex<BTreeMap<Key, Option<MonotonicTime>>>,
}

impl ThrottleLives {
    /// Takes over what the view has: what is new begins to live, what is gone is forgotten.
    pub(super) fn observe(&self, view: &ClusterView, now: MonotonicTime) {
        let mut ends = self.ends.lock();
        let seen = std::mem::take(&mut *ends);
        for record in view.nodes() {
            for side in ThrottleSide::BOTH {
                let Some(throttle) = record.throttles.of(side) else { continue };
                let key = (record.node, side, throttle.id);
                let end = || throttle.ttl_ms.map(|ttl| now.after(Duration::from_millis(ttl)));
                ends.insert(key, seen.get(&key).copied().unwrap_or_else(end));
            }
        }
    }

    /// How long a throttle of `node` still lives; absent = until it is cleared. One that is not known yet has its whole life
    /// before it.
    #[must_use]
    pub fn left(
        &self,
        node: NodeId,
        side: ThrottleSide,
        throttle: &Throttle,
        now: MonotonicTime,
    ) -> Option<Duration> {
        let ttl = Duration::from_millis(throttle.ttl_ms?);
        let end = self.ends.lock().get(&(node, side, throttle.id)).copied().flatten();
        Some(end.map_or(ttl, |end| end.since(now)))
    }

    pub(super) fn is_over(&self, key: Key, now: MonotonicTime) -> bool {
        self.ends.lock().get(&key).is_some_and(|end| end.is_some_and(|end| end <= now))
    }

    pub(super) fn over(&self, now: MonotonicTime) -> Vec<Key> {
        let ends = self.ends.lock();
        let is_over = |end: &Option<MonotonicTime>| end.is_some_and(|end| end <= now);
        ends.iter().filter(|(_, end)| is_over(end)).map(|(key, _)| *key).collect()
    }

    /// The next end after `now`.
    pub(super) fn next_end(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.ends.lock().values().flatten().copied().filter(|end| *end > now).min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ends.lock().is_empty()
    }
}
