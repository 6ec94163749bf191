//! Topics as they are shown: lines of JSON, tables.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use highwater_client::{DescribedPartition, DescribedTopic, Losses};
use highwater_types::{NodeId, PartitionRecord, Program, UncleanLoss};
use serde::Serialize;

use crate::output::{Align, Table};

/// A topic in a list.
#[derive(Debug, Serialize)]
pub(super) struct TopicSummary {
    topic: String,
    topic_id: String,
    partitions: i32,
    /// The most replicas that one of its partitions has.
    replication_factor: usize,
}

impl TopicSummary {
    pub(super) fn of(topic: &DescribedTopic) -> Self {
        let replicas = topic.partitions.iter().map(|partition| partition.record.replicas.len());
        Self {
            topic: topic.record.name.to_string(),
            topic_id: topic.record.id.to_string(),
            partitions: topic.record.partitions,
            replication_factor: replicas.max().unwrap_or(0),
        }
    }
}

/// A topic with everything that is recorded about it.
#[derive(Debug, Serialize)]
pub(super) struct TopicDetail {
    topic: String,
    topic_id: String,
    properties: BTreeMap<&'static str, String>,
    partitions: Vec<PartitionDetail>,
}

/// A partition with everything that is recorded about it.
#[derive(Debug, Serialize)]
struct PartitionDetail {
    partition: i32,
    /// The leader's node; absent when there is none.
    leader: Option<i32>,
    leader_endpoint: Option<String>,
    leader_epoch: Option<i32>,
    partition_epoch: u64,
    isr: Vec<Member>,
    replicas: Vec<i32>,
    /// The replicas that a reassignment adds.
    adding: Vec<i32>,
    /// The replicas that it removes once the added ones are in sync.
    removing: Vec<i32>,
    /// The replicas that show no sign of life: a leader's leader-svc, another's agent. Absent when no node could tell.
    not_live: Option<Vec<i32>>,
    /// Members of the in-sync set that cannot lead: they hold other replicas now.
    withdrawn: Vec<i32>,
    /// The newest unclean election; absent when there was none.
    unclean: Option<Unclean>,
}

/// The loss report of an unclean election.
#[derive(Debug, Serialize)]
struct Unclean {
    /// The leadership that began by it.
    leader_epoch: i32,
    /// What others held from this offset on is lost.
    from_offset: i64,
    passed_over: Vec<PassedOver>,
}

/// A member of the in-sync set that the election passed over.
#[derive(Debug, Serialize)]
struct PassedOver {
    node: i32,
    incarnation: String,
    /// What it lost, exactly; absent until it is back.
    lost: Option<Lost>,
    /// In sync again under another incarnation: after a loss of power, or on another disk.
    #[serde(skip)]
    is_back: bool,
}

/// Offsets that are lost.
#[derive(Debug, Serialize)]
struct Lost {
    from_offset: i64,
    /// Below this they had been committed for certain, from here on they may have been.
    committed_offset: i64,
    /// Exclusive.
    end_offset: i64,
    /// The same in words.
    #[serde(skip)]
    said: String,
}

/// The programs that live, if a node of the cluster could tell.
pub(super) type Live = Option<BTreeSet<(NodeId, Program)>>;

#[derive(Debug, Serialize)]
struct Member {
    node: i32,
    incarnation: String,
}

impl TopicDetail {
    pub(super) fn of(topic: &DescribedTopic, live: &Live, losses: &Losses) -> Self {
        Self {
            topic: topic.record.name.to_string(),
            topic_id: topic.record.id.to_string(),
            properties: topic.record.properties.to_pairs().into_iter().collect(),
            partitions: topic
                .partitions
                .iter()
                .map(|partition| PartitionDetail::of(partition, live, losses))
                .collect(),
        }
    }
}

