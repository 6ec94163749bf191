//! `highwater log dump|verify|compare --output json`, run and read.

use std::path::{Path, PathBuf};
use std::process::Output;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::kafka_dump::{BatchDump, Content, LogDump, RecordDump};
use crate::programs;

/// What `log dump` printed about one partition.
#[derive(Debug, Deserialize)]
pub struct Partition {
    /// Its directory.
    pub directory: PathBuf,
    /// The partition's topic id, as a UUID.
    pub topic_id: Option<String>,
    /// Where each leadership began.
    pub leader_epochs: Vec<EpochStart>,
    /// The segments.
    #[serde(skip)]
    pub segments: Vec<Segment>,
}

/// An entry of the leader epoch checkpoint.
#[derive(Debug, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct EpochStart {
    pub epoch: i32,
    pub start_offset: i64,
}

/// What `log dump` printed about one segment.
#[derive(Debug, Default)]
pub struct Segment {
    /// The segment's file.
    pub path: PathBuf,
    /// Its batches, those with a wrong CRC too.
    pub batches: Vec<Batch>,
    /// The bytes in it that are no good batch.
    pub damage: Vec<Damage>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum DumpLine {
    Partition(Partition),
    Segment { file: String },
    Batch(Batch),
    Damage(Damage),
}

/// A batch. The names are those of the JSON output.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Batch {
    pub position: u64,
    pub size: u64,
    pub base_offset: i64,
    pub last_offset: i64,
    pub record_count: i32,
    pub leader_epoch: i32,
    pub compression: String,
    pub timestamp_type: String,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub last_sequence: i32,
    pub transactional: bool,
    pub control: bool,
    pub delete_horizon: Option<i64>,
    pub crc: u32,
    pub crc_ok: bool,
    #[serde(default)]
    pub records: Vec<Record>,
    pub records_error: Option<String>,
}

/// A record.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Record {
    pub offset: i64,
    pub timestamp: i64,
    pub sequence: i32,
    pub key: Option<Data>,
    pub value: Option<Data>,
    pub headers: Vec<Header>,
    pub control: Option<Control>,
}

/// A header of a record.
#[derive(Debug, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Header {
    pub key: String,
    pub value: Option<Data>,
}

/// A control record.
#[derive(Debug, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Control {
    pub control_type: String,
    pub coordinator_epoch: Option<i32>,
}

/// Bytes, as text when they are UTF-8.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants are those of the command, which documents them")]
pub enum Data {
    Text(String),
    Base64(String),
}

/// Bytes that are no good batch.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Damage {
    pub position: u64,
    pub bytes: u64,
    pub reason: String,
    pub resumes_at: Option<i64>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum VerifyLine {
    Finding(Finding),
    Summary {},
}

/// Something that `log verify` found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the command, which documents them")]
pub struct Finding {
    pub severity: String,
    pub kind: String,
    pub file: PathBuf,
    pub position: Option<u64>,
    pub offset: Option<i64>,
    pub end_offset: Option<i64>,
    pub detail: String,
}

impl Segment {
    /// Compares everything that Kafka printed about this segment with what `log dump` printed.
    ///
    /// # Panics
    /// At the first batch that differs.
    pub fn assert_as_kafka_reads_it(&self, kafka: &LogDump) {
        let file = self.path.display();
        for (ours, kafka) in self.batches.iter().zip(&kafka.batches) {
            assert_eq!(&ours.as_kafka_prints_it(), kafka, "{file}");
        }
        assert_eq!(self.batches.len(), kafka.batches.len(), "{file}");
        let tail = self.damage.iter().find(|damage| damage.resumes_at.is_none());
        assert_eq!(tail.map(|damage| damage.bytes), kafka.invalid_tail_bytes, "{file}");
    }
}

