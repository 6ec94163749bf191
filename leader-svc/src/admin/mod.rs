//! ClusterService: describes the cluster, and changes its topics, replicas and throttles.
//!
//! What must hold: a topic is created by its record, which is written last (design.md 6.9); a write of unknown outcome is
//! made again with the same ids, so that it cannot create two topics; whatever cannot be done says why with a code.

mod adopt;
mod create;
mod elect;
mod placement;
mod reassign;
mod register;
mod replication;
mod throttle;

use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, Coordination, CoordinationError, Membership};
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_server::ClusterService;
use highwater_serving::calls::{self, Answer, caller_of, check_cluster};
use highwater_serving::describe::ClusterDescriber;
use highwater_serving::registry::resolve_topic;
use highwater_serving::{PartitionHost as _, Registry, Volume};
use highwater_types::{ErrorCode, NodeId, ReplicationError};
use highwater_wire::elect::decode_elect;
use highwater_wire::reassign::{decode_cancel, decode_reassign};
use highwater_wire::throttle::{decode_clear, decode_set};
use highwater_wire::{admin, status};
use tokio::sync::mpsc;
use tonic::{Request, Response};

pub(crate) use replication::ReplicationApi;

use crate::partition::LedPartition;
use crate::replica_manager::Order;

/// How often a write of unknown outcome is tried, with the pause before each next one.
const WRITE_ATTEMPTS: u32 = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct ClusterApi {
    pub(crate) volume: Volume,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) host: Arc<Registry<LedPartition>>,
    pub(crate) describer: ClusterDescriber,
    pub(crate) orders: mpsc::Sender<Order>,
}

#[tonic::async_trait]
impl ClusterService for ClusterApi {
    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Answer<v1::DescribeClusterResponse> {
        calls::describe_cluster(&self.describer, request).await
    }

    async fn describe_topics(
        &self,
        request: Request<v1::DescribeTopicsRequest>,
    ) -> Answer<v1::DescribeTopicsResponse> {
        calls::describe_topics(&self.describer, request)
    }

    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Answer<v1::CreateTopicResponse> {
        let create = admin::decode_create(&request.into_inner())?;
        let topic = self.create(create).await.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::CreateTopicResponse { topic: Some(self.describer.topic(&topic)) }))
    }

    async fn adopt_topic(&self, request: Request<v1::AdoptTopicRequest>) -> Answer<v1::AdoptTopicResponse> {
        let adopt = admin::decode_adopt(&request.into_inner())?;
        let api = self.clone();
        // A task of its own: half a copy would be left when the caller goes away.
        let adopted = tokio::spawn(async move { api.adopt(adopt).await }).await;
        let adopted = adopted.map_err(|failed| status::internal(&format!("adopt: {failed}")))?;
        let (topic, partitions) = adopted.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::AdoptTopicResponse { topic: Some(self.describer.topic(&topic)), partitions }))
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Answer<v1::DeleteTopicResponse> {
        let asked = admin::decode_delete(&request.into_inner())?;
        let view = self.host.view();
        let topic = resolve_topic(&view, &asked).map_err(|e| status::from_error(&e))?;
        let delete = || self.coordination.delete_topic(topic.id);
        let deleted = retried(delete).await.map_err(|e| status::from_error(&e))?;
        tracing::info!(topic = %deleted.name, id = %deleted.id, "deleted a topic");
        Ok(Response::new(v1::DeleteTopicResponse {
            topic: deleted.name.to_string(),
            topic_id: deleted.id.to_string(),
        }))
    }

    async fn elect_leader(
        &self,
        request: Request<v1::ElectLeaderRequest>,
    ) -> Answer<v1::ElectLeaderResponse> {
        let order = decode_elect(&request.into_inner())?;
        let node = self.elect(order).await.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::ElectLeaderResponse { node_id: Some(node.get()) }))
    }

    async fn reassign_replicas(
        &self,
        request: Request<v1::ReassignReplicasRequest>,
    ) -> Answer<v1::ReassignReplicasResponse> {
        let asked = decode_reassign(&request.into_inner())?;
        let partitions = self.reassign(asked).await.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::ReassignReplicasResponse { partitions }))
    }

    async fn cancel_reassignment(
        &self,
        request: Request<v1::CancelReassignmentRequest>,
    ) -> Answer<v1::CancelReassignmentResponse> {
        let asked = decode_cancel(&request.into_inner())?;
        let partitions = self.cancel(asked).await.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::CancelReassignmentResponse { partitions }))
    }

    async fn list_reassignments(
        &self,
        request: Request<v1::ListReassignmentsRequest>,
    ) -> Answer<v1::ListReassignmentsResponse> {
        calls::list_reassignments(&self.describer, request, |record, added| self.add_progress(record, added))
    }

    async fn register_agent(
        &self,
        request: Request<v1::RegisterAgentRequest>,
    ) -> Answer<v1::RegisterAgentResponse> {
        let caller = caller_of(&request)?;
        let agent = admin::decode_register(&caller, &request.into_inner())?;
        check_cluster(agent.cluster.as_ref(), &self.volume.cluster_id)?;
        let answer = self.register(agent).await.map_err(|e| status::from_error(&e))?;
        Ok(Response::new(answer))
    }

    async fn set_replication_throttle(
        &self,
        request: Request<v1::SetReplicationThrottleRequest>,
    ) -> Answer<v1::SetReplicationThrottleResponse> {
        let set = decode_set(&request.into_inner())?;
        let records = self.set_throttle(set).await.map_err(|e| status::from_error(&e))?;
        let nodes = records.iter().map(|record| self.describer.node(record)).collect();
        Ok(Response::new(v1::SetReplicationThrottleResponse { nodes }))
    }

    async fn clear_replication_throttle(
        &self,
        request: Request<v1::ClearReplicationThrottleRequest>,
    ) -> Answer<v1::ClearReplicationThrottleResponse> {
        let clear = decode_clear(&request.into_inner())?;
        let records = self.clear_throttle(clear).await.map_err(|e| status::from_error(&e))?;
        let nodes = records.iter().map(|record| self.describer.node(record)).collect();
        Ok(Response::new(v1::ClearReplicationThrottleResponse { nodes }))
    }
}

