//! The read-only opener on directories of ours, held and left, whole and damaged.

use std::collections::BTreeMap;

use highwater_types::{LeaderEpochCache, TopicIdPartition};
use proptest::prelude::*;

use super::*;
use crate::checkpoint::LEADER_EPOCH_FILE;
use crate::log::fixture_test::{
    OsDisk, TestDisk, batch, concat, e, hw, kill, lead, names_in, o, on_both_disks, open, partition,
    read_all, small_config, stamped, topic,
};
use crate::storage::StorageFile as _;
use crate::{EpochRuns, Log, LogConfig, OtherFile, OtherKind};

fn dir<D: TestDisk>(disk: &D) -> PathBuf {
    disk.data_dir().join(partition().directory_name())
}

fn read<D: TestDisk>(disk: &D) -> ReadOnlyLog<D::Storage> {
    ReadOnlyLog::open(&disk.storage(), &dir(disk)).unwrap()
}

/// The bytes of every good batch, in order.
fn good_bytes<S: Storage>(log: &ReadOnlyLog<S>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in &log.files().segments {
        let mut scan = log.scan(segment.base).unwrap();
        while let Some(scanned) = scan.next_piece().unwrap() {
            if let Scanned::Batch { batch, .. } = scanned {
                bytes.extend_from_slice(batch.bytes());
            }
        }
    }
    bytes
}

/// Every bad place: the segment's base, where it begins, where a good batch follows.
fn bad_places<S: Storage>(log: &ReadOnlyLog<S>) -> Vec<(i64, u64, Option<i64>)> {
    let mut places = Vec::new();
    for segment in &log.files().segments {
        let mut scan = log.scan(segment.base).unwrap();
        while let Some(scanned) = scan.next_piece().unwrap() {
            if let Scanned::Bad(bad) = scanned {
                places.push((segment.base.get(), bad.position, bad.resumes_at.map(Offset::get)));
            }
        }
    }
    places
}

/// What is wrong, as the operating system's locks let it be judged.
fn judgements(log: &ReadOnlyLog<OsStorage>) -> Vec<Judgement> {
    let mut judged = Vec::new();
    for segment in &log.files().segments {
        let mut scan = log.scan(segment.base).unwrap();
        while let Some(scanned) = scan.next_piece().unwrap() {
            if let Scanned::Bad(bad) = scanned {
                judged.push(log.judge(segment.base, &bad).unwrap());
            }
        }
    }
    judged
}

fn edit<S: Storage>(storage: &S, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = storage.read_small(path, 1 << 20).unwrap();
    edit(&mut bytes);
    let file = storage.open(path, Access::ReadWrite).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
}

fn contents<S: Storage>(storage: &S, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| {
        let bytes = storage.read_small(&dir.join(&name), 1 << 20).unwrap();
        (name, bytes)
    };
    names_in(storage, dir).into_iter().map(read).collect()
}

fn a_log_that_is_held_is_read_as_it_stands<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 3, 20, 2);
    lead(&log, 5, 3, 1);
    let reader = read(&disk);
    assert!(reader.files().segments.len() > 2, "several segments");
    assert_eq!(good_bytes(&reader), read_all(&log, o(0)));
    assert_eq!(bad_places(&reader), []);
    lead(&log, 5, 1, 1);
    assert_eq!(good_bytes(&read(&disk)), read_all(&log, o(0)), "who opens again sees more");
}

fn nothing_is_written_and_nothing_is_repaired<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 20, 2);
    log.close_clean(hw(40, 0)).unwrap();
    let storage = disk.storage();
    let reader = read(&disk);
    let [first, .., last] = reader.files().segments.as_slice() else { panic!("several segments") };
    edit(&storage, &reader.segment_path(last.base), |bytes| bytes.truncate(bytes.len() - 3));
    edit(&storage, &reader.index_path(first.base, IndexKind::Offset), |bytes| bytes.fill(0));
    storage.remove_file(&reader.index_path(first.base, IndexKind::Time)).unwrap();
    edit(&storage, &dir(&disk).join(LEADER_EPOCH_FILE), Vec::clear);
    let before = contents(&storage, &dir(&disk));
    let reader = read(&disk);
    assert!(!bad_places(&reader).is_empty());
    assert!(reader.check_index(first.base, IndexKind::Offset).unwrap().is_some());
    assert!(reader.check_index(first.base, IndexKind::Time).unwrap().is_none());
    assert!(matches!(reader.leader_epochs().unwrap(), LoadedEpochs::Damaged { .. }));
    assert!(matches!(reader.checkpoint().unwrap(), LoadedCheckpoint::Found(state) if state.clean));
    assert_eq!(reader.topic_id().unwrap(), LoadedPartitionMetadata::Found(topic()));
    assert_eq!(contents(&storage, &dir(&disk)), before);
}

