//! Appending, rolling, and reading back, on both disks.

use super::fixture_test::{
    NOW, TestDisk, all, batch, batch_dated, concat, e, files, lead, names_in, o, on_both_disks, open,
    read_all, shape, small_config, stamped,
};
use crate::{AppendError, LogConfig, ReadLimits, Storage, StorageFile as _};
use highwater_records::BatchError;
use highwater_types::{Offset, WallTime};

on_both_disks!(
    a_leader_gives_offsets_and_stamps_its_epoch,
    several_inputs_and_batches_are_one_append,
    a_follower_stores_the_bytes_as_they_came,
    a_bad_batch_is_never_written_nor_are_those_around_it,
    batches_of_a_newer_epoch_than_the_request_are_left_out,
    a_gap_is_allowed_and_a_step_back_is_not,
    an_epoch_never_falls,
    a_hole_of_more_than_2_to_the_31_begins_a_segment,
    a_batch_is_never_split_between_segments,
    a_batch_larger_than_a_segment_gets_its_own,
    old_and_full_segments_are_closed,
    an_empty_log_may_begin_in_the_middle_of_a_batch,
    an_empty_batch_moves_the_log_end,
    appending_nothing_changes_nothing,
);

fn a_leader_gives_offsets_and_stamps_its_epoch<D: TestDisk>() {
    let disk = D::new();
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!(report.positions.log_end, Offset::ZERO);
    let input = batch(3);
    let first = log.append_as_leader(std::slice::from_ref(&input), e(4), NOW).unwrap();
    assert_eq!((first.first, first.next), (o(0), o(3)));
    let second = log.append_as_leader(&[batch(2)], e(4), NOW).unwrap();
    assert_eq!((second.first, second.next), (o(3), o(5)));
    assert_eq!(shape(&read_all(&log, o(0))), [(0, 3, 4), (3, 5, 4)]);
    assert_eq!(input, batch(3), "the input is not changed");
    assert_eq!(log.epochs().latest().unwrap().start, o(0));
}

fn several_inputs_and_batches_are_one_append<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    let done = log.append_as_leader(&[concat(&[batch(1), batch(2)]), batch(5)], e(0), NOW).unwrap();
    let ranges: Vec<_> = done.inputs.iter().map(|r| (r.start.get(), r.end.get())).collect();
    assert_eq!(ranges, [(0, 3), (3, 8)]);
    assert_eq!(shape(&read_all(&log, o(0))), [(0, 1, 0), (1, 3, 0), (3, 8, 0)]);
}

fn a_follower_stores_the_bytes_as_they_came<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    let sent = concat(&[stamped(3, 0, 2), stamped(2, 3, 2), stamped(4, 5, 5)]);
    let done = log.append_as_follower(&sent, e(5), NOW).unwrap();
    assert_eq!((done.first, done.next, done.bytes, done.left_out), (o(0), o(9), sent.len(), None));
    assert_eq!(read_all(&log, o(0)), sent);
    let epochs: Vec<_> = log.epochs().entries().iter().map(|x| (x.epoch.get(), x.start.get())).collect();
    assert_eq!(epochs, [(2, 0), (5, 5)]);
}

fn a_bad_batch_is_never_written_nor_are_those_around_it<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    let mut torn = stamped(2, 3, 0).to_vec();
    *torn.last_mut().unwrap() ^= 1;
    let sent = concat(&[stamped(3, 0, 0), torn.into(), stamped(1, 5, 0)]);
    let error = log.append_as_follower(&sent, e(0), NOW).unwrap_err();
    assert!(
        matches!(error, AppendError::Batch { index: 1, source: BatchError::BadChecksum { .. }, .. }),
        "{error}"
    );
    let cut = stamped(3, 0, 0).slice(..80);
    let error = log.append_as_follower(&cut, e(0), NOW).unwrap_err();
    assert!(
        matches!(error, AppendError::Batch { index: 0, source: BatchError::Partial { .. }, .. }),
        "{error}"
    );
    assert_eq!(log.positions().size, 0);
    assert!(log.usable().is_ok(), "a refused batch does no harm");
    log.append_as_follower(&stamped(1, 0, 0), e(0), NOW).unwrap();
}

