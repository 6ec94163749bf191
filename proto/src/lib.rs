//! The wire protocol, generated from the .proto files beside it: messages, clients, server traits, and the descriptor set.
//!
//! What must hold: nothing here is written by hand but this file. `wire` turns messages into domain types and back;
//! meaning, defaults and validation live there.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated code follows its generator's style"
)]

/// Messages and services of package `highwater.v1`.
pub mod v1 {
    tonic::include_proto!("highwater.v1");
}

/// The encoded `FileDescriptorSet` of every file of the package, for reflection and for breaking-change checks.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/highwater_descriptor.bin"));
