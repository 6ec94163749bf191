//! Sizes and times with units, and numbers of things. MB is 10⁶ bytes, MiB is 2²⁰ bytes; a number alone is bytes, or milliseconds.

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
    let number = parse(text, SIZES, 1).ok_or_else(|| {
        format!("'{}' is not a size: a whole number of bytes, or one with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", clip(text))
    })?;
    number.ok_or_else(|| format!("'{}' is too large: less than 2^64 bytes is allowed", clip(text)))
}

/// Reads a time: `500` (milliseconds), `500ms`, `2 s`, `5min`, `7d`.
///
/// # Errors
/// A message that names the text and what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let number = parse(text, TIMES, 1_000_000).ok_or_else(|| {
        format!(
            "'{}' is not a time: a whole number of milliseconds, or one with us, ms, s, min, h or d",
            clip(text)
        )
    })?;
    number
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("'{}' is too long: at most 584 years are allowed", clip(text)))
}

/// `12,345,678`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 record`, `2,000 records`, `2 batches`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", count(number))
}

/// The number times its unit: nothing where that is none, and nothing inside where it is too large.
fn parse(text: &str, units: &[(&str, u64)], plain: u64) -> Option<Option<u64>> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let unit = unit.trim_start();
    let factor = if unit.is_empty() { plain } else { units.iter().find(|(name, _)| *name == unit)?.1 };
    if number.is_empty() {
        return None;
    }
    // Digits only, so what cannot be read is too large.
    Some(number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)))
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands_and_one_thing_is_singular() {
        let shown: Vec<_> = [0, 12, 999, 1000, 1_234_567].into_iter().map(count).collect();
        assert_eq!(shown, ["0", "12", "999", "1,000", "1,234,567"]);
        let shown: Vec<_> = [0, 1, 2000].into_iter().map(|number| counted(number, "record")).collect();
        assert_eq!(shown, ["0 records", "1 record", "2,000 records"]);
        assert_eq!(
            (counted(1, "batch"), counted(2, "batch")),
            ("1 batch".to_owned(), "2 batches".to_owned())
        );
    }

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
        for bad in ["", "MB", "10 MB/x", "-1", "1.5MB", "10mb"] {
            assert!(parse_bytes(bad).unwrap_err().contains("MiB"), "{bad}");
        }
        assert!(parse_duration("10 parsecs").unwrap_err().contains("ms"));
    }

    #[test]
    fn what_is_too_large_is_not_taken_for_a_bad_unit() {
        for large in ["18446744073709551615GB", "99999999999999999999"] {
            assert!(parse_bytes(large).unwrap_err().contains("too large"), "{large}");
            assert!(parse_duration(&large.replace("GB", "d")).unwrap_err().contains("too long"), "{large}");
        }
    }
}
