//! The core simulation: seeds that must break no rule, rules broken on purpose that must be caught, and a seed that must give
//! the same run twice. What it simulates, and what must hold, is said in `system_tests::core_sim` and
//! `system_tests::invariants`; `cargo run -p system-tests --bin fuzz -- --seed N` replays a seed in words.
#![allow(clippy::print_stdout, reason = "the numbers of a run are its result")]

use highwater_types::planted::PlantedFault;
use system_tests::core_sim::{Failure, Planted, campaign, run};
use system_tests::tier::{Tier, tier};

/// The first seed; every later one follows.
const FIRST: u64 = 0;

/// How many seeds must break no rule.
fn seeds() -> u64 {
    match tier() {
        Tier::Quick => 200,
        Tier::Ci => 30_000,
        Tier::Long => 100_000,
    }
}

#[test]
fn no_seed_breaks_a_rule() {
    let outcome = campaign(FIRST..FIRST + seeds(), None, &Planted::default());
    println!("{outcome}");
    if let Some(failure) = outcome.failure {
        panic!("{failure}");
    }
    let total = &outcome.total;
    assert!(total.steps >= 500 * outcome.seeds, "every run has 500 steps at least");
    assert!(total.acknowledged > outcome.seeds, "producers are served: {}", total.acknowledged);
    assert!(total.leaderships > 2 * outcome.seeds, "leaderships change: {}", total.leaderships);
}

#[test]
fn a_seed_gives_the_same_run_twice_byte_for_byte() {
    let mut traces = Vec::new();
    for seed in [1, 25, 4271] {
        let [first, second] = [(); 2].map(|()| match run(seed, true) {
            Ok(report) => report.trace,
            Err(failure) => panic!("{failure}"),
        });
        assert!(first.lines().count() > 100, "seed {seed} is told in words");
        assert!(first == second, "seed {seed} gives two different runs");
        traces.push(first);
    }
    traces.dedup();
    assert_eq!(traces.len(), 3, "another seed gives another run");
}

/// Each rule that is broken on purpose, with the number of seeds within which that must be seen: mostly twice as many as it
/// takes, or more. The unbroken code survives ten times the largest of them. A second line, whose breach costs nothing while the
/// first one holds, is planted with that: what the pair then costs, the one that comes last does not alone. Of
/// RemovalNotSynced these seeds show what it costs alone, too.
const CAUGHT_WITHIN: &[(&[PlantedFault], u64)] = &[
    (&[PlantedFault::AcknowledgeUnflushed], 50),
    (&[PlantedFault::AdvanceBelowMinIsr], 50),
    (&[PlantedFault::CheckpointNotLowered], 300),
    (&[PlantedFault::CountOlderEpoch], 50),
    (&[PlantedFault::CutBelowHighWatermark, PlantedFault::LateDivergingAnswerApplied], 100),
    (&[PlantedFault::CutKeepsIncarnation, PlantedFault::LateDivergingAnswerApplied], 200),
    (&[PlantedFault::DamageAcknowledged], 200),
    (&[PlantedFault::DamageKeepsIncarnation], 200),
    (&[PlantedFault::DirectoryNotSynced], 100),
    (&[PlantedFault::DivergingFetchCounts], 50),
    (&[PlantedFault::DuplicateAnsweredEarly], 100),
    (&[PlantedFault::ElectAnyIncarnation], 100),
    (&[PlantedFault::ElectBeforeLock], 50),
    (&[PlantedFault::ElectFromOutsideIsr], 50),
    (&[PlantedFault::ElectIntoUnion], 50),
    (&[PlantedFault::EpochReused], 50),
    (&[PlantedFault::ExpandWithoutEpochStart], 300),
    (&[PlantedFault::ExpansionCountedLate], 50),
    (&[PlantedFault::FailedFlushRetried], 300),
    (&[PlantedFault::FetchOffsetAcknowledges], 50),
    (&[PlantedFault::HighWatermarkBelievedAfterReboot, PlantedFault::HighWatermarkAboveFlushed], 3000),
    (&[PlantedFault::HighWatermarkFalls], 50),
    (&[PlantedFault::IncarnationReadBeforeLock], 300),
    (&[PlantedFault::JoiningNotCounted], 50),
    (&[PlantedFault::LateDivergingAnswerApplied], 1000),
    (&[PlantedFault::LeaderCountsUnflushed], 50),
    (&[PlantedFault::LossNotNoted], 100),
    (&[PlantedFault::NoEpochAtLeaderStart], 100),
    (&[PlantedFault::NoGraceAtLeaderStart], 50),
    (&[PlantedFault::OldIncarnationCounts], 300),
    (&[PlantedFault::OneRoundTruncation], 300),
    (&[PlantedFault::OpenedUnflushed], 200),
    (&[PlantedFault::OvertakenFetchCounts], 200),
    (&[PlantedFault::ParkedFetchCounts], 50),
    (&[PlantedFault::ProducersForgottenAtStart], 50),
    (&[PlantedFault::RebootKeepsIncarnation], 300),
    (&[PlantedFault::RemovalNotSynced, PlantedFault::FallingEpochAccepted], 300),
    (&[PlantedFault::RemovedBeforeAdded], 300),
    (&[PlantedFault::RestoredDiskStands], 300),
    (&[PlantedFault::RotKeepsIncarnation], 1000),
    (&[PlantedFault::ShrinkCountedEarly], 100),
    (&[PlantedFault::StaleAnswerApplied], 300),
    (&[PlantedFault::TruncateToHighWatermarkAtStart], 100),
    (&[PlantedFault::TruncationKeepsProducers], 300),
    (&[PlantedFault::UndefinedCuts, PlantedFault::NoEpochAtLeaderStart], 300),
    (&[PlantedFault::UnknownDecidedByRead], 2000),
    (&[PlantedFault::UnknownProducerAnySequence], 50),
    (&[PlantedFault::WorkBelowHighestEpoch], 50),
    (&[PlantedFault::WriteWithoutLock], 100),
];

