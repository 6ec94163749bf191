//! Topic properties: Kafka's names where Kafka has them, parsed with units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units;

/// When a record counts as acknowledged by a replica (design.md 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Once it was flushed to the disk: survives a power loss of the whole cluster.
    #[default]
    Fsync,
    /// Once it is in the operating system's page cache, as Kafka does by default: survives the death of a process.
    PageCache,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fsync => "fsync",
            Self::PageCache => "page-cache",
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fsync" => Ok(Self::Fsync),
            "page-cache" => Ok(Self::PageCache),
            _ => Err("fsync, page-cache".to_owned()),
        }
    }
}

/// A topic's properties. A duration or size of `None` means "without limit".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct TopicProperties {
    /// `durability`: fixed at creation or adoption.
    pub durability: Durability,
    /// `min.insync.replicas`: `acks=all` is refused below it, and the high watermark stands still (S58, S61).
    pub min_insync_replicas: u32,
    /// `unclean.leader.election.enable`: whether a replica that may lack acknowledged records leads when no member of the
    /// in-sync set is left (design.md 6.13).
    pub unclean_leader_election: bool,
    /// `segment.bytes`: a segment is closed before it would grow beyond it. In bytes.
    pub segment_bytes: u32,
    /// `segment.ms`: a segment is closed when its first record is older. In milliseconds.
    pub segment_ms: Option<u64>,
    /// `segment.index.bytes`: room of one index file; a segment is closed when it is used up. In bytes.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`: log bytes between two index entries. In bytes.
    pub index_interval_bytes: u32,
    /// `retention.ms`: closed segments whose newest record is older are removed. In milliseconds.
    pub retention_ms: Option<u64>,
    /// `retention.bytes`: the oldest closed segments are removed while the rest is at least this large. In bytes.
    pub retention_bytes: Option<u64>,
    /// `max.message.bytes`: the largest batch that Produce takes. In bytes.
    pub max_message_bytes: u32,
}

impl Default for TopicProperties {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            min_insync_replicas: 1,
            unclean_leader_election: false,
            segment_bytes: 1 << 30,
            segment_ms: Some(7 * 24 * 3_600_000),
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_ms: Some(7 * 24 * 3_600_000),
            retention_bytes: None,
            max_message_bytes: 1_048_588,
        }
    }
}

impl TopicProperties {
    /// Every property's name, with what it allows.
    pub const KEYS: &'static [(&'static str, &'static str)] = &[
        ("durability", "fsync, page-cache"),
        ("min.insync.replicas", "a whole number from 1"),
        ("unclean.leader.election.enable", "true, false"),
        ("segment.bytes", "a size from 1024 bytes to 2147483647 bytes, for example 1GiB"),
        ("segment.ms", "a time, for example 7d, or -1 for no limit"),
        ("segment.index.bytes", "a size from 24 bytes to 2147483647 bytes"),
        ("index.interval.bytes", "a size up to 2147483647 bytes"),
        ("retention.ms", "a time, for example 7d, or -1 for no limit"),
        ("retention.bytes", "a size, or -1 for no limit"),
        ("max.message.bytes", "a size from 61 bytes to 1073741824 bytes"),
    ];

    /// Sets one property from text.
    ///
    /// # Errors
    /// A message that names the key, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let Some((_, allowed)) = Self::KEYS.iter().find(|(name, _)| *name == key) else {
            let names: Vec<_> = Self::KEYS.iter().map(|(name, _)| *name).collect();
            return Err(format!("unknown topic property '{}': known are {}", clip(key), names.join(", ")));
        };
        let size = |min: u32, max: u32| {
            units::parse_bytes(value)
                .ok()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| (min..=max).contains(n))
        };
        const I32_MAX: u32 = i32::MAX.unsigned_abs();
        let done = match key {
            "durability" => value.parse().ok().map(|v| self.durability = v),
            "min.insync.replicas" => {
                value.parse().ok().filter(|n| *n >= 1).map(|n| self.min_insync_replicas = n)
            }
            "unclean.leader.election.enable" => value.parse().ok().map(|v| self.unclean_leader_election = v),
            "segment.bytes" => size(1024, I32_MAX).map(|n| self.segment_bytes = n),
            "segment.ms" => limit(value, millis).map(|v| self.segment_ms = v),
            "segment.index.bytes" => size(24, I32_MAX).map(|n| self.segment_index_bytes = n),
            "index.interval.bytes" => size(0, I32_MAX).map(|n| self.index_interval_bytes = n),
            "retention.ms" => limit(value, millis).map(|v| self.retention_ms = v),
            "retention.bytes" => {
                limit(value, |t| units::parse_bytes(t).ok()).map(|v| self.retention_bytes = v)
            }
            "max.message.bytes" => size(61, 1 << 30).map(|n| self.max_message_bytes = n),
            _ => None,
        };
        done.ok_or_else(|| {
            format!("topic property {key}: '{}' is not valid; allowed: {allowed}", clip(value))
        })
    }

    /// Every property as text, in the order of [`Self::KEYS`].
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let limit = |v: Option<u64>| v.map_or_else(|| "-1".to_owned(), |n| n.to_string());
        vec![
            ("durability", self.durability.to_string()),
            ("min.insync.replicas", self.min_insync_replicas.to_string()),
            ("unclean.leader.election.enable", self.unclean_leader_election.to_string()),
            ("segment.bytes", self.segment_bytes.to_string()),
            ("segment.ms", limit(self.segment_ms)),
            ("segment.index.bytes", self.segment_index_bytes.to_string()),
            ("index.interval.bytes", self.index_interval_bytes.to_string()),
            ("retention.ms", limit(self.retention_ms)),
            ("retention.bytes", limit(self.retention_bytes)),
            ("max.message.bytes", self.max_message_bytes.to_string()),
        ]
    }
}

fn millis(text: &str) -> Option<u64> {
    units::parse_duration(text).ok().and_then(|d: Duration| u64::try_from(d.as_millis()).ok())
}

/// Reads `-1` as "no limit", anything else by `parse`; `None` when that fails.
fn limit(text: &str, parse: impl Fn(&str) -> Option<u64>) -> Option<Option<u64>> {
    if text.trim() == "-1" { Some(None) } else { parse(text).map(Some) }
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_set_from_its_own_text() {
        let defaults = TopicProperties::default();
        for (key, value) in defaults.to_pairs() {
            let mut other = TopicProperties { retention_ms: None, ..TopicProperties::default() };
            other.set(key, &value).unwrap();
        }
        assert_eq!(defaults.to_pairs().len(), TopicProperties::KEYS.len());
    }

    #[test]
    fn a_bad_key_or_value_is_named_with_what_is_allowed() {
        let mut p = TopicProperties::default();
        assert!(p.set("segmentbytes", "1").unwrap_err().contains("known are durability"));
        let message = p.set("segment.bytes", "10 MB/x").unwrap_err();
        assert!(
            message.contains("segment.bytes") && message.contains("10 MB/x") && message.contains("allowed")
        );
        assert!(p.set("min.insync.replicas", "0").is_err());
        p.set("retention.ms", "-1").unwrap();
        assert_eq!(p.retention_ms, None);
        p.set("segment.bytes", "1MiB").unwrap();
        assert_eq!(p.segment_bytes, 1 << 20);
    }
}
