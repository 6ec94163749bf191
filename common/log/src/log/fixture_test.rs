//! What the tests of the log share: both disks behind one trait, logs that are opened and opened again, batches to append.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use highwater_records::{BatchBuilder, Compression, batches, set_base_offset, set_leader_epoch};
use highwater_types::{
    Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use uuid::Uuid;

use crate::storage::sim::{SimDisk, SimStorage};
use crate::{
    BufferPool, HighWatermark, Log, LogConfig, OnDamage, OpenError, OpenOptions, OpenReport, OsStorage,
    PartitionLocks, ReadLimits, Storage,
};

/// A disk on which the suite runs.
pub(crate) trait TestDisk {
    type Storage: Storage;
    fn new() -> Self;
    fn storage(&self) -> Self::Storage;
    fn locks(&self) -> PartitionLocks;
    fn data_dir(&self) -> &Path;
}

/// The operating system's disk, in a directory that goes away.
pub(crate) struct OsDisk(tempfile::TempDir);

impl TestDisk for OsDisk {
    type Storage = OsStorage;
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn storage(&self) -> OsStorage {
        OsStorage
    }
    fn locks(&self) -> PartitionLocks {
        PartitionLocks::open(self.0.path()).unwrap()
    }
    fn data_dir(&self) -> &Path {
        self.0.path()
    }
}

/// The simulated disk; one process.
pub(crate) struct SimTestDisk {
    pub(crate) disk: SimDisk,
    pub(crate) storage: SimStorage,
    dir: PathBuf,
}

impl SimTestDisk {
    pub(crate) fn seeded(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let storage = disk.process();
        let dir = PathBuf::from("/data");
        storage.create_dir_all(&dir).unwrap();
        storage.sync_dir(Path::new("/")).unwrap();
        Self { disk, storage, dir }
    }

    /// Cuts the power; a new process starts.
    pub(crate) fn power_loss(&mut self) {
        self.disk.power_loss();
        self.storage = self.disk.process();
    }
}

impl TestDisk for SimTestDisk {
    type Storage = SimStorage;
    fn new() -> Self {
        Self::seeded(1)
    }
    fn storage(&self) -> SimStorage {
        self.storage.clone()
    }
    fn locks(&self) -> PartitionLocks {
        PartitionLocks::simulated(&self.storage)
    }
    fn data_dir(&self) -> &Path {
        &self.dir
    }
}

/// Makes a test of each function: one on the operating system's disk, one on the simulated disk.
macro_rules! on_both_disks {
    ($($name:ident),* $(,)?) => {
        mod os {
            $(#[test] fn $name() { super::$name::<crate::log::fixture_test::OsDisk>(); })*
        }
        mod sim {
            $(#[test] fn $name() { super::$name::<crate::log::fixture_test::SimTestDisk>(); })*
        }
    };
}
pub(crate) use on_both_disks;

pub(crate) const NOW: WallTime = WallTime::from_millis(1_700_000_000_000);
pub(crate) const BOOT: Uuid = Uuid::from_u128(1);
pub(crate) const OTHER_BOOT: Uuid = Uuid::from_u128(2);

pub(crate) fn o(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(crate) fn e(raw: i32) -> LeaderEpoch {
    LeaderEpoch::new(raw).unwrap()
}

pub(crate) fn inc(raw: u64) -> Incarnation {
    Incarnation::new(raw).unwrap()
}

pub(crate) fn hw(offset: i64, epoch: i32) -> HighWatermark {
    HighWatermark { offset: o(offset), epoch: LeaderEpoch::new(epoch) }
}

pub(crate) fn topic() -> TopicId {
    TopicId::new(Uuid::from_u128(77)).unwrap()
}

pub(crate) fn partition() -> TopicPartition {
    TopicPartition::new("orders".parse().unwrap(), PartitionIndex::new(0).unwrap())
}

pub(crate) fn small_config() -> LogConfig {
    LogConfig { segment_bytes: 1024, index_interval_bytes: 150, ..LogConfig::default() }
}

pub(crate) fn options(config: LogConfig) -> OpenOptions {
    OpenOptions {
        topic_id: topic(),
        config,
        boot_id: BOOT,
        new_incarnation: inc(100),
        on_damage: OnDamage::RenewIncarnation,
        read_buffers: BufferPool::new(1 << 20),
        now: NOW,
    }
}

pub(crate) fn try_open<D: TestDisk>(
    disk: &D,
    options: OpenOptions,
) -> Result<(Log<D::Storage>, OpenReport), OpenError> {
    let id = TopicIdPartition::new(options.topic_id, partition().partition);
    let lock = disk.locks().try_lock(id).unwrap().expect("nobody has the partition's lock");
    Log::open(disk.storage(), disk.data_dir(), partition(), lock, options)
}

pub(crate) fn open<D: TestDisk>(disk: &D, config: LogConfig) -> (Log<D::Storage>, OpenReport) {
    try_open(disk, options(config)).unwrap()
}

/// A batch with `count` records whose values have `size` bytes, all dated `timestamp`.
pub(crate) fn batch_dated(count: usize, size: usize, timestamp: WallTime) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for i in 0..count {
        let value = vec![b'a' + u8::try_from(i % 26).unwrap(); size];
        builder.append(timestamp, Some(b"k"), Some(&value), &[]).unwrap();
    }
    builder.build().unwrap().freeze()
}

pub(crate) fn batch(count: usize) -> Bytes {
    batch_dated(count, 20, NOW)
}

/// A batch as a leader would send it.
pub(crate) fn stamped(count: usize, base: i64, epoch: i32) -> Bytes {
    let mut bytes = batch(count).to_vec();
    set_base_offset(&mut bytes, o(base)).unwrap();
    set_leader_epoch(&mut bytes, e(epoch)).unwrap();
    bytes.into()
}

pub(crate) fn concat(parts: &[Bytes]) -> Bytes {
    parts.concat().into()
}

/// Appends `batches` batches of `count` records each, one append per batch.
pub(crate) fn lead<S: Storage>(log: &Log<S>, epoch: i32, batches: usize, count: usize) {
    for _ in 0..batches {
        log.append_as_leader(&[batch(count)], e(epoch), NOW).unwrap();
    }
}

pub(crate) fn all() -> ReadLimits {
    ReadLimits { max_bytes: 1 << 20, min_one_batch: true, upper: Offset::MAX, checked: true }
}

/// Every byte from `from` to the log end, read as a follower would.
pub(crate) fn read_all<S: Storage>(log: &Log<S>, from: Offset) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut next = from;
    while next < log.log_end() {
        let read = log.read(next, all()).unwrap();
        assert!(read.next > next, "a read below the log end moves on");
        bytes.extend_from_slice(&read.records);
        next = read.next;
    }
    bytes
}

/// `(base, next, epoch)` of every batch of a concatenation.
pub(crate) fn shape(bytes: &[u8]) -> Vec<(i64, i64, i32)> {
    let shape = |b: highwater_records::BatchView<'_>| {
        assert!(b.crc_ok(), "every batch is intact");
        (b.base_offset().get(), b.next_offset().get(), b.leader_epoch().map_or(-1, LeaderEpoch::get))
    };
    batches(bytes).map(|b| shape(b.unwrap())).collect()
}

/// The names of the partition's directory.
pub(crate) fn files<S: Storage>(log: &Log<S>, storage: &S) -> Vec<String> {
    names_in(storage, log.directory())
}

pub(crate) fn names_in<S: Storage>(storage: &S, dir: &Path) -> Vec<String> {
    storage.list_dir(dir).unwrap().into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
}

/// Closes without a clean mark, as a killed process does.
pub(crate) fn kill<S: Storage>(log: Log<S>) {
    drop(log.abandon());
}
