//! Opening a partition to follow it: lock, open and recover the log, begin to follow. On the blocking pool, bounded.

use std::sync::Arc;

use highwater_log::OnDamage;
use highwater_protocol::follower::FollowerConfig;
use highwater_replica::{Following, ReplicaError};
use highwater_serving::volume::on_disk;
use highwater_types::{LeaderEpoch, NodeId, PartitionRecord, TopicRecord};

use super::Shared;
use crate::partition::FollowedPartition;

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Opened {
    /// The partition is open and follows.
    Follows(Arc<FollowedPartition>),
    /// Another program holds it: the node's leader-svc, which has not let go yet.
    Held,
    /// It cannot be opened; for people.
    Failed(String),
}

/// Who leads by a record, when it is another node.
pub(super) fn other_leader(record: &PartitionRecord, node: NodeId) -> Option<(NodeId, LeaderEpoch)> {
    record.leader.filter(|leader| *leader != node).zip(record.leader_epoch)
}

/// Opens a partition that `record` gives to another leader.
pub(super) async fn open(
    shared: Arc<Shared>,
    topic: Arc<TopicRecord>,
    record: Arc<PartitionRecord>,
) -> Opened {
    let Some((leader, leader_epoch)) = other_leader(&record, shared.node) else {
        return Opened::Failed("the record names no leader to follow".to_owned());
    };
    // The semaphore is never closed; without a permit the opening would only be less bounded.
    let _turn = shared.opening.acquire().await.ok();
    let config = FollowerConfig {
        durability: topic.properties.durability,
        max_bytes: shared.fetch_max_bytes,
        read_ahead_bytes: shared.read_ahead_bytes,
        backoff: shared.backoff,
    };
    let following = Following {
        config,
        leader,
        leader_epoch,
        partition_epoch: record.partition_epoch,
        seed: rand::random(),
    };
    let (locks, context) = (shared.volume.locks.clone(), Arc::clone(&shared.context));
    let place = shared.volume.place(&topic, record.partition);
    let (now, unclean_epoch) = (context.now(), record.highest_unclean_epoch());
    let opened = on_disk(move || {
        let lock = locks.try_lock(place.id()).map_err(|error| ReplicaError::Open(error.into()))?;
        let Some(lock) = lock else { return Ok(None) };
        let open = place.open(lock, OnDamage::RenewIncarnation, now.wall)?;
        open.follow(following).map(|replica| {
            replica.on_unclean_election(unclean_epoch);
            Some(replica)
        })
    });
    match opened.await {
        Ok(Some(replica)) => Opened::Follows(FollowedPartition::new(topic, replica, context)),
        Ok(None) => Opened::Held,
        Err(error) => Opened::Failed(error.to_string()),
    }
}
