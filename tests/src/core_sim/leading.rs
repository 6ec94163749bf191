//! What leader-svc does around a replica that leads: serves fetches, parks them, appends, flushes, writes what the core
//! proposes, and stops when it is superseded.

use highwater_coordination::CasOutcome;
use highwater_log::{ReadLimits, Unusable};
use highwater_protocol::fetch::{FetchPartition, Fetched, ReadPlan};
use highwater_protocol::follower::{FetchPosition, LeaderOffsets};
use highwater_protocol::leader::{Answered, IsrOutcome, IsrProposal, LeaderEffect};
use highwater_replica::AskOffsets;
use highwater_types::{
    Durability, ErrorCode, MonotonicTime, PartitionEpoch, PartitionRecord, ReplicationError,
};

use super::cluster::Cluster;
use super::network::{Body, Message, follower};
use super::node::{Leads, Led, Parked, Running, Which, node_id};
use super::store::{Purpose, Write};

/// Fetches that wait at one leader; more are answered at once.
const PARKED_MAX: usize = 12;

impl Cluster {
    /// leader-svc does something about a partition.
    pub(super) fn leader_svc_acts(&mut self, node: usize, partition: usize) -> Result<bool, String> {
        if self.percent(30) && self.learn(node, Which::LeaderSvc, partition) {
            return Ok(true);
        }
        match &self.nodes[node].led[partition] {
            Led::Not => self.maybe_stand(node, partition),
            Led::Stands(_) => Ok(self.propose_again(node, partition)),
            Led::Leads(leads) if leads.replica.is_over() => {
                self.stop_leading(node, partition);
                Ok(true)
            }
            Led::Leads(_) => {
                self.leader_acts(node, partition);
                Ok(true)
            }
        }
    }

    /// One round of everything for a leader, when nothing goes wrong any more.
    pub(super) fn leader_round(&mut self, node: usize, partition: usize) {
        if self.leave_if_damaged(node, partition) {
            return;
        }
        let now = self.now().monotonic;
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        drop(leads.replica.flush(now));
        leads.replica.on_tick(now);
        let parked = leads.parked.len();
        self.execute_effects(node, partition);
        for _ in 0..parked {
            self.complete_parked(node, partition);
        }
    }

    fn leader_acts(&mut self, node: usize, partition: usize) {
        if self.leave_if_damaged(node, partition) {
            return;
        }
        let hand_overs = self.scenario.hand_overs;
        if self.up_to(999) < hand_overs {
            return self.hand_over(node, partition);
        }
        let looks = self.scenario.looks;
        let (now, drawn) = (self.now(), self.up_to(94 + looks));
        if drawn < 40 && self.is_lazy(node, partition) {
            return;
        }
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let replica = &leads.replica;
        match drawn {
            0..=39 => drop(replica.flush(now.monotonic)),
            40..=64 => return self.complete_parked(node, partition),
            65..=79 => replica.on_tick(now.monotonic),
            80..=89 => drop(replica.write_checkpoint()),
            // A look at the store that shows nothing new decides nothing (design.md 6.4).
            90..=91 => return self.move_on(node, partition),
            92..=93 => drop(replica.apply_retention(now.wall)),
            94 => return self.stop_leading(node, partition),
            // A look at the store that shows nothing new decides nothing (design.md 6.4).
            _ => {
                let record = leads.record.clone();
                leads.replica.on_record(&record, now.monotonic);
            }
        }
        self.execute_effects(node, partition);
    }

    /// Whether a flush is put off: where records are acknowledged without one, and where the disk is slow.
    pub(super) fn is_lazy(&mut self, node: usize, partition: usize) -> bool {
        let is_acknowledged = self.scenario.partitions[partition].durability == Durability::PageCache;
        let is_slow = self.scenario.slow_disk == Some(node);
        (is_slow || (self.scenario.lazy_flushes && is_acknowledged)) && self.percent(90)
    }

    /// A program sees a newer version of a record; versions in between may be missed.
    pub(super) fn learn(&mut self, node: usize, which: Which, partition: usize) -> bool {
        let known = self.nodes[node].program(which).known[partition];
        let newest = self.store.newest(partition);
        if known == newest || self.store.outage || self.network.is_cut_from_store(node) {
            return false;
        }
        let version = known + 1 + self.pick(newest - known);
        self.nodes[node].program_mut(which).known[partition] = version;
        let record = self.store.records[partition][version].clone();
        match which {
            Which::LeaderSvc => self.leader_sees(node, partition, &record),
            Which::Agent => self.agent_sees(node, partition, &record),
        }
        true
    }

