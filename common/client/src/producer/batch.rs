//! A batch on its way: being filled, then closed, then delivered or failed.

use bytes::{Bytes, BytesMut};
use highwater_records::{BatchBuilder, Producer, set_producer};
use highwater_types::{Offset, WallTime};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::{ProducerConfig, ProducerRecord};
use crate::ClientError;

/// The offset of a batch's first record (absent with `acks=0`), or why it was not delivered.
pub(super) type Outcome = Result<Option<Offset>, ClientError>;

/// A batch that takes records.
#[derive(Debug)]
pub(super) struct OpenBatch {
    builder: BatchBuilder,
    memory: Option<OwnedSemaphorePermit>,
    outcome: watch::Sender<Option<Outcome>>,
    opened: Instant,
}

/// A batch that is ready to be sent. Its memory is given back when it is dropped.
#[derive(Debug)]
pub(super) struct ClosedBatch {
    pub(super) bytes: Bytes,
    pub(super) records: i32,
    pub(super) opened: Instant,
    outcome: watch::Sender<Option<Outcome>>,
    _memory: Option<OwnedSemaphorePermit>,
}

impl OpenBatch {
    pub(super) fn new(config: &ProducerConfig) -> Self {
        Self {
            builder: BatchBuilder::new(config.compression),
            memory: None,
            outcome: watch::Sender::new(None),
            opened: Instant::now(),
        }
    }

    /// Whether `cost` more bytes are more than `most`; the first record always fits.
    pub(super) fn is_full_for(&self, cost: usize, most: usize) -> bool {
        self.builder.record_count() > 0 && self.builder.uncompressed_size().saturating_add(cost) > most
    }

    /// When the batch is to be sent at the latest, as far as lingering goes.
    pub(super) fn linger_ends(&self, config: &ProducerConfig) -> Instant {
        self.opened + config.linger
    }

    /// Adds a record; returns its number within the batch, and the batch's outcome to be.
    pub(super) fn append(
        &mut self,
        record: &ProducerRecord,
        timestamp: WallTime,
        memory: OwnedSemaphorePermit,
    ) -> Result<(i64, watch::Receiver<Option<Outcome>>), ClientError> {
        let index = i64::from(self.builder.record_count());
        self.builder
            .append(timestamp, record.key.as_deref(), record.value.as_deref(), &record.headers)
            .map_err(|e| ClientError::Usage(e.to_string()))?;
        match &mut self.memory {
            Some(held) => held.merge(memory),
            None => self.memory = Some(memory),
        }
        Ok((index, self.outcome.subscribe()))
    }

    /// Builds the batch; one that cannot be built fails at once and is `None`.
    pub(super) fn close(self) -> Option<ClosedBatch> {
        let Self { builder, memory, outcome, opened } = self;
        let records = builder.record_count();
        match builder.build() {
            Ok(bytes) => {
                Some(ClosedBatch { bytes: bytes.freeze(), records, opened, outcome, _memory: memory })
            }
            Err(error) => {
                outcome.send_replace(Some(Err(ClientError::Usage(error.to_string()))));
                None
            }
        }
    }
}

impl ClosedBatch {
    /// Makes it a batch of an idempotent producer, or of another one.
    pub(super) fn set_producer(&mut self, producer: Producer) {
        // Without a copy, unless a try that was given up still holds the bytes.
        let mut bytes = BytesMut::from(std::mem::take(&mut self.bytes));
        set_producer(&mut bytes, producer).expect("a batch that was built is one");
        self.bytes = bytes.freeze();
    }

    /// Tells every record of the batch what became of it.
    pub(super) fn complete(self, outcome: Outcome) {
        self.outcome.send_replace(Some(outcome));
    }
}
