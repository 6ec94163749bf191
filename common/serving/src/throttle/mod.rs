//! The throttle of one side of replication in a program: the quota, what it counts, and where that comes from.
//!
//! What must hold: what was set at run time stands above the program's own setting, and both can change at any time
//! without losing what the quota is owed; a reservation is settled however its request ends. leader-svc throttles what it
//! sends, follower-agent what it fetches; the decision is the core's (`protocol::quota`). Deliberately absent: waiting.

mod keeper;
mod lives;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_node::MonotonicClock;
use highwater_protocol::quota::{Metering, ReplicationQuota};
use highwater_types::{
    ByteRate, MonotonicTime, NodeId, PartitionIndex, Throttle, ThrottleSide, ThrottledReplicas,
    TopicIdPartition, TopicName,
};
use parking_lot::Mutex;

pub use keeper::ThrottleKeeper;
pub use lives::ThrottleLives;

/// How long a follower that was held back counts as that: longer than it takes to ask again.
const HELD_FOR: Duration = Duration::from_secs(1);

/// A rate and what it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How much goes through.
    pub rate: ByteRate,
    /// What counts.
    pub replicas: ThrottledReplicas,
}

/// The throttle of one side. Shared by everything that replicates on that side.
#[derive(Debug)]
pub struct ReplicationThrottle {
    side: ThrottleSide,
    default: Option<Limit>,
    clock: MonotonicClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    set: Option<Set>,
    /// How many quotas there were: a reservation of an earlier one says nothing about this one.
    generation: u64,
    held: BTreeMap<(NodeId, TopicIdPartition), MonotonicTime>,
    forgotten_at: MonotonicTime,
}

#[derive(Debug)]
struct Set {
    replicas: ThrottledReplicas,
    quota: ReplicationQuota,
}

impl ReplicationThrottle {
    /// The throttle of `side`; `default` is the program's own setting, absent = none.
    #[must_use]
    pub fn new(side: ThrottleSide, default: Option<Limit>, clock: MonotonicClock) -> Self {
        let throttle = Self { side, default, clock, state: Mutex::default() };
        throttle.set(None);
        throttle
    }

    /// Which side it holds back.
    #[must_use]
    pub const fn side(&self) -> ThrottleSide {
        self.side
    }

    /// What was set at run time; absent = nothing, so the program's own setting holds.
    pub fn set(&self, throttle: Option<&Throttle>) {
        let set = throttle.map(|t| Limit { rate: t.rate, replicas: t.replicas.clone() });
        let limit = set.or_else(|| self.default.clone());
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        match (limit, &mut state.set) {
            (None, set) => *set = None,
            (Some(limit), Some(set)) => {
                set.quota.set_rate(limit.rate, now);
                set.replicas = limit.replicas;
            }
            (Some(limit), set @ None) => {
                state.generation += 1;
                let quota = ReplicationQuota::new(limit.rate, now);
                *set = Some(Set { replicas: limit.replicas, quota });
            }
        }
        debug_assert!(self.default.is_none() || state.set.is_some(), "the own setting always holds");
    }

    /// Whether it holds back anything at all.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.state.lock().set.is_some()
    }

    /// The rate, where one is set.
    #[must_use]
    pub fn rate(&self) -> Option<ByteRate> {
        self.state.lock().set.as_ref().map(|set| set.quota.rate())
    }

    /// What it means for a replica now; `in_sync` is asked only where the replica is listed.
    pub fn metering(
        &self,
        topic: &TopicName,
        partition: PartitionIndex,
        in_sync: impl FnOnce() -> bool,
    ) -> Metering {
        let is_listed = |set: &Set| set.replicas.contains(topic, partition);
        if !self.state.lock().set.as_ref().is_some_and(is_listed) {
            return Metering::Free;
        }
        // Asked without the lock: whoever knows has locks of its own.
        let in_sync = in_sync();
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.set.as_mut().map_or(Metering::Free, |set| set.quota.metering(true, in_sync, now))
    }

    /// Takes up to `wanted` bytes before they move.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, wanted: u64) -> Reservation {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let bytes = state.set.as_mut().map_or(wanted, |set| set.quota.reserve(wanted, now));
        Reservation { throttle: Arc::clone(self), generation: state.generation, bytes, used: 0 }
    }

    /// Counts bytes of replicas that are in sync (S69).
    pub fn count(&self, bytes: u64) {
        let now = self.clock.now();
        if let Some(set) = &mut self.state.lock().set
            && bytes > 0
        {
            set.quota.count(bytes, now);
        }
    }

    /// How long nothing more goes through; zero = not at all.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let now = self.clock.now();
        let state = self.state.lock();
        let resumes = state.set.as_ref().and_then(|set| set.quota.resumes_at(now));
        resumes.map_or(Duration::ZERO, |at| at.since(now))
    }

    /// A follower's replica was left out; for [`Self::holds_back`].
    pub fn held(&self, follower: NodeId, partition: TopicIdPartition) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if now.since(state.forgotten_at) > HELD_FOR {
            state.held.retain(|_, at| now.since(*at) <= HELD_FOR);
            state.forgotten_at = now;
        }
        state.held.insert((follower, partition), now);
    }

    /// Whether a follower's replica was left out a moment ago.
    #[must_use]
    pub fn holds_back(&self, follower: NodeId, partition: TopicIdPartition) -> bool {
        let now = self.clock.now();
        let state = self.state.lock();
        state.set.is_some()
            && state.held.get(&(follower, partition)).is_some_and(|at| now.since(*at) <= HELD_FOR)
    }
}

