//! What the log needs to know of a topic's properties. May change while the log is open, apart from the durability.

use highwater_types::{Durability, TopicProperties};

/// The settings of one partition's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// When a record counts as acknowledged; fixed for the life of the partition.
    pub durability: Durability,
    /// A segment is closed before a batch would make it larger than this. In bytes.
    pub segment_bytes: u32,
    /// A segment is closed when its first batch was appended longer ago than this. In milliseconds; `None` = never.
    pub segment_ms: Option<u64>,
    /// Room of one index file; a segment is closed when it is used up. In bytes.
    pub segment_index_bytes: u32,
    /// Log bytes between two index entries. In bytes.
    pub index_interval_bytes: u32,
    /// Closed segments whose newest record is older are removed. In milliseconds; `None` = never.
    pub retention_ms: Option<u64>,
    /// The oldest closed segments are removed while what is left is at least this large. In bytes; `None` = never.
    pub retention_bytes: Option<u64>,
}

impl From<&TopicProperties> for LogConfig {
    fn from(properties: &TopicProperties) -> Self {
        Self {
            durability: properties.durability,
            segment_bytes: properties.segment_bytes,
            segment_ms: properties.segment_ms,
            segment_index_bytes: properties.segment_index_bytes,
            index_interval_bytes: properties.index_interval_bytes,
            retention_ms: properties.retention_ms,
            retention_bytes: properties.retention_bytes,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self::from(&TopicProperties::default())
    }
}
