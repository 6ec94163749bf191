//! Opening after a stop of any kind (design.md 2 and 6.3; the scenarios of Kafka's LogLoaderTest that apply), on both disks.

use std::path::PathBuf;

use super::fixture_test::{
    BOOT, NOW, OTHER_BOOT, TestDisk, all, batch_dated, concat, e, files, hw, inc, kill, lead, names_in, o,
    on_both_disks, open, options, read_all, shape, small_config, stamped, try_open,
};
use crate::storage::StorageFile as _;
use crate::{Access, LogConfig, OffsetRange, OpenError, OpenOptions, OpenReport, Renewal, Repair, Storage};
use bytes::Bytes;
use highwater_types::{Durability, TopicId};
use uuid::Uuid;

on_both_disks!(
    a_new_log_is_a_new_incarnation,
    a_clean_log_opens_clean_and_unchanged,
    the_clean_mark_goes_before_the_first_append,
    a_killed_log_keeps_everything_and_its_incarnation,
    a_torn_tail_is_cut,
    an_unfinished_batch_is_cut,
    what_a_good_batch_follows_under_the_same_boot_is_damage,
    a_last_batch_of_full_length_with_a_wrong_crc_is_a_lost_tail_under_the_same_boot,
    a_garbled_offset_or_epoch_is_damage_of_that_batch_alone,
    a_bad_end_of_a_segment_that_another_follows_under_the_same_boot_is_damage,
    another_boot_lowers_the_high_watermark,
    another_boot_without_a_clean_mark_renews_a_page_cache_replica,
    useless_checkpoints_mean_a_new_incarnation,
    useless_indexes_are_made_again,
    a_bogus_index_is_found_by_the_reader,
    a_lost_epoch_file_is_made_from_the_batches,
    an_epoch_file_that_contradicts_the_batches_is_corrected,
    a_recordless_epoch_survives_a_restart,
    a_falling_epoch_ends_the_log,
    a_segment_that_came_back_is_removed,
    segments_below_the_log_start_are_removed,
    a_log_that_ends_below_its_start_begins_there,
    another_topics_directory_is_refused,
    strangers_are_left_alone_and_reported,
);

pub(super) fn file<D: TestDisk>(disk: &D, name: &str) -> PathBuf {
    disk.data_dir().join("orders-0").join(name)
}

pub(super) fn edit<D: TestDisk>(disk: &D, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
    let path = file(disk, name);
    let mut bytes = disk.storage().read_small(&path, 1 << 20).unwrap();
    edit(&mut bytes);
    let opened = disk.storage().open(&path, Access::ReadWrite).unwrap();
    opened.set_len(0).unwrap();
    opened.write_all_at(&bytes, 0).unwrap();
}

pub(super) const LOG_0: &str = "00000000000000000000.log";

/// A log with ten batches of two records, flushed, its checkpoint saying `high_watermark`, killed.
pub(super) fn killed_log<D: TestDisk>(disk: &D, high_watermark: i64) -> Vec<u8> {
    let (log, _) = open(disk, LogConfig::default());
    lead(&log, 0, 10, 2);
    log.flush().unwrap();
    log.write_checkpoint(hw(high_watermark, 0), log.positions().generation).unwrap();
    let bytes = read_all(&log, o(0));
    kill(log);
    bytes
}

pub(super) fn batch_bytes() -> usize {
    stamped(2, 0, 0).len()
}

pub(super) fn reopen<D: TestDisk>(disk: &D) -> (crate::Log<D::Storage>, OpenReport) {
    try_open(disk, OpenOptions { new_incarnation: inc(200), ..options(LogConfig::default()) }).unwrap()
}

