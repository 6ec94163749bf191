//! Throttles as they are shown: a line of JSON or a row of a table for each node and side.

use std::io::{self, Write};
use std::time::Duration;

use highwater_types::{NodeRecord, Throttle, ThrottleSide};
use serde::Serialize;

use crate::output::{Align, Table};

/// A throttle of one side of one node.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ThrottleRow {
    node: i32,
    /// `leader` or `follower`.
    side: String,
    bytes_per_second: u64,
    rate: String,
    replicas: Vec<String>,
    /// How long it lives from when it was set, in milliseconds; null: until it is cleared.
    ttl_ms: Option<u64>,
}

impl ThrottleRow {
    pub(super) fn of_node(record: &NodeRecord) -> Vec<Self> {
        let row = |side: ThrottleSide, throttle: &Throttle| Self {
            node: record.node.get(),
            side: side.to_string(),
            bytes_per_second: throttle.rate.bytes_per_second(),
            rate: throttle.rate.to_string(),
            replicas: throttle.replicas.entries(),
            ttl_ms: throttle.ttl_ms,
        };
        let sides = [ThrottleSide::Leader, ThrottleSide::Follower].into_iter();
        sides.filter_map(|side| Some(row(side, record.throttles.of(side)?))).collect()
    }
}

pub(super) fn print(rows: &[ThrottleRow], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "no throttle is set");
    }
    let mut table = Table::new(&[
        ("NODE", Align::Right),
        ("SIDE", Align::Left),
        ("RATE", Align::Right),
        ("LIVES FOR", Align::Right),
        ("REPLICAS", Align::Left),
    ]);
    for row in rows {
        let life = row.ttl_ms.map(|ttl| format!("{:?}", Duration::from_millis(ttl)));
        table.row(vec![
            row.node.to_string(),
            row.side.clone(),
            row.rate.clone(),
            life.unwrap_or_else(|| "until cleared".to_owned()),
            row.replicas.join(","),
        ]);
    }
    table.print(out)
}

#[cfg(test)]
mod tests {
    use highwater_types::{NodeId, NodeThrottles, ThrottledReplicas};

    use super::*;

    fn node() -> NodeRecord {
        let throttle = |rate: &str, ttl_ms| Throttle {
            id: 1,
            rate: rate.parse().unwrap(),
            replicas: ThrottledReplicas::All,
            ttl_ms,
        };
        let throttles = NodeThrottles {
            leader: Some(throttle("8MB/s", Some(90_000))),
            follower: Some(throttle("100001B/s", None)),
        };
        NodeRecord { throttles, ..NodeRecord::new(NodeId::new(3).unwrap()) }
    }

    #[test]
    fn each_side_of_a_node_is_a_row() {
        let mut out = Vec::new();
        print(&ThrottleRow::of_node(&node()), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["3", "leader", "8MB/s", "90s", "*"]);
        assert_eq!(lines[2], ["3", "follower", "100001B/s", "until", "cleared", "*"]);
        assert!(ThrottleRow::of_node(&NodeRecord::new(NodeId::new(3).unwrap())).is_empty());
    }

    #[test]
    fn the_json_of_a_throttle_has_its_rate_as_a_number_and_as_text() {
        let json = serde_json::to_value(&ThrottleRow::of_node(&node())[0]).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "node": 3, "side": "leader", "bytes_per_second": 8_000_000, "rate": "8MB/s",
                "replicas": ["*"], "ttl_ms": 90_000,
            })
        );
    }
}
