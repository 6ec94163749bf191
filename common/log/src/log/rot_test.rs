//! Damage of an open log that a reader met (design.md 2, 6.3), on both disks.

use bytes::Bytes;
use highwater_types::Offset;

use super::damage_test::{remove_segment, segmented};
use super::fixture_test::{
    NOW, TestDisk, all, e, inc, kill, lead, o, on_both_disks, options, read_all, small_config, try_open,
};
use super::recover_test::{batch_bytes, edit, reopen};
use crate::{Log, OffsetRange, OnDamage, OpenOptions, ReadError, ReadLimits, Renewal, Storage};

on_both_disks!(
    rot_that_a_reader_met_is_on_record_under_a_new_incarnation_until_it_is_repaired,
    a_part_of_what_rotted_does_not_fit_in_its_place,
    rot_beside_known_damage_does_not_overlap_it,
    rot_in_front_of_a_missing_segment_does_not_reach_into_it,
    a_garbled_header_is_rot_up_to_the_next_good_batch,
    rot_in_the_active_segment_is_noted_and_appends_go_on_behind_it,
    rot_at_the_very_end_is_a_lost_tail_after_a_restart,
    an_incarnation_that_is_kept_on_rot_is_renewed_once_another_is_in_sync,
    nothing_is_noted_of_a_good_segment,
);

/// The segment of offsets 12 to 23.
const SECOND: &str = "00000000000000000012.log";

/// Flips a bit of these batches of [`SECOND`], at this byte of each.
fn rots<D: TestDisk>(disk: &D, batches: &[usize], byte: usize) {
    edit(disk, SECOND, |log| {
        for batch in batches {
            log[batch * batch_bytes() + byte] ^= 1;
        }
    });
}

fn damage(log: &Log<impl Storage>) -> Vec<(Offset, Offset)> {
    log.damage().iter().map(|damage| (damage.range.start, damage.range.end)).collect()
}

fn repair(log: &Log<impl Storage>, range: OffsetRange, bytes: &[u8]) {
    let place = |offset: Offset| usize::try_from(offset.get() / 2).unwrap() * batch_bytes();
    log.repair(range, &Bytes::copy_from_slice(&bytes[place(range.start)..place(range.end)])).unwrap();
}

fn rot_that_a_reader_met_is_on_record_under_a_new_incarnation_until_it_is_repaired<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    let rotten = |log: &Log<_>| -> Vec<_> {
        log.segment_bases().into_iter().filter(|base| log.has_rot(*base).unwrap()).collect()
    };
    assert_eq!(rotten(&log), []);
    rots(&disk, &[1, 2, 4], 70);
    assert_eq!(rotten(&log), [o(12)]);
    assert!(matches!(log.read(o(14), all()), Err(ReadError::Corrupt { segment, .. }) if segment == o(12)));
    assert!(log.note_rot(o(12), Some(inc(7))).unwrap());
    assert_eq!((damage(&log), log.incarnation()), (vec![(o(14), o(18)), (o(20), o(22))], inc(7)));
    assert!(matches!(log.read(o(15), all()), Err(ReadError::Damaged { range, .. }) if range.end == o(18)));
    assert_eq!(log.read(o(12), all()).unwrap().next, o(14));
    assert_eq!(log.read(o(18), all()).unwrap().next, o(20));
    assert!(!log.note_rot(o(12), Some(inc(8))).unwrap(), "all of it is known");
    assert_eq!((rotten(&log), log.has_rot(o(13)).unwrap()), (vec![], false));
    kill(log);

    let (log, report) = reopen(&disk);
    assert_eq!((report.renewal, log.incarnation()), (None, inc(7)), "both are on record");
    assert_eq!(damage(&log), [(o(14), o(18)), (o(20), o(22))]);
    for lost in log.damage() {
        repair(&log, lost.range, &bytes);
    }
    assert_eq!((read_all(&log, o(0)), damage(&log), log.incarnation()), (bytes, vec![], inc(7)));
}

fn a_part_of_what_rotted_does_not_fit_in_its_place<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    rots(&disk, &[1, 2], 70);
    assert!(log.note_rot(o(12), Some(inc(7))).unwrap());
    let part = OffsetRange::new(o(14), o(16));
    let records = Bytes::copy_from_slice(&bytes[7 * batch_bytes()..8 * batch_bytes()]);
    let refused = log.repair(part, &records);
    assert!(matches!(refused, Err(crate::AppendError::NoRoom(range)) if range == part), "{refused:?}");
    let elsewhere = log.repair(OffsetRange::new(o(18), o(20)), &records);
    assert!(matches!(elsewhere, Err(crate::AppendError::NotContiguous { .. })), "{elsewhere:?}");
}

fn rot_beside_known_damage_does_not_overlap_it<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    rots(&disk, &[2, 5], 70);
    assert!(log.note_rot(o(12), Some(inc(7))).unwrap());
    assert_eq!(damage(&log), [(o(16), o(18)), (o(22), o(24))], "to the end of the segment");
    rots(&disk, &[1, 3], 70);
    assert!(log.note_rot(o(12), Some(inc(8))).unwrap());
    let all = [(o(14), o(16)), (o(16), o(18)), (o(18), o(20)), (o(22), o(24))];
    assert_eq!((damage(&log), log.incarnation()), (all.to_vec(), inc(8)), "lost anew, so renewed anew");
    for lost in log.damage() {
        repair(&log, lost.range, &bytes);
    }
    assert_eq!(read_all(&log, o(0)), bytes);
}

