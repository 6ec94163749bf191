//! Faults planted on purpose, so that a simulation can prove that it would notice them.
//!
//! With the feature `planted-faults`, which only tests switch on, a thread says by [`plant`] which rules its code is to
//! break, and each rule's own place asks [`is_planted`]. Without the feature that answer is a constant, so a product holds
//! nothing of it.
//!
//! A fault is named by the rule it breaks (design.md 6). Where a simulation has to break a rule itself, because the rule
//! binds whoever drives the code, the fault says so.

/// A rule that a test can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PlantedFault {
    // === the leader's core ===
    /// Followers of an older epoch count for the high watermark (S60).
    CountOlderEpoch,
    /// A follower joins the in-sync set without having reached the start of the leader's epoch (S52).
    ExpandWithoutEpochStart,
    /// A member that is being added counts only once the record says so (S55).
    ExpansionCountedLate,
    /// A member that is being removed counts no more before the record says so (S55).
    ShrinkCountedEarly,
    /// A fetch that diverges acknowledges (S24).
    DivergingFetchCounts,
    /// Re-reading for a parked fetch acknowledges (S25).
    ParkedFetchCounts,
    /// A replaced incarnation's fetches count (S64).
    OldIncarnationCounts,
    /// The high watermark moves although the in-sync set is below its minimum (S58).
    AdvanceBelowMinIsr,
    /// A leader's high watermark falls with what its followers acknowledge (S59).
    HighWatermarkFalls,
    /// A read of the old record decides a change of unknown outcome (design.md 6.4).
    UnknownDecidedByRead,
    /// Where a follower reads counts as what it holds, although it reads ahead (design.md 3).
    FetchOffsetAcknowledges,
    /// Under `fsync` the leader's own appended end counts, flushed or not (design.md 2).
    LeaderCountsUnflushed,
    /// A shrunk-away follower counts for nothing even if it is about to join (S57).
    JoiningNotCounted,
    /// A follower that has not been seen in this leadership is out of the in-sync set at once: no grace (S53).
    NoGraceAtLeaderStart,
    /// A fetch that a later one of its follower overtook counts like any other (design.md 6.3).
    OvertakenFetchCounts,

    // === the follower's core ===
    /// A start cuts the log to the high watermark (KIP-101).
    TruncateToHighWatermarkAtStart,
    /// After one cut the logs are taken to agree (KIP-279).
    OneRoundTruncation,
    /// A cut is done although the leadership that asked for it is over.
    UnfencedTruncation,
    /// An answer is compared by its fetch offset alone (S5).
    StaleAnswerApplied,
    /// A diverging answer is applied although the log was cut since.
    LateDivergingAnswerApplied,
    /// An undefined answer cuts to the high watermark (S39); shows only beside [`Self::NoEpochAtLeaderStart`].
    UndefinedCuts,
    /// Records are acknowledged under `fsync` before they are flushed.
    AcknowledgeUnflushed,
    /// A cut below the high watermark needs no unclean election on record (design.md 6.5).
    CutBelowHighWatermark,
    /// A cut below what was acknowledged keeps the incarnation (design.md 6.3).
    CutKeepsIncarnation,
    /// A replica works under an epoch below the highest that its directory has seen (design.md 6.5).
    WorkBelowHighestEpoch,
    /// Records behind damage that is not repaired are acknowledged (design.md 2).
    DamageAcknowledged,
    /// What an unclean election takes from a replica is not noted before it is cut (design.md 6.13).
    LossNotNoted,

    // === elections ===
    /// Any replica stands, in sync or not.
    ElectFromOutsideIsr,
    /// Any incarnation of a member stands: an empty or an older disk (design.md 6.3).
    ElectAnyIncarnation,
    /// A leader that restarts goes on in its old epoch (design.md 6.2).
    EpochReused,
    /// Replicas that a reassignment removes leave before those that it adds are in sync (design.md 6.12).
    RemovedBeforeAdded,
    /// A new leader keeps the dead one in the in-sync set, and waits for nobody whom it has not heard of.
    ElectIntoUnion,

    // === the log and its unit ===
    /// The epoch of a leadership without records is not noted (S36).
    NoEpochAtLeaderStart,
    /// A directory is not synced after a segment was created in it.
    DirectoryNotSynced,
    /// A truncation does not lower the recovery point first (design.md 2).
    CheckpointNotLowered,
    /// A failed flush is tried again as if nothing had happened (design.md 2).
    FailedFlushRetried,
    /// What a log holds when it is opened is acknowledged without a flush (design.md 2).
    OpenedUnflushed,
    /// The checkpoint holds a high watermark above the flushed end (design.md 2).
    HighWatermarkAboveFlushed,
    /// After another boot the high watermark is believed above what was flushed for certain (design.md 2).
    HighWatermarkBelievedAfterReboot,
    /// A truncation does not wait until the removal of segments is on the disk (design.md 2).
    RemovalNotSynced,
    /// Recovery takes a batch whose epoch lies below that of the batch before it: a removed segment came back (design.md 2).
    FallingEpochAccepted,
    /// `page-cache` after another boot keeps its incarnation (design.md 6.3).
    RebootKeepsIncarnation,
    /// Damage below the high watermark keeps the incarnation (design.md 6.3).
    DamageKeepsIncarnation,
    /// Damage that readers meet in a log that is open keeps it (design.md 2, 6.3).
    RotKeepsIncarnation,

    // === producers ===
    /// A duplicate is appended again: producer state is not rebuilt from the log.
    ProducersForgottenAtStart,
    /// A duplicate is answered before its original is committed (design.md 6.10).
    DuplicateAnsweredEarly,
    /// A producer that is unknown may begin at any sequence (design.md 6.10).
    UnknownProducerAnySequence,
    /// A truncation leaves producer state as it was (design.md 6.10).
    TruncationKeepsProducers,

    // === to be broken by whoever drives the code ===
    /// The record is written before the partition's lock is held (design.md 6.6).
    ElectBeforeLock,
    /// The incarnation is read before the lock is held, and not again (design.md 6.6).
    IncarnationReadBeforeLock,
    /// A leader whose lock is lost goes on writing (design.md 6.6).
    WriteWithoutLock,
    /// A disk that is not the one that last ran keeps its incarnations (design.md 6.3).
    RestoredDiskStands,
}

