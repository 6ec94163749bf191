//! Unclean elections (design.md 6.13): a person orders one, or the topic allows it once no member of the in-sync set is left.
//! What that gives up, the history learns when somebody leads by it; what each replica reports as lost must fit that
//! (`invariants::loss_reports`).

use highwater_coordination::UncleanOrder;
use highwater_types::{NodeId, PartitionRecord};

use super::cluster::Cluster;
use super::node::{Led, Which, index_of};

impl Cluster {
    /// What the topic allows this node now: a member of the in-sync set that may still come is waited for.
    pub(super) fn unclean_order(
        &self,
        node: usize,
        partition: usize,
        record: &PartitionRecord,
    ) -> UncleanOrder {
        let me = self.nodes[node].id;
        if !self.scenario.partitions[partition].unclean || record.is_new() || !record.has_replica(me) {
            return UncleanOrder::None;
        }
        let may_come = |other: usize| {
            other != node && self.nodes[other].leader_svc.is_up() && !self.network.is_cut(node, other)
        };
        let is_waited_for = |id: NodeId| !record.has_withdrawn(id) && may_come(index_of(id));
        let member_lives = record.isr.iter().any(|member| is_waited_for(member.node));
        if member_lives { UncleanOrder::None } else { UncleanOrder::Topic { member_lives } }
    }

    /// A person has this node lead, whatever it lacks.
    pub(super) fn order_unclean(&mut self, node: usize, partition: usize) -> Result<(), String> {
        while self.learn(node, Which::LeaderSvc, partition) {}
        let record = self.known(node, Which::LeaderSvc, partition).clone();
        let is_free = matches!(self.nodes[node].led[partition], Led::Not);
        if is_free && self.nodes[node].leader_svc.is_up() && record.has_replica(self.nodes[node].id) {
            self.count_fault("unclean election ordered");
            self.stand(node, partition, &record, UncleanOrder::Person)?;
        }
        Ok(())
    }

    /// Somebody begins to lead. If that is by an unclean election, or the first time after one, it is known now what is lost.
    pub(super) fn decide(&mut self, node: usize, partition: usize) -> Result<(), String> {
        let Some(leads) = self.nodes[node].leads(partition) else { return Ok(()) };
        let election = leads.record.highest_unclean_epoch();
        let Some(election) = election.filter(|epoch| Some(*epoch) > self.histories[partition].decided) else {
            return Ok(());
        };
        self.look_at(node, partition)?;
        let shadow = &self.nodes[node].shadows[partition];
        let Some(said) = &shadow.saying else { return Ok(()) };
        let (start, high_watermark) = (said.log_start, said.high_watermark);
        self.histories[partition].decide(election, &shadow.batches, start, high_watermark);
        let (step, gone) = (self.step, self.histories[partition].given_up());
        self.trace.note(|| {
            format!(
                "{step} p{partition} n{node} leads by unclean election {election}: {gone} batches are lost"
            )
        });
        Ok(())
    }

    /// Nobody who may stand is left of these partitions; a person chooses who leads.
    pub(super) fn order_where_nobody_can(&mut self) -> Result<(), String> {
        for partition in 0..self.scenario.partitions.len() {
            let record = self.store.current(partition).clone();
            if !self.scenario.persons || self.has_electable(partition) {
                continue;
            }
            for node in record.replicas.iter().map(|id| index_of(*id)) {
                self.order_unclean(node, partition)?;
                if !matches!(self.nodes[node].led[partition], Led::Not) {
                    break;
                }
            }
        }
        Ok(())
    }
}
