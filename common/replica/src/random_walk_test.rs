//! Seeded random walks: every action in any order, with crashes at any operation of a disk; invariants after each step, and
//! a cluster that heals once faults stop.
//!
//! A failure names its seed: set `HIGHWATER_WALK_SEED` to run that one alone.

use highwater_protocol::Randomness;
use highwater_protocol::leader::IsrOutcome;
use highwater_types::Durability;

use crate::test_cluster::{Cluster, Message, Role};

const SEEDS: u64 = 150;
const STEPS: u64 = 250;
const MACHINES: usize = 3;
/// Rounds within which a cluster without faults has settled.
const HEAL_ROUNDS: usize = 80;

struct Walk {
    cluster: Cluster,
    random: Randomness,
}

impl Walk {
    fn new(seed: u64, durability: Durability) -> Self {
        let mut cluster = Cluster::new(seed, MACHINES, durability);
        cluster.min_isr = 1 + u32::try_from(seed % 2).unwrap();
        Self { cluster, random: Randomness::new(seed) }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.up_to(99) < percent
    }

    fn machine(&mut self) -> usize {
        usize::try_from(self.random.up_to(MACHINES as u64 - 1)).unwrap()
    }

    fn step(&mut self) {
        let millis = self.random.up_to(30);
        self.cluster.pass(millis);
        match self.random.up_to(99) {
            0..=39 if !self.cluster.messages.is_empty() => self.network(),
            40..=41 => self.fault(),
            42..=43 => self.elect(),
            _ => self.act(),
        }
        self.bury();
        self.cluster.check();
    }

    fn network(&mut self) {
        let last = self.cluster.messages.len() as u64 - 1;
        let at = usize::try_from(self.random.up_to(last)).unwrap();
        if let Message::Propose { from, proposal } = &self.cluster.messages[at]
            && self.random.up_to(99) < 30
        {
            // Timed out; the store may yet take it.
            let (from, expected) = (*from, proposal.expected);
            return self.cluster.tell_outcome(from, expected, &IsrOutcome::Unknown);
        }
        if self.chance(8) {
            self.cluster.messages.swap_remove(at);
        } else {
            self.cluster.deliver(at);
        }
    }

    fn fault(&mut self) {
        let index = self.machine();
        match self.random.up_to(3) {
            0 => self.cluster.kill(index),
            1 if self.cluster.durability == Durability::Fsync => self.cluster.lose_power(index),
            2 if self.cluster.durability == Durability::Fsync && self.chance(20) => {
                (0..MACHINES).for_each(|index| self.cluster.lose_power(index));
            }
            _ => {
                let operations = self.random.up_to(12);
                self.cluster.machines[index].disk.stop_after(operations);
            }
        }
    }

    /// A machine whose disk stopped is dead; what comes back is what a crash leaves.
    fn bury(&mut self) {
        for index in 0..MACHINES {
            if self.cluster.machines[index].disk.is_stopped() {
                if self.cluster.durability == Durability::Fsync && self.chance(50) {
                    self.cluster.lose_power(index);
                } else {
                    self.cluster.kill(index);
                }
            }
        }
    }

    fn elect(&mut self) {
        let index = self.machine();
        let keeps_all = self.chance(30);
        self.cluster.stop(index);
        let old = self.cluster.record.leader;
        let me = self.cluster.machines[index].node;
        self.cluster.lead(index, |member| keeps_all || old == Some(me) || Some(member.node) != old);
    }

    fn act(&mut self) {
        let index = self.machine();
        let (action, seed) = (self.random.up_to(9), self.random.next_u64());
        match &self.cluster.machines[index].role {
            Role::Down => self.start(index, seed),
            Role::Leader(_) => match action {
                0..=4 => self.cluster.produce(index, 1 + usize::try_from(seed % 3).unwrap()),
                5..=6 => self.cluster.flush(index),
                7 => self.cluster.learn(index),
                8 => drop(self.cluster.leader(index).write_checkpoint()),
                _ => self.cluster.tick(index),
            },
            Role::Follower(_) => match action {
                0..=2 => self.cluster.send_fetch(index, seed % 4 == 0),
                3..=5 => self.cluster.work(index),
                6 => self.cluster.flush(index),
                7 => self.cluster.learn(index),
                8 => self.cluster.answer_question(index),
                _ => {
                    drop(self.cluster.follower(index).write_checkpoint());
                    self.cluster.tick(index);
                }
            },
        }
    }

    fn start(&mut self, index: usize, seed: u64) {
        let me = self.cluster.machines[index].node;
        let leads_next = self.cluster.record.is_new() || self.cluster.record.leader == Some(me);
        if leads_next {
            self.cluster.lead(index, |_| true);
        } else {
            self.cluster.follow(index, seed);
        }
    }

    /// Without faults: one leader, everybody caught up and in the set, logs identical, everything committed.
    fn heal(&mut self) {
        for index in 0..MACHINES {
            self.cluster.kill(index);
        }
        self.cluster.messages.clear();
        self.elect_any();
        for _ in 0..HEAL_ROUNDS {
            self.cluster.pass(50);
            for index in 0..MACHINES {
                let seed = self.random.next_u64();
                match &self.cluster.machines[index].role {
                    Role::Down => self.start(index, seed),
                    Role::Leader(_) => {
                        self.cluster.flush(index);
                        self.cluster.tick(index);
                    }
                    Role::Follower(_) => {
                        self.cluster.learn(index);
                        self.cluster.tick(index);
                        self.cluster.round(index);
                    }
                }
                self.cluster.deliver_all();
                self.cluster.check();
            }
        }
        let leader = (0..MACHINES)
            .find(|index| matches!(self.cluster.machines[*index].role, Role::Leader(_)))
            .unwrap();
        assert_eq!(self.cluster.record.isr.len(), MACHINES, "all are in the set");
        assert_eq!(
            self.cluster.leader(leader).high_watermark(),
            self.cluster.leader(leader).log_end(),
            "all is committed"
        );
        self.cluster.assert_identical();
    }

    fn elect_any(&mut self) {
        let elected = (0..MACHINES).any(|index| self.cluster.lead(index, |_| true));
        assert!(elected, "somebody is electable: {:?}", self.cluster.record);
    }
}

fn walk(durability: Durability) {
    let only = std::env::var("HIGHWATER_WALK_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let mut committed = 0;
    for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
        let failed = std::panic::catch_unwind(|| {
            let mut walk = Walk::new(seed, durability);
            for _ in 0..STEPS {
                walk.step();
            }
            let reached = walk.cluster.committed_end().get();
            walk.heal();
            reached
        });
        committed +=
            failed.unwrap_or_else(|_| panic!("{durability} walk failed: HIGHWATER_WALK_SEED={seed}"));
    }
    assert!(
        only.is_some() || committed > i64::try_from(SEEDS).unwrap() * 5,
        "the walks commit something: {committed}"
    );
}

#[test]
fn walks_under_fsync_keep_what_is_acknowledged_through_crashes_and_power_loss() {
    walk(Durability::Fsync);
}

#[test]
fn walks_under_page_cache_keep_what_is_acknowledged_through_crashes() {
    walk(Durability::PageCache);
}

#[test]
fn a_seed_gives_the_same_walk_twice() {
    let trace = || {
        let mut walk = Walk::new(11, Durability::Fsync);
        (0..STEPS)
            .map(|_| {
                walk.step();
                let ends: Vec<_> =
                    (0..MACHINES).map(|i| walk.cluster.log(i).map(|log| log.positions())).collect();
                format!("{ends:?} {:?} {}", walk.cluster.record, walk.cluster.messages.len())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(trace(), trace());
}
