//! Taking a leadership, as leader-svc does: the partition's lock first, then the log, then the compare-and-swap; lock and
//! log are kept until the outcome is known (design.md 6.2, 6.6, 6.9). Which record may be proposed, the rules of elections
//! say.

use std::collections::BTreeSet;

use highwater_coordination::{
    Candidate, CasOutcome, Ineligible, UncleanOrder, next_leadership, successor, withdrawal,
};
use highwater_log::OnDamage;
use highwater_log::checkpoint::CheckpointFile;
use highwater_log::storage::sim::SimStorage;
use highwater_replica::{Leading, OpenReplica};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{NodeId, PartitionRecord};

use super::cluster::Cluster;
use super::node::{Leads, Led, Node, Running, Which, data_dir, index_of, partition_id};
use super::store::{Purpose, Write};

/// Added to a partition, one whose lock nobody takes: for the fault that takes another lock than the log's.
const NOBODYS: usize = 100;

/// A candidate that waits for the store.
#[derive(Debug)]
pub(super) struct Standing {
    /// `None` only where a planted fault writes the record before it takes the lock.
    pub(super) open: Option<OpenReplica<SimStorage>>,
    pub(super) serial: u64,
    proposal: PartitionRecord,
    before: PartitionRecord,
}

impl Standing {
    /// Whether `found` is what this candidate proposed: an earlier try of the same write.
    fn is_ours(&self, node: &Node, found: &PartitionRecord) -> bool {
        found.leader == self.proposal.leader
            && found.leader_epoch == self.proposal.leader_epoch
            && found.isr_member(node.id) == self.proposal.isr_member(node.id)
    }
}

impl Cluster {
    /// The record of a partition as a program has seen it.
    pub(super) fn known(&self, node: usize, which: Which, partition: usize) -> &PartitionRecord {
        let version = self.nodes[node].program(which).known[partition];
        &self.store.records[partition][version]
    }

    /// Stands for election, if this node would.
    pub(super) fn maybe_stand(&mut self, node: usize, partition: usize) -> Result<bool, String> {
        let record = self.known(node, Which::LeaderSvc, partition).clone();
        let me = self.nodes[node].id;
        if !record.has_replica(me) {
            return Ok(false);
        }
        let is_member = record.isr_member(me).is_some() || is_planted(PlantedFault::ElectFromOutsideIsr);
        let wants = match record.leader {
            None if record.is_new() => self.one_in(3),
            Some(leader) if leader == me => true,
            None => is_member,
            Some(leader) => is_member && self.is_worth_a_try(node, partition, index_of(leader)),
        };
        let order = self.unclean_order(node, partition, &record);
        let wants = wants || (order != UncleanOrder::None && self.one_in(3));
        if wants { self.stand(node, partition, &record, order) } else { Ok(false) }
    }

    /// When to try to take over is a matter of liveness alone: a dead leader often, a living one at times (design.md 6.6).
    fn is_worth_a_try(&mut self, node: usize, partition: usize, leader: usize) -> bool {
        if self.healing {
            // Once nothing goes wrong, a leader that does not lead is one that cannot.
            return !self.leads_as_recorded(leader, partition);
        }
        let silent = !self.nodes[leader].leader_svc.is_up() || self.network.is_cut(node, leader);
        if silent { self.percent(40) } else { self.up_to(999) < self.scenario.rudeness }
    }

    pub(super) fn stand(
        &mut self,
        node: usize,
        partition: usize,
        record: &PartitionRecord,
        order: UncleanOrder,
    ) -> Result<bool, String> {
        let before_lock = is_planted(PlantedFault::ElectBeforeLock);
        let peeked = if before_lock || is_planted(PlantedFault::IncarnationReadBeforeLock) {
            self.peek(node, partition)
        } else {
            None
        };
        if let Some(candidate) = peeked.filter(|_| before_lock) {
            let proposal = next_leadership(record, &candidate, order);
            self.stand_with(node, partition, record, proposal, None);
            return Ok(true);
        }
        if self.nodes[node].followed[partition].is_some() {
            match self.nodes[node].agent.running {
                // Asked to let go; a stopped agent holds on, and without the lock nobody stands.
                Running::Up => self.leave(node, partition),
                Running::Paused | Running::Down => return Ok(true),
            }
        }
        let Some(open) = self.open(node, Which::LeaderSvc, partition, record)? else { return Ok(true) };
        let candidate = Candidate {
            node: self.nodes[node].id,
            incarnation: peeked.map_or_else(|| open.incarnation(), |seen| seen.incarnation),
            highest_epoch: open.report().highest_leader_epoch,
            log_end: open.log_end(),
        };
        let proposal = next_leadership(record, &candidate, order);
        if proposal.is_err() {
            self.withdraw(node, partition, record, &candidate);
        }
        self.stand_with(node, partition, record, proposal, Some(open));
        Ok(true)
    }

