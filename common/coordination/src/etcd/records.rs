//! The changes of records, each a transaction on condition that nobody changed them meanwhile.

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use highwater_types::{
    ClusterId, NodeRecord, PartitionEpoch, PartitionIndex, PartitionRecord, TopicId, TopicRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Answer, Effect};
use super::keys::{record, value};
use super::{Step, Store, entries, first_entry};
use crate::{CasOutcome, CoordinationError, ViewChanges, check_change, check_creation};

/// How many operations go into one transaction: etcd's own limit is 128 unless it is told otherwise.
const OPERATIONS_MAX: usize = 100;

/// How often a deletion begins anew because the topic's record changed meanwhile. Nothing changes one over and over.
const DELETIONS_MAX: u32 = 8;

/// A record as it stood when it was read.
struct Found<T> {
    record: T,
    /// The revision of its last change.
    changed_at: i64,
}

fn absent(key: &str) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

fn present(key: &str) -> Compare {
    Compare::version(key, CompareOp::Greater, 0)
}

fn unchanged(key: &str, since: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, since)
}

impl Store {
    /// A node founds the cluster by compare-and-swap.
    pub(super) async fn ensure_cluster_id(
        &self,
        proposed: ClusterId,
    ) -> Result<ClusterId, CoordinationError> {
        if let Some(id) = self.view.current().cluster_id() {
            return Ok(id.clone());
        }
        let key = self.keys.cluster_id();
        let step = Step {
            when: vec![absent(&key)],
            then: vec![TxnOp::put(key.clone(), proposed.as_str(), None)],
            otherwise: vec![TxnOp::get(key, None)],
        };
        let answer = self.make(step, Effect::Writes).await?;
        let (held, revision) = (answer.held, answer.revision);
        let mut changes = ViewChanges::default();
        if held {
            changes.cluster_id = Some(proposed.clone());
        } else if let Some(entry) = first_entry(answer) {
            self.keys.collect(&entry, &mut changes)?;
        }
        let stands = changes.cluster_id.clone();
        self.show(changes, revision);
        stands.ok_or_else(|| CoordinationError::Unavailable("the cluster's id came and went".to_owned()))
    }

    pub(super) async fn create_topic(
        &self,
        topic: TopicRecord,
        partitions: &[PartitionRecord],
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        check_creation(&topic, partitions).map_err(CoordinationError::Invalid)?;
        // The usual conflicts are found before anything is written.
        if let Some(other) = self.topic_in_the_way(&topic).await? {
            return Ok(CasOutcome::Conflict(other));
        }
        for piece in partitions.chunks(OPERATIONS_MAX) {
            if let Some(other) = self.write_partitions(topic.id, piece).await? {
                return Ok(CasOutcome::Conflict(other));
            }
        }
        let Some(last) = partitions.last() else {
            return Err(CoordinationError::Invalid("a topic has a partition".to_owned()));
        };
        let (key, name) = (self.keys.topic(topic.id), self.keys.name(&topic.name));
        let step = Step {
            when: vec![absent(&key), absent(&name), present(&self.keys.partition(last.id()))],
            then: vec![TxnOp::put(key, value(&topic)?, None), TxnOp::put(name, topic.id.to_string(), None)],
            otherwise: Vec::new(),
        };
        let answer = self.make(step, Effect::Writes).await?;
        if answer.held {
            let changes = ViewChanges {
                topics: vec![topic.clone()],
                partitions: partitions.to_vec(),
                ..ViewChanges::default()
            };
            self.show(changes, answer.revision);
            return Ok(CasOutcome::Committed(topic));
        }
        let other = self.topic_in_the_way(&topic).await?;
        self.remove_partitions(&topic, &[absent(&self.keys.topic(topic.id))]).await;
        other.map(CasOutcome::Conflict).ok_or_else(|| {
            CoordinationError::Unavailable(format!("topic {}: another creation came and went", topic.name))
        })
    }

