//! Every state that the real core can reach within bounds (`system_tests::explore`): no rule breaks, and each rule that is broken
//! on purpose, and that the bounds can reach, is seen by a shortest trace.
//!
//! A finding prints its trace: each action, and all nodes after it.
#![allow(clippy::print_stdout, reason = "the numbers of a search are its result")]

use highwater_types::Durability;
use highwater_types::planted::PlantedFault;
use system_tests::explore::{Bounds, Outcome, explore};
use system_tests::tier::{Tier, tier};

/// More states than any search here has: one that finds more has lost its bounds.
const STATES_MAX: usize = 20_000_000;

/// What is exhausted in every tier.
const SMALL: &[Bounds] = &[
    Bounds { records: 1, elections: 1, isr_changes: 1, timeouts: 1, ..Bounds::QUIET },
    Bounds { records: 2, elections: 2, resignations: 2, isr_changes: 1, ..TWO_PAGE_CACHE },
];

/// What is exhausted in the tier `long` as well.
const LARGE: &[Bounds] = &[
    Bounds { records: 1, elections: 1, isr_changes: 1, power_losses: 1, ..Bounds::QUIET },
    Bounds { records: 1, elections: 1, power_losses: 1, checkpointed: true, ..Bounds::QUIET },
    Bounds { records: 2, elections: 1, isr_changes: 1, ..Bounds::QUIET },
    Bounds { records: 1, elections: 2, isr_changes: 1, ..Bounds::QUIET },
    Bounds { records: 1, elections: 1, isr_changes: 1, lapses: 1, ..Bounds::QUIET },
    Bounds { records: 1, elections: 1, late: 1, ..Bounds::QUIET },
    Bounds { elections: 2, stale: 1, ..ONE_PAGE_CACHE },
    Bounds {
        min_isr: 2,
        records: 1,
        elections: 2,
        isr_changes: 2,
        empty_disks: 1,
        timeouts: 1,
        ..TWO_PAGE_CACHE
    },
    Bounds { records: 2, elections: 2, resignations: 1, isr_changes: 2, late: 1, ..TWO_PAGE_CACHE },
    Bounds {
        records: 2,
        elections: 1,
        isr_changes: 1,
        power_losses: 1,
        crashes: 1,
        timeouts: 1,
        ..Bounds::TWO_NODES
    },
    Bounds { records: 2, elections: 1, isr_changes: 1, late: 1, power_losses: 1, ..Bounds::TWO_NODES },
];

const TWO_PAGE_CACHE: Bounds = Bounds { durability: Durability::PageCache, ..Bounds::TWO_NODES };

/// One record and one election: enough for most rules.
const ONE: Bounds = Bounds { records: 1, elections: 1, ..Bounds::QUIET };

const ONE_PAGE_CACHE: Bounds = Bounds { records: 1, elections: 1, ..Bounds::PAGE_CACHE };

fn told(bounds: &Bounds, planted: &[PlantedFault]) -> Outcome {
    let outcome = explore(*bounds, planted, STATES_MAX);
    println!("{bounds}: {outcome}");
    outcome
}

fn breaks_no_rule(configurations: &[Bounds]) {
    for bounds in configurations {
        let outcome = told(bounds, &[]);
        if let Some(found) = outcome.found {
            panic!("{bounds}: after {} actions: {}\n{}", found.actions, found.what, found.trace);
        }
        assert!(outcome.exhausted, "{bounds}: more than {STATES_MAX} states");
        assert!(outcome.states > 1_000 && outcome.depth > 10, "{bounds}: hardly anything happens: {outcome}");
    }
}

#[test]
fn no_state_of_a_small_configuration_breaks_a_rule() {
    breaks_no_rule(SMALL);
}

#[test]
fn no_state_of_a_large_configuration_breaks_a_rule() {
    if tier() == Tier::Long {
        breaks_no_rule(LARGE);
    }
}

