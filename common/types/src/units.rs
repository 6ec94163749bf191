//! Sizes and times with units. MB is 10⁶ bytes, MiB is 2²⁰ bytes; a number alone is bytes, or milliseconds.

use std::time::Duration;

const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// In nanoseconds.
const TIMES: &[(&str, u64)] = &[
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads a size in bytes: `1048576`, `1MiB`, `10 MB`.
///
/// # Errors
/// A message that names the text and what is allowed.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse(text, SIZES, 1).ok_or_else(|| {
        format!("'{}' is not a size: a whole number of bytes, or one with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", clip(text))
    })
}

/// Reads a time: `500` (milliseconds), `500ms`, `2 s`, `5min`, `7d`.
///
/// # Errors
/// A message that names the text and what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse(text, TIMES, 1_000_000).map(Duration::from_nanos).ok_or_else(|| {
        format!(
            "'{}' is not a time: a whole number of milliseconds, or one with us, ms, s, min, h or d",
            clip(text)
        )
    })
}

fn parse(text: &str, units: &[(&str, u64)], plain: u64) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let unit = unit.trim_start();
    let factor = if unit.is_empty() { plain } else { units.iter().find(|(name, _)| *name == unit)?.1 };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("10 MB"), Ok(10_000_000));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert_eq!(parse_bytes("17"), Ok(17));
        assert_eq!(parse_duration("500"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2 s"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn a_bad_unit_is_an_error_that_says_what_is_allowed() {
        for bad in ["", "MB", "10 MB/x", "-1", "1.5MB", "10mb", "18446744073709551615GB"] {
            assert!(parse_bytes(bad).unwrap_err().contains("MiB"), "{bad}");
        }
        assert!(parse_duration("10 parsecs").unwrap_err().contains("ms"));
    }
}
