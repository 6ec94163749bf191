//! What is moved: TOPIC or TOPIC:PARTITION.

use std::fmt;
use std::str::FromStr;

use highwater_client::DescribedTopic;
use highwater_types::{NodeId, PartitionIndex, TopicName};

use crate::outcome::CommandError;

/// A topic, or one partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) topic: TopicName,
    /// Absent: every one.
    pub(crate) partition: Option<PartitionIndex>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (topic, partition) = match text.split_once(':') {
            None => (text, None),
            Some((topic, number)) => {
                let index = number.parse().ok().and_then(PartitionIndex::new);
                (topic, Some(index.ok_or_else(|| format!("'{number}' is no partition: TOPIC:0 is one"))?))
            }
        };
        Ok(Self { topic: topic.parse().map_err(|error| format!("{error}"))?, partition })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(f, "{}:{partition}", self.topic),
            None => write!(f, "{}", self.topic),
        }
    }
}

impl Target {
    /// The partitions of `topic` that are meant.
    pub(super) fn partitions(&self, topic: &DescribedTopic) -> Result<Vec<PartitionIndex>, CommandError> {
        let all = || topic.partitions.iter().map(|partition| partition.record.partition);
        match self.partition {
            None => Ok(all().collect()),
            Some(one) if all().any(|partition| partition == one) => Ok(vec![one]),
            Some(_) => {
                let count = topic.record.partitions;
                Err(CommandError::Usage(format!("there is no {self}: the topic has {count} partitions")))
            }
        }
    }

    /// The replicas of one partition: as given, or begun at the next one of them for each partition of a topic.
    pub(super) fn replicas_of(&self, partition: PartitionIndex, given: &[NodeId]) -> Vec<NodeId> {
        let mut replicas = given.to_vec();
        let turn = usize::try_from(partition.get()).unwrap_or(0);
        if self.partition.is_none() && !replicas.is_empty() {
            replicas.rotate_left(turn % given.len());
        }
        replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn a_target_is_a_topic_or_one_partition_of_it() {
        assert_eq!(target("orders").partition, None);
        assert_eq!(target("orders:3").partition, PartitionIndex::new(3));
        assert_eq!(target("orders:3").to_string(), "orders:3");
        for wrong in ["orders:", "orders:-1", "orders:x", ":0", "or ders"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_partitions_of_a_topic_begin_with_different_nodes() {
        let nodes = [1, 2, 3].map(|id| NodeId::new(id).unwrap());
        let first = |target: &str, index| {
            let replicas = self::target(target).replicas_of(PartitionIndex::new(index).unwrap(), &nodes);
            replicas.iter().map(|node| node.get()).collect::<Vec<_>>()
        };
        assert_eq!(first("orders", 0), [1, 2, 3]);
        assert_eq!(first("orders", 4), [2, 3, 1]);
        assert_eq!(first("orders:4", 4), [1, 2, 3], "of one partition they are as given");
    }
}
