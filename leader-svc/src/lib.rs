//! leader-svc: leads partitions, and serves Fetch and Produce.
//!
//! # Life of a Fetch
//!
//! | stage | file | what bounds it |
//! |---|---|---|
//! | transport: windows, deadline into the extensions | `node::grpc` | streams per connection, header size |
//! | identity, decode | `server.rs` | `socket.request.max.bytes`, partitions per request |
//! | session (none yet) | `fetch/session.rs` | – |
//! | find the partitions | `serving::registry` | – |
//! | check, record a follower's progress on arrival | `serving::fetch::long_poll`, `partition/handle.rs`, `protocol::leader` | – |
//! | park | `serving::purgatory` | max wait, the caller's deadline |
//! | read | `serving::fetch::read` | max bytes, `fetch.max.bytes`, `num.io.threads` |
//! | encode | `fetch/respond.rs` | – |
//!
//! A follower's progress moves the high watermark (`partition/handle.rs` executes the core's effects), which completes
//! Produce calls that wait for it (`partition/commit.rs`) and wakes fetches that wait for records.
//!
//! Beside that path: `produce` (checks batches, then `partition/append_queue.rs`), `replica_manager` (which partitions
//! are led), `admin` (topics, agents, descriptions), `housekeeping` (checkpoints, retention),
//! `observe` (spans and metrics).

mod admin;
pub mod config;
mod fetch;
mod housekeeping;
mod observe;
mod partition;
mod produce;
mod replica_manager;
mod server;
mod service;

pub use service::{BuildError, Config, LeaderService, build, build_in};
