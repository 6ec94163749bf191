//! The three services as an agent offers them: reads up to its own high watermark, the cluster as it knows it, and its
//! fetch loops. What needs the leader is answered with who that is (design.md 3).

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use highwater_coordination::ClusterView;
use highwater_node::Clocks;
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_server::ClusterService;
use highwater_proto::v1::log_service_server::LogService;
use highwater_proto::v1::replication_service_server::ReplicationService;
use highwater_serving::PartitionHost as _;
use highwater_serving::Registry;
use highwater_serving::admission::Admit;
use highwater_serving::calls::{self, Answer, caller_of, check_cluster, deadline_of};
use highwater_serving::describe::ClusterDescriber;
use highwater_serving::fetch::{Fetch, LongPoll, Read};
use highwater_serving::observe::{CallSpan, FetchAsked, FetchObserver};
use highwater_serving::registry::{Hosting, leader_hint, resolve_partition, resolve_topic};
use highwater_serving::volume::on_disk;
use highwater_telemetry::Telemetry;
use highwater_types::{
    ErrorCode, LeaderEpoch, LeaderHint, PartitionIndex, PartitionRecord, Program, ReplicationError,
};
use highwater_wire::fetch::TopicRef;
use highwater_wire::reassign::PartitionRef;
use highwater_wire::{admin, produce, replica, status};
use tonic::{Request, Response, Status};
use tower::ServiceExt as _;

use crate::describe::describe;
use crate::partition::{FollowedPartition, PausedReplicas};
use crate::{Fetchers, leaderless};

/// What the services share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) clocks: Clocks,
    pub(crate) host: Arc<Registry<FollowedPartition>>,
    pub(crate) fetches: LongPoll<Admit<Read>>,
    pub(crate) describer: ClusterDescriber,
    /// Set once the node has joined its cluster.
    pub(crate) fetchers: Arc<OnceLock<Arc<Fetchers>>>,
    pub(crate) paused: Arc<PausedReplicas>,
    pub(crate) telemetry: Telemetry,
    pub(crate) data_dir: PathBuf,
}

impl Api {
    /// The partition, if this node has a replica of it.
    fn own_replica(&self, asked: &PartitionRef) -> Result<Arc<PartitionRecord>, ReplicationError> {
        let (view, node) = (self.host.view(), self.host.node());
        let topic = resolve_topic(&view, &asked.topic)?;
        let record = resolve_partition(&view, topic, asked.partition)?;
        if record.has_replica(node) {
            return Ok(Arc::clone(record));
        }
        let why = format!("node {node} has no replica of {}-{}", topic.name, record.partition);
        Err(ReplicationError::new(ErrorCode::InvalidRequest, why))
    }

    /// Answers whether it was paused already.
    fn pause(&self, asked: &PartitionRef) -> Result<bool, ReplicationError> {
        let record = self.own_replica(asked)?;
        if record.leader == Some(self.host.node()) {
            let why =
                format!("node {} leads the partition: only who follows can be paused", self.host.node());
            return Err(ReplicationError::new(ErrorCode::InvalidRequest, why));
        }
        let is_news = self.paused.pause(record.id());
        if let Some(Hosting::Online(partition)) = self.host.get(record.id()).filter(|_| is_news) {
            partition.on_pause();
        }
        tracing::info!(topic_id = %record.topic_id, partition = %record.partition, is_news, "a person paused a replica");
        Ok(!is_news)
    }

    /// Answers whether it was paused.
    fn resume(&self, asked: &PartitionRef) -> Result<bool, ReplicationError> {
        let record = self.own_replica(asked)?;
        let was_paused = self.paused.resume(record.id());
        if let Some(Hosting::Online(partition)) = self.host.get(record.id()) {
            partition.on_resume();
        }
        tracing::info!(topic_id = %record.topic_id, partition = %record.partition, was_paused, "a person resumed a replica");
        Ok(was_paused)
    }
}

/// The answer to what only a leader can do: FAILED_PRECONDITION with who leads, as far as that is one node.
fn leader_needed(view: &ClusterView, about: Option<(&TopicRef, PartitionIndex)>) -> Status {
    let hint = about.and_then(|(topic, partition)| {
        let topic = resolve_topic(view, topic).ok()?;
        leader_hint(view, resolve_partition(view, topic, partition).ok()?)
    });
    let what = "this is a follower-agent; ask the partition's leader";
    status::from_error(&ReplicationError::new(ErrorCode::NotLeaderOrFollower, what).with_leader(hint))
}

/// The answer to a change of the cluster: any leader-svc can make it.
fn leader_svc_needed(view: &ClusterView) -> Status {
    let named = view.nodes().find_map(|node| Some((node.node, node.endpoint(Program::LeaderSvc)?.clone())));
    let hint = named.map(|(node, endpoint)| LeaderHint {
        leader: Some(node),
        epoch: LeaderEpoch::FIRST,
        endpoint: Some(endpoint),
    });
    let what = "this is a follower-agent; ask a leader-svc";
    status::from_error(&ReplicationError::new(ErrorCode::NotLeaderOrFollower, what).with_leader(hint))
}

#[tonic::async_trait]
impl LogService for Api {
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Answer<v1::FetchResponse> {
        let received = self.clocks.monotonic.now();
        let (caller, deadline, call) = (caller_of(&request)?, deadline_of(&request), CallSpan::of(&request));
        let request = highwater_wire::fetch::decode_request(&caller, request.into_inner())?;
        if let Some(own) = self.host.view().cluster_id() {
            check_cluster(request.cluster.as_ref(), own)?;
        }
        let asked = FetchAsked::by(&request);
        let fetch = Fetch::new(request, received, deadline);
        let fetched = self.fetches.clone().oneshot(fetch).await?;
        let observer = FetchObserver::new(&self.telemetry, self.clocks.monotonic);
        let notes = observer.answered(call, asked, &fetched);
        let mut response = Response::new(highwater_wire::fetch::encode_response(fetched.response));
        if let Some(notes) = notes {
            response.extensions_mut().insert(notes);
        }
        if let Some(permit) = fetched.admitted {
            response.extensions_mut().insert(permit);
        }
        Ok(response)
    }

