//! What the log remembers beside the records: the checkpoint slots and the epoch cache's file.
//!
//! What must hold:
//! - Before the first append after an open, the clean mark is removed and the boot id stored, durably.
//! - Before a truncation touches a byte, no position in the checkpoint is above its target, durably; and until it is done, no
//!   periodic write raises one again (`ceiling`).
//! - Under `page-cache`, before a flush begins it is on file how far the log reached (`note_flush`): when it fails, and the
//!   process dies before what that loses is on file, whoever opens the log under the same boot finds it shorter.
//! - Under `fsync` the high watermark written is at most the flushed end (design.md 2).

use std::sync::Arc;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Durability, Incarnation, LeaderEpoch, Offset, PartitionEpoch, UncleanLoss};

use super::Log;
use crate::checkpoint::{CheckpointFile, CheckpointState};
use crate::segments::View;
use crate::{HighWatermark, LogError, OffsetRange, Storage, StorageResult};

#[derive(Debug)]
pub(super) struct Persisted<S: Storage> {
    pub(super) file: CheckpointFile<S>,
    pub(super) state: CheckpointState,
    /// Whether the state is on the platter; not so after a lazy write.
    pub(super) is_durable: bool,
    /// Whether the state says that this boot has the log open, unclean.
    pub(super) marked_open: bool,
    /// Nothing is written above this while a truncation is under way.
    pub(super) ceiling: Option<Offset>,
}

impl<S: Storage> Persisted<S> {
    fn write_durable(&mut self, change: impl FnOnce(&mut CheckpointState)) -> StorageResult<()> {
        let mut state = self.state.clone();
        change(&mut state);
        if state != self.state || !self.is_durable {
            self.file.write_durable(&state)?;
            (self.state, self.is_durable) = (state, true);
        }
        Ok(())
    }

    fn write_lazy(&mut self, state: CheckpointState) -> StorageResult<()> {
        self.file.write_lazy(&state)?;
        (self.state, self.is_durable) = (state, false);
        Ok(())
    }
}

impl<S: Storage> Log<S> {
    /// The replica's incarnation on this disk (design.md 6.3).
    pub fn incarnation(&self) -> Incarnation {
        self.remembered.load().incarnation
    }

    /// The highest leader and partition epoch that this directory has seen (design.md 6.5).
    pub fn highest_epochs(&self) -> (Option<LeaderEpoch>, Option<PartitionEpoch>) {
        let state = self.remembered.load();
        (state.highest_leader_epoch, state.highest_partition_epoch)
    }

    /// The high watermark as it was last written to the checkpoint.
    #[cfg(test)]
    pub(super) fn checkpointed_high_watermark(&self) -> HighWatermark {
        self.remembered.load().high_watermark
    }