    /// Who cannot lead because the in-sync set names another incarnation of it says so in the record.
    fn withdraw(&mut self, node: usize, partition: usize, record: &PartitionRecord, candidate: &Candidate) {
        let alive = |id: NodeId| self.nodes[index_of(id)].leader_svc.is_up();
        let Some(withdrawn) = withdrawal(record, candidate, successor(record, alive)) else { return };
        self.count_fault("withdrawal proposed");
        self.write_for_nobody(node, partition, Purpose::Withdrawal, withdrawn, record);
    }

    /// What the checkpoint says of a replica that another program may hold: for those faults that do not take the lock first.
    fn peek(&self, node: usize, partition: usize) -> Option<Candidate> {
        let dir = data_dir().join(format!("topic{partition}-0"));
        let state = CheckpointFile::read(&self.nodes[node].leader_svc.storage, &dir).ok()?.into_state()?;
        Some(Candidate {
            node: self.nodes[node].id,
            incarnation: state.incarnation,
            highest_epoch: state.highest_leader_epoch,
            log_end: state.recovery_point,
        })
    }

    fn stand_with(
        &mut self,
        node: usize,
        partition: usize,
        record: &PartitionRecord,
        proposal: Result<PartitionRecord, Ineligible>,
        open: Option<OpenReplica<SimStorage>>,
    ) {
        let (step, serial) = (self.step, self.next_serial());
        let proposal = match proposal {
            Ok(proposal) => proposal,
            Err(why) => {
                self.trace.note(|| format!("{step} p{partition} n{node} may not stand: {why}"));
                drop(open.map(OpenReplica::close));
                return;
            }
        };
        self.trace
            .note(|| format!("{step} p{partition} n{node} stands #{serial}: {}", record_text(&proposal)));
        let standing = Standing { open, serial, proposal, before: record.clone() };
        self.nodes[node].led[partition] = Led::Stands(Box::new(standing));
        self.propose_again(node, partition);
    }

    /// Opens a replica's log, and looks at what that found. `None`: somebody else holds it, or the disk fails.
    pub(super) fn open(
        &mut self,
        node: usize,
        which: Which,
        partition: usize,
        record: &PartitionRecord,
    ) -> Result<Option<OpenReplica<SimStorage>>, String> {
        let me = self.nodes[node].id;
        let program = self.nodes[node].program(which);
        let mut lock = program.locks.try_lock(partition_id(partition)).ok().flatten();
        if lock.is_none() && is_planted(PlantedFault::WriteWithoutLock) {
            lock = program.locks.try_lock(partition_id(partition + NOBODYS)).ok().flatten();
        }
        let Some(lock) = lock else { return Ok(None) };
        // Nobody else has what a sole member lost: it stays electable and records the loss (design.md 6.3). That it is alone is
        // what its program has seen; the record may say otherwise by now.
        let alone = which == Which::LeaderSvc && matches!(&record.isr[..], [only] if only.node == me);
        let on_damage = if alone { OnDamage::KeepIncarnation } else { OnDamage::RenewIncarnation };
        let plan = &self.scenario.partitions[partition];
        let place = self.nodes[node].place(which, partition, plan, &self.incarnations);
        let opened = place.open(lock, on_damage, self.now().wall);
        let step = self.step;
        self.trace.note(|| match &opened {
            Ok(open) => format!("{step} p{partition} n{node} {which:?} opens: {}", open_text(open)),
            Err(error) => format!("{step} p{partition} n{node} {which:?} cannot open: {error}"),
        });
        let Ok(open) = opened else { return Ok(None) };
        self.doom_when_open(node);
        self.check_opened(node, partition, &open)?;
        Ok(Some(open))
    }

    /// Makes the proposal, or makes it again against the same version (design.md 6.4).
    pub(super) fn propose_again(&mut self, node: usize, partition: usize) -> bool {
        let Led::Stands(standing) = &self.nodes[node].led[partition] else { return false };
        let waits = |write: &Write| write.serial == standing.serial && !write.abandoned;
        if self.store.writes.iter().any(waits) {
            return false;
        }
        let write = Write {
            node,
            serial: standing.serial,
            partition,
            purpose: Purpose::Election,
            new: standing.proposal.clone(),
            expected: standing.before.partition_epoch,
            outcome: None,
            abandoned: false,
        };
        self.store.writes.push(write);
        true
    }

