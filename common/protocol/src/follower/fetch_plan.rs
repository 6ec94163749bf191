//! In which order a loop asks for its partitions (S9).
//!
//! What holds: each partition is in the order once; one that made progress goes to the end, so an answer that the byte cap
//! cuts short starves nobody (the leader serves in request order, S33).

use std::collections::BTreeMap;

/// The partitions of one loop, in the order of the next request.
#[derive(Clone, Debug)]
pub struct FetchPlan<K> {
    order: BTreeMap<u64, K>,
    place: BTreeMap<K, u64>,
    next: u64,
}

impl<K: Ord + Clone> Default for FetchPlan<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone> FetchPlan<K> {
    /// Without partitions.
    #[must_use]
    pub const fn new() -> Self {
        Self { order: BTreeMap::new(), place: BTreeMap::new(), next: 0 }
    }

    /// The partitions, first one first.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.order.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.place.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.place.is_empty()
    }

    /// Whether `key` is one of them.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.place.contains_key(key)
    }

    /// Adds a partition at the end; one that is there keeps its place (S4). Answers whether it is new.
    pub fn add(&mut self, key: K) -> bool {
        if self.place.contains_key(&key) {
            return false;
        }
        self.append(key);
        true
    }

    /// Takes a partition out. Answers whether it was in.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(place) = self.place.remove(key) else { return false };
        let removed = self.order.remove(&place);
        debug_assert!(removed.is_some(), "every partition has its place");
        debug_assert_eq!(self.order.len(), self.place.len(), "each partition once");
        true
    }

    /// A partition made progress: it goes to the end (S9). One that is not in stays out.
    pub fn move_to_end(&mut self, key: &K) {
        if self.remove(key) {
            self.append(key.clone());
        }
        debug_assert_eq!(self.order.len(), self.place.len(), "each partition once");
    }

    fn append(&mut self, key: K) {
        self.order.insert(self.next, key.clone());
        self.place.insert(key, self.next);
        self.next += 1;
        debug_assert_eq!(self.order.len(), self.place.len(), "each partition once");
        debug_assert!(
            self.order.last_key_value().is_some_and(|(place, _)| *place < self.next),
            "new places are last"
        );
    }
}

#[cfg(test)]
#[path = "fetch_plan_test.rs"]
mod tests;
