//! The batches of one partition that wait for its task.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use highwater_types::WallTime;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::batch::{ClosedBatch, OpenBatch, Outcome};
use super::{ProducerConfig, ProducerRecord};
use crate::ClientError;

/// Batches in the order of their records. The producer's memory bounds it.
#[derive(Debug, Default)]
pub(super) struct PartitionQueue {
    batches: Mutex<Batches>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Batches {
    closed: VecDeque<ClosedBatch>,
    open: Option<OpenBatch>,
}

/// Where a record went.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) index: i64,
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) closed_a_batch: bool,
}

impl PartitionQueue {
    /// Takes a record into the open batch, which it closes first if it would be larger than `batch_bytes`.
    pub(super) fn push(
        &self,
        record: &ProducerRecord,
        timestamp: WallTime,
        memory: OwnedSemaphorePermit,
        config: &ProducerConfig,
        batch_bytes: usize,
    ) -> Result<Pushed, ClientError> {
        let mut batches = self.lock();
        let full = batches.open.as_ref().is_some_and(|open| open.is_full_for(record.cost(), batch_bytes));
        if full {
            batches.close_open();
        }
        let was_empty = batches.open.is_none();
        let (index, outcome) =
            batches.open.get_or_insert_with(|| OpenBatch::new(config)).append(record, timestamp, memory)?;
        drop(batches);
        if full || was_empty {
            self.changed.notify_one();
        }
        Ok(Pushed { index, outcome, closed_a_batch: full })
    }

    /// Ends the wait of the open batch for more records.
    pub(super) fn close_open_batch(&self) {
        self.lock().close_open();
        self.changed.notify_one();
    }

    /// Waits for the next batch: a closed one, or the open one once it has lingered.
    pub(super) async fn take(&self, config: &ProducerConfig) -> ClosedBatch {
        loop {
            let lingers = {
                let mut batches = self.lock();
                let lingers = batches.open.as_ref().map(|open| open.linger_ends(config));
                if batches.closed.is_empty() && lingers.is_some_and(|ends| ends <= Instant::now()) {
                    batches.close_open();
                }
                if let Some(batch) = batches.closed.pop_front() {
                    return batch;
                }
                lingers
            };
            match lingers {
                Some(ends) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(ends) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        // A batch is in one place or the other after any panic.
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batches {
    fn close_open(&mut self) {
        self.closed.extend(self.open.take().and_then(OpenBatch::close));
    }
}
