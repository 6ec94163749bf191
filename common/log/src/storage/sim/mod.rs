//! A disk in memory that crashes: what the simulation and the tests of durability run on.
//!
//! [`SimDisk`] is the machine's disk (`disk.rs`); [`SimStorage`] is what one process sees of it (`process.rs`, `file.rs`). A
//! dead process's view, files and locks are useless from the moment it dies, so that no test can go on through a stale
//! handle. Everything is decided by the seed and the order of the calls. What a loss of power does is described in
//! `node.rs`.
//!
//! Limits: a rename stays within its directory (the log needs no other), there are no links and no permissions.

mod disk;
mod file;
mod node;
mod process;
mod rng;

pub use disk::{SimDisk, SimEvent};
pub use file::SimFile;
pub use process::SimStorage;

#[cfg(test)]
#[path = "sim_test.rs"]
mod tests;