impl Batch {
    fn as_kafka_prints_it(&self) -> BatchDump {
        assert_eq!(self.records_error, None, "batch at {}", self.base_offset);
        BatchDump {
            base_offset: self.base_offset,
            last_offset: self.last_offset,
            count: self.record_count,
            base_sequence: self.base_sequence,
            last_sequence: self.last_sequence,
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            leader_epoch: self.leader_epoch,
            is_transactional: self.transactional,
            is_control: self.control,
            delete_horizon: self.delete_horizon,
            position: self.position,
            timestamp_type: self.timestamp_type.clone(),
            max_timestamp: self.max_timestamp,
            size: self.size,
            compression: self.compression.clone(),
            crc: self.crc,
            is_valid: self.crc_ok,
            records: self.records.iter().map(|r| r.as_kafka_prints_it(&self.timestamp_type)).collect(),
        }
    }
}

impl Record {
    fn as_kafka_prints_it(&self, timestamp_type: &str) -> RecordDump {
        let text = |data: &Data| String::from_utf8_lossy(&data.bytes()).into_owned();
        let size = |data: &Data| i64::try_from(data.bytes().len()).expect("a length");
        let content = match &self.control {
            Some(control) => Content::EndTransaction {
                control_type: control.control_type.clone(),
                coordinator_epoch: control.coordinator_epoch.expect("a marker has one"),
            },
            None => Content::Data { key: self.key.as_ref().map(text), value: self.value.as_ref().map(text) },
        };
        RecordDump {
            offset: self.offset,
            timestamp_type: timestamp_type.to_owned(),
            timestamp: self.timestamp,
            key_size: self.key.as_ref().map_or(-1, size),
            value_size: self.value.as_ref().map_or(-1, size),
            sequence: self.sequence,
            header_keys: self.headers.iter().map(|h| h.key.as_str()).collect::<Vec<_>>().join(","),
            content,
        }
    }
}

impl Data {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Base64(encoded) => STANDARD.decode(encoded).expect("base64"),
        }
    }
}

/// Runs `highwater log dump` on one partition's directory; returns whether it found all in order, and what it printed.
#[must_use]
pub fn dump(directory: &Path) -> (bool, Partition) {
    let output = run("dump", &[directory]);
    let mut lines =
        lines(&output).map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")));
    let Some(DumpLine::Partition(mut partition)) = lines.next() else { panic!("a partition comes first") };
    for line in lines {
        let segment = partition.segments.last_mut();
        match line {
            DumpLine::Partition(_) => panic!("{} is one partition", directory.display()),
            DumpLine::Segment { file } => {
                let path = partition.directory.join(file);
                partition.segments.push(Segment { path, ..Segment::default() });
            }
            DumpLine::Batch(batch) => segment.expect("after a segment").batches.push(batch),
            DumpLine::Damage(damage) => segment.expect("after a segment").damage.push(damage),
        }
    }
    (output.status.success(), partition)
}

/// Runs `highwater log verify`; returns whether it found all in order, and what it found.
#[must_use]
pub fn verify(directory: &Path) -> (bool, Vec<Finding>) {
    let output = run("verify", &[directory]);
    let findings = lines(&output)
        .filter_map(|line| match serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")) {
            VerifyLine::Finding(finding) => Some(finding),
            VerifyLine::Summary {} => None,
        })
        .collect();
    (output.status.success(), findings)
}

/// Runs `highwater log compare` and checks that the logs are identical, down to where they end.
///
/// # Panics
/// When they are not; with what the command printed.
pub fn assert_identical(directories: &[&Path]) {
    let output = run("compare", directories);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

fn run(command: &str, directories: &[&Path]) -> Output {
    programs::command("highwater")
        .args(["log", command, "--output", "json"])
        .args(directories)
        .output()
        .expect("highwater starts")
}

/// The lines of the output; a command that could not do its work fails the test.
fn lines(output: &Output) -> impl Iterator<Item = String> {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.is_empty() && output.status.code().is_some(), "{:?}: {complaint}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>().into_iter()
}
