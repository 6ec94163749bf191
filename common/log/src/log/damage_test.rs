//! Damage: acknowledged records that are gone or rotten when a log is opened (design.md 2 and 6.3), on both disks.

use super::fixture_test::{
    NOW, OTHER_BOOT, SimTestDisk, TestDisk, all, batch_dated, e, files, hw, inc, kill, lead, o,
    on_both_disks, open, options, read_all, small_config, stamped, try_open,
};
use super::recover_test::{LOG_0, batch_bytes, edit, file, killed_log, reopen};
use crate::{
    IndexKind, LogConfig, OffsetRange, OnDamage, OpenOptions, OpenReport, ReadError, Renewal, Repair, Storage,
};
use highwater_types::{Durability, EpochEntry};

on_both_disks!(
    damage_below_the_high_watermark_is_never_cut,
    damage_between_intact_batches_is_stepped_over_and_repaired,
    a_lost_tail_is_reported_and_filled_by_replication,
    a_lost_tail_can_be_passed_over,
    what_the_leader_lost_is_passed_over_and_stays_on_record,
    what_the_leader_lost_reaches_beyond_or_ends_within_an_own_lost_tail,
    a_lost_tail_that_the_leader_does_not_have_is_forgotten,
    a_tail_that_is_lost_again_before_it_was_whole_is_known_from_the_new_end_on,
    lost_ranges_are_known_after_a_clean_stop,
    an_incarnation_that_was_kept_on_damage_is_renewed_once_another_is_in_sync,
    an_incarnation_that_was_kept_on_damage_stays_once_its_replica_has_led_alone,
    a_garbled_header_below_the_high_watermark_is_damage,
    a_missing_first_segment_is_damage,
    no_offset_is_ever_skipped_whichever_segments_are_missing,
    a_missing_segment_above_what_was_flushed_ends_the_log,
    a_closed_segment_that_is_cut_short_or_empty_is_damage,
    bytes_after_the_last_batch_of_a_closed_segment_are_cut,
    missing_segments_are_made_again_by_repair,
    a_repair_of_missing_segments_must_fit,
    a_part_of_missing_segments_can_be_repaired,
    what_is_lost_below_a_log_start_that_rises_is_lost_no_more,
    segments_that_go_missing_one_after_the_other_are_all_damage,
);

fn damage_below_the_high_watermark_is_never_cut<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { durability: Durability::PageCache, ..LogConfig::default() });
    lead(&log, 0, 10, 2);
    log.write_checkpoint(hw(16, 0), 0).unwrap();
    kill(log);
    edit(&disk, LOG_0, |log| log[batch_bytes() * 4 + 70] ^= 1);
    let (log, report) = reopen(&disk);
    assert_eq!(
        report.damage.iter().map(|d| (d.range.start, d.range.end, d.at_end)).collect::<Vec<_>>(),
        [(o(8), o(10), false)]
    );
    assert_eq!((report.renewal, report.incarnation), (Some(Renewal::Damage), inc(200)));
    assert_eq!(log.log_end(), o(20));
}

fn damage_between_intact_batches_is_stepped_over_and_repaired<D: TestDisk>() {
    let disk = D::new();
    let bytes = killed_log(&disk, 20);
    let (start, end) = (batch_bytes() * 4, batch_bytes() * 6);
    edit(&disk, LOG_0, |log| {
        log[start + 70] ^= 1;
        log[start + batch_bytes() + 70] ^= 1;
    });
    // Recovery begins at the recovery point; the whole segment is checked once the range is known to be lost.
    let (log, _) = reopen(&disk);
    kill(log);
    let dir = disk.data_dir().join("orders-0");
    let (mut slots, state) = crate::checkpoint::CheckpointFile::open(&disk.storage(), &dir).unwrap();
    let mut state = state.into_state().unwrap();
    (state.recovery_point, state.clean) = (o(0), false);
    slots.write_durable(&state).unwrap();
    let (log, report) = reopen(&disk);
    let lost = report.damage.first().unwrap().range;
    assert_eq!((report.damage.len(), lost.start, lost.end), (1, o(8), o(12)));
    let before = log.read(o(0), all()).unwrap();
    assert_eq!((before.next, before.records.len()), (o(8), start), "reads end before the hole");
    assert!(matches!(log.read(o(9), all()), Err(ReadError::Damaged { .. })));
    assert_eq!(log.read(o(12), all()).unwrap().records, bytes[end..]);
    let wrong = log.repair(lost, &stamped(4, 8, 0));
    assert!(wrong.is_err(), "not as many bytes as are missing");
    log.repair(lost, &bytes::Bytes::copy_from_slice(&bytes[start..end])).unwrap();
    assert_eq!((read_all(&log, o(0)), log.damage()), (bytes, vec![]));
    kill(log);
    assert_eq!(reopen(&disk).1.damage, vec![]);
}

