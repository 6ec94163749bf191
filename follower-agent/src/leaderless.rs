//! How far the logs reach that nobody leads: a person who has to choose a replica (`elect --unclean`) loses least with the
//! one that ends last. Nothing is open, so it is read from the disk.
//!
//! What must hold: nothing is changed; who asks costs the disk a bounded number of segments.

use std::path::Path;

use highwater_coordination::ClusterView;
use highwater_log::checkpoint::LoadedPartitionMetadata;
use highwater_log::{OsStorage, ReadOnlyLog, Scanned, StorageResult};
use highwater_proto::v1;
use highwater_types::{NodeId, Offset, PartitionRecord, TopicPartition, TopicRecord};

/// Logs that are looked at for one answer; of further ones nothing is told.
const LOGS_MAX: usize = 32;

/// The node's replicas that nobody leads any more. *Blocks.*
pub(crate) fn rows(data_dir: &Path, view: &ClusterView, node: NodeId) -> Vec<v1::FollowedPartition> {
    let is_left = |record: &PartitionRecord| {
        record.leader.is_none() && record.leader_epoch.is_some() && record.has_replica(node)
    };
    let left = view.partitions().filter(|(_, record)| is_left(record));
    left.take(LOGS_MAX).filter_map(|(topic, record)| row(data_dir, topic, record)).collect()
}

fn row(data_dir: &Path, topic: &TopicRecord, record: &PartitionRecord) -> Option<v1::FollowedPartition> {
    let partition = TopicPartition::new(topic.name.clone(), record.partition);
    let found = look(&data_dir.join(partition.directory_name()), topic);
    let (end, high_watermark) = found
        .inspect_err(|error| tracing::warn!(%partition, %error, "could not look how far a log reaches"))
        .ok()
        .flatten()?;
    Some(v1::FollowedPartition {
        topic: topic.name.to_string(),
        topic_id: topic.id.to_string(),
        partition: Some(record.partition.get()),
        state: v1::FetchState::Delayed.into(),
        reason: "nobody leads the partition".to_owned(),
        leader_epoch: record.leader_epoch.map(|epoch| epoch.get()),
        cause: v1::LagCause::LeaderUnknown.into(),
        log_end_offset: Some(end.get()),
        high_watermark: high_watermark.map(Offset::get),
        ..v1::FollowedPartition::default()
    })
}

/// Where the good batches end, and the high watermark that was last written down; `None` where the topic has no log here.
fn look(directory: &Path, topic: &TopicRecord) -> StorageResult<Option<(Offset, Option<Offset>)>> {
    if !directory.exists() {
        return Ok(None);
    }
    let log = ReadOnlyLog::open(&OsStorage, directory)?;
    let (LoadedPartitionMetadata::Found(id), Some(last)) = (log.topic_id()?, log.files().segments.last())
    else {
        return Ok(None);
    };
    if id != topic.id {
        return Ok(None);
    }
    let (mut scan, mut end) = (log.scan(last.base)?, last.base);
    while let Some(piece) = scan.next_piece()? {
        if let Scanned::Batch { batch, .. } = piece {
            end = batch.next_offset();
        }
    }
    let checkpoint = log.checkpoint()?.into_state();
    Ok(Some((end, checkpoint.map(|state| state.high_watermark.offset))))
}
