//! A program's own sign of life, kept up, and what it thereby knows of the others.
//!
//! The rules are [`LivenessObserver`]'s; here are the store and the timer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_types::{MonotonicTime, NodeId, Program};
use tokio::sync::watch;

use crate::{ClusterView, Coordination, CoordinationError, LivenessObserver, ProgramState};

/// How often a program renews within its session timeout: some renewals may fail or be late.
const RENEWALS_PER_SESSION: u32 = 6;

/// The liveness of one program of this process.
#[derive(Debug)]
pub struct Membership {
    coordination: Arc<dyn Coordination>,
    node: NodeId,
    program: Program,
    session_timeout: Duration,
    observer: Mutex<LivenessObserver>,
    renewals: watch::Sender<()>,
}

impl Membership {
    /// Renews nothing yet. `session_timeout` is `broker.session.timeout.ms`.
    #[must_use]
    pub fn new(
        coordination: Arc<dyn Coordination>,
        node: NodeId,
        program: Program,
        session_timeout: Duration,
    ) -> Self {
        let observer = Mutex::new(LivenessObserver::new(session_timeout));
        Self { coordination, node, program, session_timeout, observer, renewals: watch::Sender::new(()) }
    }

    /// Renews once.
    ///
    /// # Errors
    /// As [`Coordination::renew_liveness`].
    pub async fn renew(&self, now: impl Fn() -> MonotonicTime) -> Result<(), CoordinationError> {
        let asked = now();
        let renewed = self.coordination.renew_liveness(self.node, self.program).await;
        match &renewed {
            Ok(counters) => self.observer().renewed(asked, now(), counters),
            Err(_) => self.observer().failed(),
        }
        self.renewals.send_replace(());
        renewed.map(drop)
    }

    /// Changes with every renewal that was tried.
    #[must_use]
    pub fn renewals(&self) -> watch::Receiver<()> {
        self.renewals.subscribe()
    }

    /// Renews several times per session timeout, and when a silent program is due to expire, for as long as it is polled.
    pub async fn keep_alive(&self, now: impl Fn() -> MonotonicTime) -> std::convert::Infallible {
        let mut failing = false;
        loop {
            match self.renew(&now).await {
                Ok(()) => failing = false,
                Err(error) if !failing => {
                    tracing::warn!(%error, "could not renew the liveness of this program; trying on");
                    failing = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(self.until_next(failing)).await;
        }
    }

    /// How long the next renewal waits. Expiry is noticed by renewals only, and nobody should wait for a whole turn of them.
    fn until_next(&self, failing: bool) -> Duration {
        let turn = self.session_timeout / RENEWALS_PER_SESSION;
        if failing { turn } else { self.observer().next_expiry().map_or(turn, |due| due.min(turn)) }
    }

    /// What is known of a program.
    #[must_use]
    pub fn state(&self, node: NodeId, program: Program) -> ProgramState {
        self.observer().state(node, program)
    }

    /// Whether a program may live: it renews, or it has only just registered in `view` and was not seen to renew yet.
    #[must_use]
    pub fn may_live(&self, view: &ClusterView, node: NodeId, program: Program) -> bool {
        match self.state(node, program) {
            ProgramState::Alive => true,
            ProgramState::Expired => false,
            ProgramState::NeverSeen => view.node(node).is_some_and(|found| found.endpoint(program).is_some()),
        }
    }

    /// How long a session lasts without a renewal.
    #[must_use]
    pub const fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// Whether this program renewed within its session timeout; a node that did not must not answer for the cluster
    /// (design.md 6.8).
    #[must_use]
    pub fn holds_its_session(&self, now: MonotonicTime) -> bool {
        self.observer().holds_its_session(now)
    }

    /// The observer does not panic halfway through a change.
    fn observer(&self) -> MutexGuard<'_, LivenessObserver> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileCoordination, FileOptions, register_endpoint};

    #[tokio::test]
    async fn a_renewal_is_due_when_a_silent_program_is() {
        const TIMEOUT: Duration = Duration::from_secs(3);
        let turn = TIMEOUT / RENEWALS_PER_SESSION;
        let dir = tempfile::tempdir().unwrap();
        let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
        let store: Arc<dyn Coordination> = Arc::new(store);
        store.renew_liveness(NodeId::new(2).unwrap(), Program::LeaderSvc).await.unwrap();
        let node = NodeId::new(1).unwrap();
        let member = Membership::new(store, node, Program::LeaderSvc, TIMEOUT);
        assert_eq!(member.until_next(false), turn);
        for millis in [0, 700, 1_400, 2_100, 2_800] {
            member.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
        }
        assert_eq!(member.until_next(false), Duration::from_millis(200));
        assert_eq!(member.until_next(true), turn, "a store that is away is asked at its usual pace");
        member.renew(|| MonotonicTime::from_millis(3_000)).await.unwrap();
        assert_eq!(member.until_next(false), turn, "it is expired");
    }

    #[tokio::test]
    async fn a_program_that_has_only_just_registered_may_live() {
        const TIMEOUT: Duration = Duration::from_secs(3);
        let dir = tempfile::tempdir().unwrap();
        let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
        let store: Arc<dyn Coordination> = Arc::new(store);
        let [own, other] = [1, 2].map(|id| NodeId::new(id).unwrap());
        let member = Membership::new(Arc::clone(&store), own, Program::LeaderSvc, TIMEOUT);
        let may_live = || member.may_live(&store.view().borrow(), other, Program::LeaderSvc);
        assert!(!may_live(), "nobody knows it");
        let endpoint = "127.0.0.1:9400".parse().unwrap();
        register_endpoint(&*store, other, Program::LeaderSvc, &endpoint).await.unwrap();
        assert!(may_live());
        store.renew_liveness(other, Program::LeaderSvc).await.unwrap();
        for millis in (0..=3_000).step_by(500) {
            assert!(may_live(), "before {millis} ms");
            member.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
        }
        assert!(!may_live(), "it is silent");
    }

    #[tokio::test]
    async fn programs_that_renew_see_each_other_and_the_one_that_stopped() {
        const TIMEOUT: Duration = Duration::from_millis(300);
        let dir = tempfile::tempdir().unwrap();
        let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
        let store: Arc<dyn Coordination> = Arc::new(store);
        let member = |raw| {
            let node = NodeId::new(raw).unwrap();
            Membership::new(Arc::clone(&store), node, Program::LeaderSvc, TIMEOUT)
        };
        let (a, b) = (member(1), member(2));
        let state = |of: &Membership, by: &Membership| by.state(of.node, of.program);
        assert_eq!(state(&b, &a), ProgramState::NeverSeen);
        assert!(!a.holds_its_session(MonotonicTime::ZERO));

        b.renew(|| MonotonicTime::ZERO).await.unwrap();
        for millis in (0..=300).step_by(100) {
            a.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
            let expected = if millis < 300 { ProgramState::Alive } else { ProgramState::Expired };
            assert_eq!(state(&b, &a), expected, "after {millis} ms");
        }
        b.renew(|| MonotonicTime::ZERO).await.unwrap();
        a.renew(|| MonotonicTime::from_millis(400)).await.unwrap();
        assert_eq!((state(&b, &a), state(&a, &a)), (ProgramState::Alive, ProgramState::Alive));
        assert!(a.holds_its_session(MonotonicTime::from_millis(600)));
    }
}
