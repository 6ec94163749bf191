//! Who leads, a person's resume, and time: what starts a partition anew.

use highwater_types::{LeaderEpoch, MonotonicTime, NodeId};

use super::{FailureReason, FollowerEffect, FollowerPartition, LogState, Phase};

impl FollowerPartition {
    /// A record named a leader. The epoch already held, or an older one, changes nothing (S4, S56); a new one, even of the
    /// same leader, rebuilds the state, discards the append queue, and clears a failure (S11). `log` is what the log says
    /// now; no append may be running. Answers whether it was news.
    pub fn on_leader(
        &mut self,
        leader: NodeId,
        epoch: LeaderEpoch,
        log: LogState,
        now: MonotonicTime,
    ) -> bool {
        if epoch <= self.leader_epoch || log.last_epoch.is_some_and(|seen| seen > epoch) {
            return false;
        }
        let needs_recovery = matches!(&self.phase, Phase::Failed { reason: FailureReason::Storage(_), .. });
        self.leader = leader;
        self.leader_epoch = epoch;
        self.acknowledged_sent = None;
        self.acknowledged_counted = None;
        self.leader_log_start = None;
        self.leader_log_end = None;
        self.leader_lost.clear();
        self.storage_backoff.reset();
        if needs_recovery {
            self.fail_until(FailureReason::Storage("a new leadership began".to_owned()), Some(now));
        } else {
            self.adopt_log(log);
        }
        self.delay = None;
        self.fetch_backoff.reset();
        self.settled_at = None;
        debug_assert_eq!(self.queued_bytes, 0, "an epoch change discards queued appends");
        self.check_bounds();
        true
    }

    /// The newest unclean election that the partition's record tells of. Report it before [`Self::on_leader`]: from the
    /// leadership that began so on, a cut below a high watermark of an earlier one is legal (design.md 6.5, 6.13).
    pub fn on_unclean_election(&mut self, epoch: Option<LeaderEpoch>) {
        let before = self.unclean_epoch;
        self.unclean_epoch = before.max(epoch);
        debug_assert!(self.unclean_epoch >= before, "the note in the record stays");
        self.check_bounds();
    }

    /// A person's resume: clears a failure and every delay. `log` is what the log says now; no append may be running.
    pub fn on_resume(&mut self, log: LogState, now: MonotonicTime) {
        self.delay = None;
        self.fetch_backoff.reset();
        self.storage_backoff.reset();
        self.settled_at = None;
        match &self.phase {
            Phase::Failed { reason: FailureReason::Storage(text), .. } => {
                self.fail_until(FailureReason::Storage(text.clone()), Some(now));
            }
            Phase::Failed { .. } => self.adopt_log(log),
            Phase::Fetching | Phase::Truncating | Phase::ResolvingRange => {}
        }
        debug_assert!(self.delay.is_none(), "it goes on at once");
        self.check_bounds();
    }

    /// Time passed: recovers a failed log when its time has come.
    pub fn on_tick(&mut self, now: MonotonicTime) {
        if let Phase::Failed { retry_at, .. } = &mut self.phase
            && retry_at.is_some_and(|at| at <= now)
        {
            *retry_at = None;
            self.effects.push_back(FollowerEffect::Recover);
        }
        self.check_bounds();
    }
}
