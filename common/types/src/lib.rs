//! The vocabulary of Highwater: identifiers, offsets, epochs, times, and the records of the coordination store.
//!
//! What holds here: a value of one of these types is valid (a [`TopicName`] can be a directory name, an [`Offset`] is
//! not negative). Positions and counts are never bare integers. Deliberately absent: any IO, clock, or wire format.

mod epoch_cache;
mod error;
mod ids;
mod name;
pub mod planted;
mod position;
mod record;
mod throttle;
mod time;
mod trace_context;
pub mod units;

pub use epoch_cache::{EpochEntry, LeaderEpochCache};
pub use error::{ErrorCode, LeaderHint, ReplicationError, Retry};
pub use ids::{ClusterId, Incarnation, NodeId, PartitionIndex, TopicId, TopicIdPartition};
pub use name::{InvalidTopicName, TopicName, TopicPartition};
pub use position::{LeaderEpoch, Offset, OffsetAndEpoch, PartitionEpoch};
pub use record::{
    AdoptedHistory, Durability, Endpoint, IsrMember, LivenessRecord, NodeRecord, PartitionRecord, Program,
    Resignation, TopicProperties, TopicRecord, UncleanElection, UncleanLoss,
};
pub use throttle::{ByteRate, NodeThrottles, Throttle, ThrottleSide, ThrottledReplicas};
pub use time::{MonotonicTime, WallTime};
pub use trace_context::{InvalidTraceparent, TraceContext};