fn a_new_log_is_a_new_incarnation<D: TestDisk>() {
    let disk = D::new();
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((report.renewal, report.incarnation), (Some(Renewal::NoDirectory), inc(100)));
    assert_eq!((report.highest_leader_epoch, report.high_watermark), (None, hw(0, -1)));
    let mut names = files(&log, &disk.storage());
    names.retain(|name| !name.ends_with("checkpoint"));
    assert_eq!(
        names,
        ["00000000000000000000.index", LOG_0, "00000000000000000000.timeindex", "partition.metadata"]
    );
    kill(log);
    assert_eq!(reopen(&disk).1.incarnation, inc(100));
}

fn a_clean_log_opens_clean_and_unchanged<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 30, 2);
    let bytes = read_all(&log, o(0));
    log.close_clean(hw(60, 0)).unwrap();
    let options = OpenOptions { boot_id: OTHER_BOOT, new_incarnation: inc(200), ..options(small_config()) };
    let (log, report) = try_open(&disk, options).unwrap();
    assert!(report.clean);
    assert_eq!((report.repairs, report.damage, report.renewal), (vec![], vec![], None));
    assert_eq!((report.high_watermark, report.positions.flushed), (hw(60, 0), o(60)));
    assert_eq!(read_all(&log, o(0)), bytes);
    lead(&log, 1, 30, 2);
    assert_eq!(shape(&read_all(&log, o(0))).len(), 60);
}

fn the_clean_mark_goes_before_the_first_append<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 1, 1);
    log.close_clean(hw(1, 0)).unwrap();
    for clean in [true, true, false] {
        let (log, report) = open(&disk, LogConfig::default());
        assert!(report.clean, "nothing was appended since");
        if !clean {
            lead(&log, 0, 1, 1);
        }
        kill(log);
    }
    assert!(!open(&disk, LogConfig::default()).1.clean);
}

fn a_killed_log_keeps_everything_and_its_incarnation<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 30, 2);
    let bytes = read_all(&log, o(0));
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((report.positions.log_end, report.positions.flushed), (o(60), o(60)), "opening flushes");
    assert_eq!((report.renewal, report.repairs), (None, vec![]));
    assert_eq!(read_all(&log, o(0)), bytes);
}

fn a_torn_tail_is_cut<D: TestDisk>() {
    let disk = D::new();
    let bytes = killed_log(&disk, 10);
    edit(&disk, LOG_0, |log| {
        let at = log.len();
        log.extend_from_slice(&stamped(2, 20, 0)[..50]);
        assert_eq!(at, bytes.len());
    });
    let (log, report) = reopen(&disk);
    assert_eq!(log.log_end(), o(20));
    assert!(matches!(report.repairs.as_slice(), [Repair::TailCut { bytes: 50, .. }]), "{report:?}");
    assert_eq!((report.renewal, report.damage), (None, vec![]), "cutting a torn tail renews nothing");
    lead(&log, 0, 1, 2);
    assert_eq!(read_all(&log, o(0)).len(), bytes.len() + batch_bytes());
}

fn an_unfinished_batch_is_cut<D: TestDisk>() {
    // After another boot a record may be torn; under the same one the length alone tells that the last write was.
    for (boot_id, bad, byte, end) in [(OTHER_BOOT, 7, 70, 14), (OTHER_BOOT, 9, 70, 18), (BOOT, 9, 10, 18)] {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig::default());
        lead(&log, 0, 10, 2);
        kill(log);
        edit(&disk, LOG_0, |log| {
            log[batch_bytes() * bad + byte] ^= 1;
        });
        let options = OpenOptions { boot_id, new_incarnation: inc(200), ..options(LogConfig::default()) };
        let (log, report) = try_open(&disk, options).unwrap();
        assert_eq!(log.log_end(), o(end), "unflushed: everything from the first bad batch on is cut");
        assert_eq!((report.damage, report.renewal), (vec![], None));
    }
}