/// Each rule that is broken on purpose, with bounds that are enough to see it, those of the first list in every tier. One that
/// shows only together with another is planted with it.
const CAUGHT: &[(&[PlantedFault], Bounds)] = &[
    (&[PlantedFault::AcknowledgeUnflushed], Bounds { records: 1, ..Bounds::QUIET }),
    (
        &[PlantedFault::AdvanceBelowMinIsr],
        Bounds { records: 1, lapses: 1, isr_changes: 1, min_isr: 2, ..Bounds::QUIET },
    ),
    (
        &[PlantedFault::CountOlderEpoch],
        Bounds { records: 2, elections: 1, isr_changes: 1, power_losses: 1, ..Bounds::TWO_NODES },
    ),
    (
        &[PlantedFault::DivergingFetchCounts],
        Bounds { records: 2, elections: 1, isr_changes: 1, ..Bounds::PAGE_CACHE },
    ),
    (&[PlantedFault::ElectFromOutsideIsr], Bounds { elections: 2, ..ONE }),
    (&[PlantedFault::ElectIntoUnion], ONE),
    (&[PlantedFault::EpochReused], Bounds { crashes: 1, ..ONE }),
    (&[PlantedFault::ExpansionCountedLate], Bounds { isr_changes: 1, ..ONE }),
    (&[PlantedFault::FetchOffsetAcknowledges], Bounds { records: 1, ..Bounds::QUIET }),
    (&[PlantedFault::JoiningNotCounted], Bounds { elections: 2, ..ONE_PAGE_CACHE }),
    (&[PlantedFault::LeaderCountsUnflushed], Bounds { records: 1, ..Bounds::QUIET }),
    (&[PlantedFault::NoGraceAtLeaderStart], Bounds { isr_changes: 1, ..Bounds::QUIET }),
    (
        &[PlantedFault::OldIncarnationCounts],
        Bounds { records: 1, isr_changes: 1, empty_disks: 1, ..Bounds::PAGE_CACHE },
    ),
    (
        &[PlantedFault::OvertakenFetchCounts],
        Bounds { records: 2, elections: 1, isr_changes: 1, late: 1, power_losses: 1, ..Bounds::TWO_NODES },
    ),
    (&[PlantedFault::ParkedFetchCounts], Bounds { records: 1, ..Bounds::QUIET }),
    (&[PlantedFault::RebootKeepsIncarnation], Bounds { power_losses: 1, ..ONE_PAGE_CACHE }),
    (&[PlantedFault::ShrinkCountedEarly], Bounds { records: 1, lapses: 1, ..Bounds::QUIET }),
    (&[PlantedFault::TruncateToHighWatermarkAtStart], Bounds { crashes: 1, ..ONE }),
    (
        &[PlantedFault::UndefinedCuts, PlantedFault::NoEpochAtLeaderStart],
        Bounds { records: 2, elections: 2, resignations: 2, isr_changes: 1, ..TWO_PAGE_CACHE },
    ),
    (
        &[PlantedFault::UnknownDecidedByRead],
        Bounds { records: 1, isr_changes: 1, timeouts: 1, lapses: 1, ..TWO_PAGE_CACHE },
    ),
    (&[PlantedFault::WorkBelowHighestEpoch], Bounds { elections: 2, stale: 1, ..ONE_PAGE_CACHE }),
];

/// The rest of them, in the tier `long`.
const CAUGHT_LONG: &[(&[PlantedFault], Bounds)] = &[
    (&[PlantedFault::ElectAnyIncarnation], Bounds { empty_disks: 1, ..ONE }),
    (&[PlantedFault::ExpandWithoutEpochStart], Bounds { empty_disks: 1, isr_changes: 1, ..ONE_PAGE_CACHE }),
    (&[PlantedFault::HighWatermarkFalls], Bounds { records: 2, ..ONE_PAGE_CACHE }),
    (
        &[PlantedFault::LateDivergingAnswerApplied],
        Bounds { records: 2, elections: 1, isr_changes: 1, late: 1, power_losses: 1, ..Bounds::TWO_NODES },
    ),
    (
        &[PlantedFault::LateDivergingAnswerApplied, PlantedFault::CutKeepsIncarnation],
        Bounds { records: 2, elections: 1, isr_changes: 2, late: 1, ..TWO_PAGE_CACHE },
    ),
    (
        &[PlantedFault::OneRoundTruncation],
        Bounds { records: 3, elections: 3, resignations: 3, isr_changes: 1, ..TWO_PAGE_CACHE },
    ),
    (
        &[PlantedFault::StaleAnswerApplied],
        Bounds { records: 2, elections: 1, isr_changes: 1, late: 1, power_losses: 1, ..Bounds::TWO_NODES },
    ),
    (
        &[PlantedFault::UnfencedTruncation],
        Bounds { elections: 2, isr_changes: 1, work_waits: true, ..ONE_PAGE_CACHE },
    ),
];

