//! The in-sync set: what the record says, and the one change that may be under way (S54–S56, design.md 6.4).
//!
//! What holds: at most one change is proposed at a time; members of the committed set and of the proposed one count together
//! (*maximal ISR*), so both directions err on the strict side; a proposal whose outcome is unknown stays pending, and is
//! proposed again against the same version, until a record of a higher partition epoch is seen. A read of the old record
//! decides nothing.

use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{IsrMember, MonotonicTime, NodeId, PartitionEpoch};

/// What became of a proposed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsrOutcome {
    /// It is in the store; the record comes by `on_record`, before or after this.
    Committed,
    /// The version was no longer the expected one. That can be an earlier try of the same change, so it stays pending until
    /// the newer record is seen.
    Conflict,
    /// Timed out or the store could not be reached: it may yet take effect (design.md 6.4).
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// Not answered yet.
    Outstanding,
    /// Decided, but the record that shows how has not been seen.
    AwaitsRecord,
    /// Unknown; to be proposed again at this time.
    Retry(MonotonicTime),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingChange {
    proposed: Vec<IsrMember>,
    expected: PartitionEpoch,
    answer: Answer,
}

/// A change to be written by compare-and-swap against `expected`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsrProposal {
    /// The version that the record must have.
    pub expected: PartitionEpoch,
    /// The whole new set.
    pub isr: Vec<IsrMember>,
}

/// The in-sync set of a partition, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InSyncReplicas {
    committed: Vec<IsrMember>,
    partition_epoch: PartitionEpoch,
    pending: Option<PendingChange>,
}

impl InSyncReplicas {
    pub(super) const fn new(committed: Vec<IsrMember>, partition_epoch: PartitionEpoch) -> Self {
        Self { committed, partition_epoch, pending: None }
    }

    pub(super) fn committed(&self) -> &[IsrMember] {
        &self.committed
    }

    pub(super) const fn partition_epoch(&self) -> PartitionEpoch {
        self.partition_epoch
    }

    pub(super) const fn is_change_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Committed and proposed members together; a node can be in it with two incarnations while one replaces the other.
    pub(super) fn maximal(&self) -> impl Iterator<Item = IsrMember> + '_ {
        let proposed = self.pending.iter().flat_map(|p| p.proposed.iter());
        let added = proposed.filter(|m| !self.committed.contains(m));
        self.committed.iter().chain(added).copied()
    }

    /// Those who count for the high watermark: the maximal set.
    pub(super) fn counted(&self) -> impl Iterator<Item = IsrMember> + '_ {
        let late = is_planted(PlantedFault::ExpansionCountedLate);
        let early = is_planted(PlantedFault::ShrinkCountedEarly);
        self.maximal().filter(move |member| {
            let is_proposed = self.pending.as_ref().is_none_or(|change| change.proposed.contains(member));
            (!late || self.committed.contains(member)) && (!early || is_proposed)
        })
    }

    /// The change under way: what is proposed, against which version, and whether its outcome is unknown.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn pending(&self) -> Option<(&[IsrMember], PartitionEpoch, bool)> {
        let pending = self.pending.as_ref()?;
        Some((&pending.proposed, pending.expected, matches!(pending.answer, Answer::Retry(_))))
    }

    /// Whether this node is in the maximal set, with whatever incarnation.
    pub(super) fn maximal_has_node(&self, node: NodeId) -> bool {
        self.maximal().any(|m| m.node == node)
    }

    /// The smallest size that the set in the store may have: what is compared with `min.insync.replicas` (S58, S61).
    pub(super) fn certain_size(&self) -> usize {
        let committed = self.committed.len();
        self.pending.as_ref().map_or(committed, |p| p.proposed.len().min(committed))
    }

    /// Starts a change; the caller has seen that none is pending.
    pub(super) fn propose(&mut self, isr: Vec<IsrMember>) -> IsrProposal {
        debug_assert!(self.pending.is_none(), "one change in flight at a time (S54)");
        debug_assert!(isr != self.committed, "a change changes something");
        let expected = self.partition_epoch;
        self.pending = Some(PendingChange { proposed: isr.clone(), expected, answer: Answer::Outstanding });
        IsrProposal { expected, isr }
    }

    /// The store answered a proposal against `expected`; ignored when that one is not under way any more (S56): it may have
    /// been seen to be made, and the next one proposed, before its answer arrived.
    pub(super) fn on_outcome(
        &mut self,
        expected: PartitionEpoch,
        outcome: &IsrOutcome,
        now: MonotonicTime,
        retry: Duration,
    ) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.expected == expected) else {
            return;
        };
        debug_assert_eq!(pending.expected, self.partition_epoch, "a newer record ends the change");
        pending.answer = match outcome {
            IsrOutcome::Committed | IsrOutcome::Conflict => Answer::AwaitsRecord,
            IsrOutcome::Unknown => Answer::Retry(now.after(retry)),
        };
        debug_assert!(self.pending.is_some(), "only a newer record ends it (design.md 6.4)");
    }

    /// A record of this leadership. Answers whether it was news; an old one changes nothing.
    pub(super) fn on_record(&mut self, isr: &[IsrMember], partition_epoch: PartitionEpoch) -> bool {
        if partition_epoch <= self.partition_epoch {
            if is_planted(PlantedFault::UnknownDecidedByRead) {
                self.pending.take_if(|change| matches!(change.answer, Answer::Retry(_)));
            }
            return false;
        }
        isr.clone_into(&mut self.committed);
        self.partition_epoch = partition_epoch;
        self.pending = None;
        debug_assert!(!self.is_change_pending(), "whatever was proposed is decided");
        true
    }

    /// When an unknown change is to be proposed again.
    pub(super) fn retry_at(&self) -> Option<MonotonicTime> {
        self.pending.as_ref().and_then(|p| match p.answer {
            Answer::Retry(at) => Some(at),
            Answer::Outstanding | Answer::AwaitsRecord => None,
        })
    }

    /// The same change against the same version, when its time has come (design.md 6.4).
    pub(super) fn repropose(&mut self, now: MonotonicTime) -> Option<IsrProposal> {
        let due = self.retry_at().is_some_and(|at| at <= now);
        let pending = self.pending.as_mut().filter(|_| due)?;
        pending.answer = Answer::Outstanding;
        debug_assert_eq!(pending.expected, self.partition_epoch, "against the same version");
        Some(IsrProposal { expected: pending.expected, isr: pending.proposed.clone() })
    }
}

#[cfg(test)]
#[path = "in_sync_replicas_test.rs"]
mod tests;
