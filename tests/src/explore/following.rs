//! What follower-agent does around the core of a follower: asks, takes answers, and does the work on its log in order.

use std::collections::VecDeque;
use std::sync::Arc;

use highwater_protocol::Randomness;
use highwater_protocol::fetch::{FetchPartition, RequestOrder, TopicRef};
use highwater_protocol::follower::{
    CutPlan, FetchIntent, FetchPosition, FollowerAction, FollowerEffect, FollowerPartition, FollowerStart,
    LeaderOffsets,
};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{ErrorCode, LeaderEpoch, NodeId, Offset, PartitionRecord};

use super::state::{Answer, Follows, Node, Request, Role, State, Work, node_id, node_index, spend};
use super::step::Done;
use crate::core_sim::Batch;

/// The seed of a wait's jitter: every wait is over by the next action, however long.
const JITTER: u64 = 0;

impl State {
    // === beginning and end ===

    pub(super) fn follow_recorded(&mut self, node: usize) -> Done {
        match self.record.leader.zip(self.record.leader_epoch) {
            Some((leader, epoch)) => self.follow(node, leader, epoch),
            None => Ok(false),
        }
    }

    pub(super) fn follow_former(&mut self, node: usize, which: usize) -> Done {
        let (leader, epoch) = self.former[which];
        if Some((leader, epoch)) == self.record.leader.zip(self.record.leader_epoch) {
            return Ok(false);
        }
        Ok(spend(&mut self.left.stale) && self.follow(node, leader, epoch)?)
    }

    fn follow(&mut self, node: usize, leader: NodeId, leader_epoch: LeaderEpoch) -> Done {
        if leader == node_id(node) {
            return Ok(false);
        }
        let config = self.bounds.follower_config();
        let twin = self.node(node);
        let log = &mut twin.log;
        log.open();
        let (high_watermark, high_watermark_epoch) = log.high_watermark;
        if is_planted(PlantedFault::TruncateToHighWatermarkAtStart) {
            log.cut(high_watermark);
        }
        let start = FollowerStart {
            leader,
            leader_epoch,
            highest_epoch: log.highest_epoch,
            incarnation: log.incarnation,
            log: log.state(),
            high_watermark,
            high_watermark_epoch,
            damage: Vec::new(),
        };
        let Ok(core) = FollowerPartition::new(config, start) else { return Ok(false) };
        log.note_epoch(leader_epoch);
        let (late, work) = (Vec::new(), VecDeque::new());
        let follows = Follows { core, answer: None, late, work, question: None };
        twin.role = Role::Follows(Box::new(follows));
        twin.serial += 1;
        Ok(true)
    }

    /// Lets the log go, in order.
    pub(super) fn leave(&mut self, node: usize) {
        let twin = self.node(node);
        if let Some((follows, log)) = twin.follows() {
            log.close((follows.core.high_watermark(), follows.core.high_watermark_epoch()));
            twin.role = Role::Idle;
        }
    }

    pub(super) fn follower_sees(&mut self, node: usize, record: &Arc<PartitionRecord>) -> Done {
        let Some((leader, epoch)) = record.leader.zip(record.leader_epoch) else { return Ok(false) };
        if leader == node_id(node) {
            self.leave(node);
            return Ok(true);
        }
        if self.follows(node).is_none_or(|follows| epoch <= follows.core.leader_epoch()) {
            return Ok(false);
        }
        let now = self.follower_time();
        let Some((follows, log)) = self.node(node).follows() else { return Ok(false) };
        log.note_epoch(epoch);
        follows.core.on_leader(leader, epoch, log.state(), now);
        absorb(follows)?;
        Ok(true)
    }

    // === fetching ===

