//! Orders: which are carried out, which are refused and why.

use highwater_coordination::Coordination as _;
use tokio::sync::mpsc;

use super::super::stand_test_support::{Bench, bench, member, node};
use super::*;

fn manager(bench: &Bench) -> ReplicaManager {
    let (_, orders) = mpsc::channel(ORDERS_MAX);
    ReplicaManager::new(Arc::clone(&bench.shared), orders)
}

/// What came of an order, once it is answered.
async fn ordered(manager: &mut ReplicaManager, bench: &Bench, election: Election) -> Outcome {
    let (answer, answered) = oneshot::channel();
    let view = bench.shared.context.coordination.view().borrow().clone();
    manager.on_order(Order { partition: bench.id(), election, answer }, &view);
    answered.await.expect("every order is answered")
}

#[tokio::test]
async fn an_order_to_lead_uncleanly_is_answered_once_the_node_leads() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(2, 7)]).await;
    bench.peers.send_replace(Peers::of([node(2)], []));
    let mut manager = manager(&bench);
    assert_eq!(ordered(&mut manager, &bench, Election::Unclean).await, Ok(node(1)));
    assert_eq!(bench.record().leader, Some(node(1)));
    let again = ordered(&mut manager, &bench, Election::Unclean).await;
    assert!(again.unwrap_err().message.contains("is about to stand"), "one thing at a time");
}

#[tokio::test]
async fn a_program_that_stops_takes_no_order() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(2, 7)]).await;
    bench.peers.send_replace(Peers::of([node(2)], []));
    bench.shared.leaving.cancel();
    let mut manager = manager(&bench);
    for election in [Election::Preferred, Election::Unclean] {
        let refused = ordered(&mut manager, &bench, election).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::ShuttingDown, "{election:?}: {refused}");
    }
    assert!(manager.slots.is_empty() && manager.tasks.is_empty(), "it does not stand");
}

#[tokio::test]
async fn who_has_no_replica_or_does_not_lead_takes_no_order() {
    let bench = bench().await;
    let mut manager = manager(&bench);
    let refused = ordered(&mut manager, &bench, Election::Preferred).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotLeaderOrFollower, "{refused}");
    let seen = bench.record();
    let elsewhere = PartitionRecord { replicas: vec![node(2)], ..PartitionRecord::clone(&seen) };
    bench.store.swap_partition(elsewhere, seen.partition_epoch).await.unwrap();
    let refused = ordered(&mut manager, &bench, Election::Unclean).await.unwrap_err();
    assert!(refused.message.contains("is no replica"), "{refused}");
}

#[tokio::test]
async fn a_person_takes_no_leadership_that_somebody_has_or_can_take_without_a_loss() {
    let bench = bench().await;
    let record = PartitionRecord {
        replicas: vec![node(1), node(2), node(3)],
        leader: Some(node(2)),
        isr: vec![member(2, 7), member(3, 8)],
        ..PartitionRecord::clone(&bench.record())
    };
    let why = |down: &[i32], up: &[i32]| {
        let nodes = |ids: &[i32]| ids.iter().map(|id| node(*id)).collect::<Vec<_>>();
        objection(&record, node(1), &Peers::of(nodes(down), nodes(up)))
    };
    assert!(why(&[], &[]).unwrap().contains("node 2 leads"), "nothing is known of it");
    assert!(why(&[3], &[2]).unwrap().contains("node 2 leads"));
    assert!(why(&[2], &[3]).unwrap().contains("node 3 is in sync"));
    assert_eq!(why(&[2], &[]), None, "node 3 runs no leader-svc");
    assert_eq!(why(&[2, 3], &[]), None);
    // What is known of who has withdrawn: it cannot lead, up or not. Of node 3 it is not known.
    let withdrawn = PartitionRecord { leader: None, withdrawn: vec![member(2, 7)], ..record.clone() };
    let why = |up: &[i32]| objection(&withdrawn, node(1), &Peers::of([], up.iter().map(|id| node(*id))));
    assert_eq!(why(&[2]), None);
    assert!(why(&[2, 3]).unwrap().contains("node 3 is in sync"));
    let rejoined = PartitionRecord { isr: vec![member(2, 9)], ..withdrawn.clone() };
    assert!(objection(&rejoined, node(1), &Peers::of([], [node(2)])).unwrap().contains("node 2 is in sync"));
    let own =
        PartitionRecord { leader: Some(node(1)), isr: vec![member(1, 6)], ..PartitionRecord::clone(&record) };
    assert_eq!(objection(&own, node(1), &Peers::default()), None, "it is in nobody's way");
}

#[tokio::test]
async fn the_preferred_replica_is_elected_only_in_sync_and_up() {
    let bench = bench().await;
    let manager = manager(&bench);
    // Node 2 is to go: of nodes 2, 1 and 3, node 1 is preferred; without that, node 2 is.
    let record = |isr, removing| PartitionRecord {
        replicas: vec![node(2), node(1), node(3)],
        leader: Some(node(3)),
        isr,
        removing,
        ..PartitionRecord::clone(&bench.record())
    };
    let all = || vec![member(1, 6), member(2, 7), member(3, 8)];
    let preferred = |up: &[i32], record: &PartitionRecord| {
        bench.peers.send_replace(Peers::of([], up.iter().map(|id| node(*id))));
        manager.preferred(record).map_err(|why| why.code)
    };
    assert_eq!(preferred(&[2], &record(all(), vec![])), Ok(node(2)));
    assert_eq!(preferred(&[], &record(all(), vec![])), Err(ErrorCode::LeaderNotAvailable), "it is not up");
    let without = record(vec![member(1, 6), member(3, 8)], vec![]);
    assert_eq!(preferred(&[2], &without), Err(ErrorCode::LeaderNotAvailable), "it is not in sync");
    assert_eq!(preferred(&[2], &record(all(), vec![node(2)])), Ok(node(1)), "this node itself");
}