    /// The candidate hears what became of its write; `None` = nobody knows.
    pub(super) fn election_outcome(
        &mut self,
        node: usize,
        partition: usize,
        outcome: Option<CasOutcome<PartitionRecord>>,
    ) {
        let Led::Stands(standing) = &self.nodes[node].led[partition] else { return };
        let seen = self.known(node, Which::LeaderSvc, partition);
        let won = match outcome {
            Some(CasOutcome::Committed(record)) => Some(record),
            Some(CasOutcome::Conflict(found)) => standing.is_ours(&self.nodes[node], &found).then_some(found),
            None if seen.partition_epoch > standing.before.partition_epoch => {
                standing.is_ours(&self.nodes[node], seen).then(|| seen.clone())
            }
            None => {
                self.propose_again(node, partition);
                return;
            }
        };
        let Led::Stands(standing) = std::mem::take(&mut self.nodes[node].led[partition]) else { return };
        let step = self.step;
        match won {
            Some(record) => self.begin_to_lead(node, partition, *standing, record),
            None => {
                self.trace.note(|| format!("{step} p{partition} n{node} lost #{}", standing.serial));
                drop(standing.open.map(OpenReplica::close));
            }
        }
    }

    fn begin_to_lead(&mut self, node: usize, partition: usize, standing: Standing, record: PartitionRecord) {
        self.has_seen(node, Which::LeaderSvc, partition, &record);
        let Standing { open, serial, .. } = standing;
        let Some(open) = open.or_else(|| self.open_late(node, partition, &record)) else { return };
        self.note_lost(node, partition, &open);
        let config = self.leader_config(partition);
        let leading = Leading { config, node: self.nodes[node].id, record: record.clone() };
        let (step, now) = (self.step, self.now().monotonic);
        let lead = open.lead(leading, now);
        self.trace.note(|| {
            let outcome = lead.as_ref().map(|leader| leader.epoch_start().get()).map_err(ToString::to_string);
            format!("{step} p{partition} n{node} leads #{serial} from {outcome:?}")
        });
        if let Ok(replica) = lead {
            self.nodes[node].acknowledged[partition] = None;
            let since = self.millis;
            let (retired, absent) = (BTreeSet::new(), BTreeSet::new());
            let (parked, waiting) = (Vec::new(), Vec::new());
            let (damaged, rot) = (false, None);
            let leads =
                Leads { replica, serial, since, record, damaged, rot, retired, absent, parked, waiting };
            self.nodes[node].led[partition] = Led::Leads(Box::new(leads));
            if let Err(broken) = self.decide(node, partition) {
                self.broken.get_or_insert(broken);
            }
            self.execute_effects(node, partition);
            // A newer record that came while its own was on its way.
            let known = self.known(node, Which::LeaderSvc, partition).clone();
            self.leader_sees(node, partition, &known);
        }
    }

    /// Takes the lock after the record was written: a planted fault.
    fn open_late(
        &mut self,
        node: usize,
        partition: usize,
        record: &PartitionRecord,
    ) -> Option<OpenReplica<SimStorage>> {
        if self.nodes[node].followed[partition].is_some() && self.nodes[node].agent.is_up() {
            self.leave(node, partition);
        }
        let opened = self.open(node, Which::LeaderSvc, partition, record);
        opened.unwrap_or_else(|broken| {
            self.broken.get_or_insert(broken);
            None
        })
    }

    /// A program's own write, or its answer, shows it the record.
    pub(super) fn has_seen(&mut self, node: usize, which: Which, partition: usize, record: &PartitionRecord) {
        let versions = &self.store.records[partition];
        let found = versions.iter().rposition(|v| v.partition_epoch == record.partition_epoch);
        let known = &mut self.nodes[node].program_mut(which).known[partition];
        *known = found.map_or(*known, |version| version.max(*known));
    }
}

pub(super) fn record_text(record: &PartitionRecord) -> String {
    let isr: Vec<_> =
        record.isr.iter().map(|m| format!("n{}i{}", index_of(m.node), m.incarnation.get())).collect();
    format!(
        "leader {:?} epoch {:?} version {} isr {}",
        record.leader.map(index_of),
        record.leader_epoch.map(|e| e.get()),
        record.partition_epoch.get(),
        isr.join(",")
    )
}

fn open_text(open: &OpenReplica<SimStorage>) -> String {
    let report = open.report();
    let damage: Vec<_> = report.damage.iter().map(|d| d.range.to_string()).collect();
    format!(
        "{}..{} hw {} i{} {:?} clean {} damage [{}] {:?}",
        report.positions.log_start,
        report.positions.log_end,
        report.high_watermark.offset,
        report.incarnation.get(),
        report.renewal,
        report.clean,
        damage.join(","),
        report.repairs
    )
}
