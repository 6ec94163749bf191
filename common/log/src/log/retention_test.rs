//! Retention and the log start, on both disks.

use super::fixture_test::{
    NOW, TestDisk, all, batch_dated, e, files, hw, kill, lead, o, on_both_disks, open, read_all, small_config,
};
use crate::checkpoint::CheckpointFile;
use crate::{LogConfig, LogError};
use highwater_types::WallTime;

on_both_disks!(
    size_removes_the_oldest_segments_below_the_high_watermark,
    age_removes_segments_whose_newest_record_is_old,
    records_from_the_future_hold_nothing_back,
    the_log_start_is_durable_before_segments_go,
    the_log_start_rises_and_never_falls,
    epochs_follow_the_log_start,
    a_log_start_within_a_segment_outlives_the_process_as_its_epochs_do,
);

fn at(ms: i64) -> WallTime {
    WallTime::from_millis(NOW.as_millis() + ms)
}

fn size_removes_the_oldest_segments_below_the_high_watermark<D: TestDisk>() {
    let disk = D::new();
    let (log, _) =
        open(&disk, LogConfig { retention_bytes: Some(3000), retention_ms: None, ..small_config() });
    lead(&log, 0, 100, 1);
    let before = log.positions();
    assert_eq!(log.apply_retention(o(0), NOW).unwrap().removed, 0, "nothing below the high watermark");
    let low = log.apply_retention(o(30), NOW).unwrap();
    assert!(low.removed > 0 && low.positions.log_start <= o(30), "{low:?}");
    let done = log.apply_retention(o(100), NOW).unwrap();
    assert!(done.positions.size >= 3000 && done.positions.size < 3000 + 1024, "{done:?}");
    assert_eq!((done.positions.log_end, before.log_end), (o(100), o(100)));
    let start = done.positions.log_start;
    assert_eq!(log.read(start, all()).unwrap().first, start, "the log starts with a segment");
    assert_eq!(log.apply_retention(o(100), NOW).unwrap().removed, 0);
}

fn age_removes_segments_whose_newest_record_is_old<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { retention_ms: Some(1000), ..small_config() });
    for i in 0..60 {
        log.append_as_leader(&[batch_dated(1, 20, at(i * 100))], e(0), at(i * 100)).unwrap();
    }
    let done = log.apply_retention(o(60), at(3000)).unwrap();
    let start = done.positions.log_start.get();
    assert!(done.removed > 0 && start > 5 && start <= 20, "records 0 to 19 are older than a second: {start}");
    assert_eq!(log.apply_retention(o(60), at(3000)).unwrap().removed, 0);
    let all = log.apply_retention(o(60), at(1_000_000)).unwrap();
    assert!(all.positions.size > 0, "the active segment stays");
}

fn records_from_the_future_hold_nothing_back<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { retention_ms: Some(1000), ..small_config() });
    for timestamp in [i64::MAX, -1, i64::MAX - 5] {
        for _ in 0..30 {
            log.append_as_leader(&[batch_dated(1, 20, WallTime::from_millis(timestamp))], e(0), NOW).unwrap();
        }
    }
    assert_eq!(log.apply_retention(o(90), at(1000)).unwrap().removed, 0);
    let done = log.apply_retention(o(90), at(1001)).unwrap();
    assert!(done.positions.size <= 1024, "only the active segment is left: {done:?}");
}

fn the_log_start_is_durable_before_segments_go<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { retention_bytes: Some(1), ..small_config() });
    lead(&log, 0, 100, 1);
    log.apply_retention(o(100), NOW).unwrap();
    let state = CheckpointFile::read(&disk.storage(), log.directory()).unwrap().into_state().unwrap();
    assert_eq!(state.log_start, log.log_start());
    let logs = files(&log, &disk.storage()).into_iter().filter(|f| f.ends_with(".log")).count();
    assert_eq!(logs, 1);
    let bytes = read_all(&log, log.log_start());
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((report.damage, read_all(&log, log.log_start())), (vec![], bytes));
}

fn the_log_start_rises_and_never_falls<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 50, 2);
    assert_eq!(log.raise_log_start(o(41)).unwrap().log_start, o(41));
    assert_eq!(log.raise_log_start(o(7)).unwrap().log_start, o(41));
    assert!(matches!(log.raise_log_start(o(101)), Err(LogError::Refused(_))));
    assert_eq!(log.raise_log_start(o(100)).unwrap().log_start, o(100));
    assert_eq!(log.read(o(100), all()).unwrap().records.len(), 0);
    lead(&log, 0, 1, 2);
    log.close_clean(hw(102, 0)).unwrap();
    let (log, report) = open(&disk, small_config());
    assert_eq!((log.log_start(), log.log_end(), report.clean), (o(100), o(102), true));
}

fn a_log_start_within_a_segment_outlives_the_process_as_its_epochs_do<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 5, 2);
    lead(&log, 1, 5, 2);
    log.raise_log_start(o(14)).unwrap();
    // The cache is written, without what began below.
    log.assign_epoch(e(2)).unwrap();
    kill(log);
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((log.log_start(), log.log_end(), report.damage), (o(14), o(20), vec![]));
    assert_eq!(log.epochs().earliest().map(|entry| (entry.epoch, entry.start)), Some((e(1), o(14))));
}

fn epochs_follow_the_log_start<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    for epoch in 0..5 {
        lead(&log, epoch, 20, 1);
    }
    log.raise_log_start(o(50)).unwrap();
    let epochs: Vec<_> = log.epochs().entries().iter().map(|x| (x.epoch.get(), x.start.get())).collect();
    assert_eq!(epochs, [(2, 50), (3, 60), (4, 80)]);
    kill(log);
    assert_eq!(open(&disk, small_config()).0.epochs().earliest().unwrap().epoch, e(2));
}