fn a_lost_tail_is_reported_and_filled_by_replication<D: TestDisk>() {
    let disk = D::new();
    let bytes = killed_log(&disk, 20);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7 + 10));
    let (log, report) = reopen(&disk);
    let damage = report.damage.first().unwrap();
    assert_eq!((damage.range.start, damage.range.end, damage.at_end), (o(14), o(20), true));
    assert_eq!((log.log_end(), report.high_watermark.offset), (o(14), o(14)));
    assert_eq!(report.renewal, Some(Renewal::Damage));
    assert!(
        files(&log, &disk.storage()).contains(&"00000000000000000014.cut".to_owned()),
        "the torn bytes are kept"
    );
    for (from, to, left) in [(7, 9, 1), (9, 10, 0)] {
        let sent = bytes::Bytes::copy_from_slice(&bytes[from * batch_bytes()..to * batch_bytes()]);
        log.append_as_follower(&sent, e(0), NOW).unwrap();
        assert_eq!(log.damage().len(), left);
    }
    assert_eq!(read_all(&log, o(0)), bytes);
    kill(log);
    assert_eq!(reopen(&disk).1.damage, vec![]);
}

fn a_lost_tail_can_be_passed_over<D: TestDisk>() {
    let disk = D::new();
    killed_log(&disk, 20);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
    let (log, _) = reopen(&disk);
    let refused = log.append_as_leader(&[batch_dated(1, 1, NOW)], e(1), NOW);
    assert!(
        matches!(refused, Err(crate::AppendError::LostTail(_))),
        "the lost offsets are not given out again"
    );
    assert_eq!(log.pass_over_lost_tail().unwrap(), o(20));
    lead(&log, 1, 1, 2);
    assert_eq!(log.log_end(), o(22));
    assert!(matches!(log.read(o(15), all()), Err(ReadError::Damaged { .. })));
    assert_eq!(log.read(o(20), all()).unwrap().next, o(22));
    assert_eq!(log.read(o(0), all()).unwrap().next, o(14));
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((log.log_end(), report.damage.len(), report.renewal), (o(22), 1, None), "known, so not new");
    assert!(matches!(log.read(o(14), all()), Err(ReadError::Damaged { .. })));
}

fn lost_in(log: &crate::Log<impl Storage>) -> Vec<(OffsetRange, bool)> {
    log.damage().iter().map(|damage| (damage.range, damage.at_end)).collect()
}

fn began(epoch: i32, start: i64) -> EpochEntry {
    EpochEntry { epoch: e(epoch), start: o(start) }
}

fn what_the_leader_lost_is_passed_over_and_stays_on_record<D: TestDisk>() {
    for clean in [true, false] {
        let disk = D::new();
        let (log, _) = open(&disk, LogConfig { durability: Durability::PageCache, ..LogConfig::default() });
        log.append_as_follower(&stamped(7, 0, 0), e(5), NOW).unwrap();
        let range = OffsetRange::new(o(4), o(20));
        let epochs = [began(0, 0), began(2, 9), began(3, 16), began(5, 20)];
        assert_eq!(log.pass_over_lost(OffsetRange::new(o(8), o(20)), &epochs).unwrap(), o(7), "not here");
        assert_eq!(log.pass_over_lost(range, &epochs).unwrap(), o(20));
        assert_eq!(log.positions().flushed, o(20), "and what comes before it is flushed");
        let lost = OffsetRange::new(o(7), o(20));
        let check = |log: &crate::Log<D::Storage>| {
            assert_eq!(lost_in(log), [(lost, false)]);
            assert_eq!(log.epochs().entries(), [began(0, 0), began(2, 9), began(3, 16)]);
            assert!(matches!(log.read(o(7), all()), Err(ReadError::Damaged { .. })));
            assert_eq!(log.read(o(0), all()).unwrap().next, o(7));
        };
        check(&log);
        log.append_as_follower(&stamped(2, 20, 3), e(5), NOW).unwrap();
        assert_eq!(log.read(o(20), all()).unwrap().next, o(22));
        match clean {
            true => log.close_clean(hw(22, 5)).unwrap(),
            false => kill(log),
        }
        let (log, report) = reopen(&disk);
        assert_eq!((log.log_end(), report.renewal), (o(22), None), "clean: {clean}: {report:?}");
        check(&log);
    }
}

