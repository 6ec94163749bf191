//! The network between agents and leaders: messages in any order, late, lost, or several times, and links that are cut.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use highwater_protocol::fetch::{FetchPartition, Fetched, LostRange};
use highwater_protocol::follower::{FetchPosition, LeaderOffsets};
use highwater_replica::AskOffsets;
use highwater_types::{ErrorCode, LeaderEpoch, Offset, ReplicationError};

use super::cluster::Cluster;
use super::node::node_id;

/// Messages that may be under way at once; more are lost.
const UNDER_WAY_MAX: usize = 40;

/// Answers that order a cut and come again, in 100, where they come late.
const COPIED_CUTS: u64 = 60;

/// Messages that were delivered and may come again.
const OLD_MAX: usize = 16;

/// Something under way. `from` and `to` of agents name an opening of a log, so that answers reach only who asked.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Fetch { position: FetchPosition, request: FetchPartition },
    Fetched { position: FetchPosition, answer: Result<Fetched, ReplicationError>, lost: Vec<LostRange> },
    AskOffsets(AskOffsets),
    Offsets { asked: AskOffsets, range: Result<LeaderOffsets, ErrorCode> },
    AskRecords { from: Offset, epoch: LeaderEpoch },
    Records { from: Offset, records: Bytes },
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) partition: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    /// The opening of the agent's log that asked.
    pub(super) serial: u64,
    pub(super) body: Body,
}

impl Message {
    /// Whether it orders a cut, or is a request that was told to cut: no others are kept.
    fn is_about_a_cut(&self) -> bool {
        match &self.body {
            Body::Fetch { .. } => true,
            Body::Fetched { answer, .. } => answer.as_ref().is_ok_and(|answer| answer.diverging.is_some()),
            Body::AskOffsets(_) | Body::Offsets { .. } | Body::AskRecords { .. } | Body::Records { .. } => {
                false
            }
        }
    }
}

/// What is under way, and which links are cut.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) messages: Vec<Message>,
    /// Answers, and requests that were told to cut, that were delivered, the newest last, where they come again when they do
    /// most harm.
    old: VecDeque<Message>,
    /// Pairs of nodes, lower index first.
    cuts: BTreeSet<(usize, usize)>,
    /// Nodes that do not reach the store.
    cut_from_store: BTreeSet<usize>,
}

impl Network {
    pub(super) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.contains(&(a.min(b), a.max(b)))
    }

    pub(super) fn is_cut_from_store(&self, node: usize) -> bool {
        self.cut_from_store.contains(&node)
    }

    pub(super) fn cut(&mut self, a: usize, b: usize) {
        self.cuts.insert((a.min(b), a.max(b)));
    }

    pub(super) fn cut_store(&mut self, node: usize) {
        self.cut_from_store.insert(node);
    }

    /// What requests under way acknowledge, of this opening of a log.
    pub(super) fn acknowledged_under_way(&self, serial: u64) -> Option<Offset> {
        let of_it = self.messages.iter().filter(|message| message.serial == serial);
        let acknowledged = of_it.filter_map(|message| {
            if let Body::Fetch { request, .. } = &message.body { Some(request.acknowledged()) } else { None }
        });
        acknowledged.max()
    }

    /// Keeps a delivered message; those that have to do with a cut the longest.
    pub(super) fn keep(&mut self, message: Message) {
        self.old.push_back(message);
        if self.old.len() > OLD_MAX {
            let dull = self.old.iter().position(|message| !message.is_about_a_cut());
            self.old.remove(dull.unwrap_or(0));
        }
    }

    pub(super) fn mend(&mut self) {
        self.cuts.clear();
        self.cut_from_store.clear();
    }

    pub(super) fn has_cuts(&self) -> bool {
        !self.cuts.is_empty() || !self.cut_from_store.is_empty()
    }
}

impl Cluster {
    /// Puts a message on its way.
    pub(super) fn send(&mut self, message: Message) {
        if self.network.messages.len() < UNDER_WAY_MAX {
            self.network.messages.push(message);
        }
    }

    /// One message arrives, or does not.
    pub(super) fn network_step(&mut self) -> Result<bool, String> {
        let late_answers = self.scenario.late_answers;
        if self.percent(late_answers)
            && let Some((harm, message)) = self.almost_fitting()
            && (harm > 2 || self.one_in(4))
        {
            self.count_fault("answer repeated where it almost fits");
            self.deliver(message)?;
            return Ok(true);
        }
        if self.network.messages.is_empty() {
            return Ok(false);
        }
        let at = self.pick(self.network.messages.len());
        let (loss, repeats, late) = (self.scenario.loss, self.scenario.repeats, self.scenario.late_cuts);
        let body = &self.network.messages[at].body;
        let orders_cut = matches!(body, Body::Fetched { answer: Ok(told), .. } if told.diverging.is_some());
        if orders_cut && self.percent(late) {
            return Ok(true);
        }
        if self.percent(loss) {
            self.network.messages.swap_remove(at);
            self.count_fault("message lost");
            return Ok(true);
        }
        // Such an answer often comes twice, because the follower asked twice.
        let repeats = if orders_cut && late > 0 { repeats.max(COPIED_CUTS) } else { repeats };
        let message = if self.percent(repeats) {
            self.count_fault("message repeated");
            self.network.messages[at].clone()
        } else {
            self.network.messages.swap_remove(at)
        };
        if late_answers > 0 && matches!(message.body, Body::Fetched { answer: Ok(_), .. }) {
            self.network.keep(message.clone());
        }
        self.deliver(message)?;
        Ok(true)
    }

