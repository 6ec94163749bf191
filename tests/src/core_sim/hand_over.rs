//! Leaderships that are given up in order (design.md 6.11), and replicas that are moved (6.12). What is proposed, the pure
//! rules say.

use highwater_coordination::reassign::{ReassignmentStep, begin, cancel, next_step};
use highwater_coordination::{resignation, successor};
use highwater_types::{NodeId, PartitionRecord};

use super::cluster::Cluster;
use super::node::{Led, index_of, node_id};
use super::store::{Purpose, Write};

/// A leader that is removed and leads again, because nobody else did, waits before it hands over anew.
const MOVE_PAUSE_MILLIS: u64 = 2_000;

impl Cluster {
    /// The leader stops, and then proposes that somebody else leads; it appends nothing any more.
    pub(super) fn hand_over(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads(partition) else { return };
        let record = leads.record.clone();
        let alive = |id: NodeId| self.nodes[index_of(id)].leader_svc.is_up();
        let is_proven = |id: NodeId| alive(id) && leads.replica.is_followed_by(id);
        let best =
            successor(&record, is_proven).or_else(|| successor(&record, alive).filter(|_| !leads.damaged));
        let Some(successor) = best else { return };
        self.hand_over_to(node, partition, &record, successor);
    }

    /// Where readers met damage: who has the records in sync leads on, as soon as somebody can (design.md 2). Once for each
    /// partition. Answers whether it leaves.
    pub(super) fn leave_if_damaged(&mut self, node: usize, partition: usize) -> bool {
        let is_damaged = self.nodes[node].leads(partition).is_some_and(|leads| leads.damaged);
        if !is_damaged || self.nodes[node].handed_over.contains(&partition) {
            self.note_rot_alone(node, partition);
            return false;
        }
        let met = self.nodes[node].leads(partition).and_then(|leads| leads.rot);
        self.hand_over(node, partition);
        let leaves = self.nodes[node].leads(partition).is_none();
        if leaves {
            self.nodes[node].handed_over.insert(partition);
            self.nodes[node].rot_met.extend(met.map(|segment| (partition, segment)));
            self.count_fault("damaged leader left");
        } else {
            self.note_rot_alone(node, partition);
        }
        leaves
    }

    pub(super) fn hand_over_to(
        &mut self,
        node: usize,
        partition: usize,
        record: &PartitionRecord,
        successor: NodeId,
    ) {
        let Ok(proposal) = resignation(record, node_id(node), Some(successor)) else { return };
        self.stop_leading(node, partition);
        if matches!(self.nodes[node].led[partition], Led::Not) {
            self.write_for_nobody(node, partition, Purpose::Resignation, proposal, record);
        }
    }

    /// Somebody moves the partition to other nodes, or takes that back.
    pub(super) fn reassign(&mut self) -> bool {
        let partition = self.pick(self.scenario.partitions.len());
        let record = self.store.current(partition).clone();
        if self.store.outage || record.is_new() {
            return false;
        }
        let mut nodes: Vec<_> = (0..self.nodes.len()).map(node_id).collect();
        for at in (1..nodes.len()).rev() {
            let with = self.pick(at + 1);
            nodes.swap(at, with);
        }
        let count = 2 + self.pick(2);
        nodes.truncate(count);
        let proposal = if self.one_in(4) { cancel(&record) } else { begin(&record, &nodes) };
        let Ok(proposal) = proposal else { return false };
        let node = self.pick(self.nodes.len());
        self.count_fault("reassignment begun or cancelled");
        self.write_for_nobody(node, partition, Purpose::Reassignment, proposal, &record);
        true
    }

    /// The leader does the next thing about a reassignment.
    pub(super) fn move_on(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads(partition) else { return };
        let record = leads.record.clone();
        let min_isr = self.scenario.partitions[partition].min_isr;
        let alive = |id: NodeId| self.nodes[index_of(id)].leader_svc.is_up();
        match next_step(&record, min_isr, alive) {
            ReassignmentStep::Wait => {}
            ReassignmentStep::HandOver { .. } if self.nodes[node].moves_from[partition] > self.millis => {}
            ReassignmentStep::HandOver { successor } => {
                self.nodes[node].moves_from[partition] = self.millis + MOVE_PAUSE_MILLIS;
                self.hand_over_to(node, partition, &record, successor);
            }
            ReassignmentStep::Finish(finished) => {
                self.write_for_nobody(node, partition, Purpose::Reassignment, *finished, &record);
            }
        }
    }

    /// A write whose outcome nobody waits for: it shows in the record, or does not. One at a time.
    pub(super) fn write_for_nobody(
        &mut self,
        node: usize,
        partition: usize,
        purpose: Purpose,
        new: PartitionRecord,
        before: &PartitionRecord,
    ) {
        let is_same = |write: &Write| write.partition == partition && write.purpose == purpose;
        if self.store.writes.iter().any(is_same) {
            return;
        }
        let write = Write {
            node,
            serial: 0,
            partition,
            purpose,
            new,
            expected: before.partition_epoch,
            outcome: None,
            abandoned: true,
        };
        self.store.writes.push(write);
    }
}
