//! The contract of a coordination store. Its implementations: `file` and `etcd` here, `leader` in the client crate; the
//! API server of Kubernetes follows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use highwater_types::{
    ClusterId, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId, TopicRecord,
};
use tokio::sync::watch;

use crate::{ClusterView, CoordinationError};

/// What became of a compare-and-swap whose outcome is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasOutcome<T> {
    /// The record stands as given here, with its new version.
    Committed(T),
    /// Another version stood; nothing was changed. This is the record that stood.
    Conflict(T),
}

impl<T> CasOutcome<T> {
    /// The record that stands after the call.
    #[must_use]
    pub fn into_current(self) -> T {
        match self {
            Self::Committed(record) | Self::Conflict(record) => record,
        }
    }

    /// The record, if this call wrote it.
    #[must_use]
    pub fn committed(self) -> Option<T> {
        match self {
            Self::Committed(record) => Some(record),
            Self::Conflict(_) => None,
        }
    }
}

/// Every program's renewal counter, as read after the reader's own renewal was made.
pub type Liveness = BTreeMap<(NodeId, Program), u64>;

/// The coordination store (design.md 6). Every method is bounded in time by the implementation, and can be cancelled by
/// dropping its future; the outcome of a dropped write is unknown.
///
/// After a write returned `Ok`, the view of this handle shows it, or something newer.
#[async_trait]
pub trait Coordination: Send + Sync + fmt::Debug {
    /// The cluster as this handle last saw it. Wakes only when something changed; heartbeats do not count, else every
    /// renewal of every program would wake whoever reconciles partitions.
    fn view(&self) -> watch::Receiver<Arc<ClusterView>>;

    /// The cluster's id; `proposed` becomes it when there is none yet (the first node creates it by compare-and-swap).
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`], [`CoordinationError::Unknown`], [`CoordinationError::ReadOnly`] where there is
    /// no id yet.
    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError>;

    /// Creates a topic: its partition records first, then the topic record, which commits it (design.md 6.9).
    /// `Conflict` carries the live topic that has the name, or the topic that has the id (after an unknown outcome it
    /// can be this very one; its id tells).
    ///
    /// # Errors
    /// [`CoordinationError::Invalid`] unless `partitions` are the new records 0, 1, … of `topic`; else as any write.
    async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError>;

    /// Makes the topic a tombstone, which stays; its partition records go and its name is free. Deleting it again changes
    /// nothing. Returns the tombstone.
    ///
    /// # Errors
    /// [`CoordinationError::NotFound`] for an id that never existed; else as any write.
    async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError>;

    /// Replaces the partition record whose version is `expected` by `new`. The store writes `expected.next()` as the
    /// version, whatever `new` carries.
    ///
    /// # Errors
    /// [`CoordinationError::Unknown`] when it may have been made (design.md 6.4); [`CoordinationError::NotFound`] when
    /// the topic is gone; [`CoordinationError::Invalid`] when `new` breaks a rule of [`check_change`](crate::check_change).
    async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError>;

    /// Replaces the node record whose version is `expected`; 0 = there is none yet. The store writes `expected + 1` as
    /// the version, whatever `new` carries. `Conflict` carries [`NodeRecord::new`] (version 0) when there is none.
    ///
    /// # Errors
    /// As any write.
    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError>;

    /// Raises the counter of `program` on `node`, then reads every program's (design.md 6.7). Order matters: what is read
    /// is at least as new as the renewal, so that [`LivenessObserver`](crate::LivenessObserver) never counts time in
    /// which it could not see.
    ///
    /// # Errors
    /// As any write; an unknown outcome counts as no renewal.
    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError>;

    /// Reads the store now. The answer, and the view, hold everything that was committed before the call.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`], [`CoordinationError::Unreadable`].
    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError>;
}
