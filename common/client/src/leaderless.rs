//! The replicas of partitions that nobody leads: what the record, and the replicas' own agents, tell of them.

use std::collections::{BTreeMap, BTreeSet};

use highwater_proto::v1;
use highwater_types::{NodeId, PartitionRecord, Program, TopicName};
use highwater_wire::cluster::{DescribedCluster, DescribedTopic};
use serde::Serialize;

use crate::ClientError;
use crate::describe::{Fetchers, FollowedRow, fetchers};

/// A replica of a partition that nobody leads: how far it is, no leader can tell. Its agent tells why it does not fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaderlessRow {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: String,
    /// The partition.
    pub partition: i32,
    /// The recorded leader's node; absent when there is none.
    pub leader: Option<i32>,
    /// What hinders the leader: `new` (nobody has led the partition yet), `none` (none is recorded any more), `dead` (its
    /// leader-svc shows no sign of life), `unreachable` (it lives, but did not answer), `not-leading` (it answered, but does
    /// not lead; it may be opening the log).
    pub leader_state: &'static str,
    /// The recorded leader epoch.
    pub leader_epoch: Option<i32>,
    /// The replica's node; the leader itself only where there is no other.
    pub replica: i32,
    /// Whether it is in the recorded in-sync set; absent when nobody could be asked for the record.
    pub in_sync: Option<bool>,
    /// Why it does not fetch, in the word of [`crate::describe::ReplicaRow::cause`], as its agent says; `leader-unknown`
    /// where that says nothing.
    pub cause: String,
    /// What its agent says besides: the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of its log, as its agent says (exclusive offset).
    pub log_end_offset: Option<i64>,
    /// What it holds, as its agent says (exclusive offset).
    pub acknowledged_offset: Option<i64>,
    /// Its high watermark, as its agent says (exclusive offset).
    pub high_watermark: Option<i64>,
}

impl LeaderlessRow {
    /// Takes over what the replica's agent says.
    fn hear(&mut self, agent: &Fetchers) {
        let is_it = |row: &FollowedRow| row.topic_id == self.topic_id && row.partition == self.partition;
        let Some((row, error)) = agent.told().find(|(row, _)| is_it(row)) else { return };
        self.log_end_offset = row.log_end_offset;
        self.acknowledged_offset = row.acknowledged_offset;
        self.high_watermark = row.high_watermark;
        if let Some(error) = error {
            self.error = Some(error.to_owned());
            self.cause.clone_from(&row.cause);
        }
    }
}

/// The partitions of `topics` (empty: all) that are not in `led`, a row for each replica.
pub(crate) fn leaderless_rows(
    cluster: &DescribedCluster,
    topics: &[TopicName],
    led: &BTreeSet<(String, i32)>,
    unreachable: &BTreeMap<NodeId, ClientError>,
) -> Vec<LeaderlessRow> {
    let wanted = |topic: &&DescribedTopic| {
        !topic.record.deleted && (topics.is_empty() || topics.contains(&topic.record.name))
    };
    let mut rows = Vec::new();
    for topic in cluster.topics.iter().filter(wanted) {
        let topic_id = topic.record.id.to_string();
        for PartitionRecord { partition, leader, leader_epoch, isr, replicas, .. } in
            topic.partitions.iter().map(|partition| &partition.record)
        {
            if led.contains(&(topic_id.clone(), partition.get())) {
                continue;
            }
            let leader_state = match leader {
                None if leader_epoch.is_none() => "new",
                None => "none",
                Some(node) if !cluster.live.contains(&(*node, Program::LeaderSvc)) => "dead",
                Some(node) if unreachable.contains_key(node) => "unreachable",
                Some(_) => "not-leading",
            };
            let others = replicas.iter().filter(|node| replicas.len() == 1 || Some(**node) != *leader);
            rows.extend(others.map(|replica| LeaderlessRow {
                topic: topic.record.name.to_string(),
                topic_id: topic_id.clone(),
                partition: partition.get(),
                leader: leader.map(NodeId::get),
                leader_state,
                leader_epoch: leader_epoch.map(|epoch| epoch.get()),
                replica: replica.get(),
                in_sync: Some(isr.iter().any(|member| member.node == *replica)),
                cause: "leader-unknown".to_owned(),
                error: None,
                log_end_offset: None,
                acknowledged_offset: None,
                high_watermark: None,
            }));
        }
    }
    rows.sort_by(|a, b| (&a.topic, a.partition, a.replica).cmp(&(&b.topic, b.partition, b.replica)));
    rows
}

