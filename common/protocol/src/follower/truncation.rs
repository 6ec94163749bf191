//! Where a follower cuts its log when the leader says that it differs (S38, KIP-101, KIP-279).
//!
//! What holds: the cut is never above the own log end; after it the leader is asked again, because one round is not enough;
//! an undefined answer never comes here, so it never cuts (design.md 6.5). A cut below the high watermark is legal only if an
//! unclean election is on record that is newer than the leadership which told that high watermark.

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{LeaderEpochCache, Offset, OffsetAndEpoch, UncleanLoss};

use super::{CutPlan, FailureReason, FollowerPartition, Phase};
use crate::fetch::LogFacts;

impl FollowerPartition {
    /// Decides a cut that [`super::FollowerAction::Truncate`] asked for, on the log as it is now, with nothing running on it
    /// (S40).
    pub fn plan_cut(&mut self, generation: u64, at: OffsetAndEpoch, log: &LogFacts<'_>) -> CutPlan {
        let is_over = generation != self.generation || self.phase != Phase::Truncating;
        if is_over && !is_planted(PlantedFault::UnfencedTruncation) {
            return CutPlan::Void;
        }
        let end = cut_point(at, log.epochs, log.log_end);
        let loss = match self.loss_by(end, log) {
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

    /// What a cut to `end` takes that was committed, or may have been, if that is legal.
    fn loss_by(&self, end: Offset, log: &LogFacts<'_>) -> Result<Option<UncleanLoss>, FailureReason> {
        let committed = self.high_watermark;
        let election = if end < committed {
            // `None` is below every epoch: a high watermark that no leader told vouches for nothing.
            let legal = self.unclean_epoch.filter(|unclean| Some(*unclean) > self.high_watermark_epoch);
            let illegal = is_planted(PlantedFault::CutBelowHighWatermark).then_some(self.leader_epoch);
            legal
                .or(illegal)
                .ok_or(FailureReason::CutBelowHighWatermark { cut: end, high_watermark: committed })?
        } else {
            // The high watermark may have been higher than was heard here before an election that came after these records.
            let last = log.epochs.latest().map(|entry| entry.epoch);
            match self.unclean_epoch.filter(|unclean| Some(*unclean) > last && end < log.log_end) {
                Some(election) => election,
                None => return Ok(None),
            }
        };
        Ok(Some(UncleanLoss { election, from: end, committed, end: log.log_end }))
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
