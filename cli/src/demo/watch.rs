//! The followers' lag while records are replicated: drawn as bars on a terminal, printed now and then elsewhere.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

use highwater_client::Client;
use highwater_client::describe::ReplicaRow;
use highwater_types::TopicName;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::figures::{counted, size, time};
use crate::load::Progress;

/// How often the leaders are asked.
const LOOK: Duration = Duration::from_millis(200);
/// How often a line is printed where there is no terminal.
const PRINT: Duration = Duration::from_secs(2);

/// How far one node's followers are, all partitions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLag {
    records: u64,
    bytes: u64,
    /// The largest of its partitions, in milliseconds.
    millis: u64,
    acknowledged: u64,
    end: u64,
}

/// The largest lag that any node had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peak {
    records: u64,
    bytes: u64,
    millis: u64,
}

impl Peak {
    fn raise(&mut self, lag: &NodeLag) {
        self.records = self.records.max(lag.records);
        self.bytes = self.bytes.max(lag.bytes);
        self.millis = self.millis.max(lag.millis);
    }
}

impl std::fmt::Display for Peak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { records, bytes, millis } = *self;
        write!(f, "{}, {}, {}", counted(records, "record"), size(bytes), time(Duration::from_millis(millis)))
    }
}

impl std::fmt::Display for NodeLag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { records, bytes, millis, .. } = *self;
        Peak { records, bytes, millis }.fmt(f)
    }
}

/// Adds the rows of each node up.
fn by_node(rows: &[ReplicaRow]) -> BTreeMap<i32, NodeLag> {
    let mut nodes: BTreeMap<i32, NodeLag> = BTreeMap::new();
    let offset = |offset: Option<i64>| offset.and_then(|o| u64::try_from(o).ok()).unwrap_or(0);
    for row in rows {
        let node = nodes.entry(row.replica).or_default();
        node.records = node.records.saturating_add(row.lag_records.unwrap_or(0));
        node.bytes = node.bytes.saturating_add(row.lag_bytes.unwrap_or(0));
        node.millis = node.millis.max(row.lag_ms.unwrap_or(0));
        node.acknowledged = node.acknowledged.saturating_add(offset(row.acknowledged_offset));
        node.end = node.end.saturating_add(offset(row.leader_end_offset));
    }
    nodes
}

/// Whether every one of so many followers holds all that its leader holds.
pub(super) fn is_caught_up(rows: &[ReplicaRow], followers: usize) -> bool {
    rows.len() == followers && rows.iter().all(|row| row.in_sync && row.lag_records == Some(0))
}

/// Watches until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Watch {
    task: JoinHandle<Peak>,
    stop: DropGuard,
}

impl Watch {
    /// Starts to watch the followers of `topic` while `bytes` bytes are sent.
    pub(super) fn start(client: Client, topic: TopicName, progress: Arc<Progress>, bytes: u64) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut view = View::new(bytes);
            let mut peak = Peak::default();
            let mut looks = tokio::time::interval(LOOK);
            while stopped.run_until_cancelled(looks.tick()).await.is_some() {
                // A leader that does not answer now may do so with the next look; the verdict does not depend on it.
                let Ok(look) = client.describe_replication(std::slice::from_ref(&topic)).await else {
                    continue;
                };
                let nodes = by_node(&look.rows);
                nodes.values().for_each(|lag| peak.raise(lag));
                view.show(progress.bytes(), &nodes);
            }
            view.clear();
            peak
        });
        Self { task, stop: stop.drop_guard() }
    }

    /// Stops; returns the largest lag that was seen.
    pub(super) async fn stop(self) -> Peak {
        drop(self.stop);
        self.task.await.unwrap_or_default()
    }
}

/// What is drawn or printed.
#[derive(Debug)]
enum View {
    Bars { all: MultiProgress, sent: ProgressBar, nodes: BTreeMap<i32, ProgressBar> },
    Lines { next: Instant, bytes: u64 },
}

