//! Joining the cluster while its store is slow, away, or held: a program that starts then waits for it, and does not end.
//!
//! What must hold: only what can pass is tried again; each attempt that failed is told; the pause grows up to
//! [`PAUSE_MAX`] with jitter, so that nodes which start together do not come together. It ends when the caller drops it: until
//! a program has joined, nothing is lost by ending it.

use std::fmt::Display;
use std::time::Duration;

use highwater_coordination::CoordinationError;

/// The first pause.
const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// The longest pause between two attempts: a store that comes into reach is found soon after (cases.md K).
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// An error of an attempt to join.
pub trait JoinError: Display {
    /// Whether another attempt can succeed: the store comes into reach, or the node's other program lets go of the volume.
    fn can_pass(&self) -> bool;
}

impl JoinError for CoordinationError {
    fn can_pass(&self) -> bool {
        // A read-only view has no cluster id yet.
        self.is_retryable() || matches!(self, Self::ReadOnly)
    }
}

/// The pauses between attempts.
#[derive(Debug)]
pub struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE_FIRST }
    }
}

impl Pauses {
    /// An attempt failed: tells why. How long to wait before the next one.
    #[must_use]
    pub fn after_failure(&mut self, failed: &impl JoinError) -> Duration {
        tracing::warn!(error = %failed, "could not join the cluster; trying on");
        let drawn = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = self.next.saturating_mul(2).min(PAUSE_MAX);
        drawn
    }
}

/// Attempts until one succeeds.
///
/// # Errors
/// The first error that cannot pass.
pub async fn keep_trying<T, E: JoinError>(attempt: impl AsyncFn() -> Result<T, E>) -> Result<T, E> {
    let mut pauses = Pauses::default();
    loop {
        match attempt().await {
            Ok(joined) => return Ok(joined),
            Err(failed) if failed.can_pass() => tokio::time::sleep(pauses.after_failure(&failed)).await,
            Err(failed) => return Err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_is_waited_for_and_one_that_is_unreadable_is_not() {
        let (attempts, begun) = (AtomicU32::new(0), Instant::now());
        let joined = keep_trying(async || match attempts.fetch_add(1, Ordering::Relaxed) {
            0..20 => Err(CoordinationError::Unavailable("away".to_owned())),
            made => Ok(made),
        });
        assert!(matches!(joined.await, Ok(20)));
        // At least half of 50, 100, … 1600 ms and 14 times 2 s; at most all of it.
        let took = begun.elapsed().as_millis();
        assert!((15_575..=31_150).contains(&took), "{took} ms");
        let unreadable = keep_trying(async || -> Result<(), _> {
            attempts.fetch_add(1, Ordering::Relaxed);
            Err(CoordinationError::Unreadable("another format".to_owned()))
        });
        assert!(unreadable.await.is_err());
        assert_eq!(attempts.load(Ordering::Relaxed), 22, "asked once");
    }
}