fn bad_bytes_end_where_the_log_goes_on<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 4, 2);
    kill(log);
    let size = batch(2).len() as u64;
    let path = read(&disk).segment_path(o(0));
    edit(&disk.storage(), &path, |bytes| bytes[usize::try_from(size).unwrap() + 70] ^= 1);
    assert_eq!(bad_places(&read(&disk)), [(0, size, Some(4))], "a wrong CRC");
    // The length points into the fourth batch.
    edit(&disk.storage(), &path, |bytes| bytes[usize::try_from(size).unwrap() + 11] ^= 0xff);
    assert_eq!(bad_places(&read(&disk)), [(0, size, Some(4))], "and a wrong length");
}

fn a_good_batch_from_below_is_not_the_logs<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 2, 3);
    kill(log);
    // A half batch whose records hold a whole one, as producers send it.
    let storage = disk.storage();
    let file = storage.open(&read(&disk).segment_path(o(0)), Access::ReadWrite).unwrap();
    let torn = concat(&[stamped(9, 6, 0).slice(..80), batch(1), vec![7; 50].into()]);
    let end = file.len().unwrap();
    file.write_all_at(&torn, end).unwrap();
    let reader = read(&disk);
    let mut scan = reader.scan(o(0)).unwrap();
    while let Some(scanned) = scan.next_piece().unwrap() {
        if let Scanned::Bad(bad) = scanned {
            assert_eq!((bad.position, bad.bytes), (end, torn.len() as u64));
            assert!(reader.is_tail(o(0), &bad));
        }
    }
}

fn names_are_sorted_by_what_they_stand_for<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 1, 1);
    kill(log);
    let storage = disk.storage();
    for name in
        ["00000000000000000009.index", "00000000000000000002.cut", "x", "00000000000000000007.snapshot"]
    {
        storage.create_new(&dir(&disk).join(name)).unwrap();
    }
    storage.create_dir_all(&dir(&disk).join("00000000000000000003.log")).unwrap();
    let files = read(&disk).files().clone();
    assert_eq!(files.segments.iter().map(|s| s.base).collect::<Vec<_>>(), [o(0)]);
    assert_eq!(files.orphans, ["00000000000000000009.index"]);
    assert!(files.has_checkpoint());
    assert_eq!(files.checkpoints, ["checkpoint", "leader-epoch-checkpoint", "partition.metadata"]);
    let other = |name: &str, kind| OtherFile { name: name.to_owned(), kind };
    let others = [
        other("00000000000000000002.cut", OtherKind::LeftOver),
        other("00000000000000000003.log", OtherKind::Foreign),
        other("00000000000000000007.snapshot", OtherKind::KafkaState),
        other("x", OtherKind::Foreign),
    ];
    assert_eq!(files.others, others);
}

on_both_disks!(
    a_log_that_is_held_is_read_as_it_stands,
    nothing_is_written_and_nothing_is_repaired,
    bad_bytes_end_where_the_log_goes_on,
    a_good_batch_from_below_is_not_the_logs,
    names_are_sorted_by_what_they_stand_for,
);

/// A log on the operating system's disk with the beginning of a batch at its end, as a write that is under way leaves it.
fn half_written(disk: &OsDisk) -> Log<OsStorage> {
    let (log, _) = open(disk, small_config());
    lead(&log, 0, 20, 2);
    let last = read(disk).files().segments.last().unwrap().base;
    let file = OsStorage.open(&read(disk).segment_path(last), Access::ReadWrite).unwrap();
    file.write_all_at(&stamped(2, 40, 0)[..50], file.len().unwrap()).unwrap();
    log
}

#[test]
fn a_partial_tail_is_in_use_while_the_directory_is_held_and_torn_after() {
    let disk = OsDisk::new();
    let log = half_written(&disk);
    assert!(read(&disk).is_in_use().unwrap());
    assert_eq!(judgements(&read(&disk)), [Judgement::InUse]);
    kill(log);
    assert!(!read(&disk).is_in_use().unwrap());
    assert_eq!(judgements(&read(&disk)), [Judgement::TornTail]);
}

#[test]
fn damage_is_damage_although_the_directory_is_held() {
    let disk = OsDisk::new();
    let log = half_written(&disk);
    edit(&OsStorage, &read(&disk).segment_path(o(0)), |bytes| bytes[70] ^= 1);
    let segments = read(&disk).files().segments.clone();
    edit(&OsStorage, &read(&disk).segment_path(segments[1].base), |bytes| bytes.truncate(bytes.len() - 1));
    // With another segment after it, the bad end of one is no tail.
    assert_eq!(judgements(&read(&disk)), [Judgement::Damage, Judgement::Damage, Judgement::InUse]);
    kill(log);
}

