//! Which states are the same: two with one key have the same future, up to the names of nodes.
//!
//! A key holds all that decides what may happen and what a rule would say of it. Left out, and why that is sound:
//!
//! - what the essences of the two cores leave out (see there);
//! - numbers of requests: only which of two is greater is asked;
//! - numbers of generations: an answer, or work, is of the core's current one or void for ever;
//! - versions of records: only how far they lie from the current one is compared;
//! - the order of replicas and of members of the in-sync set: it only says which of two dead members leaves first, where one
//!   has to stay;
//! - serial numbers of openings: whoever asked is still there, or is not; times of followers, whose waits are always over;
//! - of history, what can never be asked again: who led which epoch, and what former incarnations did.
//!
//! **Symmetry.** No rule asks for a node's name, so states that differ by a renaming of nodes are one: the key is the smallest of
//! all renamings. A node that stays away never opened its log, so it can be taken for none that did. To try few of them, nodes are put in the order of what can be said of each without a name.

use highwater_coordination::CasOutcome;
use highwater_protocol::fetch::FetchPartition;
use highwater_protocol::follower::{AnswerFacts, FetchPosition};
use highwater_protocol::leader::LeaderEssence;
use highwater_types::{Incarnation, IsrMember, LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionRecord};

use super::NODES;
use super::log_twin::LogTwin;
use super::state::{Answer, Follows, Leads, Node, Role, State, Work, incarnation_parts, node_id, node_index};
use crate::core_sim::Batch;

/// A state, as far as it is told apart: 128 bits of its canonical text. Two of ten million differ with a probability above
/// 1 − 10⁻²³.
pub(super) type Key = u128;