/// Bytes that were taken from a quota before they moved. Settled when it is dropped, so that a request that ends early
/// gives them back.
#[derive(Debug)]
pub struct Reservation {
    throttle: Arc<ReplicationThrottle>,
    generation: u64,
    bytes: u64,
    used: u64,
}

impl Reservation {
    /// How many may move; a first batch may be larger, unless it is 0.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many more moved.
    pub const fn used(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let now = self.throttle.clock.now();
        let mut state = self.throttle.state.lock();
        if state.generation == self.generation
            && let Some(set) = &mut state.set
        {
            set.quota.settle(self.bytes, self.used, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_types::TopicId;

    use super::*;

    fn limit(rate: &str) -> Limit {
        Limit { rate: rate.parse().unwrap(), replicas: "orders".parse().unwrap() }
    }

    fn throttle(rate: &str) -> Throttle {
        Throttle { id: 1, rate: rate.parse().unwrap(), replicas: ThrottledReplicas::All, ttl_ms: None }
    }

    fn metering(of: &ReplicationThrottle, topic: &str, in_sync: bool) -> Metering {
        of.metering(&topic.parse().unwrap(), PartitionIndex::new(0).unwrap(), || in_sync)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_set_stands_above_the_own_setting_until_it_is_cleared() {
        let clock = MonotonicClock::starting_now();
        let own = ReplicationThrottle::new(ThrottleSide::Leader, Some(limit("1MB/s")), clock);
        assert_eq!(own.rate(), Some("1MB/s".parse().unwrap()));
        assert_eq!(metering(&own, "orders", false), Metering::Metered);
        assert_eq!(metering(&own, "other", false), Metering::Free);
        own.set(Some(&throttle("8MB/s")));
        assert_eq!(own.rate(), Some("8MB/s".parse().unwrap()));
        assert_eq!(metering(&own, "other", false), Metering::Metered);
        own.set(None);
        assert_eq!(own.rate(), Some("1MB/s".parse().unwrap()));
        let none = ReplicationThrottle::new(ThrottleSide::Leader, None, clock);
        assert!(!none.is_set());
        assert_eq!(metering(&none, "orders", false), Metering::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_ends_early_gives_its_reservation_back() {
        let clock = MonotonicClock::starting_now();
        let own = Arc::new(ReplicationThrottle::new(ThrottleSide::Leader, Some(limit("1MB/s")), clock));
        drop(own.reserve(u64::MAX));
        assert_eq!(own.reserve(u64::MAX).bytes(), 250_000);
        let mut used = own.reserve(u64::MAX);
        used.used(3_000_000);
        assert_eq!(own.reserve(1).bytes(), 0, "taken");
        drop(used);
        assert_eq!(own.pause(), Duration::from_secs(3), "a larger batch is owed");
        assert_eq!(metering(&own, "orders", false), Metering::Withheld);
        assert_eq!(metering(&own, "orders", true), Metering::Counted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_of_a_throttle_that_was_cleared_says_nothing_about_the_next() {
        let clock = MonotonicClock::starting_now();
        let own = Arc::new(ReplicationThrottle::new(ThrottleSide::Follower, None, clock));
        own.set(Some(&throttle("1MB/s")));
        let mut old = own.reserve(u64::MAX);
        own.set(None);
        own.set(Some(&throttle("1MB/s")));
        old.used(100_000_000);
        drop(old);
        assert_eq!(own.pause(), Duration::ZERO);
        own.set(None);
        assert_eq!(own.reserve(77).bytes(), 77, "without a throttle everything goes");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_left_out_is_known_for_a_second() {
        let clock = MonotonicClock::starting_now();
        let own = ReplicationThrottle::new(ThrottleSide::Leader, Some(limit("1MB/s")), clock);
        let node = |id| NodeId::new(id).unwrap();
        let partition = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        own.held(node(2), partition);
        assert!(own.holds_back(node(2), partition) && !own.holds_back(node(3), partition));
        tokio::time::advance(HELD_FOR + Duration::from_millis(1)).await;
        assert!(!own.holds_back(node(2), partition));
        own.held(node(3), partition);
        assert_eq!(own.state.lock().held.len(), 1, "nothing is kept for longer");
    }
}
