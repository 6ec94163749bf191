//! Leaderships and in-sync sets over a store that loses answers; unclean elections.

use std::sync::atomic::Ordering;

use highwater_coordination::Coordination as _;
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_serving::HostedReplica as _;
use highwater_types::{Incarnation, LeaderEpoch, Offset, PartitionEpoch, PartitionIndex};

use super::super::Peers;
use super::super::stand_test_support::{bench, member, node};
use super::*;

#[tokio::test]
async fn a_leadership_whose_answer_was_lost_is_recognised_and_not_taken_twice() {
    let bench = bench().await;
    bench.store.between.lose_after.store(1, Ordering::Release);
    let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
    assert_eq!(partition.replica().epoch(), LeaderEpoch::FIRST);
    assert_eq!(bench.record().leader_epoch, Some(LeaderEpoch::FIRST), "one leadership, not two");
}

#[tokio::test]
async fn a_write_that_was_lost_on_its_way_is_made_again() {
    let bench = bench().await;
    bench.store.between.lose_before.store(2, Ordering::Release);
    let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
    assert_eq!(partition.replica().epoch(), LeaderEpoch::FIRST);
    assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 3);
}

#[tokio::test]
async fn who_loses_the_leadership_gives_the_log_back() {
    let bench = bench().await;
    let seen = bench.record();
    bench.led_by(2, 0, vec![member(2, 7)]).await;
    bench.store.between.lose_before.store(1, Ordering::Release);
    let stood = stand(Arc::clone(&bench.shared), Arc::clone(&bench.topic), seen, UncleanOrder::None).await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    assert!(!bench.is_locked(), "the node's other program can follow now");
}

