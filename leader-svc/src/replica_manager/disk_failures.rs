//! Leaderships that ended because this node's disk failed, a full one above all: how long to pause before this node stands
//! again.
//!
//! What must hold: every leadership is a new epoch (design.md 6.2), so one that the next append ends at once must not be
//! taken every few seconds. The pause grows from failure to failure, whatever leadership was begun in between, until one of
//! them has lasted; whatever the record says meanwhile, this node does not stand before it is over.

use std::collections::HashMap;
use std::time::Duration;

use highwater_serving::Attempts;
use highwater_types::TopicIdPartition;
use tokio::time::Instant;

use super::RETRY_MIN;

/// The longest pause, and so the most that writing again waits for after the disk has room.
const DISK_RETRY_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(super) struct DiskFailures {
    attempts: Attempts,
    stands_from: HashMap<TopicIdPartition, Instant>,
}

impl DiskFailures {
    pub(super) fn new() -> Self {
        Self { attempts: Attempts::new(RETRY_MIN, DISK_RETRY_MAX), stands_from: HashMap::new() }
    }

    /// The disk ended a leadership of the partition called `name`, or kept it from beginning. Answers how long to pause.
    pub(super) fn ended(&mut self, id: TopicIdPartition, name: &str, why: &str) -> Duration {
        // The same disk says it in other words at each step.
        let (pause, is_news) = self.attempts.failed(id, "the disk");
        if is_news {
            tracing::warn!(
                partition = name,
                topic_id = %id.topic_id,
                why,
                "the disk ended the leadership; this node stands again after pauses that grow to {DISK_RETRY_MAX:?}, as each \
                 leadership is a new epoch. This is said once: look after the disk of the data directory"
            );
        }
        self.stands_from.insert(id, Instant::now() + pause);
        pause
    }

    /// When this node stands again at the earliest; absent: its disk ended no leadership.
    pub(super) fn stands_from(&self, id: TopicIdPartition) -> Option<Instant> {
        self.stands_from.get(&id).copied()
    }

    /// The node leads.
    pub(super) fn leads(&mut self, id: TopicIdPartition) {
        self.attempts.succeeded(id);
    }

    /// The partition is gone.
    pub(super) fn forget(&mut self, id: TopicIdPartition) {
        self.attempts.forget(id);
        self.stands_from.remove(&id);
    }
}
