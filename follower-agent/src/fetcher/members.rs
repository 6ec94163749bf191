//! The partitions of one loop, and what its next request asks for.
//!
//! A loop has two requests in flight at most. The *poll* may wait at the leader; it names every partition that asks. The
//! request *beside* it never waits: it acknowledges what was appended or flushed while the poll is parked (design.md 5),
//! and fetches for partitions that the parked poll does not read for: those that were paused in it, came later, or were
//! delayed. So a slow partition delays no other, and is itself not delayed by a parked poll. Once it has everything, only a
//! poll can wait for what comes next, so the parked one is given up for one that names it too.
//!
//! What must hold: the order of the poll is that of S9; a partition whose answer came too large is asked for alone until
//! it gets one, so that it delays no other (cases.md E); a request beside that brought nothing is not repeated before the
//! next poll, so nothing spins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_protocol::follower::{FetchAsk, FetchIntent, FetchPlan};
use highwater_types::{MonotonicTime, TopicIdPartition};

use super::Followed;
use super::gate::{Charges, Gate};

/// What a request asks for, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asks {
    order: Vec<TopicIdPartition>,
    by_id: BTreeMap<TopicIdPartition, FetchAsk>,
}

impl FromIterator<(TopicIdPartition, FetchAsk)> for Asks {
    fn from_iter<I: IntoIterator<Item = (TopicIdPartition, FetchAsk)>>(asks: I) -> Self {
        let order: Vec<_> = asks.into_iter().collect();
        Self { by_id: order.iter().copied().collect(), order: order.into_iter().map(|(id, _)| id).collect() }
    }
}

impl Asks {
    /// In the order of the request.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TopicIdPartition, &FetchAsk)> {
        self.order.iter().filter_map(|id| Some((*id, self.by_id.get(id)?)))
    }

    /// What it asks of a partition.
    pub(crate) fn get(&self, id: TopicIdPartition) -> Option<&FetchAsk> {
        self.by_id.get(&id)
    }

    /// The partitions of which it wants records.
    fn wanted(&self) -> impl Iterator<Item = (TopicIdPartition, FetchAsk)> {
        self.iter().filter(|(_, ask)| ask.max_bytes > 0).map(|(id, ask)| (id, *ask))
    }

    /// Whether it wants records of anything.
    pub(crate) fn wants_records(&self) -> bool {
        self.wanted().next().is_some()
    }
}

/// The partitions of one loop.
#[derive(Debug)]
pub(crate) struct Members<P> {
    plan: FetchPlan<TopicIdPartition>,
    by_id: BTreeMap<TopicIdPartition, Arc<P>>,
    /// Worth a look for the request beside the poll.
    candidates: BTreeSet<TopicIdPartition>,
    /// Asked for by themselves, because an answer that named them with others was too large.
    alone: BTreeSet<TopicIdPartition>,
    /// Those for which the last request beside the poll brought nothing.
    exhausted: BTreeSet<TopicIdPartition>,
    /// Those that wanted records beside the poll since it went out: it does not read for them.
    unpolled: BTreeSet<TopicIdPartition>,
    /// When to look at a partition that waits for a time.
    due: BTreeMap<TopicIdPartition, MonotonicTime>,
    /// Left out because of the throttle, until it lets something through again.
    held: BTreeSet<TopicIdPartition>,
}

impl<P> Default for Members<P> {
    fn default() -> Self {
        Self {
            plan: FetchPlan::new(),
            by_id: BTreeMap::new(),
            candidates: BTreeSet::new(),
            alone: BTreeSet::new(),
            exhausted: BTreeSet::new(),
            unpolled: BTreeSet::new(),
            due: BTreeMap::new(),
            held: BTreeSet::new(),
        }
    }
}

impl<P: Followed> Members<P> {
    pub(crate) fn get(&self, id: TopicIdPartition) -> Option<&Arc<P>> {
        self.by_id.get(&id)
    }

    /// A partition joins; one that is there keeps its place (S4).
    pub(crate) fn add(&mut self, partition: Arc<P>) {
        let id = partition.id();
        self.plan.add(id);
        self.by_id.insert(id, partition);
        self.look_at(id);
        debug_assert_eq!(self.plan.len(), self.by_id.len(), "every partition has its place");
    }