/// Bad bytes before good ones: a killed program leaves no such thing, whatever was flushed.
fn what_a_good_batch_follows_under_the_same_boot_is_damage<D: TestDisk>() {
    // A record, the length, the magic, and the base offset, which no CRC covers.
    for byte in [70, 8, 16, 0] {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig::default());
        lead(&log, 0, 10, 2);
        let bytes = read_all(&log, o(0));
        kill(log);
        edit(&disk, LOG_0, |log| log[batch_bytes() * 7 + byte] ^= 1);
        let (log, report) = reopen(&disk);
        let ranges: Vec<_> = report.damage.iter().map(|d| (d.range, d.at_end)).collect();
        assert_eq!(ranges, [(OffsetRange::new(o(14), o(16)), false)], "byte {byte}");
        assert_eq!((log.log_end(), report.renewal), (o(20), Some(Renewal::Damage)), "byte {byte}");
        let missing = Bytes::copy_from_slice(&bytes[batch_bytes() * 7..batch_bytes() * 8]);
        log.repair(OffsetRange::new(o(14), o(16)), &missing).unwrap();
        assert_eq!(read_all(&log, o(0)), bytes, "byte {byte}");
    }
}

/// The last batch is there in full length: no write was cut short.
fn a_last_batch_of_full_length_with_a_wrong_crc_is_a_lost_tail_under_the_same_boot<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 10, 2);
    let bytes = read_all(&log, o(0));
    kill(log);
    edit(&disk, LOG_0, |log| log[batch_bytes() * 9 + 70] ^= 1);
    let (log, report) = reopen(&disk);
    let ranges: Vec<_> = report.damage.iter().map(|d| (d.range, d.at_end)).collect();
    assert_eq!(ranges, [(OffsetRange::new(o(18), o(20)), true)]);
    assert_eq!((log.log_end(), report.renewal), (o(18), Some(Renewal::Damage)));
    log.append_as_follower(&Bytes::copy_from_slice(&bytes[batch_bytes() * 9..]), e(0), NOW).unwrap();
    assert_eq!((read_all(&log, o(0)), log.damage()), (bytes, vec![]));
}

/// A byte of the base offset, and one of the epoch: no CRC covers them.
fn a_garbled_offset_or_epoch_is_damage_of_that_batch_alone<D: TestDisk>() {
    for (checkpointed, byte) in [(false, 5), (true, 5), (false, 14), (true, 14)] {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig::default());
        lead(&log, 0, 10, 2);
        if checkpointed {
            log.flush().unwrap();
            log.write_checkpoint(hw(20, 0), log.positions().generation).unwrap();
        }
        let bytes = read_all(&log, o(0));
        kill(log);
        edit(&disk, LOG_0, |log| log[batch_bytes() * 6 + byte] ^= 0x7f);
        let (log, report) = reopen(&disk);
        let ranges: Vec<_> = report.damage.iter().map(|d| (d.range, d.at_end)).collect();
        assert_eq!(ranges, [(OffsetRange::new(o(12), o(14)), false)], "byte {byte}, {checkpointed}");
        assert_eq!((log.log_end(), report.highest_leader_epoch), (o(20), Some(e(0))), "byte {byte}");
        let missing = Bytes::copy_from_slice(&bytes[batch_bytes() * 6..batch_bytes() * 7]);
        log.repair(OffsetRange::new(o(12), o(14)), &missing).unwrap();
        assert_eq!(read_all(&log, o(0)), bytes, "byte {byte}");
    }
}

fn a_bad_end_of_a_segment_that_another_follows_under_the_same_boot_is_damage<D: TestDisk>() {
    for gone in [false, true] {
        let disk = D::new();
        let (log, _) = open(&disk, small_config());
        lead(&log, 0, 30, 2);
        kill(log);
        let bases: Vec<i64> = segment_bases(&disk);
        let (second, third) = (bases[1], bases[2]);
        let name = format!("{second:020}.log");
        let from = if gone {
            disk.storage().remove_file(&file(&disk, &name)).unwrap();
            second
        } else {
            edit(&disk, &name, |log| {
                let at = log.len() - batch_bytes() + 70;
                log[at] ^= 1;
            });
            third - 2
        };
        let (log, report) =
            try_open(&disk, OpenOptions { new_incarnation: inc(200), ..options(small_config()) }).unwrap();
        let ranges: Vec<_> = report.damage.iter().map(|d| (d.range, d.at_end)).collect();
        assert_eq!(ranges, [(OffsetRange::new(o(from), o(third)), false)], "gone: {gone}");
        assert_eq!((log.log_end(), report.renewal), (o(60), Some(Renewal::Damage)), "gone: {gone}");
    }
}

