//! Throttles of replication as they are set and recorded: a rate, the replicas that it holds back, a time to live.
//!
//! What holds: a rate always had a unit, and is not so low that a missing prefix is the likelier explanation (8 B/s for
//! 8 MB/s); a list of replicas is bounded, so that a node's record stays small. Deliberately absent: how a rate is kept
//! (`protocol::quota`), and who is held back by it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{PartitionIndex, TopicName, units};

/// Bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ByteRate(u64);

impl ByteRate {
    /// The lowest rate that is taken: below it a replica would not move in a person's time.
    pub const LOWEST: Self = Self(1_000);
    /// The highest rate that is taken.
    pub const HIGHEST: Self = Self(1_000_000_000_000);

    /// Bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// How many bytes it lets through in `span`, rounded down.
    #[must_use]
    pub fn bytes_in(self, span: Duration) -> u64 {
        let bytes = u128::from(self.0).saturating_mul(span.as_nanos()) / NANOS_PER_SECOND;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// How long it takes to let `bytes` through, rounded up.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes).saturating_mul(NANOS_PER_SECOND).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

impl TryFrom<u64> for ByteRate {
    type Error = String;

    fn try_from(bytes_per_second: u64) -> Result<Self, Self::Error> {
        let rate = Self(bytes_per_second);
        if (Self::LOWEST..=Self::HIGHEST).contains(&rate) {
            return Ok(rate);
        }
        Err(format!(
            "{bytes_per_second} bytes a second: {} to {} is allowed, for example 8MB/s",
            Self::LOWEST,
            Self::HIGHEST
        ))
    }
}

impl From<ByteRate> for u64 {
    fn from(rate: ByteRate) -> Self {
        rate.0
    }
}

impl FromStr for ByteRate {
    type Err = String;

    /// Reads `8MB/s`, `512 KiB/s`. The unit is needed: a bare number leaves open what it counts.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let start: String = text.chars().take(64).collect();
        let per_second = text.trim().strip_suffix("/s").map(str::trim_end);
        let size = per_second.filter(|size| size.ends_with('B')).ok_or_else(|| {
            format!(
                "'{start}' is not a rate: a whole number with a unit per second is needed, for example 8MB/s"
            )
        })?;
        Self::try_from(units::parse_bytes(size)?).map_err(|problem| format!("'{start}' is {problem}"))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 6] = [
            ("GB", 1_000_000_000),
            ("GiB", 1 << 30),
            ("MB", 1_000_000),
            ("MiB", 1 << 20),
            ("kB", 1_000),
            ("KiB", 1 << 10),
        ];
        let exact = UNITS.iter().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        let (unit, bytes) = exact.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}/s", self.0 / bytes)
    }
}

impl fmt::Debug for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which side of replication a throttle holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThrottleSide {
    /// What a node sends to followers that are catching up.
    Leader,
    /// What a node fetches while it is catching up.
    Follower,
}

impl ThrottleSide {
    /// Each of them.
    pub const BOTH: [Self; 2] = [Self::Leader, Self::Follower];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
        }
    }
}

impl fmt::Display for ThrottleSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The replicas on a node that a throttle counts: all, or those of a list of topics and partitions. As text
/// `*`, or `TOPIC` and `TOPIC:PARTITION` separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub enum ThrottledReplicas {
    /// Every replica on the node.
    #[default]
    All,
    /// Those of these topics; without a partition, all of the topic. Not empty.
    Listed(BTreeMap<TopicName, BTreeSet<PartitionIndex>>),
}

impl ThrottledReplicas {
    /// The most entries of a list.
    pub const ENTRIES_MAX: usize = 1_000;

    /// Whether a partition's replica is one of them.
    #[must_use]
    pub fn contains(&self, topic: &TopicName, partition: PartitionIndex) -> bool {
        match self {
            Self::All => true,
            Self::Listed(topics) => topics
                .get(topic)
                .is_some_and(|partitions| partitions.is_empty() || partitions.contains(&partition)),
        }
    }

