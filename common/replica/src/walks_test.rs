//! Walks with real logs on simulated disks: the cases that other systems met, and what a disk can do.

use highwater_log::StorageOperation;
use highwater_protocol::follower::PartitionFetchState;
use highwater_types::{Durability, Offset};

use crate::test_cluster::{Cluster, batch, bytes_below, node};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

#[test]
fn two_followers_replicate_join_and_let_the_high_watermark_move() {
    for durability in [Durability::Fsync, Durability::PageCache] {
        let mut cluster = Cluster::leading(3, durability);
        for _ in 0..10 {
            cluster.produce(0, 3);
        }
        cluster.replicate();
        assert_eq!(cluster.record.isr.len(), 3);
        assert_eq!(cluster.leader(0).high_watermark(), offset(30));
        assert_eq!(cluster.follower(2).facts().high_watermark, offset(30));
        cluster.assert_identical();
    }
}

#[test]
fn under_fsync_nothing_is_committed_before_all_have_flushed_it() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.replicate();
    cluster.produce(0, 5);
    cluster.send_fetch(1, false);
    cluster.deliver_all();
    cluster.work(1);
    assert_eq!(cluster.follower(1).facts().positions.log_end, offset(5), "it holds them, unflushed");
    cluster.flush(0);
    cluster.send_fetch(1, true);
    cluster.deliver_all();
    assert_eq!(cluster.leader(0).high_watermark(), offset(0));
    cluster.flush(1);
    assert!(cluster.follower(1).owes_acknowledgement());
    cluster.send_fetch(1, true);
    cluster.deliver_all();
    assert_eq!(cluster.leader(0).high_watermark(), offset(5));
    assert!(!cluster.follower(1).owes_acknowledgement());
}

#[test]
fn kip_101_given_1_a_late_high_watermark_cuts_nothing_on_restart() {
    // A leads with 0..1, B holds both and knows the high watermark 0 or 1; B restarts, A is killed, B leads.
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.replicate();
    cluster.produce(0, 2);
    cluster.flush(0);
    cluster.round(1);
    cluster.send_fetch(1, true);
    cluster.deliver(0);
    cluster.messages.clear();
    assert_eq!(cluster.leader(0).high_watermark(), offset(2));
    assert_eq!(cluster.follower(1).facts().high_watermark, offset(0), "the news was lost");
    cluster.check();

    cluster.kill(1);
    cluster.kill(0);
    assert!(cluster.lead(1, |member| member.node == node(1)));
    assert_eq!(cluster.leader(1).log_end(), offset(2));
    assert_eq!(cluster.leader(1).high_watermark(), offset(2), "alone in the set it commits what it holds");
    cluster.check();
}

#[test]
fn kip_101_given_2_a_returning_leader_cuts_what_was_never_committed() {
    // A holds 0..1@0, B 0@0; B leads epoch 1 and writes 1@1; A comes back.
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 1);
    cluster.replicate();
    cluster.produce(0, 1);
    cluster.kill(0);
    cluster.stop(1);
    assert!(cluster.lead(1, |member| member.node == node(1)));
    cluster.produce(1, 1);
    cluster.check();

    cluster.follow(0, 1);
    assert_eq!(cluster.follower(0).log().log_end(), offset(2));
    let incarnation = cluster.follower(0).incarnation();
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.follower(0).log().log_end(), offset(2));
    assert_eq!(cluster.follower(0).incarnation(), incarnation, "the leader ordered the cut");
    let starts: Vec<_> =
        cluster.follower(0).log().epochs().entries().iter().map(|e| (e.epoch.get(), e.start.get())).collect();
    assert_eq!(starts, [(0, 0), (1, 1)]);
}

#[test]
fn kip_279_several_fail_overs_are_undone_in_several_rounds() {
    // A and B lead in turn, each writes a record that the other never sees; at last B's log wins.
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.replicate();
    for _ in 0..3 {
        cluster.produce(0, 1);
        cluster.kill(0);
        cluster.stop(1);
        assert!(cluster.lead(1, |_| true), "the set keeps both: nothing of this is committed");
        cluster.produce(1, 1);
        cluster.kill(1);
        assert!(cluster.lead(0, |_| true));
        cluster.check();
    }
    let epochs = |cluster: &Cluster| {
        let log = cluster.log(1).unwrap();
        log.epochs().entries().iter().map(|e| e.epoch.get()).collect::<Vec<_>>()
    };
    cluster.kill(0);
    assert!(cluster.lead(1, |_| true));
    let winner = epochs(&cluster);
    cluster.follow(0, 5);
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.follower(0).log().log_end(), offset(3));
    assert_eq!(winner.len(), 4, "epochs of the winner: {winner:?}");
}

