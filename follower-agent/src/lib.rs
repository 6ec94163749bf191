//! follower-agent: follows partitions. It pulls records from their leaders, checks and appends them, and thereby
//! acknowledges them.
//!
//! # Life of a record
//!
//! | stage | file | what bounds it |
//! |---|---|---|
//! | plan: which partitions ask, from where, in which order | [`fetcher`]`/members.rs`, `protocol::follower` | – |
//! | fetch: a long poll of the leader | [`fetcher`]`/fetch_loop.rs`, [`leader_endpoint`] | `replica.fetch.wait.max.ms`, `replica.fetch.response.max.bytes` |
//! | apply: is the answer still what was asked for, what comes of it | [`partition`], `protocol::follower` | – |
//! | queue: the next fetch goes out while the append runs | [`partition`]`/queues.rs` | `replica.fetch.read.ahead.bytes` |
//! | append: every batch is checked, then written as it came | `replica`, `log` | – |
//! | flush, beside the next append (`fsync`) | [`partition`]`/queues.rs` | one flush for all that gathered |
//! | acknowledge: in the next plan, or at once beside a parked poll | [`fetcher`]`/members.rs` | one request in flight |
//! | high watermark, log start: come back with the next answer | `protocol::follower` | – |
//! | read by a consumer, up to the own high watermark | [`server`], `serving` | `fetch.max.bytes`, `num.io.threads` |
//!
//! Beside that path: [`replica_manager`] (which partitions are followed, and in which loop), [`housekeeping`]
//! (checkpoints), [`repair`] (damage), [`describe`] (DescribeFetchers), [`service`] (start and end of the program).
//!
//! What must hold: nothing here decides about replication (`protocol` does) or touches a file (`log` does); nothing waits
//! for a disk but the blocking pool; one bad or slow partition delays no other.

pub mod config;
mod describe;
mod fetcher;
mod housekeeping;
pub mod leader_endpoint;
mod leaderless;
mod observe;
mod partition;
mod repair;
mod replica_manager;
mod server;
mod service;

pub use service::{Agent, AgentError, Config, build, build_in};

/// The loops of this program: the partitions that it follows, asked for over gRPC.
type Fetchers = fetcher::FetcherManager<partition::FollowedPartition, leader_endpoint::CallOptions>;