fn what_the_leader_lost_reaches_beyond_or_ends_within_an_own_lost_tail<D: TestDisk>() {
    for (end, left) in [(17, vec![(OffsetRange::new(o(17), o(20)), true)]), (20, vec![]), (24, vec![])] {
        let disk = D::new();
        killed_log(&disk, 20);
        edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
        let (log, _) = reopen(&disk);
        assert_eq!(lost_in(&log), [(OffsetRange::new(o(14), o(20)), true)]);
        log.pass_over_lost(OffsetRange::new(o(0), o(end)), &[]).unwrap();
        let passed = [(OffsetRange::new(o(14), o(end)), false)];
        assert_eq!(lost_in(&log), [passed.to_vec(), left].concat());
        log.append_as_follower(&stamped(9, end, 0), e(0), NOW).unwrap();
        assert_eq!(lost_in(&log), passed, "the rest is filled");
    }
}

fn a_lost_tail_that_the_leader_does_not_have_is_forgotten<D: TestDisk>() {
    let disk = D::new();
    killed_log(&disk, 20);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
    let (log, _) = reopen(&disk);
    log.append_as_follower(&stamped(2, 14, 0), e(0), NOW).unwrap();
    log.forget_lost_tail().unwrap();
    assert_eq!(lost_in(&log), []);
    assert_eq!(log.pass_over_lost_tail().unwrap(), o(16), "whoever leads goes on at the end");
    lead(&log, 1, 1, 2);
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((log.log_end(), report.damage), (o(18), vec![]));
}

fn a_tail_that_is_lost_again_before_it_was_whole_is_known_from_the_new_end_on<D: TestDisk>() {
    let disk = D::new();
    killed_log(&disk, 20);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
    let (log, report) = reopen(&disk);
    assert_eq!(lost_in(&log), [(OffsetRange::new(o(14), o(20)), true)]);
    log.append_as_follower(&stamped(2, 14, 0), e(0), NOW).unwrap();
    log.close_clean(report.high_watermark).unwrap();
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 5));
    let (log, report) = reopen(&disk);
    let lost = [(OffsetRange::new(o(10), o(16)), true), (OffsetRange::new(o(16), o(20)), true)];
    assert_eq!((log.log_end(), lost_in(&log)), (o(10), lost.to_vec()));
    assert!(report.renewal.is_some(), "more is gone than was known");
}

#[test]
fn a_crash_while_records_of_the_leader_are_passed_over_leaves_them_on_record_or_to_be_passed_over_again() {
    let lost = OffsetRange::new(o(6), o(20));
    for (seed, stop) in (0..40).flat_map(|seed| (0..14).map(move |stop| (seed, stop))) {
        let mut disk = SimTestDisk::seeded(seed);
        let (log, _) = open(&disk, LogConfig::default());
        log.append_as_follower(&stamped(6, 0, 0), e(5), NOW).unwrap();
        log.flush().unwrap();
        log.write_checkpoint(hw(6, 5), log.positions().generation).unwrap();
        disk.disk.stop_after(stop);
        let passed = log.pass_over_lost(OffsetRange::new(o(3), o(20)), &[began(3, 16)]);
        kill(log);
        disk.power_loss();
        let after =
            OpenOptions { new_incarnation: inc(200), boot_id: OTHER_BOOT, ..options(LogConfig::default()) };
        let (log, report) = try_open(&disk, after).unwrap();
        let what = format!("seed {seed}, stop {stop}: {passed:?}, {report:?}");
        assert_eq!(report.renewal, None, "{what}");
        assert!(passed.is_err() || lost_in(&log).iter().any(|(range, _)| *range == lost), "{what}");
        assert!(matches!(log.log_end(), end if end == o(6) || end == o(20)), "{what}");
        log.pass_over_lost(lost, &[began(3, 16)]).unwrap();
        assert_eq!((log.log_end(), lost_in(&log)), (o(20), vec![(lost, false)]), "{what}");
    }
}

