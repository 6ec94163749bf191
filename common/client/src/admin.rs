//! Topics, offsets, records for people, and the views of replication.

use std::collections::{BTreeMap, BTreeSet};

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_proto::v1::replication_service_client::ReplicationServiceClient;
use highwater_types::{Endpoint, NodeId, NodeRecord, Offset, Program, TopicId, TopicName, TopicPartition};
use highwater_wire::admin::{
    AdoptTopic, AdoptedPartition, CreateTopic, decode_adopted, encode_adopt, encode_create,
};
use highwater_wire::cluster::{DescribedCluster, DescribedTopic, decode_cluster, decode_topic};
use highwater_wire::fetch::TopicRef;
use highwater_wire::limits::{DESCRIPTION_LIMIT, read_records_response};
use highwater_wire::offsets::{
    FoundOffset, OffsetQuery, OffsetsRequest, PartitionQuery, decode_list_response, encode_list_request,
};
use highwater_wire::read_records::{
    ReadRecordsRequest, ReadRecordsResponse, decode_response, encode_request,
};
use highwater_wire::{DecodeError, encode_topic_ref};
use tokio::task::JoinSet;

use crate::client::{Client, Repeat};
use crate::describe::{Fetchers, ReplicationView, fetchers, replica_rows};
use crate::leaderless::{failing_rows, hear_agents, leaderless_rows};
use crate::route::{TryError, bad_answer, no_answer};
use crate::{ClientError, consumer};