    /// Reads the entries of a list; none at all, or `*`, is all.
    ///
    /// # Errors
    /// The entry that is not valid; too many.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut topics: BTreeMap<TopicName, Option<BTreeSet<PartitionIndex>>> = BTreeMap::new();
        let mut all = false;
        for (index, entry) in entries.into_iter().map(str::trim).enumerate() {
            if index >= Self::ENTRIES_MAX {
                return Err(format!("more than {} throttled replicas are listed", Self::ENTRIES_MAX));
            }
            if entry == "*" {
                all = true;
                continue;
            }
            let (topic, partition) = read_entry(entry)?;
            let listed = topics.entry(topic).or_insert_with(|| Some(BTreeSet::new()));
            match (partition, listed.as_mut()) {
                (Some(partition), Some(partitions)) => drop(partitions.insert(partition)),
                // The whole topic, whatever else is said of it.
                (None, _) => *listed = None,
                (Some(_), None) => {}
            }
        }
        if all && !topics.is_empty() {
            return Err("'*' means all replicas, so nothing else can be listed beside it".to_owned());
        }
        if topics.is_empty() {
            return Ok(Self::All);
        }
        let whole_or_some = |(topic, partitions): (_, Option<_>)| (topic, partitions.unwrap_or_default());
        Ok(Self::Listed(topics.into_iter().map(whole_or_some).collect()))
    }

    /// The entries as [`Self::from_entries`] reads them.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        let Self::Listed(topics) = self else { return vec!["*".to_owned()] };
        let of_topic = |(topic, partitions): (&TopicName, &BTreeSet<PartitionIndex>)| -> Vec<String> {
            if partitions.is_empty() {
                return vec![topic.to_string()];
            }
            partitions.iter().map(|partition| format!("{topic}:{partition}")).collect()
        };
        topics.iter().flat_map(of_topic).collect()
    }
}

fn read_entry(entry: &str) -> Result<(TopicName, Option<PartitionIndex>), String> {
    let (topic, partition) = match entry.split_once(':') {
        Some((topic, partition)) => (topic, Some(partition)),
        None => (entry, None),
    };
    let topic = topic
        .parse()
        .map_err(|e| format!("throttled replicas: {e}; *, TOPIC and TOPIC:PARTITION are allowed"))?;
    let partition = partition.map(|text| {
        let index = text.parse().ok().and_then(PartitionIndex::new);
        index.ok_or_else(|| {
            let start: String = text.chars().take(64).collect();
            format!(
                "throttled replicas: '{start}' is not a partition; *, TOPIC and TOPIC:PARTITION are allowed"
            )
        })
    });
    Ok((topic, partition.transpose()?))
}

impl FromStr for ThrottledReplicas {
    type Err = String;

    /// As [`Self::from_entries`], but nothing at all is a mistake: text that a person left empty hardly means all.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut entries = text.split(',').filter(|entry| !entry.trim().is_empty()).peekable();
        if entries.peek().is_none() {
            return Err("no throttled replicas are named; * for all, TOPIC and TOPIC:PARTITION are allowed, for example \
                        orders,payments:3"
                .to_owned());
        }
        Self::from_entries(entries)
    }
}

impl fmt::Display for ThrottledReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.entries().join(","))
    }
}

impl TryFrom<Vec<String>> for ThrottledReplicas {
    type Error = String;

    fn try_from(entries: Vec<String>) -> Result<Self, Self::Error> {
        Self::from_entries(entries.iter().map(String::as_str))
    }
}

impl From<ThrottledReplicas> for Vec<String> {
    fn from(replicas: ThrottledReplicas) -> Self {
        replicas.entries()
    }
}

/// A throttle of one side of a node, as it was set at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    /// Drawn when it was set: whoever removes it at the end of its life removes this one, and no later one.
    pub id: u64,
    /// How much goes through.
    pub rate: ByteRate,
    /// What counts.
    #[serde(default)]
    pub replicas: ThrottledReplicas,
    /// How long it lives, in milliseconds from when an observer first saw it, on that observer's own clock; absent = until
    /// it is cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// The throttles of a node that were set at run time; each stands above the node's own setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeThrottles {
    /// Of what it sends to followers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Throttle>,
    /// Of what it fetches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follower: Option<Throttle>,
}