#[test]
fn an_empty_segment_after_a_torn_tail_makes_it_no_damage() {
    let disk = OsDisk::new();
    kill(half_written(&disk));
    OsStorage.create_new(&read(&disk).segment_path(o(42))).unwrap();
    assert_eq!(judgements(&read(&disk)), [Judgement::TornTail]);
}

#[test]
fn reading_takes_no_lock_and_makes_no_lock_files() {
    let disk = OsDisk::new();
    kill(half_written(&disk));
    let copy = tempfile::tempdir().unwrap();
    let copied = copy.path().join(partition().directory_name());
    OsStorage.create_dir_all(&copied).unwrap();
    for (name, bytes) in contents(&OsStorage, &dir(&disk)) {
        OsStorage.create_new(&copied.join(name)).unwrap().write_all_at(&bytes, 0).unwrap();
    }
    let reader = ReadOnlyLog::open(&OsStorage, &copied).unwrap();
    assert_eq!(judgements(&reader), [Judgement::TornTail]);
    assert_eq!(names_in(&OsStorage, copy.path()), [partition().directory_name()]);
    let id = TopicIdPartition::new(topic(), partition().partition);
    let scan = read(&disk).scan(o(0)).unwrap();
    assert!(disk.locks().try_lock(id).unwrap().is_some(), "free while somebody reads");
    assert!(scan.len() > 0);
}

#[test]
fn a_directory_that_is_not_there_is_an_error_and_an_empty_one_is_none() {
    let root = tempfile::tempdir().unwrap();
    assert!(ReadOnlyLog::open(&OsStorage, &root.path().join("orders-0")).unwrap_err().is_not_found());
    let empty = ReadOnlyLog::open(&OsStorage, root.path()).unwrap();
    assert_eq!(empty.files(), &PartitionFiles::default());
    assert!(!empty.is_in_use().unwrap());
}

#[test]
fn epochs_that_the_batches_contradict_are_told_with_their_place() {
    let mut runs = EpochRuns::default();
    for bytes in [stamped(3, 0, 0), stamped(3, 3, 0), stamped(4, 6, 2)] {
        runs.note(highwater_records::BatchView::parse(&bytes).unwrap().header());
    }
    let cache = |entries: &[(i32, i64)]| -> LeaderEpochCache {
        let entry =
            |(epoch, start): &(i32, i64)| highwater_types::EpochEntry { epoch: e(*epoch), start: o(*start) };
        entries.iter().map(entry).collect()
    };
    let told = |entries, log_start| {
        runs.contradiction(&cache(entries), o(log_start)).map(|found| found.offset.get())
    };
    assert_eq!(told(&[(0, 0), (2, 6)], 0), None);
    assert_eq!(told(&[(0, 0), (2, 6), (7, 10)], 0), None, "a leadership without a batch");
    assert_eq!(told(&[(0, 0), (2, 6), (3, 11)], 0), None, "of batches that are lost, or were not read");
    assert_eq!(told(&[(2, 6)], 6), None, "what lies below the log start is forgotten");
    assert_eq!(told(&[(2, 6)], 0), Some(0));
    assert_eq!(told(&[(0, 0), (1, 3), (2, 6)], 0), Some(3));
    assert_eq!(told(&[(0, 0)], 0), Some(6));
    assert_eq!(told(&[(0, 0), (2, 6), (7, 8)], 0), Some(8), "an epoch begins within a batch");
}

proptest! {
    /// Whatever is done to a segment's bytes, a walk ends, and each byte is in one piece; good batches far from it stay.
    #[test]
    fn each_byte_is_in_exactly_one_piece(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..6),
        cut in any::<prop::sample::Index>(),
        junk in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let disk = OsDisk::new();
        let path = read_path(&disk);
        let mut bytes = concat(&[stamped(2, 0, 0), stamped(1, 2, 0), stamped(4, 9, 1), stamped(1, 20, 1)]).to_vec();
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        bytes.truncate(bytes.len() - cut.index(40));
        bytes.extend(junk);
        OsStorage.create_new(&path).unwrap().write_all_at(&bytes, 0).unwrap();
        let reader = read(&disk);
        let mut scan = reader.scan(o(0)).unwrap();
        let mut next = 0;
        while let Some(scanned) = scan.next_piece().unwrap() {
            let (position, size) = match &scanned {
                Scanned::Batch { position, batch } => {
                    prop_assert!(batch.crc_ok());
                    (*position, batch.size() as u64)
                }
                Scanned::Bad(bad) => (bad.position, bad.bytes),
            };
            prop_assert!(position == next && size > 0, "{scanned:?}");
            next += size;
        }
        prop_assert_eq!(next, bytes.len() as u64);
    }
}

fn read_path(disk: &OsDisk) -> PathBuf {
    OsStorage.create_dir_all(&dir(disk)).unwrap();
    read(disk).segment_path(o(0))
}
