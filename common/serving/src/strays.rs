//! Directories of partitions that the program does not host: removed for a tombstone of their topic id, else reported and
//! kept (design.md 2, Ownership).
//!
//! What must hold: a directory whose log somebody holds is left to its holder; nothing is removed for a topic that is
//! merely not known. A pass runs at the start, and whenever a topic was deleted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_coordination::ClusterView;
use highwater_log::StorageError;
use highwater_types::{TopicId, TopicIdPartition, TopicName};

use crate::Volume;
use crate::volume::on_disk;

/// What was looked at.
#[derive(Debug, Default)]
pub struct Strays {
    started: bool,
    tombstones: BTreeSet<TopicId>,
    running: Arc<AtomicBool>,
}

impl Strays {
    /// Looks through the data directory, if there is a reason to and no pass is under way. `busy` are the partitions that
    /// this program works on: while one of a deleted topic is among them the pass waits, since its log is still held.
    pub fn look(
        &mut self,
        volume: &Volume,
        view: &ClusterView,
        busy: impl IntoIterator<Item = TopicIdPartition>,
    ) {
        let deleted: BTreeSet<TopicId> =
            view.topics().filter(|topic| topic.deleted).map(|topic| topic.id).collect();
        let news = deleted.iter().any(|topic| !self.tombstones.contains(topic));
        if (self.started && !news)
            || busy.into_iter().any(|id| deleted.contains(&id.topic_id))
            || self.running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let report = !std::mem::replace(&mut self.started, true);
        let known: BTreeSet<TopicId> = view.topics().map(|topic| topic.id).collect();
        let names: BTreeSet<TopicName> = view.topics().map(|topic| topic.name.clone()).collect();
        self.tombstones.clone_from(&deleted);
        let (volume, running) = (volume.clone(), Arc::clone(&self.running));
        tokio::spawn(async move {
            let outcome = on_disk(move || pass(&volume, &deleted, &known, &names, report)).await;
            if let Err(error) = outcome {
                tracing::warn!(%error, "could not look through the data directory");
            }
            running.store(false, Ordering::Release);
        });
    }
}

/// *Blocks.*
fn pass(
    volume: &Volume,
    deleted: &BTreeSet<TopicId>,
    known: &BTreeSet<TopicId>,
    names: &BTreeSet<TopicName>,
    report: bool,
) -> Result<(), StorageError> {
    for found in volume.scan()?.partitions {
        let partition = &found.partition;
        match found.topic_id {
            Some(topic) if deleted.contains(&topic) => {
                let removed = volume.remove(partition, topic)?;
                tracing::info!(%partition, %topic, removed, "found a replica of a deleted topic");
            }
            Some(topic) if known.contains(&topic) => {}
            // It is being made just now, or its opening will say what is wrong with it.
            None if names.contains(&partition.topic) => {}
            topic if report => {
                let topic = topic.map(|id| id.to_string());
                tracing::warn!(%partition, topic, "a directory that no record knows; it is kept as it is");
            }
            _ => {}
        }
    }
    Ok(())
}