fn lost_ranges_are_known_after_a_clean_stop<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { durability: Durability::PageCache, ..LogConfig::default() });
    lead(&log, 0, 10, 2);
    log.write_checkpoint(hw(20, 0), 0).unwrap();
    kill(log);
    edit(&disk, LOG_0, |log| log[batch_bytes() * 4 + 70] ^= 1);
    let (log, _) = reopen(&disk);
    lead(&log, 0, 5, 2);
    log.close_clean(hw(30, 0)).unwrap();
    let (log, report) = reopen(&disk);
    assert!(report.clean);
    assert_eq!(
        report.damage.iter().map(|d| (d.range.start, d.range.end)).collect::<Vec<_>>(),
        [(o(8), o(10))]
    );
    assert!(matches!(log.read(o(8), all()), Err(ReadError::Damaged { .. })));
    assert_eq!(log.read(o(10), all()).unwrap().next, o(30));
}

/// A log that lost acknowledged records, and was opened by one who took itself for alone.
fn kept_on_damage<D: TestDisk>(disk: &D) -> (crate::Log<D::Storage>, OpenReport) {
    killed_log(disk, 20);
    edit(disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
    let keep = OpenOptions { on_damage: OnDamage::KeepIncarnation, ..options(LogConfig::default()) };
    let (log, report) = try_open(disk, keep).unwrap();
    assert_eq!((report.renewal, report.incarnation), (None, inc(100)));
    (log, report)
}

fn an_incarnation_that_was_kept_on_damage_is_renewed_once_another_is_in_sync<D: TestDisk>() {
    let disk = D::new();
    let (log, found) = kept_on_damage(&disk);
    // Its record was an old one, so it was not elected.
    log.close_clean(found.high_watermark).unwrap();
    let renew = OpenOptions { new_incarnation: inc(200), ..options(LogConfig::default()) };
    let (log, report) = try_open(&disk, renew.clone()).unwrap();
    assert_eq!((report.renewal, report.incarnation), (Some(Renewal::Damage), inc(200)));
    log.close_clean(report.high_watermark).unwrap();
    let (_, report) = try_open(&disk, OpenOptions { new_incarnation: inc(300), ..renew }).unwrap();
    assert_eq!((report.renewal, report.incarnation), (None, inc(200)), "once");
}

fn an_incarnation_that_was_kept_on_damage_stays_once_its_replica_has_led_alone<D: TestDisk>() {
    let disk = D::new();
    let (log, found) = kept_on_damage(&disk);
    log.confirm_incarnation().unwrap();
    log.close_clean(found.high_watermark).unwrap();
    let renew = OpenOptions { new_incarnation: inc(200), ..options(LogConfig::default()) };
    let (_, report) = try_open(&disk, renew).unwrap();
    assert_eq!((report.renewal, report.incarnation), (None, inc(100)));
    assert_eq!(report.damage.len(), 1, "what it lost is known");
}

fn a_garbled_header_below_the_high_watermark_is_damage<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { durability: Durability::PageCache, ..LogConfig::default() });
    lead(&log, 0, 10, 2);
    let bytes = read_all(&log, o(0));
    log.write_checkpoint(hw(18, 0), 0).unwrap();
    kill(log);
    edit(&disk, LOG_0, |log| log[batch_bytes() * 4 + 8..batch_bytes() * 4 + 12].fill(0xff));
    let (log, report) = reopen(&disk);
    assert_eq!(
        report.damage.iter().map(|d| (d.range.start, d.range.end)).collect::<Vec<_>>(),
        [(o(8), o(10))]
    );
    assert_eq!(log.read(o(10), all()).unwrap().records, bytes[batch_bytes() * 5..]);
}

