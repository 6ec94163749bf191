//! Between the wire's messages and the domain: decoding with validation, encoding, errors as codes and as statuses.
//!
//! What holds:
//! - What comes out of a `decode_*` is valid: names are names, offsets are not negative, defaults are filled in. What does
//!   not decode becomes INVALID_ARGUMENT (UNIMPLEMENTED for what is not offered) with the field named in BadRequest.
//! - [`status`] is the only place that builds a `tonic::Status`, and [`failure`] the only one that reads one.
//! - A status fits into HTTP/2 headers and a message into the limits of [`limits`], whatever text a peer sent.
//!
//! Deliberately absent: bytes of records (they pass through untouched), sockets, clocks.

#![deny(clippy::indexing_slicing)]

pub mod admin;
pub mod caller;
pub mod cluster;
pub mod elect;
pub mod error;
pub mod failure;
pub mod fetch;
mod field;
pub mod lag;
pub mod limits;
pub mod loss;
pub mod offsets;
pub mod produce;
pub mod read_records;
pub mod reassign;
pub mod replica;
pub mod status;
mod text;
pub mod throttle;
pub mod trace;

pub use caller::{Caller, Role};
pub use failure::{Failure, FailureKind, Reached};
pub use field::{DecodeError, decode_partition_index, decode_topic_ref, encode_topic_ref};
