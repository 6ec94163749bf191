//! The whole: nodes, store, network, and one step of it. A step is one thing that one part does; which, the seed decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use highwater_protocol::Randomness;
use highwater_protocol::follower::{BackoffConfig, FollowerConfig};
use highwater_protocol::leader::LeaderConfig;
use highwater_replica::Now;
use highwater_types::{MonotonicTime, PartitionRecord, WallTime};

use super::Report;
use super::history::{Batch, History};
use super::network::Network;
use super::node::{Node, Running, Which, empty_disk, fresh_incarnations, node_id, partition_id};
use super::node_table::take_disk;
use super::presence::rate_of;
use super::producers::Producer;
use super::scenario::Scenario;
use super::store::Store;
use super::trace::Trace;
use crate::invariants;

/// Tries to find somebody who has something to do, per step.
const TRIES: usize = 8;

/// The cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) scenario: Scenario,
    pub(super) random: Randomness,
    /// Whether and when leaders hear news of their followers.
    pub(super) news: Randomness,
    /// Milliseconds since the beginning; all clocks of the run.
    pub(super) millis: u64,
    pub(super) step: u64,
    pub(super) store: Store,
    pub(super) nodes: Vec<Node>,
    pub(super) network: Network,
    pub(super) histories: Vec<History>,
    pub(super) produced: u64,
    /// The idempotent producers of each partition.
    pub(super) producers: Vec<Vec<Producer>>,
    pub(super) producer_ids: i64,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) trace: Trace,
    pub(super) incarnations: Arc<AtomicU64>,
    /// Whether faults go on.
    pub(super) healing: bool,
    /// A rule that was found broken in the middle of a step.
    pub(super) broken: Option<String>,
    /// A record of each partition that rots, and on which node.
    pub(super) rotten: Vec<Option<(usize, Batch)>>,
    /// Damaged ranges that were repaired.
    pub(super) repairs: u64,
    serials: u64,
    totals: Report,
}

impl Cluster {
    pub(super) fn new(scenario: Scenario, trace: Trace) -> Self {
        let partitions = scenario.partitions.len();
        let nodes = (0..scenario.nodes).map(|index| {
            let disk = empty_disk(scenario.seed.wrapping_mul(31).wrapping_add(index as u64));
            Node::new(index, disk, partitions)
        });
        let records = scenario.partitions.iter().enumerate().map(|(partition, plan)| {
            let replicas = plan.replicas.iter().map(|index| node_id(*index)).collect();
            PartitionRecord::new(partition_id(partition), replicas)
        });
        Self {
            random: Randomness::new(scenario.seed),
            news: rate_of(scenario.seed).1,
            millis: 0,
            step: 0,
            store: Store::new(records.collect()),
            nodes: nodes.collect(),
            network: Network::default(),
            histories: (0..partitions).map(|_| History::default()).collect(),
            produced: 0,
            producers: vec![Vec::new(); partitions],
            producer_ids: 0,
            faults: BTreeMap::new(),
            trace,
            incarnations: Arc::new(AtomicU64::new(1)),
            healing: false,
            broken: None,
            rotten: vec![None; partitions],
            repairs: 0,
            serials: 0,
            totals: Report::default(),
            scenario,
        }
    }

    /// Runs to the end.
    pub(super) fn run(&mut self) -> Result<(), String> {
        if self.scenario.relay {
            // It can go on from hand to hand once all are there.
            for node in 0..self.nodes.len() {
                self.start(node, Which::LeaderSvc);
                self.start(node, Which::Agent);
            }
        }
        while self.step < self.scenario.steps {
            self.step += 1;
            self.one_step()?;
        }
        self.totals.steps = self.step;
        self.heal()
    }

    pub(super) fn report(&self) -> Report {
        let count = |of: fn(&History) -> usize| self.histories.iter().map(|h| of(h) as u64).sum();
        Report {
            committed: count(|history| history.committed.len()),
            acknowledged: count(|history| history.acknowledged.len()),
            read: count(|history| history.seen.len()),
            leaderships: count(|history| history.leaderships.len()),
            unclean: count(|history| {
                history.elections.iter().filter(|epoch| history.leaderships.contains_key(epoch)).count()
            }),
            repairs: self.repairs,
            faults: self.faults.clone(),
            ..self.totals.clone()
        }
    }

    fn one_step(&mut self) -> Result<(), String> {
        self.pass();
        if self.up_to(999) < self.scenario.fault_rate {
            self.fault()?;
        } else {
            for _ in 0..TRIES {
                let relay = self.scenario.relay;
                let done = if relay { self.relay_step()? } else { self.something()? };
                if done {
                    break;
                }
            }
        }
        self.news_by_chance();
        self.recover_by_chance();
        self.bury();
        self.check()
    }

