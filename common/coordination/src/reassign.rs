//! Moving a partition's replicas, one record at a time (KIP-455, design.md 6.12). Pure.
//!
//! ```text
//!   replicas 1 2 3        begin [2,3,4]      replicas 2 3 4 1  adding 4  removing 1
//!     4 catches up and joins the in-sync set; 1, if it leads, resigns
//!     finish                                 replicas 2 3 4
//!   cancel at any time before:               replicas 2 3 1
//! ```
//! What must hold: the replicas in use are never fewer than before until every added one is in sync; an added one does not
//! raise what `acks=all` needs; the leader is never one that leaves in the same record.

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{NodeId, PartitionRecord};

/// Why a reassignment is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReassignmentRefused {
    /// The wanted replicas are none, or name a node twice.
    #[error("replicas must be distinct and at least one")]
    BadReplicas,
    /// They are the replicas already, and nothing is under way.
    #[error("the replicas are these already")]
    Unchanged,
    /// Nothing is under way.
    #[error("no reassignment is under way")]
    NoneUnderWay,
    /// The leader was only being added: it has to hand over first.
    #[error("node {leader} leads and is only being added: elect another leader first")]
    LeaderWouldLeave {
        /// The leader.
        leader: NodeId,
    },
    /// Nobody would be left in the in-sync set.
    #[error("no replica that stays is in sync")]
    NobodyInSync,
}

/// What the leader does next about a reassignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassignmentStep {
    /// Nothing: none is under way, or added replicas are not in sync yet.
    Wait,
    /// The leader is being removed: it resigns in favour of this node, which then finishes.
    HandOver {
        /// A member of the in-sync set that stays.
        successor: NodeId,
    },
    /// Write this record: the removed replicas leave, all in one change.
    Finish(Box<PartitionRecord>),
}

/// The replicas in use before the reassignment that is under way; those that it removes come last.
#[must_use]
pub fn original_replicas(record: &PartitionRecord) -> Vec<NodeId> {
    record.replicas.iter().copied().filter(|node| !record.adding.contains(node)).collect()
}

/// The record that begins to move the partition to `target`, the preferred leader first. One that is under way is replaced:
/// what it was adding and is not wanted any more leaves at once, unless it leads.
///
/// # Errors
/// [`ReassignmentRefused`].
pub fn begin(record: &PartitionRecord, target: &[NodeId]) -> Result<PartitionRecord, ReassignmentRefused> {
    let mut distinct = target.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    if target.is_empty() || distinct.len() != target.len() {
        return Err(ReassignmentRefused::BadReplicas);
    }
    if record.replicas == target && !record.is_being_moved() {
        return Err(ReassignmentRefused::Unchanged);
    }
    let in_use = original_replicas(record);
    let adding: Vec<_> = target.iter().copied().filter(|node| !in_use.contains(node)).collect();
    let removing: Vec<_> = in_use.iter().copied().filter(|node| !target.contains(node)).collect();
    let replicas = target.iter().chain(&removing).copied().collect();
    with_replicas(record, replicas, adding, removing)
}

/// The record that goes back to the replicas of before.
///
/// # Errors
/// `NoneUnderWay`; `LeaderWouldLeave` while an added replica leads; `NobodyInSync`.
pub fn cancel(record: &PartitionRecord) -> Result<PartitionRecord, ReassignmentRefused> {
    if !record.is_being_moved() {
        return Err(ReassignmentRefused::NoneUnderWay);
    }
    with_replicas(record, original_replicas(record), Vec::new(), Vec::new())
}

/// What the leader of `record` does next. It finishes once every added replica is in sync and enough of those that stay are
/// for `min.insync.replicas`.
#[must_use]
pub fn next_step(
    record: &PartitionRecord,
    min_insync_replicas: u32,
    alive: impl Fn(NodeId) -> bool,
) -> ReassignmentStep {
    let in_sync = |node: &NodeId| record.isr_member(*node).is_some();
    let target = record.target_replicas();
    let staying = target.iter().filter(|node| in_sync(node)).count();
    let wanted = usize::try_from(min_insync_replicas).unwrap_or(usize::MAX);
    let needed = wanted.min(target.len()).max(1);
    let Some(leader) = record.leader.filter(|_| record.is_being_moved() && staying >= needed) else {
        return ReassignmentStep::Wait;
    };
    if !record.adding.iter().all(in_sync) && !is_planted(PlantedFault::RemovedBeforeAdded) {
        return ReassignmentStep::Wait;
    }
    if record.removing.contains(&leader) {
        let next = target.iter().copied().find(|node| in_sync(node) && alive(*node));
        return next.map_or(ReassignmentStep::Wait, |successor| ReassignmentStep::HandOver { successor });
    }
    match with_replicas(record, target, Vec::new(), Vec::new()) {
        Ok(finished) => ReassignmentStep::Finish(Box::new(finished)),
        Err(_) => ReassignmentStep::Wait,
    }
}

/// `record` with these replicas; who is none any more leaves the in-sync set.
fn with_replicas(
    record: &PartitionRecord,
    replicas: Vec<NodeId>,
    adding: Vec<NodeId>,
    removing: Vec<NodeId>,
) -> Result<PartitionRecord, ReassignmentRefused> {
    if let Some(leader) = record.leader.filter(|leader| !replicas.contains(leader)) {
        return Err(ReassignmentRefused::LeaderWouldLeave { leader });
    }
    let isr: Vec<_> = record.isr.iter().copied().filter(|member| replicas.contains(&member.node)).collect();
    if isr.is_empty() && !record.isr.is_empty() {
        return Err(ReassignmentRefused::NobodyInSync);
    }
    let proposed = PartitionRecord {
        replicas,
        isr,
        adding,
        removing,
        partition_epoch: record.partition_epoch.next(),
        ..record.clone()
    };
    debug_assert_eq!(crate::check_change(record, &proposed), Ok(()), "a reassignment is a legal record");
    Ok(proposed)
}

#[cfg(test)]
#[path = "reassign_test.rs"]
mod tests;
