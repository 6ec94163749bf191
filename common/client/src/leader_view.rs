//! The coordination store as an agent without access to one sees it: read by long-polling a leader-svc, the agent's own
//! records written through RegisterAgent (design.md 1, 3).
//!
//! What holds:
//! - Of each record the highest version seen is kept, whichever node told it; a node that lags behind changes nothing.
//! - Addresses are tried in turn: a node whose call fails, or that belongs to another cluster, is left for the next.
//!   leader-svcs that the view names are tried after the configured ones.
//! - Nothing is written twice by this side: a write whose outcome is unknown is reported as that.
//!
//! Deliberately absent: changes of topics and partitions; these answer [`CoordinationError::ReadOnly`].

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use highwater_coordination::{
    CasOutcome, ClusterView, Coordination, CoordinationError, Liveness, ViewChanges, ViewPublisher,
};
use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::{
    ClusterId, Endpoint, ErrorCode, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId,
    TopicRecord,
};
use highwater_wire::cluster::{DescribedCluster, decode_cluster, decode_liveness, decode_node, encode_node};
use highwater_wire::limits::DESCRIPTION_LIMIT;
use highwater_wire::{Caller, DecodeError, FailureKind, Reached};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::client::Client;
use crate::transport::TransportOptions;
use crate::{Backoff, ClientConfig, ClientError};

/// How an agent sees its cluster through leader-svcs.
#[derive(Clone, Debug)]
pub struct LeaderViewConfig {
    /// leader-svcs of the cluster.
    pub addresses: Vec<Endpoint>,
    /// The agent's node.
    pub node: NodeId,
    /// How long a leader-svc may hold a poll when nothing changes.
    pub poll_wait: Duration,
    /// How much longer than its wait a call may take.
    pub request_timeout: Duration,
    /// How connections are made.
    pub transport: TransportOptions,
}

impl LeaderViewConfig {
    /// The defaults, for the agent of `node`.
    #[must_use]
    pub fn new(addresses: Vec<Endpoint>, node: NodeId) -> Self {
        Self {
            addresses,
            node,
            poll_wait: Duration::from_secs(2),
            request_timeout: Duration::from_millis(1500),
            transport: TransportOptions::default(),
        }
    }
}

/// The view of an agent, kept up to date by a task that ends when this is dropped.
pub struct LeaderView {
    shared: Arc<Shared>,
    _poll: AbortOnDropHandle<()>,
}

impl fmt::Debug for LeaderView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderView").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

struct Shared {
    config: LeaderViewConfig,
    client: Client,
    publisher: ViewPublisher,
    addresses: Addresses,
    renewals: AtomicU64,
}

/// Whom to ask: the same as before, until it fails.
struct Addresses {
    configured: Vec<Endpoint>,
    learnt: Mutex<Vec<Endpoint>>,
    turn: AtomicUsize,
}

impl LeaderView {
    /// Starts to poll. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClientError::Usage`] without an address.
    pub fn start(config: LeaderViewConfig) -> Result<Self, ClientError> {
        let client = Client::new(ClientConfig {
            caller: Caller::node(Program::FollowerAgent, config.node),
            request_timeout: config.request_timeout,
            transport: config.transport.clone(),
            ..ClientConfig::new(config.addresses.clone())
        })?;
        let addresses = Addresses {
            configured: config.addresses.clone(),
            learnt: Mutex::default(),
            turn: AtomicUsize::new(0),
        };
        let renewals = AtomicU64::new(0);
        let shared =
            Arc::new(Shared { config, client, publisher: ViewPublisher::default(), addresses, renewals });
        let poll = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&shared).poll()));
        Ok(Self { shared, _poll: poll })
    }
}