    /// What the follower asks for now, of whom, and as which request. What goes out counts as acknowledged.
    fn ask(&mut self, node: usize) -> Option<(FetchPosition, FetchPartition, NodeId)> {
        let now = self.follower_time();
        let (topic, partition) = (TopicRef::Id(self.record.topic_id), self.record.partition);
        let twin = self.node(node);
        let order = Some(RequestOrder { start: twin.starts, number: twin.sent });
        let (follows, _) = twin.follows()?;
        let FetchIntent::Ask(ask) = follows.core.intent(now) else { return None };
        follows.core.on_sent(&ask);
        let leader = follows.core.leader();
        twin.sent += 1;
        Some((ask.position, FetchPartition { order, ..ask.to_partition(topic, partition) }, leader))
    }

    pub(super) fn fetch(&mut self, node: usize) -> Done {
        let Some((position, request, leader)) = self.ask(node) else { return Ok(false) };
        let Some(answer) = self.serve(node_index(leader), node, position, &request)? else {
            return Ok(false);
        };
        if let Some((follows, _)) = self.node(node).follows() {
            follows.answer = Some(answer);
        }
        Ok(true)
    }

    pub(super) fn send_late(&mut self, node: usize) -> bool {
        if !spend(&mut self.left.late) {
            return false;
        }
        let serial = self.nodes[node].serial;
        let Some((position, request, leader)) = self.ask(node) else { return false };
        let (from, to) = (node, node_index(leader));
        Arc::make_mut(&mut self.requests).push(Request { from, to, serial, position, request });
        true
    }

    pub(super) fn arrive(&mut self, which: usize) -> Done {
        let late = Arc::make_mut(&mut self.requests).remove(which);
        let answer = self.serve(late.to, late.from, late.position, &late.request)?;
        if let Some(answer) = answer
            && self.nodes[late.from].serial == late.serial
            && let Some((follows, _)) = self.node(late.from).follows()
        {
            follows.late.push(answer);
        }
        Ok(true)
    }

    // === answers ===

    pub(super) fn take(&mut self, node: usize, comes_again: bool) -> Done {
        if comes_again && !spend(&mut self.left.late) {
            return Ok(false);
        }
        let Some((follows, _)) = self.node(node).follows() else { return Ok(false) };
        let Some(answer) = follows.answer.take() else { return Ok(false) };
        if comes_again {
            follows.late.push(answer.clone());
        }
        self.take_answer(node, &answer)
    }

    pub(super) fn delay(&mut self, node: usize) -> bool {
        if !spend(&mut self.left.late) {
            return false;
        }
        let Some((follows, _)) = self.node(node).follows() else { return false };
        let answer = follows.answer.take();
        follows.late.extend(answer);
        true
    }

    pub(super) fn take_late(&mut self, node: usize, which: usize) -> Done {
        let Some((follows, _)) = self.node(node).follows() else { return Ok(false) };
        let answer = follows.late.remove(which);
        self.take_answer(node, &answer)
    }

    fn take_answer(&mut self, node: usize, answer: &Answer) -> Done {
        let now = self.follower_time();
        let Some((follows, _)) = self.node(node).follows() else { return Ok(false) };
        let mut jitter = Randomness::new(JITTER);
        let action = follows.core.on_answer(&answer.position, &answer.facts, now, &mut jitter);
        queue(follows, action, &answer.batches)?;
        absorb(follows)?;
        self.work_now(node)
    }

    pub(super) fn range(&mut self, node: usize) -> Done {
        let now = self.follower_time();
        let Some(follows) = self.follows(node) else { return Ok(false) };
        let (leader, epoch) = (node_index(follows.core.leader()), follows.core.leader_epoch());
        let asked = self.leads(leader).filter(|leads| leads.core.epoch() == epoch && !leads.core.is_over());
        let range = match asked {
            Some(_) => Ok(LeaderOffsets { log_start: Offset::ZERO, log_end: self.nodes[leader].log.end() }),
            None => Err(ErrorCode::LeaderNotAvailable),
        };
        let Some((follows, _)) = self.node(node).follows() else { return Ok(false) };
        let Some(generation) = follows.question.take() else { return Ok(false) };
        let mut jitter = Randomness::new(JITTER);
        let action = follows.core.on_leader_offsets(generation, range, now, &mut jitter);
        queue(follows, action, &[])?;
        absorb(follows)?;
        self.work_now(node)
    }

