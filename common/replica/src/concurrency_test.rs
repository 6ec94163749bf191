//! What other threads see while a replica changes: no torn answers, no high watermark beyond what is held.

use std::sync::atomic::{AtomicBool, Ordering};

use highwater_log::{ReadError, ReadLimits};
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_types::{Durability, MonotonicTime, Offset, OffsetAndEpoch};

use crate::test_cluster::{Cluster, batch, node, partition};
use crate::{FollowerWork, Now};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn consumer_fetch(from: Offset) -> FetchPartition {
    FetchPartition::reading(TopicRef::Id(partition().topic_id), partition().partition, from, 400)
}

#[test]
fn kafka_7104_every_answer_is_of_one_moment_while_records_are_deleted() {
    let mut cluster = Cluster::new(3, 1, Durability::PageCache);
    assert!(cluster.lead(0, |_| true));
    let (leader, now) = (cluster.leader(0), cluster.now());
    let done = AtomicBool::new(false);
    let mut answers = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..400 {
                leader.append(&[batch(number, 3)], now.wall, now.monotonic).unwrap();
                let keep = leader.high_watermark().get() - 30;
                if let Some(start) = Offset::new(keep) {
                    leader.log().raise_log_start(start).unwrap();
                    leader.apply_retention(now.wall).unwrap();
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut from = Offset::ZERO;
        while !done.load(Ordering::SeqCst) {
            let plan = leader.on_fetch(Requester::Consumer, &consumer_fetch(from), MonotonicTime::ZERO);
            let Ok(plan) = plan else {
                from = leader.facts().positions.log_start;
                continue;
            };
            let bounds = plan.snapshot;
            assert!(bounds.log_start <= bounds.high_watermark && bounds.high_watermark <= bounds.log_end);
            match leader.read(
                plan.from,
                ReadLimits { max_bytes: 400, min_one_batch: true, upper: plan.upper, checked: !plan.in_sync },
            ) {
                Ok(read) => {
                    assert!(
                        bounds.log_start <= read.next,
                        "log start {} beside records to {}",
                        bounds.log_start,
                        read.next
                    );
                    from = read.next;
                    answers += usize::from(read.batches > 0);
                }
                Err(ReadError::OutOfRange { .. }) => from = leader.facts().positions.log_start,
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(answers > 10, "{answers} answers with records");
}

#[test]
fn kafka_14704_nobody_sees_a_high_watermark_beyond_what_is_held_while_a_tail_is_cut() {
    // Follower 0..4@0 and 5..7 of a leadership that lost; its high watermark is 5.
    let mut cluster = Cluster::new(5, 2, Durability::PageCache);
    assert!(cluster.lead(0, |_| true));
    cluster.follow(1, 1);
    cluster.produce(0, 5);
    for _ in 0..4 {
        cluster.round(1);
        cluster.pass(20);
    }
    cluster.stop(1);
    assert!(cluster.leader(0).write_checkpoint().unwrap());
    cluster.produce(0, 3);
    cluster.kill(0);
    assert!(cluster.lead(1, |member| member.node == node(1)));
    cluster.produce(1, 3);
    cluster.follow(0, 2);
    let follower = cluster.follower(0);
    assert_eq!((follower.log().log_end(), follower.facts().high_watermark), (offset(8), offset(5)));

    cluster.send_fetch(0, false);
    cluster.deliver_all();
    let crate::test_cluster::Role::Follower(side) = &mut cluster.machines[0].role else { panic!("follows") };
    let cut = side.work.pop_front().unwrap();
    let parts = OffsetAndEpoch { offset: offset(5), epoch: highwater_types::LeaderEpoch::FIRST };
    assert!(matches!(cut, FollowerWork::Truncate { at, .. } if at == parts));
    let (replica, done) = (&side.replica, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let now = Now { monotonic: MonotonicTime::from_millis(9), wall: cluster_wall() };
            drop(replica.execute(&cut, now));
            done.store(true, Ordering::SeqCst);
        });
        let mut polls = 0;
        while !done.load(Ordering::SeqCst) || polls == 0 {
            let facts = replica.facts();
            assert!(facts.high_watermark <= offset(5), "5..7 of the old leader are not committed");
            assert!(facts.high_watermark <= facts.positions.log_end);
            polls += 1;
        }
    });
    assert_eq!(replica.facts().positions.log_end, offset(5));
    for _ in 0..4 {
        cluster.round(0);
        cluster.pass(20);
    }
    cluster.check();
    cluster.assert_identical();
    assert_eq!(cluster.follower(0).facts().high_watermark, offset(8));
}

const fn cluster_wall() -> highwater_types::WallTime {
    highwater_types::WallTime::from_millis(1_000_000)
}

#[test]
fn flushes_beside_appends_lose_no_acknowledgement() {
    let mut cluster = Cluster::new(6, 1, Durability::Fsync);
    assert!(cluster.lead(0, |_| true));
    let (leader, now) = (cluster.leader(0), cluster.now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                leader.append(&[batch(number, 1)], now.wall, now.monotonic).unwrap();
            }
        });
        while leader.high_watermark() < offset(200) {
            let flushed = leader.flush(now.monotonic).unwrap();
            assert!(
                leader.high_watermark() >= flushed,
                "what is flushed is committed: it is alone in the set"
            );
        }
    });
    assert_eq!(leader.log().flushed(), offset(200));
}
