//! Kafka record batches of magic 2: view, validation, building, compression, decoding for people.
//!
//! A batch is 61 bytes of header and its records, perhaps compressed. What replication does with batches (walk them, check
//! their CRC, stamp base offset and leader epoch) copies and allocates nothing: [`batches`], [`BatchView`], [`stamp_batches`].
//!
//! What must hold:
//! - Every byte is untrusted: no function here panics, loops for ever, overflows, or allocates by a length that it read.
//! - The next offset follows from the header's last offset delta, never from the records: a batch may be empty (FX2).
//! - The CRC covers everything from the attributes on; base offset, length, leader epoch, and magic are outside of it (FX4).
//! - Decompression is bounded by [`MAX_DECOMPRESSED_BYTES`].
//!
//! Deliberately absent: files, offsets of a log, epochs' order, size limits of a topic: the log and the leader know those.
//! Message formats 0 and 1 are refused by name.

mod builder;
mod compression;
mod control;
mod error;
mod header;
mod iter;
mod record;
mod stamp;
mod validate;
mod varint;
mod view;

pub use builder::{BatchBuilder, BuildError, Producer};
pub use compression::{Compression, MAX_DECOMPRESSED_BYTES};
pub use control::{ControlRecord, ControlType};
pub use error::BatchError;
pub use header::{Attributes, BatchHeader, HEADER_BYTES, NO_TIMESTAMP, TimestampType};
pub use iter::{Batches, batches, find_valid_batch};
pub use record::{
    Header, Record, RecordStamp, RecordStamps, Records, decode_records, record_stamps, records,
};
pub use stamp::{set_base_offset, set_leader_epoch, set_producer, stamp_batches};
pub use validate::{ValidateMode, validate};
pub use view::BatchView;

#[cfg(test)]
mod fixtures_test;
#[cfg(test)]
mod properties_test;