fn a_missing_first_segment_is_damage<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 30, 2);
    log.close_clean(hw(60, 0)).unwrap();
    disk.storage().remove_file(&file(&disk, LOG_0)).unwrap();
    let (log, report) = reopen(&disk);
    assert_eq!(report.damage.first().unwrap().range.start, o(0));
    assert!(matches!(log.read(o(0), all()), Err(ReadError::Damaged { .. })));
    assert_eq!(report.renewal, Some(Renewal::Damage));
    assert!(report.repairs.iter().any(|r| !matches!(r, Repair::IndexRebuilt { kind: IndexKind::Time, .. })));
}

const SEGMENTS: [i64; 6] = [0, 12, 24, 36, 48, 60];

/// A log of segments that begin as [`SEGMENTS`] says, each with six batches of two records but the last one with three, all
/// committed.
pub(super) fn segmented<D: TestDisk>(disk: &D) -> (crate::Log<D::Storage>, Vec<u8>) {
    let (log, _) = open(disk, LogConfig { segment_bytes: 6 * 120, ..small_config() });
    lead(&log, 0, 33, 2);
    log.flush().unwrap();
    log.write_checkpoint(hw(66, 0), log.positions().generation).unwrap();
    let bases: Vec<_> = files(&log, &disk.storage()).iter().filter_map(|name| base(name)).collect();
    assert_eq!(bases, SEGMENTS);
    let bytes = read_all(&log, o(0));
    (log, bytes)
}

fn base(name: &str) -> Option<i64> {
    name.strip_suffix(".log").map(|base| base.parse().unwrap())
}

pub(super) fn remove_segment<D: TestDisk>(disk: &D, base: i64, with_indexes: bool) {
    for extension in ["log", "index", "timeindex"].into_iter().take(if with_indexes { 3 } else { 1 }) {
        disk.storage().remove_file(&file(disk, &format!("{base:020}.{extension}"))).unwrap();
    }
}

/// Every offset that was committed is read as it was, or answered as damaged; returns the damaged ones.
fn read_or_damaged<S: Storage>(log: &crate::Log<S>, bytes: &[u8]) -> Vec<i64> {
    let mut damaged = Vec::new();
    for offset in 0..66 {
        // Where the log ends before what was committed, a lost tail says so.
        if o(offset) >= log.log_end() {
            let tail = log.damage().into_iter().find(|damage| damage.at_end).expect("a lost tail");
            assert!(tail.range.contains(o(offset)));
            damaged.push(offset);
            continue;
        }
        match log.read(o(offset), all()) {
            Ok(read) => {
                let at = usize::try_from(offset / 2).unwrap() * batch_bytes();
                assert_eq!(
                    (read.first, &read.records[..]),
                    (o(offset / 2 * 2), &bytes[at..at + read.records.len()])
                );
            }
            Err(ReadError::Damaged { range, .. }) if range.contains(o(offset)) => damaged.push(offset),
            Err(other) => panic!("offset {offset}: {other}"),
        }
    }
    damaged
}

fn no_offset_is_ever_skipped_whichever_segments_are_missing<D: TestDisk>() {
    for missing in 1_u32..1 << SEGMENTS.len() {
        let is_missing = |at: usize| missing & (1 << at) != 0;
        let disk = D::new();
        let (log, bytes) = segmented(&disk);
        match missing % 2 {
            0 => log.close_clean(hw(66, 0)).unwrap(),
            _ => kill(log),
        }
        for (_, base) in SEGMENTS.into_iter().enumerate().filter(|(at, _)| is_missing(*at)) {
            remove_segment(&disk, base, base % 24 != 0);
        }
        let (log, report) = reopen(&disk);
        let lost: Vec<i64> =
            (0..66).filter(|offset| is_missing(usize::try_from(offset / 12).unwrap())).collect();
        assert_eq!(read_or_damaged(&log, &bytes), lost, "missing {missing:b}: {report:?}");
        assert_eq!((report.renewal, report.incarnation), (Some(Renewal::Damage), inc(200)));
        kill(log);
        let (log, report) =
            try_open(&disk, OpenOptions { new_incarnation: inc(300), ..options(small_config()) }).unwrap();
        assert_eq!(read_or_damaged(&log, &bytes), lost, "missing {missing:b}, again: {report:?}");
        assert_eq!((report.renewal, report.incarnation), (None, inc(200)), "known, so not new");
    }
}