#[test]
fn kip_279_a_batch_of_a_leadership_in_between_is_cut_wherever_it_ends() {
    // A writes 0..10 and, alone, 11..20; B writes its own from 11 on, to before, to, or beyond 20; A leads again from 21 on.
    for last in [15, 20, 25] {
        let mut cluster = Cluster::leading(2, Durability::PageCache);
        cluster.produce(0, 11);
        cluster.replicate();
        cluster.produce(0, 10);
        cluster.kill(0);
        cluster.stop(1);
        assert!(cluster.lead(1, |_| true), "the set keeps both: nothing of this is committed");
        cluster.produce(1, last - 10);
        cluster.kill(1);
        assert!(cluster.lead(0, |_| true));
        cluster.produce(0, 10);
        cluster.follow(1, 3);
        cluster.replicate();
        cluster.check();
        cluster.assert_identical();
        assert_eq!(cluster.follower(1).log().log_end(), offset(31), "up to {last}");
    }
}

#[test]
fn an_epoch_without_records_does_not_keep_a_follower_out() {
    // KAFKA-15608: leaderships that wrote nothing, on both sides.
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 10);
    cluster.replicate();
    cluster.stop(0);
    cluster.stop(1);
    assert!(cluster.lead(1, |_| true));
    cluster.kill(1);
    assert!(cluster.lead(0, |_| true));
    cluster.follow(1, 3);
    cluster.replicate();
    assert_eq!(cluster.follower(1).log().log_end(), offset(10));
    assert_eq!(cluster.follower(1).state(cluster.now().monotonic), PartitionFetchState::Fetching);
    assert_eq!(cluster.record.isr.len(), 2);
    let latest = cluster.follower(1).log().epochs().latest().unwrap();
    assert_eq!(latest.start, offset(0), "its own epoch without records is gone");
}

#[test]
fn power_loss_of_every_machine_loses_nothing_that_was_acknowledged_under_fsync() {
    let mut cluster = Cluster::leading(3, Durability::Fsync);
    for _ in 0..5 {
        cluster.produce(0, 4);
        cluster.replicate();
    }
    cluster.produce(0, 4);
    let committed = cluster.committed_end();
    assert_eq!(committed, offset(20));
    for index in 0..3 {
        cluster.lose_power(index);
    }
    assert!(cluster.lead(2, |_| true), "every incarnation survived");
    assert!(cluster.leader(2).log_end() >= committed);
    for index in 0..2 {
        cluster.follow(index, 9);
    }
    cluster.replicate();
    cluster.assert_identical();
}

#[test]
fn under_page_cache_power_loss_takes_the_incarnation_and_with_it_the_vote() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.replicate();
    let before = cluster.follower(1).incarnation();
    cluster.lose_power(1);
    assert!(!cluster.lead(1, |_| true), "not electable");
    cluster.follow(1, 4);
    assert_ne!(cluster.follower(1).incarnation(), before);
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.record.isr.len(), 2, "it joined again, with its new incarnation");
}

#[test]
fn a_failed_flush_is_final_and_heals_by_replication() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.produce(0, 4);
    cluster.replicate();
    cluster.produce(0, 4);
    cluster.flush(0);
    cluster.send_fetch(1, false);
    cluster.deliver_all();
    cluster.work(1);
    let log = cluster.follower(1).log();
    let file = log.directory().join("00000000000000000000.log");
    cluster.machines[1].disk.fail_next(StorageOperation::Sync, &file, 5);
    cluster.flush(1);
    assert!(matches!(
        cluster.follower(1).state(cluster.now().monotonic),
        PartitionFetchState::Failed { retry_at: Some(_), .. }
    ));
    assert!(!cluster.follower(1).owes_acknowledgement());
    cluster.check();
    cluster.pass(300);
    cluster.tick(1);
    cluster.settle(1);
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.leader(0).high_watermark(), offset(8));
}

