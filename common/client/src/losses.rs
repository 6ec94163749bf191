//! What unclean elections lost, told by the replicas that held it (design.md 6.13).
//!
//! What holds: a loss is in the table only where it is exact. That one is missing means that its replica is not back yet, or
//! cannot be asked, or came back on another disk; then only where the loss begins is known, by the partition's record.

use std::collections::{BTreeMap, BTreeSet};

use highwater_proto::v1;
use highwater_types::{
    IsrMember, NodeId, PartitionRecord, Program, TopicIdPartition, UncleanElection, UncleanLoss,
};
use highwater_wire::cluster::{DescribedCluster, DescribedPartition, DescribedTopic};
use highwater_wire::decode_partition_index;
use highwater_wire::loss::decode_loss;

use crate::client::Client;

/// What a replica lost by the newest unclean election of its partition, exactly.
pub type Losses = BTreeMap<(TopicIdPartition, NodeId), UncleanLoss>;

/// What programs told of the logs that they have open: the last loss of each, if any.
type Told = BTreeMap<(TopicIdPartition, NodeId), Option<UncleanLoss>>;

impl Client {
    /// What those lost whom the newest unclean elections of `topics` passed over, as far as they can be asked now.
    pub async fn describe_losses(&self, cluster: &DescribedCluster, topics: &[DescribedTopic]) -> Losses {
        let elections: Vec<_> =
            topics.iter().flat_map(|topic| &topic.partitions).filter_map(election).collect();
        let nodes: BTreeSet<_> = elections
            .iter()
            .flat_map(|(_, unclean)| &unclean.passed_over)
            .map(|member| member.node)
            .collect();
        let mut told = Told::new();
        for node in nodes {
            told.extend(self.told_by(cluster, node).await);
        }
        let exact = |(record, unclean): (&PartitionRecord, &UncleanElection)| {
            let lost = |member: &IsrMember| {
                let key = (record.id(), member.node);
                Some((key, exact_loss(record, unclean, *member, *told.get(&key)?)?))
            };
            unclean.passed_over.iter().filter_map(lost).collect::<Vec<_>>()
        };
        elections.into_iter().flat_map(exact).collect()
    }

    /// What the programs of a node tell; who does not answer tells nothing.
    async fn told_by(&self, cluster: &DescribedCluster, node: NodeId) -> Told {
        let record = cluster.nodes.iter().find(|record| record.node == node);
        let endpoint = |program| {
            record
                .and_then(|record| record.endpoint(program))
                .filter(|_| cluster.live.contains(&(node, program)))
        };
        let mut told = Told::new();
        if let Some(leader) = endpoint(Program::LeaderSvc) {
            let answer = self.ask_replication(leader, v1::DescribeReplicationRequest::default()).await;
            let partitions = answer.map(|answer| answer.partitions).unwrap_or_default();
            let tells = |led: v1::LedPartition| tells(node, &led.topic_id, led.partition, led.loss.as_ref());
            told.extend(partitions.into_iter().filter_map(tells));
        }
        if let Some(agent) = endpoint(Program::FollowerAgent) {
            let v1::DescribeFetchersResponse { fetchers, unassigned, .. } =
                self.ask_fetchers(agent).await.unwrap_or_default();
            let fetched = fetchers.into_iter().flat_map(|fetcher| fetcher.partitions);
            // Without an incarnation the log is not open.
            let open = fetched.chain(unassigned).filter(|row| row.incarnation.is_some());
            let tells =
                |row: v1::FollowedPartition| tells(node, &row.topic_id, row.partition, row.loss.as_ref());
            told.extend(open.filter_map(tells));
        }
        told
    }
}

fn election(partition: &DescribedPartition) -> Option<(&PartitionRecord, &UncleanElection)> {
    Some((&partition.record, partition.record.unclean.as_ref()?))
}

/// A row of an answer; what does not decode tells nothing.
fn tells(
    node: NodeId,
    topic_id: &str,
    partition: Option<i32>,
    loss: Option<&v1::UncleanLoss>,
) -> Option<((TopicIdPartition, NodeId), Option<UncleanLoss>)> {
    let id = TopicIdPartition::new(topic_id.parse().ok()?, decode_partition_index(partition).ok()?);
    Some(((id, node), loss.map(decode_loss).transpose().ok()?))
}

/// What `member` lost by the election, of which it `told` its last loss; absent while that is not certain.
fn exact_loss(
    record: &PartitionRecord,
    unclean: &UncleanElection,
    member: IsrMember,
    told: Option<UncleanLoss>,
) -> Option<UncleanLoss> {
    let by_this = told.filter(|loss| loss.election == unclean.epoch);
    // In sync again on the same disk, and nothing was cut: it held nothing that the leader lacked.
    let (election, from) = (unclean.epoch, unclean.log_end);
    let nothing = UncleanLoss { election, from, committed: from, end: from };
    by_this.or_else(|| record.isr.contains(&member).then_some(nothing))
}

#[cfg(test)]
mod tests {
    use highwater_types::{Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId};

    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn member(node: i32, incarnation: u64) -> IsrMember {
        IsrMember { node: NodeId::new(node).unwrap(), incarnation: Incarnation::new(incarnation).unwrap() }
    }

    fn loss(election: i32) -> UncleanLoss {
        let election = LeaderEpoch::new(election).unwrap();
        UncleanLoss { election, from: offset(10), committed: offset(12), end: offset(15) }
    }

    #[test]
    fn a_loss_is_exact_once_its_replica_was_cut_or_is_in_sync_again_on_its_disk() {
        let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
        let mut record = PartitionRecord::new(id, vec![member(1, 7).node, member(2, 8).node]);
        let epoch = LeaderEpoch::new(4).unwrap();
        let unclean = UncleanElection { epoch, log_end: offset(10), passed_over: vec![member(1, 7)] };
        record.isr = vec![member(2, 8)];
        let exact = |record: &PartitionRecord, told| exact_loss(record, &unclean, member(1, 7), told);
        assert_eq!(exact(&record, None), None, "it is open, and not cut yet");
        assert_eq!(exact(&record, Some(loss(3))), None, "of an older election");
        assert_eq!(exact(&record, Some(loss(4))), Some(loss(4)));
        record.isr.push(member(1, 9));
        assert_eq!(exact(&record, None), None, "another disk: what the old one held is not known");
        assert_eq!(exact(&record, Some(loss(4))), Some(loss(4)), "the cut renewed it");
        record.isr[1] = member(1, 7);
        let nothing = UncleanLoss { committed: offset(10), end: offset(10), ..loss(4) };
        assert_eq!(exact(&record, None), Some(nothing));
        assert_eq!(exact(&record, Some(loss(3))), Some(nothing), "it lost something before, and now nothing");
    }

    #[test]
    fn what_does_not_decode_tells_nothing() {
        let (id, node) = (TopicId::random(), member(1, 7).node);
        let key = (TopicIdPartition::new(id, PartitionIndex::new(2).unwrap()), node);
        assert_eq!(tells(node, &id.to_string(), Some(2), None), Some((key, None)));
        assert_eq!(tells(node, &id.to_string(), None, None), None);
        assert_eq!(tells(node, "x", Some(2), None), None);
        let broken = v1::UncleanLoss { leader_epoch: Some(-1), ..v1::UncleanLoss::default() };
        assert_eq!(tells(node, &id.to_string(), Some(2), Some(&broken)), None);
    }
}
