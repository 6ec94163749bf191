//! A failed flush under `page-cache` takes records that were acknowledged: the vote goes with them at once, or, where nobody
//! else has them, the loss is on record (design.md 2 and 6.3). The high watermark in the checkpoint is older in all of these,
//! so that opening the log does not show what is missing.

use highwater_log::StorageOperation;
use highwater_types::{Durability, Offset};

use crate::test_cluster::{Cluster, Role};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

/// A cluster of which 0..4 is flushed everywhere and 4..8 is committed in page caches only.
fn cluster(machines: usize) -> Cluster {
    let mut cluster = Cluster::leading(machines, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.replicate();
    for index in 0..machines {
        cluster.log(index).unwrap().flush().unwrap();
    }
    cluster.produce(0, 4);
    for _ in 0..3 {
        for index in 1..machines {
            // A round without its flush.
            cluster.send_fetch(index, false);
            cluster.deliver_all();
            cluster.work(index);
        }
    }
    cluster.check();
    assert_eq!(cluster.leader(0).high_watermark(), offset(8));
    cluster
}

fn next_flush_fails(cluster: &Cluster, index: usize) {
    let file = cluster.log(index).unwrap().directory().join("00000000000000000000.log");
    cluster.machines[index].disk.fail_next(StorageOperation::Sync, &file, 5);
}

fn leader_flush_fails(cluster: &mut Cluster) {
    next_flush_fails(cluster, 0);
    let now = cluster.now().monotonic;
    let Role::Leader(leader) = &cluster.machines[0].role else { panic!("it leads") };
    leader.flush(now).unwrap_err();
    assert!(leader.is_over());
}

#[test]
fn a_leader_with_others_in_sync_gives_up_its_vote() {
    let mut cluster = cluster(2);
    let before = cluster.leader(0).incarnation();
    leader_flush_fails(&mut cluster);
    assert_eq!(cluster.leader(0).log_end(), offset(4), "what could not be flushed is cut");
    assert_ne!(cluster.leader(0).incarnation(), before, "at once: the process may be killed now");
    let after = cluster.leader(0).incarnation();
    cluster.leader(0).abandon().unwrap();
    assert_eq!(cluster.leader(0).incarnation(), after, "once");
    cluster.kill(0);
    assert!(!cluster.lead(0, |_| true), "the follower has all of it, this one has not");
    cluster.stop(1);
    assert!(cluster.lead(1, |member| member.node == crate::test_cluster::node(1)));
    assert_eq!(cluster.leader(1).log_end(), offset(8));
    cluster.follow(0, 3);
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.record.isr.len(), 2, "it joined again, with its new incarnation");
}

#[test]
fn a_leader_alone_in_the_set_keeps_its_vote_and_records_the_loss() {
    let mut cluster = cluster(1);
    let before = cluster.leader(0).incarnation();
    leader_flush_fails(&mut cluster);
    // The pass over all partitions writes the lower end of the log meanwhile.
    cluster.leader(0).write_checkpoint().unwrap();
    cluster.kill(0);
    let open = cluster.open(0).unwrap();
    assert_eq!(open.incarnation(), before);
    let lost: Vec<_> = open.report().damage.iter().map(|damage| damage.range).collect();
    assert_eq!(lost, [highwater_log::OffsetRange::new(offset(4), offset(8))]);
    open.close().unwrap();
    assert!(cluster.lead(0, |_| true));
    cluster.produce(0, 1);
    assert_eq!(cluster.leader(0).log_end(), offset(9), "lost offsets are not given to other records");
}

#[test]
fn a_leader_that_lost_nothing_committed_keeps_its_vote() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.replicate();
    cluster.log(0).unwrap().flush().unwrap();
    cluster.produce(0, 4);
    let before = cluster.leader(0).incarnation();
    leader_flush_fails(&mut cluster);
    assert_eq!(cluster.leader(0).incarnation(), before, "the follower had not fetched it");
    cluster.kill(0);
    assert!(cluster.lead(0, |_| true));
}

#[test]
fn a_renewal_that_cannot_be_written_is_owed_until_it_is() {
    let mut cluster = cluster(2);
    let before = cluster.leader(0).incarnation();
    let slots = cluster.log(0).unwrap().directory().join("checkpoint");
    for _ in 0..2 {
        cluster.machines[0].disk.fail_next(StorageOperation::Sync, &slots, 5);
    }
    leader_flush_fails(&mut cluster);
    assert_eq!(cluster.leader(0).incarnation(), before);
    assert_eq!(
        cluster.leader(0).log_end(),
        offset(8),
        "nothing is cut before: the process may be killed now"
    );
    cluster.leader(0).abandon().unwrap_err();
    assert_eq!(cluster.leader(0).log_end(), offset(8));
    assert!(cluster.leader(0).log().incarnation() == before, "nobody can open it: the lock is held");
    cluster.leader(0).abandon().unwrap();
    assert_ne!(cluster.leader(0).incarnation(), before);
    assert_eq!(cluster.leader(0).log_end(), offset(4));
}

#[test]
fn a_follower_cuts_nothing_before_its_renewal_is_written() {
    let mut cluster = cluster(2);
    let before = cluster.follower(1).log().incarnation();
    let slots = cluster.log(1).unwrap().directory().join("checkpoint");
    cluster.machines[1].disk.fail_next(StorageOperation::Sync, &slots, 5);
    next_flush_fails(&cluster, 1);
    cluster.flush(1);
    let log = cluster.follower(1).log();
    assert_eq!((log.incarnation(), log.log_end()), (before, offset(8)));
    drop(log);
    cluster.pass(300);
    cluster.tick(1);
    cluster.settle(1);
    assert_ne!(cluster.follower(1).incarnation(), before, "its recovery writes it first");
    cluster.replicate();
    cluster.assert_identical();
}

#[test]
fn a_follower_gives_up_its_vote_before_it_recovers() {
    let mut cluster = cluster(2);
    let before = cluster.follower(1).log().incarnation();
    next_flush_fails(&cluster, 1);
    cluster.flush(1);
    let log = cluster.follower(1).log();
    assert_eq!(log.log_end(), offset(4));
    assert_ne!(log.incarnation(), before, "the process may be killed before it recovers");
    let renewed = log.incarnation();
    drop(log);
    cluster.pass(300);
    cluster.tick(1);
    cluster.settle(1);
    assert_eq!(cluster.follower(1).incarnation(), renewed, "once");
    cluster.replicate();
    cluster.assert_identical();
}

#[test]
fn a_stop_whose_flush_fails_gives_up_the_vote_too() {
    let mut cluster = cluster(2);
    for index in [1, 0] {
        next_flush_fails(&cluster, index);
        cluster.stop(index);
        assert!(!cluster.lead(index, |_| true), "machine {index} lacks what was acknowledged");
    }
}
