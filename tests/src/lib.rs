//! Tests of the whole: real processes, real parts, simulations. This library is the harness; the tests lie in
//! tests/tests, one file per concern. tests/README.md says how to run them and where each case is tested.
//!
//! What holds here: nothing is mocked that can be run, every wait is bounded ([`wait`]), everything that a test starts
//! dies with it. Deliberately absent: any knowledge that the programs do not offer to their users too.

#![allow(
    clippy::missing_panics_doc,
    reason = "a harness fails its test by a panic; what is not obvious is said"
)]

pub mod calls;
pub mod campaign;
pub mod cluster;
pub mod core_sim;
pub mod disk;
pub mod etcd;
pub mod explore;
pub mod fake_collector;
pub mod fake_leader;
pub mod fake_log;
pub mod faked;
pub mod fixtures;
pub mod grpcurl;
pub mod history;
pub mod invariants;
pub mod kafka_dump;
pub mod kernel;
pub mod kube;
pub mod links;
pub mod load;
pub mod log_dump;
pub mod log_files;
pub mod parts;
pub mod placed;
pub mod ports;
pub mod power_loss;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod relay;
pub mod throttles;
pub mod tier;
pub mod tool;
pub mod traced_pair;
pub mod tracing_parts;
pub mod traffic;
pub mod trio;
pub mod wait;