    pub(crate) fn remove(&mut self, id: TopicIdPartition) {
        self.plan.remove(&id);
        self.by_id.remove(&id);
        self.candidates.remove(&id);
        self.alone.remove(&id);
        self.exhausted.remove(&id);
        self.unpolled.remove(&id);
        self.due.remove(&id);
        self.held.remove(&id);
        debug_assert_eq!(self.plan.len(), self.by_id.len(), "every partition has its place");
    }

    /// Something happened to a partition.
    pub(crate) fn look_at(&mut self, id: TopicIdPartition) {
        let Some(partition) = self.by_id.get(&id) else { return };
        match partition.next_deadline() {
            Some(at) => drop(self.due.insert(id, at)),
            None => drop(self.due.remove(&id)),
        }
        self.candidates.insert(id);
    }

    /// Looks at every partition whose time has come.
    pub(crate) fn tick(&mut self, now: MonotonicTime) {
        let due: Vec<_> = self.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for id in due {
            self.due.remove(&id);
            let Some(partition) = self.by_id.get(&id) else { continue };
            partition.on_tick(now);
            // A delay that is over stays the partition's next deadline until it gets an answer.
            if let Some(at) = partition.next_deadline().filter(|at| *at > now) {
                self.due.insert(id, at);
            }
            self.candidates.insert(id);
        }
    }

    /// When the next partition's time comes.
    pub(crate) fn next_due(&self) -> Option<MonotonicTime> {
        self.due.values().min().copied()
    }

    /// Whether the throttle keeps a partition out of requests.
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// The throttle still keeps out what it kept out.
    pub(crate) fn hold_on(&self, gate: &Gate) {
        self.held.iter().for_each(|id| gate.held(*id));
    }

    /// The throttle lets something through again.
    pub(crate) fn release(&mut self) {
        self.candidates.append(&mut self.held);
    }

    /// What the next poll asks for; `None` when nobody wants records now: a poll of paused partitions only would wait for
    /// nothing.
    pub(crate) fn for_poll(&mut self, now: MonotonicTime, gate: &Gate) -> Option<(Asks, Charges)> {
        let in_order = self.plan.iter().filter(|id| !self.alone.contains(id));
        let (mut charges, held) = (Charges::default(), &mut self.held);
        let by_id = &self.by_id;
        let asks: Asks = in_order
            .filter_map(|id| {
                let partition = by_id.get(id)?;
                let FetchIntent::Ask(ask) = partition.intent(now) else { return None };
                let passed = gate.pass(&**partition, ask, &mut charges).or_else(|| {
                    held.insert(*id);
                    still_goes(&**partition, ask)
                });
                Some((*id, passed?))
            })
            .collect();
        if !asks.wants_records() {
            return None;
        }
        self.candidates.retain(|id| self.alone.contains(id));
        self.exhausted.clear();
        self.unpolled.clear();
        Some((asks, charges))
    }

    /// Whether `poll` waits without a partition that would wait with it: one that fetched beside it until it had
    /// everything. Ends with the next poll, so that a poll is given up once at most for each that comes.
    pub(crate) fn is_missing_in(&self, poll: &Asks, now: MonotonicTime) -> bool {
        let waits = |id: &&TopicIdPartition| !self.held.contains(id) && !self.alone.contains(id);
        self.unpolled.iter().filter(waits).any(|id| {
            let Some(partition) = self.by_id.get(id) else { return false };
            let FetchIntent::Ask(ask) = partition.intent(now) else { return false };
            ask.max_bytes > 0 && !reads_for(Some(poll), *id, &ask)
        })
    }

    /// What a request beside `poll` asks for; `None` = nothing is worth one.
    pub(crate) fn for_beside(
        &mut self,
        poll: Option<&Asks>,
        now: MonotonicTime,
        gate: &Gate,
    ) -> Option<(Asks, Charges)> {
        let mut charges = Charges::default();
        let by_itself: Vec<_> = self.candidates.intersection(&self.alone).copied().collect();
        for id in by_itself {
            let Some(ask) = self.ask_alone(id, now) else { continue };
            self.candidates.remove(&id);
            if let Some(ask) = self.passed(id, ask, gate, &mut charges) {
                return Some((Asks::from_iter([(id, ask)]), charges));
            }
        }
        let candidates = std::mem::take(&mut self.candidates);
        let ask = |id| {
            let ask = self.ask_beside(id, poll, now)?;
            Some((id, self.passed(id, ask, gate, &mut charges)?))
        };
        let asks: Asks = candidates.into_iter().filter_map(ask).collect();
        self.unpolled.extend(asks.wanted().map(|(id, _)| id));
        (!asks.order.is_empty()).then_some((asks, charges))
    }

