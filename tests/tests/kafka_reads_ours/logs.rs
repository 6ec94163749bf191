//! Logs of every kind that our log writes, made by its own operations.

use std::fs::{self, OpenOptions as OpenOptionsOfFiles};
use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use highwater_log::checkpoint::KafkaCheckpoints;
use highwater_log::{
    AdoptOptions, BufferPool, CutOrder, HighWatermark, Log, LogConfig, OnDamage, OpenOptions, OpenReport,
    OsStorage, PartitionLocks, ReadLimits, Repair, adopt_partition, list_adoptable,
};
use highwater_records::{BatchBuilder, Compression, ControlRecord, Header, Producer, batches};
use highwater_types::{
    Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use system_tests::fixtures::Fixture;
use system_tests::log_dump;
use tempfile::TempDir;
use uuid::Uuid;

use crate::verdict::files;

const START: WallTime = WallTime::from_millis(1_700_000_000_000);
/// Small, so that a few hundred records make several segments with several index entries each.
const SEGMENT_BYTES: u32 = 16 << 10;
const INDEX_INTERVAL_BYTES: u32 = 512;

/// A node's data directory with one log in it.
pub(crate) struct Node {
    directory: TempDir,
    log: Option<Log<OsStorage>>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self { directory: tempfile::tempdir().unwrap(), log: None };
        node.open();
        node
    }

    fn open(&mut self) -> OpenReport {
        let directory = self.directory.path();
        let topic_id = TopicId::new(Uuid::from_u128(0xa3)).unwrap();
        let partition = TopicPartition::new("ours".parse().unwrap(), PartitionIndex::new(0).unwrap());
        let id = TopicIdPartition::new(topic_id, partition.partition);
        let lock = PartitionLocks::open(directory).unwrap().try_lock(id).unwrap().unwrap();
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
        let (log, report) = Log::open(OsStorage, directory, partition, lock, options).unwrap();
        self.log = Some(log);
        report
    }

    fn log(&self) -> &Log<OsStorage> {
        self.log.as_ref().unwrap()
    }

    pub(crate) fn close(&self) {
        let (offset, epochs) = (self.log().log_end(), self.log().epochs());
        self.log()
            .close_clean(HighWatermark { offset, epoch: epochs.latest().map(|entry| entry.epoch) })
            .unwrap();
    }

    pub(crate) fn partition(&self) -> PathBuf {
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
        lead_in(node, epoch, 0..40);
    }
    assert!(files(&node.partition(), &["log"]).len() >= 4, "several segments");
    node.log().flush().unwrap();
}

/// Appends what a leader would in one leadership: one batch at a time, or two.
fn lead_in(node: &Node, epoch: i32, numbers: Range<u32>) {
    let epoch = LeaderEpoch::new(epoch).unwrap();
    node.log().assign_epoch(epoch).unwrap();
    for number in numbers {
        let inputs = [batch(number * 2), batch(number * 2 + 1)];
        let inputs = &inputs[..1 + usize::try_from(number).unwrap() % 2];
        node.log().append_as_leader(inputs, epoch, START).unwrap();
    }
}

/// Copies everything from the leader by its answers, as a follower does.
fn follow(leader: &Node, follower: &Node) {
    let (leader, follower) = (leader.log(), follower.log());
    let limits = ReadLimits { max_bytes: 3000, min_one_batch: true, upper: leader.log_end(), checked: true };
    while follower.log_end() < leader.log_end() {
        let read = leader.read(follower.log_end(), limits).unwrap();
        follower.append_as_follower(&read.records, LeaderEpoch::new(4).unwrap(), START).unwrap();
    }
    follower.flush().unwrap();
}

/// Led over three leaderships.
pub(crate) fn led() -> Node {
    let leader = Node::new();
    lead(&leader);
    leader
}

/// Copied from a leader.
pub(crate) fn followed() -> Node {
    let (leader, follower) = (led(), Node::new());
    follow(&leader, &follower);
    log_dump::assert_identical(&[&leader.partition(), &follower.partition()]);
    follower
}

