//! Records that are gone, on real logs: what a leader has on record as lost, and what of a lost tail never was (design.md 2).

use highwater_log::OffsetRange;
use highwater_types::{Durability, Offset};

use crate::test_cluster::Cluster;

const LOST: OffsetRange = OffsetRange::new(at(5), at(9));

const fn at(raw: i64) -> Offset {
    match Offset::new(raw) {
        Some(offset) => offset,
        None => unreachable!(),
    }
}

/// Machine 0 led machine 1 up to offset 5; both are down, and this one has 5..9 on record as lost.
fn with_a_lost_tail(index: usize) -> Cluster {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.produce(0, 5);
    cluster.replicate();
    cluster.stop(1);
    if index == 0 {
        cluster.stop(0);
    }
    let open = cluster.open(index).unwrap();
    open.log.note_lost(LOST).unwrap();
    open.close().unwrap();
    cluster
}

/// Everybody flushes, fetches and writes records of the partition until nothing moves any more.
fn settle(cluster: &mut Cluster) {
    for _ in 0..6 {
        cluster.flush(0);
        cluster.round(1);
        cluster.deliver_all();
        cluster.pass(20);
    }
}

#[test]
fn a_follower_goes_on_behind_what_its_leader_has_lost_and_is_in_sync() {
    let mut cluster = with_a_lost_tail(0);
    assert!(cluster.lead(0, |_| false), "alone in sync");
    cluster.produce(0, 2);
    cluster.follow(1, 3);
    settle(&mut cluster);
    let follower = cluster.follower(1).log();
    assert_eq!((follower.log_end(), cluster.leader(0).isr().len()), (at(11), 2));
    let lost: Vec<_> = follower.damage().iter().map(|damage| (damage.range, damage.at_end)).collect();
    assert_eq!(lost, [(LOST, false)]);
    assert_eq!(cluster.follower(1).repairable(), [], "nobody has it");
    assert_eq!(follower.epochs().entries(), cluster.leader(0).log().epochs().entries());
    cluster.kill(1);
    cluster.follow(1, 4);
    cluster.produce(0, 1);
    settle(&mut cluster);
    assert_eq!((cluster.follower(1).log().log_end(), cluster.leader(0).high_watermark()), (at(12), at(12)));
}

#[test]
fn a_lost_tail_that_the_leader_does_not_have_is_forgotten_once_the_logs_are_equal() {
    let mut cluster = with_a_lost_tail(1);
    cluster.follow(1, 3);
    assert_eq!(cluster.follower(1).damage().len(), 1);
    settle(&mut cluster);
    assert!(cluster.follower(1).damage().is_empty());
    cluster.stop(1);
    assert!(cluster.open(1).unwrap().report().damage.is_empty(), "for good");
}