    /// Keeps a request that was told to cut, if its follower would still send it.
    pub(super) fn keep_request(&mut self, message: Message) {
        let Body::Fetch { position, .. } = &message.body else { return };
        let followed = self.nodes[message.from].followed[message.partition].as_ref();
        let is_new = followed.is_some_and(|followed| {
            followed.serial == message.serial
                && followed.replica.inspect(|core| core.generation()) == position.generation
        });
        if is_new && self.scenario.late_answers > 0 {
            self.network.keep(message);
        }
    }

    /// A message to or from a follower whose position is another by now, but much like it, and how much harm it might do. Of
    /// several one that does most; a request comes again once only.
    fn almost_fitting(&mut self) -> Option<(u8, Message)> {
        let harms: Vec<_> = self.network.old.iter().map(|message| self.harm(message)).collect();
        let most = harms.iter().copied().max().filter(|most| *most > 0)?;
        let worst: Vec<_> = (0..harms.len()).filter(|at| harms[*at] == most).collect();
        let at = worst[self.pick(worst.len())];
        let message = self.network.old[at].clone();
        if matches!(message.body, Body::Fetch { .. }) {
            self.network.old.remove(at);
        }
        Some((most, message))
    }

    /// How much harm a message might do if it came again now: 0 where everybody would pass it over, 3 where it has to do with a cut
    /// below what the follower has acknowledged since, or what a request under way acknowledges.
    fn harm(&self, message: &Message) -> u8 {
        let is_request = matches!(message.body, Body::Fetch { .. });
        let follower = if is_request { message.from } else { message.to };
        let followed = self.nodes[follower].followed[message.partition].as_ref();
        let Some(followed) = followed.filter(|followed| followed.serial == message.serial) else {
            return 0;
        };
        let under_way = self.network.acknowledged_under_way(message.serial);
        followed.replica.inspect(|core| match &message.body {
            Body::Fetch { position, request } => {
                let is_outdone = core.acknowledged() > request.acknowledged();
                if is_outdone && position.leader_epoch == core.leader_epoch() { 3 } else { 0 }
            }
            Body::Fetched { position, answer: Ok(answer), .. }
                if position.generation != core.generation() =>
            {
                let is_same_offset = position.fetch_offset == core.fetch_offset();
                let is_like_it = is_same_offset || position.leader_epoch == core.leader_epoch();
                match answer.diverging {
                    None => u8::from(is_same_offset),
                    Some(at) if is_like_it && at.offset < core.log_end() => {
                        if under_way > Some(at.offset) {
                            3
                        } else {
                            2
                        }
                    }
                    Some(_) => 0,
                }
            }
            Body::Fetched { .. }
            | Body::AskOffsets(_)
            | Body::Offsets { .. }
            | Body::AskRecords { .. }
            | Body::Records { .. } => 0,
        })
    }

    /// A message arrives, if whoever it is for is there.
    pub(super) fn deliver(&mut self, message: Message) -> Result<(), String> {
        let Message { partition, from, to, serial, body } = message;
        if self.network.is_cut(from, to) {
            return Ok(());
        }
        let step = self.step;
        match body {
            Body::Fetch { position, request } => {
                self.trace.note(|| {
                    format!(
                        "{step} p{partition} n{from}→n{to} fetch {} ack {} last {:?} epoch {:?} inc {:?}",
                        request.fetch_offset,
                        request.acknowledged(),
                        request.last_fetched_epoch.map(|e| e.get()),
                        request.current_leader_epoch.map(|e| e.get()),
                        request.incarnation.map(|i| i.get())
                    )
                });
                self.serve_fetch(to, partition, from, serial, position, request)
            }
            Body::Fetched { position, answer, lost } => {
                self.trace.note(|| format!("{step} p{partition} n{from}→n{to} {}", answer_text(&answer)));
                self.take_answer(to, partition, serial, &position, &answer, &lost);
                Ok(())
            }
            Body::AskOffsets(asked) => {
                self.serve_offsets(to, partition, from, serial, asked);
                Ok(())
            }
            Body::AskRecords { from: offset, epoch } => {
                self.serve_records(to, partition, (from, serial), offset, epoch);
                Ok(())
            }
            Body::Records { from: offset, records } => {
                self.take_records(to, partition, serial, offset, &records);
                Ok(())
            }
            Body::Offsets { asked, range } => {
                self.trace.note(|| format!("{step} p{partition} n{from}→n{to} offsets {range:?}"));
                self.take_offsets(to, partition, serial, asked, range);
                Ok(())
            }
        }
    }
}

fn answer_text(answer: &Result<Fetched, ReplicationError>) -> String {
    match answer {
        Ok(fetched) => match fetched.diverging {
            Some(at) => format!("diverging {at} hw {}", fetched.snapshot.high_watermark),
            None => format!(
                "{} bytes hw {} start {} end {}",
                fetched.records.len(),
                fetched.snapshot.high_watermark,
                fetched.snapshot.log_start,
                fetched.snapshot.log_end
            ),
        },
        Err(error) => format!("{error}"),
    }
}

/// The requester of a fetch by this node.
pub(super) fn follower(node: usize) -> highwater_protocol::fetch::Requester {
    highwater_protocol::fetch::Requester::Follower(node_id(node))
}
