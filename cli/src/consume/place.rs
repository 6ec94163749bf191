//! Where reading begins, as it is written on the command line.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_client::StartAt;
use highwater_types::{Offset, WallTime, units};

/// Where reading begins: `earliest`, `latest`, an offset, a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) StartAt);

/// What may be written.
const ALLOWED: &str = "earliest, latest, an offset (a whole number from 0), a time (2026-03-01T12:30:00Z, \
                       2026-03-01), or how long ago (15min) is allowed";

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::read(text, SystemTime::now()).ok_or_else(|| ALLOWED.to_owned())
    }
}

impl Place {
    fn read(text: &str, now: SystemTime) -> Option<Self> {
        let start = match text {
            "earliest" => StartAt::Earliest,
            "latest" => StartAt::Latest,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => StartAt::Offset(offset(digits)?),
            text => StartAt::Time(time(text, now)?),
        };
        Some(Self(start))
    }
}

fn offset(digits: &str) -> Option<Offset> {
    digits.parse().ok().and_then(Offset::new)
}

fn time(text: &str, now: SystemTime) -> Option<WallTime> {
    let midnight = || humantime::parse_rfc3339_weak(&format!("{text} 00:00:00"));
    let time = match humantime::parse_rfc3339_weak(text).or_else(|_| midnight()) {
        Ok(time) => time,
        Err(_) => now.checked_sub(units::parse_duration(text).ok()?)?,
    };
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Some(WallTime::from_millis(i64::try_from(since.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn read(text: &str) -> Option<StartAt> {
        Place::read(text, UNIX_EPOCH + Duration::from_millis(NOW_MS)).map(|place| place.0)
    }

    #[test]
    fn every_kind_of_place_is_read() {
        let at = |ms: u64| Some(StartAt::Time(WallTime::from_millis(i64::try_from(ms).unwrap())));
        assert_eq!(read("earliest"), Some(StartAt::Earliest));
        assert_eq!(read("latest"), Some(StartAt::Latest));
        assert_eq!(read("0"), Some(StartAt::Offset(Offset::ZERO)));
        assert_eq!(read("9223372036854775807"), Some(StartAt::Offset(Offset::MAX)));
        assert_eq!(read("1970-01-02T00:00:01Z"), at(86_401_000));
        assert_eq!(read("1970-01-02 00:00:01"), at(86_401_000));
        assert_eq!(read("1970-01-02"), at(86_400_000));
        assert_eq!(read("1970-01-01T00:00:00.250Z"), at(250));
        assert_eq!(read("15min"), at(NOW_MS - 900_000));
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_is_allowed() {
        for text in ["", "-1", "newest", "9223372036854775808", "1.5", "2026-13-01T00:00:00Z", "15 parsecs"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!("newest".parse::<Place>().unwrap_err().contains("earliest"));
    }
}
