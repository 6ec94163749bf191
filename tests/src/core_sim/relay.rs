//! Runs in which the leadership of one partition is handed on again and again, faster than records spread: logs differ, in
//! several epochs at once, and what earlier leaders told is still under way. Everything is done by the same parts as in other
//! runs; only who acts next is chosen so that few steps are idle.

use highwater_coordination::UncleanOrder;
use highwater_types::NodeId;

use super::cluster::Cluster;
use super::node::{Which, index_of, node_id};
use super::store::Purpose;

/// The partition.
const PARTITION: usize = 0;

/// How often the leadership is handed on while somebody waits to cut, in 1000 steps.
const PASSES_BEFORE_A_CUT: u64 = 60;

impl Cluster {
    /// Lets one part do one thing; answers whether it had something to do.
    pub(super) fn relay_step(&mut self) -> Result<bool, String> {
        let record = self.store.current(PARTITION).clone();
        let Some(leader) =
            record.leader.map(index_of).filter(|node| self.nodes[*node].leads(PARTITION).is_some())
        else {
            return self.something();
        };
        // A cut that waits for a slow disk may find that somebody else leads.
        let passes = if self.waits_to_cut(PARTITION) { PASSES_BEFORE_A_CUT } else { self.scenario.passes };
        if self.up_to(999) < passes {
            return self.pass_on(leader);
        }
        match self.up_to(99) {
            0..=7 => Ok(self.produce()),
            8..=44 => {
                let others: Vec<_> =
                    record.replicas.iter().copied().filter(|id| index_of(*id) != leader).collect();
                let node = index_of(others[self.pick(others.len())]);
                if !self.nodes[node].agent.is_up() {
                    return Ok(self.start(node, Which::Agent));
                }
                if self.one_in(2) && self.learn(node, Which::Agent, PARTITION) {
                    return Ok(true);
                }
                self.agent_acts(node, PARTITION)
            }
            45..=81 => self.network_step(),
            82..=91 => self.leader_svc_acts(leader, PARTITION),
            92..=97 => self.store_step(),
            _ => self.something(),
        }
    }

    /// Another member of the in-sync set leads before anything else happens: the leader gives up, or is taken for dead and
    /// does not know.
    fn pass_on(&mut self, leader: usize) -> Result<bool, String> {
        // Who is taken for dead leaves the in-sync set; with two left, somebody can go on.
        let gives_up = self.store.current(PARTITION).isr.len() < 3 || !self.one_in(3);
        let mut has_learnt = false;
        while gives_up && self.learn(leader, Which::LeaderSvc, PARTITION) {
            has_learnt = true;
        }
        let record = self.store.current(PARTITION).clone();
        let may_lead = |id: &NodeId| index_of(*id) != leader && self.nodes[index_of(*id)].leader_svc.is_up();
        let members: Vec<_> = record.isr.iter().map(|member| member.node).filter(may_lead).collect();
        if members.is_empty() {
            return Ok(has_learnt);
        }
        let successor = members[self.pick(members.len())];
        if gives_up {
            self.hand_over_to(leader, PARTITION, &record, successor);
            self.make_at_once(leader, Purpose::Resignation)?;
        }
        let successor = index_of(successor);
        while self.learn(successor, Which::LeaderSvc, PARTITION) {}
        let record = self.store.current(PARTITION).clone();
        if record.leader.is_none() || (!gives_up && record.leader == Some(node_id(leader))) {
            self.stand(successor, PARTITION, &record, UncleanOrder::None)?;
            self.make_at_once(successor, Purpose::Election)?;
        }
        Ok(true)
    }

    fn make_at_once(&mut self, node: usize, purpose: Purpose) -> Result<(), String> {
        let is_it = |write: &super::store::Write| write.node == node && write.purpose == purpose;
        let Some(at) = self.store.writes.iter().position(is_it) else { return Ok(()) };
        self.make(at)?;
        let write = self.store.writes.swap_remove(at);
        self.tell(&write, write.outcome.clone());
        Ok(())
    }
}