impl PartitionDetail {
    fn of(partition: &DescribedPartition, live: &Live, losses: &Losses) -> Self {
        let record = &partition.record;
        let not_live = live.as_ref().map(|live| {
            let needed = |node| match record.leader == Some(node) {
                true => Program::LeaderSvc,
                false => Program::FollowerAgent,
            };
            let silent = record.replicas.iter().filter(|node| !live.contains(&(**node, needed(**node))));
            silent.map(|node| node.get()).collect()
        });
        let isr = record.isr.iter();
        let withdrawn = isr.clone().map(|m| m.node).filter(|node| record.has_withdrawn(*node));
        Self {
            partition: record.partition.get(),
            leader: record.leader.map(|node| node.get()),
            leader_endpoint: partition.leader_endpoint.as_ref().map(ToString::to_string),
            leader_epoch: record.leader_epoch.map(|epoch| epoch.get()),
            partition_epoch: record.partition_epoch.get(),
            isr: isr.map(|m| Member { node: m.node.get(), incarnation: m.incarnation.to_string() }).collect(),
            replicas: ids(&record.replicas),
            adding: ids(&record.adding),
            removing: ids(&record.removing),
            not_live,
            withdrawn: withdrawn.map(NodeId::get).collect(),
            unclean: Unclean::of(record, losses),
        }
    }
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.get()).collect()
}

impl Unclean {
    fn of(record: &PartitionRecord, losses: &Losses) -> Option<Self> {
        let unclean = record.unclean.as_ref()?;
        let passed_over = unclean.passed_over.iter().map(|member| PassedOver {
            node: member.node.get(),
            incarnation: member.incarnation.to_string(),
            lost: losses.get(&(record.id(), member.node)).map(Lost::of),
            is_back: record.isr.iter().any(|now| now.node == member.node && now != member),
        });
        Some(Self {
            leader_epoch: unclean.epoch.get(),
            from_offset: unclean.log_end.get(),
            passed_over: passed_over.collect(),
        })
    }

    fn print(&self, partition: i32, out: &mut dyn Write) -> io::Result<()> {
        let Self { leader_epoch, from_offset, passed_over } = self;
        writeln!(
            out,
            "partition {partition}: leader epoch {leader_epoch} began by an unclean election; what others held from offset \
             {from_offset} on is lost"
        )?;
        for PassedOver { node, lost, is_back, .. } in passed_over {
            let said = match lost {
                Some(lost) => &lost.said,
                None if *is_back => "back under another incarnation; how much it had held there is not known",
                None => "how much it held there is known once it is back",
            };
            writeln!(out, "  node {node}: {said}")?;
        }
        Ok(())
    }
}

impl Lost {
    fn of(loss: &UncleanLoss) -> Self {
        Self {
            from_offset: loss.from.get(),
            committed_offset: loss.committed.get(),
            end_offset: loss.end.get(),
            said: loss.to_string(),
        }
    }
}

pub(super) fn print_list(topics: &[TopicSummary], out: &mut dyn Write) -> io::Result<()> {
    if topics.is_empty() {
        return writeln!(out, "no topics");
    }
    let mut table = Table::new(&[
        ("TOPIC", Align::Left),
        ("PARTITIONS", Align::Right),
        ("REPLICAS", Align::Right),
        ("ID", Align::Left),
    ]);
    for topic in topics {
        table.row(vec![
            topic.topic.clone(),
            topic.partitions.to_string(),
            topic.replication_factor.to_string(),
            topic.topic_id.clone(),
        ]);
    }
    table.print(out)
}

