//! Reading: bounds, limits, snapshots, and readers beside writers, on both disks.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fixture_test::{
    NOW, TestDisk, all, batch, batch_dated, concat, e, kill, lead, o, on_both_disks, open, read_all, shape,
    small_config, stamped,
};
use super::recover_test::{LOG_0, batch_bytes, edit};
use crate::{CutOrder, LogConfig, ReadError, ReadLimits};
use highwater_types::{Offset, WallTime};

on_both_disks!(
    a_read_begins_at_the_batch_that_contains_the_offset,
    the_upper_bound_is_at_a_batch_boundary,
    byte_limits_are_hard_after_the_first_batch,
    offsets_outside_the_log_are_out_of_range,
    a_read_ends_with_its_segment_and_goes_on_in_the_next,
    offsets_are_found_by_time,
    timestamps_of_every_kind_are_copied_unchanged,
    bytes_between_counts_what_lies_between,
    a_removed_segment_is_still_read_by_who_has_it,
    readers_see_old_bytes_or_new_ones_never_a_mixture,
    a_closed_log_gives_clean_errors,
    a_flipped_byte_in_a_closed_segment_is_answered_with_its_place,
);

fn a_read_begins_at_the_batch_that_contains_the_offset<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 40, 3);
    for offset in 0..120 {
        let read = log.read(o(offset), all()).unwrap();
        assert_eq!(read.first, o(offset / 3 * 3), "offset {offset}");
        assert_eq!(shape(&read.records).first().unwrap().0, offset / 3 * 3);
        assert_eq!(read.positions.log_end, o(120));
    }
    let end = log.read(o(120), all()).unwrap();
    assert_eq!((end.records.len(), end.first, end.next), (0, o(120), o(120)));
}

fn a_flipped_byte_in_a_closed_segment_is_answered_with_its_place<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 40, 2);
    let bytes = read_all(&log, o(0));
    let size = batch_bytes();
    // Base offset and epoch are outside the CRC; the magic is looked at before it.
    for at in (8..12).chain(16..size) {
        let flip = |bytes: &mut Vec<u8>| bytes[2 * size + at] ^= 1;
        edit(&disk, LOG_0, flip);
        let before = log.read(o(0), all()).unwrap();
        assert_eq!(
            (before.next, &before.records[..]),
            (o(4), &bytes[..2 * size]),
            "byte {at}: what is good before it"
        );
        // With a last offset that is too small (byte 26), what is asked for within the batch looks compacted away.
        for asked in if at == 26 { 4..5 } else { 4..6 } {
            match log.read(o(asked), all()) {
                Err(error @ ReadError::Corrupt { asked: from, segment, position, .. }) => {
                    assert_eq!((from, segment, position), (o(asked), o(0), 2 * size as u64), "byte {at}");
                    assert_eq!(error.code(), highwater_types::ErrorCode::DataLoss);
                }
                other => panic!("byte {at}: {other:?}"),
            }
        }
        let next = log.snapshot().active_segment;
        assert!(log.read(next, all()).is_ok(), "byte {at}: other segments are served");
        edit(&disk, LOG_0, flip);
    }
    assert_eq!(read_all(&log, o(0)), bytes);
    edit(&disk, LOG_0, |bytes| bytes[16] ^= 1);
    let found = log.offset_for_timestamp(NOW, o(80));
    assert!(
        matches!(found, Err(ReadError::Corrupt { .. })),
        "a search by time does not pass over it: {found:?}"
    );
}

fn the_upper_bound_is_at_a_batch_boundary<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 4, 5);
    for (upper, next) in [(0, 0), (4, 0), (5, 5), (9, 5), (10, 10), (20, 20), (99, 20)] {
        let read = log.read(o(0), ReadLimits { upper: o(upper), ..all() }).unwrap();
        assert_eq!(read.next, o(next), "upper bound {upper}");
    }
    let between = log.read(o(15), ReadLimits { upper: o(10), ..all() }).unwrap();
    assert_eq!(between.records.len(), 0, "between the bound and the log end is no error (S26)");
}

fn byte_limits_are_hard_after_the_first_batch<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 10, 1);
    let size = batch(1).len();
    for (max_bytes, batches) in
        [(0, 1), (size - 1, 1), (size, 1), (2 * size - 1, 1), (3 * size, 3), (10 * size, 10)]
    {
        let read = log.read(o(0), ReadLimits { max_bytes, ..all() }).unwrap();
        assert_eq!(read.batches, batches, "{max_bytes} bytes");
        assert_eq!(read.records.len(), batches * size);
    }
}

fn offsets_outside_the_log_are_out_of_range<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    lead(&log, 0, 4, 5);
    log.raise_log_start(o(7)).unwrap();
    for asked in [0, 6, 21, i64::MAX] {
        let error = log.read(o(asked), all()).unwrap_err();
        assert!(matches!(error, ReadError::OutOfRange { .. }), "{asked}: {error}");
    }
    assert_eq!(log.read(o(7), all()).unwrap().first, o(5), "the log start lies within a batch");
}

fn a_read_ends_with_its_segment_and_goes_on_in_the_next<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 100, 1);
    let read = log.read(o(0), all()).unwrap();
    assert!(read.records.len() <= 1024);
    assert_eq!(shape(&read_all(&log, o(0))).len(), 100);
}