    /// The topic that has the id, or else the live one that has the name.
    async fn topic_in_the_way(&self, topic: &TopicRecord) -> Result<Option<TopicRecord>, CoordinationError> {
        let get = |key: String| TxnOp::get(key, None);
        let keys = vec![get(self.keys.topic(topic.id)), get(self.keys.name(&topic.name))];
        let answer = self.read(keys).await?;
        let mut found = answer.operations.into_iter().map(|operation| entries(operation).into_iter().next());
        let (same_id, same_name) = (found.next().flatten(), found.next().flatten());
        if let Some(entry) = same_id {
            return record(&entry).map(Some);
        }
        let Some(owner) = same_name else { return Ok(None) };
        let owner: TopicId = String::from_utf8_lossy(owner.value())
            .parse()
            .map_err(|error| CoordinationError::Unreadable(format!("the name {}: {error}", topic.name)))?;
        let owner: Option<Found<TopicRecord>> = self.find(self.keys.topic(owner)).await?;
        Ok(owner.map(|found| found.record).filter(|record| !record.deleted))
    }

    /// Writes partition records of a topic that does not exist yet; returns the topic if it does.
    async fn write_partitions(
        &self,
        topic: TopicId,
        records: &[PartitionRecord],
    ) -> Result<Option<TopicRecord>, CoordinationError> {
        let put =
            |record: &PartitionRecord| Ok(TxnOp::put(self.keys.partition(record.id()), value(record)?, None));
        let key = self.keys.topic(topic);
        let step = Step {
            when: vec![absent(&key)],
            then: records.iter().map(put).collect::<Result<_, CoordinationError>>()?,
            otherwise: vec![TxnOp::get(key, None)],
        };
        let answer = self.make(step, Effect::Writes).await?;
        if answer.held {
            return Ok(None);
        }
        first_entry(answer).map(|entry| record(&entry)).transpose()
    }

    /// Best effort, in pieces: one transaction for thousands of keys would hold up everybody for a second. Records of
    /// partitions without a live topic are shown to nobody.
    async fn remove_partitions(&self, topic: &TopicRecord, when: &[Compare]) {
        let indexes: Vec<_> = (0..topic.partitions).filter_map(PartitionIndex::new).collect();
        for piece in indexes.chunks(OPERATIONS_MAX) {
            let delete =
                |index: &PartitionIndex| TxnOp::delete(self.keys.partition_of(topic.id, *index), None);
            let step =
                Step { when: when.to_vec(), then: piece.iter().map(delete).collect(), otherwise: Vec::new() };
            if let Err(error) = self.make(step, Effect::Writes).await {
                tracing::debug!(topic = %topic.id, %error, "records of partitions without a topic stay behind");
                return;
            }
        }
    }

    pub(super) async fn delete_topic(&self, id: TopicId) -> Result<TopicRecord, CoordinationError> {
        let key = self.keys.topic(id);
        for _ in 0..DELETIONS_MAX {
            let Some(Found { record: mut topic, changed_at }) = self.find::<TopicRecord>(key.clone()).await?
            else {
                return Err(CoordinationError::NotFound(format!("topic {id}")));
            };
            let mut revision = changed_at;
            if !topic.deleted {
                topic.deleted = true;
                let step = Step {
                    when: vec![unchanged(&key, changed_at)],
                    then: vec![
                        TxnOp::put(key.clone(), value(&topic)?, None),
                        TxnOp::delete(self.keys.name(&topic.name), None),
                    ],
                    otherwise: Vec::new(),
                };
                let answer = self.make(step, Effect::Writes).await?;
                if !answer.held {
                    continue;
                }
                revision = answer.revision;
                self.remove_partitions(&topic, &[]).await;
            }
            self.show(ViewChanges { topics: vec![topic.clone()], ..ViewChanges::default() }, revision);
            return Ok(topic);
        }
        Err(CoordinationError::Unavailable(format!("topic {id} changed {DELETIONS_MAX} times in a row")))
    }

