//! Messages between machines and the store: made, delivered in any order, or lost.

use highwater_log::ReadLimits;
use highwater_protocol::fetch::{FetchPartition, Fetched, LostRange, Requester, TopicRef};
use highwater_protocol::follower::{FetchIntent, FetchPosition, LeaderOffsets};
use highwater_protocol::leader::{IsrOutcome, IsrProposal, LeaderEffect};
use highwater_types::{ErrorCode, PartitionEpoch, ReplicationError};

use super::{Cluster, Role, partition};

/// Something under way. The numbers are a machine and its life.
pub(crate) enum Message {
    Request {
        from: (usize, u64),
        to: usize,
        position: FetchPosition,
        request: FetchPartition,
    },
    Answer {
        to: (usize, u64),
        position: FetchPosition,
        answer: Result<Fetched, ReplicationError>,
        lost: Vec<LostRange>,
    },
    Propose {
        from: (usize, u64),
        proposal: IsrProposal,
    },
}

impl Cluster {
    fn index_of(&self, node: highwater_types::NodeId) -> usize {
        self.machines.iter().position(|m| m.node == node).unwrap()
    }

    /// A follower asks its leader, if it asks now. What goes out counts as acknowledged from here on.
    pub(crate) fn send_fetch(&mut self, index: usize, only_acknowledging: bool) {
        let now = self.now().monotonic;
        let leader = self.follower(index).inspect(|core| core.leader());
        let FetchIntent::Ask(ask) = self.follower(index).intent(now) else { return };
        let ask = if only_acknowledging { ask.only_acknowledging() } else { ask };
        self.follower(index).on_sent(&ask);
        let held = &mut self.machines[index].acknowledged;
        let before = held
            .filter(|(incarnation, _)| *incarnation == ask.position.incarnation)
            .map(|(_, offset)| offset);
        *held = Some((ask.position.incarnation, before.unwrap_or(ask.acknowledged).max(ask.acknowledged)));
        let from = (index, self.machines[index].life);
        let request = ask.to_partition(TopicRef::Id(partition().topic_id), partition().partition);
        let to = self.index_of(leader);
        self.messages.push(Message::Request { from, to, position: ask.position, request });
    }

    /// Delivers the message at this place of the list.
    pub(crate) fn deliver(&mut self, at: usize) {
        match self.messages.swap_remove(at) {
            Message::Request { from, to, position, request } => {
                let node = self.machines[from.0].node;
                if let Role::Leader(_) = self.machines[to].role {
                    let answer = self.serve(to, Requester::Follower(node), &request);
                    let lost = self.leader(to).lost_ranges();
                    self.messages.push(Message::Answer { to: from, position, answer, lost });
                    self.collect_effects(to);
                }
            }
            Message::Answer { to: (index, life), position, answer, lost } => {
                let now = self.now().monotonic;
                if self.machines[index].life == life
                    && let Role::Follower(side) = &mut self.machines[index].role
                {
                    let step = side.replica.on_answer(&position, answer.as_ref(), &lost, now);
                    side.take(step);
                }
            }
            Message::Propose { from, proposal } => self.compare_and_swap(from, proposal),
        }
    }

    /// What a leader answers to a fetch that arrives now.
    pub(crate) fn serve(
        &self,
        index: usize,
        requester: Requester,
        request: &FetchPartition,
    ) -> Result<Fetched, ReplicationError> {
        let leader = self.leader(index);
        let plan = leader.on_fetch(requester, request, self.now().monotonic)?;
        if let Some(at) = plan.diverging {
            return Ok(Fetched::diverging(plan.snapshot, at));
        }
        let mut fetched = Fetched::empty(plan.snapshot);
        if plan.has_records() && request.max_bytes > 0 {
            let max_bytes = usize::try_from(request.max_bytes).unwrap();
            let limits =
                ReadLimits { max_bytes, min_one_batch: true, upper: plan.upper, checked: !plan.in_sync };
            let read = leader.read(plan.from, limits);
            fetched.records = read.map_err(|e| ReplicationError::new(e.code(), e.to_string()))?.records;
        }
        Ok(fetched)
    }

    /// A follower's question for the leader's range, answered at once.
    pub(crate) fn answer_question(&mut self, index: usize) {
        let now = self.now().monotonic;
        let to = self.index_of(self.follower(index).inspect(|core| core.leader()));
        let Role::Follower(side) = &self.machines[index].role else { return };
        let Some(question) = side.question else { return };
        let range = match &self.machines[to].role {
            Role::Leader(leader) if leader.epoch() == question.leader_epoch && !leader.is_over() => {
                let positions = leader.facts().positions;
                Ok(LeaderOffsets { log_start: positions.log_start, log_end: positions.log_end })
            }
            Role::Leader(_) | Role::Follower(_) | Role::Down => Err(ErrorCode::LeaderNotAvailable),
        };
        let Role::Follower(side) = &mut self.machines[index].role else { return };
        side.question = None;
        let step = side.replica.on_leader_offsets(question, range, now);
        side.take(step);
    }

