//! AdoptTopic: a topic over existing directories, which are copied into this node's data directory (design.md 2, 6.2).
//!
//! What must hold: the records are written only when every partition was copied whole and checked; each names this node
//! as the importer, so that only it takes the first leadership, above the history's epochs; an attempt that failed leaves
//! no copy behind. The source is only read. Once begun it runs to its end, whether or not the caller still waits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_coordination::ClusterView;
use highwater_log::checkpoint::read_kafka_checkpoints;
use highwater_log::{
    AdoptOptions, Adoptable, Adopted, OpenError, StorageError, adopt_partition, list_adoptable,
};
use highwater_proto::v1;
use highwater_serving::volume::{fresh_incarnation, on_disk};
use highwater_serving::{PartitionHost as _, Volume};
use highwater_types::{
    AdoptedHistory, ErrorCode, NodeId, PartitionIndex, ReplicationError, TopicId, TopicIdPartition,
    TopicName, TopicPartition, TopicRecord,
};
use highwater_wire::admin::{AdoptTopic, Placement};

use super::ClusterApi;
use super::create::{check_min_isr, name_is_free, partition_records};

fn describe(partition: PartitionIndex, copy: &Adopted) -> v1::AdoptedPartition {
    v1::AdoptedPartition {
        partition: Some(partition.get()),
        log_start_offset: Some(copy.log_start.get()),
        log_end_offset: Some(copy.log_end.get()),
        bytes: Some(copy.bytes),
        torn_bytes: Some(copy.torn_bytes),
    }
}

impl ClusterApi {
    /// The topic, and what was made of each directory.
    pub(super) async fn adopt(
        &self,
        adopt: AdoptTopic,
    ) -> Result<(Arc<TopicRecord>, Vec<v1::AdoptedPartition>), ReplicationError> {
        let AdoptTopic { name, directory, placement, properties } = adopt;
        let view = self.newest_view().await?;
        name_is_free(&view, &name)?;
        check_min_isr(&placement, &properties)?;
        let sources = self.sources(&name, PathBuf::from(&directory)).await?;
        let id = topic_id(&view, &sources)?;
        let partitions = i32::try_from(sources.len()).unwrap_or(i32::MAX);
        let replicas = self.place_with_importer(&view, &placement, partitions)?;
        let copies = self.copy(id, sources, directory, properties.index_interval_bytes).await?;
        let topic = TopicRecord { id, name, partitions, properties, deleted: false };
        let importer = self.host.node();
        let records = partition_records(id, replicas, |index| {
            copies.get(&index).map(|copy| AdoptedHistory {
                importer,
                highest_epoch: copy.highest_epoch,
                log_end: copy.log_end,
            })
        });
        let made = copies.iter().map(|(index, copy)| describe(*index, copy)).collect();
        let name = topic.name.clone();
        let written = self.write_topic(topic, records).await;
        if written.as_ref().is_err_and(|error| error.code == ErrorCode::TopicAlreadyExists) {
            self.discard(id, name, copies.into_keys().collect()).await;
        }
        Ok((written?, made))
    }

    /// The directories `NAME-0`, `NAME-1` … without a hole.
    async fn sources(&self, name: &TopicName, dir: PathBuf) -> Result<Vec<Adoptable>, ReplicationError> {
        let (storage, wanted, asked) = (self.volume.storage, name.clone(), dir.clone());
        let listed = on_disk(move || list_adoptable(&storage, &asked, &wanted)).await;
        let dir = dir.display();
        let sources = listed.map_err(|error| match error.is_not_found() {
            true => invalid(format!("directory: there is no {dir} on this node")),
            false => storage_failed(&error),
        })?;
        if sources.is_empty() {
            return Err(invalid(format!("directory: {dir} holds no directory {name}-0")));
        }
        for (expected, source) in (0_i32..).zip(&sources) {
            if source.partition.partition.get() != expected {
                return Err(invalid(format!("directory: {dir} holds no {name}-{expected}, but later ones")));
            }
        }
        Ok(sources)
    }

