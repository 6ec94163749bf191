//! What the demo says.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use highwater_client::DescribedTopic;
use highwater_types::TopicName;

use super::nodes::Nodes;
use super::replicate::Replicated;
use super::takeover::{Killed, Successor};
use super::verify::{Compared, ReadBack};
use crate::figures::{count, counted, per_second, rate, size, time};
use crate::load::Account;

pub(super) fn nodes(nodes: &Nodes) -> String {
    let mut text = counted(nodes.plans().len() as u64, "node");
    for node in nodes.plans() {
        let (id, leader_svc, follower_agent) = (node.id, node.leader_svc, node.follower_agent);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  node {id}: leader-svc {leader_svc}, follower-agent {follower_agent}");
    }
    text
}

pub(super) fn topic(topic: &DescribedTopic, replicas: usize) -> String {
    let partitions = u64::try_from(topic.record.partitions).unwrap_or(0);
    let properties = &topic.record.properties;
    format!(
        "topic {}: {} of {}, durability={}, min.insync.replicas={}",
        topic.record.name,
        counted(partitions, "partition"),
        counted(replicas as u64, "replica"),
        properties.durability,
        properties.min_insync_replicas,
    )
}

/// Which node is about to be killed.
pub(super) fn kill(topic: &TopicName, killed: &Killed, acknowledged: u64) -> String {
    let led: Vec<String> = killed.led.keys().map(|partition| format!("{topic}-{partition}")).collect();
    format!(
        "{} acknowledged; kill -9 of both programs of node {}, which leads {}",
        counted(acknowledged, "record"),
        killed.node,
        led.join(", "),
    )
}

/// Who leads instead; `sent` records were sent before.
pub(super) fn successors(topic: &TopicName, killed: &Killed, found: &[Successor], sent: u64) -> String {
    let mut text = String::new();
    for Successor { partition, node, epoch, before, after } in found {
        let (killed, after) = (killed.node, time(*after));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  node {node} leads {topic}-{partition} in epoch {epoch}, {after} after the kill; node {killed} led in epoch {before}"
        );
    }
    text + &format!("  meanwhile {} were sent", counted(sent, "record"))
}

/// That the killed node is there again.
pub(super) fn started_again(killed: &Killed) -> String {
    format!("node {} is started again, follows, and has to catch up", killed.node)
}

/// How long nothing was acknowledged of what the killed node led.
fn pause(account: &Account, killed: &Killed) -> Option<String> {
    let pauses = account.pauses.iter().filter(|(partition, _)| killed.led.contains_key(partition));
    let longest = pauses.map(|(_, pause)| *pause).max()?;
    Some(format!(
        "longest wait without an acknowledgement where node {} led: {}\n",
        killed.node,
        time(longest)
    ))
}

pub(super) fn replicated(replicated: &Replicated, topic: &DescribedTopic) -> String {
    let Replicated { account, records, bytes, took, killed, caught_up, peak } = replicated;
    let (pause, takeover) = killed.as_ref().map_or_else(Default::default, |killed| {
        (pause(account, killed).unwrap_or_default(), " with the takeover")
    });
    let quantile = |q: f64| time(Duration::from_micros(account.latencies.value_at_quantile(q)));
    format!(
        "acknowledged {} ({}) in {}{takeover}: {}, {}/s (acks=all, durability={})\n\
         {pause}\
         time to acknowledgement: p50 {}, p99 {}, longest {}\n\
         largest lag of a node: {peak}; caught up {} after the last acknowledgement",
        counted(*records, "record"),
        size(*bytes),
        time(*took),
        rate(*bytes, *took),
        counted(per_second(*records, *took), "record"),
        topic.record.properties.durability,
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
        time(*caught_up),
    )
}

pub(super) fn read_back(records: u64, read: &ReadBack) -> String {
    let mut text = format!("read back {}, each as it was sent", counted(records, "record"));
    if read.extra > 0 {
        let _ = write!(text, "; {} more are there without an acknowledgement", count(read.extra));
    }
    text
}

pub(super) fn compared(compared: &Compared, replicas: usize) -> String {
    if replicas < 2 {
        return "one replica, so none to compare with".to_owned();
    }
    let verdict = if compared.faults.is_empty() { "identical" } else { "NOT identical" };
    format!(
        "compared {}: {verdict}; {} and {} of each are the same",
        counted(replicas as u64, "replica"),
        counted(compared.batches, "batch"),
        size(compared.bytes),
    )
}

pub(super) fn verified(replicas: usize) -> &'static str {
    if replicas < 2 {
        "verified: nothing that was acknowledged is missing"
    } else {
        "verified: nothing that was acknowledged is missing, and all replicas are identical"
    }
}

/// Commands that show the running nodes.
pub(super) fn look_around(nodes: &Nodes, topic: &DescribedTopic) -> String {
    let name = &topic.record.name;
    let first = nodes.plans().first();
    let any = first.map_or_else(String::new, |node| node.leader_svc.to_string());
    let agent = first.map_or_else(String::new, |node| node.follower_agent.to_string());
    let leader = topic.partitions.first().and_then(|partition| partition.leader_endpoint.as_ref());
    let leader = leader.map_or_else(|| any.clone(), ToString::to_string);
    format!(
        r#"  highwater topics describe {name} --bootstrap {any}
  highwater consume {name} --from earliest --max-records 10 --bootstrap {any}
  highwater lag --watch --bootstrap {any}
  grpcurl -plaintext {any} list
  grpcurl -plaintext -d '{{"partitions":[{{"topic":"{name}","partition":0,"fetch_offset":0}}]}}' \
      {leader} highwater.v1.LogService/Fetch
  grpcurl -plaintext -d '{{"topic":"{name}","partition":0,"offset":0,"max_records":3}}' \
      {leader} highwater.v1.ReplicationService/ReadRecords
  grpcurl -plaintext {leader} highwater.v1.ReplicationService/DescribeReplication
  grpcurl -plaintext {agent} highwater.v1.ReplicationService/DescribeFetchers"#
    )
}

/// How the nodes that were left running are stopped.
pub(super) fn how_to_stop(ids: &[u32], place: &Path) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let place = place.display();
    format!(
        "the nodes stay, in {place}\n  to stop them:          kill {}\n  to remove their data:  rm -r {place}\nto look around:",
        ids.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_found_something_does_not_read_as_if_all_were_well() {
        let mut found = Compared { faults: vec![], batches: 1, bytes: 5_000_000 };
        assert_eq!(
            compared(&found, 3),
            "compared 3 replicas: identical; 1 batch and 5.0 MB of each are the same"
        );
        assert!(!compared(&found, 1).contains("identical"));
        found.faults.push("demo-0: different".to_owned());
        assert!(compared(&found, 3).contains("NOT identical"));
    }

    #[test]
    fn it_is_told_how_to_stop_what_stays() {
        let text = how_to_stop(&[12, 34], Path::new("/tmp/x"));
        assert!(text.contains("kill 12 34\n") && text.contains("rm -r /tmp/x\n"), "{text}");
    }

    #[test]
    fn records_without_an_acknowledgement_are_told() {
        let read = |extra| read_back(2, &ReadBack { faults: vec![], extra });
        assert_eq!(read(0), "read back 2 records, each as it was sent");
        assert!(read(7).ends_with("; 7 more are there without an acknowledgement"));
    }
}
