//! What the manager and its tasks share.

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{Membership, successor};
use highwater_serving::{Registry, Volume};
use highwater_types::{NodeId, PartitionRecord};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Peers;
use crate::partition::{LedPartition, PartitionContext};

/// See [`Shared::borrowing`].
pub(crate) const BORROWED_LOGS_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) volume: Volume,
    pub(crate) registry: Arc<Registry<LedPartition>>,
    pub(crate) context: Arc<PartitionContext>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) replica_lag_time_max: Duration,
    pub(crate) hw_propagation: Duration,
    pub(crate) leadership_stagger: Duration,
    /// Bounds how many logs are opened at the same time.
    pub(crate) opening: Semaphore,
    /// Bounds how many logs are borrowed from this node's agent at the same time.
    pub(crate) borrowing: Semaphore,
    /// What is known of the other nodes' leader-svc.
    pub(crate) peers: watch::Receiver<Peers>,
    /// Leaderships are given up from here on, and none is taken.
    pub(crate) leaving: CancellationToken,
    /// Leaderships that are being given up; closed once all are that can be.
    pub(crate) resigning: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Shared {
    /// Who is to lead in the place of this leadership: somebody who has followed it, so that it is known that the in-sync set
    /// names what its disk holds now.
    pub(super) fn proven_successor(&self, partition: &LedPartition) -> Option<NodeId> {
        let peers = self.peers.borrow();
        let replica = partition.replica();
        successor(&partition.record(), |other| peers.is_up(other) && replica.is_followed_by(other))
    }

    /// The same; where nobody has, a member that lives.
    pub(super) fn best_successor(&self, partition: &LedPartition) -> Option<NodeId> {
        self.proven_successor(partition).or_else(|| self.successor(&partition.record()))
    }

    /// Who is to lead when this node does not lead on; `None`: nobody else can.
    pub(super) fn successor(&self, record: &PartitionRecord) -> Option<NodeId> {
        let peers = self.peers.borrow();
        successor(record, |other| peers.is_up(other))
    }
}
