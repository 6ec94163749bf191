//! Real logs after an unclean election: what is cut, kept and reported (design.md 6.5, 6.13).

use highwater_log::Storage;
use highwater_log::storage::sim::SimStorage;
use highwater_protocol::follower::{FailureReason, PartitionFetchState};
use highwater_types::{Durability, IsrMember, Offset, UncleanElection, UncleanLoss};

use crate::test_cluster::{Cluster, Role, node};
use crate::{FollowerReplica, LossReport};

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

/// Machine 0 committed 3 records with machine 1 and 2 alone, and wrote one more; then machine 1 leads from offset 3. Machine 0
/// follows it. Its last checkpoint is older than the two records, unless `it_checkpointed`.
fn lost_two(with_note: bool, it_checkpointed: bool) -> Cluster {
    let mut cluster = Cluster::leading(2, Durability::Fsync);
    cluster.produce(0, 3);
    cluster.replicate();
    cluster.stop(1);
    let alone: Vec<_> = cluster.record.isr.iter().copied().filter(|m| m.node == node(0)).collect();
    cluster.record.isr = alone;
    cluster.record.partition_epoch = cluster.record.partition_epoch.next();
    let now = cluster.now().monotonic;
    cluster.leader(0).on_follower_gone(node(1), now);
    cluster.learn(0);
    cluster.produce(0, 2);
    cluster.flush(0);
    if it_checkpointed {
        assert!(cluster.leader(0).write_checkpoint().unwrap());
    }
    assert_eq!(cluster.leader(0).high_watermark(), offset(5));
    cluster.kill(0);

    let passed_over = cluster.record.isr.clone();
    let epoch = cluster.record.leader_epoch.unwrap().next();
    let open = cluster.open(1).unwrap();
    let elected = IsrMember { node: node(1), incarnation: open.incarnation() };
    cluster.accept_loss(&open);
    open.close().unwrap();
    cluster.record.isr = vec![elected];
    if with_note {
        cluster.record.unclean = Some(UncleanElection { epoch, log_end: offset(3), passed_over });
    }
    assert!(cluster.lead(1, |_| true));
    assert_eq!(cluster.record.leader_epoch, Some(epoch));
    cluster.produce(1, 1);
    cluster.flush(1);
    cluster.follow(0, 9);
    cluster.follower(0).on_unclean_election(cluster.record.highest_unclean_epoch());
    cluster
}

/// Asks and works until the log was cut or the partition failed.
fn settle(cluster: &mut Cluster) -> Option<LossReport> {
    for _ in 0..3 {
        cluster.send_fetch(0, false);
        cluster.deliver_all();
        let now = cluster.now();
        let Role::Follower(side) = &mut cluster.machines[0].role else { panic!("it follows") };
        while let Some(work) = side.work.pop_front() {
            let step = side.replica.execute(&work, now);
            let loss = step.loss.clone();
            side.take(step);
            if loss.is_some() {
                cluster.note_cut(0);
                return loss;
            }
        }
    }
    None
}

fn kept_files(replica: &FollowerReplica<SimStorage>, storage: &SimStorage) -> Vec<String> {
    let entries = storage.list_dir(replica.log().directory()).unwrap();
    let names = entries.iter().filter_map(|entry| entry.utf8_name());
    names.filter(|name| name.contains(".cut")).map(str::to_owned).collect()
}

#[test]
fn what_an_unclean_election_lost_is_cut_kept_and_reported_exactly() {
    let mut cluster = lost_two(true, true);
    let report = settle(&mut cluster).expect("records were lost");
    let epoch = cluster.record.leader_epoch.unwrap();
    let loss = UncleanLoss { election: epoch, from: offset(3), committed: offset(5), end: offset(5) };
    assert_eq!(report.loss, loss, "its checkpoint knew them committed");
    let kept = kept_files(cluster.follower(0), &cluster.machines[0].storage);
    assert_eq!(kept, [report.kept_in.unwrap()], "the bytes are beside the log");
    cluster.settle(0);
    cluster.send_fetch(0, false);
    cluster.deliver_all();
    cluster.settle(0);
    assert_eq!(cluster.follower(0).facts().positions.log_end, offset(4), "it goes on with the new leader's");
}

#[test]
fn what_it_could_not_know_to_be_committed_is_kept_and_reported_as_well() {
    let mut cluster = lost_two(true, false);
    let LossReport { loss, kept_in } = settle(&mut cluster).expect("records were lost");
    assert_eq!((loss.from, loss.end), (offset(3), offset(5)));
    assert!(loss.committed <= loss.from, "nothing is certain: {loss}");
    assert_eq!(kept_files(cluster.follower(0), &cluster.machines[0].storage), [kept_in.unwrap()]);
}

#[test]
fn what_was_lost_is_known_after_a_power_loss() {
    let mut cluster = lost_two(true, true);
    let LossReport { loss, .. } = settle(&mut cluster).expect("records were lost");
    cluster.lose_power(0);
    cluster.follow(0, 10);
    assert_eq!(cluster.follower(0).log().unclean_loss(), Some(loss));
}

#[test]
fn without_a_note_of_one_nothing_below_the_high_watermark_is_cut() {
    let mut cluster = lost_two(false, true);
    assert_eq!(settle(&mut cluster), None);
    let state = cluster.follower(0).state(cluster.now().monotonic);
    let PartitionFetchState::Failed { reason, .. } = state else { panic!("{state:?}") };
    assert!(matches!(reason, FailureReason::CutBelowHighWatermark { .. }), "{reason}");
    assert_eq!(cluster.follower(0).facts().positions.log_end, offset(5));
    assert!(kept_files(cluster.follower(0), &cluster.machines[0].storage).is_empty());
}