pub(super) fn print_detail(topic: &TopicDetail, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "topic {} ({})", topic.topic, topic.topic_id)?;
    let properties = topic.properties.iter().map(|(name, value)| format!("{name}={value}"));
    writeln!(out, "properties {}", properties.collect::<Vec<_>>().join(" "))?;
    let mut table = Table::new(&[
        ("PARTITION", Align::Right),
        ("LEADER", Align::Right),
        ("EPOCH", Align::Right),
        ("ISR", Align::Left),
        ("REPLICAS", Align::Left),
        ("NOT LIVE", Align::Left),
        ("LEADER ADDRESS", Align::Left),
    ]);
    let known = |number: Option<i32>| number.map_or_else(|| "none".to_owned(), |n| n.to_string());
    for partition in &topic.partitions {
        let isr: Vec<i32> = partition.isr.iter().map(|member| member.node).collect();
        table.row(vec![
            partition.partition.to_string(),
            known(partition.leader),
            known(partition.leader_epoch),
            nodes(&isr),
            nodes(&partition.replicas),
            partition.not_live.as_deref().map_or_else(|| "unknown".to_owned(), nodes),
            partition.leader_endpoint.clone().unwrap_or_else(|| "unknown".to_owned()),
        ]);
    }
    table.print(out)?;
    for PartitionDetail { partition, adding, removing, withdrawn, .. } in &topic.partitions {
        if !withdrawn.is_empty() {
            writeln!(
                out,
                "partition {partition}: of the in-sync set {} cannot lead, because their replicas may lack acknowledged \
                 records, or are damaged. If nobody leads and the others do not come back, `highwater lag` shows whose log ends last, \
                 and `highwater elect --unclean --node NODE` lets one lead: what it lacks is lost",
                nodes(withdrawn)
            )?;
        }
        if !(adding.is_empty() && removing.is_empty()) {
            writeln!(
                out,
                "partition {partition} is being moved: adding {}, removing {}",
                nodes(adding),
                nodes(removing)
            )?;
        }
    }
    let unclean = topic
        .partitions
        .iter()
        .filter_map(|partition| Some((partition.partition, partition.unclean.as_ref()?)));
    unclean.into_iter().try_for_each(|(partition, unclean)| unclean.print(partition, out))
}

