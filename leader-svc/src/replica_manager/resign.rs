//! Giving a leadership up in favour of an in-sync replica (design.md 2, 6.11).
//!
//! What must hold: nothing is appended after the resignation was proposed; a failure costs time only, because the successor
//! then takes over as from a dead leader.

use std::time::Duration;

use highwater_coordination::{CasOutcome, Coordination, resignation};
use highwater_types::{NodeId, PartitionRecord};
use tokio::time::{Instant, timeout_at};

use crate::partition::LedPartition;

/// How many leaderships are given up at the same time.
pub(super) const RESIGNATIONS_MAX: usize = 64;

/// How long it may take in all: at a stop, for all leaderships together. What is left then is taken over.
pub(super) const RESIGNING_MAX: Duration = Duration::from_secs(1);

/// How often it is proposed: a change of the in-sync set may come first.
const ATTEMPTS: u32 = 3;

/// Tells everybody by the record that `successor` is to lead, until `until` at most; answers whether it did. The leadership
/// is over.
pub(super) async fn hand_over(partition: &LedPartition, successor: NodeId, until: Instant) -> bool {
    debug_assert!(partition.replica().is_over(), "nothing is appended any more");
    let (record, store) = (partition.record(), &**partition.coordination());
    let given_up = resign(store, &record, partition.replica().node(), Some(successor), until).await;
    if given_up {
        tracing::info!(partition = %partition.id_name(), successor = successor.get(), "gave the leadership up");
    } else {
        tracing::warn!(partition = %partition.id_name(), "could not give the leadership up; it will be taken over");
    }
    given_up
}

/// Records that `leader` leads no more; without a `successor`, anybody in sync may. Answers whether that is known to be
/// recorded.
pub(super) async fn resign(
    store: &dyn Coordination,
    record: &PartitionRecord,
    leader: NodeId,
    successor: Option<NodeId>,
    until: Instant,
) -> bool {
    timeout_at(until, propose(store, record.clone(), leader, successor)).await.unwrap_or(false)
}

async fn propose(
    store: &dyn Coordination,
    mut known: PartitionRecord,
    leader: NodeId,
    successor: Option<NodeId>,
) -> bool {
    for _ in 0..ATTEMPTS {
        let Ok(proposal) = resignation(&known, leader, successor) else { return false };
        match store.swap_partition(proposal, known.partition_epoch).await {
            Ok(CasOutcome::Committed(_)) => return true,
            // Another leadership is not this one to give up.
            Ok(CasOutcome::Conflict(newer)) if newer.leader_epoch == known.leader_epoch => known = newer,
            Ok(CasOutcome::Conflict(_)) | Err(_) => return false,
        }
    }
    false
}
