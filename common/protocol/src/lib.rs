//! The pure core of replication: what a leader and a follower decide, as transitions.
//!
//! Nothing in here can wait, read a clock, touch a disk or a socket, start a thread, or depend on hash order. Time is an
//! argument, randomness a seed, the log a handful of facts. So a run is a function of its inputs, and a simulation can
//! replay it.
//!
//! **The drain rule.** A method named `on_*` is one event. After each the caller drains `poll_effect` until it is empty
//! and executes what came out, in order. Getters change nothing.
//!
//! | module | holds |
//! |---|---|
//! | [`fetch`] | the request and the answer as values, and the checks that a leader makes in order (S18–S26) |
//! | [`leader`] | the leader's side of a partition: progress of followers, in-sync set, high watermark |
//! | [`follower`] | the follower's side: fetch position, what to do with an answer, truncation, back-off |
//! | [`lag_cause`] | why a replica lags, by one rule for both sides |
//! | [`delayed_fetch`] | when a parked fetch is answered (S27–S32) |
//! | [`purgatory`] | which parked requests an event concerns |
//! | [`producer_state`] | which batch of an idempotent producer is new (design.md 6.10) |
//! | [`quota`] | how fast replicas that are catching up may replicate (S66–S70) |
//!
//! Deliberately absent: bytes of records (the log checks and stores them), gRPC, tasks.

#![deny(clippy::indexing_slicing)]

pub mod delayed_fetch;
pub mod fetch;
pub mod follower;
pub mod lag_cause;
pub mod leader;
pub mod producer_state;
pub mod purgatory;
pub mod quota;
mod randomness;
#[cfg(test)]
mod test_values;

pub use highwater_types::planted;
pub use randomness::Randomness;