    /// As for any topic, but this node is among the replicas, the first where the choice is free.
    fn place_with_importer(
        &self,
        view: &ClusterView,
        placement: &Placement,
        partitions: i32,
    ) -> Result<Vec<Vec<NodeId>>, ReplicationError> {
        let node = self.host.node();
        let mut placed = self.place(view, placement, partitions)?;
        for replicas in &mut placed {
            match (replicas.iter().position(|replica| *replica == node), placement) {
                (Some(_), Placement::Nodes(_)) => {}
                (Some(at), Placement::Factor(_)) => replicas.swap(0, at),
                (None, Placement::Nodes(_)) => {
                    return Err(invalid(format!("replicas: node {node}, which adopts, must be among them")));
                }
                (None, Placement::Factor(_)) => {
                    if let Some(first) = replicas.first_mut() {
                        *first = node;
                    }
                }
            }
        }
        Ok(placed)
    }

    /// Copies every partition; after a failure none is left.
    async fn copy(
        &self,
        id: TopicId,
        sources: Vec<Adoptable>,
        directory: String,
        index_interval_bytes: u32,
    ) -> Result<BTreeMap<PartitionIndex, Adopted>, ReplicationError> {
        let volume = self.volume.clone();
        on_disk(move || {
            let kafka = read_kafka_checkpoints(&volume.storage, directory.as_ref())
                .map_err(|error| storage_failed(&error))?;
            let mut copies = BTreeMap::new();
            for source in &sources {
                let index = source.partition.partition;
                let options =
                    AdoptOptions { topic_id: id, incarnation: fresh_incarnation(), index_interval_bytes };
                let copied = lock(&volume, id, index).and_then(|_lock| {
                    adopt_partition(&volume.storage, source, &volume.data_dir, &kafka, &options)
                        .map_err(|error| refused(&error))
                });
                match copied {
                    Ok(copy) => copies.insert(index, copy),
                    Err(error) => {
                        discard(&volume, id, &source.partition.topic, copies.into_keys());
                        return Err(error);
                    }
                };
            }
            Ok(copies)
        })
        .await
    }

    async fn discard(&self, id: TopicId, name: TopicName, partitions: Vec<PartitionIndex>) {
        let volume = self.volume.clone();
        on_disk(move || discard(&volume, id, &name, partitions)).await;
    }
}

/// The id that the directories carry, unless it is in use here or was; else a fresh one.
fn topic_id(view: &ClusterView, sources: &[Adoptable]) -> Result<TopicId, ReplicationError> {
    let mut carried: Vec<TopicId> = sources.iter().filter_map(|source| source.topic_id).collect();
    carried.sort_unstable();
    carried.dedup();
    match carried[..] {
        [] => Ok(TopicId::random()),
        [id] => match view.topic(id) {
            None => Ok(id),
            // The id of a deleted topic is never used again.
            Some(record) if record.deleted => Ok(TopicId::random()),
            Some(record) => Err(ReplicationError::new(
                ErrorCode::TopicAlreadyExists,
                format!("the directories belong to topic id {id}, which is '{}' here", record.name),
            )),
        },
        _ => Err(invalid("directory: its partitions belong to different topic ids".to_owned())),
    }
}

fn lock(
    volume: &Volume,
    id: TopicId,
    index: PartitionIndex,
) -> Result<highwater_log::LockGuard, ReplicationError> {
    let lock = volume.locks.try_lock(TopicIdPartition::new(id, index));
    lock.map_err(|error| storage_failed(&error))?.ok_or_else(|| {
        ReplicationError::new(
            ErrorCode::ReplicaNotAvailable,
            format!("partition {index} is held by somebody"),
        )
    })
}

/// Removes copies that no record names. *Blocks.*
fn discard(
    volume: &Volume,
    id: TopicId,
    name: &TopicName,
    partitions: impl IntoIterator<Item = PartitionIndex>,
) {
    for index in partitions {
        let partition = TopicPartition::new(name.clone(), index);
        if let Err(error) = volume.remove(&partition, id) {
            tracing::warn!(%partition, %error, "could not remove a copy that was not adopted; it is a stray now");
        }
    }
}

fn refused(error: &OpenError) -> ReplicationError {
    let code = match error {
        OpenError::Storage(_) => ErrorCode::StorageError,
        OpenError::Damaged { .. } => ErrorCode::DataLoss,
        OpenError::OtherTopic { .. } => ErrorCode::InconsistentTopicId,
        OpenError::Refused(_) => ErrorCode::InvalidRequest,
    };
    ReplicationError::new(code, error.to_string())
}

fn storage_failed(error: &StorageError) -> ReplicationError {
    ReplicationError::new(ErrorCode::StorageError, error.to_string())
}

fn invalid(message: String) -> ReplicationError {
    ReplicationError::new(ErrorCode::InvalidRequest, message)
}