    async fn produce(&self, request: Request<v1::ProduceRequest>) -> Answer<v1::ProduceResponse> {
        let request = produce::decode_request(request.into_inner())?;
        let first = request.partitions.first();
        Err(leader_needed(&self.host.view(), first.map(|asked| (&asked.topic, asked.partition))))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Answer<v1::ListOffsetsResponse> {
        calls::list_offsets(Arc::clone(&self.host) as _, request).await
    }

    async fn offsets_for_leader_epoch(
        &self,
        request: Request<v1::OffsetsForLeaderEpochRequest>,
    ) -> Answer<v1::OffsetsForLeaderEpochResponse> {
        calls::offsets_for_leader_epoch(&*self.host, request)
    }
}

#[tonic::async_trait]
impl ClusterService for Api {
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
        admin::decode_create(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn adopt_topic(&self, request: Request<v1::AdoptTopicRequest>) -> Answer<v1::AdoptTopicResponse> {
        admin::decode_adopt(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Answer<v1::DeleteTopicResponse> {
        admin::decode_delete(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn register_agent(
        &self,
        request: Request<v1::RegisterAgentRequest>,
    ) -> Answer<v1::RegisterAgentResponse> {
        let caller = caller_of(&request)?;
        admin::decode_register(&caller, &request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn elect_leader(
        &self,
        request: Request<v1::ElectLeaderRequest>,
    ) -> Answer<v1::ElectLeaderResponse> {
        highwater_wire::elect::decode_elect(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn reassign_replicas(
        &self,
        request: Request<v1::ReassignReplicasRequest>,
    ) -> Answer<v1::ReassignReplicasResponse> {
        highwater_wire::reassign::decode_reassign(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn cancel_reassignment(
        &self,
        request: Request<v1::CancelReassignmentRequest>,
    ) -> Answer<v1::CancelReassignmentResponse> {
        highwater_wire::reassign::decode_cancel(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn list_reassignments(
        &self,
        request: Request<v1::ListReassignmentsRequest>,
    ) -> Answer<v1::ListReassignmentsResponse> {
        // How far a replica is, its leader knows.
        calls::list_reassignments(&self.describer, request, |_, _| {})
    }

    async fn set_replication_throttle(
        &self,
        request: Request<v1::SetReplicationThrottleRequest>,
    ) -> Answer<v1::SetReplicationThrottleResponse> {
        highwater_wire::throttle::decode_set(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }

    async fn clear_replication_throttle(
        &self,
        request: Request<v1::ClearReplicationThrottleRequest>,
    ) -> Answer<v1::ClearReplicationThrottleResponse> {
        highwater_wire::throttle::decode_clear(&request.into_inner())?;
        Err(leader_svc_needed(&self.host.view()))
    }
}

#[tonic::async_trait]
impl ReplicationService for Api {
    async fn describe_replication(
        &self,
        request: Request<v1::DescribeReplicationRequest>,
    ) -> Answer<v1::DescribeReplicationResponse> {
        admin::decode_selection(&request.into_inner().topics)?;
        // This program leads nothing.
        Ok(Response::new(v1::DescribeReplicationResponse {
            node_id: Some(self.host.node().get()),
            partitions: Vec::new(),
        }))
    }

    async fn describe_fetchers(
        &self,
        _: Request<v1::DescribeFetchersRequest>,
    ) -> Answer<v1::DescribeFetchersResponse> {
        let fetchers = self.fetchers.get().map(|fetchers| &**fetchers);
        let mut answer = describe(&self.host, fetchers, self.clocks.monotonic.now());
        let (data_dir, view, node) = (self.data_dir.clone(), self.host.view(), self.host.node());
        let left = on_disk(move || leaderless::rows(&data_dir, &view, node)).await;
        let is_told = |row: &v1::FollowedPartition| {
            let mut told =
                answer.fetchers.iter().flat_map(|fetcher| &fetcher.partitions).chain(&answer.unassigned);
            told.any(|told| (&told.topic_id, told.partition) == (&row.topic_id, row.partition))
        };
        let left: Vec<_> = left.into_iter().filter(|row| !is_told(row)).collect();
        answer.unassigned.extend(left);
        Ok(Response::new(answer))
    }

    async fn pause_replica(
        &self,
        request: Request<v1::PauseReplicaRequest>,
    ) -> Answer<v1::PauseReplicaResponse> {
        let asked = replica::decode_pause(&request.into_inner())?;
        let was_paused = self.pause(&asked).map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::PauseReplicaResponse { was_paused: Some(was_paused) }))
    }

    async fn resume_replica(
        &self,
        request: Request<v1::ResumeReplicaRequest>,
    ) -> Answer<v1::ResumeReplicaResponse> {
        let asked = replica::decode_resume(&request.into_inner())?;
        let was_paused = self.resume(&asked).map_err(|e| status::from_error(&e))?;
        Ok(Response::new(v1::ResumeReplicaResponse { was_paused: Some(was_paused) }))
    }

    async fn read_records(
        &self,
        request: Request<v1::ReadRecordsRequest>,
    ) -> Answer<v1::ReadRecordsResponse> {
        calls::read_decoded(Arc::clone(&self.host) as _, request).await
    }
}
