//! What leader-svc does around the core of a leader: serves fetches, appends, writes what the core proposes, and stops when it is
//! superseded.

use std::sync::Arc;

use highwater_coordination::{CasOutcome, resignation};
use highwater_protocol::fetch::{FetchPartition, ReadPlan};
use highwater_protocol::follower::{AnswerFacts, BatchSpan, FetchPosition};
use highwater_protocol::leader::{Answered, IsrOutcome, IsrProposal, LeaderEffect};
use highwater_types::{ErrorCode, PartitionRecord};

use super::log_twin::index;
use super::state::{Answer, Role, State, Write, node_id, spend};
use super::step::Done;
use crate::core_sim::Batch;

/// Ticks that take a leader through `replica.lag.time.max.ms` without a gap that it would excuse.
const TICKS_PER_LAPSE: u32 = 5;

/// Records in an answer: the fewest, so that between any two of them other things can happen.
const RECORDS_PER_ANSWER: usize = 1;

impl State {
    // === fetches ===

    /// A follower's fetch arrives. `None`: nobody leads there, and no answer comes.
    pub(super) fn serve(
        &mut self,
        leader: usize,
        from: usize,
        position: FetchPosition,
        request: &FetchPartition,
    ) -> Result<Option<Answer>, String> {
        if self.leads(leader).is_none() {
            return Ok(None);
        }
        let Some((leads, log)) = self.node(leader).leads() else { return Ok(None) };
        let now = leads.now;
        let planned = leads.core.on_follower_fetch(node_id(from), request, &log.facts(), now);
        let (facts, batches) = match planned {
            Ok(ReadPlan { diverging: Some(at), .. }) => (AnswerFacts::Diverging(at), Vec::new()),
            Ok(plan) => {
                let read = &log.batches[index(plan.from).min(log.batches.len())..];
                let batches: Vec<Batch> = read.iter().copied().take(RECORDS_PER_ANSWER).collect();
                let end = batches.last().map(|batch| batch.next);
                leads.core.on_follower_answered(node_id(from), Answered { end, ..Answered::default() }, now);
                let spans = batches.iter().map(span).collect();
                (AnswerFacts::Records { snapshot: plan.snapshot, batches: spans, bad: None }, batches)
            }
            Err(error) => {
                if error.code == ErrorCode::StaleIncarnation {
                    leads.retired.extend(request.incarnation.map(|incarnation| (node_id(from), incarnation)));
                }
                (AnswerFacts::Error(error.code), Vec::new())
            }
        };
        self.absorb_effects(leader)?;
        Ok(Some(Answer { position, facts, batches }))
    }

    /// Does what the core asks for.
    pub(super) fn absorb_effects(&mut self, node: usize) -> Result<(), String> {
        // Now: in this very step it may stop to lead.
        self.note_committed(node);
        let mut proposals = Vec::new();
        let mut superseded = false;
        let Some((leads, _)) = self.node(node).leads() else { return Ok(()) };
        while let Some(effect) = leads.core.poll_effect() {
            match effect {
                LeaderEffect::ProposeIsr(proposal) => proposals.push(proposal),
                LeaderEffect::Superseded => superseded = true,
                LeaderEffect::HighWatermarkAdvanced(_)
                | LeaderEffect::TellFollowers(_)
                | LeaderEffect::IsrChanged(_) => {}
            }
        }
        for proposal in proposals {
            self.propose_isr(node, proposal)?;
        }
        if superseded {
            self.stop_leading(node);
        }
        Ok(())
    }

    fn propose_isr(&mut self, node: usize, proposal: IsrProposal) -> Result<(), String> {
        let serial = self.nodes[node].serial;
        let Some(leads) = self.leads(node) else { return Ok(()) };
        if leads.record.partition_epoch != proposal.expected {
            return Err("a leader proposes against a version that it has not seen".to_owned());
        }
        let new = PartitionRecord { isr: proposal.isr, ..(*leads.record).clone() };
        let expected = proposal.expected;
        // One whose effect was seen before its answer is no longer in flight.
        let is_in_flight =
            |other: &Write| (other.node, other.serial, other.expected) == (node, serial, expected);
        if self.writes.iter().any(|other| is_in_flight(other) && !other.abandoned) {
            return Err("one change of the in-sync set in flight at a time (S54)".to_owned());
        }
        let write = Write { node, serial, new: Arc::new(new), expected, outcome: None, abandoned: false };
        Arc::make_mut(&mut self.writes).push(write);
        Ok(())
    }

    // === the record ===

    pub(super) fn leader_sees(&mut self, node: usize, record: &Arc<PartitionRecord>) -> Result<(), String> {
        let Some((leads, _)) = self.node(node).leads() else { return Ok(()) };
        let now = leads.now;
        leads.core.on_record(record, now);
        if record.partition_epoch > leads.record.partition_epoch {
            leads.record = Arc::clone(record);
        }
        self.absorb_effects(node)
    }

    /// A look at the store that shows nothing new decides nothing (design.md 6.4).
    pub(super) fn look(&mut self, node: usize) -> Done {
        let Some(leads) = self.leads(node) else { return Ok(false) };
        let record = Arc::clone(&leads.record);
        if leads.core.essence(leads.now).pending.is_none_or(|pending| !pending.is_unknown) {
            return Ok(false);
        }
        self.leader_sees(node, &record)?;
        Ok(true)
    }

