//! Moving the replicas of partitions that this node leads (KIP-455, design.md 6.12): what is next, the pure rules say.
//!
//! What must hold: all that a move is stands in the record, so whoever leads next goes on with it; a leader that is removed
//! hands over first, and its successor writes that the removed ones have left; one write at a time for a partition. A write
//! of unknown outcome is made again: it is proposed against the version that it was made from, so it counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::CasOutcome;
use highwater_coordination::reassign::{ReassignmentStep, next_step};
use highwater_types::{NodeId, PartitionRecord, TopicIdPartition};
use tokio::time::Instant;

use super::{Done, RETRY_MAX, RETRY_MIN, ReplicaManager};
use crate::partition::LedPartition;

/// What is under way, and what waits.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Ends of moves that are being written.
    finishing: BTreeSet<TopicIdPartition>,
    /// When the next step may be tried again, where the last try may have failed.
    not_before: BTreeMap<TopicIdPartition, Instant>,
}

impl Moves {
    pub(super) fn forget(&mut self, id: TopicIdPartition) {
        self.not_before.remove(&id);
    }
}

impl ReplicaManager {
    /// Takes the next step of a partition's move, if it is being moved and a step is due; answers when to look again, where
    /// no record will tell.
    pub(super) fn move_on(&mut self, id: TopicIdPartition, partition: &Arc<LedPartition>) -> Option<Instant> {
        let record = partition.record();
        if !record.is_being_moved() {
            self.moves.forget(id);
            return None;
        }
        if self.moves.finishing.contains(&id) || self.resigning.has_begun() {
            return None;
        }
        match self.step(partition, &record) {
            ReassignmentStep::Wait => None,
            ReassignmentStep::HandOver { .. } | ReassignmentStep::Finish(_)
                if self.moves.not_before.get(&id).is_some_and(|from| *from > Instant::now()) =>
            {
                self.moves.not_before.get(&id).copied()
            }
            ReassignmentStep::HandOver { successor } => {
                self.move_leadership(id, partition, successor);
                None
            }
            ReassignmentStep::Finish(_) => {
                self.finish(id, Arc::clone(partition));
                None
            }
        }
    }

    fn step(&self, partition: &LedPartition, record: &PartitionRecord) -> ReassignmentStep {
        let peers = self.shared.peers.borrow();
        step(partition, record, |other| peers.is_up(other))
    }

    /// This node is removed, so another one has to lead. Where that one does not after all, this one leads again, and waits
    /// before it tries anew.
    fn move_leadership(&mut self, id: TopicIdPartition, partition: &Arc<LedPartition>, successor: NodeId) {
        tracing::info!(
            partition = %partition.id_name(),
            successor = successor.get(),
            "hands the leadership over: this node's replica is removed"
        );
        self.moves.not_before.insert(id, Instant::now() + RETRY_MAX);
        self.leave(id, Arc::clone(partition), successor, |_| {});
    }

    /// Records that the added replicas are as good as any, and that the removed ones have left. A replica that was added has just
    /// read everything; where none was, and good copies go, this one is read whole before: nobody may have read it for long.
    fn finish(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        self.moves.finishing.insert(id);
        self.tasks.spawn(async move {
            if partition.record().adding.is_empty() && !partition.is_whole().await {
                tracing::warn!(partition = %partition.id_name(), "no replica leaves: the log that stays could not be read whole");
                return Done::Finished(id, Some(RETRY_MAX));
            }
            // That took its time: the in-sync set may be another one now, or the move be cancelled.
            let known = partition.record();
            let ReassignmentStep::Finish(finished) = step(&partition, &known, |_| false) else {
                return Done::Finished(id, None);
            };
            let written = partition.coordination().swap_partition(*finished, known.partition_epoch).await;
            let again = match written {
                Ok(CasOutcome::Committed(record)) => {
                    tracing::info!(
                        partition = %partition.id_name(),
                        replicas = ?record.replicas,
                        "the reassignment is done"
                    );
                    partition.on_record(&Arc::new(record));
                    None
                }
                Ok(CasOutcome::Conflict(newer)) => {
                    partition.on_record(&Arc::new(newer));
                    None
                }
                Err(error) => {
                    tracing::warn!(partition = %partition.id_name(), %error, "could not end a reassignment; trying on");
                    Some(RETRY_MIN)
                }
            };
            Done::Finished(id, again)
        });
    }

    /// `again`: after which time it is tried again at the earliest.
    pub(super) fn on_finished(&mut self, id: TopicIdPartition, again: Option<Duration>) {
        self.moves.finishing.remove(&id);
        if let Some(again) = again {
            self.moves.not_before.insert(id, Instant::now() + again);
        }
    }
}

/// What is next by this record.
fn step(
    partition: &LedPartition,
    record: &PartitionRecord,
    alive: impl Fn(NodeId) -> bool,
) -> ReassignmentStep {
    next_step(record, partition.topic_record().properties.min_insync_replicas, alive)
}