fn a_missing_segment_above_what_was_flushed_ends_the_log<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, LogConfig { segment_bytes: 6 * 120, ..small_config() });
    lead(&log, 0, 18, 2);
    log.flush().unwrap();
    log.write_checkpoint(hw(36, 0), 0).unwrap();
    lead(&log, 0, 15, 2);
    kill(log);
    remove_segment(&disk, 36, true);
    let after_boot =
        OpenOptions { boot_id: OTHER_BOOT, new_incarnation: inc(200), ..options(LogConfig::default()) };
    let (log, report) = try_open(&disk, after_boot).unwrap();
    assert_eq!((log.log_end(), report.damage, report.renewal), (o(36), vec![], None));
    assert!(matches!(report.repairs.as_slice(), [.., Repair::TailCut { .. }]), "{:?}", report.repairs);
    lead(&log, 1, 1, 2);
    assert_eq!(log.read(o(36), all()).unwrap().next, o(38));
}

fn a_closed_segment_that_is_cut_short_or_empty_is_damage<D: TestDisk>() {
    for (batches, spare) in [(4, 0), (4, 50), (0, 0), (0, 50)] {
        for clean in [true, false] {
            let disk = D::new();
            let (log, bytes) = segmented(&disk);
            match clean {
                true => log.close_clean(hw(66, 0)).unwrap(),
                false => kill(log),
            }
            edit(&disk, "00000000000000000024.log", |log| log.truncate(batches * batch_bytes() + spare));
            let (log, report) = reopen(&disk);
            let first = 24 + 2 * i64::try_from(batches).unwrap();
            let expected: Vec<i64> = (first..36).collect();
            assert_eq!(
                read_or_damaged(&log, &bytes),
                expected,
                "{batches} batches, {spare} bytes: {report:?}"
            );
            assert_eq!(report.renewal, Some(Renewal::Damage));
        }
    }
}

fn bytes_after_the_last_batch_of_a_closed_segment_are_cut<D: TestDisk>() {
    for clean in [true, false] {
        let disk = D::new();
        let (log, bytes) = segmented(&disk);
        match clean {
            true => log.close_clean(hw(66, 0)).unwrap(),
            false => kill(log),
        }
        edit(&disk, "00000000000000000024.log", |log| log.extend_from_slice(&[7; 100]));
        let (log, report) = reopen(&disk);
        assert!(matches!(report.repairs.as_slice(), [Repair::SegmentCut { bytes: 100, .. }]), "{report:?}");
        assert_eq!((read_all(&log, o(0)), report.damage, report.renewal), (bytes, vec![], None));
    }
}

fn missing_segments_are_made_again_by_repair<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    log.close_clean(hw(66, 0)).unwrap();
    for base in [0, 24, 36] {
        remove_segment(&disk, base, true);
    }
    let (log, report) = reopen(&disk);
    let ranges: Vec<_> = report.damage.iter().map(|damage| damage.range).collect();
    assert_eq!(ranges, [OffsetRange::new(o(0), o(12)), OffsetRange::new(o(24), o(48))]);
    for range in ranges {
        let [start, end] =
            [range.start, range.end].map(|at| usize::try_from(at.get() / 2).unwrap() * batch_bytes());
        log.repair(range, &bytes::Bytes::copy_from_slice(&bytes[start..end])).unwrap();
    }
    assert_eq!((read_all(&log, o(0)), log.damage()), (bytes.clone(), vec![]));
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((read_all(&log, o(0)), report.damage, report.renewal), (bytes, vec![], None));
    assert_eq!(report.repairs, [], "the new segments have their indexes");
}