fn offsets_are_found_by_time<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    for i in 0..60 {
        log.append_as_leader(&[batch_dated(2, 20, WallTime::from_millis(1000 + 10 * i))], e(0), NOW).unwrap();
    }
    for (asked, found) in
        [(0, Some(0)), (1000, Some(0)), (1001, Some(2)), (1010, Some(2)), (1590, Some(118)), (1591, None)]
    {
        let hit = log.offset_for_timestamp(WallTime::from_millis(asked), Offset::MAX).unwrap();
        assert_eq!(hit.map(|hit| hit.offset.get()), found, "timestamp {asked}");
    }
    assert_eq!(
        log.offset_for_timestamp(WallTime::from_millis(1300), o(60)).unwrap(),
        None,
        "at the upper bound"
    );
    log.raise_log_start(o(51)).unwrap();
    let hit = log.offset_for_timestamp(WallTime::from_millis(0), Offset::MAX).unwrap().unwrap();
    assert_eq!((hit.offset, hit.timestamp.as_millis(), hit.epoch), (o(51), 1250, Some(e(0))));
}

fn timestamps_of_every_kind_are_copied_unchanged<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { index_interval_bytes: 0, ..small_config() });
    let dates = [NOW.as_millis() + 10_000, NOW.as_millis() - 86_400_000, -1, i64::MAX, NOW.as_millis()];
    let inputs: Vec<_> = dates.iter().map(|ms| batch_dated(1, 10, WallTime::from_millis(*ms))).collect();
    log.append_as_leader(&inputs, e(0), NOW).unwrap();
    let bytes = read_all(&log, o(0));
    let read: Vec<_> =
        highwater_records::batches(&bytes).map(|b| b.unwrap().max_timestamp().as_millis()).collect();
    assert_eq!(read, dates);
    log.close_clean(super::fixture_test::hw(5, 0)).unwrap();
    let (log, report) = open(&disk, small_config());
    assert_eq!(report.repairs, [], "the time index is in order");
    let late =
        log.offset_for_timestamp(WallTime::from_millis(NOW.as_millis() + 10_001), Offset::MAX).unwrap();
    assert_eq!(late.unwrap().offset, o(3));
}

fn bytes_between_counts_what_lies_between<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { index_interval_bytes: 0, ..LogConfig::default() });
    lead(&log, 0, 100, 1);
    let size = batch(1).len() as u64;
    assert_eq!(log.bytes_between(o(0), o(100)), 100 * size);
    assert_eq!(log.bytes_between(o(100), o(100)), 0);
    let part = log.bytes_between(o(50), o(100));
    assert!(part.abs_diff(50 * size) <= size, "{part} of {}", 100 * size);
}

fn a_removed_segment_is_still_read_by_who_has_it<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 60, 2);
    let held = log.view.load_full();
    let first = held.first().clone();
    log.raise_log_start(o(100)).unwrap();
    let mut bytes = vec![0; usize::try_from(first.len).unwrap()];
    crate::StorageFile::read_exact_at(first.segment.file(), &mut bytes, 0).unwrap();
    assert_eq!(shape(&bytes).first().unwrap().0, 0);
    assert!(log.read(o(0), all()).is_err());
}

fn readers_see_old_bytes_or_new_ones_never_a_mixture<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    let done = AtomicBool::new(false);
    // Each round writes the offsets 0 to 39 under another epoch; the record values differ by size as well.
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut next = 0;
                while !done.load(Ordering::SeqCst) {
                    match log.read(o(next), all()) {
                        Ok(read) => {
                            let shape = shape(&read.records);
                            let epochs: Vec<_> = shape.iter().map(|b| b.2).collect();
                            assert!(
                                epochs.iter().all(|epoch| *epoch == epochs[0]),
                                "reader {reader}: {shape:?}"
                            );
                            assert!(
                                shape.first().is_none_or(|b| b.0 <= next && next < b.1),
                                "reader {reader}: {shape:?}"
                            );
                            next = if read.next == o(next) { 0 } else { read.next.get() % 40 };
                        }
                        Err(ReadError::OutOfRange { .. } | ReadError::Overtaken) => next = 0,
                        Err(error) => panic!("reader {reader} at {next}: {error}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let flushed = log.flush().unwrap();
                assert!(flushed.flushed <= flushed.log_end);
            }
        });
        for epoch in 0..60 {
            let rounds: Vec<_> =
                (0..20).map(|i| batch_dated(2, 5 + usize::try_from(epoch % 7).unwrap() + i, NOW)).collect();
            log.append_as_leader(&rounds, e(epoch), NOW).unwrap();
            log.truncate_to(o(0), o(0), CutOrder::Leader).unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(log.log_end(), o(0));
}

fn a_closed_log_gives_clean_errors<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig::default());
    log.append_as_follower(&concat(&[stamped(3, 0, 0)]), e(0), NOW).unwrap();
    assert!(log.abandon().is_some(), "the lock comes back");
    assert!(log.abandon().is_none());
    assert!(matches!(log.read(o(0), all()), Err(ReadError::Unusable(crate::Unusable::Closed))));
    assert!(log.append_as_leader(&[batch(1)], e(0), NOW).is_err());
    assert!(log.flush().is_err() && log.truncate_to(o(0), o(0), CutOrder::Leader).is_err());
    assert!(log.write_checkpoint_lazy(super::fixture_test::hw(0, 0), 0).is_err());
    kill(log);
}
