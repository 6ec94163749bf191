//! A3: directories that our log wrote, as a leader and as a follower, pass Kafka's own DumpLogSegments: every batch and
//! record with `--deep-iteration`, and the indexes with its sanity check.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use highwater_log::{
    BufferPool, HighWatermark, Log, LogConfig, OnDamage, OpenOptions, OsStorage, PartitionLocks, ReadLimits,
};
use highwater_records::{BatchBuilder, Compression, Header, Producer};
use highwater_types::{
    Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use system_tests::kafka_dump::KafkaDump;
use system_tests::{log_dump, parts};
use tempfile::TempDir;
use uuid::Uuid;

const START: WallTime = WallTime::from_millis(1_700_000_000_000);
/// Small, so that a few hundred records make several segments with several index entries each.
const SEGMENT_BYTES: u32 = 16 << 10;
const INDEX_INTERVAL_BYTES: u32 = 512;

/// A node's data directory with one open log in it.
struct Node {
    directory: TempDir,
    log: Log<OsStorage>,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let topic_id = TopicId::new(Uuid::from_u128(0xa3)).unwrap();
        let partition = TopicPartition::new("ours".parse().unwrap(), PartitionIndex::new(0).unwrap());
        let id = TopicIdPartition::new(topic_id, partition.partition);
        let lock = PartitionLocks::open(directory.path()).unwrap().try_lock(id).unwrap().unwrap();
        let config = LogConfig {
            segment_bytes: SEGMENT_BYTES,
            index_interval_bytes: INDEX_INTERVAL_BYTES,
            ..LogConfig::default()
        };
        let options = OpenOptions {
            topic_id,
            config,
            boot_id: Uuid::from_u128(1),
            new_incarnation: Incarnation::new(1).unwrap(),
            on_damage: OnDamage::RenewIncarnation,
            read_buffers: BufferPool::new(0),
            now: START,
        };
        let (log, _) = Log::open(OsStorage, directory.path(), partition, lock, options).unwrap();
        Self { directory, log }
    }

    fn close(&self) {
        let high_watermark =
            HighWatermark { offset: self.log.log_end(), epoch: self.log.epochs().latest().map(|e| e.epoch) };
        self.log.close_clean(high_watermark).unwrap();
    }

    fn partition(&self) -> PathBuf {
        self.directory.path().join("ours-0")
    }
}

/// What a producer sends: number `number`, in one of the codecs.
fn batch(number: u32) -> Bytes {
    let codecs = Compression::ALL;
    let codec = codecs[usize::try_from(number).unwrap() % codecs.len()];
    let mut builder = BatchBuilder::new(codec);
    if number.is_multiple_of(3) {
        let base_sequence = i32::try_from(number * 8).unwrap();
        builder = builder.producer(Producer { id: 77, epoch: 2, base_sequence });
    }
    for record in 0..8 {
        let timestamp = WallTime::from_millis(START.as_millis() + i64::from(number * 10 + record % 4));
        let key = (record != 1).then(|| format!("key-{number}-{record}"));
        let value = (record != 2).then(|| format!("value {number} {record} ").repeat(10));
        let headers = [
            Header { key: "trace".to_owned(), value: Some(Bytes::from(vec![0xff; 4])) },
            Header { key: String::new(), value: None },
        ];
        let headers = &headers[..usize::try_from(record).unwrap() % 3];
        builder
            .append(
                timestamp,
                key.as_deref().map(str::as_bytes),
                value.as_deref().map(str::as_bytes),
                headers,
            )
            .unwrap();
    }
    builder.build().unwrap().freeze()
}

/// Appends what a leader would over three leaderships.
fn lead(node: &Node) {
    for epoch in [0, 1, 4] {
        let epoch = LeaderEpoch::new(epoch).unwrap();
        node.log.assign_epoch(epoch).unwrap();
        for number in 0..40 {
            // One append of one batch, and one of two.
            let inputs = [batch(number * 2), batch(number * 2 + 1)];
            let inputs = &inputs[..1 + usize::try_from(number).unwrap() % 2];
            node.log.append_as_leader(inputs, epoch, START).unwrap();
        }
    }
    node.log.flush().unwrap();
}

/// Copies everything from the leader by its answers, as a follower does.
fn follow(leader: &Node, follower: &Node) {
    let limits = ReadLimits { max_bytes: 3000, min_one_batch: true, upper: leader.log.log_end() };
    while follower.log.log_end() < leader.log.log_end() {
        let read = leader.log.read(follower.log.log_end(), limits).unwrap();
        let epoch = LeaderEpoch::new(4).unwrap();
        follower.log.append_as_follower(&read.records, epoch, START).unwrap();
    }
    follower.log.flush().unwrap();
}

fn files(partition: &Path, extensions: &[&str]) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    files.sort();
    files
}

