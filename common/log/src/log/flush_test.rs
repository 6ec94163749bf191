//! Flushing, and failures that are final, on the simulated disk (which fails on demand) and, where it can be had, on both.

use nix::libc;

use super::fixture_test::{
    NOW, OTHER_BOOT, SimTestDisk, TestDisk, batch, batch_dated, e, hw, inc, kill, lead, o, on_both_disks,
    open, options, read_all, small_config, try_open,
};
use crate::checkpoint::{CheckpointFile, CheckpointState};
use crate::storage::StorageOperation;
use crate::storage::sim::SimStorage;
use crate::{
    AppendError, CutOrder, Log, LogConfig, LogError, OffsetRange, OnDamage, OpenError, OpenOptions, Renewal,
    StorageFile as _, Unusable,
};
use highwater_types::{Durability, PartitionEpoch};

on_both_disks!(
    a_flush_reports_what_it_flushed,
    a_flush_covers_every_segment,
    the_high_watermark_written_is_flushed,
    lazy_checkpoints_are_written_when_something_moved,
    epochs_that_were_noted_are_found_again,
);

fn a_flush_reports_what_it_flushed<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 3, 2);
    assert_eq!((log.flushed(), log.log_end()), (o(0), o(6)));
    assert_eq!(log.flush().unwrap().flushed, o(6));
    lead(&log, 0, 1, 1);
    assert_eq!((log.flushed(), log.flush().unwrap().flushed), (o(6), o(7)));
    log.truncate_to(o(4), o(0), CutOrder::Leader).unwrap();
    assert_eq!(log.flushed(), o(4));
}

fn a_flush_covers_every_segment<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 50, 2);
    assert_eq!(log.flush().unwrap().flushed, o(100));
    assert_eq!(log.flush().unwrap(), log.positions(), "nothing is left to flush");
}

fn the_high_watermark_written_is_flushed<D: TestDisk>() {
    for (durability, written) in [(Durability::Fsync, 4), (Durability::PageCache, 6)] {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig { durability, ..LogConfig::default() });
        lead(&log, 0, 2, 2);
        log.flush().unwrap();
        lead(&log, 0, 1, 2);
        log.write_checkpoint(hw(6, 0), 0).unwrap();
        assert_eq!(log.checkpointed_high_watermark(), hw(written, 0));
    }
}

fn lazy_checkpoints_are_written_when_something_moved<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 2, 2);
    log.flush().unwrap();
    assert!(log.write_checkpoint_lazy(hw(2, 0), 0).unwrap());
    assert!(!log.write_checkpoint_lazy(hw(2, 0), 0).unwrap());
    assert!(log.write_checkpoint_lazy(hw(4, 0), 0).unwrap());
    kill(log);
    assert_eq!(
        open(&disk, LogConfig::default()).1.high_watermark,
        hw(4, 0),
        "the page cache outlives the process"
    );
}

fn epochs_that_were_noted_are_found_again<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.note_epochs(Some(e(3)), PartitionEpoch::new(9)).unwrap();
    log.note_epochs(Some(e(1)), PartitionEpoch::new(2)).unwrap();
    assert_eq!(log.highest_epochs(), (Some(e(3)), Some(PartitionEpoch::new(9))));
    // One that rises alone outlives the process as well: nothing else may move for long.
    log.note_epochs(None, PartitionEpoch::new(12)).unwrap();
    kill(log);
    let report = open(&disk, LogConfig::default()).1;
    assert_eq!(
        (report.highest_leader_epoch, report.highest_partition_epoch),
        (Some(e(3)), Some(PartitionEpoch::new(12)))
    );
}

