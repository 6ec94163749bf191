//! The log of a node in memory, one record to a batch, with its checkpoint: what `highwater-log` keeps, and what a crash leaves.

use std::sync::Arc;

use highwater_protocol::fetch::LogFacts;
use highwater_protocol::follower::LogState;
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Durability, Incarnation, LeaderEpoch, LeaderEpochCache, Offset};

use crate::core_sim::Batch;

/// A high watermark, with the epoch in which it was learnt.
pub(super) type KnownHighWatermark = (Offset, Option<LeaderEpoch>);

/// The log, and what is on file about it.
#[derive(Clone, Debug)]
pub(super) struct LogTwin {
    /// Offset 0 on, without holes.
    pub(super) batches: Vec<Batch>,
    pub(super) epochs: Arc<LeaderEpochCache>,
    /// How far it is on the disk; what lies above may outlive a power loss or not.
    pub(super) flushed: Offset,
    pub(super) incarnation: Incarnation,
    pub(super) highest_epoch: Option<LeaderEpoch>,
    pub(super) high_watermark: KnownHighWatermark,
    /// Closed in order, and not opened since.
    pub(super) clean: bool,
}

impl LogTwin {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            batches: Vec::new(),
            epochs: Arc::default(),
            flushed: Offset::ZERO,
            incarnation,
            highest_epoch: None,
            high_watermark: (Offset::ZERO, None),
            clean: true,
        }
    }

    pub(super) fn end(&self) -> Offset {
        offset(self.batches.len())
    }

    pub(super) fn last_epoch(&self) -> Option<LeaderEpoch> {
        self.epochs.latest().map(|entry| entry.epoch)
    }

    pub(super) fn facts(&self) -> LogFacts<'_> {
        LogFacts { log_start: Offset::ZERO, log_end: self.end(), epochs: &self.epochs }
    }

    pub(super) fn state(&self) -> LogState {
        LogState {
            log_start: Offset::ZERO,
            log_end: self.end(),
            flushed_end: self.flushed,
            last_epoch: self.last_epoch(),
        }
    }

    /// The batches from `from` on.
    pub(super) fn from(&self, from: Offset) -> &[Batch] {
        self.batches.get(index(from)..).unwrap_or_default()
    }

    /// Opening a log flushes it. What is clean no more is so on the disk before anything else is written.
    pub(super) fn open(&mut self) {
        self.flushed = self.end();
        self.clean = false;
        self.high_watermark.0 = self.high_watermark.0.min(self.end());
    }

    /// Closes it in order: all of it is on the disk, its checkpoint as well.
    pub(super) fn close(&mut self, high_watermark: KnownHighWatermark) {
        self.flushed = self.end();
        self.write_checkpoint(high_watermark, Durability::Fsync);
        self.clean = true;
    }

    pub(super) fn write_checkpoint(&mut self, high_watermark: KnownHighWatermark, durability: Durability) {
        let end = match durability {
            Durability::Fsync => self.flushed,
            Durability::PageCache => self.end(),
        };
        self.high_watermark = (high_watermark.0.min(end), high_watermark.1);
    }

    pub(super) fn note_epoch(&mut self, epoch: LeaderEpoch) {
        self.highest_epoch = self.highest_epoch.max(Some(epoch));
    }

    /// A leadership begins at the end.
    pub(super) fn assign_epoch(&mut self, epoch: LeaderEpoch) {
        let end = self.end();
        Arc::make_mut(&mut self.epochs).assign(epoch, end);
    }

    /// Takes a batch as its leader stamped it, if it continues the log in an epoch that does not fall.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn append(&mut self, batch: Batch) -> Result<(), String> {
        let falls = self.batches.last().is_some_and(|last| last.epoch > batch.epoch);
        if batch.base != self.end() || falls {
            return Err(format!("{batch:?} does not continue a log that ends at {}", self.end()));
        }
        if let Some(epoch) = batch.epoch
            && self.last_epoch() < Some(epoch)
        {
            self.assign_epoch(epoch);
        }
        self.batches.push(batch);
        Ok(())
    }

    /// Cuts, durably.
    pub(super) fn cut(&mut self, end: Offset) {
        self.batches.truncate(index(end));
        Arc::make_mut(&mut self.epochs).truncate_from_end(end);
        self.flushed = self.flushed.min(end);
        self.high_watermark.0 = self.high_watermark.0.min(end);
    }

    /// The power fails, and `kept` is the end of what is found then. Another boot believes no high watermark above what was
    /// flushed for certain; under `page-cache` answers whether the replica has to renew its incarnation.
    pub(super) fn lose_power(&mut self, kept: Offset, durability: Durability) -> bool {
        self.batches.truncate(index(kept));
        // Where a leadership without records begins was written durably.
        Arc::make_mut(&mut self.epochs).truncate_from_end(kept.next());
        if self.clean {
            return false;
        }
        self.high_watermark.0 = self.high_watermark.0.min(self.flushed);
        durability == Durability::PageCache && !is_planted(PlantedFault::RebootKeepsIncarnation)
    }
}

pub(super) fn offset(index: usize) -> Offset {
    i64::try_from(index).ok().and_then(Offset::new).expect("logs of a few records")
}

pub(super) fn index(offset: Offset) -> usize {
    usize::try_from(offset.get()).expect("offsets are not negative")
}
