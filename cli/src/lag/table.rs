//! Lag as a table.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_client::describe::{LeaderlessRow, ReplicaRow, ReplicationView};

use crate::figures::{count, size, time};
use crate::output::{Align, Table};

/// The table's lines, a line for each partition whose leader has lost records, one for each node that could not be asked, and
/// one for each failure that agents tell of.
pub(super) fn lines(look: &ReplicationView) -> Vec<String> {
    let nothing = look.rows.is_empty() && look.leaderless.is_empty();
    let mut lines = if nothing { vec!["no followers".to_owned()] } else { table(look).lines() };
    let losses: BTreeSet<_> = look.rows.iter().filter_map(loss).collect();
    lines.extend(losses);
    for (node, error) in &look.unreachable {
        lines.push(format!("node {node} cannot be asked: {error}"));
    }
    if let Some(error) = &look.cluster_unknown {
        lines.push(format!("nobody can be asked which nodes there are: {error}"));
    }
    let failures: BTreeSet<_> = look.leaderless.iter().filter_map(failure).collect();
    lines.extend(failures);
    lines
}

/// What the leader of a partition has lost, so that its followers do not have it either.
fn loss(row: &ReplicaRow) -> Option<String> {
    let ranges = row.leader_lost.iter().map(|lost| format!("[{}, {})", lost.start_offset, lost.end_offset));
    let ranges: Vec<_> = ranges.collect();
    let ReplicaRow { topic, partition, leader, .. } = row;
    (!ranges.is_empty()).then(|| {
        format!("{topic}-{partition}: its leader, node {leader}, has lost offsets {}", ranges.join(", "))
    })
}

/// What the agent of a replica says of its last failure: one line for all partitions that wait for the same.
fn failure(row: &LeaderlessRow) -> Option<String> {
    let error = row.error.as_ref()?;
    let leader = row.leader.map(|node| format!(" from node {node}")).unwrap_or_default();
    Some(format!("node {} cannot fetch{leader}: {error}", row.replica))
}

fn table(look: &ReplicationView) -> Table {
    let mut table = Table::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("LEADER", Align::Right),
        ("REPLICA", Align::Right),
        ("STATE", Align::Left),
        ("LEO", Align::Right),
        ("ACKNOWLEDGED", Align::Right),
        ("HW", Align::Right),
        ("LAG", Align::Right),
        ("LAG BYTES", Align::Right),
        ("LAG TIME", Align::Right),
        ("LAST FETCH", Align::Right),
        ("CAUSE", Align::Left),
    ]);
    for row in &look.rows {
        table.row(vec![
            row.topic.clone(),
            row.partition.to_string(),
            row.leader.to_string(),
            row.replica.to_string(),
            row.state.clone(),
            known(row.log_end_offset, |offset| offset.to_string()),
            known(row.acknowledged_offset, |offset| offset.to_string()),
            known(row.high_watermark, |offset| offset.to_string()),
            known(row.lag_records, count),
            known(row.lag_bytes, size),
            known(row.lag_ms, |ms| time(Duration::from_millis(ms))),
            known(row.last_fetch_age_ms, |ms| time(Duration::from_millis(ms))),
            row.cause.clone(),
        ]);
    }
    for row in &look.leaderless {
        let mut cells = vec![
            row.topic.clone(),
            row.partition.to_string(),
            row.leader.map_or_else(|| "none".to_owned(), |node| node.to_string()),
            row.replica.to_string(),
            "unknown".to_owned(),
            known(row.log_end_offset, |offset| offset.to_string()),
            known(row.acknowledged_offset, |offset| offset.to_string()),
            known(row.high_watermark, |offset| offset.to_string()),
        ];
        cells.extend(std::iter::repeat_n("-".to_owned(), 4));
        cells.push(match row.leader_state {
            "none" => row.cause.clone(),
            hindrance => format!("{}: {hindrance}", row.cause),
        });
        table.row(cells);
    }
    table
}