/// KAFKA-8346: what heals a failed partition must not need a restart of the program.
#[test]
fn a_log_that_cannot_be_opened_again_is_tried_on_and_takes_over_the_leadership_of_meanwhile() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.produce(0, 4);
    cluster.replicate();
    cluster.produce(0, 4);
    cluster.flush(0);
    cluster.send_fetch(1, false);
    cluster.deliver_all();
    cluster.work(1);
    let file = cluster.follower(1).log().directory().join("00000000000000000000.log");
    let is_failed = |cluster: &Cluster| {
        matches!(cluster.follower(1).state(cluster.now().monotonic), PartitionFetchState::Failed { .. })
    };
    cluster.machines[1].disk.fail_next(StorageOperation::Sync, &file, 5);
    cluster.flush(1);
    for _ in 0..2 {
        cluster.machines[1].disk.fail_next(StorageOperation::Open, &file, 5);
        cluster.pass(1000);
        cluster.tick(1);
        cluster.work(1);
        assert!(is_failed(&cluster), "it could not be opened");
    }
    cluster.kill(0);
    assert!(cluster.lead(0, |_| true));
    cluster.learn(1);
    assert!(is_failed(&cluster), "nothing is done in the new epoch before it is noted");
    cluster.tick(1);
    cluster.work(1);
    assert!(!is_failed(&cluster));
    assert_eq!(cluster.follower(1).log().highest_epochs().0, cluster.record.leader_epoch);
    cluster.replicate();
    cluster.assert_identical();
    assert_eq!(cluster.leader(0).high_watermark(), offset(8));
}

#[test]
fn a_full_disk_stops_one_replica_and_it_comes_back_when_there_is_room() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.replicate();
    cluster.machines[1].disk.set_space_left(Some(100));
    for _ in 0..5 {
        cluster.produce(0, 4);
    }
    cluster.round(1);
    assert!(matches!(cluster.follower(1).state(cluster.now().monotonic), PartitionFetchState::Failed { .. }));
    cluster.machines[1].disk.set_space_left(None);
    cluster.pass(300);
    cluster.tick(1);
    cluster.replicate();
    cluster.assert_identical();
}

#[test]
fn a_bad_batch_is_never_written() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.send_fetch(1, false);
    cluster.deliver(0);
    let Some(crate::test_cluster::Message::Answer { answer: Ok(fetched), .. }) = cluster.messages.last_mut()
    else {
        panic!("answered")
    };
    let mut bytes = fetched.records.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    fetched.records = bytes.into();
    cluster.deliver_all();
    cluster.work(1);
    assert_eq!(cluster.follower(1).log().log_end(), offset(0));
    assert!(matches!(
        cluster.follower(1).state(cluster.now().monotonic),
        PartitionFetchState::Delayed { .. }
    ));
    cluster.pass(100);
    cluster.replicate();
    cluster.assert_identical();
}

#[test]
fn retention_on_the_leader_raises_the_followers_log_start() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    for _ in 0..20 {
        cluster.produce(0, 4);
    }
    cluster.replicate();
    cluster.leader(0).log().raise_log_start(offset(41)).unwrap();
    cluster.leader(0).apply_retention(cluster.now().wall).unwrap();
    cluster.replicate();
    assert_eq!(cluster.follower(1).facts().positions.log_start, offset(41));
}

#[test]
fn a_follower_below_the_leaders_log_start_begins_again_there() {
    let mut cluster = Cluster::leading(2, Durability::PageCache);
    cluster.produce(0, 4);
    cluster.replicate();
    cluster.stop(1);
    for _ in 0..20 {
        cluster.produce(0, 4);
    }
    // Only a record without machine 1, which has not been about to join for long (S57), lets the high watermark go on.
    cluster.pass(31_000);
    cluster.record.isr.retain(|member| member.node == node(0));
    cluster.record.partition_epoch = cluster.record.partition_epoch.next();
    cluster.learn(0);
    cluster.leader(0).log().raise_log_start(offset(42)).unwrap();
    cluster.leader(0).apply_retention(cluster.now().wall).unwrap();
    cluster.follow(1, 6);
    for _ in 0..40 {
        cluster.round(1);
        cluster.pass(20);
    }
    let (leader, follower) = (cluster.log(0).unwrap(), cluster.log(1).unwrap());
    assert_eq!((follower.log_start(), follower.log_end()), (offset(42), offset(84)));
    assert_eq!(
        bytes_below(&leader, offset(84)),
        bytes_below(&follower, offset(84)),
        "the batch 40..43 came whole (S47)"
    );
    assert_eq!(cluster.record.isr.len(), 2);
}

#[test]
fn times_and_bytes_of_recent_appends_are_known() {
    let cluster = Cluster::leading(1, Durability::PageCache);
    let (leader, now) = (cluster.leader(0), cluster.now());
    let inputs = [batch(1, 2), batch(2, 3)];
    let sizes = inputs.each_ref().map(|b| b.len() as u64);
    leader.append(&inputs, now.wall, now.monotonic).unwrap();
    assert_eq!(leader.appended_at(offset(4)), Some(now.monotonic));
    assert_eq!(leader.appended_at(offset(5)), None);
    assert!(leader.describe(now.monotonic).is_empty());
    assert!(sizes[0] > 0 && sizes[1] > sizes[0]);
}
