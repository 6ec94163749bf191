//! What a leader does to its log: appends, flushes, retention, checkpoints, and the end.
//!
//! What must hold: an append is reported to the core after it is in the log, a flush after it is on the disk; after a failed
//! disk the leadership ends, and what that may have lost is settled before anybody can take the replica for whole
//! (design.md 2, 6.3).

use bytes::Bytes;
use highwater_log::{AppendError, HighWatermark, LeaderAppend, LogError, OffsetRange, Retained, Storage};
use highwater_protocol::producer_state::Admission;
use highwater_types::{ErrorCode, MonotonicTime, Offset, ReplicationError, TraceContext, WallTime};

use super::LeaderReplica;
use crate::certain_end;

/// Where a producer's batches are in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Their offsets.
    pub range: OffsetRange,
    /// Whether they were there before: then nothing was appended, and the answer waits for what the original's would.
    pub is_duplicate: bool,
}

impl<S: Storage> LeaderReplica<S> {
    /// Appends validated batches, all inputs in one write, with offsets and epoch given here, whatever their producers sent
    /// before. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::append_as_leader`](highwater_log::Log::append_as_leader). An error of the disk ends the leadership (design.md 2).
    pub fn append(
        &self,
        inputs: &[Bytes],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
        let _appending = self.appending.lock();
        let appended = self.write(inputs, &[], wall, now)?;
        let mut producers = self.producers.lock();
        for (range, input) in appended.inputs.iter().zip(inputs) {
            producers.observe_at(range.start, input);
        }
        producers.on_appended(appended.next);
        Ok(appended)
    }

    /// Appends what producers sent, in one write, and answers each input for itself: an idempotent producer's batch that is in
    /// the log already is answered with where, one that is out of order is refused (design.md 6.10). `traces` are the traces
    /// that the inputs belong to, one per input or none at all. *Blocks.*
    ///
    /// # Errors
    /// As [`Self::append`]; nothing was appended then.
    pub fn produce(
        &self,
        inputs: &[Bytes],
        traces: &[Option<TraceContext>],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<Vec<Result<Placed, ReplicationError>>, AppendError> {
        debug_assert!(traces.is_empty() || traces.len() == inputs.len(), "a trace, or none, per input");
        let _appending = self.appending.lock();
        let (admissions, undo) = self.producers.lock().admit(inputs, self.log.log_end());
        let is_new = |index: &usize| matches!(admissions.get(*index), Some(Ok(Admission::New)));
        let new: Vec<usize> = (0..inputs.len()).filter(is_new).collect();
        let picked: Vec<Bytes> = new.iter().filter_map(|index| inputs.get(*index).cloned()).collect();
        let traces: Vec<_> = new.iter().filter_map(|index| traces.get(*index).copied()).collect();
        let mut ranges = Vec::new();
        if !picked.is_empty() {
            match self.write(&picked, &traces, wall, now) {
                Ok(appended) => {
                    self.producers.lock().on_appended(appended.next);
                    ranges = appended.inputs;
                }
                Err(error) => {
                    self.producers.lock().undo(undo);
                    return Err(error);
                }
            }
        }
        let mut ranges = ranges.into_iter();
        let mut place = |admission| match admission {
            Admission::Duplicate { first, next } => {
                Ok(Placed { range: OffsetRange::new(first, next), is_duplicate: true })
            }
            Admission::New => {
                let range = ranges.next().ok_or_else(|| {
                    ReplicationError::new(ErrorCode::Internal, "the log gave an input no offsets")
                })?;
                Ok(Placed { range, is_duplicate: false })
            }
        };
        let placed: Vec<_> = admissions.into_iter().map(|outcome| outcome.and_then(&mut place)).collect();
        debug_assert_eq!(placed.len(), inputs.len(), "an outcome per input");
        Ok(placed)
    }

    /// Writes, and reports it to the core. The caller holds `appending`.
    fn write(
        &self,
        inputs: &[Bytes],
        traces: &[Option<TraceContext>],
        wall: WallTime,
        now: MonotonicTime,
    ) -> Result<LeaderAppend, AppendError> {
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
        self.producers.lock().maybe_snapshot(&self.log, false)?;
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
            self.give_up_unflushed()?;
        }
        // Only spares the next opening to read the log.
        if let Err(error) = self.producers.lock().maybe_snapshot(&self.log, true) {
            tracing::warn!(partition = %self.log.partition(), %error, "could not keep a snapshot of producers");
        }
        self.log.close_clean(self.checkpointed())
    }

    /// Ends the leadership and gives the log up as it is: after a failed disk. The lock is freed. *Blocks.*
    ///
    /// # Errors
    /// What is lost could not be written down: the lock is held on, because nobody may open the log as if it had everything.
    pub fn abandon(&self) -> Result<(), LogError> {
        self.resign();
        self.give_up_unflushed()?;
        drop(self.log.abandon());
        Ok(())
    }

    /// After the leadership was handed over, because a reader met a bad batch in the segment of this base: what of it is damaged
    /// goes on record under a new incarnation, so that who follows with this log repairs it. *Blocks.* Answers whether there
    /// was any.
    ///
    /// # Errors
    /// As [`Log::note_rot`](highwater_log::Log::note_rot).
    pub fn note_rot(&self, segment: Offset) -> Result<bool, LogError> {
        debug_assert!(self.is_over(), "nothing more is acknowledged");
        self.log.note_rot(segment, Some((self.place.fresh_incarnation)()))
    }

    /// The same while this replica leads and is the only one in sync: nobody else has what it lost, so it leads on under its
    /// incarnation, and others get past what is lost. *Blocks.* Nothing happens once another replica is in sync: answers whether
    /// this one is alone.
    ///
    /// # Errors
    /// As [`Log::note_rot`](highwater_log::Log::note_rot).
    pub fn note_rot_alone(&self, segment: Offset) -> Result<bool, LogError> {
        if !self.core.lock().is_alone_in_sync() {
            return Ok(false);
        }
        self.log.note_rot(segment, None).map(|_| true)
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
        if let Err(error) = self.give_up_unflushed() {
            tracing::error!(partition = %self.log.partition(), %error, "could not write down that acknowledged records are lost; trying on");
        }
    }

    /// Cuts what could not be flushed, once it is durable what that loses.
    fn give_up_unflushed(&self) -> Result<(), LogError> {
        self.settle_loss()?;
        self.log.cut_unflushed();
        Ok(())
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
