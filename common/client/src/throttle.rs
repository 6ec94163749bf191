//! Throttles of replication: set, cleared, shown.

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::{Endpoint, NodeRecord};
use highwater_wire::cluster::decode_node;
use highwater_wire::throttle::{
    ClearThrottle, SetThrottle, ThrottleLeft, decode_left, encode_clear, encode_set,
};

use crate::ClientError;
use crate::client::{Client, Repeat};

/// Nodes, with the throttles that they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThrottledNodes {
    /// The nodes' records.
    pub nodes: Vec<NodeRecord>,
    /// How long throttles still live, as the program that answered reckons.
    pub left: ThrottleLeft,
}

impl Client {
    /// Sets throttles of replication, in place of those that these nodes have on the same side; answers the nodes that they
    /// are for. Setting them again changes nothing but when they end.
    ///
    /// # Errors
    /// `InvalidRequest` in [`ClientError::Call`] for a node that is not registered and a topic or partition that is not
    /// there; after a failure of another kind some nodes may be throttled.
    pub async fn set_throttle(&self, set: &SetThrottle) -> Result<ThrottledNodes, ClientError> {
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel).set_replication_throttle(request).await
        };
        let what = "setting the throttle";
        let (endpoint, answer) =
            self.call_any(what, encode_set(set), Repeat::Always, self.give_up(), rpc).await?;
        nodes(&endpoint, &answer.nodes)
    }

    /// The throttles of every registered node.
    ///
    /// # Errors
    /// As [`Client::describe_cluster`].
    pub async fn throttles(&self) -> Result<ThrottledNodes, ClientError> {
        let cluster = self.describe_cluster().await?;
        Ok(ThrottledNodes { nodes: cluster.nodes, left: cluster.throttles_left })
    }

    /// Removes throttles of replication; answers the nodes that were meant.
    ///
    /// # Errors
    /// As [`Client::set_throttle`].
    pub async fn clear_throttle(&self, clear: &ClearThrottle) -> Result<ThrottledNodes, ClientError> {
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel).clear_replication_throttle(request).await
        };
        let what = "clearing the throttle";
        let (endpoint, answer) =
            self.call_any(what, encode_clear(clear), Repeat::Always, self.give_up(), rpc).await?;
        nodes(&endpoint, &answer.nodes)
    }
}

fn nodes(endpoint: &Endpoint, nodes: &[v1::Node]) -> Result<ThrottledNodes, ClientError> {
    let decoded =
        nodes.iter().enumerate().map(|(at, node)| decode_node(node).map_err(|e| e.within("nodes", at)));
    let failed = |error| ClientError::Answer { endpoint: endpoint.clone(), error };
    Ok(ThrottledNodes { nodes: decoded.collect::<Result<_, _>>().map_err(failed)?, left: decode_left(nodes) })
}