impl Client {
    /// The whole recorded state, from any node. Its nodes become known to this client.
    ///
    /// # Errors
    /// [`ClientError`] of the last node that was tried.
    pub async fn describe_cluster(&self) -> Result<DescribedCluster, ClientError> {
        let request = v1::DescribeClusterRequest::default();
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .describe_cluster(request)
                .await
        };
        let (endpoint, answer) =
            self.call_any("describing the cluster", request, Repeat::Soon, self.give_up(), rpc).await?;
        let cluster = decode_cluster(&answer).map_err(|error| ClientError::Answer { endpoint, error })?;
        self.learn_endpoints(cluster.nodes.iter().filter_map(|node| node.leader_svc.clone()));
        Ok(cluster)
    }

    /// Every topic that is not deleted, by name.
    ///
    /// # Errors
    /// As [`Client::describe_cluster`].
    pub async fn list_topics(&self) -> Result<Vec<DescribedTopic>, ClientError> {
        let cluster = self.describe_cluster().await?;
        let mut topics: Vec<_> = cluster.topics.into_iter().filter(|topic| !topic.record.deleted).collect();
        topics.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        Ok(topics)
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// `TopicAlreadyExists`, `InvalidConfig` and the like in [`ClientError::Call`]; [`ClientError::OutcomeUnknown`] when
    /// it may exist now.
    pub async fn create_topic(&self, topic: &CreateTopic) -> Result<DescribedTopic, ClientError> {
        let rpc =
            |channel, request| async move { ClusterServiceClient::new(channel).create_topic(request).await };
        let (endpoint, answer) = self
            .call_any("creating the topic", encode_create(topic), Repeat::IfUndone, self.give_up(), rpc)
            .await?;
        self.described(endpoint, answer.topic)
    }

    /// Creates a topic over directories on the side of the node that answers; tells also what was left out of them.
    ///
    /// # Errors
    /// As [`Client::create_topic`]; `DataLoss` when a directory is damaged.
    pub async fn adopt_topic(
        &self,
        topic: &AdoptTopic,
    ) -> Result<(DescribedTopic, Vec<AdoptedPartition>), ClientError> {
        let rpc =
            |channel, request| async move { ClusterServiceClient::new(channel).adopt_topic(request).await };
        let (endpoint, answer) = self
            .call_any("adopting the topic", encode_adopt(topic), Repeat::IfUndone, self.give_up(), rpc)
            .await?;
        let partitions = decode_adopted(&answer)
            .map_err(|error| ClientError::Answer { endpoint: endpoint.clone(), error })?;
        Ok((self.described(endpoint, answer.topic)?, partitions))
    }

    fn described(&self, endpoint: Endpoint, topic: Option<v1::Topic>) -> Result<DescribedTopic, ClientError> {
        let decoded =
            topic.ok_or_else(|| DecodeError::invalid("topic", "is missing")).and_then(|t| decode_topic(&t));
        decoded.map_err(|error| ClientError::Answer { endpoint, error })
    }

    /// Deletes a topic. Deleting it by id again changes nothing.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition` in [`ClientError::Call`]; [`ClientError::OutcomeUnknown`].
    pub async fn delete_topic(&self, topic: &TopicRef) -> Result<TopicId, ClientError> {
        let (name, topic_id) = encode_topic_ref(topic);
        let selector = v1::TopicSelector { topic: name, topic_id };
        let request = v1::DeleteTopicRequest { topic: Some(selector) };
        let rpc =
            |channel, request| async move { ClusterServiceClient::new(channel).delete_topic(request).await };
        let repeat = if topic.id().is_some() { Repeat::Always } else { Repeat::IfUndone };
        let (endpoint, answer) =
            self.call_any("deleting the topic", request, repeat, self.give_up(), rpc).await?;
        if let Some(name) = topic.name() {
            self.metadata().forget(name);
        }
        answer.topic_id.parse().map_err(|problem: String| ClientError::Answer {
            endpoint,
            error: DecodeError::invalid("topic_id", problem),
        })
    }

    /// An offset of a partition, as its leader tells a consumer.
    ///
    /// # Errors
    /// [`ClientError`] of the last try.
    pub async fn offset(
        &self,
        partition: &TopicPartition,
        query: OffsetQuery,
    ) -> Result<FoundOffset, ClientError> {
        self.at_leader(partition, self.give_up(), |leader| async move {
            let asked = PartitionQuery {
                topic: TopicRef::Name(partition.topic.clone()),
                partition: partition.partition,
                current_leader_epoch: Some(leader.epoch),
                query,
            };
            let request = encode_list_request(OffsetsRequest { replica: None, partitions: vec![asked] });
            let rpc =
                |channel, request| async move { LogServiceClient::new(channel).list_offsets(request).await };
            let timeout = self.config().request_timeout;
            let answer = self.call(&leader.endpoint, request, timeout, rpc).await?;
            let answers = decode_list_response(answer).map_err(|e| bad_answer(&leader, e))?;
            let answer = answers.into_iter().next().ok_or_else(|| no_answer(&leader))?;
            answer.outcome.map_err(TryError::Partition)
        })
        .await
    }

    /// The end of a partition for consumers: its high watermark.
    ///
    /// # Errors
    /// As [`Client::offset`].
    pub async fn end_offset(&self, partition: &TopicPartition) -> Result<Offset, ClientError> {
        let found = self.offset(partition, OffsetQuery::Latest).await?;
        found.offset.ok_or_else(|| ClientError::Usage(format!("{partition}: the leader knows no end")))
    }

    /// Decoded records of a partition, from its leader.
    ///
    /// # Errors
    /// `OffsetOutOfRange` and the like in [`ClientError::Call`].
    pub async fn read_records(
        &self,
        partition: &TopicPartition,
        from: Option<Offset>,
        max_records: u32,
        max_bytes: u32,
    ) -> Result<ReadRecordsResponse, ClientError> {
        let topic = self.topic(&partition.topic).await?;
        let limit = read_records_response(max_bytes, consumer::largest_batch(&topic.record.properties));
        let request = encode_request(&ReadRecordsRequest {
            topic: TopicRef::Name(partition.topic.clone()),
            partition: partition.partition,
            from,
            max_records,
            max_bytes,
        });
        let request = &request;
        self.at_leader(partition, self.give_up(), |leader| async move {
            let rpc = |channel, request| async move {
                ReplicationServiceClient::new(channel)
                    .max_decoding_message_size(limit)
                    .read_records(request)
                    .await
            };
            let timeout = self.config().request_timeout;
            let answer = self.call(&leader.endpoint, request.clone(), timeout, rpc).await?;
            decode_response(answer).map_err(|e| bad_answer(&leader, e))
        })
        .await
    }

    /// How far every follower of `topics` (empty: of all) is, from every node that leads; where none does, what the followers'
    /// agents know. An agent that does not answer adds nothing. Where no node knows the cluster, those of the bootstrap nodes that
    /// are agents tell of their failures.
    ///
    /// # Errors
    /// As [`Client::describe_cluster`] and, where one of `topics` is not there, [`Client::describe_topic`].
    pub async fn describe_replication(&self, topics: &[TopicName]) -> Result<ReplicationView, ClientError> {
        let selector =
            |name: &TopicName| v1::TopicSelector { topic: name.to_string(), topic_id: String::new() };
        let request = v1::DescribeReplicationRequest { topics: topics.iter().map(selector).collect() };
        let cluster = match self.describe_cluster().await {
            Ok(cluster) => cluster,
            Err(error) => return self.told_by_bootstrap_agents(topics, error).await,
        };
        let is_known =
            |name: &TopicName| cluster.topics.iter().any(|t| t.record.name == *name && !t.record.deleted);
        for unknown in topics.iter().filter(|name| !is_known(name)) {
            // Another node may know it by now. A leader would refuse the whole question for the sake of one name.
            self.describe_topic(unknown).await?;
        }
        let (mut rows, mut led, mut unreachable) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        for (node, endpoint) in programs(&cluster, Program::LeaderSvc) {
            match self.ask_replication(&endpoint, request.clone()).await {
                Ok(answer) => {
                    led.extend(
                        answer.partitions.iter().map(|p| (p.topic_id.clone(), p.partition.unwrap_or(-1))),
                    );
                    rows.extend(replica_rows(answer));
                }
                Err(error) => drop(unreachable.insert(node, error)),
            }
        }
        rows.sort_by(|a, b| (&a.topic, a.partition, a.replica).cmp(&(&b.topic, b.partition, b.replica)));
        let mut leaderless = leaderless_rows(&cluster, topics, &led, &unreachable);
        let silent: BTreeSet<_> = leaderless.iter().map(|row| row.replica).collect();
        let mut agents = programs(&cluster, Program::FollowerAgent);
        agents.retain(|(node, _)| silent.contains(&node.get()));
        let told = self.ask_agents(agents.into_iter().map(|(_, agent)| agent)).await;
        let agents =
            told.into_iter().filter_map(|answer| Some((NodeId::new(answer.node_id?)?, fetchers(answer))));
        let agents = agents.collect();
        hear_agents(&mut leaderless, &agents);
        Ok(ReplicationView { rows, leaderless, unreachable, cluster_unknown: None })
    }

    /// Where nobody can say which nodes there are: what those of the bootstrap nodes that are agents say of their failures.
    async fn told_by_bootstrap_agents(
        &self,
        topics: &[TopicName],
        error: ClientError,
    ) -> Result<ReplicationView, ClientError> {
        let told = self.ask_agents(self.config().bootstrap.iter().cloned()).await;
        let leaderless: Vec<_> = told.into_iter().flat_map(|answer| failing_rows(answer, topics)).collect();
        if leaderless.is_empty() {
            return Err(error);
        }
        Ok(ReplicationView { leaderless, cluster_unknown: Some(error), ..ReplicationView::default() })
    }

    /// What these agents follow, as they say it, asked at the same time; who does not answer says nothing.
    async fn ask_agents(&self, agents: impl Iterator<Item = Endpoint>) -> Vec<v1::DescribeFetchersResponse> {
        let mut asked = JoinSet::new();
        for agent in agents {
            let client = self.clone();
            asked.spawn(async move { client.ask_fetchers(&agent).await });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    /// What one leader-svc leads, as it says it.
    pub(crate) async fn ask_replication(
        &self,
        leader: &Endpoint,
        request: v1::DescribeReplicationRequest,
    ) -> Result<v1::DescribeReplicationResponse, ClientError> {
        let rpc = |channel, request| async move {
            ReplicationServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .describe_replication(request)
                .await
        };
        self.call(leader, request, self.view_timeout(), rpc).await
    }

    /// The fetch loops of every agent, by node. Agents that cannot be asked are returned with why.
    ///
    /// # Errors
    /// As [`Client::describe_cluster`].
    pub async fn describe_fetchers(
        &self,
    ) -> Result<(BTreeMap<NodeId, Fetchers>, BTreeMap<NodeId, ClientError>), ClientError> {
        let (mut found, mut unreachable) = (BTreeMap::new(), BTreeMap::new());
        for (node, endpoint) in programs(&self.describe_cluster().await?, Program::FollowerAgent) {
            match self.describe_fetchers_of(&endpoint).await {
                Ok(fetchers) => drop(found.insert(node, fetchers)),
                Err(error) => drop(unreachable.insert(node, error)),
            }
        }
        Ok((found, unreachable))
    }

    /// The fetch loops of one agent.
    ///
    /// # Errors
    /// [`ClientError::Call`]; it is not retried.
    pub async fn describe_fetchers_of(&self, agent: &Endpoint) -> Result<Fetchers, ClientError> {
        Ok(fetchers(self.ask_fetchers(agent).await?))
    }

    /// What one agent follows, as it says it.
    pub(crate) async fn ask_fetchers(
        &self,
        agent: &Endpoint,
    ) -> Result<v1::DescribeFetchersResponse, ClientError> {
        let rpc = |channel, request| async move {
            ReplicationServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .describe_fetchers(request)
                .await
        };
        self.call(agent, v1::DescribeFetchersRequest {}, self.view_timeout(), rpc).await
    }

    /// A view of many nodes does not wait long for a dead one.
    pub(crate) fn view_timeout(&self) -> std::time::Duration {
        self.config().request_timeout.min(VIEW_TIMEOUT)
    }
}

fn programs(cluster: &DescribedCluster, program: Program) -> Vec<(NodeId, Endpoint)> {
    let of_node = |node: &NodeRecord| Some((node.node, node.endpoint(program)?.clone()));
    cluster.nodes.iter().filter_map(of_node).collect()
}

/// The deadline of a call that shows one node among many.
const VIEW_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