#[test]
fn an_epoch_that_was_found_unflushed_is_durable_before_anybody_works_under_it() {
    for seed in 0..10 {
        let mut disk = SimTestDisk::seeded(seed);
        let (log, _) = open(&disk, LogConfig::default());
        log.note_epochs(Some(e(3)), PartitionEpoch::new(1)).unwrap();
        let dir = log.directory().to_owned();
        log.close_clean(hw(0, 0)).unwrap();
        // A later life noted an epoch, was closed, and was killed before any of it was flushed.
        let (mut file, found) = CheckpointFile::open(&disk.storage(), &dir).unwrap();
        let state = found.into_state().unwrap();
        file.write_lazy(&CheckpointState { highest_leader_epoch: Some(e(5)), ..state }).unwrap();
        drop(file);
        let (log, report) = open(&disk, LogConfig::default());
        assert_eq!((report.clean, report.highest_leader_epoch), (true, Some(e(5))));
        log.note_epochs(Some(e(5)), PartitionEpoch::new(1)).unwrap();
        kill(log);
        disk.power_loss();
        assert_eq!(open(&disk, LogConfig::default()).1.highest_leader_epoch, Some(e(5)), "seed {seed}");
    }
}

#[test]
fn a_failed_flush_is_final_and_cuts_what_was_not_flushed() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 10, 2);
    log.flush().unwrap();
    lead(&log, 0, 30, 2);
    let active = log.view.load().active.segment.file().path().to_owned();
    disk.disk.fail_next(StorageOperation::Sync, &active, libc::EIO);
    assert!(matches!(log.flush(), Err(LogError::Storage(_))));
    assert!(matches!(log.usable(), Err(Unusable::FlushFailed(_))));
    assert_eq!((log.log_end(), log.flushed()), (o(80), o(20)), "what it loses is written down first");
    assert!(matches!(log.flush(), Err(LogError::Unusable(_))), "later flushes are no success");
    log.cut_unflushed();
    assert_eq!((log.log_end(), log.flushed()), (o(20), o(20)), "nothing that may be gone is believed");
    assert!(matches!(log.append_as_leader(&[batch(1)], e(0), NOW), Err(AppendError::Unusable(_))));
    assert!(log.truncate_to(o(0), o(0), CutOrder::Leader).is_err());
    let bytes = read_all(&log, o(0));
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((log.log_end(), report.damage, read_all(&log, o(0))), (o(20), vec![], bytes));
    lead(&log, 0, 1, 1);
    assert_eq!(log.flush().unwrap().flushed, o(21));
}

#[test]
fn a_log_whose_flushes_succeed_is_not_cut() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 3, 2);
    log.cut_unflushed();
    assert_eq!((log.log_end(), log.flushed()), (o(6), o(0)));
}

fn page_cache_config() -> LogConfig {
    LogConfig { durability: Durability::PageCache, ..LogConfig::default() }
}

/// A log of 0..820, many pages, of which 0..20 is flushed and on file, whose next flush fails.
fn log_whose_flush_fails(disk: &SimTestDisk) -> Log<SimStorage> {
    let (log, _) = open(disk, page_cache_config());
    lead(&log, 0, 10, 2);
    log.flush().unwrap();
    log.write_checkpoint(hw(0, 0), log.positions().generation).unwrap();
    lead(&log, 0, 400, 2);
    disk.disk.fail_next(StorageOperation::Sync, log.view.load().active.segment.file().path(), libc::EIO);
    log
}

#[test]
fn a_process_that_dies_between_a_failed_flush_and_its_note_has_lost_its_vote() {
    let shorter = (0..20).filter(|seed| {
        let disk = SimTestDisk::seeded(*seed);
        let log = log_whose_flush_fails(&disk);
        let before = log.incarnation();
        log.flush().unwrap_err();
        kill(log);
        let options = OpenOptions { new_incarnation: inc(300), ..options(page_cache_config()) };
        let (log, report) = try_open(&disk, options.clone()).unwrap();
        let is_shorter = log.log_end() < o(820);
        let incarnation = if is_shorter { inc(300) } else { before };
        let renewal = is_shorter.then_some(Renewal::PageCacheLost);
        assert_eq!((report.renewal, report.incarnation, report.damage), (renewal, incarnation, vec![]));
        kill(log);
        let options = OpenOptions { new_incarnation: inc(301), ..options };
        assert_eq!(try_open(&disk, options).unwrap().1.renewal, None, "once");
        is_shorter
    });
    assert!((1..20).contains(&shorter.count()), "the kernel drops some of it, or nothing");
}

