//! Topic names: Kafka's rule, which also makes them safe as directory names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::PartitionIndex;

/// The longest topic name, in bytes: what leaves room for `-2147483647` in a 255-byte file name, by Kafka's count.
const LONGEST: usize = 249;

/// A topic's name: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Arc<str>);

/// Why a text is not a topic name. Its message quotes at most 64 characters of the text, so that it can travel in a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic name '{start}'{more} is not valid: 1 to 249 letters, digits, '.', '_' and '-' are allowed, and not '.' or '..'"
)]
pub struct InvalidTopicName {
    start: String,
    more: String,
}

impl TopicName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=LONGEST).contains(&text.len()) && text != "." && text != ".." && text.bytes().all(legal) {
            return Ok(Self(text.into()));
        }
        let start: String = text.chars().take(64).flat_map(char::escape_default).collect();
        let count = text.chars().count();
        let more = if count > 64 { format!(" ({count} characters)") } else { String::new() };
        Err(InvalidTopicName { start, more })
    }
}

impl TryFrom<String> for TopicName {
    type Error = InvalidTopicName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A partition by its topic's name: how people and directories name it (`orders-0`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: TopicName,
    /// The partition within it.
    pub partition: PartitionIndex,
}

impl TopicPartition {
    /// Names a partition.
    #[must_use]
    pub const fn new(topic: TopicName, partition: PartitionIndex) -> Self {
        Self { topic, partition }
    }

    /// The name of the partition's directory.
    #[must_use]
    pub fn directory_name(&self) -> String {
        self.to_string()
    }

    /// Reads a directory's name; `None` when it is not `TOPIC-NUMBER` in the form that [`Self::directory_name`] writes.
    #[must_use]
    pub fn from_directory_name(name: &str) -> Option<Self> {
        let (topic, number) = name.rsplit_once('-')?;
        let partition = PartitionIndex::new(number.parse().ok()?)?;
        let parsed = Self { topic: topic.parse().ok()?, partition };
        (parsed.directory_name() == name).then_some(parsed)
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_data_directory_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0", "ä", "../x", &"x".repeat(250)] {
            assert!(bad.parse::<TopicName>().is_err(), "{bad}");
        }
        for good in ["a", "...", "a.b_c-1", &"x".repeat(249)] {
            assert!(good.parse::<TopicName>().is_ok(), "{good}");
        }
    }

    #[test]
    fn the_message_about_a_huge_name_is_short() {
        let message = "\u{1F600}".repeat(100_000).parse::<TopicName>().unwrap_err().to_string();
        assert!(message.len() < 1_000 && message.contains("100000 characters") && message.is_ascii());
    }

    #[test]
    fn a_directory_name_is_read_only_in_the_form_that_is_written() {
        let parsed = TopicPartition::from_directory_name("a-b-12").unwrap();
        assert_eq!((parsed.topic.as_str(), parsed.partition.get()), ("a-b", 12));
        for foreign in ["lost+found", "a-01", "a", "-1", "a-99999999999"] {
            assert_eq!(TopicPartition::from_directory_name(foreign), None, "{foreign}");
        }
    }
}