/// The bases of the segments, in order.
fn segment_bases<D: TestDisk>(disk: &D) -> Vec<i64> {
    let names = names_in(&disk.storage(), &disk.data_dir().join("orders-0"));
    let mut bases: Vec<i64> =
        names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect();
    bases.sort_unstable();
    bases
}

fn another_boot_lowers_the_high_watermark<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { durability: Durability::PageCache, ..LogConfig::default() });
    lead(&log, 0, 5, 2);
    log.flush().unwrap();
    lead(&log, 0, 5, 2);
    log.write_checkpoint(hw(20, 0), 0).unwrap();
    kill(log);
    let fsync =
        OpenOptions { boot_id: OTHER_BOOT, new_incarnation: inc(200), ..options(LogConfig::default()) };
    let (log, report) = try_open(&disk, fsync).unwrap();
    assert_eq!((report.high_watermark.offset, log.log_end(), report.renewal), (o(10), o(20), None));
    assert!(
        matches!(report.repairs.as_slice(), [Repair::HighWatermarkLowered { .. }]),
        "{:?}",
        report.repairs
    );
}

fn another_boot_without_a_clean_mark_renews_a_page_cache_replica<D: TestDisk>() {
    let disk = D::new();
    let config = LogConfig { durability: Durability::PageCache, ..LogConfig::default() };
    let (log, _) = open(&disk, config.clone());
    lead(&log, 0, 5, 2);
    kill(log);
    let again = |boot_id, n| OpenOptions { boot_id, new_incarnation: inc(n), ..options(config.clone()) };
    let (log, report) = try_open(&disk, again(BOOT, 200)).unwrap();
    assert_eq!(report.renewal, None, "the page cache outlives a process");
    kill(log);
    let (log, report) = try_open(&disk, again(OTHER_BOOT, 300)).unwrap();
    assert_eq!((report.renewal, report.incarnation), (Some(Renewal::PageCacheLost), inc(300)));
    log.close_clean(hw(0, 0)).unwrap();
    let (_, report) = try_open(&disk, again(BOOT, 400)).unwrap();
    assert_eq!(report.incarnation, inc(300), "a flushed clean mark");
}

fn useless_checkpoints_mean_a_new_incarnation<D: TestDisk>() {
    for content in [&b""[..], b"0\n", &[0; 16], &[0xff; 8192]] {
        let disk = D::new();
        let bytes = killed_log(&disk, 20);
        edit(&disk, "checkpoint", |slots| *slots = content.to_vec());
        edit(&disk, "leader-epoch-checkpoint", |epochs| *epochs = b"0\n1\n0 ".to_vec());
        let (log, report) = reopen(&disk);
        assert_eq!((report.renewal, report.incarnation), (Some(Renewal::NoCheckpoint), inc(200)));
        assert_eq!((log.log_end(), report.high_watermark.offset), (o(20), o(0)));
        assert_eq!((report.highest_leader_epoch, read_all(&log, o(0))), (Some(e(0)), bytes));
    }
}

