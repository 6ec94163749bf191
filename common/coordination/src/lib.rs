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

mod contract;
mod error;
mod view;

pub use contract::{CasOutcome, Coordination, Liveness};
pub use error::CoordinationError;
pub use view::{ClusterView, ViewChanges, ViewPublisher};
