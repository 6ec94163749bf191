//! Single fields, and the error that names the one that is not valid.

use highwater_protocol::fetch::TopicRef;
use highwater_types::{Incarnation, LeaderEpoch, NodeId, Offset, PartitionIndex};

use crate::text::clip;

/// Longest path of a field in a [`DecodeError`], in bytes.
const PATH_LIMIT: usize = 256;
/// Longest text about a field in a [`DecodeError`], in bytes.
const PROBLEM_LIMIT: usize = 1024;

/// A message that does not decode: which field, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct DecodeError {
    path: String,
    problem: String,
    unsupported: bool,
}

impl DecodeError {
    /// The field at `path` is not valid; `problem` says what is allowed. Both are bounded.
    #[must_use]
    pub fn invalid(path: impl AsRef<str>, problem: impl AsRef<str>) -> Self {
        Self {
            path: clip(path.as_ref(), PATH_LIMIT),
            problem: clip(problem.as_ref(), PROBLEM_LIMIT),
            unsupported: false,
        }
    }

    /// The field at `path` asks for something that is not offered.
    #[must_use]
    pub fn unsupported(path: impl AsRef<str>, problem: impl AsRef<str>) -> Self {
        Self { unsupported: true, ..Self::invalid(path, problem) }
    }

    /// The same error, seen from the message whose field `list` has the failing one as its element `index`.
    #[must_use]
    pub fn within(self, list: &str, index: usize) -> Self {
        let path = clip(&format!("{list}[{index}].{}", self.path), PATH_LIMIT);
        Self { path, ..self }
    }

    /// The field, as a path from the request: `partitions[3].fetch_offset`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong with it.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// Whether the field is valid and what it asks for is not offered.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        self.unsupported
    }
}

pub(crate) type Decoded<T> = Result<T, DecodeError>;

/// Reads how a message names a topic: fields `topic` and `topic_id`.
///
/// # Errors
/// Neither is given, or one is not valid.
pub fn decode_topic_ref(topic: &str, topic_id: &str) -> Decoded<TopicRef> {
    let name = || topic.parse().map_err(|e| DecodeError::invalid("topic", format!("{e}")));
    let id = || topic_id.parse().map_err(|e: String| DecodeError::invalid("topic_id", e));
    match (topic.is_empty(), topic_id.is_empty()) {
        (true, true) => Err(DecodeError::invalid("topic", "a topic name or a topic_id is needed")),
        (false, true) => Ok(TopicRef::Name(name()?)),
        (true, false) => Ok(TopicRef::Id(id()?)),
        (false, false) => Ok(TopicRef::Both { name: name()?, id: id()? }),
    }
}

/// How a topic is named on the wire: `(topic, topic_id)`.
#[must_use]
pub fn encode_topic_ref(topic: &TopicRef) -> (String, String) {
    (
        topic.name().map(ToString::to_string).unwrap_or_default(),
        topic.id().map(|id| id.to_string()).unwrap_or_default(),
    )
}

/// Reads field `partition`.
///
/// # Errors
/// It is missing or negative.
pub fn decode_partition_index(partition: Option<i32>) -> Decoded<PartitionIndex> {
    let raw = required("partition", partition)?;
    PartitionIndex::new(raw).ok_or_else(|| negative("partition", raw))
}

pub(crate) fn required<T>(path: &str, value: Option<T>) -> Decoded<T> {
    value.ok_or_else(|| DecodeError::invalid(path, "is missing"))
}

pub(crate) fn offset(path: &str, value: Option<i64>) -> Decoded<Offset> {
    required(path, optional_offset(path, value)?)
}

pub(crate) fn optional_offset(path: &str, value: Option<i64>) -> Decoded<Option<Offset>> {
    value.map(|raw| Offset::new(raw).ok_or_else(|| negative(path, raw))).transpose()
}

pub(crate) fn optional_epoch(path: &str, value: Option<i32>) -> Decoded<Option<LeaderEpoch>> {
    value.map(|raw| LeaderEpoch::new(raw).ok_or_else(|| negative(path, raw))).transpose()
}

pub(crate) fn epoch(path: &str, value: Option<i32>) -> Decoded<LeaderEpoch> {
    required(path, optional_epoch(path, value)?)
}

pub(crate) fn optional_node(path: &str, value: Option<i32>) -> Decoded<Option<NodeId>> {
    value.map(|raw| NodeId::new(raw).ok_or_else(|| negative(path, raw))).transpose()
}

pub(crate) fn node(path: &str, value: Option<i32>) -> Decoded<NodeId> {
    required(path, optional_node(path, value)?)
}

pub(crate) fn optional_incarnation(path: &str, value: Option<&str>) -> Decoded<Option<Incarnation>> {
    value.map(|text| parse(path, text)).transpose()
}

/// Reads text by its `FromStr`.
pub(crate) fn parse<T>(path: &str, text: &str) -> Decoded<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| DecodeError::invalid(path, e.to_string()))
}

/// Reads an enum's number; an unknown one is named with what is allowed.
pub(crate) fn enumeration<T: TryFrom<i32>>(path: &str, raw: i32, allowed: &str) -> Decoded<T> {
    T::try_from(raw).map_err(|_| DecodeError::invalid(path, format!("{raw} is unknown; allowed: {allowed}")))
}

fn negative(path: &str, raw: impl std::fmt::Display) -> DecodeError {
    DecodeError::invalid(path, format!("{raw} is negative; leave the field out where there is none"))
}
