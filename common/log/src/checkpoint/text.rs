//! Kafka's text checkpoints: a version line, a count line, one entry per line.
//!
//! Reading is tolerant: the entries before the first damage are returned, with what is wrong. The last line counts only
//! when its newline is there: `12 345` cut to `12 3` would be another, valid entry.

use std::fmt;

/// The largest text checkpoint that is read, in bytes. An entry of the node-level files has about 270 bytes at most.
pub(super) const TEXT_BYTES_MAX: u64 = 64 << 20;

const VERSION: &str = "0";

/// The entries before the first damage, and what that damage is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed<T> {
    pub(super) entries: Vec<T>,
    pub(super) damage: Option<String>,
}

/// Reads a text checkpoint; `entry` reads one line and is `None` for a line that is no entry.
pub(super) fn parse<T>(bytes: &[u8], mut entry: impl FnMut(&str) -> Option<T>) -> Parsed<T> {
    let mut entries = Vec::new();
    let damage = parse_into(bytes, |line| entry(line).map(|e| entries.push(e))).err();
    Parsed { entries, damage }
}

fn parse_into(bytes: &[u8], mut entry: impl FnMut(&str) -> Option<()>) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut lines = bytes.split_inclusive(|b| *b == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").ok_or("the last line is cut short")?;
        std::str::from_utf8(line).map(str::trim_end).map_err(|_| "a line is not text")
    });
    let version = lines.next().unwrap_or(Ok(""))?;
    if version != VERSION {
        return Err(format!("version '{}', this program reads {VERSION}", clip(version)));
    }
    let count = lines.next().ok_or("the count is missing")??;
    let count: usize = count.parse().map_err(|_| format!("'{}' is not a count", clip(count)))?;
    for number in 0..count {
        let line = lines.next().ok_or_else(|| format!("{number} entries of {count}"))??;
        entry(line).ok_or_else(|| format!("'{}' is not an entry", clip(line)))?;
    }
    lines.next().map_or(Ok(()), |_| Err(format!("more than the {count} entries that were announced")))
}

/// The bytes of a text checkpoint.
pub(super) fn format<T: fmt::Display>(entries: &[T]) -> Vec<u8> {
    let mut text = format!("{VERSION}\n{}\n", entries.len());
    for entry in entries {
        text.push_str(&entry.to_string());
        text.push('\n');
    }
    text.into_bytes()
}

/// The beginning of text that came from a file, fit for a message.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