    /// Lets one part do one thing; answers whether it had something to do.
    pub(super) fn something(&mut self) -> Result<bool, String> {
        let weights = self.scenario.weights;
        let mut drawn = self.up_to(weights.iter().sum::<u64>() - 1);
        let mut part = 0;
        while drawn >= weights[part] {
            drawn -= weights[part];
            part += 1;
        }
        match part {
            0 => self.network_step(),
            1 => self.store_step(),
            2 => {
                let reassignments = self.scenario.reassignments;
                if self.up_to(999) < reassignments { Ok(self.reassign()) } else { self.node_step() }
            }
            3 => Ok(self.produce()),
            _ => self.consume(),
        }
    }

    fn pass(&mut self) {
        let pace = self.scenario.pace;
        self.millis += if self.one_in(200) { self.up_to(pace * 60) } else { self.up_to(pace) };
    }

    // === chance ===

    pub(super) fn up_to(&mut self, bound: u64) -> u64 {
        self.random.up_to(bound)
    }

    pub(super) fn pick(&mut self, count: usize) -> usize {
        debug_assert!(count > 0, "there is something to choose from");
        usize::try_from(self.random.up_to(count as u64 - 1)).expect("below a usize")
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.random.up_to(count - 1) == 0
    }

    /// True in this many cases of 100.
    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.random.up_to(99) < share
    }

    // === time and settings ===

    pub(super) fn now(&self) -> Now {
        Now {
            monotonic: MonotonicTime::from_millis(self.millis),
            wall: WallTime::from_millis(
                1_000_000 + i64::try_from(self.millis).expect("not that many milliseconds"),
            ),
        }
    }

    pub(super) fn leader_config(&self, partition: usize) -> LeaderConfig {
        let plan = &self.scenario.partitions[partition];
        LeaderConfig {
            durability: plan.durability,
            min_insync_replicas: plan.min_isr,
            replica_lag_time_max: Duration::from_millis(self.scenario.pace * self.scenario.patience),
            high_watermark_propagation: Duration::from_millis(10),
            isr_retry: Duration::from_millis(100),
        }
    }

    pub(super) fn follower_config(&self, partition: usize) -> FollowerConfig {
        FollowerConfig {
            durability: self.scenario.partitions[partition].durability,
            max_bytes: 400,
            read_ahead_bytes: 1000,
            backoff: BackoffConfig {
                first: Duration::from_millis(10),
                max: Duration::from_millis(200),
                max_attempts: 20,
            },
        }
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    pub(super) fn count_fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
        let step = self.step;
        self.trace.note(|| format!("{step} FAULT {kind}"));
    }

    // === nodes ===

    fn node_step(&mut self) -> Result<bool, String> {
        let node = self.pick(self.nodes.len());
        let which = if self.one_in(2) { Which::LeaderSvc } else { Which::Agent };
        let running = self.nodes[node].program(which).running;
        match running {
            Running::Paused if self.one_in(8) => {
                self.nodes[node].program_mut(which).running = Running::Up;
                Ok(true)
            }
            Running::Paused => Ok(false),
            Running::Down => Ok(self.one_in(4) && self.start(node, which)),
            Running::Up => {
                let partition = self.pick(self.scenario.partitions.len());
                match which {
                    Which::LeaderSvc => self.leader_svc_acts(node, partition),
                    Which::Agent => self.agent_acts(node, partition),
                }
            }
        }
    }

    /// Starts a program: it takes its disk, or not now.
    pub(super) fn start(&mut self, node: usize, which: Which) -> bool {
        if self.store.outage || self.network.is_cut_from_store(node) {
            return false;
        }
        let fresh = fresh_incarnations(&self.incarnations);
        let program = self.nodes[node].program(which);
        let taken = take_disk(&self.store.nodes, self.nodes[node].id, which, program, &*fresh);
        if taken {
            self.nodes[node].program_mut(which).running = Running::Up;
            self.nodes[node].starts += 1;
        }
        self.nodes[node].identity_torn |= !taken && self.nodes[node].disk.is_stopped();
        let step = self.step;
        self.trace.note(|| format!("{step} n{node} {which:?} starts: {taken}"));
        true
    }

    // === checks ===

    /// Every invariant, on what changed.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        for partition in 0..self.scenario.partitions.len() {
            let view = self.observe(partition)?;
            invariants::check(&view).map_err(|broken| format!("partition {partition}: {broken}"))?;
        }
        self.note_observed();
        Ok(())
    }
}