    /// A leader hears what became of its change of the in-sync set.
    pub(super) fn hear(&mut self, which: usize) -> Done {
        let write = Arc::make_mut(&mut self.writes).remove(which);
        let node = write.node;
        let (told, record) = match write.outcome {
            Some(CasOutcome::Committed(record)) => (IsrOutcome::Committed, record),
            Some(CasOutcome::Conflict(record)) => (IsrOutcome::Conflict, record),
            None => return Ok(false),
        };
        if self.nodes[node].serial != write.serial {
            return Ok(true);
        }
        let Some((leads, _)) = self.node(node).leads() else { return Ok(true) };
        leads.core.on_isr_outcome(write.expected, &told, leads.now);
        self.leader_sees(node, &record)?;
        Ok(true)
    }

    pub(super) fn time_out(&mut self, which: usize) -> Done {
        let Write { node, serial, expected, .. } = self.writes[which];
        if self.nodes[node].serial != serial || !spend(&mut self.left.timeouts) {
            return Ok(false);
        }
        let can_be_made = expected == self.record.partition_epoch;
        let writes = Arc::make_mut(&mut self.writes);
        if can_be_made {
            writes[which].abandoned = true;
        } else {
            writes.remove(which);
        }
        let Some((leads, _)) = self.node(node).leads() else { return Ok(false) };
        leads.core.on_isr_outcome(expected, &IsrOutcome::Unknown, leads.now);
        self.absorb_effects(node)?;
        Ok(true)
    }

    // === its own doing ===

    pub(super) fn append(&mut self, node: usize) -> Done {
        let number = self.bounds.records - self.left.records;
        if !spend(&mut self.left.records) {
            return Ok(false);
        }
        let Some((leads, log)) = self.node(node).leads() else { return Ok(false) };
        let base = log.end();
        let crc = u32::from(number) + 1;
        log.append(Batch { base, next: base.next(), epoch: Some(leads.core.epoch()), crc, sequence: None })?;
        leads.core.on_append(base.next(), leads.now);
        self.absorb_effects(node)?;
        Ok(true)
    }

    pub(super) fn tick(&mut self, node: usize) -> Done {
        let Some(leads) = self.leads(node) else { return Ok(false) };
        let now = leads.now;
        if leads.core.next_deadline().is_none_or(|at| at > now) {
            return Ok(false);
        }
        let Some((leads, _)) = self.node(node).leads() else { return Ok(false) };
        leads.core.on_tick(now);
        self.absorb_effects(node)?;
        Ok(true)
    }

    pub(super) fn lapse(&mut self, node: usize) -> Done {
        if !spend(&mut self.left.lapses) {
            return Ok(false);
        }
        let bound = self.bounds.leader_config().replica_lag_time_max;
        for _ in 0..TICKS_PER_LAPSE {
            let Some((leads, _)) = self.node(node).leads() else { return Ok(true) };
            leads.now = leads.now.after(bound / (TICKS_PER_LAPSE - 1));
            leads.core.on_tick(leads.now);
            self.absorb_effects(node)?;
        }
        Ok(true)
    }

    /// A follower's connection closed and its port refuses: nobody follows there.
    pub(super) fn gone(&mut self, node: usize, other: usize) -> Done {
        if self.follows(other).is_some() || !spend(&mut self.left.gone) {
            return Ok(false);
        }
        let Some((leads, _)) = self.node(node).leads() else { return Ok(false) };
        leads.core.on_follower_gone(node_id(other), leads.now);
        self.absorb_effects(node)?;
        Ok(true)
    }

    /// Hands over in order: stops first, then proposes that the other leads (design.md 6.11).
    pub(super) fn resign(&mut self, node: usize, successor: usize) -> Done {
        let Some(leads) = self.leads(node) else { return Ok(false) };
        let record = Arc::clone(&leads.record);
        let Ok(proposal) = resignation(&record, node_id(node), Some(node_id(successor))) else {
            return Ok(false);
        };
        if record.partition_epoch != self.record.partition_epoch || !spend(&mut self.left.resignations) {
            return Ok(false);
        }
        self.stop_leading(node);
        self.swap(&proposal, record.partition_epoch)?;
        Ok(true)
    }

    /// Ends a leadership in order.
    pub(super) fn stop_leading(&mut self, node: usize) {
        let twin = self.node(node);
        if let Some((leads, log)) = twin.leads() {
            log.close((leads.core.high_watermark(), Some(leads.core.epoch())));
            twin.role = Role::Idle;
        }
        self.give_up_writes(node);
    }

    /// Nobody waits for what this node wrote: what is not made is not made.
    pub(super) fn give_up_writes(&mut self, node: usize) {
        if self.writes.iter().any(|write| write.node == node && !write.abandoned) {
            Arc::make_mut(&mut self.writes).retain(|write| write.node != node || write.abandoned);
        }
    }
}

/// A batch, by its header; each is one byte to the core.
fn span(batch: &Batch) -> BatchSpan {
    BatchSpan { base: batch.base, next: batch.next, epoch: batch.epoch, bytes: 1 }
}
