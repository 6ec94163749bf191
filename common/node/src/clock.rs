//! The two clocks of a process, handed to whoever needs one, so that tests and simulations can put their own in.
//!
//! The monotonic clock is tokio's: with a paused or simulated runtime it stands, or jumps, with the runtime's timers.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_types::{MonotonicTime, WallTime};
use tokio::time::Instant;

/// The monotonic clock of this process: time since an origin, in the form that the pure core takes.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn starting_now() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> MonotonicTime {
        self.at(Instant::now())
    }

    /// The time at an instant of the runtime; the origin for an earlier one.
    #[must_use]
    pub fn at(&self, instant: Instant) -> MonotonicTime {
        MonotonicTime::ZERO.after(instant.saturating_duration_since(self.origin))
    }

    /// The instant of the runtime at which this clock shows `time`, for timers.
    #[must_use]
    pub fn instant(&self, time: MonotonicTime) -> Instant {
        self.origin + time.since(MonotonicTime::ZERO)
    }
}

/// A source of wall-clock time.
pub type WallClock = Arc<dyn Fn() -> WallTime + Send + Sync>;

/// Both clocks of a process.
#[derive(Clone)]
pub struct Clocks {
    /// For everything that is measured.
    pub monotonic: MonotonicClock,
    /// For timestamps that people read; no rule of replication depends on it.
    pub wall: WallClock,
}

impl Clocks {
    /// The operating system's clocks.
    #[must_use]
    pub fn system() -> Self {
        let millis = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            WallTime::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
        };
        Self { monotonic: MonotonicClock::starting_now(), wall: Arc::new(millis) }
    }

    /// The wall time now.
    #[must_use]
    pub fn wall_now(&self) -> WallTime {
        (self.wall)()
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks").field("monotonic", &self.monotonic).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_monotonic_clock_moves_with_the_runtimes_timers() {
        let clock = MonotonicClock::starting_now();
        assert_eq!(clock.now(), MonotonicTime::ZERO);
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now(), MonotonicTime::from_millis(1_500));
        let later = MonotonicTime::from_millis(2_000);
        assert_eq!(clock.at(clock.instant(later)), later);
    }

    #[test]
    fn the_wall_clock_counts_from_1970() {
        assert!(Clocks::system().wall_now() > WallTime::from_millis(1_700_000_000_000));
    }
}
