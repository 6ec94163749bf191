//! The purgatory: which parked requests an event concerns.
//!
//! An index from keys (partitions) to waiting requests and back. What holds: a wake visits only the requests parked on that
//! key, each with the slot under which it named the key, so an append costs nothing where nobody waits on the partition;
//! removal leaves nothing behind. Deliberately absent: timers, tasks and locks. The caller parks by *check – register –
//! check* (S28): an event between its first check and the registration is seen by the second. It removes by `WaitId` when
//! the request's handler is dropped (S80).

use std::collections::{BTreeMap, BTreeSet};

/// Names one parked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(u64);

#[derive(Debug)]
struct Waiting<K, T> {
    keys: Vec<K>,
    item: T,
}

/// Parked requests by the keys that they wait on.
#[derive(Debug)]
pub struct Purgatory<K, T> {
    next: u64,
    waiting: BTreeMap<WaitId, Waiting<K, T>>,
    by_key: BTreeMap<K, BTreeSet<(WaitId, usize)>>,
}

impl<K: Ord + Clone, T> Default for Purgatory<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, T> Purgatory<K, T> {
    /// Without parked requests.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, waiting: BTreeMap::new(), by_key: BTreeMap::new() }
    }

    /// How many requests are parked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none is parked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Parks `item` on `keys`; a key's slot is its place in `keys`. Check once more afterwards (S28).
    pub fn register(&mut self, keys: Vec<K>, item: T) -> WaitId {
        let id = WaitId(self.next);
        self.next += 1;
        for (slot, key) in keys.iter().enumerate() {
            self.by_key.entry(key.clone()).or_default().insert((id, slot));
        }
        let earlier = self.waiting.insert(id, Waiting { keys, item });
        debug_assert!(earlier.is_none(), "ids are not used twice");
        debug_assert!(self.waiting.len() as u64 <= self.next, "every parked request has its own id");
        id
    }

    /// A parked request, for the check after its registration; `None` when it is out already.
    pub fn get_mut(&mut self, id: WaitId) -> Option<&mut T> {
        self.waiting.get_mut(&id).map(|waiting| &mut waiting.item)
    }

    /// Visits every request parked on `key`, with the slot of that key in it.
    pub fn wake(&mut self, key: &K, mut visit: impl FnMut(WaitId, usize, &mut T)) {
        let Some(waiters) = self.by_key.get(key) else { return };
        for (id, slot) in waiters {
            if let Some(waiting) = self.waiting.get_mut(id) {
                visit(*id, *slot, &mut waiting.item);
            }
        }
    }

    /// Takes a request out; `None` when it is out already, which is no error: completion and cancellation race.
    pub fn remove(&mut self, id: WaitId) -> Option<T> {
        let Waiting { keys, item } = self.waiting.remove(&id)?;
        for (slot, key) in keys.into_iter().enumerate() {
            if let Some(waiters) = self.by_key.get_mut(&key) {
                waiters.remove(&(id, slot));
                if waiters.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        debug_assert!(!self.waiting.contains_key(&id), "removed");
        debug_assert!(!self.waiting.is_empty() || self.by_key.is_empty(), "removal leaves nothing behind");
        Some(item)
    }

    /// Whether anything waits on `key`.
    #[must_use]
    pub fn is_watched(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }
}

#[cfg(test)]
#[path = "purgatory_test.rs"]
mod tests;