/// Adds what the replicas' agents say, by node.
pub(crate) fn hear_agents(rows: &mut [LeaderlessRow], agents: &BTreeMap<NodeId, Fetchers>) {
    for row in rows {
        if let Some(agent) = NodeId::new(row.replica).and_then(|node| agents.get(&node)) {
            row.hear(agent);
        }
    }
}

/// The partitions of `topics` (empty: all) of which an agent tells a failure.
pub(crate) fn failing_rows(answer: v1::DescribeFetchersResponse, topics: &[TopicName]) -> Vec<LeaderlessRow> {
    let replica = answer.node_id.unwrap_or(-1);
    let agent = fetchers(answer);
    let is_wanted =
        |row: &FollowedRow| topics.is_empty() || topics.iter().any(|name| name.as_str() == row.topic);
    let failing = agent.told().filter(|(row, _)| is_wanted(row)).filter_map(|(row, error)| {
        Some(LeaderlessRow {
            topic: row.topic.clone(),
            topic_id: row.topic_id.clone(),
            partition: row.partition,
            leader: row.leader,
            leader_state: if row.leader.is_some() { "unreachable" } else { "none" },
            leader_epoch: row.leader_epoch,
            replica,
            in_sync: None,
            cause: row.cause.clone(),
            error: Some(error?.to_owned()),
            log_end_offset: row.log_end_offset,
            acknowledged_offset: row.acknowledged_offset,
            high_watermark: row.high_watermark,
        })
    });
    failing.collect()
}

#[cfg(test)]
mod tests {
    use highwater_types::{
        Incarnation, IsrMember, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition, TopicRecord,
    };
    use highwater_wire::cluster::DescribedPartition;

    use super::*;

    fn n(raw: i32) -> NodeId {
        NodeId::new(raw).unwrap()
    }

    /// A topic of one partition for each given leader, with these replicas.
    fn topic(leaders: &[Option<i32>], replicas: &[i32]) -> DescribedTopic {
        let record = TopicRecord {
            id: TopicId::random(),
            name: "orders".parse().unwrap(),
            partitions: i32::try_from(leaders.len()).unwrap(),
            properties: highwater_types::TopicProperties::default(),
            deleted: false,
        };
        let partition = |(index, leader): (i32, &Option<i32>)| {
            let id = TopicIdPartition::new(record.id, PartitionIndex::new(index).unwrap());
            let mut record = PartitionRecord::new(id, replicas.iter().map(|raw| n(*raw)).collect());
            record.leader = leader.map(n);
            record.isr = vec![IsrMember { node: n(2), incarnation: Incarnation::new(1).unwrap() }];
            DescribedPartition { record, leader_endpoint: None }
        };
        let partitions = (0..).zip(leaders).map(partition).collect();
        DescribedTopic { record, partitions }
    }

    fn cluster(topic: DescribedTopic, live: &[i32]) -> DescribedCluster {
        DescribedCluster {
            cluster_id: None,
            version: 1,
            node: n(1),
            program: Program::LeaderSvc,
            unchanged: false,
            nodes: Vec::new(),
            live: live.iter().map(|raw| (n(*raw), Program::LeaderSvc)).collect(),
            topics: vec![topic],
            throttles_left: BTreeMap::new(),
        }
    }

