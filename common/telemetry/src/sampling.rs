//! What is traced: decided before a span is made, because making one costs microseconds.
//!
//! What holds: a caller's decision stands (W3C: the `sampled` flag); without one a share of the traces is recorded; a lag
//! above the bound always is. Randomness comes in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use highwater_types::TraceContext;

/// A share of traces, from 0 (none) to 1 (all).
#[derive(Clone, Copy, PartialEq)]
pub struct SamplingRatio {
    ratio: f64,
    /// A random number below this is in.
    below: u64,
}

impl SamplingRatio {
    /// Every trace.
    pub const ALL: Self = Self { ratio: 1.0, below: u64::MAX };

    /// The share; `None` when it is not between 0 and 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of the whole range, within it by the check; its last bits do not matter"
    )]
    pub fn new(ratio: f64) -> Option<Self> {
        let below = (ratio * u64::MAX as f64) as u64;
        (0.0..=1.0).contains(&ratio).then_some(Self { ratio, below })
    }

    fn includes(self, random: u64) -> bool {
        // The largest ratio includes the largest number too.
        random < self.below || self.below == u64::MAX
    }
}

impl fmt::Debug for SamplingRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ratio.fmt(f)
    }
}

impl FromStr for SamplingRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ratio = text.trim().parse().ok().and_then(Self::new);
        ratio.ok_or_else(|| "numbers from 0 (no trace) to 1 (every trace) are allowed".to_owned())
    }
}

/// The rule of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The share of the traces that begin here.
    pub ratio: SamplingRatio,
    /// A replication lag of at least this is always traced.
    pub lag_bound: Duration,
}

impl Sampling {
    /// Whether what `caller` asked for is traced; `random` decides where a trace begins.
    #[must_use]
    pub fn includes(&self, caller: Option<TraceContext>, random: u64) -> bool {
        caller.map_or_else(|| self.ratio.includes(random), TraceContext::is_sampled)
    }

    /// Whether a lag is traced whatever was decided before.
    #[must_use]
    pub fn includes_lag(&self, lag: Duration) -> bool {
        lag >= self.lag_bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(ratio: &str) -> Sampling {
        Sampling { ratio: ratio.parse().unwrap(), lag_bound: Duration::from_millis(200) }
    }

    #[test]
    fn a_share_of_the_traces_that_begin_here_is_in() {
        let quarter = u64::MAX / 4;
        assert!(sampling("0.25").includes(None, quarter - 10_000));
        assert!(!sampling("0.25").includes(None, quarter + 10_000));
        for random in [0, 1, u64::MAX] {
            assert!(!sampling("0").includes(None, random));
            assert!(sampling("1").includes(None, random));
        }
    }

    #[test]
    fn the_callers_decision_stands() {
        let caller = |sampled| TraceContext::new(1, 1, sampled);
        assert!(sampling("0").includes(caller(true), u64::MAX));
        assert!(!sampling("1").includes(caller(false), 0));
    }

    #[test]
    fn a_lag_from_the_bound_on_is_in() {
        assert!(!sampling("1").includes_lag(Duration::from_millis(199)));
        assert!(sampling("0").includes_lag(Duration::from_millis(200)));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for bad in ["", "-0.1", "1.1", "10%", "NaN", "inf"] {
            assert!(bad.parse::<SamplingRatio>().is_err(), "{bad}");
        }
    }
}
