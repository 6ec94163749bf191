//! Numbers as people read them: sizes, rates, times, counts.

use std::time::Duration;

pub(crate) use highwater_types::units::{count, counted};

/// A size in decimal units, as disks and networks are measured: `0 B`, `1.5 kB`, `123.4 MB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut amount, mut unit) = (as_float(bytes) / 1000.0, "kB");
    for larger in UNITS.into_iter().skip(1) {
        // Not at 1000: 999,999 bytes would be shown as 1000.0 kB.
        if amount < 999.95 {
            break;
        }
        (amount, unit) = (amount / 1000.0, larger);
    }
    format!("{amount:.1} {unit}")
}

/// `38.2 MB/s`; nothing takes no time, so the rate of less than a millisecond is that of one.
pub(crate) fn rate(bytes: u64, took: Duration) -> String {
    format!("{}/s", size(per_second(bytes, took)))
}

/// So many per second.
pub(crate) fn per_second(number: u64, took: Duration) -> u64 {
    let millis = took.as_millis().max(1);
    u64::try_from(u128::from(number) * 1000 / millis).unwrap_or(u64::MAX)
}

/// A time in the unit that suits it: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`, `5 h 10 min`, `7 d 3 h`.
pub(crate) fn time(span: Duration) -> String {
    if span < Duration::from_millis(1) {
        format!("{} µs", span.as_micros())
    } else if span < Duration::from_secs(1) {
        format!("{:.1} ms", span.as_secs_f64() * 1000.0)
    } else if span < Duration::from_secs(120) {
        format!("{:.2} s", span.as_secs_f64())
    } else {
        let parts = |large: (u64, &str), small: (u64, &str)| {
            let (whole, rest) = (span.as_secs() / large.0, span.as_secs() % large.0);
            format!("{whole} {} {} {}", large.1, rest / small.0, small.1)
        };
        match span.as_secs() {
            ..7_200 => parts((60, "min"), (1, "s")),
            7_200..172_800 => parts((3_600, "h"), (60, "min")),
            172_800.. => parts((86_400, "d"), (3_600, "h")),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
const fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_suits_them() {
        let shown: Vec<_> =
            [0, 999, 1000, 1_234_000, 999_999, 5_000_000_000, u64::MAX].into_iter().map(size).collect();
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "1.2 MB", "1.0 MB", "5.0 GB", "18446744.1 TB"]);
    }

    #[test]
    fn rates_and_times_of_extremes_are_finite() {
        assert_eq!(rate(5_000_000, Duration::from_secs(2)), "2.5 MB/s");
        assert_eq!(rate(1000, Duration::ZERO), "1.0 MB/s");
        let long = [7_199, 7_200, 172_799, 172_800, 86_400 * 9 + 7_300].map(Duration::from_secs);
        let shown: Vec<_> = long.into_iter().map(time).collect();
        assert_eq!(shown, ["119 min 59 s", "2 h 0 min", "47 h 59 min", "2 d 0 h", "9 d 2 h"]);
        let spans = [0, 850, 12_300, 4_560_000, 200_000_000].map(Duration::from_micros);
        let shown: Vec<_> = spans.into_iter().map(time).collect();
        assert_eq!(shown, ["0 µs", "850 µs", "12.3 ms", "4.56 s", "3 min 20 s"]);
    }
}
