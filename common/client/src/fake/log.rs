//! One log of a fake node: whole batches with their offsets, and what a leader knows of those who produced them.
//!
//! What holds: batches are checked as a leader checks them. Of an idempotent producer only the newest batch is known, as in a
//! leader that has read a snapshot (design.md 6.10), so that whoever needs more is found out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use highwater_records::{BatchHeader, ValidateMode, batches, stamp_batches, validate};
use highwater_types::{ErrorCode, LeaderEpoch, Offset, ReplicationError};

/// A log.
#[derive(Clone, Default)]
pub(crate) struct FakeLog {
    pub(crate) batches: Vec<Bytes>,
    pub(crate) start: i64,
    /// The newest batch of each idempotent producer, by its id. A clone of the log shares it, as a follower would know it.
    pub(crate) producers: Arc<Mutex<BTreeMap<i64, BatchHeader>>>,
}

impl FakeLog {
    pub(crate) fn end(&self) -> i64 {
        let next = |bytes: &Bytes| batches(bytes).next().unwrap().unwrap().next_offset().get();
        self.batches.last().map_or(self.start, next)
    }

    /// The headers of its batches.
    pub(crate) fn headers(&self) -> Vec<BatchHeader> {
        self.batches.iter().map(|bytes| *batches(bytes).next().unwrap().unwrap().header()).collect()
    }

    /// Appends what a producer sent, or finds it there; the first and the last offset.
    pub(crate) fn append(&mut self, sent: &Bytes) -> Result<(i64, i64), ReplicationError> {
        let refused = |code, why: &str| ReplicationError::new(code, why);
        for batch in batches(sent) {
            let batch = batch.map_err(|error| refused(error.code(), "no batch"))?;
            validate(&batch, ValidateMode::Produce).map_err(|e| refused(e.code(), &e.to_string()))?;
        }
        let first = *batches(sent).next().unwrap().unwrap().header();
        if let Some(original) = self.original_of(&first)? {
            return Ok((original.base_offset().get(), original.last_offset().get()));
        }
        let base = self.end();
        let mut bytes = BytesMut::from(sent.as_ref());
        stamp_batches(&mut bytes, Offset::new(base).unwrap(), LeaderEpoch::FIRST).unwrap();
        self.batches.extend(batches(&bytes).map(|batch| Bytes::copy_from_slice(batch.unwrap().bytes())));
        let newest = *self.headers().last().unwrap();
        if newest.producer_id() >= 0 {
            self.producers.lock().unwrap().insert(newest.producer_id(), newest);
        }
        Ok((base, self.end() - 1))
    }

    /// The batch of which this one is a copy; `None`: it is to be appended.
    fn original_of(&self, batch: &BatchHeader) -> Result<Option<BatchHeader>, ReplicationError> {
        let refused = |code, why: String| Err(ReplicationError::new(code, why));
        if batch.producer_id() < 0 {
            return Ok(None);
        }
        let found = batch.base_sequence();
        let producers = self.producers.lock().unwrap();
        let Some(newest) = producers.get(&batch.producer_id()) else {
            return if found == 0 {
                Ok(None)
            } else {
                refused(ErrorCode::UnknownProducer, found.to_string())
            };
        };
        let sequences =
            |batch: &BatchHeader| (batch.producer_epoch(), batch.base_sequence(), batch.last_sequence());
        if sequences(newest) == sequences(batch) {
            return Ok(Some(*newest));
        }
        let expected = match batch.producer_epoch().cmp(&newest.producer_epoch()) {
            std::cmp::Ordering::Less => {
                return refused(ErrorCode::InvalidProducerEpoch, newest.producer_epoch().to_string());
            }
            std::cmp::Ordering::Equal => newest.last_sequence().checked_add(1).unwrap_or(0),
            std::cmp::Ordering::Greater => 0,
        };
        if found == expected {
            return Ok(None);
        }
        refused(ErrorCode::OutOfOrderSequence, format!("sends {found}; {expected} comes next"))
    }

    pub(super) fn read(&self, from: i64, max_bytes: usize) -> Bytes {
        let mut out = BytesMut::new();
        for bytes in &self.batches {
            let covers = batches(bytes).next().unwrap().unwrap().next_offset().get() > from;
            if covers && (out.is_empty() || out.len() + bytes.len() <= max_bytes) {
                out.extend_from_slice(bytes);
            } else if covers {
                break;
            }
        }
        out.freeze()
    }
}
