//! Idempotent producers over real logs: duplicates, fail-over, cuts, snapshots (design.md 6.10).

use bytes::Bytes;
use highwater_records::{BatchBuilder, Compression, Producer};
use highwater_types::{Durability, ErrorCode, Offset, WallTime};

use crate::Placed;
use crate::test_cluster::{Cluster, node};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

/// A batch of producer 7 with `records` records from `sequence` on.
fn batch(sequence: i32, records: usize) -> Bytes {
    let producer = Producer { id: 7, epoch: 0, base_sequence: sequence };
    let mut builder = BatchBuilder::new(Compression::None).producer(producer);
    for record in 0..records {
        let value = format!("sequence {sequence}, record {record}");
        builder.append(WallTime::from_millis(1_000), None, Some(value.as_bytes()), &[]).unwrap();
    }
    builder.build().unwrap().freeze()
}

fn produce(cluster: &Cluster, leader: usize, inputs: &[Bytes]) -> Vec<Result<(i64, i64, bool), ErrorCode>> {
    let now = cluster.now();
    let placed = cluster.leader(leader).produce(inputs, &[], now.wall, now.monotonic).unwrap();
    let plain = |placed: Placed| (placed.range.start.get(), placed.range.end.get(), placed.is_duplicate);
    placed.into_iter().map(|outcome| outcome.map(plain).map_err(|error| error.code)).collect()
}

#[test]
fn each_input_of_a_write_is_answered_for_itself() {
    let cluster = Cluster::leading(1, Durability::Fsync);
    let inputs = [batch(0, 2), batch(0, 2), batch(2, 1), batch(9, 1)];
    let expected =
        [Ok((0, 2, false)), Ok((0, 2, true)), Ok((2, 3, false)), Err(ErrorCode::OutOfOrderSequence)];
    assert_eq!(produce(&cluster, 0, &inputs), expected);
    assert_eq!(cluster.leader(0).log_end(), offset(3), "nothing is in the log twice");
}

#[test]
fn an_unknown_producer_that_does_not_begin_at_0_is_refused() {
    let cluster = Cluster::leading(1, Durability::Fsync);
    assert_eq!(produce(&cluster, 0, &[batch(1, 1)]), [Err(ErrorCode::UnknownProducer)]);
    assert_eq!(cluster.leader(0).log_end(), offset(0));
}

#[test]
fn the_next_leader_knows_what_it_replicated() {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.replicate();
    for sequence in [0, 2, 4] {
        produce(&cluster, 0, &[batch(sequence, 2)]);
    }
    cluster.replicate();
    cluster.kill(0);
    cluster.stop(1);
    assert!(cluster.lead(1, |member| member.node == node(1)));
    assert_eq!(produce(&cluster, 1, &[batch(4, 2), batch(6, 1)]), [Ok((4, 6, true)), Ok((6, 7, false))]);
}

#[test]
fn a_killed_leader_reads_its_log_again() {
    let mut cluster = Cluster::leading(1, Durability::Fsync);
    for sequence in 0..7 {
        produce(&cluster, 0, &[batch(sequence, 1)]);
    }
    cluster.flush(0);
    cluster.kill(0);
    assert!(cluster.lead(0, |_| true));
    assert_eq!(produce(&cluster, 0, &[batch(2, 1)]), [Ok((2, 3, true))], "all five are known again");
    assert_eq!(produce(&cluster, 0, &[batch(1, 1)]), [Err(ErrorCode::OutOfOrderSequence)]);
}

#[test]
fn what_a_follower_cut_is_no_duplicate_when_it_leads() {
    // Machine 0 writes sequence 1 that nobody has; machine 1 leads on; machine 0 comes back, cuts, and leads in the end.
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.replicate();
    produce(&cluster, 0, &[batch(0, 1)]);
    cluster.replicate();
    produce(&cluster, 0, &[batch(1, 1)]);
    cluster.flush(0);
    cluster.kill(0);
    cluster.stop(1);
    assert!(cluster.lead(1, |_| true));
    cluster.produce(1, 1);
    cluster.follow(0, 3);
    cluster.replicate();
    cluster.assert_identical();
    cluster.stop(1);
    cluster.stop(0);
    assert!(cluster.lead(0, |_| true));
    assert_eq!(produce(&cluster, 0, &[batch(1, 1)]), [Ok((2, 3, false))], "it was cut: it is new");
}

#[test]
fn a_stop_keeps_a_snapshot_and_the_next_start_reads_only_what_is_behind_it() {
    let mut cluster = Cluster::leading(1, Durability::Fsync);
    for sequence in 0..3 {
        produce(&cluster, 0, &[batch(sequence, 1)]);
    }
    cluster.stop(0);
    assert!(cluster.lead(0, |_| true));
    assert_eq!(cluster.leader(0).log().producer_snapshots().unwrap(), [offset(3)]);
    let out = Err(ErrorCode::OutOfOrderSequence);
    assert_eq!(
        produce(&cluster, 0, &[batch(1, 1), batch(2, 1)]),
        [out, Ok((2, 3, true))],
        "as Kafka's: the newest"
    );
    assert_eq!(produce(&cluster, 0, &[batch(3, 1)]), [Ok((3, 4, false))]);
}

#[test]
fn a_damaged_snapshot_only_costs_reading_the_log() {
    let mut cluster = Cluster::leading(1, Durability::Fsync);
    for sequence in 0..3 {
        produce(&cluster, 0, &[batch(sequence, 1)]);
    }
    cluster.leader(0).log().write_producer_snapshot(offset(2), b"not a snapshot", 3).unwrap();
    cluster.flush(0);
    cluster.kill(0);
    assert!(cluster.lead(0, |_| true));
    assert_eq!(produce(&cluster, 0, &[batch(1, 1)]), [Ok((1, 2, true))]);
}