    pub(super) async fn swap_partition(
        &self,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        let key = self.keys.partition(new.id());
        let gone = || CoordinationError::NotFound(format!("partition {}", new.id()));
        let found = self.find_partition(&new, key.clone()).await?.ok_or_else(gone)?;
        if found.record.partition_epoch != expected {
            return Ok(self.conflict(found.record));
        }
        check_change(&found.record, &new).map_err(CoordinationError::Invalid)?;
        let written = PartitionRecord { partition_epoch: expected.next(), ..new.clone() };
        assert!(
            written.partition_epoch > found.record.partition_epoch,
            "a change raises the partition epoch"
        );
        let answer = self.replace(&key, unchanged(&key, found.changed_at), &written).await?;
        if answer.held {
            let changes = ViewChanges { partitions: vec![written.clone()], ..ViewChanges::default() };
            self.show(changes, answer.revision);
            return Ok(CasOutcome::Committed(written));
        }
        let stands: PartitionRecord =
            first_entry(answer).map(|e| record(&e)).transpose()?.ok_or_else(gone)?;
        Ok(self.conflict(stands))
    }

    /// A partition of a topic that exists and is not deleted.
    async fn find_partition(
        &self,
        of: &PartitionRecord,
        key: String,
    ) -> Result<Option<Found<PartitionRecord>>, CoordinationError> {
        let keys = vec![TxnOp::get(self.keys.topic(of.topic_id), None), TxnOp::get(key, None)];
        let answer = self.read(keys).await?;
        let mut found = answer.operations.into_iter().map(|operation| entries(operation).into_iter().next());
        let (Some(topic), Some(partition)) = (found.next().flatten(), found.next().flatten()) else {
            return Ok(None);
        };
        if record::<TopicRecord>(&topic)?.deleted {
            return Ok(None);
        }
        record(&partition).map(|record| Some(Found { record, changed_at: partition.mod_revision() }))
    }

    /// Whoever lost knows what won, so its view shows it too.
    fn conflict(&self, stands: PartitionRecord) -> CasOutcome<PartitionRecord> {
        self.show(ViewChanges { partitions: vec![stands.clone()], ..ViewChanges::default() }, 0);
        CasOutcome::Conflict(stands)
    }

    pub(super) async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        let key = self.keys.node(new.node);
        let none = NodeRecord::new(new.node);
        let found: Option<Found<NodeRecord>> = self.find(key.clone()).await?;
        let (current, condition) = match found {
            None => (none.clone(), absent(&key)),
            Some(found) => (found.record, unchanged(&key, found.changed_at)),
        };
        if current.version != expected {
            return Ok(CasOutcome::Conflict(current));
        }
        let written = NodeRecord { version: expected.saturating_add(1), ..new };
        assert!(written.version > current.version, "a change raises the version");
        let answer = self.replace(&key, condition, &written).await?;
        if answer.held {
            let changes = ViewChanges { nodes: vec![written.clone()], ..ViewChanges::default() };
            self.show(changes, answer.revision);
            return Ok(CasOutcome::Committed(written));
        }
        let stands = first_entry(answer).map(|entry| record(&entry)).transpose()?;
        Ok(CasOutcome::Conflict(stands.unwrap_or(none)))
    }

    async fn replace<T: Serialize + Sync>(
        &self,
        key: &str,
        condition: Compare,
        by: &T,
    ) -> Result<Answer, CoordinationError> {
        let step = Step {
            when: vec![condition],
            then: vec![TxnOp::put(key, value(by)?, None)],
            otherwise: vec![TxnOp::get(key, None)],
        };
        self.make(step, Effect::Writes).await
    }

    async fn find<T: DeserializeOwned>(&self, key: String) -> Result<Option<Found<T>>, CoordinationError> {
        let found =
            |entry: KeyValue| record(&entry).map(|record| Found { record, changed_at: entry.mod_revision() });
        self.read_one(key).await?.map(found).transpose()
    }
}