impl ClusterApi {
    /// What stands in the store: a node or a topic of a moment ago is to be known.
    async fn newest_view(&self) -> Result<Arc<ClusterView>, ReplicationError> {
        retried(|| self.coordination.refresh()).await
    }
}

/// Refuses nodes that never registered.
fn check_registered(view: &ClusterView, nodes: &[NodeId]) -> Result<(), ReplicationError> {
    let Some(unknown) = nodes.iter().find(|node| view.node(**node).is_none()) else { return Ok(()) };
    let known: Vec<_> = view.nodes().map(|record| record.node.to_string()).collect();
    Err(ReplicationError::new(
        ErrorCode::InvalidRequest,
        format!("node {unknown} is not registered; the cluster's nodes are {}", known.join(", ")),
    ))
}

/// Makes a call to the store again while its outcome is unknown or the store cannot be reached, a few times.
async fn retried<T, F: Future<Output = Result<T, CoordinationError>>>(
    write: impl Fn() -> F,
) -> Result<T, ReplicationError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match write().await {
            Err(error) if error.is_retryable() && attempts < WRITE_ATTEMPTS => {
                tokio::time::sleep(WRITE_PAUSE).await;
            }
            outcome => return outcome.map_err(|error| refused(&error)),
        }
    }
}

/// An error of the store as it travels.
fn refused(error: &CoordinationError) -> ReplicationError {
    let code = match error {
        CoordinationError::Unavailable(_) | CoordinationError::Unknown(_) => {
            ErrorCode::CoordinationUnavailable
        }
        CoordinationError::NotFound(_) => ErrorCode::UnknownTopicOrPartition,
        CoordinationError::Invalid(_) => ErrorCode::InvalidRequest,
        CoordinationError::ReadOnly | CoordinationError::Unreadable(_) => ErrorCode::Internal,
    };
    ReplicationError::new(code, error.to_string())
}
