//! How long to wait before the next try.

use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(50);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);

/// Exponential back-off from 50 ms to 5 s, or less, with jitter (design.md 5): doubled by each failure, and drawn from the upper
/// half, so that peers which failed together do not return together.
#[derive(Clone, Debug)]
pub struct Backoff {
    ceiling: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(LONGEST)
    }
}

impl Backoff {
    /// One whose waits grow up to `longest`.
    #[must_use]
    pub const fn up_to(longest: Duration) -> Self {
        Self { ceiling: FIRST, longest }
    }

    /// The wait after one more failure; never shorter than what the peer asked for.
    #[must_use]
    pub fn after_failure(&mut self, asked: Option<Duration>) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = ceiling.saturating_mul(2).min(self.longest);
        let drawn = ceiling.mul_f64(rand::random_range(0.5..=1.0));
        asked.map_or(drawn, |asked| asked.saturating_add(drawn / 2).max(drawn))
    }

    /// Forgets the failures, after a success.
    pub const fn reset(&mut self) {
        self.ceiling = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        for ceiling in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.after_failure(None);
            let ceiling = Duration::from_millis(ceiling);
            assert!((ceiling / 2..=ceiling).contains(&wait), "{wait:?} of {ceiling:?}");
        }
        backoff.reset();
        assert!(backoff.after_failure(None) <= FIRST);
    }

    #[test]
    fn waits_grow_up_to_what_was_asked_for() {
        let mut backoff = Backoff::up_to(Duration::from_millis(150));
        let longest = (0..20).map(|_| backoff.after_failure(None)).max();
        assert!(longest <= Some(Duration::from_millis(150)) && longest > Some(Duration::from_millis(75)));
    }

    #[test]
    fn a_wait_is_never_shorter_than_asked() {
        let asked = Duration::from_secs(60);
        assert!(Backoff::default().after_failure(Some(asked)) >= asked);
    }
}
