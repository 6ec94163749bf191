//! How a leadership passes on: take-over from a dead leader, hand-over, preferred and unclean election (design.md 6.6, 6.11,
//! 6.12, 6.13). Pure, like `election`: records in, records out; the caller proposes by compare-and-swap.
//!
//! ```text
//!   leader = 1, isr = {1, 2, 3}
//!     dead ──take_over by 2──▶ leader = 2, epoch + 1, isr = {2, 3}     1 is out: nothing waits for it
//!     ──resignation of 1──▶ leader = none, same epoch, isr = {1, 2, 3} ──take_over by 2──▶ leader = 2, isr = {1, 2, 3}
//! ```
//! What must hold: who takes over is in the in-sync set with the incarnation that it holds under its lock; the new set is
//! part of the old one; only an unclean election breaks that, and says so in the record for good.

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{IsrMember, NodeId, PartitionRecord, Resignation, UncleanElection};

use crate::election::lead;
use crate::{Candidate, Ineligible, first_leadership, renewed_leadership};

/// The record in which `candidate` leads: the first leadership of a new partition, another epoch of its own, or one that it takes
/// over; where it is not electable, and `order` allows that, uncleanly.
///
/// # Errors
/// As the election that it is.
pub fn next_leadership(
    record: &PartitionRecord,
    candidate: &Candidate,
    order: UncleanOrder,
) -> Result<PartitionRecord, Ineligible> {
    let proposal = if record.is_new() {
        first_leadership(record, candidate)
    } else if record.leader == Some(candidate.node) {
        renewed_leadership(record, candidate)
    } else {
        take_over(record, candidate)
    };
    match proposal {
        Err(Ineligible::NotElectable { .. }) if order != UncleanOrder::None => {
            unclean_leadership(record, candidate, order)
        }
        proposal => proposal,
    }
}

/// The record in which `candidate` leads in a new epoch, in the place of a leader that is dead or has resigned. A dead leader
/// leaves the in-sync set, because nothing may wait for it; one that resigned stays.
///
/// That the leader is dead is the caller's finding ([`take_over_delay`] says when to look). It need not be right: the old
/// leader was in the same set, so it commits nothing any more once this one fetches no longer from it (design.md 6.6).
///
/// # Errors
/// The rule that forbids it.
pub fn take_over(record: &PartitionRecord, candidate: &Candidate) -> Result<PartitionRecord, Ineligible> {
    if record.leader == Some(candidate.node) {
        return Err(Ineligible::LeadsAlready);
    }
    check_electable(record, candidate)?;
    let survives =
        |member: &IsrMember| record.leader != Some(member.node) || is_planted(PlantedFault::ElectIntoUnion);
    let isr = record.isr.iter().copied().filter(survives).collect();
    lead(record, candidate, with_candidate(isr, candidate))
}

/// The in-sync set with the candidate as it is. It is in it so, unless a fault is planted.
pub(crate) fn with_candidate(mut isr: Vec<IsrMember>, candidate: &Candidate) -> Vec<IsrMember> {
    let own = IsrMember { node: candidate.node, incarnation: candidate.incarnation };
    match isr.iter_mut().find(|member| member.node == candidate.node) {
        Some(member) => *member = own,
        None => isr.push(own),
    }
    isr
}

/// Whether this incarnation of the candidate is in the in-sync set (design.md 6.3, 6.6).
pub(crate) fn check_electable(record: &PartitionRecord, candidate: &Candidate) -> Result<(), Ineligible> {
    if !record.has_replica(candidate.node) {
        return Err(Ineligible::NotAReplica);
    }
    let listed = record.isr_member(candidate.node).map(|member| member.incarnation);
    let passes = match listed {
        Some(listed) => listed == candidate.incarnation || is_planted(PlantedFault::ElectAnyIncarnation),
        None => is_planted(PlantedFault::ElectFromOutsideIsr),
    };
    if passes { Ok(()) } else { Err(Ineligible::NotElectable { own: candidate.incarnation, listed }) }
}