    // === work ===

    /// Where work does not wait, all of it is done at once.
    fn work_now(&mut self, node: usize) -> Done {
        while !self.bounds.work_waits && self.work(node)? {}
        Ok(true)
    }

    /// Does the oldest piece of work, as `highwater-replica` does.
    pub(super) fn work(&mut self, node: usize) -> Done {
        let now = self.follower_time();
        let twin = self.node(node);
        let Some((follows, _)) = twin.follows() else { return Ok(false) };
        let Some(work) = follows.work.pop_front() else { return Ok(false) };
        match work {
            Work::Append { generation, batches } => {
                let Some((follows, log)) = twin.follows() else { return Ok(false) };
                if generation != follows.core.generation() {
                    return Ok(true);
                }
                let count = batches.len() as u64;
                match batches.into_iter().try_for_each(|batch| log.append(batch)) {
                    Ok(()) => follows.core.on_appended(generation, count, log.end()),
                    Err(what) => {
                        let mut jitter = Randomness::new(JITTER);
                        let last = log.last_epoch();
                        follows.core.on_append_refused(generation, last, what, now, &mut jitter);
                    }
                }
            }
            Work::Truncate { generation, at } => {
                let Some((follows, log)) = twin.follows() else { return Ok(false) };
                let CutPlan::To { end, renew, .. } = follows.core.plan_cut(generation, at, &log.facts())
                else {
                    return Ok(true);
                };
                if renew {
                    twin.renew(node);
                }
                twin.log.cut(end);
                log_replaced(twin);
            }
            Work::Renew { generation } => {
                if generation != follows.core.generation() {
                    return Ok(true);
                }
                twin.renew(node);
                log_replaced(twin);
            }
        }
        if let Some((follows, _)) = twin.follows() {
            absorb(follows)?;
        }
        Ok(true)
    }
}

/// Tells the core what the log is now.
fn log_replaced(twin: &mut Node) {
    let Some((follows, log)) = twin.follows() else { return };
    follows.core.on_log_replaced(log.state(), log.incarnation, Vec::new());
}

/// Queues what the core decided about an answer with these batches, each of which is one byte to it.
fn queue(follows: &mut Follows, action: FollowerAction, batches: &[Batch]) -> Result<(), String> {
    match action {
        FollowerAction::Nothing => {}
        FollowerAction::Append { generation, bytes } => {
            let batches = batches.iter().copied().take(bytes).collect();
            follows.work.push_back(Work::Append { generation, batches });
        }
        FollowerAction::Truncate { generation, at } => {
            follows.work.push_back(Work::Truncate { generation, at })
        }
        FollowerAction::RenewIncarnation { generation } => follows.work.push_back(Work::Renew { generation }),
        FollowerAction::AskOffsets { generation } => follows.question = Some(generation),
        FollowerAction::PassOver { lost, .. } => {
            return Err(format!("{} is passed over, though no leader lost anything", lost.start));
        }
        FollowerAction::RestartAt { offset, .. } => {
            return Err(format!("a log is to begin again at {offset}, though no leader's begins after 0"));
        }
    }
    Ok(())
}

/// Looks at what came out of the core beside its decision.
fn absorb(follows: &mut Follows) -> Result<(), String> {
    while let Some(effect) = follows.core.poll_effect() {
        match effect {
            FollowerEffect::HighWatermarkAdvanced(_) => {}
            FollowerEffect::RaiseLogStart(_)
            | FollowerEffect::ForgetLostTail { .. }
            | FollowerEffect::Recover => {
                return Err(format!("{effect:?}, though nobody removes records and no disk fails"));
            }
        }
    }
    Ok(())
}