    /// What of `ask` the throttle lets out now; a partition that it keeps back is looked at when it lets something through.
    fn passed(
        &mut self,
        id: TopicIdPartition,
        ask: FetchAsk,
        gate: &Gate,
        charges: &mut Charges,
    ) -> Option<FetchAsk> {
        let partition = self.by_id.get(&id)?;
        gate.pass(&**partition, ask, charges).or_else(|| {
            self.held.insert(id);
            still_goes(&**partition, ask)
        })
    }

    /// What a partition asks for by itself; also when it has everything: only an answer lets it into the poll again.
    fn ask_alone(&self, id: TopicIdPartition, now: MonotonicTime) -> Option<FetchAsk> {
        match self.by_id.get(&id)?.intent(now) {
            FetchIntent::Ask(ask) if ask.max_bytes > 0 => Some(ask),
            FetchIntent::Ask(_) | FetchIntent::NotBefore(_) | FetchIntent::Not => None,
        }
    }

    /// What a partition asks for beside the poll.
    fn ask_beside(&self, id: TopicIdPartition, poll: Option<&Asks>, now: MonotonicTime) -> Option<FetchAsk> {
        let partition = self.by_id.get(&id)?;
        let FetchIntent::Ask(ask) = partition.intent(now) else { return None };
        let wants_records = !reads_for(poll, id, &ask)
            && ask.max_bytes > 0
            && partition.has_more_to_fetch()
            && !self.exhausted.contains(&id);
        if wants_records {
            Some(ask)
        } else {
            partition.owes_acknowledgement().then(|| ask.only_acknowledging())
        }
    }

    /// A partition's answer was applied.
    pub(crate) fn answered(&mut self, id: TopicIdPartition, took_records: bool) {
        if took_records {
            self.plan.move_to_end(&id);
        }
        self.look_at(id);
    }

    /// An answer beside the poll was as a whole without records.
    pub(crate) fn brought_nothing(&mut self, asks: &Asks) {
        self.exhausted.extend(asks.wanted().map(|(id, _)| id));
    }

    /// A request that named this partition was answered.
    pub(crate) fn fits(&mut self, id: TopicIdPartition) {
        self.alone.remove(&id);
    }

    /// The answer to this request was too large: its partitions are asked for one by one. Answers which partition it is
    /// because of, when there is no doubt.
    pub(crate) fn too_large(&mut self, asks: &Asks) -> Option<(TopicIdPartition, FetchAsk)> {
        for (id, _) in asks.wanted().filter(|(id, _)| self.by_id.contains_key(id)) {
            self.alone.insert(id);
            self.candidates.insert(id);
        }
        let mut wanted = asks.wanted();
        wanted.next().filter(|_| wanted.next().is_none())
    }

    /// The largest batch that one of the partitions may have, in bytes.
    pub(crate) fn largest_batch(&self, asks: &Asks) -> u32 {
        let partitions = asks.order.iter().filter_map(|id| self.by_id.get(id));
        partitions.map(|partition| partition.largest_batch()).max().unwrap_or(0)
    }
}

/// Whether `poll` reads what a partition asks for.
fn reads_for(poll: Option<&Asks>, id: TopicIdPartition, ask: &FetchAsk) -> bool {
    let polled = poll.and_then(|poll| poll.get(id));
    polled.is_some_and(|sent| sent.max_bytes > 0 && sent.position == ask.position)
}

/// What a partition asks for that the throttle keeps back: its acknowledgement is no traffic, and neither is the question
/// whether it lags at all. The leader is told by it that it is kept back, for the cause of its lag.
fn still_goes<P: Followed>(partition: &P, ask: FetchAsk) -> Option<FetchAsk> {
    let goes = partition.owes_acknowledgement() || partition.is_unanswered();
    goes.then(|| ask.held_back())
}
