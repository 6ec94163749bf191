//! How thorough this run is, as `tests/run` was asked.

use std::env;

/// A run's thoroughness. Started by hand, a test is as thorough as in `ci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Minutes.
    Quick,
    /// Half an hour.
    Ci,
    /// Hours.
    Long,
}

/// The tier of this run.
///
/// # Panics
/// When the variable that carries it holds anything else.
#[must_use]
pub fn tier() -> Tier {
    parse(env::var("HWTEST_TIER").ok().as_deref())
}

/// How many rounds a test makes: `ci`, or in the long tier `long`.
#[must_use]
pub fn rounds(ci: u32, long: u32) -> u32 {
    if tier() == Tier::Long { long } else { ci }
}

fn parse(text: Option<&str>) -> Tier {
    match text {
        Some("quick") => Tier::Quick,
        Some("ci") | None => Tier::Ci,
        Some("long") => Tier::Long,
        Some(other) => panic!("HWTEST_TIER is '{other}'; quick, ci and long are allowed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_started_by_hand_is_as_thorough_as_in_ci() {
        assert_eq!(
            [None, Some("quick"), Some("ci"), Some("long")].map(parse),
            [Tier::Ci, Tier::Quick, Tier::Ci, Tier::Long]
        );
    }

    #[test]
    #[should_panic(expected = "'weekly'")]
    fn an_unknown_tier_is_refused() {
        parse(Some("weekly"));
    }
}
