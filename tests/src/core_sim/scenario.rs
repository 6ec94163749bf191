//! What a seed chooses before the first step: the cluster's size, its topics, and a temper: which faults happen and how
//! often. Runs of different tempers reach different places; a run with every fault at once reaches few. Some runs have a
//! theme: a temper that leads to one kind of trouble again and again.

use std::collections::BTreeSet;

use highwater_protocol::Randomness;
use highwater_types::Durability;

use super::presence::rate_of;

/// A kind of fault that a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultKind {
    /// `kill -9` of one program.
    Kill,
    /// One node loses power.
    PowerLoss,
    /// The whole cluster loses power.
    Blackout,
    /// A node stops in the middle of a change of its disk.
    StopInWrite,
    /// SIGSTOP of a program, and SIGCONT later.
    Pause,
    /// Two nodes, or a node and the store, do not hear each other.
    Cut,
    /// The store answers nobody.
    Outage,
    /// A node's directory is replaced by an empty one.
    EmptyDisk,
    /// A node's disk is replaced by an older copy of it.
    OldDisk,
    /// A flush fails.
    FailedFlush,
    /// A flush fails, and soon after it the node loses power.
    DyingDisk,
    /// A disk is full for a while.
    FullDisk,
    /// A segment of a closed log is gone.
    LostSegment,
    /// A record in a closed segment of a closed log rots.
    Rot,
    /// A person orders an unclean election. Only in runs that are about it.
    UncleanElection,
}

impl FaultKind {
    /// What any run may have.
    const COMMON: [Self; 14] = [
        Self::Kill,
        Self::PowerLoss,
        Self::Blackout,
        Self::StopInWrite,
        Self::Pause,
        Self::Cut,
        Self::Outage,
        Self::EmptyDisk,
        Self::OldDisk,
        Self::FailedFlush,
        Self::DyingDisk,
        Self::FullDisk,
        Self::LostSegment,
        Self::Rot,
    ];
}

/// A topic of one partition; all partitions of a run may differ.
#[derive(Clone, Debug)]
pub(super) struct PartitionPlan {
    pub(super) durability: Durability,
    pub(super) min_isr: u32,
    /// Indexes of nodes, the preferred leader first.
    pub(super) replicas: Vec<usize>,
    pub(super) retention: bool,
    /// `unclean.leader.election.enable`.
    pub(super) unclean: bool,
    /// In bytes. Small, so that cuts and crashes meet the edges of segments.
    pub(super) segment_bytes: u32,
}

/// Everything that is chosen before the first step.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) partitions: Vec<PartitionPlan>,
    pub(super) steps: u64,
    pub(super) faults: Vec<FaultKind>,
    /// Faults in 1000 steps.
    pub(super) fault_rate: u64,
    /// Elections against a living leader, in 1000 reconciliations.
    pub(super) rudeness: u64,
    /// Batches of idempotent producers, in 100.
    pub(super) idempotent: u64,
    /// Leaderships that are given up in order, in 1000 acts of a leader.
    pub(super) hand_overs: u64,
    /// Whether the leadership is handed on again and again.
    pub(super) relay: bool,
    /// How often it is handed on then, in 1000 steps.
    pub(super) passes: u64,
    /// `replica.lag.time.max.ms`, in longest times between two steps.
    pub(super) patience: u64,
    /// Partitions that are moved, in 1000 acts of nodes.
    pub(super) reassignments: u64,
    /// Work on a follower's log, in 100 acts of an agent; with fetches it is 70.
    pub(super) work: u64,
    /// Looks of a leader at the record that it knows, in 100 of its acts.
    pub(super) looks: u64,
    /// Answers that order a cut and are passed over once more, in 100.
    pub(super) late_cuts: u64,
    /// Old answers that come again where they almost fit, in 100 steps of the network.
    pub(super) late_answers: u64,
    /// Cuts that wait once more before they are done, in 100.
    pub(super) late_work: u64,
    /// Whether nothing is flushed for long where records are acknowledged without a flush.
    pub(super) lazy_flushes: bool,
    /// A node that flushes rarely.
    pub(super) slow_disk: Option<usize>,
    /// Whether a person has somebody lead where nobody may, once faults stop.
    pub(super) persons: bool,
    /// Lost messages and answers of the store, in 100.
    pub(super) loss: u64,
    /// Messages that are delivered again later, in 100.
    pub(super) repeats: u64,
    /// News of followers that leaders hear, in 1000 steps.
    pub(super) news: u64,
    /// The longest time between two steps, in milliseconds.
    pub(super) pace: u64,
    /// Weights of: network, store, node, producers, consumers.
    pub(super) weights: [u64; 5],
}

