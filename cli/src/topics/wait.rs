//! `topics create --wait`: until the nodes are there, and until the topic takes records.

use std::time::Duration;

use highwater_client::{Client, ClientError, CreateTopic, DescribedTopic, Placement};
use highwater_types::NodeId;
use tokio::time::{Instant, timeout_at};

use crate::outcome::CommandError;

/// How often the cluster is asked.
const POLL: Duration = Duration::from_millis(200);

/// Waits until every node that is to get a replica has registered, or as many nodes as there are to be replicas.
pub(super) async fn for_nodes(
    client: &Client,
    topic: &CreateTopic,
    until: Instant,
) -> Result<(), CommandError> {
    let what = format!("cannot create topic {}", topic.name);
    nothing_is_missing(&what, until, async || {
        let cluster = client.describe_cluster().await?;
        let known: Vec<NodeId> = cluster.nodes.iter().map(|node| node.node).collect();
        Ok(lacking(&topic.placement, &known))
    })
    .await
}

/// Waits until every partition is led and as many replicas are in sync as `acks=all` asks for.
pub(super) async fn until_writable(
    client: &Client,
    topic: &DescribedTopic,
    until: Instant,
) -> Result<(), CommandError> {
    let name = &topic.record.name;
    nothing_is_missing(&format!("topic {name} is created"), until, async || {
        Ok(unready(&*client.describe_topic(name).await?))
    })
    .await
}

/// Asks until the answer names nothing that is missing. After `until` the error is what was missing last, or why nobody
/// could be asked, behind `what`.
async fn nothing_is_missing(
    what: &str,
    until: Instant,
    ask: impl AsyncFn() -> Result<Option<String>, ClientError>,
) -> Result<(), CommandError> {
    let mut missing = "nobody answered".to_owned();
    loop {
        // A question is asked again by itself while nobody can be reached; not beyond the time that the user gave.
        match timeout_at(until, ask()).await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(lacks))) => missing = lacks,
            Ok(Err(error)) => missing = error.to_string(),
            Err(_) => return Err(CommandError::Failed(format!("{what}: {missing}"))),
        }
        tokio::time::sleep(POLL.min(until.saturating_duration_since(Instant::now()))).await;
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