fn batches_of_a_newer_epoch_than_the_request_are_left_out<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&stamped(10, 0, 5), e(5), NOW).unwrap();
    let done = log.append_as_follower(&concat(&[stamped(1, 10, 5), stamped(1, 11, 6)]), e(5), NOW).unwrap();
    assert_eq!((done.next, done.left_out), (o(11), Some(e(6))));
    let none = log.append_as_follower(&stamped(1, 11, 6), e(5), NOW).unwrap();
    assert_eq!((none.first, none.next, none.bytes, none.left_out), (o(11), o(11), 0, Some(e(6))));
    assert_eq!(log.epochs().latest().unwrap().epoch, e(5), "nothing of the newer epoch is known");
}

fn a_gap_is_allowed_and_a_step_back_is_not<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0), stamped(1, 7, 0)]), e(0), NOW).unwrap();
    assert_eq!(log.log_end(), o(8));
    for base in [0, 3, 7] {
        let error = log.append_as_follower(&stamped(5, base, 0), e(0), NOW).unwrap_err();
        assert!(matches!(error, AppendError::NotContiguous { .. }), "{error}");
    }
    let read = log.read(o(4), all()).unwrap();
    assert_eq!((read.first, read.next), (o(7), o(8)), "a read in the gap begins after it");
    assert_eq!(log.read(o(2), all()).unwrap().first, o(0), "the batch that contains the offset");
}

fn an_epoch_never_falls<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 3, 1, 1);
    assert!(matches!(log.append_as_leader(&[batch(1)], e(2), NOW), Err(AppendError::EpochFell { .. })));
    assert!(matches!(
        log.append_as_follower(&stamped(1, 1, 2), e(9), NOW),
        Err(AppendError::EpochFell { .. })
    ));
    assert!(log.assign_epoch(e(2)).is_err());
    assert_eq!(log.log_end(), o(1));
    assert_eq!(log.assign_epoch(e(3)).unwrap(), o(0), "the epoch that is already known began at 0");
    assert_eq!(log.assign_epoch(e(4)).unwrap(), o(1));
}

fn a_hole_of_more_than_2_to_the_31_begins_a_segment<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(1, 10, 0), stamped(1, 3_000_000_010, 0)]), e(0), NOW).unwrap();
    assert_eq!(log.log_end(), o(3_000_000_011));
    let names = files(&log, &disk.storage());
    assert!(names.contains(&"00000000003000000010.log".to_owned()), "{names:?}");
    assert_eq!(log.read(o(11), all()).unwrap().first, o(3_000_000_010));
    log.close_clean(super::fixture_test::hw(0, 0)).unwrap();
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((log.log_end(), report.clean), (o(3_000_000_011), true));
}

fn a_batch_is_never_split_between_segments<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    let inputs: Vec<_> = (0..40).map(|i| batch(1 + i % 5)).collect();
    let done = log.append_as_leader(&inputs, e(0), NOW).unwrap();
    assert!(done.rolled);
    let mut segments = 0;
    for name in files(&log, &disk.storage()).iter().filter(|name| name.ends_with(".log")) {
        let bytes = disk.storage().read_small(&log.directory().join(name), 2048).unwrap();
        let base: i64 = name.split('.').next().unwrap().parse().unwrap();
        assert_eq!(shape(&bytes).first().unwrap().0, base, "a segment is named after its first batch");
        assert!(bytes.len() <= 1024);
        segments += 1;
    }
    assert!(segments > 3, "{segments} segments");
    assert_eq!(shape(&read_all(&log, o(0))).len(), 40);
}