impl Shared {
    /// Polls for ever. An idle cluster costs one call per poll wait.
    async fn poll(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        let mut known: Option<(Endpoint, u64)> = None;
        loop {
            let endpoint = self.addresses.current();
            let version = known.as_ref().filter(|(asked, _)| *asked == endpoint).map(|(_, version)| *version);
            match self.describe(&endpoint, version).await {
                Ok(version) => {
                    known = Some((endpoint, version));
                    backoff.reset();
                }
                Err(error) => {
                    if known.is_some() {
                        tracing::warn!(%endpoint, %error, "ask another leader-svc for the cluster's state");
                    } else {
                        // One warning per outage; whoever cannot renew says the rest.
                        tracing::debug!(%endpoint, %error, "no leader-svc tells the cluster's state");
                    }
                    self.addresses.leave(&endpoint);
                    known = None;
                    tokio::time::sleep(backoff.after_failure(None)).await;
                }
            }
        }
    }

    /// Asks one leader-svc, waiting for another state than `known`; returns the version that it told.
    async fn describe(&self, endpoint: &Endpoint, known: Option<u64>) -> Result<u64, ClientError> {
        let wait = known.map_or(Duration::ZERO, |_| self.config.poll_wait);
        let max_wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = v1::DescribeClusterRequest { known_version: known, max_wait_ms: Some(max_wait_ms) };
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .describe_cluster(request)
                .await
        };
        let timeout = wait + self.config.request_timeout;
        let answer = self.client.call(endpoint, request, timeout, rpc).await?;
        let cluster = decode_cluster(&answer).map_err(|error| answer_error(endpoint, error))?;
        let version = cluster.version;
        self.absorb(endpoint, cluster)?;
        Ok(version)
    }

    fn absorb(&self, endpoint: &Endpoint, cluster: DescribedCluster) -> Result<(), ClientError> {
        self.check_cluster(endpoint, cluster.cluster_id.as_ref())?;
        if cluster.unchanged {
            return Ok(());
        }
        self.addresses.learn(cluster.nodes.iter().filter_map(|node| node.leader_svc.clone()).collect());
        let mut changes = ViewChanges {
            version: 0,
            cluster_id: cluster.cluster_id,
            nodes: cluster.nodes,
            ..ViewChanges::default()
        };
        for topic in cluster.topics {
            changes.topics.push(topic.record);
            changes.partitions.extend(topic.partitions.into_iter().map(|partition| partition.record));
        }
        self.publisher.merge(changes);
        Ok(())
    }

    /// A node of another cluster, behind an address that moved, must not add to this view.
    fn check_cluster(&self, endpoint: &Endpoint, told: Option<&ClusterId>) -> Result<(), ClientError> {
        match (self.publisher.current().cluster_id(), told) {
            (Some(own), Some(told)) if own != told => {
                let problem = format!("{told}: this agent belongs to cluster {own}");
                Err(answer_error(endpoint, DecodeError::invalid("cluster_id", problem)))
            }
            _ => Ok(()),
        }
    }

    async fn register(
        &self,
        counter: Option<u64>,
        record: Option<&NodeRecord>,
    ) -> Result<v1::RegisterAgentResponse, CoordinationError> {
        let endpoint = self.addresses.current();
        let request = v1::RegisterAgentRequest {
            cluster_id: self.publisher.current().cluster_id().map(ToString::to_string),
            node_id: Some(self.config.node.get()),
            counter,
            node: record.map(encode_node),
        };
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel).register_agent(request).await
        };
        let answer = self.client.call(&endpoint, request, self.config.request_timeout, rpc).await;
        let checked = answer.and_then(|answer| {
            let told = answer.cluster_id.parse().ok();
            self.check_cluster(&endpoint, told.as_ref()).map(|()| answer)
        });
        checked.map_err(|error| {
            self.addresses.leave(&endpoint);
            coordination_error(&error)
        })
    }
}

