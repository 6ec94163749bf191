//! What producers, consumers, the command line tool and the tests use to talk to a cluster.
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | [`Client`]: bootstrap, metadata, routing to leaders, retries within a deadline |
//! | [`admin`] | topics, offsets, records for people, the views of replication |
//! | [`producer`] | [`Producer`]: batches per partition, one request in flight per partition, retries that repeat nothing |
//! | [`consumer`] | [`Consumer`]: reads partitions from a place on, and follows them |
//! | [`leader_view`] | [`LeaderView`]: the coordination store as an agent without one sees it |
//! | [`transport`] | channels: lazily connected, replaced when they are in doubt |
//!
//! What holds: every call has a deadline, every retry a bound, every queue a size. A leader is only ever replaced by one
//! of a higher epoch. Deliberately absent: the log and the core; a client knows a log only through the wire.

pub mod admin;
mod backoff;
pub mod client;
pub mod consumer;
pub mod describe;
mod elect;
mod error;
pub mod leader_view;
mod leaderless;
mod losses;
mod metadata;
mod partitioner;
pub mod producer;
mod reassign;
mod replica;
mod route;
mod throttle;
pub mod transport;

pub use backoff::Backoff;
pub use client::{Client, ClientConfig};
pub use consumer::{Consumer, ConsumerConfig, Polled, ResetPolicy, StartAt};
pub use error::ClientError;
pub use leader_view::{LeaderView, LeaderViewConfig};
pub use losses::Losses;
pub use partitioner::partition_for_key;
pub use producer::{Delivery, Position, Producer, ProducerConfig, ProducerRecord, new_trace};
pub use reassign::Reassignments;
pub use throttle::ThrottledNodes;

// What the client's calls take and return.
pub use highwater_wire::admin::{AdoptTopic, AdoptedPartition, CreateTopic, Placement};
pub use highwater_wire::cluster::{DescribedCluster, DescribedPartition, DescribedTopic};
pub use highwater_wire::fetch::TopicRef;
pub use highwater_wire::offsets::{FoundOffset, OffsetQuery};
pub use highwater_wire::produce::Acks;
pub use highwater_wire::reassign::{AddedReplica, Assignment, PartitionRef, Reassigned, Reassignment};
pub use highwater_wire::throttle::{ClearThrottle, LONGEST_TTL, SHORTEST_TTL, SetThrottle, ThrottleLeft};
pub use highwater_wire::{Caller, Failure, FailureKind, Reached};

#[cfg(test)]
mod decode_limit_test;
#[cfg(test)]
mod fake;
