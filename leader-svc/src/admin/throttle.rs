//! SetReplicationThrottle and ClearReplicationThrottle: the throttles stand in the nodes' records, so that every program of
//! the cluster sees them and restarts keep them.

use highwater_coordination::update_node;
use highwater_types::{ErrorCode, NodeId, NodeRecord, NodeThrottles, ReplicationError};
use highwater_wire::throttle::{ClearThrottle, SetThrottle};

use super::{ClusterApi, retried};

impl ClusterApi {
    /// Answers the records as they now are. After a failure some may be changed: asking again changes the others.
    pub(super) async fn set_throttle(&self, set: SetThrottle) -> Result<Vec<NodeRecord>, ReplicationError> {
        // One for all nodes, and the same at every attempt, so that one that had been made is recognised.
        let id = rand::random();
        let records = self.change_throttles(&set.nodes, |throttles| set.apply(throttles, id)).await?;
        tracing::info!(leader = ?set.leader, follower = ?set.follower, replicas = %set.replicas, ttl = ?set.ttl, nodes = ?set.nodes, "set a throttle of replication");
        Ok(records)
    }

    /// As [`Self::set_throttle`].
    pub(super) async fn clear_throttle(
        &self,
        clear: ClearThrottle,
    ) -> Result<Vec<NodeRecord>, ReplicationError> {
        let remove = |throttles: &mut NodeThrottles| {
            for side in &clear.sides {
                *throttles.of_mut(*side) = None;
            }
        };
        let records = self.change_throttles(&clear.nodes, remove).await?;
        tracing::info!(sides = ?clear.sides, nodes = ?clear.nodes, "cleared throttles of replication");
        Ok(records)
    }

    async fn change_throttles(
        &self,
        nodes: &[NodeId],
        change: impl Fn(&mut NodeThrottles) + Send + Sync,
    ) -> Result<Vec<NodeRecord>, ReplicationError> {
        // A node that registered a moment ago is to be known.
        let view = retried(|| self.coordination.refresh()).await?;
        if let Some(unknown) = nodes.iter().find(|node| view.node(**node).is_none()) {
            let known: Vec<_> = view.nodes().map(|record| record.node.to_string()).collect();
            return Err(ReplicationError::new(
                ErrorCode::InvalidRequest,
                format!("node {unknown} is not registered; the cluster's nodes are {}", known.join(", ")),
            ));
        }
        let nodes: Vec<_> =
            if nodes.is_empty() { view.nodes().map(|record| record.node).collect() } else { nodes.to_vec() };
        let mut records = Vec::with_capacity(nodes.len());
        for node in nodes {
            let write = || update_node(&*self.coordination, node, |record| change(&mut record.throttles));
            records.push(retried(write).await?);
        }
        Ok(records)
    }
}
