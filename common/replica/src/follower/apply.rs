//! Work on the log: each is compared with the core's generation, done, and reported. All of it blocks on a disk.

use std::sync::Arc;

use bytes::Bytes;
use highwater_log::{AppendError, CutOrder, Log, LogError, OffsetRange, OnDamage, Storage, Unusable};
use highwater_protocol::fetch::LostRange;
use highwater_protocol::follower::{CutPlan, FailureReason, PartitionFetchState};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpoch, NodeId, Offset, OffsetAndEpoch, PartitionEpoch, UncleanLoss};

use super::{
    AppendWork, Core, FollowerReplica, FollowerStep, FollowerWork, LossReport, RepairError, damage, log_state,
};
use crate::producers::Producers;
use crate::{Now, certain_end, log_facts};

impl<S: Storage> FollowerReplica<S> {
    /// Does one piece of work; what is overtaken is skipped. *Blocks.*
    pub fn execute(&self, work: &FollowerWork, now: Now) -> FollowerStep {
        let _applying = self.applying.lock();
        match work {
            FollowerWork::Append(append) => self.append(append, now),
            FollowerWork::Truncate { generation, at } => self.truncate(*generation, *at, now),
            FollowerWork::RestartAt { generation, offset } => self.restart_at(*generation, *offset, now),
            FollowerWork::RenewIncarnation { generation } => self.renew(*generation, now),
            FollowerWork::PassOver { generation, lost } => self.pass_over(*generation, lost, now),
            FollowerWork::RaiseLogStart(to) => self.raise_log_start(*to, now),
            FollowerWork::ForgetLostTail { generation } => self.forget_lost_tail(*generation, now),
            FollowerWork::Recover => self.recover(now),
        }
    }

    /// A record named a leader. The epoch already held, or an older one, changes nothing (S4); a new one is noted in the
    /// checkpoint first, durably (design.md 6.5), and discards the append queue. A log that failed can note nothing: it is
    /// recovered now, and nothing is done in the new epoch before it is noted. *Blocks.* Answers whether it was news.
    pub fn on_leader(
        &self,
        leader: NodeId,
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        now: Now,
    ) -> (bool, FollowerStep) {
        let _applying = self.applying.lock();
        let log = self.log();
        if leader_epoch <= self.core.lock().partition.leader_epoch() {
            return (false, FollowerStep::default());
        }
        if !self.has_failed_log(now)
            && let Err(error) = log.note_epochs(Some(leader_epoch), partition_epoch)
        {
            return (false, self.storage_failed(&error, now));
        }
        let mut core = self.core.lock();
        core.partition_epoch = partition_epoch;
        let was_news = core.partition.on_leader(leader, leader_epoch, log_state(&log), now.monotonic);
        (was_news, FollowerStep::drained(&mut core.partition))
    }

    /// A person's resume. *Blocks.*
    pub fn on_resume(&self, now: Now) -> FollowerStep {
        let _applying = self.applying.lock();
        let log = self.log();
        let mut core = self.core.lock();
        core.partition.on_resume(log_state(&log), now.monotonic);
        core.partition.on_tick(now.monotonic);
        FollowerStep::drained(&mut core.partition)
    }

    /// Puts records that were read from the leader in the place of damage, with checked epochs. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::repair`], and what the disk says; nothing is acknowledged from there on then. [`RepairError::Unfit`] where
    /// there is no room for them.
    pub fn repair(&self, range: OffsetRange, records: &Bytes) -> Result<(), RepairError> {
        let _applying = self.applying.lock();
        let log = self.log();
        // What is known of producers lacks these records, and so do snapshots that were taken of it.
        log.remove_producer_snapshots()?;
        log.repair(range, records).map_err(|error| {
            let is_unfit = matches!(error, AppendError::NoRoom(_));
            if is_unfit { RepairError::Unfit(error.to_string()) } else { error.into() }
        })?;
        *self.producers.lock() = Producers::load(&log)?;
        self.core.lock().partition.on_damage(damage(&log));
        Ok(())
    }

