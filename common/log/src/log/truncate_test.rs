//! Truncation (S42–S44, design.md 2 and 6.5), on both disks.

use super::fixture_test::{
    BOOT, NOW, TestDisk, all, batch, concat, e, files, hw, inc, kill, lead, names_in, o, on_both_disks, open,
    read_all, shape, small_config, stamped,
};
use crate::checkpoint::CheckpointFile;
use crate::{CutOrder, LogConfig, ReadError, Storage};

const LEADER: CutOrder = CutOrder::Leader;

on_both_disks!(
    a_cut_leaves_the_batches_below_the_target,
    a_batch_is_cut_as_a_whole,
    a_cut_removes_segments_and_the_log_goes_on,
    a_cut_in_a_gap_ends_after_the_last_batch,
    a_cut_below_the_first_segment_starts_over,
    a_cut_at_the_end_forgets_recordless_epochs,
    the_checkpoint_is_lowered_first,
    a_cut_below_the_high_watermark_keeps_the_bytes,
    an_unordered_cut_below_the_flushed_end_renews_the_incarnation,
    truncating_fully_forgets_everything,
    a_cut_log_opens_as_it_was_left,
    the_same_bytes_appended_again_after_a_cut_are_read_as_new,
    indexes_follow_a_cut,
);

fn a_cut_leaves_the_batches_below_the_target<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0), stamped(3, 3, 1), stamped(3, 6, 2)]), e(2), NOW)
        .unwrap();
    let before = log.positions();
    let done = log.truncate_to(o(6), o(0), LEADER).unwrap();
    assert_eq!((done.positions.log_end, done.cut.end, done.side_file), (o(6), o(9), None));
    assert!(done.positions.generation > before.generation);
    assert_eq!(shape(&read_all(&log, o(0))), [(0, 3, 0), (3, 6, 1)]);
    assert_eq!(log.epochs().latest().unwrap().epoch, e(1), "epoch 2 began at the cut");
    assert!(matches!(log.read(o(7), all()), Err(ReadError::OutOfRange { .. })));
}

fn a_batch_is_cut_as_a_whole<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 3, 5);
    let done = log.truncate_to(o(8), o(0), LEADER).unwrap();
    assert_eq!(done.positions.log_end, o(5));
    assert_eq!(log.truncate_to(o(2), o(0), LEADER).unwrap().positions.log_end, o(0));
    assert_eq!(log.positions().size, 0);
}

fn a_cut_removes_segments_and_the_log_goes_on<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 60, 2);
    let count = || files(&log, &disk.storage()).iter().filter(|f| f.ends_with(".log")).count();
    let before = count();
    log.truncate_to(o(31), o(0), LEADER).unwrap();
    assert_eq!(log.log_end(), o(30));
    assert!(count() < before);
    lead(&log, 1, 60, 2);
    assert_eq!(log.log_end(), o(150));
    let epochs: Vec<_> =
        shape(&read_all(&log, o(0))).into_iter().map(|(base, _, epoch)| (base < 30, epoch)).collect();
    assert!(epochs.iter().all(|(old, epoch)| *old == (*epoch == 0)), "{epochs:?}");
}

fn a_cut_in_a_gap_ends_after_the_last_batch<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0), stamped(3, 10, 0)]), e(0), NOW).unwrap();
    assert_eq!(log.truncate_to(o(7), o(0), LEADER).unwrap().positions.log_end, o(3));
    kill(log);
    assert_eq!(open(&disk, LogConfig::default()).0.log_end(), o(3), "the same after a restart");
}

fn a_cut_below_the_first_segment_starts_over<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.truncate_fully_and_start_at(o(100), o(0), LEADER).unwrap();
    lead(&log, 0, 2, 3);
    let done = log.truncate_to(o(50), o(0), LEADER).unwrap();
    assert_eq!((done.positions.log_start, done.positions.log_end), (o(50), o(50)));
    assert_eq!(done.positions.size, 0);
    lead(&log, 0, 1, 3);
    assert_eq!(log.log_end(), o(53));
}

fn a_cut_at_the_end_forgets_recordless_epochs<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 3, 1, 10);
    log.assign_epoch(e(7)).unwrap();
    let before = log.positions();
    let done = log.truncate_to(o(10), o(0), LEADER).unwrap();
    assert_eq!(log.epochs().latest().unwrap().epoch, e(3));
    assert_eq!(done.positions, before, "no record was cut");
    kill(log);
    assert_eq!(open(&disk, LogConfig::default()).0.epochs().latest().unwrap().epoch, e(3));
}

fn the_checkpoint_is_lowered_first<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 4, 5);
    log.flush().unwrap();
    log.write_checkpoint(hw(20, 0), log.positions().generation).unwrap();
    let stale = log.positions().generation;
    log.truncate_to(o(10), o(20), LEADER).unwrap();
    let state = CheckpointFile::read(&disk.storage(), log.directory()).unwrap().into_state().unwrap();
    assert_eq!((state.recovery_point, state.high_watermark.offset), (o(10), o(10)));
    assert_eq!((state.clean, state.boot_id), (false, Some(BOOT)));
    assert_eq!(log.flushed(), o(10));
    lead(&log, 1, 4, 5);
    assert!(
        !log.write_checkpoint_lazy(hw(20, 0), stale).unwrap(),
        "a high watermark from before the cut is not written"
    );
    assert_eq!(log.checkpointed_high_watermark(), hw(10, 0));
}