    pub(super) fn leader_sees(&mut self, node: usize, partition: usize, record: &PartitionRecord) {
        let now = self.now().monotonic;
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        leads.replica.on_record(record, now);
        if record.partition_epoch > leads.record.partition_epoch {
            leads.record = record.clone();
        }
        self.execute_effects(node, partition);
    }

    /// Does what the core asks for, and answers producers.
    pub(super) fn execute_effects(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let effects = leads.replica.drain_effects();
        let mut superseded = false;
        if effects.iter().any(|effect| matches!(effect, LeaderEffect::HighWatermarkAdvanced(_))) {
            // Now: within this step it may stop to lead.
            self.note_committed(node, partition);
        }
        for effect in effects {
            match effect {
                LeaderEffect::ProposeIsr(proposal) => self.propose_isr(node, partition, proposal),
                LeaderEffect::Superseded => superseded = true,
                LeaderEffect::HighWatermarkAdvanced(_)
                | LeaderEffect::TellFollowers(_)
                | LeaderEffect::IsrChanged(_) => {}
            }
        }
        self.answer_producers(node, partition);
        if superseded {
            self.stop_leading(node, partition);
        }
    }

    fn propose_isr(&mut self, node: usize, partition: usize, proposal: IsrProposal) {
        let now = self.now().monotonic;
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        if leads.record.partition_epoch != proposal.expected {
            let record = leads.record.clone();
            leads.replica.on_isr_outcome(proposal.expected, &IsrOutcome::Conflict, now);
            return self.leader_sees(node, partition, &record);
        }
        let write = Write {
            node,
            serial: leads.serial,
            partition,
            purpose: Purpose::IsrChange,
            new: PartitionRecord { isr: proposal.isr, ..leads.record.clone() },
            expected: proposal.expected,
            outcome: None,
            abandoned: false,
        };
        self.store.writes.push(write);
    }

    /// The leader hears what became of its change of the in-sync set; `None` = nobody knows.
    pub(super) fn isr_outcome(
        &mut self,
        node: usize,
        partition: usize,
        expected: PartitionEpoch,
        outcome: Option<CasOutcome<PartitionRecord>>,
    ) {
        let now = self.now().monotonic;
        let (told, record) = match outcome {
            Some(CasOutcome::Committed(record)) => (IsrOutcome::Committed, Some(record)),
            Some(CasOutcome::Conflict(record)) => (IsrOutcome::Conflict, Some(record)),
            None => (IsrOutcome::Unknown, None),
        };
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        leads.replica.on_isr_outcome(expected, &told, now);
        match record {
            Some(record) => {
                self.has_seen(node, Which::LeaderSvc, partition, &record);
                self.leader_sees(node, partition, &record);
            }
            None => self.execute_effects(node, partition),
        }
    }

    /// Ends a leadership in order, or gives up a log that failed; that may have to be tried again.
    pub(super) fn stop_leading(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let failed = leads.replica.log().usable().is_err();
        let done = if failed { leads.replica.abandon() } else { leads.replica.close() };
        let (step, serial) = (self.step, leads.serial);
        let gave_up = leads.replica.log().usable() == Err(Unusable::Closed);
        self.trace.note(|| format!("{step} p{partition} n{node} stops leading #{serial}: {done:?}"));
        self.answer_producers(node, partition);
        if done.is_ok() || gave_up {
            self.nodes[node].led[partition] = Led::Not;
        }
    }

    // === fetches ===

