//! What follower-agent does around a replica that follows: asks, takes answers, does the work on its log in order, flushes
//! beside it, and lets the log go when somebody else is to have it.

use std::collections::VecDeque;

use highwater_protocol::fetch::{FetchPartition, Fetched, LostRange, RequestOrder, TopicRef};
use highwater_protocol::follower::{FetchAsk, FetchPosition, LeaderOffsets};
use highwater_replica::{AskOffsets, FollowerStep, FollowerWork, Following};
use highwater_types::{ErrorCode, PartitionRecord, ReplicationError};

use super::cluster::Cluster;
use super::network::{Body, Message};
use super::node::{Followed, Which, index_of, partition_id};

impl Cluster {
    /// The agent does something about a partition.
    pub(super) fn agent_acts(&mut self, node: usize, partition: usize) -> Result<bool, String> {
        if self.percent(20) && self.learn(node, Which::Agent, partition) {
            return Ok(true);
        }
        if self.nodes[node].followed[partition].is_none() {
            return self.maybe_follow(node, partition);
        }
        // Fetches and work take 70 of 100 together; the less of it is work, the longer what was decided waits.
        let work = self.scenario.work;
        match self.up_to(99) {
            drawn @ 0..=69 if drawn < work => self.work(node, partition),
            0..=69 => self.fetch(node, partition),
            70..=87 if self.is_lazy(node, partition) => {}
            70..=87 => self.flush_follower(node, partition),
            88..=90 => self.question_times_out(node, partition),
            91..=96 => self.tick_follower(node, partition),
            97..=98 => self.repair(node, partition),
            _ => self.leave(node, partition),
        }
        Ok(true)
    }

    pub(super) fn maybe_follow(&mut self, node: usize, partition: usize) -> Result<bool, String> {
        let record = self.known(node, Which::Agent, partition).clone();
        let me = self.nodes[node].id;
        let (Some(leader), Some(leader_epoch)) = (record.leader, record.leader_epoch) else {
            return Ok(false);
        };
        if leader == me || !record.has_replica(me) {
            return Ok(false);
        }
        let Some(open) = self.open(node, Which::Agent, partition, &record)? else { return Ok(true) };
        let following = Following {
            config: self.follower_config(partition),
            leader,
            leader_epoch,
            partition_epoch: record.partition_epoch,
            seed: self.random.next_u64(),
        };
        let follows = open.follow(following);
        let (step, serial) = (self.step, self.next_serial());
        self.trace.note(|| {
            let outcome = follows.as_ref().map(|_| serial).map_err(ToString::to_string);
            format!(
                "{step} p{partition} n{node} follows n{} epoch {leader_epoch}: {outcome:?}",
                index_of(leader)
            )
        });
        if let Ok(replica) = follows {
            replica.on_unclean_election(record.highest_unclean_epoch());
            let followed = Followed { replica, serial, work: VecDeque::new(), question: None, refill: None };
            self.nodes[node].followed[partition] = Some(Box::new(followed));
            // leader-svc does it, after it has given the leadership up and before it closes the log.
            if let Some(segment) = self.nodes[node].rot_met.remove(&partition) {
                self.note_rot(node, partition, segment);
            }
        }
        Ok(true)
    }

    /// Lets the log go, in order.
    pub(super) fn leave(&mut self, node: usize, partition: usize) {
        let Some(followed) = self.nodes[node].followed[partition].take() else { return };
        let closed = followed.replica.close();
        let step = self.step;
        self.trace.note(|| format!("{step} p{partition} n{node} lets go #{}: {closed:?}", followed.serial));
    }

