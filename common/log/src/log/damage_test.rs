//! Damage: acknowledged records that are gone or rotten when a log is opened (design.md 2 and 6.3), on both disks.

use super::fixture_test::{
    NOW, TestDisk, all, batch_dated, e, files, hw, inc, kill, lead, o, on_both_disks, open, options,
    read_all, small_config, stamped, try_open,
};
use super::recover_test::{LOG_0, batch_bytes, edit, file, killed_log, reopen};
use crate::{IndexKind, LogConfig, OnDamage, OpenOptions, ReadError, Renewal, Repair, Storage};
use highwater_types::Durability;

on_both_disks!(
    damage_below_the_high_watermark_is_never_cut,
    damage_between_intact_batches_is_stepped_over_and_repaired,
    a_lost_tail_is_reported_and_filled_by_replication,
    a_lost_tail_can_be_passed_over,
    lost_ranges_are_known_after_a_clean_stop,
    a_sole_replica_keeps_its_incarnation_on_damage,
    a_garbled_header_below_the_high_watermark_is_damage,
    a_missing_first_segment_is_damage,
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

fn a_sole_replica_keeps_its_incarnation_on_damage<D: TestDisk>() {
    let disk = D::new();
    killed_log(&disk, 20);
    edit(&disk, LOG_0, |log| log.truncate(batch_bytes() * 7));
    let keep = OpenOptions {
        on_damage: OnDamage::KeepIncarnation,
        new_incarnation: inc(200),
        ..options(LogConfig::default())
    };
    let (_, report) = try_open(&disk, keep).unwrap();
    assert_eq!((report.damage.len(), report.renewal, report.incarnation), (1, None, inc(100)));
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