#[async_trait]
impl Coordination for LeaderView {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.shared.publisher.subscribe()
    }

    /// The cluster's id as a leader-svc tells it; an agent creates none.
    async fn ensure_cluster_id(&self, _proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
        if let Some(known) = self.shared.publisher.current().cluster_id() {
            return Ok(known.clone());
        }
        self.refresh().await?.cluster_id().cloned().ok_or(CoordinationError::ReadOnly)
    }

    async fn create_topic(
        &self,
        _topic: TopicRecord,
        _partitions: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    async fn delete_topic(&self, _id: TopicId) -> Result<TopicRecord, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    async fn swap_partition(
        &self,
        _new: PartitionRecord,
        _expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    /// Writes the agent's own node record, through a leader-svc.
    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        if new.node != self.shared.config.node {
            return Err(CoordinationError::ReadOnly);
        }
        let asked = NodeRecord { version: expected, ..new };
        let answer = self.shared.register(None, Some(&asked)).await?;
        let unclear =
            |problem: String| CoordinationError::Unknown(format!("answer to RegisterAgent: {problem}"));
        let written = answer.written.ok_or_else(|| unclear("written is missing".to_owned()))?;
        let stands = answer.node.as_ref().map(decode_node).transpose().map_err(|e| unclear(e.to_string()))?;
        let stands = stands.unwrap_or_else(|| NodeRecord::new(asked.node));
        if stands.version > 0 {
            self.shared
                .publisher
                .merge(ViewChanges { nodes: vec![stands.clone()], ..ViewChanges::default() });
        }
        Ok(if written { CasOutcome::Committed(stands) } else { CasOutcome::Conflict(stands) })
    }

    async fn renew_liveness(&self, node: NodeId, program: Program) -> Result<Liveness, CoordinationError> {
        if node != self.shared.config.node || program != Program::FollowerAgent {
            return Err(CoordinationError::ReadOnly);
        }
        let counter = self.shared.renewals.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let answer = self.shared.register(Some(counter), None).await?;
        let one = |message: &v1::Liveness| {
            decode_liveness(message).map(|record| ((record.node, record.program), record.counter))
        };
        let liveness: Result<Liveness, DecodeError> = answer.liveness.iter().map(one).collect();
        liveness.map_err(|e| CoordinationError::Unreadable(format!("answer to RegisterAgent: {e}")))
    }

    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
        let shared = &self.shared;
        let mut last = None;
        for _ in 0..shared.addresses.count() {
            let endpoint = shared.addresses.current();
            match shared.describe(&endpoint, None).await {
                Ok(_) => return Ok(shared.publisher.current()),
                Err(error) => {
                    shared.addresses.leave(&endpoint);
                    last = Some(error);
                }
            }
        }
        let why = last.map_or_else(|| "no address".to_owned(), |error| error.to_string());
        Err(CoordinationError::Unavailable(why))
    }
}

impl Addresses {
    fn current(&self) -> Endpoint {
        let learnt = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || self.configured.iter().chain(learnt.iter());
        let turn = self.turn.load(Ordering::Relaxed);
        let chosen = all().nth(turn % all().count().max(1));
        chosen.cloned().expect("`Client::new` refused an empty list of addresses")
    }

    /// Goes on to the next address, unless somebody else already left `endpoint`.
    fn leave(&self, endpoint: &Endpoint) {
        if self.current() == *endpoint {
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn learn(&self, mut named: Vec<Endpoint>) {
        named.retain(|endpoint| !self.configured.contains(endpoint));
        *self.learnt.lock().unwrap_or_else(PoisonError::into_inner) = named;
    }

    fn count(&self) -> usize {
        self.configured.len() + self.learnt.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn answer_error(endpoint: &Endpoint, error: DecodeError) -> ClientError {
    ClientError::Answer { endpoint: endpoint.clone(), error }
}

/// What a failed RegisterAgent means for the record: refused, not made, or perhaps made.
fn coordination_error(error: &ClientError) -> CoordinationError {
    let text = error.to_string();
    let ClientError::Call { failure, .. } = error else { return CoordinationError::Unavailable(text) };
    match (failure.kind, failure.reached) {
        (FailureKind::Terminal, _) => CoordinationError::Invalid(text),
        _ if failure.code == Some(ErrorCode::RequestTimedOut) => CoordinationError::Unknown(text),
        (FailureKind::Retryable | FailureKind::Deadline | FailureKind::Overloaded, Reached::Unknown) => {
            CoordinationError::Unknown(text)
        }
        (FailureKind::Retryable | FailureKind::Deadline | FailureKind::Overloaded, _) => {
            CoordinationError::Unavailable(text)
        }
    }
}

#[cfg(test)]
#[path = "leader_view_test.rs"]
mod tests;
