//! SetReplicationThrottle and ClearReplicationThrottle: the throttles stand in the nodes' records, so that every program of
//! the cluster sees them and restarts keep them.

use std::collections::BTreeSet;

use highwater_coordination::{ClusterView, update_node};
use highwater_types::{
    ErrorCode, NodeId, NodeRecord, NodeThrottles, PartitionIndex, ReplicationError, ThrottledReplicas,
};
use highwater_wire::throttle::{ClearThrottle, SetThrottle};

use super::{ClusterApi, check_registered, retried};

impl ClusterApi {
    /// Answers the records as they now are. After a failure some may be changed: asking again changes the others.
    pub(super) async fn set_throttle(&self, set: SetThrottle) -> Result<Vec<NodeRecord>, ReplicationError> {
        let view = self.newest_view().await?;
        check_listed(&view, &set.replicas)?;
        // One for all nodes, and the same at every attempt, so that one that had been made is recognised.
        let id = rand::random();
        let records = self.change_throttles(&view, &set.nodes, |throttles| set.apply(throttles, id)).await?;
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
        let view = self.newest_view().await?;
        let records = self.change_throttles(&view, &clear.nodes, remove).await?;
        tracing::info!(sides = ?clear.sides, nodes = ?clear.nodes, "cleared throttles of replication");
        Ok(records)
    }

    async fn change_throttles(
        &self,
        view: &ClusterView,
        nodes: &[NodeId],
        change: impl Fn(&mut NodeThrottles) + Send + Sync,
    ) -> Result<Vec<NodeRecord>, ReplicationError> {
        check_registered(view, nodes)?;
        // Each once, however often it is named.
        let nodes: BTreeSet<_> = match nodes {
            [] => view.nodes().map(|record| record.node).collect(),
            named => named.iter().copied().collect(),
        };
        let mut records = Vec::with_capacity(nodes.len());
        for node in nodes {
            let write = || update_node(&*self.coordination, node, |record| change(&mut record.throttles));
            records.push(retried(write).await?);
        }
        Ok(records)
    }
}

/// Every topic and partition that is listed has to be there: a name that is misspelt would hold back nothing.
fn check_listed(view: &ClusterView, replicas: &ThrottledReplicas) -> Result<(), ReplicationError> {
    let ThrottledReplicas::Listed(topics) = replicas else { return Ok(()) };
    let refused = |problem| Err(ReplicationError::new(ErrorCode::InvalidRequest, problem));
    for (name, partitions) in topics {
        let Some(topic) = view.topic_named(name) else {
            return refused(format!("throttled replicas: there is no topic {name}"));
        };
        let is_beyond = |partition: &&PartitionIndex| partition.get() >= topic.partitions;
        if let Some(beyond) = partitions.iter().find(is_beyond) {
            return refused(format!(
                "throttled replicas: there is no {name}:{beyond}; the last partition of topic {name} is {}",
                topic.partitions.saturating_sub(1)
            ));
        }
    }
    Ok(())
}