/// Rules that so few seeds do not show broken: the first that does is seed 1646. It leaves a moment open that few runs come to; the
/// exploration (`explore.rs`) finds it.
const NOT_SHOWN: &[PlantedFault] = &[PlantedFault::UnfencedTruncation];

#[test]
fn no_planted_fault_is_forgotten() {
    let seen: Vec<_> = CAUGHT_WITHIN.iter().flat_map(|(faults, _)| faults.iter()).collect();
    let is_listed = |fault: &PlantedFault| seen.contains(&fault) != NOT_SHOWN.contains(fault);
    let forgotten: Vec<_> = PlantedFault::ALL.iter().filter(|fault| !is_listed(fault)).collect();
    assert!(forgotten.is_empty(), "neither caught nor said not to be, or both: {forgotten:?}");
}

/// The first seed that shows the faults: of a pair one that the last of them does not show alone.
fn first_caught(faults: &[PlantedFault], within: u64) -> Option<Failure> {
    let mut from = FIRST;
    loop {
        let failure = campaign(from..FIRST + within, None, &Planted(faults.to_vec())).failure?;
        let seed = failure.seed;
        let shows_alone = match faults {
            [_, last] => campaign(seed..seed + 1, None, &Planted(vec![*last])).failure.is_some(),
            _ => false,
        };
        if !shows_alone {
            return Some(failure);
        }
        from = seed + 1;
    }
}

#[test]
fn each_planted_fault_is_caught() {
    let mut missed = Vec::new();
    for (faults, within) in CAUGHT_WITHIN {
        let name = format!("{faults:?}").replace(['[', ']'], "").replace(", ", "+");
        match first_caught(faults, *within) {
            Some(failure) => {
                println!("planted fault {name}: caught by seed {} ({})", failure.seed, failure.what)
            }
            None => missed.push(format!("{name} within {within} seeds")),
        }
    }
    assert!(missed.is_empty(), "not caught: {}", missed.join(", "));
    if tier() != Tier::Quick {
        let largest = CAUGHT_WITHIN.iter().map(|(_, within)| *within).max().unwrap_or_default();
        assert!(seeds() >= 10 * largest, "the unbroken code survives ten times as many");
    }
}
