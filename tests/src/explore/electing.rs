//! Taking a leadership, as leader-svc does: the log first, then the compare-and-swap (design.md 6.2, 6.6, 6.9).

use std::collections::BTreeSet;
use std::sync::Arc;

use highwater_coordination::{Candidate, CasOutcome, UncleanOrder, next_leadership};
use highwater_protocol::leader::{LeaderPartition, LeaderStart};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{MonotonicTime, PartitionRecord};

use super::state::{Leads, Role, Stands, State, Write, node_id, spend};
use super::step::Done;

impl State {
    /// Takes the log, and answers what this node may propose with it.
    fn take_log_and_propose(&mut self, node: usize) -> Option<PartitionRecord> {
        self.leave(node);
        let twin = self.node(node);
        twin.log.open();
        twin.serial += 1;
        let candidate = Candidate {
            node: node_id(node),
            incarnation: twin.log.incarnation,
            highest_epoch: twin.log.highest_epoch.max(twin.log.last_epoch()),
            log_end: twin.log.end(),
        };
        next_leadership(&self.record, &candidate, UncleanOrder::None).ok()
    }

    /// The first leadership of a new partition is not counted.
    fn spend_election(&mut self) -> bool {
        self.record.is_new() || spend(&mut self.left.elections)
    }

    pub(super) fn stand(&mut self, node: usize) -> Done {
        let expected = self.record.partition_epoch;
        if !self.spend_election() {
            return Ok(false);
        }
        let Some(proposal) = self.take_log_and_propose(node) else { return Ok(false) };
        match self.swap(&proposal, expected)? {
            CasOutcome::Committed(record) => self.begin_to_lead(node, record),
            CasOutcome::Conflict(_) => Ok(false),
        }
    }

    pub(super) fn stand_unheard(&mut self, node: usize) -> Done {
        let expected = self.record.partition_epoch;
        if !self.spend_election() || !spend(&mut self.left.timeouts) {
            return Ok(false);
        }
        let Some(proposal) = self.take_log_and_propose(node) else { return Ok(false) };
        let new = Arc::new(proposal);
        let twin = self.node(node);
        twin.role = Role::Stands(Stands { proposal: Arc::clone(&new), expected });
        let write = Write { node, serial: twin.serial, new, expected, outcome: None, abandoned: true };
        Arc::make_mut(&mut self.writes).push(write);
        Ok(true)
    }

    /// The candidate makes its proposal again, against the same version (design.md 6.4).
    pub(super) fn stand_again(&mut self, node: usize) -> Done {
        let Role::Stands(stands) = &self.nodes[node].role else { return Ok(false) };
        let Stands { proposal, expected } = stands.clone();
        match self.swap(&proposal, expected)? {
            CasOutcome::Committed(record) => self.begin_to_lead(node, record),
            // An earlier try of the same write.
            CasOutcome::Conflict(found)
                if found.leader == proposal.leader
                    && found.leader_epoch == proposal.leader_epoch
                    && found.isr_member(node_id(node)) == proposal.isr_member(node_id(node)) =>
            {
                self.begin_to_lead(node, found)
            }
            CasOutcome::Conflict(_) => {
                let twin = self.node(node);
                twin.log.close(twin.log.high_watermark);
                twin.role = Role::Idle;
                Ok(true)
            }
        }
    }

    /// As `highwater-replica` begins: the epoch is noted and begins in the log before anything is served (S36).
    fn begin_to_lead(&mut self, node: usize, record: Arc<PartitionRecord>) -> Done {
        let config = self.bounds.leader_config();
        let serial = self.nodes[node].serial;
        let epoch = record.leader_epoch.ok_or("a leadership without an epoch")?;
        if self.history.leaderships.contains_key(&epoch) {
            return Err(format!("one leader per epoch: epoch {epoch} begins again, at node {node}"));
        }
        Arc::make_mut(&mut self.history).leaderships.insert(epoch, (node, serial));
        let twin = self.node(node);
        let log = &mut twin.log;
        if log.highest_epoch.is_some_and(|seen| seen > epoch)
            || !record.is_electable(node_id(node), log.incarnation)
        {
            log.close(log.high_watermark);
            twin.role = Role::Idle;
            return Ok(true);
        }
        log.note_epoch(epoch);
        if !is_planted(PlantedFault::NoEpochAtLeaderStart) {
            log.assign_epoch(epoch);
        }
        let start = LeaderStart {
            node: node_id(node),
            record: (*record).clone(),
            log_start: log.facts().log_start,
            log_end: log.end(),
            flushed_end: log.flushed,
            high_watermark: log.high_watermark.0,
        };
        let now = MonotonicTime::ZERO;
        let core = LeaderPartition::new(config, start, now).map_err(|error| error.to_string())?;
        twin.role = Role::Leads(Box::new(Leads { core, record, now, retired: BTreeSet::new() }));
        self.absorb_effects(node)?;
        Ok(true)
    }
}
