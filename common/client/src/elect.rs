//! Elections that a person orders.

use highwater_proto::v1::cluster_service_client::ClusterServiceClient;
use highwater_types::{
    Endpoint, ErrorCode, NodeId, PartitionRecord, Program, ReplicationError, TopicPartition,
};
use highwater_wire::elect::{ElectLeader, Election, decode_elected, encode_elect};
use highwater_wire::fetch::TopicRef;
use tokio::time::Instant;

use crate::client::Client;
use crate::metadata::find;
use crate::route::TryError;
use crate::{Backoff, ClientError};

impl Client {
    /// Has the leader of a partition hand over to the preferred replica; answers who that is.
    ///
    /// # Errors
    /// `LeaderNotAvailable` in [`ClientError::GaveUp`], while that replica is not in sync, or not up.
    pub async fn elect_preferred(&self, partition: &TopicPartition) -> Result<NodeId, ClientError> {
        self.at_leader(partition, self.give_up(), |leader| async move {
            self.order(&leader.endpoint, partition, Election::Preferred).await.map_err(TryError::Call)
        })
        .await
    }

    /// Has a replica lead although it may lack acknowledged records: `node`, or the only one that lives; answers who.
    ///
    /// # Errors
    /// `InvalidRequest` in [`ClientError::Call`] while a leader-svc that leads it lives; [`ClientError::Usage`] when several
    /// replicas could lead and none is named, or when the one that is does not live.
    pub async fn elect_unclean(
        &self,
        partition: &TopicPartition,
        node: Option<NodeId>,
    ) -> Result<NodeId, ClientError> {
        let cluster = self.describe_cluster().await?;
        let topic = self.describe_topic(&partition.topic).await?;
        let described = find(&topic, partition.partition)
            .ok_or_else(|| ClientError::Usage(format!("{partition}: there is no such partition")))?;
        let lives = |node: &NodeId| cluster.live.contains(&(*node, Program::LeaderSvc));
        let able: Vec<NodeId> = described.record.replicas.iter().copied().filter(lives).collect();
        let chosen = choose(partition, &able, node)?;
        let record = cluster.nodes.iter().find(|record| record.node == chosen);
        let endpoint = record.and_then(|record| record.leader_svc.clone()).ok_or_else(|| {
            ClientError::Usage(format!("node {chosen}: nobody knows where its leader-svc listens"))
        })?;
        self.order(&endpoint, partition, Election::Unclean).await
    }

    /// Waits until `node` leads a partition, for as long as a request is tried; its record then.
    ///
    /// # Errors
    /// `LeaderNotAvailable` in [`ClientError::Answered`] when it does not lead in time.
    pub async fn until_led_by(
        &self,
        partition: &TopicPartition,
        node: NodeId,
    ) -> Result<PartitionRecord, ClientError> {
        let (give_up, mut backoff) = (self.give_up(), Backoff::default());
        loop {
            let topic = self.describe_topic(&partition.topic).await?;
            let found = find(&topic, partition.partition).filter(|found| found.record.leader == Some(node));
            if let Some(found) = found {
                return Ok(found.record.clone());
            }
            let wait = backoff.after_failure(None);
            if Instant::now() + wait >= give_up {
                return Err(unavailable(partition, format!("node {node} does not lead yet")));
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn order(
        &self,
        endpoint: &Endpoint,
        partition: &TopicPartition,
        election: Election,
    ) -> Result<NodeId, ClientError> {
        let order = ElectLeader {
            topic: TopicRef::Name(partition.topic.clone()),
            partition: partition.partition,
            election,
        };
        let rpc =
            |channel, request| async move { ClusterServiceClient::new(channel).elect_leader(request).await };
        let answer = self.call(endpoint, encode_elect(&order), self.config().request_timeout, rpc).await?;
        decode_elected(&answer).map_err(|error| ClientError::Answer { endpoint: endpoint.clone(), error })
    }
}

fn unavailable(partition: &TopicPartition, why: String) -> ClientError {
    let error = ReplicationError::new(ErrorCode::LeaderNotAvailable, why);
    ClientError::Answered { what: partition.to_string(), error }
}

fn choose(
    partition: &TopicPartition,
    able: &[NodeId],
    wanted: Option<NodeId>,
) -> Result<NodeId, ClientError> {
    let listed = || able.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (able, wanted) {
        (able, Some(wanted)) if able.contains(&wanted) => Ok(wanted),
        ([only], None) => Ok(*only),
        ([], _) => Err(unavailable(partition, "no replica's leader-svc lives".to_owned())),
        (_, Some(wanted)) => Err(ClientError::Usage(format!(
            "{partition}: node {wanted} cannot lead; replicas whose leader-svc lives: {}",
            listed()
        ))),
        (_, None) => Err(ClientError::Usage(format!(
            "{partition}: name the node that is to lead, of {}; the one whose log ends last loses least: `highwater lag` \
             shows where each ends",
            listed()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    #[test]
    fn who_is_to_lead_is_named_unless_only_one_can() {
        let partition: TopicPartition =
            TopicPartition::new("t".parse().unwrap(), highwater_types::PartitionIndex::new(0).unwrap());
        let choose = |able: &[i32], wanted: Option<i32>| {
            let able: Vec<_> = able.iter().map(|id| node(*id)).collect();
            choose(&partition, &able, wanted.map(node)).map_err(|error| error.to_string())
        };
        assert_eq!(choose(&[2], None), Ok(node(2)));
        assert_eq!(choose(&[2, 3], Some(3)), Ok(node(3)));
        assert!(choose(&[2, 3], None).unwrap_err().contains("of 2, 3"));
        assert!(choose(&[2, 3], Some(1)).unwrap_err().contains("node 1 cannot lead"));
        assert!(choose(&[], Some(1)).unwrap_err().contains("no replica's leader-svc lives"));
    }
}
