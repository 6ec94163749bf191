//! Throttles as they are shown: a line of JSON or a row of a table for each node and side.

use std::io::{self, Write};
use std::time::Duration;

use highwater_client::ThrottledNodes;
use highwater_types::{NodeId, NodeRecord, Throttle, ThrottleSide};
use serde::Serialize;

use crate::figures::time;
use crate::output::{Align, Table};

/// A throttle of one side of one node.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ThrottleRow {
    node: i32,
    /// `leader` or `follower`.
    side: String,
    #[serde(flatten)]
    throttle: ThrottleText,
    /// What the node had before on this side, where it was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<ThrottleText>,
}

/// What a throttle says.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ThrottleText {
    bytes_per_second: u64,
    rate: String,
    replicas: Vec<String>,
    /// How long it lives from when it was set, in milliseconds; null: until it is cleared.
    ttl_ms: Option<u64>,
    /// How long it still lives, in milliseconds, as the node that answered reckons; null: until it is cleared.
    left_ms: Option<u64>,
}

impl ThrottleText {
    fn new(throttle: &Throttle, left: Option<Duration>) -> Self {
        Self {
            bytes_per_second: throttle.rate.bytes_per_second(),
            rate: throttle.rate.to_string(),
            replicas: throttle.replicas.entries(),
            ttl_ms: throttle.ttl_ms,
            left_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The time left, as text.
    fn left(&self) -> String {
        self.left_ms.map_or_else(|| "until cleared".to_owned(), |left| time(Duration::from_millis(left)))
    }
}

/// A row for each throttle.
pub(super) fn rows(of: &ThrottledNodes) -> Vec<ThrottleRow> {
    each(of).map(|(node, side, throttle)| row(of, (node, side), throttle, None)).collect()
}

/// The rows of what was just set, with what it replaced of `before`.
pub(super) fn set_rows(now: &ThrottledNodes, before: &ThrottledNodes) -> Vec<ThrottleRow> {
    let had = |of: (NodeId, ThrottleSide)| each(before).find(|(node, side, _)| (*node, *side) == of);
    let one = |(node, side, throttle): (NodeId, ThrottleSide, &Throttle)| {
        let replaced = had((node, side)).map(|(.., old)| old).filter(|old| old.id != throttle.id);
        let replaced = replaced.map(|old| ThrottleText::new(old, before.left.get(&(node, side)).copied()));
        row(now, (node, side), throttle, replaced)
    };
    each(now).map(one).collect()
}

fn each(of: &ThrottledNodes) -> impl Iterator<Item = (NodeId, ThrottleSide, &Throttle)> {
    of.nodes.iter().flat_map(|record: &NodeRecord| {
        let of_side = |side| Some((record.node, side, record.throttles.of(side)?));
        ThrottleSide::BOTH.into_iter().filter_map(of_side)
    })
}

fn row(
    of: &ThrottledNodes,
    (node, side): (NodeId, ThrottleSide),
    throttle: &Throttle,
    replaced: Option<ThrottleText>,
) -> ThrottleRow {
    let throttle = ThrottleText::new(throttle, of.left.get(&(node, side)).copied());
    ThrottleRow { node: node.get(), side: side.to_string(), throttle, replaced }
}

pub(super) fn print(rows: &[ThrottleRow], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "no throttle is set");
    }
    let mut table = Table::new(&[
        ("NODE", Align::Right),
        ("SIDE", Align::Left),
        ("RATE", Align::Right),
        ("TIME LEFT", Align::Right),
        ("REPLICAS", Align::Left),
    ]);
    for row in rows {
        let throttle = &row.throttle;
        table.row(vec![
            row.node.to_string(),
            row.side.clone(),
            throttle.rate.clone(),
            throttle.left(),
            throttle.replicas.join(","),
        ]);
    }
    table.print(out)?;
    for (row, old) in rows.iter().filter_map(|row| Some((row, row.replaced.as_ref()?))) {
        let (side, node, rate, replicas, left) =
            (&row.side, row.node, &old.rate, old.replicas.join(","), old.left());
        writeln!(out, "replaced on node {node}, {side}: {rate} for {replicas}, {left}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use highwater_types::{NodeThrottles, ThrottledReplicas};

    use super::*;

    fn throttle(id: u64, rate: &str, ttl_ms: Option<u64>) -> Throttle {
        Throttle { id, rate: rate.parse().unwrap(), replicas: ThrottledReplicas::All, ttl_ms }
    }

    fn node(leader: Option<Throttle>, follower: Option<Throttle>) -> ThrottledNodes {
        let node = NodeId::new(3).unwrap();
        let throttles = NodeThrottles { leader, follower };
        let left = [((node, ThrottleSide::Leader), Duration::from_millis(12_300))].into();
        ThrottledNodes { nodes: vec![NodeRecord { throttles, ..NodeRecord::new(node) }], left }
    }

    fn both() -> ThrottledNodes {
        node(Some(throttle(1, "8MB/s", Some(90_000))), Some(throttle(1, "100001B/s", None)))
    }

    fn lines(rows: &[ThrottleRow]) -> Vec<String> {
        let mut out = Vec::new();
        print(rows, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn each_side_of_a_node_is_a_row_with_the_time_that_is_left() {
        let lines = lines(&rows(&both()));
        assert_eq!(lines[1..], ["3 leader 8MB/s 12.30 s *", "3 follower 100001B/s until cleared *"]);
        assert!(rows(&node(None, None)).is_empty());
    }

    #[test]
    fn what_was_replaced_is_told_and_what_stayed_is_not() {
        let old = throttle(1, "1MB/s", Some(60_000));
        let before = node(Some(old), Some(throttle(1, "100001B/s", None)));
        let shown = lines(&set_rows(
            &node(Some(throttle(2, "8MB/s", Some(90_000))), Some(throttle(1, "100001B/s", None))),
            &before,
        ));
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert_eq!(shown[3], "replaced on node 3, leader: 1MB/s for *, 12.30 s");
        assert_eq!(lines(&set_rows(&both(), &node(None, None))).len(), 3, "nothing was there");
    }

    #[test]
    fn the_json_of_a_throttle_has_its_rate_as_a_number_and_as_text() {
        let json = serde_json::to_value(&rows(&both())[0]).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "node": 3, "side": "leader", "bytes_per_second": 8_000_000, "rate": "8MB/s",
                "replicas": ["*"], "ttl_ms": 90_000, "left_ms": 12_300,
            })
        );
    }
}
