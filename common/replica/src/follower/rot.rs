//! Damage in a follower's log that shows while it runs, or that no repair in place can undo (design.md 2, 6.3).

use highwater_log::{CutOrder, OffsetRange, Storage};
use highwater_protocol::follower::PartitionFetchState;
use highwater_types::Offset;

use super::{FollowerReplica, FollowerStep};
use crate::Now;

impl<S: Storage> FollowerReplica<S> {
    /// A reader met a bad batch in the segment of this base. What of it is damaged goes on record under a new incarnation: from
    /// there on nothing is acknowledged until it is repaired, as with damage that the opening of a log finds. While the replica
    /// has failed nothing is done; the next reader asks again. *Blocks.*
    pub fn on_rot_met(&self, segment: Offset, now: Now) -> FollowerStep {
        let _applying = self.applying.lock();
        if matches!(self.state(now.monotonic), PartitionFetchState::Failed { .. }) {
            return FollowerStep::default();
        }
        let log = self.log();
        match log.note_rot(segment, Some((self.place.fresh_incarnation)())) {
            Ok(true) => self.log_replaced(&log, now),
            Ok(false) => FollowerStep::default(),
            Err(error) => self.storage_failed(&error, now),
        }
    }

    /// What the leader has does not fit in the place of this damage: rot beside a missing segment, a batch across a log start
    /// that rose, bytes that others take up now. Everything from the damage on goes, and comes again by replication; what of it
    /// lay below the high watermark is kept beside the log. First the incarnation is renewed: what is cut may have been
    /// acknowledged under a leader that had lost the damaged range itself. Nothing happens where the damage is no more, or the
    /// replica has failed. *Blocks.*
    pub fn cut_to_damage(&self, range: OffsetRange, now: Now) -> FollowerStep {
        let _applying = self.applying.lock();
        let log = self.log();
        let is_there = log.damage().iter().any(|d| !d.at_end && d.range.covers(range));
        if !is_there || matches!(self.state(now.monotonic), PartitionFetchState::Failed { .. }) {
            return FollowerStep::default();
        }
        let high_watermark = self.core.lock().partition.high_watermark();
        let cut = || {
            log.renew_incarnation((self.place.fresh_incarnation)())?;
            log.remove_producer_snapshots()?;
            log.truncate_to(range.start, high_watermark, CutOrder::Leader)
        };
        match cut() {
            Ok(truncated) => {
                tracing::warn!(partition = %log.partition(), damage = %range, cut = %truncated.cut, "no record fits in the place of damage: cut there, and replicated again");
                self.log_replaced(&log, now)
            }
            Err(error) => self.storage_failed(&error, now),
        }
    }
}
