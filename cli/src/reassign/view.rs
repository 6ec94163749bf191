//! Moves as they are shown: lines of JSON, tables.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use highwater_client::{AddedReplica, ClientError, DescribedTopic, Reassigned, Reassignment};
use highwater_types::{NodeId, PartitionIndex};
use serde::Serialize;

use crate::figures::{count, size, time};
use crate::outcome::Verdict;
use crate::output::{Align, OutputFormat, Table, json_line};

/// What became of one partition.
#[derive(Debug, Serialize)]
pub(super) struct ChangeRow {
    topic: String,
    partition: i32,
    /// The replicas that it has, or will have.
    replicas: Vec<i32>,
    adding: Vec<i32>,
    removing: Vec<i32>,
    /// Why it was refused; absent when it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ChangeRow {
    pub(super) fn of(topic: &DescribedTopic, partition: PartitionIndex, told: &Reassigned) -> Self {
        let record = told.as_ref().ok();
        let some = |nodes: Option<&[NodeId]>| ids(nodes.unwrap_or_default());
        Self {
            topic: topic.record.name.to_string(),
            partition: partition.get(),
            replicas: some(record.map(|record| record.target_replicas()).as_deref()),
            adding: some(record.map(|record| &*record.adding)),
            removing: some(record.map(|record| &*record.removing)),
            error: told.as_ref().err().map(ToString::to_string),
        }
    }

    /// Whether nothing was refused.
    pub(super) fn verdict(rows: &[Self]) -> Verdict {
        if rows.iter().any(|row| row.error.is_some()) { Verdict::Wrong } else { Verdict::Good }
    }

    fn line(&self) -> String {
        let Self { topic, partition, replicas, adding, removing, error } = self;
        if let Some(error) = error {
            return format!("{topic}-{partition}: refused: {error}");
        }
        let mut line = format!("{topic}-{partition}: replicas {}", listed(replicas));
        for (what, nodes) in [("adding", adding), ("removing", removing)] {
            if !nodes.is_empty() {
                line.push_str(&format!(", {what} {}", listed(nodes)));
            }
        }
        line
    }
}

pub(super) fn print_changes(rows: &[ChangeRow], output: OutputFormat, out: &mut dyn Write) -> io::Result<()> {
    rows.iter().try_for_each(|row| match output {
        OutputFormat::Json => json_line(out, row),
        OutputFormat::Text => writeln!(out, "{}", row.line()),
    })?;
    // Who waits for the end sees this first.
    out.flush()
}

/// A partition that is being moved; one for each replica that is added, or one alone.
#[derive(Debug, Serialize)]
pub(super) struct AddedRow {
    topic: String,
    partition: i32,
    leader: Option<i32>,
    target: Vec<i32>,
    removing: Vec<i32>,
    /// The replica that is added; absent where none is.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    added: Option<Added>,
}

#[derive(Debug, Serialize)]
struct Added {
    added: i32,
    in_sync: bool,
    lag_records: Option<u64>,
    bytes_left: Option<u64>,
    bytes_held: Option<u64>,
    bytes_per_second: Option<u64>,
    left_ms: Option<u64>,
}

impl AddedRow {
    pub(super) fn of_all(moving: &[Reassignment]) -> Vec<Self> {
        moving.iter().flat_map(Self::of).collect()
    }

    fn of(moving: &Reassignment) -> Vec<Self> {
        let row = |added: Option<&AddedReplica>| Self {
            topic: moving.topic.to_string(),
            partition: moving.partition.get(),
            leader: moving.leader.map(NodeId::get),
            target: ids(&moving.target),
            removing: ids(&moving.removing),
            added: added.map(Added::of),
        };
        if moving.adding.is_empty() {
            return vec![row(None)];
        }
        moving.adding.iter().map(|added| row(Some(added))).collect()
    }
}

impl Added {
    fn of(added: &AddedReplica) -> Self {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            added: added.node.get(),
            in_sync: added.in_sync,
            lag_records: added.lag_records,
            bytes_left: added.bytes_left,
            bytes_held: added.bytes_held,
            bytes_per_second: added.bytes_per_second,
            left_ms: added.left.map(millis),
        }
    }
}

pub(super) fn print_added(
    rows: &[AddedRow],
    unreachable: &BTreeMap<NodeId, ClientError>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if rows.is_empty() {
        writeln!(out, "nothing is being moved")?;
    } else {
        table(rows).print(out)?;
    }
    unreachable.iter().try_for_each(|(node, error)| writeln!(out, "node {node} cannot be asked: {error}"))
}