fn a_cut_below_the_high_watermark_keeps_the_bytes<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 40, 2);
    let cut = read_all(&log, o(20));
    let done = log.truncate_to(o(20), o(60), LEADER).unwrap();
    let name = done.side_file.expect("bytes below the high watermark are kept");
    let kept = disk.storage().read_small(&log.directory().join(&name), 1 << 20).unwrap();
    assert_eq!(kept, cut);
    lead(&log, 1, 5, 2);
    let again = log.truncate_to(o(20), o(30), LEADER).unwrap().side_file.unwrap();
    assert_ne!(again, name, "a second cut at the same offset has its own file");
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((log.log_end(), report.foreign), (o(20), vec![]), "side files are no strangers");
}

fn an_unordered_cut_below_the_flushed_end_renews_the_incarnation<D: TestDisk>() {
    let disk = D::new();
    let (log, report) = open(&disk, LogConfig::default());
    lead(&log, 0, 4, 5);
    log.truncate_to(o(15), o(0), CutOrder::Local { new_incarnation: inc(7) }).unwrap();
    assert_eq!(log.incarnation(), report.incarnation, "nothing of it was flushed");
    log.flush().unwrap();
    log.truncate_to(o(10), o(0), LEADER).unwrap();
    assert_eq!(log.incarnation(), report.incarnation, "the leader ordered it");
    let done = log.truncate_to(o(5), o(0), CutOrder::Local { new_incarnation: inc(7) }).unwrap();
    assert_eq!((done.renewed, log.incarnation()), (true, inc(7)));
    kill(log);
    assert_eq!(open(&disk, LogConfig::default()).1.incarnation, inc(7));
}

fn truncating_fully_forgets_everything<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 2, 40, 2);
    for start in [500, 20, 20] {
        let done = log.truncate_fully_and_start_at(o(start), o(0), LEADER).unwrap();
        assert_eq!(
            (done.positions.log_start, done.positions.log_end, done.positions.size),
            (o(start), o(start), 0)
        );
        assert_eq!(log.epochs().entries(), []);
        let logs: Vec<_> = files(&log, &disk.storage()).into_iter().filter(|f| f.ends_with(".log")).collect();
        assert_eq!(logs, [format!("{start:020}.log")]);
    }
    lead(&log, 0, 1, 1);
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert_eq!((log.log_start(), log.log_end(), report.damage), (o(20), o(21), vec![]));
}

fn a_cut_log_opens_as_it_was_left<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 50, 2);
    log.close_clean(hw(100, 0)).unwrap();
    let (log, report) = open(&disk, small_config());
    assert!(report.clean);
    log.truncate_to(o(42), o(0), LEADER).unwrap();
    let bytes = read_all(&log, o(0));
    kill(log);
    let (log, report) = open(&disk, small_config());
    assert!(!report.clean, "a truncation removes the clean mark");
    assert_eq!((log.log_end(), report.damage, report.repairs), (o(42), vec![], vec![]));
    assert_eq!(read_all(&log, o(0)), bytes);
}

fn the_same_bytes_appended_again_after_a_cut_are_read_as_new<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    for epoch in 0..5 {
        lead(&log, epoch, 20, 2);
        let end = log.log_end();
        assert_eq!(end, o(40));
        assert!(shape(&read_all(&log, o(20))).iter().all(|(_, _, found)| *found == epoch));
        log.truncate_to(o(0), o(0), LEADER).unwrap();
        assert_eq!(log.log_end(), o(0));
    }
}

fn indexes_follow_a_cut<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { index_interval_bytes: 100, ..LogConfig::default() });
    for i in 0..50 {
        let dated = super::fixture_test::batch_dated(2, 20, highwater_types::WallTime::from_millis(1000 + i));
        log.append_as_leader(&[dated], e(0), NOW).unwrap();
    }
    log.truncate_to(o(51), o(0), LEADER).unwrap();
    for i in 0..50 {
        assert_eq!(log.read(o(i), all()).unwrap().first, o(i / 2 * 2));
    }
    let found =
        log.offset_for_timestamp(highwater_types::WallTime::from_millis(1024), o(100)).unwrap().unwrap();
    assert_eq!(found.offset, o(48));
    assert!(
        log.offset_for_timestamp(highwater_types::WallTime::from_millis(1025), o(100)).unwrap().is_none()
    );
    log.append_as_leader(&[batch(1)], e(0), NOW).unwrap();
    log.close_clean(hw(51, 0)).unwrap();
    let dir = disk.data_dir().join("orders-0");
    let index = disk.storage().read_small(&dir.join("00000000000000000000.index"), 1 << 20).unwrap();
    assert!(crate::index::OffsetIndex::decode(&index, u64::MAX).unwrap().last().unwrap().relative <= 50);
    assert!(names_in(&disk.storage(), &dir).contains(&"checkpoint".to_owned()));
}
