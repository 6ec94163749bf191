//! What the invariants look at: the same views as the simulation's, made of two states that follow each other.

use std::sync::Arc;

use highwater_protocol::follower::PartitionFetchState;
use highwater_protocol::leader::{FollowerOfLeader, Presence};
use highwater_types::MonotonicTime;

use super::bounds::Bounds;
use super::state::{Leads, Node, Role as Does, State, node_id};
use crate::core_sim::{PartitionView, ReplicaView, Role, Said};
use crate::invariants;

impl Leads {
    /// Whether it began less than `replica.lag.time.max.ms` ago.
    pub(super) fn is_young(&self, bounds: &Bounds) -> bool {
        self.now.since(MonotonicTime::ZERO) <= bounds.leader_config().replica_lag_time_max
    }
}

impl State {
    /// Checks every invariant on this state, which came of `before`; then what was seen is history.
    ///
    /// # Errors
    /// The first that does not hold.
    pub(super) fn check(&mut self, before: &Self) -> Result<(), String> {
        let saids: Vec<_> = (0..self.nodes.len())
            .map(|node| {
                let past = says(&before.nodes[node], before, None);
                let past = past.filter(|past| past.serial == self.nodes[node].serial);
                (says(&self.nodes[node], self, past.as_ref()), past)
            })
            .collect();
        let mut replicas = Vec::new();
        for (node, (now, past)) in saids.iter().enumerate() {
            let Some(now) = now else { continue };
            let log = &self.nodes[node].log;
            replicas.push(ReplicaView {
                node: node_id(node),
                now: now.clone(),
                before: past.as_ref(),
                batches: &log.batches,
                epochs: Arc::clone(&log.epochs),
                damage: Vec::new(),
                removed: &[],
            });
        }
        invariants::check(&PartitionView {
            record: &self.record,
            record_before: Some(&before.record),
            durability: self.bounds.durability,
            min_isr: self.record.effective_min_isr(self.bounds.min_isr),
            keeps_all: true,
            undecided: false,
            history: &self.history,
            replicas,
            unlocked: Vec::new(),
            one_step: true,
            changed: true,
        })?;
        for (node, (now, _)) in saids.into_iter().enumerate() {
            if let Some(now) = now.filter(|now| !now.failed) {
                self.note_worked(node, &now);
            }
        }
        Ok(())
    }

    fn note_worked(&mut self, node: usize, said: &Said) {
        let own = (node_id(node), said.incarnation);
        if self.history.worked.get(&own).is_some_and(|(epoch, _)| *epoch >= said.epoch) {
            return;
        }
        Arc::make_mut(&mut self.history).worked.insert(own, (said.epoch, said.serial));
    }
}

/// What a node says of its replica; `None` where it has none open, or not to work with it.
fn says(node: &Node, state: &State, before: Option<&Said>) -> Option<Said> {
    let (role, epoch, high_watermark, failed) = match &node.role {
        Does::Idle | Does::Stands(_) => return None,
        Does::Follows(follows) => {
            let core = &follows.core;
            let failed = matches!(core.state(state.follower_time()), PartitionFetchState::Failed { .. });
            (Role::Follower, core.leader_epoch(), core.high_watermark(), failed)
        }
        Does::Leads(leads) => {
            let role = leader_role(leads, state, before);
            (role, leads.core.epoch(), leads.core.high_watermark(), false)
        }
    };
    Some(Said {
        serial: node.serial,
        role,
        epoch,
        incarnation: node.log.incarnation,
        log_start: highwater_types::Offset::ZERO,
        high_watermark,
        log_end: node.log.end(),
        flushed: node.log.flushed,
        failed,
        generation: 0,
        damaged_from: None,
        loss: None,
    })
}

fn leader_role(leads: &Leads, state: &State, before: Option<&Said>) -> Role {
    let core = &leads.core;
    let rose = before.is_some_and(|said| said.high_watermark < core.high_watermark());
    let rows = if rose { core.describe(leads.now) } else { Vec::new() };
    let bound = state.bounds.leader_config().replica_lag_time_max;
    // Who is known to be dead is not about to join, nor who came back and has not caught up.
    let is_absent = |f: &FollowerOfLeader| f.presence != Presence::There;
    let absent: Vec<_> =
        core.essence(leads.now).followers.into_iter().filter(is_absent).map(|f| f.node).collect();
    let outside = rows.iter().filter(|row| core.isr().iter().all(|member| member.node != row.node));
    let outside = outside.filter(|row| !absent.contains(&row.node));
    let caught_up = outside.filter(|row| row.lag_time.is_some_and(|lag| lag <= bound));
    Role::Leader {
        joining: caught_up.filter_map(|row| row.acknowledged).collect(),
        retired: leads.retired.iter().copied().collect(),
        // Here only those who do not follow are taken for dead, and they are not looked at.
        absent: Vec::new(),
        isr: core.isr().to_vec(),
        epoch_start: core.epoch_start(),
        over: core.is_over(),
        young: leads.is_young(&state.bounds),
    }
}
