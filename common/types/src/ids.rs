//! Identifiers: node, cluster, topic, partition, incarnation.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A node: one data directory with one leader-svc, one follower-agent, or both. Not negative. A follower's replica id is
/// its node's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(i32);

impl NodeId {
    /// Takes a raw id; `None` when it is negative.
    #[must_use]
    pub const fn new(raw: i32) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl FromStr for NodeId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse()
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| format!("node id '{text}': a number from 0 to {} is allowed", i32::MAX))
    }
}

/// A topic's identity: a re-created topic of the same name has another one. Shown as a UUID; Kafka's files keep it as 22
/// characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(Uuid);

impl TopicId {
    /// Takes an id; `None` for the nil UUID, which stands for "none".
    #[must_use]
    pub fn new(uuid: Uuid) -> Option<Self> {
        if uuid.is_nil() { None } else { Some(Self(uuid)) }
    }

    /// A fresh random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as a UUID.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }

    /// The form that Kafka writes into `partition.metadata`: 22 characters of URL-safe base64 without padding.
    #[must_use]
    pub fn to_kafka_text(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.as_bytes())
    }

    /// Reads the form that Kafka writes; `None` when it is not one, or is the nil id.
    #[must_use]
    pub fn from_kafka_text(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Self::new(Uuid::from_slice(&bytes).ok()?)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for TopicId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = Uuid::try_parse(text).map_err(|e| format!("topic id '{text}' is not a UUID: {e}"))?;
        Self::new(uuid).ok_or_else(|| "the nil UUID is not a topic id".to_owned())
    }
}

/// The number of a partition within its topic; not negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionIndex(i32);

impl PartitionIndex {
    /// Takes a raw index; `None` when it is negative.
    #[must_use]
    pub const fn new(raw: i32) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl fmt::Display for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A partition by its topic's identity: the key of every map of partitions, so that a re-created topic is another key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicIdPartition {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition within it.
    pub partition: PartitionIndex,
}

impl TopicIdPartition {
    /// Names a partition.
    #[must_use]
    pub const fn new(topic_id: TopicId, partition: PartitionIndex) -> Self {
        Self { topic_id, partition }
    }
}

impl fmt::Display for TopicIdPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic_id, self.partition)
    }
}

impl fmt::Debug for TopicIdPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic_id, self.partition)
    }
}

/// A replica's random id on one disk (design.md 6.3): renewed whenever acknowledged bytes may be gone, so that a replica
/// that lost something cannot pass for the one that acknowledged it. Shown as 16 hexadecimal digits; never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    /// Takes a raw id; `None` for 0, which stands for "none".
    #[must_use]
    pub const fn new(raw: u64) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{:x}", self.0)
    }
}

impl FromStr for Incarnation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16)
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| format!("incarnation '{text}' is not a hexadecimal number above 0"))
    }
}

impl Serialize for Incarnation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A cluster's identity: 22 characters of URL-safe base64, as Kafka prints it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(String);

impl ClusterId {
    /// A fresh random id.
    #[must_use]
    pub fn random() -> Self {
        Self(TopicId::random().to_kafka_text())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ok = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            let start: String = text.chars().take(64).collect();
            Err(format!("cluster id '{start}': 1 to 64 letters, digits, '-' and '_' are allowed"))
        }
    }
}

impl TryFrom<String> for ClusterId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafka_text_of_a_topic_id_round_trips() {
        let id: TopicId = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap();
        assert_eq!(id.to_kafka_text().len(), 22);
        assert_eq!(TopicId::from_kafka_text(&id.to_kafka_text()), Some(id));
        assert_eq!(TopicId::from_kafka_text("AAAAAAAAAAAAAAAAAAAAAA"), None, "the nil id stands for none");
        assert_eq!(TopicId::from_kafka_text("short"), None);
    }

    #[test]
    fn an_incarnation_is_shown_as_hexadecimal_and_read_back() {
        let one = Incarnation::new(0xfeed).unwrap();
        assert_eq!(one.to_string(), "000000000000feed");
        assert_eq!("000000000000feed".parse::<Incarnation>(), Ok(one));
        assert!("0".parse::<Incarnation>().is_err());
        assert_eq!(serde_json::to_string(&one).unwrap(), "\"000000000000feed\"");
    }

    #[test]
    fn a_cluster_id_refuses_what_cannot_stand_in_a_properties_file() {
        assert!("".parse::<ClusterId>().is_err());
        assert!("a=b".parse::<ClusterId>().is_err());
        assert_eq!(ClusterId::random().as_str().len(), 22);
    }
}