    pub(super) fn agent_sees(&mut self, node: usize, partition: usize, record: &PartitionRecord) {
        let (me, now) = (self.nodes[node].id, self.now());
        let Some(followed) = &mut self.nodes[node].followed[partition] else { return };
        let Some((leader, epoch)) = record.leader.zip(record.leader_epoch) else { return };
        if leader == me || !record.has_replica(me) {
            return self.leave(node, partition);
        }
        followed.replica.on_unclean_election(record.highest_unclean_epoch());
        let (_, step) = followed.replica.on_leader(leader, epoch, record.partition_epoch, now);
        self.absorb(node, partition, step);
    }

    /// Asks the leader, if it asks now. What goes out counts as acknowledged from here on.
    pub(super) fn fetch(&mut self, node: usize, partition: usize) {
        let only_acknowledging = self.percent(25);
        let asks_again = self.one_in(4);
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        // While a request is under way, it is mostly waited for.
        if !self.healing && !asks_again && self.network.acknowledged_under_way(followed.serial).is_some() {
            return;
        }
        let Some(ask) = self.intended(node, partition) else { return };
        let ask = if only_acknowledging { ask.only_acknowledging() } else { ask };
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        followed.replica.on_sent(&ask);
        let leader = followed.replica.inspect(|core| core.leader());
        let serial = followed.serial;
        let held = &mut self.nodes[node].acknowledged[partition];
        let incarnation = ask.position.incarnation;
        let before = held.filter(|(of, _)| *of == incarnation).map(|(_, offset)| offset);
        *held = Some((incarnation, before.map_or(ask.acknowledged, |offset| offset.max(ask.acknowledged))));
        self.ask(node, partition, index_of(leader), serial, ask);
    }

    /// Puts a request on its way.
    pub(super) fn ask(&mut self, node: usize, partition: usize, leader: usize, serial: u64, ask: FetchAsk) {
        let id = partition_id(partition);
        let order = RequestOrder { start: self.nodes[node].starts, number: self.next_serial() };
        let request = ask.to_partition(TopicRef::Id(id.topic_id), id.partition);
        let request = FetchPartition { order: Some(order), ..request };
        let body = Body::Fetch { position: ask.position, request };
        self.send(Message { partition, from: node, to: leader, serial, body });
    }

    pub(super) fn take_answer(
        &mut self,
        node: usize,
        partition: usize,
        serial: u64,
        position: &FetchPosition,
        answer: &Result<Fetched, ReplicationError>,
        lost: &[LostRange],
    ) {
        let now = self.now().monotonic;
        let is_paused = self.nodes[node].suspended[partition];
        let Some(followed) = self.asked_by(node, partition, serial) else { return };
        // What a paused replica asked for before is of no use now.
        if is_paused && answer.as_ref().is_ok_and(|fetched| !fetched.records.is_empty()) {
            return;
        }
        let step = followed.replica.on_answer(position, answer.as_ref(), lost, now);
        self.absorb(node, partition, step);
    }

    pub(super) fn take_offsets(
        &mut self,
        node: usize,
        partition: usize,
        serial: u64,
        asked: AskOffsets,
        range: Result<LeaderOffsets, ErrorCode>,
    ) {
        let now = self.now().monotonic;
        let Some(followed) = self.asked_by(node, partition, serial) else { return };
        if followed.question == Some(asked) {
            followed.question = None;
        }
        let step = followed.replica.on_leader_offsets(asked, range, now);
        self.absorb(node, partition, step);
    }

    /// The opening of a log that asked, if it is still there and its program hears.
    pub(super) fn asked_by(&mut self, node: usize, partition: usize, serial: u64) -> Option<&mut Followed> {
        let node = &mut self.nodes[node];
        let hears = node.agent.is_up();
        node.followed[partition].as_deref_mut().filter(|followed| hears && followed.serial == serial)
    }

    pub(super) fn absorb(&mut self, node: usize, partition: usize, step: FollowerStep) {
        let Some(followed) = &mut self.nodes[node].followed[partition] else { return };
        let ask = step.ask_offsets;
        followed.take(step);
        let (serial, leader) = (followed.serial, followed.replica.inspect(|core| core.leader()));
        if let Some(asked) = ask {
            let body = Body::AskOffsets(asked);
            self.send(Message { partition, from: node, to: index_of(leader), serial, body });
        }
    }