/// How long `node` waits, from the moment it knows that nobody leads, before it takes over: its place among the members of
/// the in-sync set that may still do it, times `stagger` (design.md 6.6). `None`: it may not stand.
///
/// The preferred leader goes first; the successor that a resigned leader named goes before it, and that leader last.
/// Replicas that are being removed stand only while no other member lives (6.12). `alive` tells whether a node's leader-svc
/// lives, as far as is known; the recorded leader counts as dead whatever it says.
#[must_use]
pub fn take_over_delay(
    record: &PartitionRecord,
    node: NodeId,
    stagger: Duration,
    alive: impl Fn(NodeId) -> bool,
) -> Option<Duration> {
    if record.is_new() || record.leader == Some(node) || record.isr_member(node).is_none() {
        return None;
    }
    let may_stand =
        |other: NodeId| record.leader != Some(other) && !record.has_withdrawn(other) && alive(other);
    let stands = |other: NodeId| other == node || may_stand(other);
    let order = standing_order(record, stands);
    let place = order.iter().position(|other| *other == node)?;
    Some(stagger.saturating_mul(u32::try_from(place).unwrap_or(u32::MAX)))
}

/// Members of the in-sync set that `may_lead`, in the order in which they are to stand: a named successor, the replicas in
/// their order, who resigned. Without those that are being removed, unless there are no others.
fn standing_order(record: &PartitionRecord, may_lead: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
    let is_member = |node: &NodeId| record.isr_member(*node).is_some() && may_lead(*node);
    let mut order: Vec<_> = record.replicas.iter().copied().filter(is_member).collect();
    if order.iter().any(|node| !record.removing.contains(node)) {
        order.retain(|node| !record.removing.contains(node));
    }
    if let Some(Resignation { node, successor }) = record.resigned {
        // A stable sort keeps the order of the others.
        order.sort_by_key(|other| if Some(*other) == successor { 0 } else { 1 + u8::from(*other == node) });
    }
    order
}

/// Who should take the leadership over from `record.leader` when it stops (design.md 6.11): the first member of the in-sync
/// set, in the order of the replicas, whose leader-svc lives. `None`: nobody can, so it keeps the record as it is.
#[must_use]
pub fn successor(record: &PartitionRecord, alive: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let may_lead = |node: NodeId| record.leader != Some(node) && !record.has_withdrawn(node) && alive(node);
    let order = standing_order(record, may_lead);
    order.first().copied()
}

/// Whom the leader should hand over to so that the preferred replica leads again: the first replica, if it is another one,
/// in sync, alive, and not about to be removed (design.md 6.6).
#[must_use]
pub fn preferred_leader(record: &PartitionRecord, alive: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let preferred = record.target_replicas().first().copied()?;
    let may_lead = record.isr_member(preferred).is_some() && alive(preferred);
    (may_lead && record.leader.is_some_and(|leader| leader != preferred)).then_some(preferred)
}

/// The record in which the leader gives its leadership up in favour of `successor`, or of anybody in sync. The in-sync set
/// stays, the leader in it: what it acknowledged it holds (design.md 6.11). It appends nothing after it proposed this.
///
/// # Errors
/// `NotTheRecordedLeader`; `NotElectable` when the successor is not in the in-sync set.
pub fn resignation(
    record: &PartitionRecord,
    leader: NodeId,
    successor: Option<NodeId>,
) -> Result<PartitionRecord, Ineligible> {
    if record.leader != Some(leader) {
        return Err(Ineligible::NotTheRecordedLeader { recorded: record.leader });
    }
    if let Some(successor) = successor.filter(|node| record.isr_member(*node).is_none()) {
        return Err(Ineligible::NotInSync { node: successor });
    }
    let proposed = PartitionRecord {
        leader: None,
        resigned: Some(Resignation { node: leader, successor }),
        partition_epoch: record.partition_epoch.next(),
        ..record.clone()
    };
    debug_assert_eq!(crate::check_change(record, &proposed), Ok(()), "a resignation is a legal record");
    Ok(proposed)
}