/// Steps of a run with one partition; each further one adds half as many.
const STEPS: u64 = 500;

impl Scenario {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Randomness::new(seed ^ 0x5eed_5eed_5eed_5eed);
        let nodes = 3 + index(&mut random, &[60, 85]);
        let count = 1 + index(&mut random, &[70, 90]);
        let partitions: Vec<_> = (0..count).map(|_| partition(&mut random, nodes)).collect();
        let mut faults = BTreeSet::new();
        let share = [20, 35, 60][index(&mut random, &[40, 75])];
        for kind in FaultKind::COMMON {
            if random.up_to(99) < share {
                faults.insert(kind);
            }
        }
        let plain = Self {
            seed,
            nodes,
            steps: STEPS + STEPS / 2 * (count as u64 - 1),
            partitions,
            faults: faults.into_iter().collect(),
            fault_rate: [5, 15, 30, 60][index(&mut random, &[25, 60, 85])],
            rudeness: [0, 10, 60][index(&mut random, &[30, 70])],
            hand_overs: 0,
            relay: false,
            passes: 0,
            patience: 50,
            reassignments: 0,
            work: 35,
            late_cuts: 0,
            late_answers: 0,
            late_work: 0,
            lazy_flushes: random.up_to(99) < 40,
            slow_disk: None,
            persons: random.up_to(99) < 50,
            looks: 5,
            idempotent: [0, 50, 100][index(&mut random, &[20, 50])],
            loss: [0, 5, 20][index(&mut random, &[30, 75])],
            repeats: [0, 5, 20][index(&mut random, &[40, 75])],
            news: rate_of(seed).0,
            pace: [10, 40, 200][index(&mut random, &[40, 85])],
            weights: [
                20 + random.up_to(20),
                8 + random.up_to(8),
                25 + random.up_to(25),
                4 + random.up_to(8),
                3 + random.up_to(4),
            ],
        };
        match index(&mut random, &[8, 18, 40, 54, 78, 85, 92]) {
            0 => plain,
            1 => plain.of_relay(&mut random),
            2 => plain.of_late_answers(&mut random),
            3 => plain.of_unknown_outcomes(&mut random),
            4 => plain.of_crashes(&mut random),
            5 => plain.of_moves(&mut random),
            6 => plain.of_unclean_elections(&mut random),
            _ => plain.of_everything(&mut random),
        }
    }

    /// Leaders change faster than records spread, and what they tell comes late: logs differ, in several epochs at once.
    fn of_relay(self, random: &mut Randomness) -> Self {
        let one = self.partitions.into_iter().take(1);
        let faults = [vec![], vec![FaultKind::Kill], vec![FaultKind::PowerLoss, FaultKind::StopInWrite]];
        Self {
            partitions: one.map(|plan| PartitionPlan { min_isr: 1, ..plan }).collect(),
            faults: faults[index(random, &[50, 70])].clone(),
            fault_rate: 10,
            steps: 2 * STEPS,
            relay: true,
            passes: 20,
            patience: [500, 12][index(random, &[60])],
            work: [35, 15][index(random, &[50])],
            late_cuts: [0, 50, 75][index(random, &[20, 60])],
            idempotent: [0, 100][index(random, &[30])],
            loss: 0,
            repeats: 20,
            pace: 10,
            weights: [30, 15, 60, 4, 2],
            ..self
        }
    }

    /// The same, with answers that come again when they almost fit, and cuts that wait in front of a slow disk.
    fn of_late_answers(self, random: &mut Randomness) -> Self {
        let faults = [vec![], vec![FaultKind::PowerLoss, FaultKind::Kill]];
        let is_slow = random.up_to(99) < 25;
        Self {
            faults: faults[index(random, &[60])].clone(),
            passes: [8, 20][index(random, &[50])],
            patience: 500,
            late_cuts: [0, 50][index(random, &[40])],
            late_answers: if is_slow { 0 } else { 40 },
            late_work: if is_slow { 95 } else { 0 },
            ..self.of_relay(random)
        }
    }

    /// Who is in sync is away, and somebody else leads.
    fn of_unclean_elections(self, random: &mut Randomness) -> Self {
        let away = [FaultKind::Kill, FaultKind::Pause, FaultKind::Cut];
        let lost = [FaultKind::EmptyDisk, FaultKind::PowerLoss, FaultKind::LostSegment];
        let mut faults = vec![FaultKind::UncleanElection];
        faults.extend(if random.up_to(99) < 60 { &away } else { &lost });
        let allowing = |plan| PartitionPlan { unclean: random.up_to(99) < 50, ..plan };
        Self {
            partitions: self.partitions.into_iter().map(allowing).collect(),
            faults,
            fault_rate: [15, 40][index(random, &[50])],
            pace: 10,
            ..self
        }
    }

    /// The store answers late or not at all, while replicas come and go.
    fn of_unknown_outcomes(self, random: &mut Randomness) -> Self {
        let plain = Self {
            faults: vec![FaultKind::Pause, FaultKind::Kill, FaultKind::Outage, FaultKind::Cut],
            fault_rate: 15,
            loss: [5, 20][index(random, &[30])],
            looks: 15,
            pace: 10,
            ..self
        };
        if random.up_to(99) < 40 { plain } else { plain.of_changes(random) }
    }

    /// The in-sync set changes again and again, of few replicas, and what became of that is mostly unknown.
    fn of_changes(self, random: &mut Randomness) -> Self {
        let one = self.partitions.into_iter().take(1);
        Self {
            steps: 2 * STEPS,
            partitions: one.map(|plan| PartitionPlan { min_isr: 1, ..plan }).collect(),
            faults: vec![FaultKind::Pause, FaultKind::Cut],
            fault_rate: [5, 15][index(random, &[50])],
            rudeness: [0, 10][index(random, &[50])],
            hand_overs: [0, 10, 30][index(random, &[40, 70])],
            patience: [8, 15][index(random, &[50])],
            loss: [20, 40][index(random, &[50])],
            looks: 40,
            weights: [30, 5, 50, 10, 3],
            ..self
        }
    }

    /// Machines lose power and disks fail, one at a time.
    fn of_crashes(self, random: &mut Randomness) -> Self {
        use FaultKind::{
            DyingDisk, EmptyDisk, FailedFlush, Kill, LostSegment, OldDisk, PowerLoss, Rot, StopInWrite,
        };
        let kinds: [&[FaultKind]; 6] = [
            &[PowerLoss, Kill, StopInWrite, FailedFlush],
            &[DyingDisk, PowerLoss, FailedFlush],
            &[Kill, PowerLoss],
            &[LostSegment, LostSegment, LostSegment, Kill],
            &[LostSegment, Rot, Kill],
            &[OldDisk, OldDisk, EmptyDisk, Kill, PowerLoss],
        ];
        Self {
            steps: 2 * self.steps,
            faults: kinds[index(random, &[12, 32, 55, 70, 80])].to_vec(),
            fault_rate: [15, 40][index(random, &[40])],
            hand_overs: [0, 20][index(random, &[50])],
            slow_disk: (random.up_to(99) < 50).then(|| self.partitions[0].replicas[index(random, &[50])]),
            pace: 10,
            ..self
        }
    }

    /// Partitions move between nodes.
    fn of_moves(self, random: &mut Randomness) -> Self {
        Self {
            nodes: self.nodes.max(4),
            reassignments: [20, 60][index(random, &[50])],
            hand_overs: [0, 20][index(random, &[50])],
            ..self
        }
    }

    fn of_everything(self, random: &mut Randomness) -> Self {
        Self {
            hand_overs: [0, 20][index(random, &[50])],
            reassignments: [0, 10][index(random, &[70])],
            work: [35, 12][index(random, &[50])],
            late_cuts: [0, 70][index(random, &[50])],
            ..self
        }
    }
}

fn partition(random: &mut Randomness, nodes: usize) -> PartitionPlan {
    let mut replicas: Vec<_> = (0..nodes).collect();
    for at in (1..nodes).rev() {
        let with = usize::try_from(random.up_to(at as u64)).unwrap_or(0);
        replicas.swap(at, with);
    }
    replicas.truncate(if random.up_to(99) < 20 { 2 } else { 3 });
    let durability = if random.up_to(99) < 60 { Durability::Fsync } else { Durability::PageCache };
    PartitionPlan {
        durability,
        min_isr: if random.up_to(99) < 50 { 1 } else { 2 },
        replicas,
        retention: random.up_to(99) < 25,
        unclean: false,
        segment_bytes: [700, 200][index(random, &[60])],
    }
}

/// Which of several cases holds, by the shares (in 100) up to which each but the last one reaches.
fn index(random: &mut Randomness, shares: &[u64]) -> usize {
    let drawn = random.up_to(99);
    shares.iter().take_while(|share| drawn >= **share).count()
}
