//! Real logs with damage, and what a repair brings back (design.md 2).

use bytes::Bytes;
use highwater_log::storage::sim::SimStorage;
use highwater_log::{Access, OffsetRange, Storage, StorageFile as _};
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_records::{BatchBuilder, Compression, Producer};
use highwater_types::{Durability, IsrMember, Offset, WallTime};

use crate::test_cluster::{Cluster, Role, node, partition};
use crate::{FollowerReplica, Refill};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

/// The first batch of producer 7.
fn first_of_producer() -> Bytes {
    let producer = Producer { id: 7, epoch: 0, base_sequence: 0 };
    let mut builder = BatchBuilder::new(Compression::None).producer(producer);
    builder.append(WallTime::from_millis(1_000), None, Some(b"once"), &[]).unwrap();
    builder.build().unwrap().freeze()
}

/// Machine 1 follows machine 0, and its first segment of several is gone. Its incarnation is a new one by that, and it is no
/// member of the in-sync set. Answers what is damaged.
fn without_first_segment(cluster: &mut Cluster) -> OffsetRange {
    let now = cluster.now();
    cluster.leader(0).produce(&[first_of_producer()], &[], now.wall, now.monotonic).unwrap();
    for _ in 0..30 {
        cluster.produce(0, 1);
    }
    cluster.replicate();
    let dir = cluster.log(1).unwrap().directory().to_owned();
    cluster.stop(1);
    let storage = cluster.machines[1].storage.clone();
    for entry in storage.list_dir(&dir).unwrap() {
        let name = entry.utf8_name().unwrap();
        if name == "00000000000000000000.log" || name.ends_with(".snapshot") {
            storage.remove_file(&dir.join(name)).unwrap();
        }
    }
    cluster.record.isr.retain(|member| member.node == node(0));
    cluster.follow(1, 9);
    let damage = cluster.follower(1).damage();
    let [lost] = damage.as_slice() else { panic!("{damage:?}") };
    assert!(lost.range.start == Offset::ZERO && lost.range.end > offset(2) && !lost.at_end);
    lost.range
}

/// One fetch, and the work that comes of its answer.
fn fetch_once(cluster: &mut Cluster) {
    cluster.send_fetch(1, false);
    cluster.deliver_all();
    let now = cluster.now();
    let Role::Follower(side) = &mut cluster.machines[1].role else { panic!("it follows") };
    while let Some(work) = side.work.pop_front() {
        let step = side.replica.execute(&work, now);
        side.take(step);
    }
}

/// Reads what is lost from the leader, as a repair does, and puts it back.
fn repair(cluster: &Cluster, lost: OffsetRange) {
    let mut refill = Refill::new(lost);
    while let Some(fetch_offset) = refill.wanted() {
        let (topic, index) = (TopicRef::Id(partition().topic_id), partition().partition);
        let request = FetchPartition::reading(topic, index, fetch_offset, 500);
        let read = cluster.serve(0, Requester::Repair, &request).unwrap();
        refill.take(&read.records, &cluster.follower(1).facts().epochs).unwrap();
    }
    cluster.follower(1).repair(lost, &refill.into_records()).unwrap();
}

fn acknowledged(replica: &FollowerReplica<SimStorage>) -> Offset {
    replica.inspect(highwater_protocol::follower::FollowerPartition::acknowledged)
}

#[test]
fn what_the_leader_keeps_no_more_is_not_waited_for() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    let lost = without_first_segment(&mut cluster);
    fetch_once(&mut cluster);
    assert_eq!(acknowledged(cluster.follower(1)), lost.start, "nothing behind the damage");
    cluster.leader(0).log().raise_log_start(lost.end).unwrap();
    fetch_once(&mut cluster);
    let follower = cluster.follower(1);
    assert_eq!(follower.damage(), []);
    assert_eq!(acknowledged(follower), follower.log().log_end(), "all that is kept is there");
}

