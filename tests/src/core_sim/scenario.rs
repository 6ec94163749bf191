//! What a seed chooses before the first step: the cluster's size, its topics, and a temper: which faults happen and how
//! often. Runs of different tempers reach different places; a run with every fault at once reaches few.

use std::collections::BTreeSet;

use highwater_protocol::Randomness;
use highwater_types::Durability;

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
    /// A disk is full for a while.
    FullDisk,
}

impl FaultKind {
    const ALL: [Self; 11] = [
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
        Self::FullDisk,
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
    /// Partitions that are moved, in 1000 acts of nodes.
    pub(super) reassignments: u64,
    /// Work on a follower's log, in 100 acts of an agent; with fetches it is 70.
    pub(super) work: u64,
    /// Answers that order a cut and are passed over once more, in 100.
    pub(super) late_cuts: u64,
    /// Lost messages and answers of the store, in 100.
    pub(super) loss: u64,
    /// Messages that are delivered again later, in 100.
    pub(super) repeats: u64,
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
        for kind in FaultKind::ALL {
            if random.up_to(99) < share {
                faults.insert(kind);
            }
        }
        Self {
            seed,
            nodes,
            steps: STEPS + STEPS / 2 * (count as u64 - 1),
            partitions,
            faults: faults.into_iter().collect(),
            fault_rate: [5, 15, 30, 60][index(&mut random, &[25, 60, 85])],
            rudeness: [0, 10, 60][index(&mut random, &[30, 70])],
            hand_overs: [0, 20][index(&mut random, &[60])],
            reassignments: [0, 10][index(&mut random, &[80])],
            work: [35, 12][index(&mut random, &[70])],
            late_cuts: [0, 70][index(&mut random, &[70])],
            idempotent: [0, 50, 100][index(&mut random, &[20, 50])],
            loss: [0, 5, 20][index(&mut random, &[30, 75])],
            repeats: [0, 5, 20][index(&mut random, &[40, 75])],
            pace: [10, 40, 200][index(&mut random, &[40, 85])],
            weights: [
                20 + random.up_to(20),
                8 + random.up_to(8),
                25 + random.up_to(25),
                4 + random.up_to(8),
                3 + random.up_to(4),
            ],
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
    }
}

/// Which of several cases holds, by the shares (in 100) up to which each but the last one reaches.
fn index(random: &mut Randomness, shares: &[u64]) -> usize {
    let drawn = random.up_to(99);
    shares.iter().take_while(|share| drawn >= **share).count()
}