fn useless_indexes_are_made_again<D: TestDisk>() {
    type Spoil = fn(&mut Vec<u8>);
    let spoils: [Spoil; 4] = [
        |index| index.fill(0),
        |index| index.truncate(index.len() - 3),
        |index| index.resize(4096, 0),
        |index| index.clear(),
    ];
    for (at, spoil) in spoils.into_iter().enumerate() {
        for clean in [true, false] {
            let disk = D::new();
            let config =
                LogConfig { segment_bytes: 100_000, index_interval_bytes: 100, ..LogConfig::default() };
            let (log, _) = open(&disk, config.clone());
            for i in 0..80 {
                let dated = batch_dated(1, 2000, highwater_types::WallTime::from_millis(1000 + i));
                log.append_as_leader(&[dated], e(0), NOW).unwrap();
            }
            let bytes = read_all(&log, o(0));
            if clean {
                log.close_clean(hw(80, 0)).unwrap();
            } else {
                log.flush().unwrap();
                log.write_checkpoint(hw(80, 0), 0).unwrap();
                kill(log);
            }
            edit(&disk, "00000000000000000000.index", spoil);
            if at < 3 {
                edit(&disk, "00000000000000000000.timeindex", spoil);
            }
            let (log, report) = open(&disk, config);
            let rebuilt = report.repairs.iter().filter(|r| matches!(r, Repair::IndexRebuilt { .. })).count();
            assert!(rebuilt > 0 || (clean && at == 0), "spoil {at}, clean {clean}: {report:?}");
            assert_eq!(read_all(&log, o(0)), bytes);
            for offset in 0..80 {
                assert_eq!(log.read(o(offset), all()).unwrap().first, o(offset), "spoil {at}, clean {clean}");
            }
        }
    }
}

fn a_bogus_index_is_found_by_the_reader<D: TestDisk>() {
    let disk = D::new();
    let config = LogConfig { segment_bytes: 10_000, index_interval_bytes: 100, ..LogConfig::default() };
    let (log, _) = open(&disk, config.clone());
    for _ in 0..100 {
        log.append_as_leader(&[batch_dated(1, 100, NOW)], e(0), NOW).unwrap();
    }
    log.close_clean(hw(100, 0)).unwrap();
    edit(&disk, "00000000000000000000.index", |index| {
        for position in index.chunks_exact_mut(8) {
            position[7] ^= 3;
        }
    });
    let (log, _) = open(&disk, config);
    for offset in 0..100 {
        assert_eq!(log.read(o(offset), all()).unwrap().first, o(offset));
    }
}

fn a_lost_epoch_file_is_made_from_the_batches<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0), stamped(3, 3, 2), stamped(4, 6, 5)]), e(5), NOW)
        .unwrap();
    log.assign_epoch(e(7)).unwrap();
    log.close_clean(hw(10, 5)).unwrap();
    disk.storage().remove_file(&file(&disk, "leader-epoch-checkpoint")).unwrap();
    let (log, report) = reopen(&disk);
    let epochs = |log: &crate::Log<D::Storage>| -> Vec<_> {
        log.epochs().entries().iter().map(|x| (x.epoch.get(), x.start.get())).collect()
    };
    assert_eq!(epochs(&log), [(0, 0), (2, 3), (5, 6)]);
    assert!(matches!(report.repairs.as_slice(), [Repair::EpochCacheRebuilt { .. }]), "{report:?}");
    assert_eq!(log.assign_epoch(e(8)).unwrap(), o(10));
    assert_eq!(
        log.epochs().end_offset_for(e(6), log.log_end()).unwrap().epoch,
        e(5),
        "KAFKA-15608: diverging, not undefined"
    );
}

fn an_epoch_file_that_contradicts_the_batches_is_corrected<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0), stamped(3, 3, 2)]), e(2), NOW).unwrap();
    kill(log);
    edit(&disk, "leader-epoch-checkpoint", |epochs| *epochs = b"0\n2\n0 0\n9 4\n".to_vec());
    let (log, report) = reopen(&disk);
    let epochs: Vec<_> = log.epochs().entries().iter().map(|x| (x.epoch.get(), x.start.get())).collect();
    assert_eq!(epochs, [(0, 0), (2, 3)]);
    assert!(report.repairs.iter().any(|r| matches!(r, Repair::EpochCacheRebuilt { .. })));
}

fn a_recordless_epoch_survives_a_restart<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 5, 1, 10);
    log.assign_epoch(e(7)).unwrap();
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((log.epochs().latest().unwrap().epoch, log.epochs().latest().unwrap().start), (e(7), o(10)));
    assert_eq!(report.highest_leader_epoch, Some(e(7)));
}

