//! Checks of the small files: leader epochs, topic id, and Kafka's checkpoints of a node.

use std::fs;
use std::io;
use std::path::Path;

use highwater_types::{LeaderEpoch, Offset, TopicId};

use super::finding::{Finding, FindingKind};
use super::segments::Walked;
use crate::log::partition::{EPOCH_FILE, METADATA_FILE, PartitionDir};

/// Kafka's checkpoints of a node: an offset per partition.
const NODE_CHECKPOINTS: [&str; 4] = [
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
];
/// Other files of a data directory, of Kafka's and ours.
const NODE_FILES: [&str; 6] =
    ["meta.properties", "bootstrap.checkpoint", ".kafka_cleanshutdown", ".lock", "disk-id", "lost+found"];

pub(super) fn is_node_checkpoint(name: &str) -> bool {
    NODE_CHECKPOINTS.contains(&name)
}

pub(super) fn is_node_file(name: &str) -> bool {
    NODE_FILES.contains(&name)
}

/// Checks a node's checkpoint of Kafka: version 0, a count, and as many lines of topic, partition and offset.
pub(super) fn check_node_checkpoint(path: &Path, findings: &mut Vec<Finding>) {
    let parsed = read_checkpoint(path, |line| {
        let [_topic, partition, offset] = fields(line)?;
        partition.parse::<i32>().ok()?;
        offset.parse::<i64>().ok()
    });
    if let Err(finding) = parsed {
        findings.push(finding);
    }
}

/// Checks the epoch checkpoint: readable, strictly rising, and what the batches say.
pub(super) fn check_epochs(partition: &PartitionDir, walked: &Walked, findings: &mut Vec<Finding>) {
    let path = partition.single_file(EPOCH_FILE);
    let parsed = read_checkpoint(&path, |line| {
        let [epoch, start] = fields(line)?;
        Some((LeaderEpoch::new(epoch.parse().ok()?)?, Offset::new(start.parse().ok()?)?))
    });
    let entries = match parsed {
        Ok(entries) => entries,
        // A log without batches need not have had a leader.
        Err(finding) if finding.kind == FindingKind::MissingCheckpoint && walked.batches == 0 => return,
        Err(finding) => return findings.push(finding),
    };
    if entries.array_windows().any(|[a, b]| a.0 >= b.0 || a.1 >= b.1) {
        let detail = "epochs or start offsets do not rise";
        return findings.push(Finding::problem(FindingKind::GarbledCheckpoint, &path, detail));
    }
    // What lies below the log start may be on the disk still, and is in the checkpoint no more.
    let log_start = entries.first().map_or(Offset::ZERO, |(_, start)| *start);
    for run in walked.epochs.iter().filter(|run| run.end > log_start) {
        let first = run.start.max(log_start);
        let after = entries.partition_point(|(_, start)| *start <= first);
        let noted = after.checked_sub(1).and_then(|at| entries.get(at)).map(|(noted, _)| *noted);
        if noted != Some(run.epoch) {
            let noted = noted.map_or_else(|| "none".to_owned(), |noted| noted.to_string());
            let detail = format!("the batch has epoch {}, the checkpoint says {noted}", run.epoch);
            findings
                .push(Finding::problem(FindingKind::WrongEpochs, &path, detail).offsets(first.get(), None));
        }
    }
}

/// Checks `partition.metadata`: version 0 and a topic id in Kafka's base64.
pub(super) fn check_topic_id(partition: &PartitionDir, findings: &mut Vec<Finding>) {
    let path = partition.single_file(METADATA_FILE);
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(finding) => return findings.push(finding),
    };
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':')).map(str::trim)
    };
    let id = value("topic_id").and_then(TopicId::from_kafka_text);
    if value("version") != Some("0") || id.is_none() {
        let detail = "version 0 and a topic id are expected";
        findings.push(Finding::problem(FindingKind::GarbledCheckpoint, &path, detail));
    }
}

/// Reads a checkpoint in Kafka's text form: a version, a count, and as many lines.
fn read_checkpoint<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Finding> {
    let text = read_text(path)?;
    let garbled = |detail: String| Finding::problem(FindingKind::GarbledCheckpoint, path, detail);
    let mut lines = text.lines();
    if lines.next() != Some("0") {
        return Err(garbled("the first line is not version 0".to_owned()));
    }
    let count: Option<usize> = lines.next().and_then(|line| line.parse().ok());
    let mut entries = Vec::new();
    for (index, line) in lines.enumerate() {
        entries.push(parse(line).ok_or_else(|| garbled(format!("entry {index} is none")))?);
    }
    if count == Some(entries.len()) && text.ends_with('\n') {
        Ok(entries)
    } else {
        Err(garbled(format!("{} entries do not fit the count, or the last line is cut off", entries.len())))
    }
}

fn read_text(path: &Path) -> Result<String, Finding> {
    let problem = |kind, detail: String| Err(Finding::problem(kind, path, detail));
    match fs::read_to_string(path) {
        Ok(text) if text.is_empty() => {
            problem(FindingKind::EmptyCheckpoint, "the file has no bytes".to_owned())
        }
        Ok(text) => Ok(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            problem(FindingKind::MissingCheckpoint, "the file is not there".to_owned())
        }
        Err(e) => problem(FindingKind::GarbledCheckpoint, e.to_string()),
    }
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let fields: Vec<&str> = line.split(' ').collect();
    fields.try_into().ok()
}
