//! Who may take a leadership, and the record that would make it so (design.md 6.2, 6.3, 6.9). Pure: the caller proposes
//! the record by compare-and-swap, and leads only once that is known to be committed.
//!
//! What must hold: the epoch that is proposed lies above the record's and above every epoch that the candidate's own
//! directory has seen. Taking over from another leader, handing over and unclean election are in
//! `takeover`.

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Incarnation, IsrMember, LeaderEpoch, NodeId, Offset, PartitionRecord};

/// What a node brings to an election for one partition: read from its directory while it holds the partition's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node that wants to lead.
    pub node: NodeId,
    /// The incarnation of its replica.
    pub incarnation: Incarnation,
    /// The highest leader epoch in its epoch cache or checkpoint; `None` when it has seen none.
    pub highest_epoch: Option<LeaderEpoch>,
    /// The end of its log.
    pub log_end: Offset,
}

/// Why a candidate may not take a leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ineligible {
    /// The node is not assigned to the partition.
    #[error("not a replica of the partition")]
    NotAReplica,
    /// The partition had a leadership already, so records may have been acknowledged elsewhere (design.md 6.9).
    #[error("the partition is not new: its last leader epoch is {last}")]
    NotNew {
        /// The newest leadership.
        last: LeaderEpoch,
    },
    /// The partition was made from a directory that another node holds (design.md 6.2).
    #[error("the partition's history is on its importer, node {importer}")]
    NotTheImporter {
        /// The node that holds it.
        importer: NodeId,
    },
    /// The importer's log is shorter than what it imported.
    #[error("the log ends at {log_end}, before the end {imported} of the imported history")]
    ImportIncomplete {
        /// The end of the candidate's log.
        log_end: Offset,
        /// The end that was recorded at the import.
        imported: Offset,
    },
    /// Another node is recorded as the leader, or none is.
    #[error("not the recorded leader (recorded: {})", or_none(recorded.as_ref()))]
    NotTheRecordedLeader {
        /// Who is.
        recorded: Option<NodeId>,
    },
    /// The incarnation is not the one in the in-sync set: acknowledged records may be missing (design.md 6.3).
    #[error("incarnation {own} is not electable (in the in-sync set: {})", or_none(listed.as_ref()))]
    NotElectable {
        /// The candidate's incarnation.
        own: Incarnation,
        /// The in-sync set's entry for the node.
        listed: Option<Incarnation>,
    },
    /// The recorded leader does not take over from itself: it renews its leadership.
    #[error("leads already: it renews its leadership instead")]
    LeadsAlready,
    /// A successor was named that is not in the in-sync set.
    #[error("node {node} is not in sync")]
    NotInSync {
        /// The successor.
        node: NodeId,
    },
    /// Neither the topic nor a person allows an unclean election now (design.md 6.13).
    #[error("an unclean election is not allowed")]
    UncleanForbidden,
    /// Nobody has led the partition: there is nothing that an unclean election could pass over.
    #[error("the partition is new")]
    NothingToLose,
    /// The candidate is in sync: it takes over without loss.
    #[error("in sync: no unclean election is needed")]
    ElectableAnyway,
    /// No epoch is left above those in use.
    #[error("leader epochs are used up")]
    EpochsUsedUp,
}

fn or_none(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// The record in which `candidate` takes the first leadership of a new partition, with itself as the in-sync set
/// (design.md 6.9); for an adopted one only the importer may, above the directory's epochs (6.2).
///
/// # Errors
/// The rule that forbids it.
pub fn first_leadership(
    record: &PartitionRecord,
    candidate: &Candidate,
) -> Result<PartitionRecord, Ineligible> {
    if let Some(last) = record.leader_epoch {
        return Err(Ineligible::NotNew { last });
    }
    if !record.has_replica(candidate.node) {
        return Err(Ineligible::NotAReplica);
    }
    if let Some(history) = record.adopted {
        if history.importer != candidate.node {
            return Err(Ineligible::NotTheImporter { importer: history.importer });
        }
        if candidate.log_end < history.log_end {
            return Err(Ineligible::ImportIncomplete {
                log_end: candidate.log_end,
                imported: history.log_end,
            });
        }
    }
    let isr = vec![IsrMember { node: candidate.node, incarnation: candidate.incarnation }];
    lead(record, candidate, isr)
}

/// The record in which the recorded leader, after its own restart, leads again in a new epoch (design.md 6.2). The in-sync
/// set stays: its members fetch again, or are shrunk away.
///
/// # Errors
/// The rule that forbids it.
pub fn renewed_leadership(
    record: &PartitionRecord,
    candidate: &Candidate,
) -> Result<PartitionRecord, Ineligible> {
    if record.leader != Some(candidate.node) {
        return Err(Ineligible::NotTheRecordedLeader { recorded: record.leader });
    }
    crate::takeover::check_electable(record, candidate)?;
    if is_planted(PlantedFault::EpochReused) {
        return Ok(PartitionRecord { partition_epoch: record.partition_epoch.next(), ..record.clone() });
    }
    lead(record, candidate, crate::takeover::with_candidate(record.isr.clone(), candidate))
}

/// How long `node` waits, from the moment it sees a new partition, before it stands for the first leadership: its place
/// among those replicas that are not known to be dead, times `stagger`. So the preferred one goes first, and any live one
/// goes soon after. `None`: it may not stand at all.
///
/// `expired` tells whether a replica's leader-svc is known to be dead.
#[must_use]
pub fn first_leadership_delay(
    record: &PartitionRecord,
    node: NodeId,
    stagger: Duration,
    expired: impl Fn(NodeId) -> bool,
) -> Option<Duration> {
    if !record.is_new() || !record.has_replica(node) {
        return None;
    }
    if let Some(history) = record.adopted {
        return (history.importer == node).then_some(Duration::ZERO);
    }
    let before_it = record.replicas.iter().take_while(|replica| **replica != node);
    let waited_for = before_it.filter(|replica| !expired(**replica)).count();
    Some(stagger.saturating_mul(u32::try_from(waited_for).unwrap_or(u32::MAX)))
}

/// The epoch of `candidate`'s leadership: above the record's and above every one that its directory has seen.
pub(crate) fn next_epoch(record: &PartitionRecord, candidate: &Candidate) -> Result<LeaderEpoch, Ineligible> {
    let adopted = record.adopted.and_then(|history| history.highest_epoch);
    let highest = record.leader_epoch.max(candidate.highest_epoch).max(adopted);
    let epoch = highest.map_or(LeaderEpoch::FIRST, LeaderEpoch::next);
    if Some(epoch) <= highest { Err(Ineligible::EpochsUsedUp) } else { Ok(epoch) }
}

pub(crate) fn lead(
    record: &PartitionRecord,
    candidate: &Candidate,
    isr: Vec<IsrMember>,
) -> Result<PartitionRecord, Ineligible> {
    let epoch = next_epoch(record, candidate)?;
    let proposed = PartitionRecord {
        leader: Some(candidate.node),
        leader_epoch: Some(epoch),
        isr,
        resigned: None,
        withdrawn: Vec::new(),
        partition_epoch: record.partition_epoch.next(),
        ..record.clone()
    };
    debug_assert!(proposed.leader_epoch > record.leader_epoch, "every leadership is a new epoch");
    Ok(proposed)
}

#[cfg(test)]
#[path = "election_test.rs"]
mod tests;
