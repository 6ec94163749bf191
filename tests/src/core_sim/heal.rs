//! The end of a run: nothing goes wrong any more. Within a bounded number of rounds every partition that still has an
//! electable replica must have a leader, a full in-sync set, everything committed, and equal logs.

use highwater_protocol::follower::PartitionFetchState;
use highwater_types::Offset;

use super::cluster::Cluster;
use super::history::Batch;
use super::node::{Led, Running, Which, index_of, node_id};

/// Rounds within which a cluster without faults has settled.
const ROUNDS: usize = 200;
/// The round in which a person has somebody lead where nobody may.
const ORDER_ROUND: usize = 60;
/// Rounds after which a person resumes what has given up.
const RESUME_EVERY: usize = 30;
/// Rounds within which a question is answered, or never.
const QUESTION_ROUNDS: usize = 10;
/// Milliseconds of a round.
const ROUND_MILLIS: u64 = 100;

impl Cluster {
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.stop_faults();
        for round in 0..ROUNDS {
            self.millis += ROUND_MILLIS;
            if round == ORDER_ROUND {
                self.order_where_nobody_can()?;
            }
            for node in 0..self.nodes.len() {
                for which in [Which::LeaderSvc, Which::Agent] {
                    if self.nodes[node].program(which).running == Running::Down {
                        self.start(node, which);
                    }
                    for partition in 0..self.scenario.partitions.len() {
                        self.learn(node, which, partition);
                        match which {
                            Which::LeaderSvc => self.lead_on(node, partition)?,
                            Which::Agent => self.follow_on(node, partition, round)?,
                        }
                    }
                    self.settle_network_and_store()?;
                }
                self.bury();
                self.check()?;
            }
            if (0..self.scenario.partitions.len()).all(|partition| self.unsettled(partition).is_none()) {
                return self.check_ends();
            }
        }
        for partition in 0..self.scenario.partitions.len() {
            if let Some(why) = self.unsettled(partition) {
                if self.leads_what_rots(partition) {
                    self.count_fault("partition left with a leader whose record rots");
                    continue;
                }
                if self.has_electable(partition) {
                    return Err(format!("partition {partition} does not heal: {why}"));
                }
                self.count_fault("partition left without an electable replica");
            }
        }
        Ok(())
    }

    fn stop_faults(&mut self) {
        let step = self.step;
        self.trace.note(|| format!("{step} faults stop"));
        self.healing = true;
        self.scenario.loss = 0;
        self.scenario.repeats = 0;
        self.scenario.rudeness = 0;
        self.scenario.hand_overs = 0;
        self.scenario.reassignments = 0;
        self.scenario.late_answers = 0;
        self.scenario.late_cuts = 0;
        self.scenario.late_work = 0;
        self.scenario.lazy_flushes = false;
        self.network.mend();
        self.store.outage = false;
        self.resume_all();
        for node in &mut self.nodes {
            node.disk.set_space_left(None);
            node.disk.stop_after(u64::MAX);
            node.doomed = None;
            for which in [Which::LeaderSvc, Which::Agent] {
                let program = node.program_mut(which);
                if program.running == Running::Paused {
                    program.running = Running::Up;
                }
            }
        }
    }

    fn lead_on(&mut self, node: usize, partition: usize) -> Result<(), String> {
        if !self.nodes[node].leader_svc.is_up() {
            return Ok(());
        }
        match &self.nodes[node].led[partition] {
            Led::Not => drop(self.maybe_stand(node, partition)?),
            Led::Stands(_) => drop(self.propose_again(node, partition)),
            Led::Leads(leads) if leads.replica.is_over() => self.stop_leading(node, partition),
            Led::Leads(_) => {
                self.leader_round(node, partition);
                self.move_on(node, partition);
            }
        }
        Ok(())
    }

    fn follow_on(&mut self, node: usize, partition: usize, round: usize) -> Result<(), String> {
        if !self.nodes[node].agent.is_up() {
            return Ok(());
        }
        let now = self.now();
        match &self.nodes[node].followed[partition] {
            None => drop(self.maybe_follow(node, partition)?),
            Some(followed) => {
                let state = followed.replica.state(now.monotonic);
                if round % RESUME_EVERY == RESUME_EVERY - 1
                    && matches!(state, PartitionFetchState::Failed { .. })
                {
                    let step = followed.replica.on_resume(now);
                    self.absorb(node, partition, step);
                }
                if round % QUESTION_ROUNDS == QUESTION_ROUNDS - 1 {
                    self.question_times_out(node, partition);
                }
                self.follower_round(node, partition);
            }
        }
        Ok(())
    }

    fn follower_round(&mut self, node: usize, partition: usize) {
        self.tick_follower(node, partition);
        for _ in 0..8 {
            self.work(node, partition);
        }
        self.flush_follower(node, partition);
        self.repair(node, partition);
        self.fetch(node, partition);
    }

    fn settle_network_and_store(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            if self.network.messages.is_empty() && self.store.writes.is_empty() {
                break;
            }
            self.network_step()?;
            self.store_step()?;
        }
        Ok(())
    }

    /// Why a partition has not settled; `None` = it has.
    fn unsettled(&self, partition: usize) -> Option<String> {
        let record = self.store.current(partition);
        let Some(leader) = record.leader.map(index_of) else { return Some("nobody leads".to_owned()) };
        let Some(leads) = self.nodes[leader].leads(partition) else {
            return Some(format!("node {leader} is recorded and does not lead"));
        };
        if leads.replica.is_over() {
            return Some(format!("node {leader} is about to stop leading"));
        }
        if Some(leads.replica.epoch()) != record.leader_epoch {
            return Some(format!("node {leader} leads in another epoch"));
        }
        if !record.adding.is_empty() || !record.removing.is_empty() {
            return Some("its replicas are being moved".to_owned());
        }
        let end = leads.replica.log_end();
        if leads.replica.high_watermark() != end {
            return Some(format!("{} of {end} are committed", leads.replica.high_watermark()));
        }
        record.replicas.iter().filter(|id| index_of(**id) != leader).find_map(|id| {
            let Some(followed) = &self.nodes[index_of(*id)].followed[partition] else {
                return Some(format!("node {id} does not follow"));
            };
            if followed.replica.log().usable().is_err() {
                return Some(format!("the log of follower {id} has failed"));
            }
            let (own, high_watermark) =
                followed.replica.inspect(|core| (core.log_end(), core.high_watermark()));
            if own != end || high_watermark != end {
                let state = followed.replica.state(self.now().monotonic);
                return Some(format!("follower {id} has {own}, HW {high_watermark}, of {end}: {state:?}"));
            }
            let is_member = record.is_electable(*id, followed.replica.incarnation());
            (!is_member).then(|| format!("follower {id} is not in the in-sync set"))
        })
    }

    /// Whether a replica exists that may stand.
    /// Whether the leader has a record that it cannot serve, and has left once because of it.
    fn leads_what_rots(&self, partition: usize) -> bool {
        let leader = self.store.current(partition).leader.map(index_of);
        let rots = self.rotten[partition].is_some_and(|(node, _)| Some(node) == leader);
        rots && leader
            .is_some_and(|node| self.nodes[node].leads(partition).is_some_and(|leads| leads.damaged))
    }

    pub(super) fn has_electable(&self, partition: usize) -> bool {
        let record = self.store.current(partition);
        record.is_new()
            || record
                .isr
                .iter()
                .any(|m| self.nodes[index_of(m.node)].incarnations[partition] == Some(m.incarnation))
    }

    /// Equal logs, and nothing that somebody was told is missing.
    fn check_ends(&mut self) -> Result<(), String> {
        for partition in 0..self.scenario.partitions.len() {
            let record = self.store.current(partition).clone();
            if record.is_new() {
                continue;
            }
            let mut view = self.observe(partition)?;
            view.replicas.retain(|replica| record.has_replica(replica.node));
            let starts = view.replicas.iter().map(|replica| replica.now.log_start);
            let start = starts.max().unwrap_or(Offset::ZERO);
            // What is on record as lost, others than the leader may hold.
            let counts = |batch: &&Batch| batch.base >= start && !view.history.is_lost(batch);
            let of = |batches: &[Batch]| -> Vec<Batch> { batches.iter().filter(counts).copied().collect() };
            let first = view.replicas.first().map(|replica| of(replica.batches)).unwrap_or_default();
            for replica in &view.replicas {
                if of(replica.batches) != first {
                    return Err(format!(
                        "partition {partition}: the log of node {} is another one",
                        replica.node
                    ));
                }
            }
            debug_assert!(
                view.replicas.iter().any(|r| Some(r.node) == record.leader),
                "the leader is among them"
            );
        }
        self.note_observed();
        Ok(())
    }
}

/// Whether the recorded leader does lead.
impl Cluster {
    pub(super) fn leads_as_recorded(&self, leader: usize, partition: usize) -> bool {
        let record = self.store.current(partition);
        record.leader == Some(node_id(leader))
            && match &self.nodes[leader].led[partition] {
                Led::Not => false,
                Led::Stands(_) => true,
                Led::Leads(leads) => Some(leads.replica.epoch()) == record.leader_epoch,
            }
    }
}
