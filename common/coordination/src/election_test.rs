//! The rules of first and renewed leadership, one fact each.

use highwater_types::{AdoptedHistory, PartitionEpoch, PartitionIndex, TopicId, TopicIdPartition};

use super::*;
use crate::check_change;
use crate::test_values::{epoch, incarnation, node};

fn new_partition(replicas: &[i32]) -> PartitionRecord {
    let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
    PartitionRecord::new(id, replicas.iter().copied().map(node).collect())
}

fn candidate(id: i32) -> Candidate {
    Candidate {
        node: node(id),
        incarnation: incarnation(100 + u64::from(id.unsigned_abs())),
        highest_epoch: None,
        log_end: Offset::ZERO,
    }
}

fn led_by_1() -> PartitionRecord {
    let mut record = first_leadership(&new_partition(&[1, 2]), &candidate(1)).unwrap();
    record.isr.push(IsrMember { node: node(2), incarnation: incarnation(102) });
    record
}

#[test]
fn the_first_leadership_is_epoch_0_with_the_leader_alone_in_sync() {
    let record = new_partition(&[1, 2]);
    let led = first_leadership(&record, &candidate(2)).unwrap();
    assert_eq!((led.leader, led.leader_epoch), (Some(node(2)), Some(LeaderEpoch::FIRST)));
    assert_eq!(led.isr, [IsrMember { node: node(2), incarnation: incarnation(102) }]);
    assert_eq!(led.partition_epoch, PartitionEpoch::FIRST.next());
    assert_eq!(check_change(&record, &led), Ok(()));
}

#[test]
fn a_node_that_is_not_assigned_does_not_stand() {
    assert_eq!(first_leadership(&new_partition(&[1]), &candidate(3)), Err(Ineligible::NotAReplica));
}

#[test]
fn a_resigned_partition_is_not_new() {
    let resigned = PartitionRecord { leader: None, ..led_by_1() };
    assert_eq!(
        first_leadership(&resigned, &candidate(1)),
        Err(Ineligible::NotNew { last: LeaderEpoch::FIRST })
    );
    assert_eq!(
        renewed_leadership(&resigned, &candidate(1)),
        Err(Ineligible::NotTheRecordedLeader { recorded: None })
    );
    assert_eq!(first_leadership_delay(&resigned, node(1), Duration::from_secs(1), |_| false), None);
}

#[test]
fn the_epoch_lies_above_every_epoch_of_the_candidates_own_directory() {
    let seen = Candidate { highest_epoch: Some(epoch(6)), ..candidate(1) };
    assert_eq!(first_leadership(&new_partition(&[1]), &seen).unwrap().leader_epoch, Some(epoch(7)));
    assert_eq!(renewed_leadership(&led_by_1(), &seen).unwrap().leader_epoch, Some(epoch(7)));
}

#[test]
fn the_recorded_leader_restarts_in_the_next_epoch_and_keeps_the_in_sync_set() {
    let before = led_by_1();
    let after = renewed_leadership(&before, &candidate(1)).unwrap();
    assert_eq!(after.leader_epoch, Some(epoch(1)));
    assert_eq!(after.isr, before.isr);
    assert_eq!(check_change(&before, &after), Ok(()));
}

#[test]
fn a_renewed_incarnation_is_not_electable_even_for_the_recorded_leader() {
    let lost = Candidate { incarnation: incarnation(999), ..candidate(1) };
    assert_eq!(
        renewed_leadership(&led_by_1(), &lost),
        Err(Ineligible::NotElectable { own: incarnation(999), listed: Some(incarnation(101)) })
    );
}

#[test]
fn a_follower_does_not_renew_anothers_leadership() {
    assert_eq!(
        renewed_leadership(&led_by_1(), &candidate(2)),
        Err(Ineligible::NotTheRecordedLeader { recorded: Some(node(1)) })
    );
}

#[test]
fn an_adopted_directory_is_led_first_by_its_importer_above_its_epochs() {
    let history = AdoptedHistory {
        importer: node(2),
        highest_epoch: Some(epoch(4)),
        log_end: Offset::new(10).unwrap(),
    };
    let record = PartitionRecord { adopted: Some(history), ..new_partition(&[1, 2]) };
    let holder =
        Candidate { log_end: Offset::new(10).unwrap(), highest_epoch: Some(epoch(4)), ..candidate(2) };

    assert_eq!(
        first_leadership(&record, &candidate(1)),
        Err(Ineligible::NotTheImporter { importer: node(2) })
    );
    assert_eq!(
        first_leadership(&record, &candidate(2)),
        Err(Ineligible::ImportIncomplete { log_end: Offset::ZERO, imported: Offset::new(10).unwrap() })
    );
    let led = first_leadership(&record, &holder).unwrap();
    assert_eq!(led.leader_epoch, Some(epoch(5)));
    assert_eq!(led.isr, [IsrMember { node: node(2), incarnation: incarnation(102) }]);

    let stagger = Duration::from_millis(300);
    assert_eq!(first_leadership_delay(&record, node(2), stagger, |_| false), Some(Duration::ZERO));
    assert_eq!(first_leadership_delay(&record, node(1), stagger, |_| true), None, "not even if it is dead");
}

#[test]
fn the_preferred_replica_stands_at_once_and_others_after_those_that_may_be_alive() {
    let record = new_partition(&[3, 1, 2]);
    let stagger = Duration::from_millis(300);
    let delay =
        |id, dead: &[i32]| first_leadership_delay(&record, node(id), stagger, |n| dead.contains(&n.get()));
    assert_eq!(delay(3, &[]), Some(Duration::ZERO));
    assert_eq!(delay(1, &[]), Some(stagger));
    assert_eq!(delay(2, &[]), Some(stagger * 2));
    assert_eq!(delay(2, &[3]), Some(stagger));
    assert_eq!(delay(2, &[3, 1]), Some(Duration::ZERO));
    assert_eq!(delay(9, &[]), None);
}

#[test]
fn the_last_epoch_is_never_used_twice() {
    let seen = Candidate { highest_epoch: Some(epoch(i32::MAX)), ..candidate(1) };
    assert_eq!(renewed_leadership(&led_by_1(), &seen), Err(Ineligible::EpochsUsedUp));
}

#[test]
fn illegal_changes_are_named() {
    let current = led_by_1();
    let broken = |change: fn(&mut PartitionRecord)| {
        let mut next = current.clone();
        change(&mut next);
        check_change(&current, &next).unwrap_err()
    };
    assert!(broken(|r| r.isr.clear()).contains("in-sync set is empty"));
    assert!(broken(|r| r.leader = Some(node(2))).contains("new leader epoch"));
    assert!(broken(|r| r.leader_epoch = None).contains("in-sync set is empty"));
    assert!(broken(|r| r.replicas = vec![node(1)]).contains("not a replica"));
    assert!(
        broken(|r| r.isr = vec![IsrMember { node: node(2), incarnation: incarnation(1) }])
            .contains("leader is not in")
    );
    assert!(broken(|r| r.replicas.push(node(1))).contains("distinct"));
    assert!(broken(|r| r.partition = PartitionIndex::new(1).unwrap()).contains("another partition"));
    let resigned = PartitionRecord { leader: None, ..current.clone() };
    assert_eq!(check_change(&current, &resigned), Ok(()));
    assert!(check_change(&resigned, &current).is_err(), "coming back is a new leadership");
}
