//! The two sparse indexes of a segment, in Kafka's format. An index is a hint: whoever uses one checks the log.

mod offset_index;
mod segment_indexes;
mod time_index;

pub(crate) use offset_index::{OFFSET_ENTRY_BYTES, OffsetEntry, OffsetIndex};
pub(crate) use segment_indexes::{IndexedBatch, SegmentIndexes};
pub(crate) use time_index::{TIME_ENTRY_BYTES, TimeEntry, TimeIndex};
