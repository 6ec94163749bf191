//! Follows partitions.

pub mod config;
mod fetcher;
pub mod leader_endpoint;
