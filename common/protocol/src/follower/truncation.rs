//! Where a follower cuts its log when the leader says that it differs (S38, KIP-101, KIP-279).
//!
//! What holds: the cut is never above the own log end; after it the leader is asked again, because one round is not enough;
//! an undefined answer never comes here, so it never cuts (design.md 6.5). A cut below the high watermark is legal only if an
//! unclean election is on record that is newer than the leadership which told that high watermark.

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpoch, LeaderEpochCache, Offset, OffsetAndEpoch};

use super::{CutPlan, FailureReason, FollowerPartition, Phase};
use crate::fetch::LogFacts;

/// What a replica loses by a cut that an unclean election made legal (design.md 6.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncleanLoss {
    /// The newest unclean election.
    pub election: LeaderEpoch,
    /// The log end after the cut.
    pub cut: Offset,
    /// Up to here everything that is cut had been committed, for certain (exclusive).
    pub committed: Offset,
    /// Up to here it may have been (exclusive): the log end before the cut.
    pub log_end: Offset,
}

impl FollowerPartition {
    /// Decides a cut that [`super::FollowerAction::Truncate`] asked for, on the log as it is now, with nothing running on it
    /// (S40).
    pub fn plan_cut(&mut self, generation: u64, at: OffsetAndEpoch, log: &LogFacts<'_>) -> CutPlan {
        let is_over = generation != self.generation || self.phase != Phase::Truncating;
        if is_over && !is_planted(PlantedFault::UnfencedTruncation) {
            return CutPlan::Void;
        }
        let end = cut_point(at, log.epochs, log.log_end);
        let loss = match self.loss_by(end, log.log_end) {
            Ok(loss) => loss,
            Err(reason) => {
                self.fail_until(reason, None);
                return CutPlan::Refused;
            }
        };
        debug_assert!(end <= log.log_end, "a cut does not lengthen the log");
        debug_assert!(loss.is_some() || end >= self.high_watermark, "what is lost is reported");
        let loses_acknowledged = self.acknowledged_counted.is_some_and(|counted| end < counted);
        CutPlan::To { end, renew: loses_acknowledged && !is_planted(PlantedFault::CutKeepsIncarnation), loss }
    }

    /// What a cut to `end` takes that was committed, if that is legal.
    fn loss_by(&self, end: Offset, log_end: Offset) -> Result<Option<UncleanLoss>, FailureReason> {
        let high_watermark = self.high_watermark;
        if end >= high_watermark {
            return Ok(None);
        }
        // `None` is below every epoch: a high watermark that no leader told vouches for nothing.
        let legal = self.unclean_epoch.filter(|unclean| Some(*unclean) > self.high_watermark_epoch);
        let legal =
            if is_planted(PlantedFault::CutBelowHighWatermark) { Some(self.leader_epoch) } else { legal };
        let election = legal.ok_or(FailureReason::CutBelowHighWatermark { cut: end, high_watermark })?;
        Ok(Some(UncleanLoss { election, cut: end, committed: high_watermark, log_end }))
    }
}

/// The end to cut to, for the leader's answer `at`: the end, in the leader's log, of the largest epoch that it has and that
/// is not above the one asked for.
///
/// Where the own log knows that epoch, both ends of it bound the cut. Where it does not, everything above its own largest
/// smaller epoch goes, and the next fetch asks about that one.
#[must_use]
pub fn cut_point(at: OffsetAndEpoch, epochs: &LeaderEpochCache, log_end: Offset) -> Offset {
    let own = epochs.end_offset_for(at.epoch, log_end);
    let cut = match own {
        Some(own) if own.epoch == at.epoch => own.offset.min(at.offset),
        Some(own) => own.offset,
        None => at.offset,
    };
    debug_assert!(
        own.is_none_or(|own| own.epoch <= at.epoch),
        "the largest own epoch that is not above the answer's"
    );
    cut.min(log_end)
}

#[cfg(test)]
#[path = "truncation_test.rs"]
mod tests;
#[cfg(test)]
#[path = "unclean_test.rs"]
mod unclean_tests;