    /// Notes epochs that this replica is about to work under (design.md 6.5). A leader epoch that rose is durable on return; a
    /// partition epoch alone outlives the process: by an older one no directory is deleted (design.md 2).
    ///
    /// # Errors
    /// What the disk says; nothing may be done under the epoch then.
    pub fn note_epochs(
        &self,
        leader: Option<LeaderEpoch>,
        partition: PartitionEpoch,
    ) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            let note = |state: &mut CheckpointState| {
                state.highest_leader_epoch = state.highest_leader_epoch.max(leader);
                state.highest_partition_epoch = state.highest_partition_epoch.max(Some(partition));
            };
            // What was found at the opening may not be on the platter, with a clean mark or without: whoever wrote it may have
            // been killed before it was flushed.
            persisted.file.make_durable()?;
            if leader > persisted.state.highest_leader_epoch {
                persisted.write_durable(note)?;
            } else if persisted.state.highest_partition_epoch < Some(partition) {
                let mut state = persisted.state.clone();
                note(&mut state);
                persisted.write_lazy(state)?;
            }
            assert!(persisted.state.highest_leader_epoch >= leader, "the epoch is noted");
            assert!(
                persisted.state.highest_partition_epoch >= Some(partition),
                "the partition epoch is noted"
            );
            Ok(())
        })
    }

    /// Notes that a flush failed. As long as the host runs; then nothing is believed that was not flushed.
    pub(super) fn note_failed_flush(&self) -> StorageResult<()> {
        self.persist(|persisted| {
            let state = CheckpointState { flush_failed: true, ..persisted.state.clone() };
            persisted.write_lazy(state)
        })
    }

    /// Replaces the incarnation, durably (design.md 6.3). Allowed on a log that failed, too.
    ///
    /// # Errors
    /// What the disk says; either incarnation may be found later.
    pub fn renew_incarnation(&self, incarnation: Incarnation) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            let old = persisted.state.incarnation;
            persisted.write_durable(|state| state.incarnation = incarnation)?;
            assert_eq!(persisted.state.incarnation, incarnation, "the incarnation is stored");
            assert!(persisted.is_durable, "no fetch goes out under an incarnation that could be forgotten");
            tracing::info!(partition = %self.partition, %old, new = %incarnation, "incarnation renewed");
            Ok(())
        })
    }

    /// This replica leads, elected as the whole in-sync set: nobody else has what it lost, so an incarnation that was kept on
    /// damage stays (design.md 6.3). Durable on return; nobody may join the in-sync set before.
    ///
    /// # Errors
    /// What the disk says; the incarnation is renewed later, then.
    pub fn confirm_incarnation(&self) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            if persisted.state.kept_on_damage {
                persisted.write_durable(|state| state.kept_on_damage = false)?;
            }
            debug_assert!(!persisted.state.kept_on_damage, "the loss is accepted");
            Ok(())
        })
    }

    /// Notes durably that acknowledged records are lost, which the log's end does not show any more once the high watermark in
    /// the checkpoint follows it. Opening the log finds them as known damage. Allowed on a log that failed, too.
    ///
    /// # Errors
    /// What the disk says; the loss may be forgotten then.
    pub fn note_lost(&self, range: OffsetRange) -> Result<(), LogError> {
        assert!(!range.is_empty(), "something is lost");
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            persisted.write_durable(|state| state.add_lost_range(range))?;
            assert!(persisted.is_durable, "the loss is on record");
            tracing::error!(partition = %self.partition, %range, "acknowledged records are lost");
            Ok(())
        })
    }

    /// What this replica lost by the newest unclean election that took something from it (design.md 6.13).
    pub fn unclean_loss(&self) -> Option<UncleanLoss> {
        self.remembered.load().unclean_loss
    }

    /// Notes durably what a cut is about to take, because of an unclean election.
    ///
    /// # Errors
    /// What the disk says; nothing may be cut then.
    pub fn note_unclean_loss(&self, loss: UncleanLoss) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            persisted.write_durable(|state| {
                state.unclean_loss = Some(state.unclean_loss.map_or(loss, |earlier| earlier.and(loss)));
            })?;
            assert!(persisted.is_durable, "the loss is on record before it happens");
            Ok(())
        })
    }

    /// Writes high watermark, log start and recovery point, unsynced: for the pass over all partitions once a second.
    /// `generation` is that of the log when the high watermark was read; after a truncation since then nothing is written.
    /// Returns whether anything was.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write_checkpoint_lazy(
        &self,
        high_watermark: HighWatermark,
        generation: u64,
    ) -> Result<bool, LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            let Some(state) = self.state_now(persisted, high_watermark, generation) else { return Ok(false) };
            if state == persisted.state {
                return Ok(false);
            }
            let lowered = state.high_watermark.offset < persisted.state.high_watermark.offset
                || state.recovery_point < persisted.state.recovery_point;
            if lowered {
                persisted.write_durable(|now| *now = state)?
            } else {
                persisted.write_lazy(state)?
            }
            Ok(true)
        })
    }

    /// The same, durable on return.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write_checkpoint(&self, high_watermark: HighWatermark, generation: u64) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            let Some(state) = self.state_now(persisted, high_watermark, generation) else { return Ok(()) };
            Ok(persisted.write_durable(|now| *now = state)?)
        })
    }

    /// Flushes everything, writes the indexes, sets the clean mark and closes the log, which frees the partition's lock.
    /// Nobody appends any more.
    ///
    /// # Errors
    /// As [`Self::flush`]. The log is closed all the same, without the mark.
    pub fn close_clean(&self, high_watermark: HighWatermark) -> Result<(), LogError> {
        let outcome = self.close_flushed(high_watermark);
        drop(self.abandon());
        outcome
    }

    fn close_flushed(&self, high_watermark: HighWatermark) -> Result<(), LogError> {
        let _writer = self.writer.lock();
        self.usable()?;
        self.flush()?;
        let view = self.view.load_full();
        assert_eq!(view.flushed, view.log_end, "nothing is appended while the writer is held");
        view.active.segment.write_indexes(true)?;
        self.store_epochs(&view.epochs)?;
        self.persist(|persisted| {
            let Some(mut state) = self.state_now(persisted, high_watermark, view.generation) else {
                return Ok(());
            };
            assert!(state.high_watermark.offset <= view.log_end, "the high watermark is within the log");
            (state.clean, state.boot_id) = (true, Some(self.boot_id));
            Ok(persisted.write_durable(|now| *now = state)?)
        })
    }

    /// Before a flush of what `view` holds. Unsynced: it has to outlive the process, not the host.
    pub(super) fn note_flush(&self, view: &View<S>) -> StorageResult<()> {
        if self.config.load().durability == Durability::Fsync {
            return Ok(());
        }
        self.persist(|persisted| {
            let is_overtaken = self.view.load().generation != view.generation;
            let target = persisted.ceiling.map_or(view.log_end, |ceiling| view.log_end.min(ceiling));
            if is_overtaken || target <= persisted.state.flush_target {
                return Ok(());
            }
            let mut state = persisted.state.clone();
            state.flush_target = target;
            persisted.write_lazy(state)
        })
    }

    /// After what a failed flush loses is on file: the log ends at `end` now, and nobody expects more.
    pub(super) fn forget_flush(&self, end: Offset) -> StorageResult<()> {
        self.persist(|persisted| {
            let mut state = persisted.state.clone();
            state.flush_target = state.flush_target.min(end);
            if state == persisted.state { Ok(()) } else { persisted.write_lazy(state) }
        })
    }

    /// What a checkpoint says of the positions now; `None` when the generation is another one.
    fn state_now(
        &self,
        persisted: &Persisted<S>,
        high_watermark: HighWatermark,
        generation: u64,
    ) -> Option<CheckpointState> {
        let view = self.view.load();
        let below = |offset: Offset| persisted.ceiling.map_or(offset, |ceiling| offset.min(ceiling));
        let end = match self.config.load().durability {
            Durability::Fsync if !is_planted(PlantedFault::HighWatermarkAboveFlushed) => view.flushed,
            Durability::Fsync | Durability::PageCache => view.log_end,
        };
        let mut state = persisted.state.clone();
        state.recovery_point = below(view.flushed);
        state.high_watermark =
            HighWatermark { offset: below(high_watermark.offset.min(end)), epoch: high_watermark.epoch };
        state.log_start = below(view.log_start.max(state.log_start));
        (view.generation == generation).then_some(state)
    }

    /// Changes what is persisted, and lets everybody see it once that is done.
    fn persist<T>(&self, change: impl FnOnce(&mut Persisted<S>) -> T) -> T {
        let mut persisted = self.persisted.lock();
        let outcome = change(&mut persisted);
        if **self.remembered.load() != persisted.state {
            self.remembered.store(Arc::new(persisted.state.clone()));
        }
        outcome
    }

    /// Before the first append after an open: the clean mark is removed and the boot id stored, durably (design.md 2).
    pub(super) fn mark_open(&self) -> StorageResult<()> {
        self.persist(|persisted| {
            if !persisted.marked_open {
                let boot_id = Some(self.boot_id);
                persisted.write_durable(|state| (state.clean, state.boot_id) = (false, boot_id))?;
                persisted.marked_open = true;
            }
            debug_assert!(!persisted.state.clean, "the clean mark is gone");
            Ok(())
        })
    }

    /// Before a truncation: no position is above `end` any more, durably, until [`Self::lift_ceiling`].
    pub(super) fn lower_checkpoint(
        &self,
        end: Offset,
        log_start: Offset,
        renew: Option<Incarnation>,
    ) -> StorageResult<()> {
        if is_planted(PlantedFault::CheckpointNotLowered) {
            return Ok(());
        }
        let boot_id = Some(self.boot_id);
        self.persist(|persisted| {
            persisted.write_durable(|state| {
                state.recovery_point = state.recovery_point.min(end);
                state.high_watermark.offset = state.high_watermark.offset.min(end);
                state.flush_target = state.flush_target.min(end);
                state.log_start = log_start;
                state.incarnation = renew.unwrap_or(state.incarnation);
                state.lost_ranges.retain_mut(|range| {
                    range.end = range.end.min(end);
                    !range.is_empty()
                });
                (state.clean, state.boot_id) = (false, boot_id);
            })?;
            persisted.marked_open = true;
            persisted.ceiling = Some(end);
            assert!(persisted.state.recovery_point <= end, "the recovery point is lowered");
            assert!(persisted.state.high_watermark.offset <= end, "the high watermark is lowered");
            Ok(())
        })
    }

    pub(super) fn lift_ceiling(&self) {
        self.persisted.lock().ceiling = None;
    }

    /// Before segments are removed at the start: the new log start, durably.
    pub(super) fn store_log_start(&self, log_start: Offset) -> StorageResult<()> {
        self.persist(|persisted| {
            persisted.write_durable(|state| state.log_start = state.log_start.max(log_start))?;
            assert!(
                persisted.is_durable && persisted.state.log_start >= log_start,
                "the log start is stored"
            );
            Ok(())
        })
    }

    /// Replaces the lost ranges, durably.
    pub(super) fn store_lost_ranges(&self, ranges: &[OffsetRange]) -> StorageResult<()> {
        self.persist(|persisted| {
            persisted.write_durable(|state| {
                state.lost_ranges.clear();
                for range in ranges {
                    state.add_lost_range(*range);
                }
            })
        })
    }

    /// Replaces the lost ranges and the incarnation that had the records, durably and at once; without another one it is kept
    /// until others are in sync.
    pub(super) fn store_rot(
        &self,
        ranges: &[OffsetRange],
        renewed: Option<Incarnation>,
    ) -> Result<(), LogError> {
        self.persist(|persisted| {
            self.refuse_when_closed()?;
            let old = persisted.state.incarnation;
            persisted.write_durable(|state| {
                state.lost_ranges.clear();
                for range in ranges {
                    state.add_lost_range(*range);
                }
                state.incarnation = renewed.unwrap_or(old);
                state.kept_on_damage |= renewed.is_none();
            })?;
            assert!(persisted.is_durable, "the damage is on record");
            if let Some(new) = renewed {
                tracing::info!(partition = %self.partition, %old, %new, "incarnation renewed");
            }
            Ok(())
        })
    }

    pub(super) fn refuse_when_closed(&self) -> Result<(), crate::Unusable> {
        if self.closed.load(std::sync::atomic::Ordering::SeqCst) {
            Err(crate::Unusable::Closed)
        } else {
            Ok(())
        }
    }
}