#[test]
fn what_a_failed_flush_left_in_the_cache_of_a_dead_process_is_not_taken_for_flushed() {
    let mut shorter = 0;
    for seed in 0..40 {
        let mut disk = SimTestDisk::seeded(seed);
        let (log, _) = open(&disk, LogConfig::default());
        lead(&log, 0, 410, 2);
        disk.disk.fail_next(StorageOperation::Sync, log.view.load().active.segment.file().path(), libc::EIO);
        log.flush().unwrap_err();
        kill(log);
        let (log, report) = open(&disk, LogConfig::default());
        assert_eq!(report.renewal, None, "nothing of it was acknowledged");
        let (flushed, bytes) = (log.flushed(), read_all(&log, o(0)));
        assert_eq!(log.log_end(), flushed, "an opening flushes");
        kill(log);
        disk.power_loss();
        let after_boot = OpenOptions { boot_id: OTHER_BOOT, ..options(LogConfig::default()) };
        let (log, _) = try_open(&disk, after_boot).unwrap();
        assert_eq!((log.log_end(), read_all(&log, o(0))), (flushed, bytes), "seed {seed}");
        shorter += u32::from(flushed < o(820));
    }
    assert!((1..40).contains(&shorter), "the kernel drops some of it, or nothing");
}

#[test]
fn an_opening_whose_flush_fails_lets_no_later_one_believe_what_is_left() {
    let shorter = (0..20).filter(|seed| {
        let disk = SimTestDisk::seeded(*seed);
        let (log, _) = open(&disk, page_cache_config());
        lead(&log, 0, 410, 2);
        let active = log.view.load().active.segment.file().path().to_owned();
        kill(log);
        disk.disk.fail_next(StorageOperation::Sync, &active, libc::EIO);
        assert!(matches!(try_open(&disk, options(page_cache_config())), Err(OpenError::Storage(_))));
        let (log, report) = open(&disk, page_cache_config());
        let is_shorter = log.log_end() < o(820);
        assert_eq!(report.renewal, is_shorter.then_some(Renewal::PageCacheLost));
        is_shorter
    });
    assert!((1..20).contains(&shorter.count()), "the kernel drops some of it, or nothing");
}

#[test]
fn what_a_sole_member_lost_in_a_flush_is_on_record() {
    let disk = SimTestDisk::seeded(2);
    let log = log_whose_flush_fails(&disk);
    let before = log.incarnation();
    log.flush().unwrap_err();
    kill(log);
    let options = OpenOptions { on_damage: OnDamage::KeepIncarnation, ..options(page_cache_config()) };
    let (log, report) = try_open(&disk, options).unwrap();
    assert!(log.log_end() < o(820), "the seed is one that loses something");
    assert_eq!((report.renewal, report.incarnation), (None, before));
    let lost: Vec<_> = report.damage.iter().map(|d| (d.range, d.at_end)).collect();
    assert_eq!(lost, [(OffsetRange::new(log.log_end(), o(820)), true)]);
}

#[test]
fn what_a_failed_flush_lost_and_what_a_truncation_cut_is_expected_no_more() {
    let disk = SimTestDisk::new();
    let log = log_whose_flush_fails(&disk);
    log.flush().unwrap_err();
    log.renew_incarnation(inc(300)).unwrap();
    log.cut_unflushed();
    kill(log);
    let (log, report) = open(&disk, page_cache_config());
    assert_eq!((log.log_end(), report.renewal, report.damage), (o(20), None, vec![]));
    log.flush().unwrap();
    log.truncate_to(o(10), o(0), CutOrder::Leader).unwrap();
    kill(log);
    let (log, report) = open(&disk, page_cache_config());
    assert_eq!((log.log_end(), report.renewal, report.damage), (o(10), None, vec![]));
}

#[test]
fn a_flush_that_a_truncation_overtook_expects_nothing() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, page_cache_config());
    lead(&log, 0, 10, 2);
    let before = log.view.load_full();
    log.truncate_to(o(4), o(0), CutOrder::Leader).unwrap();
    log.note_flush(&before).unwrap();
    kill(log);
    let (log, report) = open(&disk, page_cache_config());
    assert_eq!((log.log_end(), report.damage), (o(4), vec![]));
}