fn a_batch_larger_than_a_segment_gets_its_own<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    let large = batch_dated(1, 5000, NOW);
    log.append_as_leader(&[batch(1), large, batch(1)], e(0), NOW).unwrap();
    let logs = files(&log, &disk.storage()).into_iter().filter(|name| name.ends_with(".log")).count();
    assert_eq!(logs, 3);
    let read = log.read(o(1), ReadLimits { max_bytes: 100, ..all() }).unwrap();
    assert_eq!((read.batches, read.records.len() > 5000), (1, true), "the first batch comes whole (S32)");
    let none = log.read(o(1), ReadLimits { max_bytes: 100, min_one_batch: false, ..all() }).unwrap();
    assert_eq!((none.records.len(), none.next), (0, o(1)));
}

fn old_and_full_segments_are_closed<D: TestDisk>() {
    let disk = D::new();
    let config = LogConfig {
        segment_ms: Some(1000),
        segment_index_bytes: 24,
        index_interval_bytes: 0,
        ..LogConfig::default()
    };
    let (log, _) = open(&disk, config);
    log.append_as_leader(&[batch(1)], e(0), NOW).unwrap();
    let at = |ms| WallTime::from_millis(NOW.as_millis() + ms);
    assert!(!log.append_as_leader(&[batch(1)], e(0), at(1000)).unwrap().rolled);
    assert!(log.append_as_leader(&[batch(1)], e(0), at(1001)).unwrap().rolled, "older than segment.ms");
    assert!(
        !log.append_as_leader(&[batch_dated(1, 1, WallTime::from_millis(i64::MAX))], e(0), at(1001))
            .unwrap()
            .rolled
    );
    assert!(log.append_as_leader(&[batch(1)], e(0), at(1002)).unwrap().rolled, "the index has no room left");
    let index = names_in(&disk.storage(), log.directory())
        .into_iter()
        .find(|n| n == "00000000000000000002.timeindex");
    let index = log.directory().join(index.unwrap());
    assert_eq!(disk.storage().open(&index, crate::Access::ReadOnly).unwrap().len().unwrap(), 12);
}

fn an_empty_log_may_begin_in_the_middle_of_a_batch<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    let order = crate::CutOrder::Leader;
    log.truncate_fully_and_start_at(o(15), o(0), order).unwrap();
    assert!(log.append_as_follower(&stamped(10, 0, 0), e(0), NOW).is_err(), "ends before the log start");
    log.append_as_follower(&stamped(10, 10, 0), e(0), NOW).unwrap();
    assert_eq!((log.log_start(), log.log_end()), (o(15), o(20)));
    assert_eq!(log.read(o(15), all()).unwrap().first, o(10));
    assert!(log.read(o(14), all()).is_err(), "below the log start");
    super::fixture_test::kill(log);
    let (log, _) = open(&disk, LogConfig::default());
    assert_eq!((log.log_start(), log.log_end()), (o(15), o(20)));
}

fn an_empty_batch_moves_the_log_end<D: TestDisk>() {
    // FX2: the offsets 8737 to 8747, all records compacted away.
    const FX2: &[u8] = &[
        0, 0, 0, 0, 0, 0, 0x22, 0x21, 0, 0, 0, 0x31, 0, 0, 0, 0, 2, 0x35, 0xfe, 0x51, 0x28, 0, 0, 0, 0, 0,
        0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x03, 0xe8, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
    ];
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.truncate_fully_and_start_at(o(8737), o(0), crate::CutOrder::Leader).unwrap();
    let done = log.append_as_follower(&bytes::Bytes::from_static(FX2), e(0), NOW).unwrap();
    assert_eq!((done.bytes, done.next), (61, o(8748)));
    super::fixture_test::kill(log);
    let (log, _) = open(&disk, LogConfig::default());
    assert_eq!(log.log_end(), o(8748), "with the empty batch as the last one");
    assert_eq!(log.read(o(8740), all()).unwrap().next, o(8748));
}

fn appending_nothing_changes_nothing<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    let before = log.positions();
    assert_eq!(log.append_as_leader(&[], e(0), NOW).unwrap().next, o(0));
    assert_eq!(log.append_as_follower(&bytes::Bytes::new(), e(0), NOW).unwrap().next, o(0));
    assert_eq!(log.positions(), before);
}
