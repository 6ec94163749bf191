//! ListOffsets and OffsetsForLeaderEpoch: where a log starts and ends, where a time or an epoch lies in it.
//!
//! What must hold: the epoch is checked before the leadership (S18); an end that a consumer is told is the high watermark,
//! one that a follower is told the log end (S35); a leader whose
//! high watermark has not reached the beginning of its leadership tells no consumer an end (KIP-207); only the leader says where epochs end, because only its log is the one
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

/// Where what is committed ends. A leader that has just begun may know of less than its predecessors had told (KIP-207).
fn known_end(facts: &ReplicaFacts) -> Result<Offset, ReplicationError> {
    let start = facts.epochs.latest().filter(|latest| facts.is_leader && latest.epoch == facts.leader_epoch);
    let (end, start) = (facts.high_watermark.min(facts.positions.log_end), start.map(|latest| latest.start));
    match start.filter(|start| end < *start) {
        None => Ok(end),
        Some(start) => Err(ReplicationError::new(
            ErrorCode::LeaderNotAvailable,
            format!(
                "the leader does not know yet how much of its log up to {start} is committed; it knows up to {end}"
            ),
        )),
    }
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
        OffsetQuery::Latest if !is_follower => known_end(&facts).map(at),
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

#[cfg(test)]
mod tests {
    use highwater_types::LeaderEpoch;

    use super::*;
    use crate::test_replica::{TestReplica, offset};

    fn facts(high_watermark: i64, began_at: i64) -> ReplicaFacts {
        let mut facts = TestReplica::new("t", 0).facts().unwrap();
        facts.positions.log_end = offset(30);
        facts.high_watermark = offset(high_watermark);
        facts.leader_epoch = LeaderEpoch::new(3).unwrap();
        let mut epochs = (*facts.epochs).clone();
        assert!(epochs.assign(facts.leader_epoch, offset(began_at)));
        facts.epochs = Arc::new(epochs);
        facts
    }

    #[test]
    fn the_end_is_not_told_before_the_leadership_knows_as_much_as_those_before_it() {
        let early = known_end(&facts(10, 20)).unwrap_err();
        assert_eq!(early.code, ErrorCode::LeaderNotAvailable);
        assert!(early.message.contains("up to 20") && early.message.contains("up to 10"), "{early}");
        assert_eq!(known_end(&facts(20, 20)), Ok(offset(20)));
        assert_eq!(known_end(&facts(25, 20)), Ok(offset(25)));
        let follower = ReplicaFacts { is_leader: false, ..facts(10, 20) };
        assert_eq!(known_end(&follower), Ok(offset(10)), "it tells what it has heard");
    }
}
