//! Where each record lies among etcd's keys, and how a key and its value become a record again.
//!
//! ```text
//! PREFIX/records/cluster-id                  watched, as all records
//! PREFIX/records/topics/TOPIC-ID             tombstones too; they stay
//! PREFIX/records/partitions/TOPIC-ID/INDEX
//! PREFIX/records/nodes/NODE
//! PREFIX/names/NAME                          the id of the live topic of that name: one key, so one topic
//! PREFIX/heartbeats/NODE/PROGRAM             not watched; the counter is the key's version, which each write raises
//! ```

use etcd_client::KeyValue;
use highwater_types::{
    NodeId, NodeRecord, PartitionIndex, PartitionRecord, Program, TopicId, TopicIdPartition, TopicName,
    TopicRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{CoordinationError, Liveness, ViewChanges};

/// The keys of one store.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Before every record.
    pub(super) fn records(&self) -> String {
        format!("{}/records/", self.prefix)
    }

    pub(super) fn cluster_id(&self) -> String {
        format!("{}cluster-id", self.records())
    }

    pub(super) fn topic(&self, id: TopicId) -> String {
        format!("{}topics/{id}", self.records())
    }

    /// Before every partition of a topic.
    pub(super) fn partitions_of(&self, topic: TopicId) -> String {
        format!("{}partitions/{topic}/", self.records())
    }

    pub(super) fn partition(&self, id: TopicIdPartition) -> String {
        self.partition_of(id.topic_id, id.partition)
    }

    pub(super) fn partition_of(&self, topic: TopicId, index: PartitionIndex) -> String {
        format!("{}{index}", self.partitions_of(topic))
    }

    pub(super) fn node(&self, id: NodeId) -> String {
        format!("{}nodes/{id}", self.records())
    }

    pub(super) fn name(&self, name: &TopicName) -> String {
        format!("{}/names/{name}", self.prefix)
    }

    /// Before every counter.
    pub(super) fn heartbeats(&self) -> String {
        format!("{}/heartbeats/", self.prefix)
    }

    pub(super) fn heartbeat(&self, node: NodeId, program: Program) -> String {
        format!("{}{node}/{program}", self.heartbeats())
    }

    /// Adds a record to what was read. Keys that this program does not know are left alone.
    ///
    /// # Errors
    /// [`CoordinationError::Unreadable`], which names the key.
    pub(super) fn collect(&self, entry: &KeyValue, into: &mut ViewChanges) -> Result<(), CoordinationError> {
        let records = self.records();
        let Some(name) = entry.key().strip_prefix(records.as_bytes()) else { return Ok(()) };
        let kind = name.split(|byte| *byte == b'/').next().unwrap_or_default();
        match kind {
            b"cluster-id" => {
                let id = String::from_utf8_lossy(entry.value()).parse();
                into.cluster_id = Some(id.map_err(|error: String| unreadable(entry, &error))?);
            }
            b"topics" => into.topics.push(record::<TopicRecord>(entry)?),
            b"partitions" => into.partitions.push(record::<PartitionRecord>(entry)?),
            b"nodes" => into.nodes.push(record::<NodeRecord>(entry)?),
            _ => {}
        }
        Ok(())
    }

    /// The counters among `entries`.
    pub(super) fn counters(&self, entries: &[KeyValue]) -> Liveness {
        let heartbeats = self.heartbeats();
        let counter = |entry: &KeyValue| {
            let (node, program) = entry.key_str().ok()?.strip_prefix(&heartbeats)?.split_once('/')?;
            let program = [Program::LeaderSvc, Program::FollowerAgent]
                .into_iter()
                .find(|known| known.to_string() == program)?;
            Some(((node.parse().ok()?, program), u64::try_from(entry.version()).ok()?))
        };
        entries.iter().filter_map(counter).collect()
    }
}

/// The record in a value.
///
/// # Errors
/// [`CoordinationError::Unreadable`], which names the key.
pub(super) fn record<T: DeserializeOwned>(entry: &KeyValue) -> Result<T, CoordinationError> {
    serde_json::from_slice(entry.value()).map_err(|error| unreadable(entry, &error))
}

/// A record as a value.
///
/// # Errors
/// [`CoordinationError::Invalid`]: no record of ours is without one.
pub(super) fn value<T: Serialize>(record: &T) -> Result<Vec<u8>, CoordinationError> {
    serde_json::to_vec(record).map_err(|error| CoordinationError::Invalid(error.to_string()))
}

fn unreadable(entry: &KeyValue, error: &dyn std::fmt::Display) -> CoordinationError {
    CoordinationError::Unreadable(format!("key {}: {error}", String::from_utf8_lossy(entry.key())))
}
