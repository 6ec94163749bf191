//! How others reach a fetch loop: partitions that come and go, and partitions to which something happened.
//!
//! What must hold: nothing here waits or grows beyond the number of partitions; a loop that is told twice looks once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use highwater_types::TopicIdPartition;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The partitions that a loop is to look at.
#[derive(Debug, Default)]
pub(crate) struct ReadySet {
    ready: Mutex<BTreeSet<TopicIdPartition>>,
    changed: Notify,
}

impl ReadySet {
    /// Something happened to a partition.
    pub(crate) fn tell(&self, id: TopicIdPartition) {
        self.ready.lock().insert(id);
        self.changed.notify_one();
    }
}

/// A partition joins or leaves a loop.
pub(crate) enum Change<P> {
    /// It joins, at the end of the order.
    Add(Arc<P>),
    /// It leaves; its answers under way are void for this loop (S5).
    Remove(TopicIdPartition),
}

impl<P> fmt::Debug for Change<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add(_) => "Add",
            Self::Remove(_) => "Remove",
        })
    }
}

/// What a loop has not seen yet.
#[derive(Debug)]
pub(crate) struct Mailbox<P> {
    ready: Arc<ReadySet>,
    changes: Mutex<Vec<Change<P>>>,
}

impl<P> Default for Mailbox<P> {
    fn default() -> Self {
        Self { ready: Arc::default(), changes: Mutex::default() }
    }
}

impl<P> Mailbox<P> {
    /// Where partitions tell that something happened to them.
    pub(crate) fn ready(&self) -> Arc<ReadySet> {
        Arc::clone(&self.ready)
    }

    /// A partition joins or leaves.
    pub(crate) fn change(&self, change: Change<P>) {
        self.changes.lock().push(change);
        self.ready.changed.notify_one();
    }

    /// Returns when something is here, at once if something came since the last call.
    pub(crate) async fn arrived(&self) {
        self.ready.changed.notified().await;
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> (Vec<Change<P>>, BTreeSet<TopicIdPartition>) {
        (std::mem::take(&mut *self.changes.lock()), std::mem::take(&mut *self.ready.ready.lock()))
    }
}
