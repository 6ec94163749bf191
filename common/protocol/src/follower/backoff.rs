//! Back-off: exponential, with jitter, bounded in length and, where it is asked for, in number.
//!
//! What holds: a wait is at least half of the step and at most the step, and the step never passes the maximum. The
//! randomness comes in, so a seed repeats a run.

use std::time::Duration;

use crate::Randomness;

/// How to back off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The first step.
    pub first: Duration,
    /// The longest step.
    pub max: Duration,
    /// After so many tries in a row without progress a bounded retry gives up.
    pub max_attempts: u32,
}

/// Tries in a row without progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    config: BackoffConfig,
    attempts: u32,
}

impl Backoff {
    /// Before the first failure.
    #[must_use]
    pub const fn new(config: BackoffConfig) -> Self {
        Self { config, attempts: 0 }
    }

    /// Failures in a row so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// There was progress.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }

    /// One more failure: how long to wait.
    pub fn next_delay(&mut self, randomness: &mut Randomness) -> Duration {
        let doublings = self.attempts.min(31);
        self.attempts = self.attempts.saturating_add(1);
        let step = self.config.first.saturating_mul(1 << doublings).min(self.config.max);
        let nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(nanos / 2 + randomness.up_to(nanos - nanos / 2));
        debug_assert!(wait <= self.config.max, "the step is bounded");
        debug_assert!(self.attempts > 0, "a failure was counted");
        wait
    }

    /// One more failure where tries are bounded: how long to wait, or `None` = give up.
    pub fn next_bounded_delay(&mut self, randomness: &mut Randomness) -> Option<Duration> {
        if self.attempts >= self.config.max_attempts { None } else { Some(self.next_delay(randomness)) }
    }
}

#[cfg(test)]
#[path = "backoff_test.rs"]
mod tests;
