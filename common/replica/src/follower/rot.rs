//! Damage that a consumer met in a follower's log while it runs (design.md 2, 6.3).

use highwater_log::Storage;
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
        match log.note_rot(segment, (self.place.fresh_incarnation)()) {
            Ok(true) => self.log_replaced(&log, now),
            Ok(false) => FollowerStep::default(),
            Err(error) => self.storage_failed(&error, now),
        }
    }
}