/// The record in which `candidate`, which the in-sync set names with another incarnation than it holds, says so: that one is
/// gone for good, so nobody need wait for it (design.md 6.3, 6.13). Where it is the recorded leader, it gives the leadership
/// up in favour of `successor`, or of anybody in sync. `None`: there is nothing to say, or it is said already.
#[must_use]
pub fn withdrawal(
    record: &PartitionRecord,
    candidate: &Candidate,
    successor: Option<NodeId>,
) -> Option<PartitionRecord> {
    let listed = record.isr_member(candidate.node)?;
    if listed.incarnation == candidate.incarnation || record.has_withdrawn(candidate.node) {
        return None;
    }
    let mut proposed = PartitionRecord { partition_epoch: record.partition_epoch.next(), ..record.clone() };
    proposed.withdrawn.push(listed);
    if record.leader == Some(candidate.node) {
        proposed.leader = None;
        proposed.resigned = Some(Resignation { node: candidate.node, successor });
    }
    debug_assert_eq!(crate::check_change(record, &proposed), Ok(()), "a withdrawal is a legal record");
    Some(proposed)
}

/// Who allows an unclean election (design.md 6.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncleanOrder {
    /// Nobody: it is refused.
    None,
    /// The topic's `unclean.leader.election.enable`: only while no member of the in-sync set that could lead lives.
    Topic {
        /// Whether a member of the in-sync set may still come: then it is waited for.
        member_lives: bool,
    },
    /// A person, by `elect --unclean`.
    Person,
}

/// How long `node` waits, from the moment it knows that no member of the in-sync set will come, before it stands for a
/// leadership that its topic allows although it may lack records: its place among the replicas that are `alive`, and one
/// more `stagger` for who comes back just then. `None`: a member that has not withdrawn `may_come` still, or it is no replica,
/// or there is nothing that it could lack.
#[must_use]
pub fn unclean_delay(
    record: &PartitionRecord,
    node: NodeId,
    stagger: Duration,
    may_come: impl Fn(NodeId) -> bool,
    alive: impl Fn(NodeId) -> bool,
) -> Option<Duration> {
    let is_waited_for = |member: &IsrMember| {
        member.node != node && !record.has_withdrawn(member.node) && may_come(member.node)
    };
    if record.is_new() || !record.has_replica(node) || record.isr.iter().any(is_waited_for) {
        return None;
    }
    let before_it = record.replicas.iter().take_while(|other| **other != node);
    let place = 1 + before_it.filter(|other| alive(**other)).count();
    Some(stagger.saturating_mul(u32::try_from(place).unwrap_or(u32::MAX)))
}

/// The record in which a replica that may lack acknowledged records leads, alone in the in-sync set. The record says so for
/// good: with the epoch, from which on cuts below older high watermarks are legal, with where it began, and whom it passed
/// over (design.md 6.5, 6.13).
///
/// # Errors
/// `UncleanForbidden`; `ElectableAnyway` when the candidate needs no such election; as any election.
pub fn unclean_leadership(
    record: &PartitionRecord,
    candidate: &Candidate,
    order: UncleanOrder,
) -> Result<PartitionRecord, Ineligible> {
    if !matches!(order, UncleanOrder::Person | UncleanOrder::Topic { member_lives: false }) {
        return Err(Ineligible::UncleanForbidden);
    }
    if !record.has_replica(candidate.node) {
        return Err(Ineligible::NotAReplica);
    }
    if record.is_new() {
        return Err(Ineligible::NothingToLose);
    }
    if record.is_electable(candidate.node, candidate.incarnation) {
        return Err(Ineligible::ElectableAnyway);
    }
    let isr = vec![IsrMember { node: candidate.node, incarnation: candidate.incarnation }];
    // The note first: the rules of records ask for it beside a set that is not part of the old one.
    let epoch = crate::election::next_epoch(record, candidate)?;
    let noted = PartitionRecord {
        unclean: Some(UncleanElection { epoch, log_end: candidate.log_end, passed_over: record.isr.clone() }),
        ..record.clone()
    };
    let mut proposed = lead(&noted, candidate, isr)?;
    proposed.unclean = noted.unclean;
    debug_assert_eq!(proposed.leader_epoch, Some(epoch), "the note names this leadership");
    debug_assert_eq!(crate::check_change(record, &proposed), Ok(()), "an unclean election is on record");
    Ok(proposed)
}

#[cfg(test)]
#[path = "takeover_test.rs"]
mod tests;
