//! Replicas that a person pauses and resumes.

use std::future::Future;

use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_types::NodeId;
use highwater_wire::reassign::PartitionRef;
use highwater_wire::replica::{encode_pause, encode_resume};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::ClientError;
use crate::client::Client;

impl Client {
    /// Has the replica on `node` fetch no more; answers whether it did before.
    ///
    /// # Errors
    /// `InvalidRequest` in [`ClientError::Call`] when the node has no such replica, or leads it; [`ClientError::Usage`] when the
    /// node has no agent.
    pub async fn pause_replica(&self, replica: &PartitionRef, node: NodeId) -> Result<bool, ClientError> {
        let rpc = |channel, request| async move {
            ReplicationServiceClient::new(channel).pause_replica(request).await
        };
        let answer = self.ask_agent(node, encode_pause(replica), rpc).await?;
        Ok(!answer.was_paused.unwrap_or(false))
    }

    /// Has the replica on `node` fetch again; answers whether it was paused.
    ///
    /// # Errors
    /// As [`Client::pause_replica`].
    pub async fn resume_replica(&self, replica: &PartitionRef, node: NodeId) -> Result<bool, ClientError> {
        let rpc = |channel, request| async move {
            ReplicationServiceClient::new(channel).resume_replica(request).await
        };
        let answer = self.ask_agent(node, encode_resume(replica), rpc).await?;
        Ok(answer.was_paused.unwrap_or(false))
    }

    /// One call to the agent of a node.
    async fn ask_agent<M, R, F, Fut>(&self, node: NodeId, message: M, rpc: F) -> Result<R, ClientError>
    where
        F: FnOnce(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let cluster = self.describe_cluster().await?;
        let record = cluster.nodes.iter().find(|record| record.node == node);
        let agent = record.and_then(|record| record.follower_agent.clone()).ok_or_else(|| {
            ClientError::Usage(format!("node {node}: no follower-agent of it is registered"))
        })?;
        self.call(&agent, message, self.config().request_timeout, rpc).await
    }
}
