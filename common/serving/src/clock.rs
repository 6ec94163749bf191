//! The clocks of a serving program, in one place, so that tests can stop them.
//!
//! What holds: monotonic readings come from the runtime's clock and share one origin per process; they reach the core as
//! numbers. The wall clock is only for what a person or a record's timestamp shows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_types::{MonotonicTime, WallTime};
use tokio::time::Instant;

/// Both clocks of this process. Cheap to copy; copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self::start()
    }
}

impl Clock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The monotonic time.
    #[must_use]
    pub fn now(&self) -> MonotonicTime {
        self.at(Instant::now())
    }

    /// The monotonic time of an instant of the runtime; the origin for an earlier one.
    #[must_use]
    pub fn at(&self, instant: Instant) -> MonotonicTime {
        MonotonicTime::ZERO.after(instant.saturating_duration_since(self.origin))
    }

    /// The runtime's instant of a monotonic time: what a timer can wait for.
    #[must_use]
    pub fn instant(&self, time: MonotonicTime) -> Instant {
        self.origin + time.since(MonotonicTime::ZERO).min(LONGEST_WAIT)
    }

    /// The wall clock.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        WallTime::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Keeps an instant representable; ten years from the start of the process.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_the_runtime_and_converts_both_ways() {
        let clock = Clock::start();
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now(), MonotonicTime::from_millis(1500));
        assert_eq!(clock.at(clock.instant(clock.now())), clock.now());
        assert!(clock.instant(MonotonicTime::from_nanos(u64::MAX)) > Instant::now());
    }
}
