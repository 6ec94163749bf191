//! Consumers of leaders and followers. What they see goes into the history.

use highwater_log::ReadError;
use highwater_protocol::fetch::Requester;
use highwater_records::batches;
use highwater_types::Offset;

use super::cluster::Cluster;
use super::history::Batch;
use super::repair::{consumer_fetch, consumer_limits};

impl Cluster {
    /// A consumer reads from a leader or a follower, anywhere.
    pub(super) fn consume(&mut self) -> Result<bool, String> {
        let node = self.pick(self.nodes.len());
        let partition = self.pick(self.scenario.partitions.len());
        let near_the_end = self.up_to(12);
        // Who reads what rots is rare, and what follows from it is much.
        let rots = self.rotten[partition].filter(|(rots, _)| *rots == node).map(|(_, batch)| batch.base);
        let rots = if rots.is_some() && self.one_in(2) { rots } else { None };
        let mut request = consumer_fetch(partition, Offset::ZERO, None);
        let now = self.now().monotonic;
        let from = |high_watermark: Offset, start: Offset| {
            if let Some(rots) = rots.filter(|rots| *rots >= start && *rots < high_watermark) {
                return rots;
            }
            let back = i64::try_from(near_the_end).unwrap_or(0);
            start.max(Offset::new(high_watermark.get() - back).unwrap_or(Offset::ZERO))
        };
        let node_ref = &self.nodes[node];
        let read = if let Some(leads) = node_ref.leads(partition)
            && node_ref.leader_svc.is_up()
        {
            let facts = leads.replica.facts();
            request.fetch_offset = from(facts.high_watermark, facts.positions.log_start);
            let plan = leads.replica.on_fetch(Requester::Consumer, &request, now);
            plan.ok().map(|plan| leads.replica.read(plan.from, consumer_limits(plan.upper)))
        } else if let Some(followed) = &node_ref.followed[partition]
            && node_ref.agent.is_up()
        {
            let facts = followed.replica.facts();
            request.fetch_offset = from(facts.high_watermark, facts.positions.log_start);
            let plan = followed.replica.plan(Requester::Consumer, &request);
            plan.ok().map(|plan| followed.replica.read(plan.from, consumer_limits(plan.upper)))
        } else {
            return Ok(false);
        };
        match read {
            None => {}
            Some(Ok(read)) => self.has_read(node, partition, &read.records)?,
            Some(Err(error)) => self.read_failed(node, partition, &error),
        }
        Ok(true)
    }

    fn read_failed(&mut self, node: usize, partition: usize, error: &ReadError) {
        match self.nodes[node].leads_mut(partition) {
            Some(leads) => leads.read_failed(error),
            None => self.follower_read_failed(node, partition, error),
        }
    }

    fn has_read(&mut self, node: usize, partition: usize, records: &[u8]) -> Result<(), String> {
        let history = &mut self.histories[partition];
        for view in batches(records) {
            let view =
                view.map_err(|error| format!("node {node} served bytes that are no batch: {error}"))?;
            let batch = Batch::of(&view);
            // Of who has not heard yet of the unclean election that gave it up.
            if history.is_given_up(&batch) {
                continue;
            }
            let before = *history.seen.entry(batch.base).or_insert(batch);
            if before != batch && !history.is_lost(&batch) {
                return Err(format!(
                    "a consumer of node {node} saw {batch:?} where one saw {before:?} before (partition {partition})"
                ));
            }
        }
        Ok(())
    }
}
