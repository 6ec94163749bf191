//! ListOffsets and OffsetsForLeaderEpoch: where a log starts and ends, where a time or an epoch lies in it.
//!
//! What must hold: the epoch is checked before the leadership (S18); an end that a consumer is told is the high watermark,
//! one that a follower is told the log end (S35); only the leader says where epochs end, because only its log is the one
//! to be cut against (S41). Deliberately absent: the wire messages, which the caller decodes.

use std::sync::Arc;

use highwater_coordination::ClusterView;
use highwater_protocol::fetch::{TopicRef, check_epoch, epoch_end_offset};
use highwater_types::{ErrorCode, Offset, ReplicationError};
use highwater_wire::offsets::{
    EpochEnd, EpochQuery, FoundOffset, OffsetQuery, OffsetsRequest, PartitionAnswer, PartitionQuery,
};

use crate::fetch::read_failed;
use crate::registry::{resolve_topic, with_hint};
use crate::{HostedReplica, PartitionHost, ReplicaFacts};

/// Answers a ListOffsets. Looks up times on the blocking pool, all of one request in one go.
pub async fn list_offsets(
    host: Arc<dyn PartitionHost>,
    request: OffsetsRequest<OffsetQuery>,
) -> Vec<PartitionAnswer<FoundOffset>> {
    let by_time = request.partitions.iter().any(|p| matches!(p.query, OffsetQuery::AtOrAfter(_)));
    let is_follower = request.replica.is_some();
    if !by_time {
        return each(&*host, request, |replica, asked| find_offset(replica, is_follower, asked));
    }
    let answers = tokio::task::spawn_blocking(move || {
        each(&*host, request, |replica, asked| find_offset(replica, is_follower, asked))
    });
    // A panic of the look-up stays one: it is a fault of the program, and the connection's task reports it.
    answers.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Answers an OffsetsForLeaderEpoch.
pub fn offsets_for_leader_epoch(
    host: &dyn PartitionHost,
    request: OffsetsRequest<EpochQuery>,
) -> Vec<PartitionAnswer<EpochEnd>> {
    each(host, request, |replica, asked| {
        let facts = checked_facts(replica, true, asked)?;
        Ok(epoch_end_offset(asked.query, &facts.as_log()))
    })
}

fn each<Q, A>(
    host: &dyn PartitionHost,
    request: OffsetsRequest<Q>,
    answer: impl Fn(&dyn HostedReplica, &PartitionQuery<Q>) -> Result<A, ReplicationError>,
) -> Vec<PartitionAnswer<A>> {
    let view: Arc<ClusterView> = host.view();
    let one = |asked: PartitionQuery<Q>| {
        let found = host.locate(&view, &asked.topic, asked.partition);
        let outcome = found
            .replica
            .and_then(|replica| answer(&*replica, &asked))
            .map_err(|error| with_hint(&view, found.topic_id, asked.partition, error));
        PartitionAnswer { topic: known_by_both(&view, &asked.topic), partition: asked.partition, outcome }
    };
    request.partitions.into_iter().map(one).collect()
}

/// The topic as an answer names it: by name and id, if it is known.
#[must_use]
pub fn known_by_both(view: &ClusterView, asked: &TopicRef) -> TopicRef {
    resolve_topic(view, asked)
        .map_or_else(|_| asked.clone(), |topic| TopicRef::Both { name: topic.name.clone(), id: topic.id })
}

fn checked_facts<Q>(
    replica: &dyn HostedReplica,
    needs_leader: bool,
    asked: &PartitionQuery<Q>,
) -> Result<ReplicaFacts, ReplicationError> {
    let facts = replica.facts()?;
    check_epoch(asked.current_leader_epoch, facts.leader_epoch)?;
    if needs_leader && !facts.is_leader {
        return Err(ReplicationError::new(
            ErrorCode::NotLeaderOrFollower,
            "this node does not lead the partition",
        ));
    }
    Ok(facts)
}

fn find_offset(
    replica: &dyn HostedReplica,
    is_follower: bool,
    asked: &PartitionQuery<OffsetQuery>,
) -> Result<FoundOffset, ReplicationError> {
    let facts = checked_facts(replica, is_follower, asked)?;
    let log_end = facts.positions.log_end;
    let end = if is_follower { log_end } else { facts.high_watermark.min(log_end) };
    let at = |offset: Offset| FoundOffset {
        offset: Some(offset),
        timestamp: None,
        leader_epoch: facts.epochs.epoch_at(offset),
    };
    match asked.query {
        OffsetQuery::Earliest => Ok(at(facts.positions.log_start)),
        OffsetQuery::Latest => Ok(at(end)),
        OffsetQuery::AtOrAfter(time) => {
            let hit = replica.offset_for_timestamp(time, end).map_err(|e| read_failed(&e))?;
            Ok(hit.map_or_else(FoundOffset::default, |hit| FoundOffset {
                offset: Some(hit.offset),
                timestamp: Some(hit.timestamp),
                leader_epoch: hit.epoch,
            }))
        }
    }
}