/// Every order of three nodes: the place of each.
const ORDERS: [[usize; NODES]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// A name that no node has: for what is said of a node without naming any.
const NAMELESS: [usize; NODES] = [0xee; NODES];

impl State {
    /// The state's key.
    pub(super) fn key(&self) -> Key {
        let alone: [Vec<u8>; NODES] = std::array::from_fn(|node| {
            let mut text = Text::new(self, NAMELESS);
            text.node(&self.nodes[node]);
            text.bytes
        });
        let is_ordered = |places: &&[usize; NODES]| {
            (0..NODES).all(|a| (0..NODES).all(|b| places[a] >= places[b] || alone[a] <= alone[b]))
        };
        let texts = ORDERS.iter().filter(is_ordered).map(|places| self.text(*places));
        fingerprint(&texts.min().expect("some order is the order"))
    }

    fn text(&self, places: [usize; NODES]) -> Vec<u8> {
        let mut text = Text::new(self, places);
        let mut left = self.left;
        text.bytes.extend(left.counts().map(|(_, count)| *count));
        text.record(&self.record);
        for place in 0..NODES {
            let node = places.iter().position(|p| *p == place).expect("each place is somebody's");
            text.node(&self.nodes[node]);
            text.worked(node);
        }
        text.sorted(self.writes.iter(), |text, write| {
            text.index(write.node);
            let is_alive = self.nodes[write.node].serial == write.serial;
            text.bytes.extend([u8::from(is_alive), u8::from(write.abandoned)]);
            text.version(write.expected);
            text.record(&write.new);
            match &write.outcome {
                None => text.bytes.push(0),
                Some(CasOutcome::Committed(record)) => text.outcome(1, record),
                Some(CasOutcome::Conflict(record)) => text.outcome(2, record),
            }
        });
        text.sorted(self.requests.iter(), |text, late| {
            let asker = self.follows(late.from).filter(|_| self.nodes[late.from].serial == late.serial);
            text.index(late.from);
            text.index(late.to);
            text.request(&late.request);
            let order = late.request.order;
            text.number(
                self.requests.iter().filter(|r| r.from == late.from && r.request.order < order).count(),
            );
            let generation = asker.map(|follows| follows.core.generation());
            text.bytes.push(u8::from(generation == Some(late.position.generation)));
        });
        if self.left.stale > 0 {
            text.sorted(self.former.iter(), |text, (leader, epoch)| {
                text.name(Some(*leader));
                text.epoch(Some(*epoch));
            });
        }
        text.offset(self.history.committed_end);
        self.history.committed.values().for_each(|batch| text.batch(batch));
        for epoch in self.history.leaderships.keys() {
            text.epoch(Some(*epoch));
        }
        text.bytes
    }
}

/// 128-bit FNV-1a.
fn fingerprint(text: &[u8]) -> Key {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// A state in bytes, with nodes named by their places.
struct Text<'a> {
    state: &'a State,
    places: [usize; NODES],
    bytes: Vec<u8>,
}

impl<'a> Text<'a> {
    fn new(state: &'a State, places: [usize; NODES]) -> Self {
        Self { state, places, bytes: Vec::with_capacity(256) }
    }

    // === words ===

    /// A small number.
    fn number(&mut self, number: impl TryInto<u8>) {
        self.bytes.push(number.try_into().unwrap_or_else(|_| panic!("numbers of an exploration are small")));
    }

    fn index(&mut self, node: usize) {
        self.number(self.places[node]);
    }

    fn name(&mut self, node: Option<NodeId>) {
        match node {
            Some(node) => self.index(node_index(node)),
            None => self.bytes.push(0xff),
        }
    }

    fn epoch(&mut self, epoch: Option<LeaderEpoch>) {
        self.bytes.push(epoch.map_or(0xff, |epoch| u8::try_from(epoch.get()).expect("few epochs")));
    }

    fn offset(&mut self, offset: Offset) {
        self.number(offset.get());
    }

    fn maybe_offset(&mut self, offset: Option<Offset>) {
        match offset {
            Some(offset) => self.offset(offset),
            None => self.bytes.push(0xff),
        }
    }

    fn incarnation(&mut self, incarnation: Incarnation) {
        let (node, number) = incarnation_parts(incarnation);
        self.index(node);
        self.number(number);
    }

    fn members(&mut self, isr: &[IsrMember]) {
        self.sorted(isr.iter(), |text, member| text.incarnation(member.incarnation));
    }

    /// How far a version lies behind the record's.
    fn version(&mut self, version: PartitionEpoch) {
        self.number(self.state.record.partition_epoch.get() - version.get());
    }

    fn batch(&mut self, batch: &Batch) {
        self.offset(batch.base);
        self.epoch(batch.epoch);
        self.number(batch.crc);
    }

    /// Things whose order means nothing.
    fn sorted<T>(&mut self, things: impl Iterator<Item = T>, write: impl Fn(&mut Text<'_>, T)) {
        let text = |thing| {
            let mut text = Text { state: self.state, places: self.places, bytes: Vec::new() };
            write(&mut text, thing);
            text.bytes
        };
        let mut texts: Vec<Vec<u8>> = things.map(text).collect();
        texts.sort_unstable();
        self.number(texts.len());
        self.bytes.extend(texts.into_iter().flatten());
    }

    // === things ===

    fn record(&mut self, record: &PartitionRecord) {
        self.name(record.leader);
        self.epoch(record.leader_epoch);
        self.members(&record.isr);
        self.name(record.resigned.map(|resigned| resigned.node));
    }

    fn outcome(&mut self, kind: u8, record: &PartitionRecord) {
        self.bytes.push(kind);
        self.version(record.partition_epoch);
        self.record(record);
    }

    /// The highest epoch in which this incarnation of the node was seen to work.
    fn worked(&mut self, node: usize) {
        let own = (node_id(node), self.state.nodes[node].log.incarnation);
        self.epoch(self.state.history.worked.get(&own).map(|(epoch, _)| *epoch));
    }

    fn node(&mut self, node: &Node) {
        self.log(&node.log);
        self.number(node.born);
        match &node.role {
            Role::Idle => self.bytes.push(0),
            Role::Follows(follows) => self.follows(follows),
            Role::Leads(leads) => self.leads(leads),
            Role::Stands(stands) => {
                self.bytes.push(3);
                self.record(&stands.proposal);
                self.version(stands.expected);
            }
        }
    }

    fn log(&mut self, log: &LogTwin) {
        self.number(log.batches.len());
        for batch in &log.batches {
            self.epoch(batch.epoch);
            self.number(batch.crc);
        }
        self.number(log.epochs.entries().len());
        for entry in log.epochs.entries() {
            self.epoch(Some(entry.epoch));
            self.offset(entry.start);
        }
        self.offset(log.flushed);
        self.number(incarnation_parts(log.incarnation).1);
        self.epoch(log.highest_epoch);
        self.offset(log.high_watermark.0);
        self.epoch(log.high_watermark.1);
        self.bytes.push(u8::from(log.clean));
    }

    fn follows(&mut self, follows: &Follows) {
        self.bytes.push(1);
        let core = follows.core.essence();
        let generation = core.generation;
        self.name(Some(core.leader));
        self.epoch(Some(core.leader_epoch));
        self.number(incarnation_parts(core.incarnation).1);
        self.bytes.extend(core.phase.bytes());
        self.bytes.push(u8::from(core.is_retried));
        for offset in [core.log_start, core.log_start_asked, core.log_end, core.flushed_end, core.queued_end]
        {
            self.offset(offset);
        }
        self.number(core.queued_bytes);
        for epoch in [core.last_fetched_epoch, core.high_watermark_epoch, core.unclean_epoch] {
            self.epoch(epoch);
        }
        self.offset(core.high_watermark);
        self.offset(core.heard_high_watermark);
        let held =
            [core.leader_log_start, core.damaged_from, core.acknowledged_sent, core.acknowledged_counted];
        held.into_iter().for_each(|offset| self.maybe_offset(offset));
        self.maybe_offset(core.settled_at.map(|(at, _)| at));
        self.epoch(core.settled_at.and_then(|(_, epoch)| epoch));
        self.number(core.fetch_failures);
        self.number(core.storage_failures);
        self.sorted(follows.answer.iter(), |text, answer| text.answer(answer, generation));
        self.sorted(follows.late.iter(), |text, answer| text.answer(answer, generation));
        self.number(follows.work.len());
        for work in &follows.work {
            self.work(work, generation);
        }
        self.bytes.push(follows.question.map_or(0xff, |asked| u8::from(asked == generation)));
    }

    fn position(&mut self, position: &FetchPosition, generation: u64) {
        self.offset(position.fetch_offset);
        self.epoch(position.last_fetched_epoch);
        self.epoch(Some(position.leader_epoch));
        self.number(incarnation_parts(position.incarnation).1);
        self.bytes.push(u8::from(position.generation == generation));
    }

    fn answer(&mut self, answer: &Answer, generation: u64) {
        self.position(&answer.position, generation);
        match &answer.facts {
            AnswerFacts::Error(code) => {
                self.bytes.push(0);
                self.number(*code as i32);
            }
            AnswerFacts::Diverging(at) => {
                self.bytes.push(1);
                self.offset(at.offset);
                self.epoch(Some(at.epoch));
            }
            AnswerFacts::Records { snapshot, .. } => {
                self.bytes.push(2);
                self.offset(snapshot.high_watermark);
                self.number(answer.batches.len());
                answer.batches.iter().for_each(|batch| self.batch(batch));
            }
        }
    }

    fn work(&mut self, work: &Work, current: u64) {
        let (kind, generation) = match work {
            Work::Append { generation, batches } => {
                batches.iter().for_each(|batch| self.batch(batch));
                (0, *generation)
            }
            Work::Truncate { generation, at } => {
                self.offset(at.offset);
                self.epoch(Some(at.epoch));
                (1, *generation)
            }
            Work::Renew { generation } => (2, *generation),
        };
        self.bytes.extend([kind, u8::from(generation == current)]);
    }

    fn request(&mut self, request: &FetchPartition) {
        self.epoch(request.current_leader_epoch);
        self.offset(request.fetch_offset);
        self.offset(request.acknowledged());
        self.epoch(request.last_fetched_epoch);
        if let Some(incarnation) = request.incarnation {
            self.number(incarnation_parts(incarnation).1);
        }
    }

    fn leads(&mut self, leads: &Leads) {
        self.bytes.push(2);
        let core: LeaderEssence = leads.core.essence(leads.now);
        self.epoch(Some(core.epoch));
        for offset in [core.epoch_start, core.log_start, core.log_end, core.flushed_end] {
            self.offset(offset);
        }
        self.offset(core.high_watermark);
        self.offset(core.propagated);
        self.members(&core.isr);
        self.version(core.partition_epoch);
        match &core.pending {
            None => self.bytes.push(0),
            Some(pending) => {
                self.bytes.push(1 + u8::from(pending.is_unknown));
                self.members(&pending.proposed);
                self.version(pending.expected);
            }
        }
        let flags = [core.watches_lag, core.is_over, leads.is_young(&self.state.bounds)];
        self.bytes.extend(flags.map(u8::from));
        self.record(&leads.record);
        self.version(leads.record.partition_epoch);
        self.sorted(core.followers.iter(), |text, follower| {
            text.name(Some(follower.node));
            text.number(follower.incarnation.map_or(0xff, |own| incarnation_parts(own).1));
            text.number(follower.retired.len());
            follower.retired.iter().for_each(|old| text.number(incarnation_parts(*old).1));
            text.maybe_offset(follower.acknowledged);
            text.bytes.extend([follower.is_fetching, follower.is_read_for].map(u8::from));
            text.bytes.push(follower.presence as u8);
            text.bytes.push(follower.caught_up.map_or(0xff, u8::from));
            text.number(follower.arrivals.len());
            for (recent, end) in &follower.arrivals {
                text.bytes.push(u8::from(*recent));
                text.offset(*end);
            }
            let node = node_index(follower.node);
            // Every request to come is greater than what was seen.
            let late = text.state.requests.iter().filter(|late| late.from == node);
            text.number(late.filter(|late| late.request.order < follower.latest).count());
            let told: Vec<_> = leads.retired.iter().filter(|(other, _)| *other == follower.node).collect();
            let current = text.state.nodes[node].log.incarnation;
            let is_current = told.iter().any(|(_, incarnation)| *incarnation == current);
            text.bytes.extend([!told.is_empty(), is_current].map(u8::from));
        });
    }
}

#[cfg(test)]
#[path = "key_test.rs"]
mod tests;
