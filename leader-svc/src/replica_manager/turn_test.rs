//! Who stands when, by what the record and the topic say and by who is down.

use highwater_coordination::{Coordination as _, register_endpoint};
use highwater_types::MonotonicTime;

use super::super::stand_test_support::{Bench, STAGGER, bench, member, node};
use super::*;

/// The turn of node 1 in a topic that allows an unclean election, or does not.
fn turn(bench: &Bench, unclean: bool) -> Option<Turn> {
    let mut topic = TopicRecord::clone(&bench.topic);
    topic.properties.unclean_leader_election = unclean;
    bench.shared.turn(&topic, &bench.record())
}

#[tokio::test]
async fn out_of_sync_it_stands_where_the_topic_allows_it_and_once_every_member_is_down() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(2, 7), member(3, 8)]).await;
    let turns = |down: &[i32], up: &[i32]| {
        let nodes = |ids: &[i32]| ids.iter().map(|id| node(*id)).collect::<Vec<_>>();
        bench.peers.send_replace(Peers::of(nodes(down), nodes(up)));
        (turn(&bench, true), turn(&bench, false))
    };
    assert_eq!(turns(&[3], &[]), (None, None), "nothing is known of node 2, the leader");
    assert_eq!(turns(&[3], &[2]), (None, None), "it is up");
    assert_eq!(turns(&[2], &[]), (None, None), "nothing is known of node 3, which is in sync");
    assert_eq!(turns(&[2], &[3]), (None, None), "it is up");
    let order = UncleanOrder::Topic { member_lives: false };
    assert_eq!(turns(&[2, 3], &[]), (Some(Turn { after: STAGGER, order }), None));
}

#[tokio::test]
async fn it_waits_for_no_member_that_lives_and_cannot_lead() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(2, 7), member(3, 8)]).await;
    bench.peers.send_replace(Peers::of([], [node(2), node(3)]));
    let withdrawn = async |members| {
        let seen = bench.record();
        let said = PartitionRecord { leader: None, withdrawn: members, ..PartitionRecord::clone(&seen) };
        bench.store.swap_partition(said, seen.partition_epoch).await.unwrap();
        (turn(&bench, true), turn(&bench, false))
    };
    assert_eq!(withdrawn(vec![member(2, 7)]).await, (None, None), "node 3 may lead");
    let (allowed, forbidden) = withdrawn(vec![member(2, 7), member(3, 8)]).await;
    assert_eq!(allowed, Some(Turn { after: STAGGER, order: UncleanOrder::Topic { member_lives: false } }));
    assert_eq!(forbidden, None);
}

#[tokio::test]
async fn in_sync_it_takes_over_from_who_is_down_whatever_the_topic_allows() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(1, 6), member(2, 7)]).await;
    assert_eq!(turn(&bench, false), None);
    bench.peers.send_replace(Peers::of([node(2)], []));
    let none = Turn { after: Duration::ZERO, order: UncleanOrder::None };
    assert_eq!(turn(&bench, false), Some(none));
    assert_eq!(turn(&bench, true).map(|turn| turn.after), Some(Duration::ZERO));
}

#[tokio::test]
async fn a_program_that_stops_has_no_turn() {
    let bench = bench().await;
    assert_eq!(
        turn(&bench, false).map(|turn| turn.after),
        Some(Duration::ZERO),
        "it is the preferred replica"
    );
    bench.shared.leaving.cancel();
    assert_eq!(turn(&bench, true), None);
}

#[tokio::test]
async fn who_has_only_just_registered_is_waited_for_and_who_has_no_leader_svc_is_not() {
    let bench = bench().await;
    let registers = async |id, program| {
        let endpoint = "host:1".parse().unwrap();
        register_endpoint(&*bench.store, node(id), program, &endpoint).await.unwrap();
    };
    let renew = async |millis| {
        bench.shared.membership.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
    };
    renew(0).await;
    registers(3, Program::FollowerAgent).await;
    assert_eq!([2, 3].map(|id| bench.shared.may_stand(node(id))), [false, false]);
    registers(2, Program::LeaderSvc).await;
    assert_eq!([2, 3].map(|id| bench.shared.may_stand(node(id))), [true, false]);
    bench.store.renew_liveness(node(2), Program::LeaderSvc).await.unwrap();
    renew(1000).await;
    assert!(bench.shared.may_stand(node(2)), "it renews");
    for millis in [2000, 3000, 4000] {
        renew(millis).await;
    }
    assert!(!bench.shared.may_stand(node(2)), "it stopped renewing");
}
