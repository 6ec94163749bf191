//! The coordination store, with the contract of `highwater_coordination::Coordination`: records that change only by
//! compare-and-swap, views that are late but never go back, and writes whose outcome their writer may never learn.
//!
//! A write that timed out stays on its way: it may be made later, or never (design.md 6.4).

use highwater_coordination::{CasOutcome, check_change};
use highwater_types::{PartitionEpoch, PartitionRecord};

use super::cluster::Cluster;
use super::node::Led;
use super::node_table::NodeTable;
use super::standing::record_text;

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Election,
    IsrChange,
    Resignation,
    Withdrawal,
    Reassignment,
}

/// A compare-and-swap on its way.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) node: usize,
    /// The opening of the log on whose behalf it is made.
    pub(super) serial: u64,
    pub(super) partition: usize,
    pub(super) purpose: Purpose,
    pub(super) new: PartitionRecord,
    pub(super) expected: PartitionEpoch,
    /// The store's answer, when it has been made.
    pub(super) outcome: Option<CasOutcome<PartitionRecord>>,
    /// Its writer waits no more.
    pub(super) abandoned: bool,
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    /// Every version of each partition's record.
    pub(super) records: Vec<Vec<PartitionRecord>>,
    pub(super) writes: Vec<Write>,
    pub(super) nodes: NodeTable,
    pub(super) outage: bool,
}

impl Store {
    pub(super) fn new(records: Vec<PartitionRecord>) -> Self {
        Self {
            records: records.into_iter().map(|record| vec![record]).collect(),
            writes: Vec::new(),
            nodes: NodeTable::default(),
            outage: false,
        }
    }

    /// The record as it stands.
    pub(super) fn current(&self, partition: usize) -> &PartitionRecord {
        self.records[partition].last().expect("the first version is there from the beginning")
    }

    /// Its newest version.
    pub(super) fn newest(&self, partition: usize) -> usize {
        self.records[partition].len() - 1
    }

    /// Makes the write at `at` of the list.
    ///
    /// # Errors
    /// The rule of records that it breaks.
    pub(super) fn make(&mut self, at: usize) -> Result<(), String> {
        let write = &mut self.writes[at];
        let versions = &mut self.records[write.partition];
        let current = versions.last().expect("the first version is there from the beginning");
        if current.partition_epoch != write.expected {
            write.outcome = Some(CasOutcome::Conflict(current.clone()));
            return Ok(());
        }
        let new = PartitionRecord { partition_epoch: write.expected.next(), ..write.new.clone() };
        check_change(current, &new)?;
        versions.push(new.clone());
        write.outcome = Some(CasOutcome::Committed(new));
        Ok(())
    }
}

/// Fates of a write that its writer has given up, in 100 steps of it: it is made all the same; else it is lost in as many.
const LATE: u64 = 40;

impl Cluster {
    /// One write moves on: it is made, its answer arrives, its writer gives up, or it is made late or never.
    pub(super) fn store_step(&mut self) -> Result<bool, String> {
        if self.store.writes.is_empty() {
            return Ok(false);
        }
        let at = self.pick(self.store.writes.len());
        let loss = self.scenario.loss;
        let write = &self.store.writes[at];
        let cut = self.store.outage || self.network.is_cut_from_store(write.node);
        let is_over = self.is_over(write);
        let is_made = write.outcome.is_some();
        if write.abandoned || is_over {
            if !is_made && !self.store.outage && self.percent(LATE) {
                if matches!(self.store.writes[at].purpose, Purpose::Election | Purpose::IsrChange) {
                    self.count_fault("write made late");
                }
                self.make(at)?;
            }
            if self.store.writes[at].outcome.is_some() || self.percent(LATE) {
                self.store.writes.swap_remove(at);
            }
            return Ok(true);
        }
        if cut || self.percent(loss) {
            // It waits on; its writer does not.
            self.count_fault(if is_made { "answer of the store lost" } else { "write timed out" });
            self.store.writes[at].abandoned = true;
            let write = self.store.writes[at].clone();
            self.tell(&write, None);
        } else if is_made {
            let write = self.store.writes.swap_remove(at);
            let outcome = write.outcome.clone();
            self.tell(&write, outcome);
        } else {
            self.make(at)?;
        }
        Ok(true)
    }

    pub(super) fn make(&mut self, at: usize) -> Result<(), String> {
        self.store.make(at)?;
        let (step, write) = (self.step, &self.store.writes[at]);
        if let Some(CasOutcome::Committed(record)) = &write.outcome {
            self.histories[write.partition].elections.extend(record.highest_unclean_epoch());
        }
        self.trace.note(|| {
            let partition = write.partition;
            match &write.outcome {
                Some(CasOutcome::Committed(record)) => {
                    format!("{step} p{partition} store: n{} wrote {}", write.node, record_text(record))
                }
                _ => format!("{step} p{partition} store: n{} conflicts", write.node),
            }
        });
        Ok(())
    }

    /// Whether nobody waits for the write any more: the log that it was made for has been closed, or its process died.
    fn is_over(&self, write: &Write) -> bool {
        match &self.nodes[write.node].led[write.partition] {
            Led::Not => true,
            Led::Stands(standing) => standing.serial != write.serial,
            Led::Leads(leads) => leads.serial != write.serial || write.purpose != Purpose::IsrChange,
        }
    }

    pub(super) fn tell(&mut self, write: &Write, outcome: Option<CasOutcome<PartitionRecord>>) {
        match write.purpose {
            Purpose::Election => self.election_outcome(write.node, write.partition, outcome),
            Purpose::IsrChange => {
                self.isr_outcome(write.node, write.partition, write.expected, outcome);
            }
            // Nobody waits for it.
            Purpose::Resignation | Purpose::Withdrawal | Purpose::Reassignment => {}
        }
    }
}