fn table(rows: &[AddedRow]) -> Table {
    let mut table = Table::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("LEADER", Align::Right),
        ("TARGET", Align::Left),
        ("REMOVING", Align::Left),
        ("ADDING", Align::Right),
        ("STATE", Align::Left),
        ("LAG", Align::Right),
        ("BYTES LEFT", Align::Right),
        ("RATE", Align::Right),
        ("TIME LEFT", Align::Right),
    ]);
    for row in rows {
        let added = row.added.as_ref();
        let known = |value: Option<u64>, show: fn(u64) -> String| value.map_or_else(|| "-".to_owned(), show);
        table.row(vec![
            row.topic.clone(),
            row.partition.to_string(),
            row.leader.map_or_else(|| "none".to_owned(), |node| node.to_string()),
            listed(&row.target),
            listed(&row.removing),
            added.map_or_else(|| "none".to_owned(), |added| added.added.to_string()),
            added.map_or("-", |added| if added.in_sync { "in-sync" } else { "catching-up" }).to_owned(),
            known(added.and_then(|added| added.lag_records), count),
            known(added.and_then(|added| added.bytes_left), size),
            known(added.and_then(|added| added.bytes_per_second), |rate| format!("{}/s", size(rate))),
            known(added.and_then(|added| added.left_ms), |ms| time(Duration::from_millis(ms))),
        ]);
    }
    table
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.get()).collect()
}

/// Nodes as in a list of replicas.
pub(super) fn nodes(nodes: &[NodeId]) -> String {
    listed(&ids(nodes))
}

fn listed(nodes: &[i32]) -> String {
    if nodes.is_empty() {
        return "none".to_owned();
    }
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(super) mod tests {
    use highwater_types::{ErrorCode, PartitionRecord, ReplicationError, TopicId, TopicIdPartition};

    use super::*;

    fn node(id: i32) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// Partition 0 of `orders`, to which node 4 is added and from which node 1 is removed.
    pub(in super::super) fn moving() -> Reassignment {
        Reassignment {
            topic: "orders".parse().unwrap(),
            topic_id: TopicId::random(),
            partition: PartitionIndex::new(0).unwrap(),
            leader: Some(node(1)),
            target: vec![node(2), node(4)],
            adding: vec![AddedReplica {
                node: node(4),
                in_sync: false,
                lag_records: Some(12_345),
                bytes_left: Some(8_000_000),
                bytes_held: Some(2_000_000),
                bytes_per_second: Some(1_000_000),
                left: Some(Duration::from_millis(8_100)),
            }],
            removing: vec![node(1)],
        }
    }

    #[test]
    fn a_row_for_each_added_replica_and_one_where_none_is() {
        let only_removes = Reassignment { adding: Vec::new(), leader: None, ..moving() };
        let mut out = Vec::new();
        print_added(&AddedRow::of_all(&[moving(), only_removes]), &BTreeMap::new(), &mut out).unwrap();
        let expected = "\
TOPIC   PARTITION  LEADER  TARGET  REMOVING  ADDING  STATE           LAG  BYTES LEFT      RATE  TIME LEFT
orders          0       1  2,4     1              4  catching-up  12,345      8.0 MB  1.0 MB/s     8.10 s
orders          0    none  2,4     1           none  -                 -           -         -          -
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        print_added(&[], &BTreeMap::from([(node(3), ClientError::Closed)]), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "nothing is being moved\nnode 3 cannot be asked: closed\n"
        );
    }

    #[test]
    fn what_is_not_known_of_an_added_replica_is_null_and_not_0() {
        let mut moving = moving();
        moving.adding[0] = AddedReplica { left: None, lag_records: None, ..moving.adding[0] };
        let json = serde_json::to_value(&AddedRow::of_all(&[moving])[0]).unwrap();
        assert_eq!((&json["added"], &json["bytes_left"]), (&4.into(), &8_000_000.into()));
        assert!(json["left_ms"].is_null() && json["lag_records"].is_null(), "{json}");
    }

    #[test]
    fn a_partition_that_is_refused_is_told_with_why_and_the_others_with_what_moves() {
        let topic = DescribedTopic {
            record: highwater_types::TopicRecord {
                id: TopicId::random(),
                name: "orders".parse().unwrap(),
                partitions: 2,
                properties: Default::default(),
                deleted: false,
            },
            partitions: Vec::new(),
        };
        let index = PartitionIndex::new(0).unwrap();
        let record = PartitionRecord {
            adding: vec![node(4)],
            removing: vec![node(1)],
            ..PartitionRecord::new(
                TopicIdPartition::new(topic.record.id, index),
                [2, 4, 1].map(node).to_vec(),
            )
        };
        let refused = Err(ReplicationError::new(ErrorCode::InvalidRequest, "no such node"));
        let rows = [Ok(record), refused].map(|told| ChangeRow::of(&topic, index, &told));
        assert_eq!(rows[0].line(), "orders-0: replicas 2,4, adding 4, removing 1");
        assert!(rows[1].line().starts_with("orders-0: refused: ") && rows[1].line().contains("no such node"));
        assert_eq!(ChangeRow::verdict(&rows), Verdict::Wrong);
        assert_eq!(ChangeRow::verdict(&rows[..1]), Verdict::Good);
    }
}