impl NodeThrottles {
    /// None.
    pub const NONE: Self = Self { leader: None, follower: None };

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.leader.is_none() && self.follower.is_none()
    }

    /// The one of this side.
    #[must_use]
    pub const fn of(&self, side: ThrottleSide) -> Option<&Throttle> {
        match side {
            ThrottleSide::Leader => self.leader.as_ref(),
            ThrottleSide::Follower => self.follower.as_ref(),
        }
    }

    /// The place of this side, to set or to clear it.
    pub const fn of_mut(&mut self, side: ThrottleSide) -> &mut Option<Throttle> {
        match side {
            ThrottleSide::Leader => &mut self.leader,
            ThrottleSide::Follower => &mut self.follower,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Result<u64, String> {
        text.parse::<ByteRate>().map(ByteRate::bytes_per_second)
    }

    fn contains(replicas: &ThrottledReplicas, topic: &str, partition: i32) -> bool {
        replicas.contains(&topic.parse().unwrap(), PartitionIndex::new(partition).unwrap())
    }

    #[test]
    fn a_rate_is_a_number_with_a_unit_per_second() {
        assert_eq!(rate("8MB/s"), Ok(8_000_000));
        assert_eq!(rate(" 512 KiB/s "), Ok(512 << 10));
        assert_eq!(rate("100000B/s"), Ok(100_000));
        for text in ["8MB/s", "1GiB/s", "100001B/s", "1kB/s", "1000GB/s", "3KiB/s"] {
            assert_eq!(text.parse::<ByteRate>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bare_number_and_a_rate_that_lacks_its_prefix_are_refused_with_what_is_meant() {
        for bare in ["8", "8000000", "8MB", "8/s", "8 m/s", "", "MB/s", "8mb/s"] {
            let problem = rate(bare).unwrap_err();
            assert!(problem.contains("8MB/s") || problem.contains("MiB"), "{bare}: {problem}");
        }
        let problem = rate("8 B/s").unwrap_err();
        assert!(problem.contains("8 bytes a second") && problem.contains("8MB/s"), "{problem}");
        assert!(rate("2TB/s").is_err() && rate("0MB/s").is_err());
    }

    #[test]
    fn bytes_and_times_of_a_rate_belong_together() {
        let rate: ByteRate = "1MB/s".parse().unwrap();
        assert_eq!(rate.bytes_in(Duration::from_millis(1_500)), 1_500_000);
        assert_eq!(rate.time_for(3_000_000), Duration::from_secs(3));
        assert_eq!(rate.time_for(1), Duration::from_micros(1), "rounded up");
        assert_eq!(ByteRate::HIGHEST.bytes_in(Duration::MAX), u64::MAX, "saturates");
    }

    #[test]
    fn a_list_holds_whole_topics_and_single_partitions() {
        let some: ThrottledReplicas = "orders, payments:3,payments:1".parse().unwrap();
        assert!(contains(&some, "orders", 7) && contains(&some, "payments", 3));
        assert!(!contains(&some, "payments", 2) && !contains(&some, "other", 0));
        assert_eq!(some.to_string(), "orders,payments:1,payments:3");
        let whole: ThrottledReplicas = "a:1,a".parse().unwrap();
        assert!(contains(&whole, "a", 9), "the whole topic is the wider entry");
    }

    #[test]
    fn a_star_means_all_and_so_does_a_message_without_a_list() {
        for all in ["*".parse(), ThrottledReplicas::from_entries([])] {
            assert!(contains(&all.unwrap(), "any", 5));
        }
        for empty in ["", " ", ",", " , "] {
            let problem = empty.parse::<ThrottledReplicas>().unwrap_err();
            assert!(problem.contains('*') && problem.contains("TOPIC:PARTITION"), "{empty:?}: {problem}");
        }
        for bad in ["*,orders", "a:x", "a:-1", "a b", ":1"] {
            assert!(bad.parse::<ThrottledReplicas>().is_err(), "{bad}");
        }
        let many = vec!["a"; ThrottledReplicas::ENTRIES_MAX + 1].join(",");
        assert!(many.parse::<ThrottledReplicas>().unwrap_err().contains("1000"));
    }

    #[test]
    fn a_throttle_survives_its_record_and_a_record_without_one_has_none() {
        let throttle = Throttle {
            id: u64::MAX,
            rate: "8MB/s".parse().unwrap(),
            replicas: "a,b:2".parse().unwrap(),
            ttl_ms: Some(60_000),
        };
        let node = NodeThrottles { leader: Some(throttle), follower: None };
        let text = serde_json::to_string(&node).unwrap();
        assert_eq!(serde_json::from_str::<NodeThrottles>(&text).unwrap(), node);
        assert_eq!(serde_json::from_str::<NodeThrottles>("{}").unwrap(), NodeThrottles::NONE);
        let too_low = text.replace("8000000", "8");
        assert!(serde_json::from_str::<NodeThrottles>(&too_low).is_err(), "a record is checked as well");
    }
}
