//! ElectLeader: orders for the replica manager of this node.

use highwater_serving::PartitionHost as _;
use highwater_serving::registry::{resolve_partition, resolve_topic};
use highwater_types::{ErrorCode, NodeId, ReplicationError};
use highwater_wire::elect::{ElectLeader, Election};
use tokio::sync::oneshot;

use super::ClusterApi;
use crate::replica_manager::Order;

impl ClusterApi {
    /// Who leads, or is to lead next.
    pub(super) async fn elect(&self, order: ElectLeader) -> Result<NodeId, ReplicationError> {
        let view = self.host.view();
        if order.election == Election::Preferred {
            // Only the leader can hand over; whoever is not says who is.
            self.host.find(&view, &order.topic, order.partition).1?;
        }
        let topic = resolve_topic(&view, &order.topic)?;
        let partition = resolve_partition(&view, topic, order.partition)?.id();
        let (answer, answered) = oneshot::channel();
        let order = Order { partition, election: order.election, answer };
        let stopping = |_| ReplicationError::new(ErrorCode::ShuttingDown, "this program is stopping");
        self.orders.send(order).await.map_err(|_| stopping(()))?;
        // Opening the log and the store have bounds of their own; the caller's deadline ends the wait.
        answered.await.map_err(|_| stopping(()))?
    }
}
