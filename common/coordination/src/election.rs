//! Who may take a leadership, and the record that would make it so (design.md 6.2, 6.3, 6.9). Pure: the caller proposes
//! the record by compare-and-swap, and leads only once that is known to be committed.
//!
//! What must hold: the epoch that is proposed lies above the record's and above every epoch that the candidate's own
//! directory has seen; only a new partition's first leader changes the in-sync set. Deliberately absent: taking over from
//! another leader, handing over, unclean election.

use std::time::Duration;

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
    if !record.is_electable(candidate.node, candidate.incarnation) {
        return Err(Ineligible::NotElectable {
            own: candidate.incarnation,
            listed: record.isr_member(candidate.node).map(|m| m.incarnation),
        });
    }
    lead(record, candidate, record.isr.clone())
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

fn lead(
    record: &PartitionRecord,
    candidate: &Candidate,
    isr: Vec<IsrMember>,
) -> Result<PartitionRecord, Ineligible> {
    let adopted = record.adopted.and_then(|history| history.highest_epoch);
    let highest = record.leader_epoch.max(candidate.highest_epoch).max(adopted);
    let epoch = highest.map_or(LeaderEpoch::FIRST, LeaderEpoch::next);
    if Some(epoch) <= highest {
        return Err(Ineligible::EpochsUsedUp);
    }
    let proposed = PartitionRecord {
        leader: Some(candidate.node),
        leader_epoch: Some(epoch),
        isr,
        partition_epoch: record.partition_epoch.next(),
        ..record.clone()
    };
    debug_assert_eq!(crate::check_change(record, &proposed), Ok(()), "an election proposes a legal record");
    Ok(proposed)
}

#[cfg(test)]
#[path = "election_test.rs"]
mod tests;
