//! Replicas that a person paused, or resumed.
//!
//! What must hold: a paused replica appends nothing more, and acknowledges what it holds; its leader is told once in each
//! leadership, because it cannot tell a paused follower from a dead one. A pause ends with the program, or when the replica is
//! taken from the node; it outlives the log's closing, so that a leadership that comes and goes does not end it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_coordination::ClusterView;
use highwater_protocol::fetch::Fetched;
use highwater_protocol::follower::{FetchAsk, FetchIntent, FetchPosition};
use highwater_types::{LeaderEpoch, NodeId, TopicIdPartition};
use parking_lot::Mutex;

use super::queues::Work;
use super::{FollowedPartition, PartitionContext};

/// The paused replicas of the program.
#[derive(Debug, Default)]
pub(crate) struct PausedReplicas {
    /// Whether there are any: looked at for each partition of each request, and mostly there are none.
    any: AtomicBool,
    paused: Mutex<BTreeSet<TopicIdPartition>>,
}

impl PausedReplicas {
    fn contains(&self, id: TopicIdPartition) -> bool {
        self.any.load(Ordering::Acquire) && self.paused.lock().contains(&id)
    }

    /// Whether it was not paused before.
    pub(crate) fn pause(&self, id: TopicIdPartition) -> bool {
        self.change(|paused| paused.insert(id))
    }

    /// Whether it was paused.
    pub(crate) fn resume(&self, id: TopicIdPartition) -> bool {
        self.change(|paused| paused.remove(&id))
    }

    /// Forgets replicas that `node` has no more.
    pub(crate) fn keep_replicas_of(&self, node: NodeId, view: &ClusterView) {
        self.change(|paused| {
            paused.retain(|id| view.partition(*id).is_some_and(|record| record.has_replica(node)));
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<TopicIdPartition>) -> T) -> T {
        let mut paused = self.paused.lock();
        let changed = change(&mut paused);
        self.any.store(!paused.is_empty(), Ordering::Release);
        changed
    }
}

/// In which leadership the leader was told of a pause, or of a failure.
#[derive(Debug, Default)]
pub(super) struct Told {
    sent: Option<LeaderEpoch>,
    /// It answered.
    heard: Option<LeaderEpoch>,
}

impl Told {
    pub(super) fn on_sent(&mut self, epoch: LeaderEpoch) {
        self.sent = Some(epoch);
    }

    pub(super) fn on_answer(&mut self, epoch: LeaderEpoch) {
        if self.sent == Some(epoch) {
            self.heard = self.sent;
        }
    }

    /// Whether the leader of this epoch has not heard it.
    pub(super) fn is_owed(&self, epoch: LeaderEpoch) -> bool {
        self.heard != Some(epoch)
    }
}

impl PartitionContext {
    pub(super) fn is_paused(&self, id: TopicIdPartition) -> bool {
        self.paused.contains(id)
    }
}

impl FollowedPartition {
    /// Whether a person paused it.
    pub(crate) fn is_paused(&self) -> bool {
        self.context.is_paused(self.replica.id())
    }

    /// A person paused it.
    pub(crate) fn on_pause(&self) {
        *self.told.lock() = Told::default();
        self.tell_loop();
    }

    /// A person resumed it: it also gets out of every failure and delay.
    pub(crate) fn on_resume(&self) {
        // Work that waits resumes for whoever asks meanwhile.
        if !self.resuming.swap(true, Ordering::AcqRel) {
            self.work.push(Work::Resume);
        }
        self.tell_loop();
    }

    /// *Blocks.*
    pub(super) fn resume(&self) {
        self.resuming.store(false, Ordering::Release);
        let step = self.replica.on_resume(self.context.now());
        self.absorb(step);
    }

    /// Whether a paused replica still owes its leader a request: for what it holds, or for the news of the pause.
    pub(super) fn owes_news(&self) -> bool {
        let epoch = self.replica.inspect(|core| core.leader_epoch());
        self.is_paused() && self.told.lock().is_owed(epoch)
    }

    /// What a paused replica asks instead of `ask`: for no records.
    pub(super) fn while_paused(&self, ask: FetchAsk) -> FetchIntent {
        if self.replica.owes_acknowledgement() || self.owes_news() {
            FetchIntent::Ask(ask.suspended())
        } else {
            FetchIntent::Not
        }
    }

    pub(super) fn note_sent(&self, ask: &FetchAsk) {
        if ask.suspended {
            self.told.lock().on_sent(ask.position.leader_epoch);
        }
    }

    /// Whether an answer is of no use now: records that were asked for before the pause.
    pub(super) fn refuses(&self, sent: &FetchPosition, fetched: &Fetched) -> bool {
        if !self.is_paused() {
            return false;
        }
        self.told.lock().on_answer(sent.leader_epoch);
        !fetched.records.is_empty()
    }
}
