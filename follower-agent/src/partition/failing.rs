//! A replica that has failed, as on a full disk: its leader is told, once in each leadership. (One whose log cannot even be
//! opened is no partition of this kind: `replica_manager/unopened.rs`.)
//!
//! What must hold: without that the leader could tell it from a slow one only after `replica.lag.time.max.ms`, and acks=all
//! would wait for so long. Nothing is acknowledged by it. What was told of one failure says nothing of the next.

use highwater_protocol::follower::{FetchAsk, FetchIntent, FetchPosition};

use super::FollowedPartition;
use super::pausing::Told;

impl FollowedPartition {
    /// What goes out in the place of no request: the news of a failure, while it is owed.
    pub(super) fn while_failed(&self) -> FetchIntent {
        let ask = self.replica.inspect(|core| core.failed_ask());
        let owed = ask.filter(|ask| self.told_failure.lock().is_owed(ask.position.leader_epoch));
        owed.map_or(FetchIntent::Not, FetchIntent::Ask)
    }

    /// Whether the leader is to be told of a failure.
    pub(super) fn owes_failure(&self) -> bool {
        self.while_failed() != FetchIntent::Not
    }

    pub(super) fn note_failure_sent(&self, ask: &FetchAsk) {
        let mut told = self.told_failure.lock();
        if ask.failed {
            told.on_sent(ask.position.leader_epoch);
        } else {
            *told = Told::default();
        }
    }

    pub(super) fn note_failure_heard(&self, sent: &FetchPosition) {
        self.told_failure.lock().on_answer(sent.leader_epoch);
    }
}