fn rot_in_front_of_a_missing_segment_does_not_reach_into_it<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    kill(log);
    remove_segment(&disk, 24, true);
    let (log, _) = reopen(&disk);
    assert_eq!(damage(&log), [(o(24), o(36))]);
    rots(&disk, &[5], 70);
    assert!(log.note_rot(o(12), Some(inc(7))).unwrap());
    assert_eq!(damage(&log), [(o(22), o(24)), (o(24), o(36))]);
    repair(&log, OffsetRange::new(o(22), o(24)), &bytes);
    repair(&log, OffsetRange::new(o(24), o(36)), &bytes);
    assert_eq!((read_all(&log, o(0)), damage(&log)), (bytes, vec![]));
}

fn a_garbled_header_is_rot_up_to_the_next_good_batch<D: TestDisk>() {
    // The length, the magic, and the base offset, which no CRC covers.
    for byte in [8, 16, 0] {
        let disk = D::new();
        let (log, bytes) = segmented(&disk);
        rots(&disk, &[3], byte);
        assert!(log.note_rot(o(12), Some(inc(7))).unwrap(), "byte {byte}");
        assert_eq!(damage(&log), [(o(18), o(20))], "byte {byte}");
        repair(&log, OffsetRange::new(o(18), o(20)), &bytes);
        assert_eq!(read_all(&log, o(0)), bytes, "byte {byte}");
    }
}

/// The active segment, of offsets 60 to 65.
const ACTIVE: &str = "00000000000000000060.log";

fn rot_in_the_active_segment_is_noted_and_appends_go_on_behind_it<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    edit(&disk, ACTIVE, |log| {
        log[70] ^= 1;
        log[2 * batch_bytes() + 70] ^= 1;
    });
    let unchecked = ReadLimits { checked: false, ..all() };
    assert_eq!(log.read(o(60), unchecked).unwrap().next, o(66), "who follows in sync checks it itself");
    assert!(matches!(log.read(o(60), all()), Err(ReadError::Corrupt { segment, .. }) if segment == o(60)));
    assert!(log.note_rot(o(60), Some(inc(7))).unwrap());
    assert_eq!((damage(&log), log.incarnation()), (vec![(o(60), o(62)), (o(64), o(66))], inc(7)));
    lead(&log, 0, 3, 2);
    assert_eq!((log.log_end(), log.read(o(66), all()).unwrap().next), (o(72), o(72)));
    assert_eq!(log.read(o(62), all()).unwrap().next, o(64));
    assert!(matches!(log.read(o(65), all()), Err(ReadError::Damaged { range, .. }) if range.end == o(66)));
    kill(log);

    let (log, report) = reopen(&disk);
    assert_eq!((report.renewal, log.log_end()), (None, o(72)));
    assert_eq!(damage(&log), [(o(60), o(62)), (o(64), o(66))]);
    for lost in log.damage() {
        repair(&log, lost.range, &bytes);
    }
    assert_eq!((&read_all(&log, o(0))[..bytes.len()], damage(&log)), (&bytes[..], vec![]));
}

fn rot_at_the_very_end_is_a_lost_tail_after_a_restart<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    edit(&disk, ACTIVE, |log| log[2 * batch_bytes() + 70] ^= 1);
    assert!(log.note_rot(o(60), Some(inc(7))).unwrap());
    assert_eq!((damage(&log), log.log_end()), (vec![(o(64), o(66))], o(66)));
    kill(log);
    let (log, report) = reopen(&disk);
    assert_eq!((report.renewal, log.log_end(), damage(&log)), (None, o(64), vec![(o(64), o(66))]));
    let tail = Bytes::copy_from_slice(&bytes[32 * batch_bytes()..]);
    log.append_as_follower(&tail, e(0), NOW).unwrap();
    assert_eq!((read_all(&log, o(0)), damage(&log)), (bytes, vec![]));
}

fn an_incarnation_that_is_kept_on_rot_is_renewed_once_another_is_in_sync<D: TestDisk>() {
    for (on_damage, renewal) in
        [(OnDamage::KeepIncarnation, None), (OnDamage::RenewIncarnation, Some(Renewal::Damage))]
    {
        let disk = D::new();
        let (log, _) = segmented(&disk);
        let incarnation = log.incarnation();
        rots(&disk, &[3], 70);
        assert!(log.note_rot(o(12), None).unwrap());
        assert_eq!((damage(&log), log.incarnation()), (vec![(o(18), o(20))], incarnation));
        kill(log);
        let options = OpenOptions { on_damage, new_incarnation: inc(200), ..options(small_config()) };
        let (_, report) = try_open(&disk, options).unwrap();
        assert_eq!((report.renewal, report.damage.len()), (renewal, 1));
    }
}

fn nothing_is_noted_of_a_good_segment<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = segmented(&disk);
    let incarnation = log.incarnation();
    for segment in [0, 12, 13, 60] {
        assert!(!log.note_rot(o(segment), Some(inc(7))).unwrap(), "segment {segment}");
    }
    assert_eq!((damage(&log), log.incarnation()), (vec![], incarnation));
}
