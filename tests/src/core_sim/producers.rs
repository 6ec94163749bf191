//! Producers: plain ones, and idempotent ones that send a batch again until they know what became of it (design.md 6.10).
//!
//! An idempotent producer numbers its batches. Some wait for each answer, as the client of this repository does; others
//! have up to five under way, as Kafka's clients may. Copies of a request arrive late, at whoever leads then. A producer
//! whose oldest batch is refused does not know what became of it, and goes on under another id.

use std::collections::VecDeque;

use bytes::Bytes;
use highwater_log::OffsetRange;
use highwater_protocol::leader::CommitStatus;
use highwater_records::{BatchBuilder, BatchView, Compression, Producer as ProducerFields};
use highwater_replica::Placed;
use highwater_types::WallTime;
use highwater_types::planted::{PlantedFault, is_planted};

use super::cluster::Cluster;
use super::history::{Batch, Sequence};
use super::node::Leads;

/// Idempotent producers of a partition.
const PRODUCERS: usize = 2;

/// Batches that an idempotent producer may have under way at most: as many as the leader remembers.
const IN_FLIGHT_MAX: u64 = 5;

/// Answered batches of which a copy may still be under way.
const COPIES_MAX: usize = 12;

/// A request to produce.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    input: Bytes,
    acks_all: bool,
    sequence: Option<Sequence>,
}

/// An idempotent producer.
#[derive(Clone, Debug, Default)]
pub(super) struct Producer {
    id: i64,
    next_sequence: i32,
    in_flight: usize,
    /// Sent, and not known to be in the log for good; the oldest first.
    unresolved: VecDeque<Sent>,
    /// The newest last.
    resolved: VecDeque<Sent>,
}

impl Producer {
    fn resolve(&mut self, sequence: Sequence) {
        let Some(at) = self.unresolved.iter().position(|sent| sent.sequence == Some(sequence)) else {
            return;
        };
        self.resolved.extend(self.unresolved.remove(at));
        if self.resolved.len() > COPIES_MAX {
            self.resolved.pop_front();
        }
    }

    fn is_oldest(&self, sequence: Sequence) -> bool {
        self.unresolved.front().is_some_and(|sent| sent.sequence == Some(sequence))
    }
}

/// Produced under `acks=all`, not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    batch: Batch,
}