    /// A follower's fetch arrives at `node`.
    pub(super) fn serve_fetch(
        &mut self,
        node: usize,
        partition: usize,
        from: usize,
        serial: u64,
        position: FetchPosition,
        request: FetchPartition,
    ) -> Result<(), String> {
        if self.nodes[node].leader_svc.running == Running::Paused {
            let body = Body::Fetch { position, request };
            self.send(Message { partition, from, to: node, serial, body });
            return Ok(());
        }
        let now = self.now().monotonic;
        let may_park = self.percent(60);
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return Ok(()) };
        if request.failed || request.suspended {
            leads.absent.insert(node_id(from));
        }
        let replica = &leads.replica;
        let is_stale = request.current_leader_epoch != Some(replica.epoch());
        let before = is_stale.then(|| replica.describe(now));
        let planned = replica.on_fetch(follower(from), &request, now);
        let told = request.incarnation.map(|incarnation| (node_id(from), incarnation));
        let asked = request.clone();
        if let Some(before) = before {
            let acknowledged = |rows: &[(highwater_protocol::leader::FollowerRow, Option<u64>)]| {
                rows.iter().map(|(row, _)| (row.acknowledged, row.incarnation)).collect::<Vec<_>>()
            };
            if planned.is_ok() || acknowledged(&before) != acknowledged(&replica.describe(now)) {
                return Err(format!("a fetch of another epoch changed something at node {node}"));
            }
        }
        let answer = match planned {
            Ok(plan) if may_park && is_parkable(&plan, &request) && leads.parked.len() < PARKED_MAX => {
                leads.parked.push(Parked { from: (from, serial), position, request });
                None
            }
            Ok(plan) => Some(answer(leads, &plan, &request, from, now)),
            Err(error) => {
                if error.code == ErrorCode::StaleIncarnation {
                    leads.retired.extend(told);
                }
                Some(Err(error))
            }
        };
        let lost = leads.replica.lost_ranges();
        if matches!(&answer, Some(Ok(told)) if told.diverging.is_some()) {
            let body = Body::Fetch { position, request: asked };
            self.keep_request(Message { partition, from, to: node, serial, body });
        }
        if self.nodes[node].leads(partition).is_none() {
            return Ok(());
        }
        if let Some(answer) = answer {
            let body = Body::Fetched { position, answer, lost };
            self.send(Message { partition, from: node, to: from, serial, body });
        }
        self.execute_effects(node, partition);
        Ok(())
    }

    /// One parked fetch is answered with what there is now; nothing is counted (S25).
    fn complete_parked(&mut self, node: usize, partition: usize) {
        let waiting = self.nodes[node].leads(partition).map_or(0, |leads| leads.parked.len());
        if waiting == 0 {
            return;
        }
        let at = self.pick(waiting);
        let now = self.now().monotonic;
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let Parked { from: (to, serial), position, request } = leads.parked.swap_remove(at);
        let planned = leads.replica.plan(follower(to), &request);
        let answer = planned.and_then(|plan| answer(leads, &plan, &request, to, now));
        let lost = leads.replica.lost_ranges();
        let body = Body::Fetched { position, answer, lost };
        self.send(Message { partition, from: node, to, serial, body });
        self.execute_effects(node, partition);
    }

    /// A follower asks for this leader's range.
    pub(super) fn serve_offsets(
        &mut self,
        node: usize,
        partition: usize,
        from: usize,
        serial: u64,
        asked: AskOffsets,
    ) {
        if !self.nodes[node].leader_svc.is_up() {
            return;
        }
        let range = match self.nodes[node].leads(partition) {
            Some(leads) if leads.replica.epoch() == asked.leader_epoch && !leads.replica.is_over() => {
                let positions = leads.replica.facts().positions;
                Ok(LeaderOffsets { log_start: positions.log_start, log_end: positions.log_end })
            }
            Some(_) | None => Err(ErrorCode::LeaderNotAvailable),
        };
        let body = Body::Offsets { asked, range };
        self.send(Message { partition, from: node, to: from, serial, body });
    }
}

fn is_parkable(plan: &ReadPlan, request: &FetchPartition) -> bool {
    plan.diverging.is_none() && !plan.has_records() && request.max_bytes > 0
}

/// Reads what the plan says, as the services do: the leader notes what is on its way, and that counts nothing (S25).
fn answer(
    leads: &mut Leads,
    plan: &ReadPlan,
    request: &FetchPartition,
    to: usize,
    now: MonotonicTime,
) -> Result<Fetched, ReplicationError> {
    if let Some(at) = plan.diverging {
        return Ok(Fetched::diverging(plan.snapshot, at));
    }
    let mut fetched = Fetched::empty(plan.snapshot);
    let mut answered = Answered::default();
    if plan.has_records() && request.max_bytes > 0 {
        let max_bytes = usize::try_from(request.max_bytes).unwrap_or(usize::MAX);
        let limits = ReadLimits { max_bytes, min_one_batch: true, upper: plan.upper, checked: !plan.in_sync };
        leads.replica.on_follower_reads(node_id(to), now);
        let read = leads.replica.read(plan.from, limits).map_err(|error| {
            leads.read_failed(&error);
            ReplicationError::new(error.code(), error.to_string())
        })?;
        answered.end = (read.batches > 0).then_some(read.next);
        fetched.records = read.records;
    }
    leads.replica.on_follower_answered(node_id(to), answered, now);
    Ok(fetched)
}