    fn append(&self, work: &AppendWork, now: Now) -> FollowerStep {
        if self.is_over(work.generation) {
            return FollowerStep::default();
        }
        let log = self.log();
        let had_damage = !log.damage().is_empty();
        let appended = log.append_as_follower(&work.records, work.leader_epoch, now.wall);
        if let Ok(appended) = &appended {
            self.producers.lock().observe(&work.records, appended.next);
        }
        let mut core = self.core.lock();
        let Core { partition, randomness, .. } = &mut *core;
        match appended {
            Ok(appended) => {
                debug_assert_eq!(appended.bytes, work.records.len(), "the core takes what the log takes");
                partition.on_appended(work.generation, work.records.len() as u64, appended.next);
                if had_damage {
                    partition.on_damage(damage(&log));
                }
            }
            Err(error @ (AppendError::Storage(_) | AppendError::Unusable(_))) => {
                drop(core);
                return self.failed(error.to_string(), now);
            }
            Err(error) => {
                let last_epoch = log_state(&log).last_epoch;
                partition.on_append_refused(
                    work.generation,
                    last_epoch,
                    error.to_string(),
                    now.monotonic,
                    randomness,
                );
            }
        }
        FollowerStep::drained(partition)
    }

    fn truncate(&self, generation: u64, at: OffsetAndEpoch, now: Now) -> FollowerStep {
        let log = self.log();
        let (plan, high_watermark) = {
            let snapshot = log.snapshot();
            let mut core = self.core.lock();
            let plan =
                core.partition.plan_cut(generation, at, &log_facts(&snapshot.positions, &snapshot.epochs));
            (plan, core.partition.high_watermark())
        };
        let CutPlan::To { end, renew, loss } = plan else { return self.drained() };
        // The log may end below that, in front of a batch or of damage: the report has to say so before anything is cut.
        let loss =
            match loss.map(|loss| Ok(UncleanLoss { from: log.end_after_cut(end)?, ..loss })).transpose() {
                Ok(loss) => loss,
                Err(error) => return self.storage_failed(&error, now),
            };
        let cut = || {
            if let Some(loss) = loss.filter(|_| !is_planted(PlantedFault::LossNotNoted)) {
                log.note_unclean_loss(loss)?;
            }
            if renew {
                log.renew_incarnation((self.place.fresh_incarnation)())?;
            }
            let keep_below = loss.map_or(high_watermark, |loss| loss.end);
            log.truncate_to(end, keep_below, CutOrder::Leader)
        };
        match cut() {
            Ok(truncated) => {
                debug_assert!(
                    loss.is_none_or(|loss| loss.from == truncated.positions.log_end),
                    "the report was right"
                );
                tracing::info!(partition = %log.partition(), %at, cut = %truncated.cut, renew, "cut to the leader's log");
                let loss = loss.map(|loss| LossReport { loss, kept_in: truncated.side_file });
                if let Some(loss) = &loss {
                    tracing::error!(partition = %log.partition(), %loss, "an unclean election lost records");
                }
                FollowerStep { loss, ..self.log_replaced(&log, now) }
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }

    fn restart_at(&self, generation: u64, offset: Offset, now: Now) -> FollowerStep {
        if self.is_over(generation) {
            return FollowerStep::default();
        }
        let log = self.log();
        let high_watermark = self.core.lock().partition.high_watermark();
        let restart = || {
            log.remove_producer_snapshots()?;
            log.truncate_fully_and_start_at(offset, high_watermark, CutOrder::Leader)
        };
        match restart() {
            Ok(_) => {
                tracing::warn!(partition = %log.partition(), %offset, "the log lay below the leader's: begun again");
                self.log_replaced(&log, now)
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }

    fn renew(&self, generation: u64, now: Now) -> FollowerStep {
        if self.is_over(generation) {
            return FollowerStep::default();
        }
        let log = self.log();
        match log.renew_incarnation((self.place.fresh_incarnation)()) {
            Ok(()) => self.log_replaced(&log, now),
            Err(error) => self.storage_failed(&error, now),
        }
    }

    fn pass_over(&self, generation: u64, lost: &LostRange, now: Now) -> FollowerStep {
        if self.is_over(generation) {
            return FollowerStep::default();
        }
        let log = self.log();
        let range = OffsetRange::new(lost.start, lost.end);
        match log.pass_over_lost(range, &lost.epochs) {
            Ok(end) => {
                tracing::warn!(partition = %log.partition(), lost = %range, log_end = %end, "the leader has lost records: goes on behind them");
                self.log_replaced(&log, now)
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }

    fn forget_lost_tail(&self, generation: u64, now: Now) -> FollowerStep {
        if self.is_over(generation) {
            return FollowerStep::default();
        }
        let log = self.log();
        match log.forget_lost_tail() {
            Ok(()) => {
                self.core.lock().partition.on_damage(damage(&log));
                self.drained()
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }

    fn raise_log_start(&self, to: Offset, now: Now) -> FollowerStep {
        let log = self.log();
        // A cut in between may have taken the high watermark, and with it the bound, below.
        if to > self.core.lock().partition.high_watermark() {
            return FollowerStep::default();
        }
        match log.raise_log_start(to) {
            Ok(positions) => {
                let mut core = self.core.lock();
                core.partition.on_log_start(positions.log_start);
                // What was lost below it is not asked for any more.
                core.partition.on_damage(damage(&log));
                FollowerStep::drained(&mut core.partition)
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }

    /// Opens the failed log again: what could not be flushed is cut, and comes back by replication (design.md 2). A cut below
    /// what this incarnation acknowledged renews it (design.md 6.3).
    fn recover(&self, now: Now) -> FollowerStep {
        if !matches!(self.state(now.monotonic), PartitionFetchState::Failed { .. }) {
            return FollowerStep::default();
        }
        // Before the log is given up: opened again, it would be believed.
        if let Err(error) = self.give_up_unflushed(&self.log()) {
            return self.storage_failed(&error, now);
        }
        let spare = self.spare_lock.lock().take();
        let Some(lock) = self.log().abandon().or(spare) else {
            return self.failed("the partition's lock is gone: the replica was closed".to_owned(), now);
        };
        match self.place.open_log(Arc::clone(&lock), OnDamage::RenewIncarnation, now.wall) {
            Ok((log, report)) => {
                *self.log.write() = Arc::clone(&log);
                let (epoch, partition_epoch) = self.epochs_worked_under();
                if let Err(error) = log.note_epochs(Some(epoch), partition_epoch) {
                    return self.storage_failed(&error, now);
                }
                if let Err(error) = self.settle_loss(&log) {
                    return self.storage_failed(&error, now);
                }
                tracing::info!(partition = %log.partition(), log_end = %report.positions.log_end, "recovered");
                self.log_replaced(&log, now)
            }
            Err(error) => {
                *self.spare_lock.lock() = Some(lock);
                self.failed(error.to_string(), now)
            }
        }
    }

    /// Renews the incarnation when `log`, which failed or was opened again, lacks what was acknowledged under it
    /// (design.md 6.3).
    fn settle_loss(&self, log: &Log<S>) -> Result<(), LogError> {
        let must_renew = {
            let core = self.core.lock();
            // Another one by now: opening the log, or an earlier call, has renewed it.
            core.partition.incarnation() == log.incarnation()
                && core.partition.loses_acknowledged(certain_end(log))
        };
        if must_renew { log.renew_incarnation((self.place.fresh_incarnation)()) } else { Ok(()) }
    }

    /// Cuts what could not be flushed, once the renewal that it asks for is durable.
    fn give_up_unflushed(&self, log: &Log<S>) -> Result<(), LogError> {
        match self.settle_loss(log) {
            // A log that is closed already could not be opened again: the recovery settles it.
            Err(LogError::Unusable(Unusable::Closed)) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                log.cut_unflushed();
                Ok(())
            }
        }
    }

    /// The same as soon as the log has failed; what cannot be written now is tried again by its recovery.
    pub(super) fn give_up_unflushed_or_warn(&self, log: &Log<S>) {
        if let Err(error) = self.give_up_unflushed(log) {
            tracing::error!(partition = %log.partition(), %error, "could not renew the incarnation of a replica that lost records; trying on");
        }
    }

    fn epochs_worked_under(&self) -> (LeaderEpoch, PartitionEpoch) {
        let core = self.core.lock();
        (core.partition.leader_epoch(), core.partition_epoch)
    }

    fn has_failed_log(&self, now: Now) -> bool {
        let state = self.state(now.monotonic);
        matches!(state, PartitionFetchState::Failed { reason: FailureReason::Storage(_), .. })
    }

    fn is_over(&self, generation: u64) -> bool {
        self.core.lock().partition.generation() != generation
    }

    fn drained(&self) -> FollowerStep {
        FollowerStep::drained(&mut self.core.lock().partition)
    }

    pub(super) fn log_replaced(&self, log: &Log<S>, now: Now) -> FollowerStep {
        if let Err(error) = self.producers.lock().on_replaced(log) {
            return self.storage_failed(&error, now);
        }
        let incarnation = log.incarnation();
        let mut core = self.core.lock();
        core.partition.on_log_replaced(log_state(log), incarnation, damage(log));
        FollowerStep::drained(&mut core.partition)
    }

    pub(super) fn storage_failed(&self, error: &LogError, now: Now) -> FollowerStep {
        self.failed(error.to_string(), now)
    }

    fn failed(&self, message: String, now: Now) -> FollowerStep {
        let step = {
            let mut core = self.core.lock();
            let Core { partition, randomness, .. } = &mut *core;
            partition.on_storage_failed(message, now.monotonic, randomness);
            FollowerStep::drained(partition)
        };
        self.give_up_unflushed_or_warn(&self.log());
        step
    }
}