    #[test]
    fn a_partition_that_nobody_leads_is_listed_with_what_hinders_its_leader() {
        let mut topic = topic(&[Some(1), Some(1), Some(4), Some(5), None, None], &[1, 2]);
        topic.partitions[4].record.leader_epoch = Some(LeaderEpoch::FIRST);
        let led = BTreeSet::from([(topic.record.id.to_string(), 0)]);
        let cluster = cluster(topic, &[1, 4]);
        let unreachable = BTreeMap::from([(n(4), ClientError::Closed)]);
        let rows = leaderless_rows(&cluster, &[], &led, &unreachable);
        let shown: Vec<_> = rows
            .iter()
            .map(|r| (r.partition, r.leader, r.leader_state, r.replica, r.in_sync))
            .filter(|(.., replica, _)| *replica == 2)
            .collect();
        assert_eq!(
            shown,
            [
                (1, Some(1), "not-leading", 2, Some(true)),
                (2, Some(4), "unreachable", 2, Some(true)),
                (3, Some(5), "dead", 2, Some(true)),
                (4, None, "none", 2, Some(true)),
                (5, None, "new", 2, Some(true))
            ]
        );
        assert!(rows.iter().all(|row| row.cause == "leader-unknown"));
        let others: Vec<TopicName> = vec!["others".parse().unwrap()];
        assert_eq!(leaderless_rows(&cluster, &others, &led, &unreachable), []);
    }

    #[test]
    fn what_a_replicas_agent_says_is_added_and_its_word_counts_where_it_tells_of_a_failure() {
        let topic = topic(&[Some(1), Some(1), Some(1), None], &[1, 2]);
        let id = topic.record.id.to_string();
        let mut rows = leaderless_rows(&cluster(topic, &[]), &[], &BTreeSet::new(), &BTreeMap::new());
        rows.retain(|row| row.replica == 2);
        let said = |partition, cause: v1::LagCause, reason: &str| v1::FollowedPartition {
            topic_id: id.clone(),
            partition: Some(partition),
            cause: cause.into(),
            reason: reason.to_owned(),
            log_end_offset: Some(i64::from(partition) + 5),
            ..v1::FollowedPartition::default()
        };
        let looped = |last_error: &str, partitions| v1::Fetcher {
            last_error: last_error.to_owned(),
            partitions,
            ..v1::Fetcher::default()
        };
        let answer = v1::DescribeFetchersResponse {
            node_id: Some(2),
            fetchers: vec![
                looped(
                    "refused",
                    vec![said(0, v1::LagCause::Network, ""), said(1, v1::LagCause::BackOff, "its own")],
                ),
                looped("", vec![said(2, v1::LagCause::CatchingUp, "")]),
            ],
            unassigned: vec![],
        };
        let agent = fetchers(answer.clone());
        hear_agents(&mut rows, &BTreeMap::from([(n(2), agent)]));
        let told: Vec<_> =
            rows.iter().map(|row| (row.cause.as_str(), row.error.as_deref(), row.log_end_offset)).collect();
        assert_eq!(
            told,
            [
                ("network", Some("refused"), Some(5)),
                ("back-off", Some("its own"), Some(6)),
                ("leader-unknown", None, Some(7)),
                ("leader-unknown", None, None)
            ]
        );
        let failing: Vec<_> = failing_rows(answer, &[])
            .into_iter()
            .map(|row| (row.replica, row.partition, row.in_sync, row.error))
            .collect();
        let error = |text: &str| Some(text.to_owned());
        assert_eq!(failing, [(2, 0, None, error("refused")), (2, 1, None, error("its own"))]);
    }

    #[test]
    fn the_only_replica_is_listed_although_it_is_the_leader() {
        let cluster = cluster(topic(&[Some(1)], &[1]), &[]);
        let rows = leaderless_rows(&cluster, &[], &BTreeSet::new(), &BTreeMap::new());
        let shown: Vec<_> = rows.iter().map(|r| (r.leader, r.replica, r.in_sync)).collect();
        assert_eq!(shown, [(Some(1), 1, Some(false))]);
    }
}
