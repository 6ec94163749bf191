//! What a leader does to its log: appends, flushes, retention, checkpoints, and the end.
//!
//! What must hold: an append is reported to the core after it is in the log, a flush after it is on the disk; after a failed
//! disk the leadership ends, and what that may have lost is settled before anybody can take the replica for whole
//! (design.md 2, 6.3).

use bytes::Bytes;
use highwater_log::{AppendError, HighWatermark, LeaderAppend, LogError, OffsetRange, Retained, Storage};
use highwater_types::{MonotonicTime, Offset, TraceContext, WallTime};

use super::LeaderReplica;
use crate::certain_end;

impl<S: Storage> LeaderReplica<S> {
    /// Appends validated batches, all inputs in one write, with offsets and epoch given here. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::append_as_leader`]. An error of the disk ends the leadership (design.md 2).
    pub fn append(
        &self,
        inputs: &[Bytes],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
        self.append_traced(inputs, &[], wall, now)
    }

    /// The same; `traces` are the traces that the inputs belong to, one per input or none at all. *Blocks.*
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_traced(
        &self,
        inputs: &[Bytes],
        traces: &[Option<TraceContext>],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
        debug_assert!(traces.is_empty() || traces.len() == inputs.len(), "a trace, or none, per input");
        let _appending = self.appending.lock();
        // A leadership that ends while this appends leaves records that the next leader cuts.
        let appended = self.log.append_as_leader(inputs, self.epoch, wall).inspect_err(|error| {
            if matches!(error, AppendError::Storage(_) | AppendError::Unusable(_)) {
                self.on_log_failed();
            }
        })?;
        {
            let mut history = self.history.lock();
            for (range, input) in appended.inputs.iter().zip(inputs) {
                history.note(*range, input.len() as u64, now);
            }
            for (range, trace) in appended.inputs.iter().zip(traces) {
                if let Some(trace) = trace {
                    history.note_trace(range.start, *trace);
                }
            }
        }
        self.core.lock().on_append(appended.next, now);
        Ok(appended)
    }

    /// Flushes what was appended before the call; appends go on meanwhile. Answers the flushed end. *Blocks.*
    ///
    /// # Errors
    /// What the disk says. A failed flush is final: the leadership ends (design.md 2).
    pub fn flush(&self, now: MonotonicTime) -> Result<Offset, LogError> {
        let positions = self.log.flush().inspect_err(|_| self.on_log_failed())?;
        let mut core = self.core.lock();
        // The append may not have been reported yet by the thread that made it.
        core.on_append(positions.flushed, now);
        core.on_flushed(positions.flushed, now);
        Ok(positions.flushed)
    }

    /// Removes old segments below the high watermark (design.md 2). *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the leadership ends when the log takes no more changes.
    pub fn apply_retention(&self, now: WallTime) -> Result<Retained, LogError> {
        let high_watermark = self.high_watermark();
        let retained =
            self.log.apply_retention(high_watermark, now).inspect_err(|_| self.resign_if_unusable())?;
        self.core.lock().on_log_start(retained.positions.log_start);
        Ok(retained)
    }

    /// Writes high watermark, log start and recovery point, unsynced. Once a second while they move. *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the log goes on.
    pub fn write_checkpoint(&self) -> Result<bool, LogError> {
        let partition_epoch = self.core.lock().partition_epoch();
        self.log.note_epochs(None, partition_epoch)?;
        // The generation first: after a truncation in between nothing is written.
        let generation = self.log.positions().generation;
        self.log.write_checkpoint_lazy(self.checkpointed(), generation)
    }

    /// Ends the leadership, flushes, marks the log clean, and frees the lock. Reads under way get errors from now on: wait for
    /// them first (design.md 6.6). *Blocks.*
    ///
    /// # Errors
    /// What the disk says; the lock is freed all the same, without the mark.
    pub fn close(&self) -> Result<(), LogError> {
        self.resign();
        // Apart from closing, so that what a failing flush loses is settled while the lock is held.
        if self.log.flush().is_err() {
            self.settle_loss()?;
        }
        self.log.close_clean(self.checkpointed())
    }

    /// Ends the leadership and gives the log up as it is: after a failed disk. The lock is freed. *Blocks.*
    ///
    /// # Errors
    /// What is lost could not be written down: the lock is held on, because nobody may open the log as if it had everything.
    pub fn abandon(&self) -> Result<(), LogError> {
        self.resign();
        self.settle_loss()?;
        drop(self.log.abandon());
        Ok(())
    }

    /// Ends the leadership; the log stays open for reads that are under way.
    pub fn resign(&self) {
        self.core.lock().resign();
    }

    fn checkpointed(&self) -> HighWatermark {
        HighWatermark { offset: self.high_watermark(), epoch: Some(self.epoch) }
    }

    fn resign_if_unusable(&self) {
        if self.log.usable().is_err() {
            self.on_log_failed();
        }
    }

    /// The leadership is over. What cannot be written down now is tried again by [`Self::abandon`].
    fn on_log_failed(&self) {
        self.resign();
        if let Err(error) = self.settle_loss() {
            tracing::error!(partition = %self.log.partition(), %error, "could not write down that acknowledged records are lost; trying on");
        }
    }

    /// Whether committed records may be gone with what could not be flushed (design.md 6.3): then this replica's vote goes, or,
    /// when nobody else has them, they are recorded as lost. Call it after the end of the leadership: nothing is committed
    /// any more.
    fn settle_loss(&self) -> Result<(), LogError> {
        let (committed, is_alone) = {
            let core = self.core.lock();
            debug_assert!(core.is_over(), "nothing more is committed");
            (core.high_watermark(), core.is_alone_in_sync())
        };
        let end = certain_end(&self.log);
        if end >= committed || self.log.incarnation() != self.stood_with {
            return Ok(());
        }
        if is_alone {
            self.log.note_lost(OffsetRange::new(end, committed))
        } else {
            self.log.renew_incarnation((self.place.fresh_incarnation)())
        }
    }
}
