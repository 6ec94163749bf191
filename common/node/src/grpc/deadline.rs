//! The caller's deadline as a request extension (S78, S79).
//!
//! tonic enforces `grpc-timeout` itself: it drops the handler and answers CANCELLED. A parked Fetch must end before that,
//! with an empty OK, so the handler is shown a deadline that lies a margin earlier.

use std::time::Duration;

use http::{HeaderMap, Request};
use tokio::time::Instant;

/// How much earlier than the caller's deadline a handler should be done: the answer has to be encoded and to travel. Half
/// of the time-out where that is less.
pub const DEADLINE_MARGIN: Duration = Duration::from_millis(50);

const HEADER: &str = "grpc-timeout";

/// The format allows eight digits.
const DIGITS_MAX: usize = 8;

/// When a handler should be done; in the extensions of a request whose caller set a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline at this instant, for callers without a request.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The instant.
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// The time that is left; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Puts the deadline into the request's extensions, if it has a time-out that can be read.
pub(super) fn stamp<B>(mut request: Request<B>) -> Request<B> {
    if let Some(timeout) = timeout(request.headers()) {
        let margin = DEADLINE_MARGIN.min(timeout / 2);
        request.extensions_mut().insert(Deadline(Instant::now() + (timeout - margin)));
    }
    request
}

fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(header: &str) -> Option<Deadline> {
        let request = Request::builder().header(HEADER, header).body(()).unwrap();
        stamp(request).extensions().get().copied()
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_lies_a_margin_before_the_callers() {
        let remaining = |header| stamped(header).map(Deadline::remaining);
        assert_eq!(remaining("2S"), Some(Duration::from_millis(1_950)));
        assert_eq!(remaining("300m"), Some(Duration::from_millis(250)));
        assert_eq!(remaining("20000u"), Some(Duration::from_millis(10)), "half of a short one");
        assert_eq!(remaining("0n"), Some(Duration::ZERO));
        assert_eq!(remaining("99999999H"), Some(Duration::from_secs(99_999_999 * 3600) - DEADLINE_MARGIN));
        let deadline = stamped("1S").unwrap();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_header_that_is_no_time_out_sets_none() {
        for bad in ["", "S", "1", "1x", "-1S", "+1S", "123456789S", "1.5S", "1 S"] {
            assert_eq!(stamped(bad), None, "{bad}");
        }
        assert_eq!(stamp(Request::new(())).extensions().get::<Deadline>(), None);
    }
}