    /// What a leader wants of the store; a leader that is superseded stops.
    pub(crate) fn collect_effects(&mut self, index: usize) {
        let from = (index, self.machines[index].life);
        for effect in self.leader(index).drain_effects() {
            match effect {
                LeaderEffect::ProposeIsr(proposal) => self.messages.push(Message::Propose { from, proposal }),
                LeaderEffect::Superseded => return self.stop(index),
                LeaderEffect::HighWatermarkAdvanced(_)
                | LeaderEffect::TellFollowers(_)
                | LeaderEffect::IsrChanged(_) => {}
            }
        }
    }

    /// The store takes a proposal; the proposer hears of it if it still lives.
    fn compare_and_swap(&mut self, from: (usize, u64), proposal: IsrProposal) {
        let node = self.machines[from.0].node;
        let fits = self.record.partition_epoch == proposal.expected && self.record.leader == Some(node);
        if fits {
            self.record.isr = proposal.isr;
            self.record.partition_epoch = self.record.partition_epoch.next();
        }
        let outcome = if fits { IsrOutcome::Committed } else { IsrOutcome::Conflict };
        self.tell_outcome(from, proposal.expected, &outcome);
        if fits && self.machines[from.0].life == from.1 {
            self.learn(from.0);
        }
    }

    /// The proposer hears what became of its proposal, or that nobody knows.
    pub(crate) fn tell_outcome(
        &mut self,
        from: (usize, u64),
        expected: PartitionEpoch,
        outcome: &IsrOutcome,
    ) {
        let now = self.now().monotonic;
        if self.machines[from.0].life == from.1
            && let Role::Leader(leader) = &self.machines[from.0].role
        {
            leader.on_isr_outcome(expected, outcome, now);
        }
    }

    /// A machine sees the record as it is now.
    pub(crate) fn learn(&mut self, index: usize) {
        let (now, record) = (self.now(), self.record.clone());
        let node = self.machines[index].node;
        match &mut self.machines[index].role {
            Role::Down => {}
            Role::Leader(leader) => {
                leader.on_record(&record, now.monotonic);
                self.collect_effects(index);
            }
            Role::Follower(side) => {
                let (Some(leader), Some(epoch)) = (record.leader, record.leader_epoch) else { return };
                if leader != node {
                    side.replica.on_unclean_election(record.highest_unclean_epoch());
                    let (_, step) = side.replica.on_leader(leader, epoch, record.partition_epoch, now);
                    side.take(step);
                }
            }
        }
    }

    /// A follower does the oldest piece of its work.
    pub(crate) fn work(&mut self, index: usize) {
        let now = self.now();
        let Role::Follower(side) = &mut self.machines[index].role else { return };
        let Some(work) = side.work.pop_front() else { return };
        let step = side.replica.execute(&work, now);
        side.take(step);
        self.note_cut(index);
    }

    /// Whoever the machine is flushes; a leader whose flush fails ends.
    pub(crate) fn flush(&mut self, index: usize) {
        let now = self.now().monotonic;
        match &mut self.machines[index].role {
            Role::Down => {}
            Role::Leader(leader) => {
                if leader.flush(now).is_err() {
                    return self.kill(index);
                }
                self.collect_effects(index);
            }
            Role::Follower(side) => {
                let step = side.replica.flush(now);
                side.take(step);
            }
        }
    }

    /// Time passes for a machine.
    pub(crate) fn tick(&mut self, index: usize) {
        let now = self.now().monotonic;
        match &mut self.machines[index].role {
            Role::Down => {}
            Role::Leader(leader) => {
                leader.on_tick(now);
                self.collect_effects(index);
            }
            Role::Follower(side) => {
                let step = side.replica.on_tick(now);
                side.take(step);
            }
        }
    }

    /// One round of everything for a machine that follows: ask, hear, do, flush, acknowledge.
    pub(crate) fn round(&mut self, index: usize) {
        self.send_fetch(index, false);
        self.deliver_all();
        self.settle(index);
    }

    /// Does all the work that a follower has, and flushes it.
    pub(crate) fn settle(&mut self, index: usize) {
        while matches!(&self.machines[index].role, Role::Follower(side) if !side.work.is_empty() || side.question.is_some())
        {
            self.work(index);
            self.answer_question(index);
        }
        while matches!(&self.machines[index].role, Role::Follower(side) if side.replica.needs_flush()) {
            self.flush(index);
        }
    }

    /// Everybody fetches until nothing moves any more.
    pub(crate) fn replicate(&mut self) {
        for _ in 0..12 {
            for index in 0..self.machines.len() {
                if matches!(self.machines[index].role, Role::Follower(_)) {
                    self.round(index);
                } else {
                    self.flush(index);
                    self.tick(index);
                }
                self.deliver_all();
                self.check();
            }
            self.pass(20);
        }
    }

    pub(crate) fn deliver_all(&mut self) {
        while !self.messages.is_empty() {
            self.deliver(0);
        }
    }
}