/// Runs Kafka's DumpLogSegments on the files; returns what it printed, and what it complained of. It exits 0 on most
/// corruption, so its words count.
fn kafka(files: &[String], options: &[&str]) -> Option<(String, Vec<String>)> {
    let mut command = parts::dump_log_segments()?;
    let output = command.args(options).arg("--files").arg(files.join(",")).output().expect("java starts");
    // A segment that does not begin at 0 is "non-consecutive" to it: -1 is followed by the first offset.
    let harmless = |line: &str| {
        line.starts_with("Non-consecutive offsets in") || line.trim_start().starts_with("-1 is followed by")
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    let mut complaints: Vec<String> =
        complaints.lines().filter(|line| !harmless(line)).map(str::to_owned).collect();
    if !output.status.success() {
        complaints.push(output.status.to_string());
    }
    Some((String::from_utf8(output.stdout).unwrap(), complaints))
}

fn assert_kafka_agrees(partition: &Path) {
    let logs = files(partition, &["log"]);
    assert!(logs.len() >= 4, "several segments are wanted: {logs:?}");
    let Some((printed, complaints)) = kafka(&logs, &["--deep-iteration", "--print-data-log"]) else { return };
    assert_eq!(complaints, [""; 0]);
    let kafka_dump = KafkaDump::parse(&printed).unwrap();
    let (good, ours) = log_dump::dump(partition);
    assert!(good);
    assert_eq!(ours.len(), kafka_dump.logs.len());
    for segment in &ours {
        assert!(segment.batches.iter().all(|batch| batch.crc_ok));
        segment.assert_as_kafka_reads_it(&kafka_dump.logs[segment.path.to_str().unwrap()]);
    }
    assert_kafka_likes_the_indexes(partition);
}

fn assert_kafka_likes_the_indexes(partition: &Path) {
    let indexes = files(partition, &["index", "timeindex"]);
    // Each entry is looked up in the log beside the index: mismatches are complaints.
    let Some((printed, complaints)) = kafka(&indexes, &[]) else { return };
    assert_eq!(complaints, [""; 0]);
    let dump = KafkaDump::parse(&printed).unwrap();
    let entries: usize = dump.offset_indexes.values().map(Vec::len).sum();
    assert!(entries > 20, "only {entries} entries in the offset indexes");
    let Some((printed, complaints)) = kafka(&indexes, &["--index-sanity-check"]) else { return };
    assert_eq!(complaints, [""; 0]);
    let passed = printed.lines().filter(|line| line.ends_with("passed sanity check.")).count();
    assert_eq!(passed, indexes.len(), "{printed}");
    assert_eq!(log_dump::verify(partition), (true, vec![]), "our own check agrees");
}

#[test]
fn what_a_leader_wrote() {
    let leader = Node::new();
    lead(&leader);
    leader.close();
    assert_kafka_agrees(&leader.partition());
}

#[test]
fn what_a_follower_wrote() {
    let (leader, follower) = (Node::new(), Node::new());
    lead(&leader);
    follow(&leader, &follower);
    for node in [&leader, &follower] {
        node.close();
    }
    log_dump::assert_identical(&[&leader.partition(), &follower.partition()]);
    assert_kafka_agrees(&follower.partition());
}

#[test]
fn what_is_left_after_a_truncation() {
    let leader = Node::new();
    lead(&leader);
    // In the middle of the second leadership; what a new leader orders.
    let cut = Offset::new(leader.log.log_end().get() / 2).unwrap();
    leader.log.truncate_to(cut, Offset::ZERO, highwater_log::CutOrder::Leader).unwrap();
    let epoch = LeaderEpoch::new(9).unwrap();
    leader.log.assign_epoch(epoch).unwrap();
    for number in 0..40 {
        leader.log.append_as_leader(&[batch(number)], epoch, START).unwrap();
    }
    leader.close();
    assert_kafka_agrees(&leader.partition());
}

#[test]
fn kafka_would_complain_of_a_wrong_index_and_a_wrong_byte() {
    let leader = Node::new();
    lead(&leader);
    leader.close();
    let indexes = files(&leader.partition(), &["index"]);
    let mut bytes = fs::read(&indexes[0]).unwrap();
    bytes[7] ^= 1;
    fs::write(&indexes[0], &bytes).unwrap();
    let Some((_, complaints)) = kafka(&indexes[..1], &[]) else { return };
    assert!(!complaints.is_empty(), "a position that is off by one");

    let logs = files(&leader.partition(), &["log"]);
    let mut bytes = fs::read(&logs[0]).unwrap();
    bytes[100] ^= 1;
    fs::write(&logs[0], &bytes).unwrap();
    let Some((printed, _)) = kafka(&logs[..1], &[]) else { return };
    assert!(KafkaDump::parse(&printed).unwrap().logs[&logs[0]].batches.iter().any(|batch| !batch.is_valid));
}