/// A batch that no other of the run is like.
fn batch(number: u64, records: u64, producer: Option<ProducerFields>) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    if let Some(producer) = producer {
        builder = builder.producer(producer);
    }
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
        if !self.nodes[node].leader_svc.is_up() || self.nodes[node].leads(partition).is_none() {
            return false;
        }
        let idempotent = self.scenario.idempotent;
        if self.percent(idempotent) {
            let producer = self.pick(PRODUCERS);
            let sent = self.next_of(partition, producer);
            self.produce_at(node, partition, &sent);
        } else {
            let sent = self.new_batch(None);
            self.produce_at(node, partition, &sent);
        }
        true
    }

    /// A new batch, of this producer and sequence.
    fn new_batch(&mut self, producer: Option<(i64, i32)>) -> Sent {
        self.produced += 1;
        let records = 1 + self.up_to(2);
        let acks_all = self.percent(85);
        let fields = producer.map(|(id, base_sequence)| ProducerFields { id, epoch: 0, base_sequence });
        let input = batch(self.produced, records, fields);
        let sequence = BatchView::parse(&input).ok().and_then(|view| Batch::of(&view).sequence);
        Sent { input, acks_all, sequence }
    }

    /// What an idempotent producer sends now: a batch again, a new one, or a copy that comes late.
    fn next_of(&mut self, partition: usize, index: usize) -> Sent {
        // Of a producer whose records retention has removed, nothing is known: a copy of its first batch would pass.
        let may_come_late = !self.scenario.partitions[partition].retention;
        if self.producers[partition].len() <= index {
            self.producers[partition].resize_with(PRODUCERS, Producer::default);
        }
        if self.producers[partition][index].in_flight == 0 {
            self.begin_anew(partition, index);
        }
        let (resolved, unresolved, in_flight) = {
            let producer = &self.producers[partition][index];
            (producer.resolved.len(), producer.unresolved.len(), producer.in_flight)
        };
        if may_come_late && resolved > 0 && self.percent(10) {
            let at = self.pick(resolved);
            return self.producers[partition][index].resolved[at].clone();
        }
        if unresolved >= in_flight || (unresolved > 0 && self.percent(50)) {
            let at = self.pick(unresolved);
            return self.producers[partition][index].unresolved[at].clone();
        }
        let (id, next) =
            (self.producers[partition][index].id, self.producers[partition][index].next_sequence);
        let sent = self.new_batch(Some((id, next)));
        let producer = &mut self.producers[partition][index];
        producer.next_sequence = sent.sequence.map_or(next, |sequence| sequence.last + 1);
        producer.unresolved.push_back(sent.clone());
        sent
    }

    fn begin_anew(&mut self, partition: usize, index: usize) {
        let in_flight = if self.one_in(2) { 1 } else { 1 + self.up_to(IN_FLIGHT_MAX - 1) };
        self.producer_ids += 1;
        self.producers[partition][index] = Producer {
            id: self.producer_ids,
            in_flight: usize::try_from(in_flight).expect("a few"),
            ..Producer::default()
        };
    }

    fn produce_at(&mut self, node: usize, partition: usize, sent: &Sent) {
        let now = self.now();
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let replica = &leads.replica;
        if replica.is_over() || (sent.acks_all && replica.check_min_isr().is_err()) {
            return;
        }
        let outcomes = replica.produce(std::slice::from_ref(&sent.input), &[], now.wall, now.monotonic);
        let step = self.step;
        self.trace.note(|| {
            let (sequence, all) = (sent.sequence, sent.acks_all);
            format!("{step} p{partition} n{node} produce {sequence:?} all {all}: {outcomes:?}")
        });
        match outcomes.map(|outcomes| outcomes.into_iter().next()) {
            Ok(Some(Ok(placed))) => self.placed(node, partition, sent, placed),
            Ok(Some(Err(_))) => self.refused(partition, sent),
            // The disk failed: it is sent again.
            Ok(None) | Err(_) => {}
        }
        self.execute_effects(node, partition);
    }

    fn placed(&mut self, node: usize, partition: usize, sent: &Sent, placed: Placed) {
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let batch = as_told(leads, sent, placed.range);
        let early = placed.is_duplicate && is_planted(PlantedFault::DuplicateAnsweredEarly);
        if sent.acks_all && !early {
            leads.waiting.push(Waiting { batch });
            return;
        }
        if sent.acks_all {
            self.histories[partition].acknowledge(batch);
        }
        self.resolve(partition, batch);
    }

    /// A batch is out of order for its leader. If it is the oldest of its producer, it will always be.
    fn refused(&mut self, partition: usize, sent: &Sent) {
        let Some(sequence) = sent.sequence else { return };
        let mut producers = self.producers[partition].iter();
        let given_up = producers.position(|p| p.id == sequence.producer && p.is_oldest(sequence));
        if let Some(index) = given_up {
            self.begin_anew(partition, index);
        }
    }

    fn resolve(&mut self, partition: usize, batch: Batch) {
        let Some(sequence) = batch.sequence else { return };
        let mut producers = self.producers[partition].iter_mut();
        if let Some(producer) = producers.find(|producer| producer.id == sequence.producer) {
            producer.resolve(sequence);
        }
    }

    /// Producers hear of what is committed by now. Of the rest some wait on, some never hear.
    pub(super) fn answer_producers(&mut self, node: usize, partition: usize) {
        let Some(leads) = self.nodes[node].leads_mut(partition) else { return };
        let mut answered = Vec::new();
        let replica = &leads.replica;
        leads.waiting.retain(|waiting| match replica.commit_status(waiting.batch.next) {
            CommitStatus::Pending => true,
            CommitStatus::Committed => {
                answered.push(waiting.batch);
                false
            }
            CommitStatus::NotEnoughReplicas | CommitStatus::LeadershipLost => false,
        });
        for batch in answered {
            self.histories[partition].acknowledge(batch);
            self.resolve(partition, batch);
        }
    }
}

/// What a producer may believe of its batch: that it lies in this range, in the epoch that the leader's log has there.
fn as_told(leads: &Leads, sent: &Sent, range: OffsetRange) -> Batch {
    let crc = BatchView::parse(&sent.input).map(|view| view.header().crc()).unwrap_or_default();
    let epoch = leads.replica.log().epochs().epoch_at(range.start);
    Batch { base: range.start, next: range.end, epoch, crc, sequence: sent.sequence }
}