#[tokio::test]
async fn who_is_not_electable_says_so_once_is_told_what_to_do_and_waits_for_another_record() {
    let bench = bench().await;
    bench.led_by(1, 0, vec![member(1, 7)]).await;
    let stood = bench.stand().await;
    assert!(matches!(&stood, Stood::Withdrew(why) if why.message.contains("cannot lead")), "{stood:?}");
    assert_eq!((bench.record().leader, &bench.record().withdrawn[..]), (None, &[member(1, 7)][..]));
    let said = bench.record().partition_epoch;
    let Stood::Ineligible(why) = bench.stand().await else { panic!("another incarnation stood") };
    assert!(why.message.contains("(in the in-sync set: 0000000000000007)"), "{why}");
    assert!(why.message.contains("Start the nodes of the in-sync set"), "{why}");
    assert_eq!(bench.record().partition_epoch, said, "nothing new is said");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_withdrawal_that_was_lost_on_its_way_is_tried_again_and_one_that_was_overtaken_is_not() {
    let bench = bench().await;
    bench.led_by(2, 0, vec![member(1, 7), member(2, 8)]).await;
    bench.store.between.lose_before.store(1, Ordering::Release);
    let stood = bench.stand().await;
    assert!(
        matches!(&stood, Stood::Failed(why) if why.code == ErrorCode::CoordinationUnavailable),
        "{stood:?}"
    );
    let seen = bench.record();
    bench.led_by(2, 1, vec![member(1, 7), member(2, 8)]).await;
    let stood = stand(Arc::clone(&bench.shared), Arc::clone(&bench.topic), seen, UncleanOrder::None).await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    assert_eq!(bench.record().withdrawn, [], "it was about an older record");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_topic_that_is_gone_is_not_led() {
    let bench = bench().await;
    let seen = bench.record();
    bench.store.delete_topic(bench.topic.id).await.unwrap();
    let stood = stand(Arc::clone(&bench.shared), Arc::clone(&bench.topic), seen, UncleanOrder::None).await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_log_that_somebody_holds_is_not_stood_with() {
    let bench = bench().await;
    let held = bench.shared.volume.locks.try_lock(bench.id()).unwrap();
    let began = Instant::now();
    let stood = bench.stand().await;
    assert!(matches!(&stood, Stood::Failed(why) if why.code == ErrorCode::ReplicaNotAvailable), "{stood:?}");
    assert!(began.elapsed() >= LOCK_PATIENCE, "it waits a moment for the other program");
    assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 0, "lock first");
    drop(held);
    assert!(matches!(bench.stand().await, Stood::Leads(_)));
}

#[tokio::test]
async fn a_joining_follower_counts_at_once_and_is_proposed_until_the_outcome_is_known() {
    for (before, after) in [(1, 0), (0, 1)] {
        let bench = bench().await;
        let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
        bench.store.between.lose_before.store(before, Ordering::Release);
        bench.store.between.lose_after.store(after, Ordering::Release);
        let (topic, partition_index) = (TopicRef::Id(bench.topic.id), PartitionIndex::new(0).unwrap());
        let fetch = FetchPartition {
            incarnation: Incarnation::new(7),
            current_leader_epoch: Some(LeaderEpoch::FIRST),
            acknowledged_offset: Some(Offset::ZERO),
            ..FetchPartition::reading(topic, partition_index, Offset::ZERO, 1 << 20)
        };
        let now = bench.shared.context.clocks.monotonic.now();
        partition.on_fetch(Requester::Follower(node(2)), &fetch, now).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while partition.replica().isr().len() < 2 {
            assert!(Instant::now() < until, "the core never learns that the follower joined");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(bench.record().isr.len(), 2);
        let epoch = bench.record().partition_epoch;
        assert_eq!(epoch, PartitionEpoch::new(2), "one leadership, one change of the set");
        assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 3, "the lost one was proposed again");
    }
}

/// As long as it lives the others would wait for it.
#[tokio::test]
async fn a_recorded_leader_that_is_not_electable_gives_the_leadership_to_who_is_in_sync() {
    let bench = bench().await;
    let isr = vec![member(1, 7), member(2, 8)];
    bench.led_by(1, 0, isr.clone()).await;
    let stood = bench.stand().await;
    assert!(matches!(stood, Stood::Withdrew(_)), "{stood:?}");
    let record = bench.record();
    assert_eq!((record.leader, record.leader_epoch), (None, Some(LeaderEpoch::FIRST)));
    assert_eq!(record.isr, isr, "who takes it decides about the set");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_replica_that_may_lack_records_leads_by_an_order_only_alone_and_on_record() {
    let bench = bench().await;
    bench.led_by(2, 4, vec![member(2, 7)]).await;
    let stood = bench.stand().await;
    assert!(matches!(stood, Stood::Ineligible(_)), "{stood:?}");
    assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 0, "nothing is proposed");

    let Stood::Leads(partition) = bench.stand_by(UncleanOrder::Person).await else { panic!("it leads") };
    let (record, epoch) = (bench.record(), LeaderEpoch::new(5).unwrap());
    assert_eq!((record.leader, record.leader_epoch), (Some(node(1)), Some(epoch)));
    let isr: Vec<_> = record.isr.iter().map(|member| member.node).collect();
    assert_eq!(isr, [node(1)]);
    let noted = record.unclean.clone().expect("the election is on record");
    assert_eq!((noted.epoch, noted.log_end), (epoch, partition.replica().log_end()));
    assert_eq!(noted.passed_over, [member(2, 7)]);
}

#[tokio::test]
async fn who_can_lead_without_a_loss_does_so_although_a_person_allows_one() {
    let bench = bench().await;
    let own = bench.led_with(2, 7).await;
    bench.led_by(2, 1, vec![own, member(2, 7)]).await;
    let stood = bench.stand_by(UncleanOrder::Person).await;
    assert!(matches!(stood, Stood::Leads(_)), "{stood:?}");
    let record = bench.record();
    assert_eq!((&record.isr[..], &record.unclean), (&[own][..], &None));
}

/// As long as it lives the others would wait for it; its disk is as it was, so it pauses all the same.
#[tokio::test]
async fn who_was_elected_and_is_kept_from_leading_by_its_disk_gives_the_leadership_to_who_is_in_sync() {
    let bench = bench().await;
    let own = bench.led_with(2, 7).await;
    let file = bench.shared.volume.data_dir.join("t-0/leader-epoch-checkpoint.tmp");
    bench.store.between.spoils.set(file).unwrap();
    bench.peers.send_replace(Peers::of([], [node(2)]));
    let stood = bench.stand().await;
    assert!(matches!(&stood, Stood::Elected(won, _) if won.leader_epoch == LeaderEpoch::new(1)), "{stood:?}");
    let record = bench.record();
    assert_eq!((record.leader, record.leader_epoch), (None, LeaderEpoch::new(1)), "the epoch is used up");
    assert_eq!(record.resigned.and_then(|resigned| resigned.successor), Some(node(2)));
    assert_eq!(record.isr, [own, member(2, 7)], "who takes it decides about the set");
    assert!(!bench.is_locked());
}

/// Nobody would take it.
#[tokio::test]
async fn who_was_elected_and_has_no_successor_keeps_the_record_and_tries_again() {
    let bench = bench().await;
    bench.led_with(2, 7).await;
    let file = bench.shared.volume.data_dir.join("t-0/leader-epoch-checkpoint.tmp");
    bench.store.between.spoils.set(file).unwrap();
    bench.peers.send_replace(Peers::of([node(2)], []));
    let stood = bench.stand().await;
    assert!(matches!(&stood, Stood::Elected(..)), "{stood:?}");
    assert_eq!(bench.record().leader, Some(node(1)));
}