const OF_THE_LOG: &str = "of the log, of which the twin keeps only what a crash leaves";
const OF_PRODUCERS: &str = "nothing here has a producer";
const OF_THE_DRIVER: &str =
    "binds who drives the core: here a log has one holder, and disks are what they seem";

/// Rules whose breach no bounds of this exploration can reach, and why.
const NOT_REACHED: &[(PlantedFault, &str)] = &[
    (
        PlantedFault::CutBelowHighWatermark,
        "a second line: while the others hold, and nobody is elected uncleanly, no order to cut goes below a high watermark",
    ),
    (PlantedFault::RemovedBeforeAdded, "nobody moves replicas here"),
    (PlantedFault::DirectoryNotSynced, OF_THE_LOG),
    (PlantedFault::CheckpointNotLowered, OF_THE_LOG),
    (PlantedFault::FailedFlushRetried, OF_THE_LOG),
    (PlantedFault::OpenedUnflushed, OF_THE_LOG),
    (PlantedFault::DamageAcknowledged, OF_THE_LOG),
    (PlantedFault::LossNotNoted, "nobody is elected uncleanly here"),
    (PlantedFault::HighWatermarkAboveFlushed, OF_THE_LOG),
    (PlantedFault::HighWatermarkBelievedAfterReboot, OF_THE_LOG),
    (PlantedFault::RemovalNotSynced, OF_THE_LOG),
    (PlantedFault::FallingEpochAccepted, OF_THE_LOG),
    (PlantedFault::DamageKeepsIncarnation, OF_THE_LOG),
    (PlantedFault::RotKeepsIncarnation, OF_THE_LOG),
    (PlantedFault::ProducersForgottenAtStart, OF_PRODUCERS),
    (PlantedFault::DuplicateAnsweredEarly, OF_PRODUCERS),
    (PlantedFault::UnknownProducerAnySequence, OF_PRODUCERS),
    (PlantedFault::TruncationKeepsProducers, OF_PRODUCERS),
    (PlantedFault::ElectBeforeLock, OF_THE_DRIVER),
    (PlantedFault::IncarnationReadBeforeLock, OF_THE_DRIVER),
    (PlantedFault::WriteWithoutLock, OF_THE_DRIVER),
    (PlantedFault::RestoredDiskStands, OF_THE_DRIVER),
];

#[test]
fn each_planted_fault_within_the_bounds_is_found_by_a_shortest_trace() {
    let rest = if tier() == Tier::Long { CAUGHT_LONG } else { &[] };
    let mut missed = Vec::new();
    for (faults, bounds) in CAUGHT.iter().chain(rest) {
        let name = format!("{faults:?}").replace(['[', ']'], "").replace(", ", "+");
        match told(bounds, faults).found {
            Some(found) => {
                println!(
                    "planted fault {name}: found after {} actions ({})\n{}",
                    found.actions, found.what, found.trace
                )
            }
            None => missed.push(format!("{name} within {bounds}")),
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join("; "));
}

#[test]
fn no_planted_fault_is_forgotten() {
    let caught: Vec<_> = CAUGHT.iter().chain(CAUGHT_LONG).flat_map(|(faults, _)| faults.iter()).collect();
    let is_listed =
        |fault: &PlantedFault| caught.contains(&fault) != NOT_REACHED.iter().any(|(other, _)| other == fault);
    let forgotten: Vec<_> = PlantedFault::ALL.iter().filter(|fault| !is_listed(fault)).collect();
    assert!(forgotten.is_empty(), "neither found nor said not to be reached, or both: {forgotten:?}");
    for (fault, why) in NOT_REACHED {
        println!("planted fault {fault:?}: not reached: {why}");
    }
}

#[test]
fn a_search_finds_the_same_each_time() {
    let (faults, bounds) = (&[PlantedFault::ExpansionCountedLate], Bounds { isr_changes: 1, ..ONE });
    let [first, second] = [(); 2].map(|()| told(&bounds, faults));
    assert_eq!(first.found.map(|found| found.trace), second.found.map(|found| found.trace));
}