/// Cut in the middle of the second leadership, as a new leader orders, and written on in a third.
pub(crate) fn truncated() -> Node {
    let node = led();
    let cut = Offset::new(node.log().log_end().get() / 2).unwrap();
    node.log().truncate_to(cut, Offset::ZERO, CutOrder::Leader).unwrap();
    lead_in(&node, 9, 0..40);
    node
}

/// Not closed, its last batch torn, its indexes lost; then opened again and written on.
pub(crate) fn recovered() -> Node {
    let mut node = led();
    let end = node.log().log_end();
    node.log = None;
    let logs = files(&node.partition(), &["log"]);
    let torn = &batch(1)[..100];
    OpenOptionsOfFiles::new().append(true).open(logs.last().unwrap()).unwrap().write_all(torn).unwrap();
    for index in files(&node.partition(), &["index", "timeindex"]) {
        fs::remove_file(index).unwrap();
    }
    let report = node.open();
    assert!(report.repairs.iter().any(|repair| matches!(repair, Repair::TailCut { .. })), "{report:?}");
    assert_eq!(node.log().log_end(), end, "only the torn batch is gone");
    lead_in(&node, 5, 0..40);
    node
}

/// Begun anew at an offset far from 0, and its beginning removed again later.
pub(crate) fn with_a_log_start() -> Node {
    let node = Node::new();
    node.log()
        .truncate_fully_and_start_at(Offset::new(1_000_000).unwrap(), Offset::ZERO, CutOrder::Leader)
        .unwrap();
    lead(&node);
    let middle = Offset::new(1_000_000 + (node.log().log_end().get() - 1_000_000) / 2).unwrap();
    node.log().raise_log_start(middle).unwrap();
    assert!(node.log().log_start() >= middle);
    node
}

/// Timestamps that are absent, fall, lie before 1970 or far in the future.
pub(crate) fn with_odd_timestamps() -> Node {
    let node = Node::new();
    let epoch = LeaderEpoch::new(0).unwrap();
    node.log().assign_epoch(epoch).unwrap();
    let future = START.as_millis() + 10 * 365 * 24 * 3_600_000;
    for round in 0..200_i64 {
        let codec = Compression::ALL[usize::try_from(round).unwrap() % Compression::ALL.len()];
        let mut builder = BatchBuilder::new(codec);
        for timestamp in [-1, START.as_millis() - round, future + round % 7, 0, -1] {
            let timestamp = WallTime::from_millis(if round % 4 == 0 { -1 } else { timestamp });
            builder.append(timestamp, None, Some(b"odd"), &[]).unwrap();
        }
        node.log().append_as_leader(&[builder.build().unwrap().freeze()], epoch, START).unwrap();
    }
    node
}

/// What only Kafka writes: transactional batches, the marks that end transactions, batches that compaction emptied.
pub(crate) fn with_foreign_batches() -> Node {
    let node = Node::new();
    let epoch = LeaderEpoch::new(3).unwrap();
    let mut bytes = BytesMut::new();
    let mut offset = 0;
    for round in 0..40 {
        let at = |offset| Offset::new(offset).unwrap();
        let producer = Producer { id: 4000, epoch: 1, base_sequence: round };
        let mut data = BatchBuilder::new(Compression::Lz4)
            .producer(producer)
            .transactional()
            .base_offset(at(offset))
            .leader_epoch(epoch);
        data.append(START, Some(b"k"), Some(&[b'v'; 200]), &[]).unwrap();
        bytes.extend_from_slice(&data.build().unwrap());
        let mark = ControlRecord::end_transaction(round % 2 == 0, round);
        let control = BatchBuilder::new(Compression::None)
            .producer(Producer { base_sequence: -1, ..producer })
            .transactional()
            .base_offset(at(offset + 1))
            .leader_epoch(epoch);
        bytes.extend_from_slice(&control.build_control(mark, START).unwrap());
        bytes.extend_from_slice(&empty_batch(offset + 2, 4, epoch));
        offset += 2 + 4;
    }
    node.log().append_as_follower(&bytes.freeze(), epoch, START).unwrap();
    assert_eq!(node.log().log_end().get(), offset);
    node
}