    /// Where the oldest piece of its work is a cut: whether it would take what a request under way acknowledges.
    fn waiting_cut(&self, node: usize, partition: usize) -> Option<bool> {
        let followed = self.nodes[node].followed[partition].as_ref()?;
        let Some(FollowerWork::Truncate { at, .. }) = followed.work.front() else { return None };
        Some(self.network.acknowledged_under_way(followed.serial) > Some(at.offset))
    }

    /// Whether a cut waits for a slow disk.
    pub(super) fn waits_to_cut(&self, partition: usize) -> bool {
        let waits = |node: usize| self.waiting_cut(node, partition).is_some();
        self.scenario.late_work > 0 && (0..self.nodes.len()).any(waits)
    }

    /// Does the oldest piece of its work. A cut may have to wait until it would take what is being acknowledged.
    pub(super) fn work(&mut self, node: usize, partition: usize) {
        let (now, late_work) = (self.now(), self.scenario.late_work);
        if self.waiting_cut(node, partition) == Some(false) && self.percent(late_work) {
            return;
        }
        let Some(followed) = &mut self.nodes[node].followed[partition] else { return };
        let Some(work) = followed.work.pop_front() else { return };
        let step = followed.replica.execute(&work, now);
        let end = followed.replica.log().log_end();
        let at = self.step;
        self.trace.note(|| format!("{at} p{partition} n{node} works {}: end {end}", work_text(&work)));
        // After a cut that the leader ordered, less is held of what was acknowledged under earlier leaders.
        if !matches!(work, FollowerWork::Recover)
            && let Some((_, acknowledged)) = &mut self.nodes[node].acknowledged[partition]
        {
            *acknowledged = (*acknowledged).min(end);
        }
        // A cut that the disk's end interrupted may have taken all that it was to take.
        if self.nodes[node].disk.is_stopped() {
            self.nodes[node].acknowledged[partition] = None;
        }
        self.absorb(node, partition, step);
    }

    pub(super) fn flush_follower(&mut self, node: usize, partition: usize) {
        let now = self.now().monotonic;
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        if !followed.replica.needs_flush() {
            return;
        }
        let step = followed.replica.flush(now);
        let flushed = followed.replica.log().flushed();
        let at = self.step;
        self.trace.note(|| format!("{at} p{partition} n{node} flushed {flushed}"));
        self.absorb(node, partition, step);
    }

    pub(super) fn question_times_out(&mut self, node: usize, partition: usize) {
        let now = self.now().monotonic;
        let Some(followed) = &mut self.nodes[node].followed[partition] else { return };
        let Some(asked) = followed.question.take() else { return };
        let step = followed.replica.on_leader_offsets(asked, Err(ErrorCode::LeaderNotAvailable), now);
        self.absorb(node, partition, step);
    }

    pub(super) fn tick_follower(&mut self, node: usize, partition: usize) {
        let now = self.now().monotonic;
        let Some(followed) = &self.nodes[node].followed[partition] else { return };
        // A lazy write that fails changes nothing; the next one is tried a second later.
        drop(followed.replica.write_checkpoint());
        let step = followed.replica.on_tick(now);
        self.absorb(node, partition, step);
    }
}

fn work_text(work: &FollowerWork) -> String {
    match work {
        FollowerWork::Append(append) => format!("append of {} bytes", append.bytes()),
        FollowerWork::Truncate { .. }
        | FollowerWork::RestartAt { .. }
        | FollowerWork::PassOver { .. }
        | FollowerWork::RenewIncarnation { .. }
        | FollowerWork::RaiseLogStart(_)
        | FollowerWork::ForgetLostTail { .. }
        | FollowerWork::Recover => format!("{work:?}"),
    }
}
