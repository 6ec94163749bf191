//! Moving the replicas of partitions: asked for, cancelled, watched.

use std::collections::BTreeMap;

use highwater_proto::v1;
use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::{Endpoint, NodeId, NodeRecord, TopicName};
use highwater_wire::limits::DESCRIPTION_LIMIT;
use highwater_wire::reassign::{
    Assignment, PartitionRef, Reassigned, Reassignment, decode_reassigned, decode_reassignments,
    encode_cancel, encode_reassign,
};

use crate::ClientError;
use crate::client::{Client, Repeat};

/// How many partitions go into one call: each is a write of its own, and all of a call are to be made before its deadline.
const PARTITIONS_PER_CALL: usize = 100;

/// The partitions that are being moved, and the nodes that could not be asked how far theirs are.
#[derive(Debug, Default)]
pub struct Reassignments {
    /// The partitions, by topic name and number.
    pub moving: Vec<Reassignment>,
    /// The leaders that could not be asked, with why.
    pub unreachable: BTreeMap<NodeId, ClientError>,
}

impl Client {
    /// Begins to move partitions; answers what became of each. What is recorded already stays as it is.
    ///
    /// # Errors
    /// [`ClientError`] of the last node that was tried; some partitions may be moving then.
    pub async fn reassign(&self, assignments: &[Assignment]) -> Result<Vec<Reassigned>, ClientError> {
        let mut answers = Vec::with_capacity(assignments.len());
        for some in assignments.chunks(PARTITIONS_PER_CALL) {
            let rpc = |channel, request| async move {
                ClusterServiceClient::new(channel).reassign_replicas(request).await
            };
            let request = encode_reassign(some);
            let (endpoint, answer) =
                self.call_any("reassigning replicas", request, Repeat::Always, self.give_up(), rpc).await?;
            answers.extend(reassigned(endpoint, answer.partitions)?);
        }
        Ok(answers)
    }

    /// Goes back to the replicas of before; answers what became of each partition.
    ///
    /// # Errors
    /// As [`Client::reassign`]; [`ClientError::OutcomeUnknown`] when some may have gone back.
    pub async fn cancel_reassignment(
        &self,
        partitions: &[PartitionRef],
    ) -> Result<Vec<Reassigned>, ClientError> {
        let mut answers = Vec::with_capacity(partitions.len());
        for some in partitions.chunks(PARTITIONS_PER_CALL) {
            let rpc = |channel, request| async move {
                ClusterServiceClient::new(channel).cancel_reassignment(request).await
            };
            let request = encode_cancel(some);
            let (endpoint, answer) = self
                .call_any("cancelling a reassignment", request, Repeat::IfUndone, self.give_up(), rpc)
                .await?;
            answers.extend(reassigned(endpoint, answer.partitions)?);
        }
        Ok(answers)
    }

    /// The partitions of `topics` (empty: of all) that are being moved; each with how far it is, as its leader tells.
    ///
    /// # Errors
    /// As [`Client::describe_cluster`]; `UnknownTopicOrPartition` for a topic that nobody knows.
    pub async fn reassignments(&self, topics: &[TopicName]) -> Result<Reassignments, ClientError> {
        let selector =
            |name: &TopicName| v1::TopicSelector { topic: name.to_string(), topic_id: String::new() };
        let request = v1::ListReassignmentsRequest { topics: topics.iter().map(selector).collect() };
        // The nodes' records tell where leaders are reached.
        let cluster = self.describe_cluster().await?;
        let rpc = |channel, request| async move {
            ClusterServiceClient::new(channel)
                .max_decoding_message_size(DESCRIPTION_LIMIT)
                .list_reassignments(request)
                .await
        };
        let (endpoint, answer) = self
            .call_any("listing reassignments", request.clone(), Repeat::Always, self.give_up(), rpc)
            .await?;
        let mut view = Reassignments { moving: listed(endpoint, &answer)?, ..Reassignments::default() };
        let told = answer.node_id;
        let leaders = view.moving.iter().filter_map(|moving| moving.leader);
        let mut leaders: Vec<NodeId> = leaders.filter(|leader| Some(leader.get()) != told).collect();
        leaders.sort_unstable();
        leaders.dedup();
        for leader in leaders {
            let Some(endpoint) = leader_svc_of(&cluster.nodes, leader) else { continue };
            match self.call(&endpoint, request.clone(), self.view_timeout(), rpc).await {
                Ok(answer) => view.take_from(leader, listed(endpoint, &answer)?),
                Err(error) => drop(view.unreachable.insert(leader, error)),
            }
        }
        Ok(view)
    }
}

impl Reassignments {
    /// Replaces what `leader` leads by what it told: its figures are the only ones.
    fn take_from(&mut self, leader: NodeId, told: Vec<Reassignment>) {
        for row in self.moving.iter_mut().filter(|row| row.leader == Some(leader)) {
            let same =
                |other: &&Reassignment| (other.topic_id, other.partition) == (row.topic_id, row.partition);
            if let Some(known) = told.iter().find(same) {
                row.clone_from(known);
            }
        }
    }
}

fn leader_svc_of(nodes: &[NodeRecord], node: NodeId) -> Option<Endpoint> {
    nodes.iter().find(|record| record.node == node)?.leader_svc.clone()
}

fn reassigned(
    endpoint: Endpoint,
    partitions: Vec<v1::ReassignedPartition>,
) -> Result<Vec<Reassigned>, ClientError> {
    decode_reassigned(partitions).map_err(|error| ClientError::Answer { endpoint, error })
}

fn listed(
    endpoint: Endpoint,
    answer: &v1::ListReassignmentsResponse,
) -> Result<Vec<Reassignment>, ClientError> {
    decode_reassignments(answer).map_err(|error| ClientError::Answer { endpoint, error })
}
