//! `topics create --wait`: until the nodes are there, and until the topic takes records.

use std::time::Duration;

use highwater_client::{Client, CreateTopic, DescribedTopic, Placement};
use highwater_types::NodeId;
use tokio::time::Instant;

use crate::outcome::CommandError;

/// How often the cluster is asked.
const POLL: Duration = Duration::from_millis(200);

/// Waits until every node that is to get a replica has registered, or as many nodes as there are to be replicas.
pub(super) async fn for_nodes(
    client: &Client,
    topic: &CreateTopic,
    until: Instant,
) -> Result<(), CommandError> {
    loop {
        let described = client.describe_cluster().await;
        let lacks = match &described {
            Ok(cluster) => {
                let known: Vec<NodeId> = cluster.nodes.iter().map(|node| node.node).collect();
                lacking(&topic.placement, &known)
            }
            Err(_) => None,
        };
        if described.is_ok() && lacks.is_none() {
            return Ok(());
        }
        if Instant::now() >= until {
            described.map_err(|e| CommandError::cluster("describe the cluster", e))?;
            let lacks = lacks.unwrap_or_default();
            return Err(CommandError::Failed(format!("cannot create topic {}: {lacks}", topic.name)));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What a placement lacks among the nodes that are known.
fn lacking(placement: &Placement, known: &[NodeId]) -> Option<String> {
    match placement {
        Placement::Nodes(nodes) => {
            let missing = nodes.iter().find(|node| !known.contains(node))?;
            Some(format!("node {missing} has not registered"))
        }
        Placement::Factor(factor) => {
            (known.len() < *factor).then(|| format!("{} of {factor} nodes have registered", known.len()))
        }
    }
}

/// Waits until every partition is led and as many replicas are in sync as `acks=all` asks for.
pub(super) async fn until_writable(
    client: &Client,
    topic: &DescribedTopic,
    until: Instant,
) -> Result<(), CommandError> {
    loop {
        let described = client.describe_topic(&topic.record.name).await;
        let waits = match &described {
            Ok(topic) => unready(topic),
            Err(_) => None,
        };
        if described.is_ok() && waits.is_none() {
            return Ok(());
        }
        if Instant::now() >= until {
            described
                .map_err(|e| CommandError::cluster(format!("describe topic {}", topic.record.name), e))?;
            let waits = waits.unwrap_or_default();
            return Err(CommandError::Failed(format!("topic {} is created, but {waits}", topic.record.name)));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The first partition that takes no `acks=all` yet, and why.
fn unready(topic: &DescribedTopic) -> Option<String> {
    let wanted = usize::try_from(topic.record.properties.min_insync_replicas).unwrap_or(usize::MAX);
    topic.partitions.iter().find_map(|partition| {
        let (record, number) = (&partition.record, partition.record.partition);
        if record.leader.is_none() {
            return Some(format!("nobody leads partition {number}"));
        }
        let (have, wanted) = (record.isr.len(), wanted.min(record.replicas.len()));
        (have < wanted).then(|| format!("{have} of {wanted} replicas of partition {number} are in sync"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId::new(*id).unwrap()).collect()
    }

    #[test]
    fn a_placement_lacks_the_first_node_that_is_not_known_or_a_number_of_them() {
        let named = Placement::Nodes(nodes(&[1, 2, 3]));
        assert_eq!(lacking(&named, &nodes(&[1, 3])).as_deref(), Some("node 2 has not registered"));
        assert_eq!(lacking(&named, &nodes(&[3, 2, 1, 4])), None);
        let factor = Placement::Factor(2);
        assert_eq!(lacking(&factor, &nodes(&[4])).as_deref(), Some("1 of 2 nodes have registered"));
        assert_eq!(lacking(&factor, &nodes(&[4, 5])), None);
    }
}