fn nodes(nodes: &[i32]) -> String {
    if nodes.is_empty() {
        return "none".to_owned();
    }
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use highwater_types::{
        Incarnation, IsrMember, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition,
        TopicProperties, TopicRecord, UncleanElection,
    };

    use super::*;

    const ID: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// A topic of two partitions: one that is led, one that never was.
    fn topic() -> DescribedTopic {
        let id: TopicId = ID.parse().unwrap();
        let partition = |index| {
            let place = TopicIdPartition::new(id, PartitionIndex::new(index).unwrap());
            let record = PartitionRecord::new(place, vec![node(1), node(2)]);
            DescribedPartition { record, leader_endpoint: None }
        };
        let mut led = partition(0);
        led.record.leader = Some(node(1));
        led.record.leader_epoch = LeaderEpoch::new(4);
        led.record.isr = vec![IsrMember { node: node(1), incarnation: Incarnation::new(7).unwrap() }];
        led.leader_endpoint = Some("10.0.0.1:9400".parse().unwrap());
        let record = TopicRecord {
            id,
            name: "orders".parse().unwrap(),
            partitions: 2,
            properties: TopicProperties::default(),
            deleted: false,
        };
        DescribedTopic { record, partitions: vec![led, partition(1)] }
    }

    fn printed(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_list_has_a_line_for_each_topic() {
        let text = printed(|out| print_list(&[TopicSummary::of(&topic())], out));
        let expected = format!("TOPIC   PARTITIONS  REPLICAS  ID\norders           2         2  {ID}\n");
        assert_eq!(text, expected);
        assert_eq!(printed(|out| print_list(&[], out)), "no topics\n");
    }

    #[test]
    fn a_description_tells_leader_epoch_isr_replicas_and_properties() {
        let live = Some(BTreeSet::from([(NodeId::new(1).unwrap(), Program::LeaderSvc)]));
        let text = printed(|out| print_detail(&TopicDetail::of(&topic(), &live, &Losses::new()), out));
        let (head, table) = text.split_at(text.find("PARTITION").unwrap());
        assert!(head.starts_with(&format!("topic orders ({ID})\nproperties durability=fsync ")), "{head}");
        assert!(head.contains(" min.insync.replicas=1 "), "{head}");
        assert!(head.contains(" unclean.leader.election.enable=false"), "{head}");
        let expected = "\
PARTITION  LEADER  EPOCH  ISR   REPLICAS  NOT LIVE  LEADER ADDRESS
        0       1      4  1     1,2       2         10.0.0.1:9400
        1    none   none  none  1,2       1,2       unknown
";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_partition_that_is_being_moved_is_told_with_who_comes_and_who_goes() {
        let mut topic = topic();
        let record = &mut topic.partitions[0].record;
        (record.adding, record.removing) = (vec![node(2)], vec![node(1), node(3)]);
        let detail = TopicDetail::of(&topic, &None, &Losses::new());
        let text = printed(|out| print_detail(&detail, out));
        let told: Vec<_> = text.lines().filter(|line| line.contains("being moved")).collect();
        assert_eq!(told, ["partition 0 is being moved: adding 2, removing 1,3"]);
        let value = serde_json::to_value(detail).unwrap();
        assert_eq!(value["partitions"][0]["removing"], serde_json::json!([1, 3]));
        assert_eq!(value["partitions"][1]["adding"], serde_json::json!([]));
    }

    #[test]
    fn json_has_every_field_of_the_record() {
        let value = serde_json::to_value(TopicDetail::of(&topic(), &None, &Losses::new())).unwrap();
        assert_eq!(value["properties"]["max.message.bytes"], "1048588");
        assert_eq!(value["properties"]["unclean.leader.election.enable"], "false");
        let led = &value["partitions"][0];
        assert_eq!((&led["leader"], &led["leader_epoch"]), (&1.into(), &4.into()));
        assert_eq!(led["isr"][0]["incarnation"], "0000000000000007");
        assert!(value["partitions"][1]["leader"].is_null() && led["not_live"].is_null());
        assert!(led["unclean"].is_null());
    }

    /// Epoch 4 of partition 0 began at offset 10 and passed nodes 2 and 3 over; node 2 is back.
    fn after_an_unclean_election() -> (DescribedTopic, Losses) {
        let (mut topic, offset) = (topic(), |raw| Offset::new(raw).unwrap());
        let record = &mut topic.partitions[0].record;
        let passed_over =
            [2, 3].map(|id| IsrMember { node: node(id), incarnation: Incarnation::new(8).unwrap() });
        let epoch = record.leader_epoch.unwrap();
        record.unclean =
            Some(UncleanElection { epoch, log_end: offset(10), passed_over: passed_over.to_vec() });
        let loss = UncleanLoss { election: epoch, from: offset(10), committed: offset(12), end: offset(15) };
        let losses = Losses::from([((record.id(), node(2)), loss)]);
        (topic, losses)
    }

    #[test]
    fn the_loss_report_of_an_unclean_election_is_exact_for_who_is_back() {
        let (topic, losses) = after_an_unclean_election();
        let detail = TopicDetail::of(&topic, &None, &losses);
        let text = printed(|out| print_detail(&detail, out));
        let (_, report) = text.split_at(text.find("partition 0").unwrap());
        let expected = "\
partition 0: leader epoch 4 began by an unclean election; what others held from offset 10 on is lost
  node 2: offsets [10, 12) were committed, [12, 15) may have been, and all are lost
  node 3: how much it held there is known once it is back
";
        assert_eq!(report, expected);
        let mut back = topic;
        let again = IsrMember { node: node(3), incarnation: Incarnation::new(9).unwrap() };
        back.partitions[0].record.isr.push(again);
        let text = printed(|out| print_detail(&TopicDetail::of(&back, &None, &losses), out));
        assert!(
            text.contains("node 3: back under another incarnation; how much it had held there is not known")
        );
        let value = serde_json::to_value(detail).unwrap();
        let report = serde_json::json!({
            "leader_epoch": 4,
            "from_offset": 10,
            "passed_over": [
                {
                    "node": 2,
                    "incarnation": "0000000000000008",
                    "lost": {"from_offset": 10, "committed_offset": 12, "end_offset": 15},
                },
                {"node": 3, "incarnation": "0000000000000008", "lost": null},
            ],
        });
        assert_eq!(value["partitions"][0]["unclean"], report);
        assert!(value["partitions"][1]["unclean"].is_null());
    }
}
