//! Which programs live, judged without comparing clocks (design.md 6.7). Pure: time is an argument.
//!
//! What must hold: time counts against a silent program only while this observer itself renewed successfully and then
//! read every counter. So an outage of the store, a store that only reads, and a pause of the observer's own process all
//! count nothing, and no storm of expiries follows them.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_types::{MonotonicTime, NodeId, Program};

use crate::Liveness;

/// What an observer knows of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramState {
    /// Its counter moved within the session timeout, or it was not watched for that long yet.
    Alive,
    /// Its counter stood still for the session timeout of watched time.
    Expired,
    /// It never renewed.
    NeverSeen,
}

/// Watches every program's counter from one program.
#[derive(Clone, Debug)]
pub struct LivenessObserver {
    session_timeout: Duration,
    /// Time that was watched in all: the clock against which silence is measured.
    watched: Duration,
    /// The last renewal, if nothing failed since.
    unbroken_since: Option<MonotonicTime>,
    /// When the last renewal that was made at all was asked for.
    renewed_at: Option<MonotonicTime>,
    seen: BTreeMap<(NodeId, Program), Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    counter: u64,
    /// `watched` when the counter last moved.
    at: Duration,
}

impl LivenessObserver {
    /// An observer that has seen nothing. Renew several times within `session_timeout`
    /// (`broker.session.timeout.ms`): more than half of it without a renewal counts as a pause, not as watched.
    #[must_use]
    pub const fn new(session_timeout: Duration) -> Self {
        Self {
            session_timeout,
            watched: Duration::ZERO,
            unbroken_since: None,
            renewed_at: None,
            seen: BTreeMap::new(),
        }
    }

    /// The own renewal that was asked for at `asked` was made, and `counters` were read after it; the answer came `now`.
    pub fn renewed(&mut self, asked: MonotonicTime, now: MonotonicTime, counters: &Liveness) {
        if let Some(last) = self.unbroken_since {
            let gap = now.since(last);
            // A longer gap was a pause of this process or of the store: the others may have been unable to renew too.
            if gap <= self.session_timeout / 2 {
                self.watched = self.watched.saturating_add(gap);
            }
        }
        self.unbroken_since = Some(now);
        // The others may have seen it before the answer was here.
        self.renewed_at = Some(asked);
        self.seen.retain(|who, _| counters.contains_key(who));
        for (who, counter) in counters {
            let fresh = Seen { counter: *counter, at: self.watched };
            let known = self.seen.entry(*who).or_insert(fresh);
            if known.counter != *counter {
                *known = fresh;
            }
        }
    }

    /// The own renewal failed, or its outcome is unknown: the time since the last one does not count.
    pub const fn failed(&mut self) {
        self.unbroken_since = None;
    }

    /// What is known of a program.
    #[must_use]
    pub fn state(&self, node: NodeId, program: Program) -> ProgramState {
        match self.seen.get(&(node, program)) {
            None => ProgramState::NeverSeen,
            Some(seen) if self.watched.saturating_sub(seen.at) >= self.session_timeout => {
                ProgramState::Expired
            }
            Some(_) => ProgramState::Alive,
        }
    }

    /// How much longer must be watched until the next silent program is expired; `None` = none is alive. A renewal then sees
    /// it at once.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        let silences = self.seen.values().map(|seen| self.watched.saturating_sub(seen.at));
        silences
            .filter_map(|silence| self.session_timeout.checked_sub(silence))
            .filter(|d| !d.is_zero())
            .min()
    }

    /// Whether this program itself renewed within the session timeout; a node that did not must not answer for the
    /// cluster (design.md 6.8).
    #[must_use]
    pub fn holds_its_session(&self, now: MonotonicTime) -> bool {
        self.renewed_at.is_some_and(|at| now.since(at) < self.session_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(3);

    fn key(raw: i32) -> (NodeId, Program) {
        (NodeId::new(raw).unwrap(), Program::LeaderSvc)
    }

    fn counters(entries: &[(i32, u64)]) -> Liveness {
        entries.iter().map(|&(node, counter)| (key(node), counter)).collect()
    }

    fn state(observer: &LivenessObserver, raw: i32) -> ProgramState {
        observer.state(key(raw).0, key(raw).1)
    }

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::from_millis(millis)
    }

    #[test]
    fn a_counter_that_stands_still_for_the_session_timeout_is_expired() {
        let mut observer = LivenessObserver::new(TIMEOUT);
        assert_eq!(state(&observer, 2), ProgramState::NeverSeen);
        for step in 0..6 {
            observer.renewed(at(step * 500), at(step * 500), &counters(&[(1, step), (2, 7)]));
            assert_eq!(state(&observer, 2), ProgramState::Alive, "step {step}");
        }
        observer.renewed(at(3_000), at(3_000), &counters(&[(1, 6), (2, 7)]));
        assert_eq!(state(&observer, 2), ProgramState::Expired);
        assert_eq!(state(&observer, 1), ProgramState::Alive);
        observer.renewed(at(3_500), at(3_500), &counters(&[(1, 7), (2, 8)]));
        assert_eq!(state(&observer, 2), ProgramState::Alive, "it came back");
    }

    #[test]
    fn the_next_expiry_is_that_of_the_longest_silence() {
        let mut observer = LivenessObserver::new(TIMEOUT);
        assert_eq!(observer.next_expiry(), None, "nobody was seen");
        observer.renewed(at(0), at(0), &counters(&[(1, 0), (2, 7), (3, 0)]));
        assert_eq!(observer.next_expiry(), Some(TIMEOUT));
        for step in 1..=5 {
            observer.renewed(at(step * 500), at(step * 500), &counters(&[(1, step), (2, 7), (3, step / 2)]));
        }
        assert_eq!(observer.next_expiry(), Some(Duration::from_millis(500)));
        observer.renewed(at(3_000), at(3_000), &counters(&[(1, 6), (2, 7), (3, 2)]));
        assert_eq!(state(&observer, 2), ProgramState::Expired);
        assert_eq!(observer.next_expiry(), Some(Duration::from_secs(2)), "node 3 is silent since 2 s");
    }

    #[test]
    fn an_outage_of_the_store_expires_nobody() {
        let mut observer = LivenessObserver::new(TIMEOUT);
        observer.renewed(at(0), at(0), &counters(&[(2, 7)]));
        observer.failed();
        observer.renewed(at(60_000), at(60_000), &counters(&[(2, 7)]));
        assert_eq!(state(&observer, 2), ProgramState::Alive);
        observer.renewed(at(61_000), at(61_000), &counters(&[(2, 7)]));
        assert_eq!(state(&observer, 2), ProgramState::Alive, "the others get the whole timeout anew");
    }

    #[test]
    fn a_pause_of_the_observer_expires_nobody() {
        let mut observer = LivenessObserver::new(TIMEOUT);
        observer.renewed(at(0), at(0), &counters(&[(2, 7)]));
        observer.renewed(at(600_000), at(600_000), &counters(&[(2, 7)]));
        assert_eq!(state(&observer, 2), ProgramState::Alive);
    }

    #[test]
    fn a_session_is_held_for_the_timeout_after_the_last_renewal_was_asked_for() {
        let mut observer = LivenessObserver::new(TIMEOUT);
        assert!(!observer.holds_its_session(at(0)));
        observer.renewed(at(100), at(400), &Liveness::new());
        observer.failed();
        assert!(observer.holds_its_session(at(3_099)));
        assert!(!observer.holds_its_session(at(3_100)));
    }
}
