//! Snapshots of producers beside a log, and headers, on both disks.

use super::fixture_test::{TestDisk, lead, o, on_both_disks, open, small_config};
use crate::CutOrder;

on_both_disks!(
    the_newest_snapshots_are_kept_and_read_back,
    none_stays_above_the_log_end,
    headers_are_shown_from_an_offset_on_over_all_segments,
);

fn the_newest_snapshots_are_kept_and_read_back<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 10, 1);
    assert_eq!(log.producer_snapshots().unwrap(), []);
    for at in [2, 4, 6, 8] {
        log.write_producer_snapshot(o(at), format!("state at {at}").as_bytes(), 2).unwrap();
    }
    assert_eq!(log.producer_snapshots().unwrap(), [o(8), o(6)]);
    assert_eq!(log.read_producer_snapshot(o(6)).unwrap(), b"state at 6");
    log.remove_producer_snapshots().unwrap();
    assert_eq!(log.producer_snapshots().unwrap(), []);
}

fn none_stays_above_the_log_end<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 10, 1);
    for at in [4, 8] {
        log.write_producer_snapshot(o(at), b"x", 2).unwrap();
    }
    log.truncate_to(o(5), o(0), CutOrder::Leader).unwrap();
    assert_eq!(log.producer_snapshots().unwrap(), [o(4)]);
    lead(&log, 1, 10, 1);
    assert_eq!(log.producer_snapshots().unwrap(), [o(4)], "other records are at 8 now");
}

fn headers_are_shown_from_an_offset_on_over_all_segments<D: TestDisk>() {
    let disk = D::new();
    let (log, _) = open(&disk, small_config());
    lead(&log, 0, 100, 1);
    for from in [0, 1, 37, 99, 100] {
        let mut seen = Vec::new();
        let end = log.visit_headers(o(from), |header| seen.push(header.base_offset().get())).unwrap();
        assert_eq!(end, o(100));
        assert_eq!(seen, (from..100).collect::<Vec<_>>(), "from {from}");
    }
}