fn a_part_of_missing_segments_can_be_repaired<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    log.close_clean(hw(66, 0)).unwrap();
    remove_segment(&disk, 24, true);
    let (log, _) = reopen(&disk);
    assert_eq!(lost_in(&log), [(OffsetRange::new(o(24), o(36)), false)]);
    let piece = |from: usize, to: usize| {
        bytes::Bytes::copy_from_slice(&bytes[from * batch_bytes()..to * batch_bytes()])
    };
    log.repair(OffsetRange::new(o(28), o(32)), &piece(14, 16)).unwrap();
    let left = [(OffsetRange::new(o(24), o(28)), false), (OffsetRange::new(o(32), o(36)), false)];
    assert_eq!(lost_in(&log), left);
    assert_eq!(log.read(o(28), all()).unwrap().records, piece(14, 16));
    assert!(log.repair(OffsetRange::new(o(22), o(28)), &piece(11, 14)).is_err(), "more than is missing");
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((lost_in(&log), report.renewal), (left.to_vec(), None));
    log.repair(OffsetRange::new(o(24), o(28)), &piece(12, 14)).unwrap();
    log.repair(OffsetRange::new(o(32), o(36)), &piece(16, 18)).unwrap();
    assert_eq!((read_all(&log, o(0)), lost_in(&log)), (bytes, vec![]));
}

fn a_repair_of_missing_segments_must_fit<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    log.close_clean(hw(66, 0)).unwrap();
    remove_segment(&disk, 24, true);
    let (log, report) = reopen(&disk);
    let range = report.damage[0].range;
    let piece = |from: usize, to: usize| {
        bytes::Bytes::copy_from_slice(&bytes[from * batch_bytes()..to * batch_bytes()])
    };
    for (from, to) in [(12, 17), (13, 19), (11, 17)] {
        assert!(log.repair(range, &piece(from, to)).is_err(), "batches {from} to {to}");
    }
    assert_eq!(log.damage(), report.damage);
    assert_eq!(
        files(&log, &disk.storage()).iter().filter_map(|name| base(name)).collect::<Vec<_>>(),
        [0, 12, 36, 48, 60]
    );
    log.repair(range, &piece(12, 18)).unwrap();
    assert_eq!(read_all(&log, o(0)), bytes);
}

fn what_is_lost_below_a_log_start_that_rises_is_lost_no_more<D: TestDisk>() {
    // A segment in the middle, and the beginning. A leader's segments need not begin where this one's do.
    for (missing, start, end) in [(24, 30, 36), (0, 6, 12)] {
        let disk = D::new();
        let (log, bytes) = segmented(&disk);
        log.close_clean(hw(66, 0)).unwrap();
        remove_segment(&disk, missing, true);
        let (log, _) = reopen(&disk);
        log.raise_log_start(o(start)).unwrap();
        let left = [(OffsetRange::new(o(start), o(end)), false)];
        assert_eq!(lost_in(&log), left);
        kill(log);
        let (log, _) = reopen(&disk);
        assert_eq!(lost_in(&log), left);
        let at = |offset: i64| usize::try_from(offset / 2).unwrap() * batch_bytes();
        let piece = bytes::Bytes::copy_from_slice(&bytes[at(start)..at(end)]);
        log.repair(left[0].0, &piece).unwrap();
        assert_eq!((read_all(&log, o(start)), log.damage()), (bytes[at(start)..].to_vec(), vec![]));
        kill(log);
        let (log, report) = reopen(&disk);
        assert_eq!((read_all(&log, o(start)), report.damage), (bytes[at(start)..].to_vec(), vec![]));
    }
}

fn segments_that_go_missing_one_after_the_other_are_all_damage<D: TestDisk>() {
    for [first, second, start, end] in [[0, 12, 0, 24], [12, 0, 0, 24], [24, 36, 24, 48], [36, 24, 24, 48]] {
        let disk = D::new();
        let (mut log, bytes) = segmented(&disk);
        for base in [first, second] {
            log.close_clean(hw(66, 0)).unwrap();
            remove_segment(&disk, base, true);
            log = reopen(&disk).0;
        }
        let range = OffsetRange::new(o(start), o(end));
        assert_eq!(log.damage().iter().map(|damage| damage.range).collect::<Vec<_>>(), [range]);
        let [from, to] = [start, end].map(|at| usize::try_from(at / 2).unwrap() * batch_bytes());
        log.repair(range, &bytes::Bytes::copy_from_slice(&bytes[from..to])).unwrap();
        assert_eq!((read_all(&log, o(0)), log.damage()), (bytes, vec![]));
    }
}
