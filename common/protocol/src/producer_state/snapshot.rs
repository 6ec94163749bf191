//! Producers as bytes: the format of Kafka's `.snapshot` files, version 1, which its tools read.
//!
//! ```text
//!   version i16 = 1 | CRC-32C u32 of the rest | count i32 | entries
//!   entry: producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64
//!          | coordinator epoch i32 = -1 | first offset of the open transaction i64 = -1
//! ```
//! It holds one batch per producer, so after a restart only a producer's newest batch is known for a duplicate; what is read
//! again from the log behind the snapshot adds to that.

use bytes::{Buf, BufMut};
use highwater_types::Offset;

use super::{Appended, Producer, ProducerStates};

const VERSION: i16 = 1;
const HEADER_BYTES: usize = 6;
const ENTRY_BYTES: usize = 46;

/// Why bytes are not a snapshot of producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSnapshot {
    /// Its version is another one.
    Version(i16),
    /// Its checksum is wrong, or it is too short to have one.
    Checksum,
    /// Its entries do not fill it, or hold what cannot be.
    Entries,
}

impl ProducerStates {
    /// The bytes of a snapshot; `checksum` is CRC-32C.
    #[must_use]
    pub fn encode(&self, checksum: impl Fn(&[u8]) -> u32) -> Vec<u8> {
        let mut entries = Vec::with_capacity(4 + self.producers.len().saturating_mul(ENTRY_BYTES));
        entries.put_i32(i32::try_from(self.producers.len()).unwrap_or(i32::MAX));
        for (id, producer) in &self.producers {
            let Some(newest) = producer.newest() else { continue };
            let last = newest.next.prev().unwrap_or_default();
            entries.put_i64(*id);
            entries.put_i16(producer.epoch);
            entries.put_i32(newest.last_sequence);
            entries.put_i64(last.get());
            entries.put_i32(i32::try_from(last.since(newest.first)).unwrap_or(i32::MAX));
            entries.put_i64(newest.timestamp);
            entries.put_i32(-1);
            entries.put_i64(-1);
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + entries.len());
        bytes.put_i16(VERSION);
        bytes.put_u32(checksum(&entries));
        bytes.extend(entries);
        bytes
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// [`BadSnapshot`]: then it is as if it were not there.
    pub fn decode(bytes: &[u8], checksum: impl Fn(&[u8]) -> u32) -> Result<Self, BadSnapshot> {
        let (mut head, entries) = bytes.split_at_checked(HEADER_BYTES).ok_or(BadSnapshot::Checksum)?;
        let version = head.get_i16();
        if version != VERSION {
            return Err(BadSnapshot::Version(version));
        }
        if head.get_u32() != checksum(entries) {
            return Err(BadSnapshot::Checksum);
        }
        let (mut count, mut entries) = entries.split_at_checked(4).ok_or(BadSnapshot::Entries)?;
        let count = usize::try_from(count.get_i32()).map_err(|_| BadSnapshot::Entries)?;
        if count.checked_mul(ENTRY_BYTES) != Some(entries.len()) {
            return Err(BadSnapshot::Entries);
        }
        let mut states = Self::default();
        for _ in 0..count {
            let (id, producer) = decode_entry(&mut entries).ok_or(BadSnapshot::Entries)?;
            states.producers.insert(id, producer);
        }
        states.forget_the_silent();
        debug_assert!(!entries.has_remaining(), "the count was compared with the length");
        Ok(states)
    }
}

/// The caller has seen that an entry's bytes are there.
fn decode_entry(entries: &mut &[u8]) -> Option<(i64, Producer)> {
    let (id, epoch) = (entries.get_i64(), entries.get_i16());
    let last_sequence = entries.get_i32();
    let (last, delta) = (entries.get_i64(), entries.get_i32());
    let timestamp = entries.get_i64();
    let (_coordinator_epoch, _transaction) = (entries.get_i32(), entries.get_i64());
    let last = Offset::new(last)?;
    let first = Offset::new(last.get().checked_sub(i64::from(delta))?)?;
    if id < 0 || epoch < 0 || last_sequence < 0 || delta < 0 {
        return None;
    }
    // Sequences go round within 2^31 numbers.
    let first_sequence =
        i32::try_from((i64::from(last_sequence) - i64::from(delta)).rem_euclid(1 << 31)).ok()?;
    let newest = Appended { first_sequence, last_sequence, first, next: last.next(), timestamp };
    Some((id, Producer { epoch, batches: [newest].into(), has_older: true }))
}
