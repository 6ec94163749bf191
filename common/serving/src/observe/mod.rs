//! What is told of calls: their spans and metrics.
//!
//! What must hold: a call's span is made when the call is over, and only then is known whether it is worth one: an idle poll
//! has none, it is counted. A handler finds the span of its call, for what it records below it, in the request's
//! extensions ([`CallSpan`]), and adds what it knows to the response's ([`CallNotes`]). With telemetry off nothing happens.

mod calls;
mod fetches;

use std::sync::Arc;
use std::time::Duration;

use highwater_telemetry::KeyValue;
use highwater_telemetry::names::attribute;
use highwater_types::{NodeId, PartitionIndex, ThrottleSide, TopicName, TraceContext};

pub use calls::{CallNotes, CallSpan, Observed};
pub use fetches::{FetchAsked, FetchObserver};

/// `messaging.system` of every span of ours.
pub const MESSAGING_SYSTEM: &str = "highwater";

/// A link to the trace of some records.
pub type RecordLink = (TraceContext, Vec<KeyValue>);

/// The attributes that name a partition. Cheap to clone.
#[must_use]
pub fn partition_attributes(topic: &TopicName, partition: PartitionIndex) -> [KeyValue; 2] {
    [
        KeyValue::new(attribute::TOPIC, Arc::<str>::from(topic.as_str())),
        KeyValue::new(attribute::PARTITION, Arc::<str>::from(partition.get().to_string())),
    ]
}

/// The attribute that names a follower.
#[must_use]
pub fn follower_attribute(follower: NodeId) -> KeyValue {
    KeyValue::new(attribute::FOLLOWER_ID, i64::from(follower.get()))
}

/// The attribute that names the side which throttles.
#[must_use]
pub fn throttle_side(side: ThrottleSide) -> KeyValue {
    KeyValue::new(attribute::THROTTLE_SIDE, side.name())
}

/// The attributes of a [`THROTTLE`](highwater_telemetry::names::event::THROTTLE) event: who held back, and how long.
#[must_use]
pub fn throttled(side: ThrottleSide, held: Duration) -> Vec<KeyValue> {
    vec![throttle_side(side), KeyValue::new(attribute::THROTTLE_MS, millis(held))]
}

/// A count as attributes take it.
#[must_use]
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Whole milliseconds as attributes take them.
#[must_use]
pub fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