/// What is not known shows as `-`, which is not 0.
fn known<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use highwater_client::ClientError;
    use highwater_client::describe::LostOffsets;
    use highwater_types::NodeId;

    use super::*;

    /// A replica whose leader is dead.
    pub(in super::super) fn leaderless() -> LeaderlessRow {
        LeaderlessRow {
            topic: "orders".to_owned(),
            topic_id: "6ba7b810-9dad-41d1-80b4-00c04fd430c8".to_owned(),
            partition: 1,
            leader: Some(7),
            leader_state: "dead",
            leader_epoch: Some(4),
            replica: 2,
            in_sync: Some(true),
            cause: "leader-unknown".to_owned(),
            error: None,
            log_end_offset: None,
            acknowledged_offset: None,
            high_watermark: None,
        }
    }

    /// A follower that lags.
    pub(in super::super) fn row() -> ReplicaRow {
        ReplicaRow {
            topic: "orders".to_owned(),
            topic_id: "6ba7b810-9dad-41d1-80b4-00c04fd430c8".to_owned(),
            partition: 0,
            leader: 1,
            leader_epoch: Some(4),
            leader_end_offset: Some(11_234),
            leader_high_watermark: Some(10_000),
            replica: 2,
            state: "in-sync".to_owned(),
            in_sync: true,
            log_end_offset: Some(10_500),
            acknowledged_offset: Some(10_000),
            high_watermark: Some(9_900),
            lag_records: Some(1_234),
            lag_bytes: Some(56_789),
            lag_ms: Some(12),
            last_fetch_age_ms: Some(0),
            cause: "follower-disk".to_owned(),
            leader_lost: Vec::new(),
        }
    }

    /// A follower of a leader that has lost records.
    fn loser() -> ReplicaRow {
        let lost = |start_offset, end_offset| LostOffsets { start_offset, end_offset };
        ReplicaRow { leader_lost: vec![lost(10, 20), lost(30, 31)], ..row() }
    }

    #[test]
    fn a_row_per_follower_and_a_line_per_node_that_cannot_be_asked() {
        let silent = ReplicaRow {
            replica: 3,
            state: "unknown".to_owned(),
            log_end_offset: None,
            acknowledged_offset: None,
            high_watermark: None,
            lag_records: None,
            lag_bytes: None,
            lag_ms: None,
            last_fetch_age_ms: None,
            cause: "not-fetching".to_owned(),
            ..loser()
        };
        let unreachable = BTreeMap::from([(NodeId::new(7).unwrap(), ClientError::Closed)]);
        let expected = [
            "TOPIC   PARTITION  LEADER  REPLICA  STATE      LEO  ACKNOWLEDGED    HW    LAG  LAG BYTES  LAG TIME  LAST FETCH  CAUSE",
            "orders          0       1        2  in-sync  10500         10000  9900  1,234    56.8 kB   12.0 ms        0 µs  follower-disk",
            "orders          0       1        3  unknown      -             -     -      -          -         -           -  not-fetching",
            "orders          1       7        2  unknown      -             -     -      -          -         -           -  leader-unknown: dead",
            "orders          2    none        2  unknown      -             -     -      -          -         -           -  leader-unknown",
            "orders          3       7        2  unknown  10500         10000  9900      -          -         -           -  network: dead",
            "orders          4       7        2  unknown      -             -     -      -          -         -           -  network: dead",
            "orders-0: its leader, node 1, has lost offsets [10, 20), [30, 31)",
            "node 7 cannot be asked: closed",
            "nobody can be asked which nodes there are: closed",
            "node 2 cannot fetch from node 7: connection refused",
        ];
        let none = LeaderlessRow { leader: None, leader_state: "none", partition: 2, ..leaderless() };
        let refused = LeaderlessRow {
            partition: 4,
            cause: "network".to_owned(),
            error: Some("connection refused".to_owned()),
            ..leaderless()
        };
        let told = LeaderlessRow {
            partition: 3,
            log_end_offset: Some(10_500),
            acknowledged_offset: Some(10_000),
            high_watermark: Some(9_900),
            ..refused.clone()
        };
        let leaderless = vec![leaderless(), none, told, refused];
        let look = ReplicationView {
            rows: vec![loser(), silent],
            leaderless,
            unreachable,
            cluster_unknown: Some(ClientError::Closed),
        };
        assert_eq!(lines(&look), expected);
    }

    #[test]
    fn a_cluster_without_followers_says_so() {
        assert_eq!(lines(&ReplicationView::default()), ["no followers"]);
    }
}
