//! Damage of an open log that a reader met (design.md 2, 6.3), on both disks.

use bytes::Bytes;
use highwater_types::Offset;

use super::damage_test::segmented;
use super::fixture_test::{TestDisk, all, inc, kill, o, on_both_disks, read_all};
use super::recover_test::{batch_bytes, edit, reopen};
use crate::{Log, OffsetRange, ReadError, Storage};

on_both_disks!(
    rot_that_a_reader_met_is_on_record_under_a_new_incarnation_until_it_is_repaired,
    rot_beside_known_damage_does_not_overlap_it,
    a_garbled_header_is_rot_up_to_the_next_good_batch,
    nothing_is_noted_of_a_good_segment_or_the_active_one,
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
    rots(&disk, &[1, 2, 4], 70);
    assert!(matches!(log.read(o(14), all()), Err(ReadError::Corrupt { segment, .. }) if segment == o(12)));
    assert!(log.note_rot(o(12), inc(7)).unwrap());
    assert_eq!((damage(&log), log.incarnation()), (vec![(o(14), o(18)), (o(20), o(22))], inc(7)));
    assert!(matches!(log.read(o(15), all()), Err(ReadError::Damaged { range, .. }) if range.end == o(18)));
    assert_eq!(log.read(o(12), all()).unwrap().next, o(14));
    assert_eq!(log.read(o(18), all()).unwrap().next, o(20));
    assert!(!log.note_rot(o(12), inc(8)).unwrap(), "all of it is known");
    kill(log);

    let (log, report) = reopen(&disk);
    assert_eq!((report.renewal, log.incarnation()), (None, inc(7)), "both are on record");
    assert_eq!(damage(&log), [(o(14), o(18)), (o(20), o(22))]);
    for lost in log.damage() {
        repair(&log, lost.range, &bytes);
    }
    assert_eq!((read_all(&log, o(0)), damage(&log), log.incarnation()), (bytes, vec![], inc(7)));
}

fn rot_beside_known_damage_does_not_overlap_it<D: TestDisk>() {
    let disk = D::new();
    let (log, bytes) = segmented(&disk);
    rots(&disk, &[2, 5], 70);
    assert!(log.note_rot(o(12), inc(7)).unwrap());
    assert_eq!(damage(&log), [(o(16), o(18)), (o(22), o(24))], "to the end of the segment");
    rots(&disk, &[1, 3], 70);
    assert!(log.note_rot(o(12), inc(8)).unwrap());
    let all = [(o(14), o(16)), (o(16), o(18)), (o(18), o(20)), (o(22), o(24))];
    assert_eq!((damage(&log), log.incarnation()), (all.to_vec(), inc(8)), "lost anew, so renewed anew");
    for lost in log.damage() {
        repair(&log, lost.range, &bytes);
    }
    assert_eq!(read_all(&log, o(0)), bytes);
}

fn a_garbled_header_is_rot_up_to_the_next_good_batch<D: TestDisk>() {
    // The length, the magic, and the base offset, which no CRC covers.
    for byte in [8, 16, 0] {
        let disk = D::new();
        let (log, bytes) = segmented(&disk);
        rots(&disk, &[3], byte);
        assert!(log.note_rot(o(12), inc(7)).unwrap(), "byte {byte}");
        assert_eq!(damage(&log), [(o(18), o(20))], "byte {byte}");
        repair(&log, OffsetRange::new(o(18), o(20)), &bytes);
        assert_eq!(read_all(&log, o(0)), bytes, "byte {byte}");
    }
}

fn nothing_is_noted_of_a_good_segment_or_the_active_one<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = segmented(&disk);
    let incarnation = log.incarnation();
    edit(&disk, "00000000000000000060.log", |log| log[70] ^= 1);
    for segment in [0, 12, 13, 60] {
        assert!(!log.note_rot(o(segment), inc(7)).unwrap(), "segment {segment}");
    }
    assert_eq!((damage(&log), log.incarnation()), (vec![], incarnation));
}
