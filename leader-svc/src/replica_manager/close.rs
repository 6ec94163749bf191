//! Closing logs: of a leadership that is over, of a topic that is gone, of all when the program stops.
//!
//! What must hold: a log is closed once nothing reads it any more, or after [`CLOSE_PATIENCE`]; until then nobody else of this
//! program opens it.

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::ClusterView;
use highwater_types::{ErrorCode, ReplicationError, TopicIdPartition};
use tokio::sync::Semaphore;

use super::stand::Stood;
use super::{Done, ReplicaManager, Slot};
use crate::partition::LedPartition;

/// How long a leadership that ended waits for answers that still read its log (design.md 6.6).
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How many logs are flushed and closed at the same time when the program stops.
const CONCURRENT_CLOSES: usize = 16;

impl ReplicaManager {
    /// Closes the log of a leadership that is over.
    pub(super) fn close(&mut self, id: TopicIdPartition, partition: Arc<LedPartition>) {
        self.slots.insert(id, Slot::Closing);
        self.tasks.spawn(async move {
            partition.close(CLOSE_PATIENCE).await;
            Done::Closed(id)
        });
    }

    /// Leaves partitions whose topic is gone. Their directories go when the log is closed (`serving::strays`).
    pub(super) fn leave_deleted(&mut self, view: &ClusterView) {
        self.leaderships.retain(|id| view.partition(id).is_some());
        let gone: Vec<_> = self.slots.keys().filter(|id| view.partition(**id).is_none()).copied().collect();
        for id in gone {
            match self.slots.get(&id) {
                Some(Slot::Leading(partition)) => {
                    let partition = Arc::clone(partition);
                    let why =
                        ReplicationError::new(ErrorCode::UnknownTopicOrPartition, "the topic was deleted");
                    self.shared.registry.remove(id);
                    partition.stop_leading(&why);
                    self.close(id, partition);
                }
                Some(Slot::Standing | Slot::Closing) | None => {}
                Some(Slot::WaitsItsTurn { .. } | Slot::Paused { .. }) => {
                    self.shared.registry.remove(id);
                    self.slots.remove(&id);
                }
            }
            self.attempts.forget(id);
            self.disk_failures.forget(id);
            self.damaged.remove(&id);
            self.moves.forget(id);
        }
    }

    /// The program stops: every log is flushed, marked clean and closed.
    pub(super) async fn close_all(mut self) {
        let why = ReplicationError::new(ErrorCode::ShuttingDown, "this program is stopping");
        let turns = Arc::new(Semaphore::new(CONCURRENT_CLOSES));
        for (id, slot) in std::mem::take(&mut self.slots) {
            let Slot::Leading(partition) = slot else { continue };
            partition.stop_leading(&why);
            self.shared.registry.remove(id);
            let turns = Arc::clone(&turns);
            self.tasks.spawn(async move {
                let _turn = turns.acquire_owned().await.ok();
                partition.close(CLOSE_PATIENCE).await;
                Done::Closed(id)
            });
        }
        while let Some(done) = self.tasks.join_next().await {
            // A leadership that was taken at the last moment.
            if let Ok(Done::Stood(_, _, Stood::Leads(partition))) = done {
                partition.stop_leading(&why);
                partition.close(CLOSE_PATIENCE).await;
            }
        }
    }
}
