//! What both programs serve: the read path, the long poll, and the description of the cluster.
//!
//! What must hold: a program plugs in by two traits, [`PartitionHost`] (its table of partitions) and [`HostedReplica`] (one
//! of them); nothing here knows whether it leads or follows. No runtime worker blocks on a disk: what can is sent to the
//! blocking pool, bounded.
//!
//! | module | holds |
//! |---|---|
//! | [`handover`] | how a node's leader-svc gets a log from its follower-agent |
//! | [`host`] | the two traits |
//! | [`registry`] | the table of partitions, and how a request's name for one is resolved |
//! | [`purgatory`] | where fetches wait |
//! | [`fetch`] | the stages of a Fetch: long poll, then read |
//! | [`offsets`] | ListOffsets and OffsetsForLeaderEpoch |
//! | [`read_records`] | decoded records for people |
//! | [`describe`] | DescribeCluster and DescribeTopics |
//! | [`admission`] | how many bytes may be in flight |
//! | [`attempts`] | pauses after failed attempts, and which failures are news |
//! | [`observe`] | spans and metrics of calls |
//! | [`readiness`] | when health says SERVING |
//! | [`calls`] | the calls that both answer alike, from request to answer |
//! | [`closing`] | waiting for those who still read a log that is to be closed |
//! | [`volume`] | taking a data directory into use |
//! | [`joining`] | joining the cluster while its store is away |
//! | [`damage_note`] | damage that readers met, told once |
//! | [`strays`] | directories that nobody hosts |
//! | [`surroundings`] | the store and the network, or what a simulation puts in their place |
//! | [`throttle`] | how fast replicas that are catching up may replicate, as it is set and recorded |
//!
//! Deliberately absent: appends, elections, the programs' own services.

pub mod admission;
pub mod attempts;
pub mod calls;
pub mod closing;
pub mod damage_note;
pub mod describe;
pub mod fetch;
pub mod handover;
pub mod host;
pub mod joining;
pub mod observe;
pub mod offsets;
pub mod purgatory;
pub mod read_records;
pub mod readiness;
pub mod registry;
pub mod strays;
pub mod surroundings;
#[cfg(test)]
mod test_replica;
pub mod throttle;
pub mod volume;

pub use admission::Admission;
pub use attempts::Attempts;
pub use closing::wait_for_readers;
pub use damage_note::DamageNote;
pub use highwater_replica::ReplicaFacts;
pub use host::{HostedReplica, Located, PartitionHost};
pub use purgatory::FetchPurgatory;
pub use registry::{Hosting, Registry};
pub use surroundings::Surroundings;
pub use throttle::{ReplicationThrottle, ThrottleKeeper, ThrottleLives};
pub use volume::{DataDir, Volume};