#[test]
fn after_a_failed_append_none_succeeds_until_recovery() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 3, 2);
    disk.disk.fail_next(
        StorageOperation::Write,
        &log.directory().join("00000000000000000000.log"),
        libc::EIO,
    );
    let error = log.append_as_leader(&[batch(2)], e(0), NOW).unwrap_err();
    assert!(matches!(error, AppendError::Storage(_)), "{error}");
    for _ in 0..3 {
        assert!(matches!(log.append_as_leader(&[batch(1)], e(0), NOW), Err(AppendError::Unusable(_))));
    }
    assert_eq!((log.log_end(), read_all(&log, o(0)).len()), (o(6), 3 * batch(2).len()), "reading goes on");
    kill(log);
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((log.log_end(), report.renewal), (o(6), None));
    lead(&log, 0, 1, 2);
    assert_eq!(log.log_end(), o(8));
}

#[test]
fn a_full_disk_leaves_the_last_whole_batch() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 3, 2);
    disk.disk.set_space_left(Some(1000));
    let error = log.append_as_leader(&[batch_dated(1, 5000, NOW)], e(0), NOW).unwrap_err();
    assert!(matches!(&error, AppendError::Storage(e) if e.is_disk_full()), "{error}");
    assert_eq!(log.log_end(), o(6));
    let file =
        crate::Storage::file_len(&disk.storage(), &log.directory().join("00000000000000000000.log")).unwrap();
    assert_eq!(file, log.positions().size, "the torn bytes are cut");
    kill(log);
    disk.disk.set_space_left(None);
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((log.log_end(), report.repairs), (o(6), vec![]));
}

#[test]
fn a_truncation_that_fails_half_way_ends_all_changes() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 40, 2);
    log.flush().unwrap();
    disk.disk.fail_next(StorageOperation::SyncDir, log.directory(), libc::EIO);
    assert!(log.truncate_to(o(10), o(0), CutOrder::Leader).is_err());
    assert!(matches!(log.usable(), Err(Unusable::ChangeFailed(_))));
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((log.log_end(), report.damage), (o(10), vec![]));
}

#[test]
fn a_flush_that_a_truncation_overtook_acknowledges_nothing() {
    let disk = SimTestDisk::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 10, 2);
    // The flush has seen the log end 20; before it is done, the log is cut to 10 and grows to 30 under another epoch.
    let before = log.view.load_full();
    log.truncate_to(o(10), o(0), CutOrder::Leader).unwrap();
    lead(&log, 1, 10, 2);
    let after = log.publish_flushed(&before);
    assert_eq!((after.flushed, after.log_end), (o(0), o(30)), "the offsets 10 to 20 are others now");
    assert_eq!(log.flush().unwrap().flushed, o(30));
}

#[test]
fn a_replica_that_cannot_renew_does_not_open() {
    let disk = SimTestDisk::new();
    let config = LogConfig { durability: Durability::PageCache, ..LogConfig::default() };
    let (log, _) = open(&disk, config.clone());
    lead(&log, 0, 2, 2);
    let slots = log.directory().join("checkpoint");
    kill(log);
    disk.disk.fail_next(StorageOperation::Write, &slots, libc::EIO);
    let again = OpenOptions { boot_id: OTHER_BOOT, ..options(config) };
    assert!(try_open(&disk, again.clone()).is_err());
    assert!(try_open(&disk, again).unwrap().1.renewal.is_some());
}

#[test]
fn an_incarnation_that_a_failed_opening_left_unflushed_is_durable_once_the_log_is_open() {
    let mut disk = SimTestDisk::new();
    let slots = disk.data_dir().join(super::fixture_test::partition().directory_name()).join("checkpoint");
    disk.disk.fail_next(StorageOperation::Sync, &slots, libc::EIO);
    assert!(try_open(&disk, options(LogConfig::default())).is_err());
    let (log, _) = open(&disk, LogConfig::default());
    let incarnation = log.incarnation();
    drop(log);
    disk.power_loss();
    let again = OpenOptions { boot_id: OTHER_BOOT, ..options(LogConfig::default()) };
    assert_eq!(try_open(&disk, again).unwrap().0.incarnation(), incarnation);
}