/// What compaction leaves of a batch of `count` records that are all gone: its header.
fn empty_batch(base_offset: i64, count: i32, epoch: LeaderEpoch) -> BytesMut {
    let mut builder = BatchBuilder::new(Compression::None)
        .producer(Producer { id: 4000, epoch: 1, base_sequence: 100 })
        .base_offset(Offset::new(base_offset).unwrap())
        .leader_epoch(epoch);
    for _ in 0..count {
        builder.append(START, None, None, &[]).unwrap();
    }
    let mut batch = builder.build().unwrap();
    batch.truncate(61);
    batch[8..12].copy_from_slice(&(61_i32 - 12).to_be_bytes());
    batch[57..61].copy_from_slice(&0_i32.to_be_bytes());
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

/// A copy of a log that Kafka wrote and compacted: offsets are missing within and between batches.
pub(crate) fn with_gaps() -> Node {
    let fixture = Fixture::unpack("compacted");
    let node = Node::new();
    let kafkas = &fixture.partitions()[0];
    for segment in files(kafkas, &["log"]) {
        let bytes = Bytes::from(fs::read(segment).unwrap());
        if node.log().log_end() == Offset::ZERO {
            let first = batches(&bytes).next().unwrap().unwrap().base_offset();
            node.log().truncate_fully_and_start_at(first, Offset::ZERO, CutOrder::Leader).unwrap();
        }
        node.log().append_as_follower(&bytes, LeaderEpoch::new(1000).unwrap(), START).unwrap();
    }
    node
}

/// Adopted from a compacted log whose segments do not touch, with a gap at its end: the copy's segments are named by where the
/// ones before them end, and a batch without records fills the end.
pub(crate) fn adopted() -> Node {
    let fixture = Fixture::unpack("compacted");
    let bytes: Vec<u8> =
        files(&fixture.partitions()[0], &["log"]).iter().flat_map(|log| fs::read(log).unwrap()).collect();
    let held: Vec<_> = batches(&bytes).map(Result::unwrap).collect();
    let source = tempfile::tempdir().unwrap();
    let kafkas = source.path().join("ours-0");
    fs::create_dir(&kafkas).unwrap();
    let (mut apart, mut name) = (0, 0);
    for (at, batch) in held.iter().enumerate() {
        let follows_a_gap = at > 0 && batch.base_offset() > held[at - 1].next_offset();
        if at == 0 || follows_a_gap {
            name = batch.base_offset().get();
            apart += usize::from(follows_a_gap);
        }
        let log = kafkas.join(format!("{name:020}.log"));
        OpenOptionsOfFiles::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap()
            .write_all(batch.bytes())
            .unwrap();
    }
    assert!(apart >= 2, "segments that do not touch");
    let end = Offset::new(held.last().unwrap().next_offset().get() + 1000).unwrap();
    fs::write(kafkas.join(format!("{:020}.log", end.get())), []).unwrap();

    let mut node = Node { directory: tempfile::tempdir().unwrap(), log: None };
    let options = AdoptOptions {
        topic_id: TopicId::new(Uuid::from_u128(0xa3)).unwrap(),
        incarnation: Incarnation::new(1).unwrap(),
        index_interval_bytes: INDEX_INTERVAL_BYTES,
    };
    let found = list_adoptable(&OsStorage, source.path(), &"ours".parse().unwrap()).unwrap().remove(0);
    let adopted =
        adopt_partition(&OsStorage, &found, node.directory.path(), &KafkaCheckpoints::default(), &options)
            .unwrap();
    assert_eq!(adopted.log_end, end);
    let report = node.open();
    assert_eq!((report.damage, node.log().log_end()), (vec![], end));
    node
}
