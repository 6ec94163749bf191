//! Producers, who ask for `acks=all`, and consumers of leaders and followers. What they are told goes into the history.

use bytes::Bytes;
use highwater_log::ReadLimits;
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_records::{BatchBuilder, BatchView, Compression, batches};
use highwater_types::{Offset, WallTime};

use super::cluster::Cluster;
use super::history::Batch;
use super::node::partition_id;

impl Batch {
    pub(super) fn of(view: &BatchView<'_>) -> Self {
        let header = view.header();
        Self {
            base: header.base_offset(),
            next: header.next_offset(),
            epoch: header.leader_epoch(),
            crc: header.crc(),
        }
    }
}

/// A batch that no other of the run is like.
fn batch(number: u64, records: u64) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for record in 0..records {
        let value = format!("{record} of {number}");
        let appended = builder.append(WallTime::from_millis(1_000), None, Some(value.as_bytes()), &[]);
        assert!(appended.is_ok(), "a small batch can be built");
    }
    builder.build().map(bytes::BytesMut::freeze).expect("a batch of a few records")
}

impl Cluster {
    /// A producer's batch arrives at somebody who believes to lead.
    pub(super) fn produce(&mut self) -> bool {
        let node = self.pick(self.nodes.len());
        let partition = self.pick(self.scenario.partitions.len());
        self.produce_at(node, partition)
    }

    pub(super) fn produce_at(&mut self, node: usize, partition: usize) -> bool {
        if !self.nodes[node].leader_svc.is_up() {
            return false;
        }
        let now = self.now();
        let (number, records) = (self.produced + 1, 1 + self.up_to(2));
        let acks_all = self.percent(85);
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return false };
        if leads.replica.is_over() || (acks_all && leads.replica.check_min_isr().is_err()) {
            return true;
        }
        let input = batch(number, records);
        let appended = leads.replica.append(std::slice::from_ref(&input), now.wall, now.monotonic);
        if let Ok(appended) = &appended
            && acks_all
        {
            let crc = BatchView::parse(&input).map(|view| view.header().crc()).unwrap_or_default();
            let epoch = Some(leads.replica.epoch());
            leads.waiting.push(Batch { base: appended.first, next: appended.next, epoch, crc });
        }
        self.produced = number;
        let step = self.step;
        self.trace.note(|| {
            let at = appended.as_ref().map(|a| (a.first.get(), a.next.get())).map_err(ToString::to_string);
            format!("{step} p{partition} n{node} produce {at:?} all {acks_all}")
        });
        self.execute_effects(node, partition);
        true
    }

    /// A consumer reads from a leader or a follower, anywhere.
    pub(super) fn consume(&mut self) -> Result<bool, String> {
        let node = self.pick(self.nodes.len());
        let partition = self.pick(self.scenario.partitions.len());
        let near_the_end = self.up_to(12);
        let id = partition_id(partition);
        let mut request = FetchPartition {
            topic: TopicRef::Id(id.topic_id),
            partition: id.partition,
            incarnation: None,
            current_leader_epoch: None,
            fetch_offset: Offset::ZERO,
            acknowledged_offset: None,
            last_fetched_epoch: None,
            log_start: None,
            high_watermark: None,
            max_bytes: 300,
            paused: false,
        };
        let now = self.now().monotonic;
        let limits = |upper| ReadLimits { max_bytes: 300, min_one_batch: true, upper };
        let from = |high_watermark: Offset, start: Offset| {
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
            plan.ok().and_then(|plan| leads.replica.read(plan.from, limits(plan.upper)).ok())
        } else if let Some(followed) = &node_ref.followed[partition]
            && node_ref.agent.is_up()
        {
            let facts = followed.replica.facts();
            request.fetch_offset = from(facts.high_watermark, facts.positions.log_start);
            let plan = followed.replica.plan(Requester::Consumer, &request);
            plan.ok().and_then(|plan| followed.replica.read(plan.from, limits(plan.upper)).ok())
        } else {
            return Ok(false);
        };
        let Some(read) = read else { return Ok(true) };
        self.has_read(node, partition, &read.records)?;
        Ok(true)
    }

    fn has_read(&mut self, node: usize, partition: usize, records: &[u8]) -> Result<(), String> {
        let history = &mut self.histories[partition];
        for view in batches(records) {
            let view =
                view.map_err(|error| format!("node {node} served bytes that are no batch: {error}"))?;
            let batch = Batch::of(&view);
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