#[test]
fn what_no_high_watermark_covers_is_repaired_too() {
    // As with a leader that stands alone: its high watermark waits for a replica that is not in sync. Here that is the third.
    let mut cluster = Cluster::new(7, 3, Durability::Fsync);
    cluster.min_isr = 3;
    assert!(cluster.lead(0, |_| true));
    cluster.follow(1, 1);
    let lost = without_first_segment(&mut cluster);
    fetch_once(&mut cluster);
    assert_eq!(cluster.leader(0).high_watermark(), Offset::ZERO);
    assert_eq!(acknowledged(cluster.follower(1)), lost.start, "nothing behind the damage");
    repair(&cluster, lost);
    let follower = cluster.follower(1);
    assert_eq!(follower.damage(), []);
    assert_eq!(acknowledged(follower), follower.log().log_end());
}

#[test]
fn rot_that_a_reader_met_holds_the_acknowledgement_under_a_new_incarnation_until_it_is_repaired() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    for _ in 0..30 {
        cluster.produce(0, 1);
    }
    cluster.replicate();
    let now = cluster.now();
    let before = cluster.follower(1).incarnation();
    let rot_met = |cluster: &mut Cluster| {
        let Role::Follower(side) = &mut cluster.machines[1].role else { panic!("it follows") };
        let step = side.replica.on_rot_met(Offset::ZERO, now);
        side.take(step);
    };
    rot_met(&mut cluster);
    assert_eq!(cluster.follower(1).incarnation(), before, "nothing is wrong");

    let segment = cluster.log(1).unwrap().directory().join("00000000000000000000.log");
    let file = cluster.machines[1].storage.open(&segment, Access::ReadWrite).unwrap();
    file.write_all_at(b"rot", 70).unwrap();
    rot_met(&mut cluster);
    let damage = cluster.follower(1).damage();
    let [lost] = damage.as_slice() else { panic!("{damage:?}") };
    assert_eq!((lost.range.start, lost.at_end), (Offset::ZERO, false));
    assert_ne!(cluster.follower(1).incarnation(), before, "it lost what it had acknowledged");
    fetch_once(&mut cluster);
    assert_eq!(acknowledged(cluster.follower(1)), Offset::ZERO, "nothing behind the damage");

    repair(&cluster, lost.range);
    fetch_once(&mut cluster);
    let follower = cluster.follower(1);
    assert_eq!((follower.damage(), acknowledged(follower)), (vec![], follower.log().log_end()));
}

#[test]
fn what_cannot_stand_in_the_place_of_damage_is_cut_from_there_on_and_replicated() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    let lost = without_first_segment(&mut cluster);
    let (before, end) = (cluster.follower(1).incarnation(), cluster.follower(1).log().log_end());
    let now = cluster.now();
    let cut = |cluster: &mut Cluster| {
        let Role::Follower(side) = &mut cluster.machines[1].role else { panic!("it follows") };
        let step = side.replica.cut_to_damage(lost, now);
        side.take(step);
    };
    cut(&mut cluster);
    let follower = cluster.follower(1);
    assert_eq!((follower.log().log_end(), follower.damage()), (Offset::ZERO, vec![]));
    assert_ne!(follower.incarnation(), before, "it may have acknowledged what it cut");
    cluster.replicate();
    let follower = cluster.follower(1);
    assert_eq!((follower.log().log_end(), acknowledged(follower)), (end, end));
    let renewed = follower.incarnation();
    cut(&mut cluster);
    let follower = cluster.follower(1);
    assert_eq!((follower.log().log_end(), follower.incarnation()), (end, renewed), "the damage is no more");
}

#[test]
fn producers_of_repaired_records_are_known() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    let lost = without_first_segment(&mut cluster);
    repair(&cluster, lost);
    let incarnation = cluster.follower(1).incarnation();
    cluster.stop(1);
    cluster.kill(0);
    cluster.record.isr.push(IsrMember { node: node(1), incarnation });
    assert!(cluster.lead(1, |member| member.node == node(1)));
    let now = cluster.now();
    let again = cluster.leader(1).produce(&[first_of_producer()], &[], now.wall, now.monotonic).unwrap();
    assert!(again[0].as_ref().unwrap().is_duplicate, "its first batch is in the log: {again:?}");
}