fn a_falling_epoch_ends_the_log<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 4), stamped(3, 3, 6)]), e(6), NOW).unwrap();
    kill(log);
    edit(&disk, LOG_0, |log| log.extend_from_slice(&stamped(3, 6, 5)));
    let (log, report) = reopen(&disk);
    assert_eq!(log.log_end(), o(6));
    assert!(matches!(report.repairs.as_slice(), [Repair::TailCut { .. }]), "{report:?}");
}

fn a_segment_that_came_back_is_removed<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 30, 2);
    let last = files(&log, &disk.storage()).into_iter().rfind(|f| f.ends_with(".log")).unwrap();
    let old = disk.storage().read_small(&file(&disk, &last), 1 << 20).unwrap();
    log.truncate_to(o(4), o(0), crate::CutOrder::Leader).unwrap();
    lead(&log, 1, 2, 2);
    kill(log);
    disk.storage().create_new(&file(&disk, &last)).unwrap().write_all_at(&old, 0).unwrap();
    let (log, report) = reopen(&disk);
    assert_eq!(log.log_end(), o(8));
    assert!(matches!(report.repairs.as_slice(), [Repair::TailCut { .. }]), "{report:?}");
    assert!(!files(&log, &disk.storage()).contains(&last));
}

fn segments_below_the_log_start_are_removed<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 30, 2);
    let old = disk.storage().read_small(&file(&disk, LOG_0), 1 << 20).unwrap();
    log.raise_log_start(o(40)).unwrap();
    let bytes = read_all(&log, o(40));
    kill(log);
    disk.storage().create_new(&file(&disk, LOG_0)).unwrap().write_all_at(&old, 0).unwrap();
    let (log, report) = reopen(&disk);
    assert_eq!((log.log_start(), read_all(&log, o(40))), (o(40), bytes));
    assert!(
        report.repairs.iter().any(|r| matches!(r, Repair::SegmentBelowLogStartRemoved { .. })),
        "{report:?}"
    );
    assert!(!files(&log, &disk.storage()).contains(&LOG_0.to_owned()));
}

fn a_log_that_ends_below_its_start_begins_there<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 10, 2);
    log.raise_log_start(o(15)).unwrap();
    log.write_checkpoint(hw(0, 0), 0).unwrap();
    kill(log);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 3));
    let (log, _) = reopen(&disk);
    assert_eq!((log.log_start(), log.log_end()), (o(15), o(15)));
    lead(&log, 1, 1, 1);
    assert_eq!(log.log_end(), o(16));
}

fn another_topics_directory_is_refused<D: TestDisk>() {
    let disk = D::new();
    let bytes = killed_log(&disk, 0);
    let other =
        OpenOptions { topic_id: TopicId::new(Uuid::from_u128(99)).unwrap(), ..options(LogConfig::default()) };
    assert!(matches!(try_open(&disk, other), Err(OpenError::OtherTopic { .. })));
    assert_eq!(read_all(&reopen(&disk).0, o(0)), bytes, "nothing was touched");
}

fn strangers_are_left_alone_and_reported<D: TestDisk>() {
    let disk = D::new();
    killed_log(&disk, 0);
    for name in ["notes.txt", "00000000000000000003.snapshot", "00000000000000000900.index"] {
        disk.storage().create_new(&file(&disk, name)).unwrap();
    }
    disk.storage().create_dir_all(&file(&disk, "lost+found")).unwrap();
    let (log, report) = reopen(&disk);
    assert_eq!(report.foreign, ["00000000000000000003.snapshot", "lost+found", "notes.txt"]);
    assert!(matches!(report.repairs.as_slice(), [Repair::OrphanIndexRemoved { .. }]), "{:?}", report.repairs);
    assert!(files(&log, &disk.storage()).contains(&"notes.txt".to_owned()));
}