impl PlantedFault {
    /// Every fault.
    pub const ALL: &'static [Self] = &[
        Self::CountOlderEpoch,
        Self::ExpandWithoutEpochStart,
        Self::ExpansionCountedLate,
        Self::ShrinkCountedEarly,
        Self::DivergingFetchCounts,
        Self::ParkedFetchCounts,
        Self::OldIncarnationCounts,
        Self::AdvanceBelowMinIsr,
        Self::HighWatermarkFalls,
        Self::UnknownDecidedByRead,
        Self::FetchOffsetAcknowledges,
        Self::LeaderCountsUnflushed,
        Self::JoiningNotCounted,
        Self::NoGraceAtLeaderStart,
        Self::OvertakenFetchCounts,
        Self::TruncateToHighWatermarkAtStart,
        Self::OneRoundTruncation,
        Self::UnfencedTruncation,
        Self::StaleAnswerApplied,
        Self::LateDivergingAnswerApplied,
        Self::UndefinedCuts,
        Self::AcknowledgeUnflushed,
        Self::CutBelowHighWatermark,
        Self::CutKeepsIncarnation,
        Self::WorkBelowHighestEpoch,
        Self::DamageAcknowledged,
        Self::LossNotNoted,
        Self::ElectFromOutsideIsr,
        Self::ElectAnyIncarnation,
        Self::EpochReused,
        Self::RemovedBeforeAdded,
        Self::ElectIntoUnion,
        Self::NoEpochAtLeaderStart,
        Self::DirectoryNotSynced,
        Self::CheckpointNotLowered,
        Self::FailedFlushRetried,
        Self::OpenedUnflushed,
        Self::HighWatermarkAboveFlushed,
        Self::HighWatermarkBelievedAfterReboot,
        Self::RemovalNotSynced,
        Self::FallingEpochAccepted,
        Self::RebootKeepsIncarnation,
        Self::DamageKeepsIncarnation,
        Self::RotKeepsIncarnation,
        Self::ProducersForgottenAtStart,
        Self::DuplicateAnsweredEarly,
        Self::UnknownProducerAnySequence,
        Self::TruncationKeepsProducers,
        Self::ElectBeforeLock,
        Self::IncarnationReadBeforeLock,
        Self::WriteWithoutLock,
        Self::RestoredDiskStands,
    ];
}

#[cfg(feature = "planted-faults")]
mod switch {
    use std::cell::Cell;

    use super::PlantedFault;

    thread_local! {
        /// One bit per fault, by its place in the enum.
        static PLANTED: Cell<u64> = const { Cell::new(0) };
    }

    /// Breaks exactly these rules on this thread, and no others, until the next call.
    pub fn plant(faults: &[PlantedFault]) {
        PLANTED.set(faults.iter().fold(0, |bits, fault| bits | bit(*fault)));
    }

    /// Whether this rule is to be broken on this thread.
    #[must_use]
    pub fn is_planted(fault: PlantedFault) -> bool {
        PLANTED.get() & bit(fault) != 0
    }

    const fn bit(fault: PlantedFault) -> u64 {
        1 << (fault as u8)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn each_fault_has_a_switch_of_its_own() {
            assert!(PlantedFault::ALL.len() <= 64, "one bit each");
            for planted in PlantedFault::ALL {
                plant(&[*planted]);
                let broken: Vec<_> = PlantedFault::ALL.iter().filter(|fault| is_planted(**fault)).collect();
                assert_eq!(broken, [planted]);
            }
            plant(&[]);
            assert!(!PlantedFault::ALL.iter().any(|fault| is_planted(*fault)));
        }
    }
}

#[cfg(feature = "planted-faults")]
pub use switch::{is_planted, plant};

/// Whether this rule is to be broken: never, without the feature `planted-faults`.
#[cfg(not(feature = "planted-faults"))]
#[must_use]
pub const fn is_planted(_fault: PlantedFault) -> bool {
    false
}
