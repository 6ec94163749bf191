//! Who leads, which epoch, which in-sync set, which nodes live: versioned records behind one trait.
//!
//! What must hold, for every implementation (proven by the `conformance` suite):
//!
//! - A record changes only by compare-and-swap against its version, and every change is a version of its own.
//! - What [`Coordination::view`] shows never goes back: not to a lower version of a record, not from a tombstone to a
//!   topic. It may be late; only a compare-and-swap says what stands now.
//! - [`CoordinationError::Unknown`] means what it says: the write may have been made, now or later (design.md 6.4).
//!
//! Deliberately absent: when to propose what (the services), the partition's log and progress (`replica`), gRPC. The
//! rules of an election that need nothing but a record are here, as pure functions.

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
mod contract;
mod election;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(any(test, feature = "test-util"))]
pub mod interposed;
mod liveness;
mod membership;
mod node_record;
mod open;
pub mod reassign;
mod rules;
mod takeover;
#[cfg(test)]
mod test_values;
mod view;

pub use contract::{CasOutcome, Coordination, Liveness};
pub use election::{Candidate, Ineligible, first_leadership, first_leadership_delay, renewed_leadership};
pub use error::CoordinationError;
#[cfg(feature = "etcd")]
pub use etcd::{EtcdCoordination, EtcdOptions};
pub use file::{FileCoordination, FileOptions};
pub use liveness::{LivenessObserver, ProgramState};
pub use membership::Membership;
pub use node_record::{
    DiskVerdict, Rotation, RotationError, register_endpoint, rotate_disk_identity, update_node,
};
pub use open::open_etcd;
pub use rules::{check_change, check_creation};
pub use takeover::{
    UncleanOrder, next_leadership, preferred_leader, resignation, successor, take_over, take_over_delay,
    unclean_delay, unclean_leadership, withdrawal,
};
pub use view::{ClusterView, ViewChanges, ViewPublisher};