impl View {
    fn new(bytes: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self::Lines { next: Instant::now() + PRINT, bytes };
        }
        let all = MultiProgress::new();
        let style =
            "{prefix:12} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}, {eta} left";
        let sent = all.add(ProgressBar::new(bytes).with_style(bar_style(style)).with_prefix("acknowledged"));
        Self::Bars { all, sent, nodes: BTreeMap::new() }
    }

    fn show(&mut self, acknowledged: u64, lags: &BTreeMap<i32, NodeLag>) {
        match self {
            Self::Bars { all, sent, nodes } => {
                sent.set_position(acknowledged);
                for (id, lag) in lags {
                    let bar = nodes.entry(*id).or_insert_with(|| {
                        let bar = ProgressBar::new(0).with_style(bar_style("{prefix:12} {bar:30} lag {msg}"));
                        all.add(bar.with_prefix(format!("node {id}")))
                    });
                    bar.set_message(lag.to_string());
                    bar.update(|state| {
                        state.set_len(lag.end);
                        state.set_pos(lag.acknowledged);
                    });
                }
            }
            Self::Lines { next, bytes } if *next <= Instant::now() => {
                *next = Instant::now() + PRINT;
                // That nobody listens there is no failure.
                let _ = writeln!(io::stderr(), "{}", line(acknowledged, *bytes, lags));
            }
            Self::Lines { .. } => {}
        }
    }

    fn clear(&self) {
        if let Self::Bars { all, .. } = self {
            // What cannot be cleared stays on the screen.
            let _ = all.clear();
        }
    }
}

fn line(acknowledged: u64, bytes: u64, lags: &BTreeMap<i32, NodeLag>) -> String {
    let mut line = format!("  {} of {} acknowledged; lag", size(acknowledged), size(bytes));
    for (index, (id, lag)) in lags.iter().enumerate() {
        line.push_str(if index == 0 { " " } else { "; " });
        line.push_str(&format!("node {id}: {lag}"));
    }
    line
}

fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a legal constant")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(partition: i32, replica: i32, acknowledged: i64, end: i64) -> ReplicaRow {
        let lag = u64::try_from(end - acknowledged).unwrap();
        ReplicaRow {
            topic: "demo".to_owned(),
            topic_id: String::new(),
            partition,
            leader: 1,
            leader_epoch: Some(0),
            leader_end_offset: Some(end),
            leader_high_watermark: Some(acknowledged),
            replica,
            state: "in-sync".to_owned(),
            in_sync: true,
            log_end_offset: Some(acknowledged),
            acknowledged_offset: Some(acknowledged),
            high_watermark: Some(acknowledged),
            lag_records: Some(lag),
            lag_bytes: Some(lag * 100),
            lag_ms: Some(lag),
            last_fetch_age_ms: Some(1),
            cause: "none".to_owned(),
            leader_lost: Vec::new(),
        }
    }

    #[test]
    fn partitions_of_a_node_are_added_up_and_shown_in_a_line() {
        let nodes = by_node(&[row(0, 2, 10, 30), row(1, 2, 5, 5), row(0, 3, 30, 30)]);
        let expected = NodeLag { records: 20, bytes: 2000, millis: 20, acknowledged: 15, end: 35 };
        assert_eq!(nodes[&2], expected);
        assert_eq!(
            line(1_500_000, 3_000_000, &nodes),
            "  1.5 MB of 3.0 MB acknowledged; lag node 2: 20 records, 2.0 kB, 20.0 ms; node 3: 0 records, 0 B, 0 µs"
        );
    }

    #[test]
    fn followers_have_caught_up_once_all_are_in_sync_and_lack_nothing() {
        let caught_up = [row(0, 2, 30, 30), row(0, 3, 30, 30)];
        assert!(is_caught_up(&caught_up, 2));
        assert!(!is_caught_up(&caught_up, 4), "some leaders were not asked");
        assert!(!is_caught_up(&[row(0, 2, 30, 30), row(0, 3, 29, 30)], 2));
        let mut out_of_sync = caught_up;
        out_of_sync[1].in_sync = false;
        assert!(!is_caught_up(&out_of_sync, 2));
    }
}
