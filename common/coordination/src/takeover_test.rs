//! Who may take a leadership over, who goes first, and what an unclean election leaves on record (design.md 6.3, 6.6, 6.11–6.13).

use highwater_types::{Offset, PartitionIndex, TopicId, TopicIdPartition};

use super::*;
use crate::test_values::{epoch, incarnation, node};
use crate::{check_change, first_leadership};

const STAGGER: Duration = Duration::from_millis(100);

fn member(raw: i32) -> IsrMember {
    IsrMember { node: node(raw), incarnation: incarnation(100 + u64::from(raw.unsigned_abs())) }
}

fn members(raw: &[i32]) -> Vec<IsrMember> {
    raw.iter().copied().map(member).collect()
}

fn candidate(raw: i32) -> Candidate {
    Candidate {
        node: node(raw),
        incarnation: member(raw).incarnation,
        highest_epoch: None,
        log_end: Offset::new(70).unwrap(),
    }
}

/// Node 1 leads in epoch 4.
fn led(replicas: &[i32], isr: &[i32]) -> PartitionRecord {
    let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
    PartitionRecord {
        leader: Some(node(1)),
        leader_epoch: Some(epoch(4)),
        isr: members(isr),
        ..PartitionRecord::new(id, replicas.iter().copied().map(node).collect())
    }
}

fn resigned(successor: Option<i32>) -> PartitionRecord {
    resignation(&led(&[1, 2, 3], &[1, 2, 3]), node(1), successor.map(node)).unwrap()
}

/// The order in which `nodes` would stand, given who lives.
fn order(record: &PartitionRecord, alive: &[i32]) -> Vec<i32> {
    let alive_nodes: Vec<_> = alive.iter().copied().map(node).collect();
    let delay = |raw: i32| take_over_delay(record, node(raw), STAGGER, |n| alive_nodes.contains(&n));
    let mut all: Vec<_> = alive.iter().filter_map(|raw| delay(*raw).map(|d| (d, *raw))).collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "one after the other");
    all.into_iter().map(|(_, raw)| raw).collect()
}

#[test]
fn who_takes_over_leads_in_a_new_epoch_without_the_dead_leader() {
    let record = led(&[1, 2, 3], &[1, 2, 3]);
    let next = take_over(&record, &candidate(2)).unwrap();
    assert_eq!((next.leader, next.leader_epoch), (Some(node(2)), Some(epoch(5))));
    assert_eq!(next.isr, members(&[2, 3]), "nothing waits for the dead (KEEP_DEAD)");
    assert_eq!(check_change(&record, &next), Ok(()));
    let seen = Candidate { highest_epoch: Some(epoch(9)), ..candidate(2) };
    assert_eq!(
        take_over(&record, &seen).unwrap().leader_epoch,
        Some(epoch(10)),
        "above all that it has seen"
    );
}

#[test]
fn the_last_member_takes_over_alone_even_below_min_isr() {
    let next = take_over(&led(&[1, 2], &[1, 2]), &candidate(2)).unwrap();
    assert_eq!(next.isr, members(&[2]));
}

#[test]
fn only_the_incarnation_in_the_set_may_take_over() {
    let record = led(&[1, 2, 3], &[1, 2]);
    let out = take_over(&record, &candidate(3));
    assert_eq!(out, Err(Ineligible::NotElectable { own: incarnation(103), listed: None }), "ANY_ELECT");
    let renewed = Candidate { incarnation: incarnation(7), ..candidate(2) };
    let listed = Some(incarnation(102));
    let expected = Err(Ineligible::NotElectable { own: incarnation(7), listed });
    assert_eq!(take_over(&record, &renewed), expected, "an empty or another disk (EMPTY_ELECT)");
    assert_eq!(take_over(&record, &candidate(9)), Err(Ineligible::NotAReplica));
    assert_eq!(take_over(&record, &candidate(1)), Err(Ineligible::LeadsAlready));
}

/// As after a loss of all power under `page-cache`.
#[test]
fn who_holds_another_replica_than_the_set_names_says_so_once_and_is_not_waited_for() {
    let record = led(&[1, 2, 3], &[1, 2, 3]);
    let renewed = |raw| Candidate { incarnation: incarnation(7), ..candidate(raw) };
    assert_eq!(withdrawal(&record, &candidate(2), None), None, "it can lead");
    assert_eq!(withdrawal(&led(&[1, 2, 3], &[1, 2]), &renewed(3), None), None, "nobody waits for it");

    let said = withdrawal(&record, &renewed(3), Some(node(2))).unwrap();
    assert_eq!((said.leader, &said.withdrawn), (Some(node(1)), &members(&[3])), "it is not its leadership");
    assert_eq!((&said.isr, said.has_withdrawn(node(3))), (&record.isr, true));
    assert_eq!(withdrawal(&said, &renewed(3), None), None, "it is said");
    assert_eq!(successor(&said, |n| n != node(2)), None, "it is handed nothing");
    assert_eq!(take_over_delay(&said, node(2), STAGGER, |_| true), Some(Duration::ZERO));
    let joined = PartitionRecord {
        isr: vec![member(1), IsrMember { node: node(3), incarnation: incarnation(7) }],
        ..said.clone()
    };
    assert!(!joined.has_withdrawn(node(3)), "its new replica is in sync");

    let all = withdrawal(&said, &renewed(1), Some(node(2))).unwrap();
    assert_eq!((all.leader, all.leader_epoch), (None, Some(epoch(4))));
    assert_eq!(all.resigned, Some(Resignation { node: node(1), successor: Some(node(2)) }));
    assert_eq!(unclean_delay(&all, node(1), STAGGER, |_| true, |_| true), None, "node 2 may come");
    let all = withdrawal(&all, &renewed(2), None).unwrap();
    assert_eq!(unclean_delay(&all, node(1), STAGGER, |_| true, |_| true), Some(STAGGER));

    let order = UncleanOrder::Topic { member_lives: false };
    let led_again = unclean_leadership(&all, &renewed(2), order).unwrap();
    assert_eq!(led_again.withdrawn, [], "nobody has withdrawn from the new set");
    assert_eq!(led_again.unclean.unwrap().passed_over, record.isr);
}

#[test]
fn who_withdrew_stays_withdrawn_until_the_next_leadership() {
    let record = led(&[1, 2, 3], &[1, 2]);
    let renewed = Candidate { incarnation: incarnation(7), ..candidate(2) };
    let said = withdrawal(&record, &renewed, None).unwrap();
    let broken = |new: &PartitionRecord| check_change(&said, new).unwrap_err();
    let forgotten = PartitionRecord { withdrawn: vec![], ..said.clone() };
    assert!(broken(&forgotten).contains("stays so"));
    let foreign = PartitionRecord { withdrawn: members(&[2, 3]), ..said.clone() };
    assert!(broken(&foreign).contains("only a member"));
    let next = renewed_leadership(&said, &candidate(1)).unwrap();
    assert_eq!(next.withdrawn, []);
    assert!(broken(&PartitionRecord { withdrawn: members(&[2]), ..next }).contains("new leadership"));
}

#[test]
fn a_new_partition_is_not_taken_over() {
    let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
    let new = PartitionRecord::new(id, vec![node(1), node(2)]);
    assert!(matches!(take_over(&new, &candidate(2)), Err(Ineligible::NotElectable { .. })));
    assert_eq!(take_over_delay(&new, node(2), STAGGER, |_| true), None);
    assert!(first_leadership(&new, &candidate(2)).is_ok());
}

#[test]
fn the_preferred_replica_goes_first_and_the_dead_and_the_late_are_not_waited_for() {
    let record = led(&[3, 1, 2, 4], &[1, 2, 3]);
    assert_eq!(order(&record, &[2, 3, 4]), [3, 2]);
    assert_eq!(take_over_delay(&record, node(3), STAGGER, |_| true), Some(Duration::ZERO));
    assert_eq!(take_over_delay(&record, node(2), STAGGER, |n| n != node(3)), Some(Duration::ZERO));
    assert_eq!(take_over_delay(&record, node(4), STAGGER, |_| true), None, "not in sync");
    assert_eq!(take_over_delay(&record, node(1), STAGGER, |_| true), None, "the leader itself");
}

#[test]
fn removing_replicas_stand_only_while_no_other_member_lives() {
    let mut record = led(&[1, 2, 3], &[1, 2, 3]);
    record.removing = vec![node(2)];
    assert_eq!(order(&record, &[2, 3]), [3]);
    assert_eq!(order(&record, &[2]), [2]);
}

#[test]
fn a_resignation_keeps_epoch_and_set_and_names_who_goes_next() {
    let record = led(&[1, 2, 3], &[1, 2, 3]);
    let given_up = resigned(Some(3));
    assert_eq!((given_up.leader, given_up.leader_epoch), (None, Some(epoch(4))));
    assert_eq!(given_up.isr, members(&[1, 2, 3]), "what it acknowledged it holds");
    assert_eq!(order(&given_up, &[1, 2, 3]), [3, 2, 1], "who resigned stands last");
    assert_eq!(order(&resigned(None), &[1, 2, 3]), [2, 3, 1]);
    let next = take_over(&given_up, &candidate(3)).unwrap();
    assert_eq!((next.isr.len(), next.resigned), (3, None));
    assert_eq!(check_change(&given_up, &next), Ok(()));
    assert_eq!(
        resignation(&record, node(2), None),
        Err(Ineligible::NotTheRecordedLeader { recorded: Some(node(1)) })
    );
    assert_eq!(
        resignation(&led(&[1, 2], &[1]), node(1), Some(node(2))),
        Err(Ineligible::NotInSync { node: node(2) })
    );
}

#[test]
fn a_stopping_leader_hands_over_to_a_member_that_lives_and_stays() {
    let mut record = led(&[1, 2, 3], &[1, 2, 3]);
    assert_eq!(successor(&record, |_| true), Some(node(2)));
    assert_eq!(successor(&record, |n| n != node(2)), Some(node(3)));
    assert_eq!(successor(&record, |_| false), None);
    record.removing = vec![node(2)];
    assert_eq!(successor(&record, |_| true), Some(node(3)));
    assert_eq!(successor(&led(&[1, 2], &[1]), |_| true), None, "nobody else is in sync");
}

#[test]
fn leadership_goes_back_to_the_preferred_replica_once_it_is_in_sync() {
    let record = led(&[2, 1], &[1, 2]);
    assert_eq!(preferred_leader(&record, |_| true), Some(node(2)));
    assert_eq!(preferred_leader(&record, |_| false), None, "not to the dead");
    assert_eq!(preferred_leader(&led(&[2, 1], &[1]), |_| true), None, "not before it is in sync");
    assert_eq!(preferred_leader(&led(&[1, 2], &[1, 2]), |_| true), None, "it leads already");
    let moving = PartitionRecord { removing: vec![node(2)], ..record };
    assert_eq!(preferred_leader(&moving, |_| true), None, "it is about to leave");
}

#[test]
fn an_unclean_election_needs_an_order() {
    let record = led(&[1, 2, 3], &[1]);
    let elect = |order| unclean_leadership(&record, &candidate(2), order);
    assert_eq!(elect(UncleanOrder::None), Err(Ineligible::UncleanForbidden));
    assert_eq!(elect(UncleanOrder::Topic { member_lives: true }), Err(Ineligible::UncleanForbidden));
    assert!(elect(UncleanOrder::Topic { member_lives: false }).is_ok());
    assert!(elect(UncleanOrder::Person).is_ok());
}

#[test]
fn an_unclean_election_is_on_record_with_its_epoch_its_start_and_whom_it_passed_over() {
    let record = led(&[1, 2, 3], &[1]);
    let next = unclean_leadership(&record, &candidate(2), UncleanOrder::Person).unwrap();
    assert_eq!((next.leader, next.isr.clone()), (Some(node(2)), members(&[2])));
    let note = next.unclean.clone().unwrap();
    assert_eq!((note.epoch, note.log_end.get(), note.passed_over), (epoch(5), 70, members(&[1])));
    assert_eq!(check_change(&record, &next), Ok(()));
    let clean = take_over(&PartitionRecord { isr: members(&[2, 3]), ..next }, &candidate(3)).unwrap();
    assert_eq!(clean.highest_unclean_epoch(), Some(epoch(5)), "the note stays");
}

#[test]
fn an_unclean_election_is_for_who_could_not_lead_otherwise() {
    let record = led(&[1, 2], &[1, 2]);
    let elect =
        |record: &PartitionRecord, raw| unclean_leadership(record, &candidate(raw), UncleanOrder::Person);
    assert_eq!(elect(&record, 2), Err(Ineligible::ElectableAnyway));
    assert_eq!(elect(&record, 9), Err(Ineligible::NotAReplica));
    let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
    assert_eq!(elect(&PartitionRecord::new(id, vec![node(2)]), 2), Err(Ineligible::NothingToLose));
}

#[test]
fn the_store_refuses_an_election_that_hides_a_loss() {
    let record = led(&[1, 2, 3], &[1, 2]);
    let from_outside = PartitionRecord {
        leader: Some(node(3)),
        leader_epoch: Some(epoch(5)),
        isr: members(&[3]),
        ..record.clone()
    };
    assert!(check_change(&record, &from_outside).unwrap_err().contains("takes nobody"));
    let other_disk = PartitionRecord {
        leader: Some(node(2)),
        leader_epoch: Some(epoch(5)),
        isr: vec![IsrMember { node: node(2), incarnation: incarnation(7) }],
        ..record.clone()
    };
    assert!(check_change(&record, &other_disk).unwrap_err().contains("takes nobody"));
    let unclean = unclean_leadership(&record, &candidate(3), UncleanOrder::Person).unwrap();
    let forgotten = PartitionRecord { unclean: None, ..unclean.clone() };
    assert!(check_change(&unclean, &forgotten).unwrap_err().contains("stays"));
    let invented = PartitionRecord { unclean: unclean.unclean, ..record.clone() };
    assert!(check_change(&record, &invented).unwrap_err().contains("that begins by it"));
}

#[test]
fn who_may_lack_records_waits_for_every_member_that_may_come_and_for_those_before_it() {
    let record = led(&[1, 2, 3, 4], &[1, 2]);
    let none = |_: NodeId| false;
    let delay = |raw: i32, may_come: &[i32], alive: &[i32]| {
        let is_in = |nodes: &[i32], n: NodeId| nodes.contains(&n.get());
        unclean_delay(&record, node(raw), STAGGER, |n| is_in(may_come, n), |n| is_in(alive, n))
    };
    assert_eq!(delay(3, &[2], &[3, 4]), None, "node 2 is in sync and may come back");
    assert_eq!(delay(3, &[], &[3, 4]), Some(STAGGER), "after who comes back just now");
    assert_eq!(delay(4, &[], &[3, 4]), Some(2 * STAGGER));
    assert_eq!(delay(4, &[], &[4]), Some(STAGGER));
    assert_eq!(delay(5, &[], &[4]), None, "no replica");
    // Its own entry can be of an incarnation that it lost.
    assert_eq!(delay(2, &[2], &[2]), Some(STAGGER), "nobody waits for itself");
    let new = PartitionRecord { leader: None, leader_epoch: None, isr: Vec::new(), ..record.clone() };
    assert_eq!(unclean_delay(&new, node(3), STAGGER, none, none), None, "nothing can be missing yet");
}

#[test]
fn what_a_candidate_may_take_follows_from_the_record_and_uncleanly_only_by_an_order() {
    let new = PartitionRecord::new(led(&[1, 2], &[1]).id(), vec![node(1), node(2)]);
    let record = led(&[1, 2, 3], &[1, 2]);
    let of = |record, raw, order| next_leadership(record, &candidate(raw), order);
    assert_eq!(of(&new, 1, UncleanOrder::None), first_leadership(&new, &candidate(1)));
    assert_eq!(of(&record, 1, UncleanOrder::Person), renewed_leadership(&record, &candidate(1)));
    assert_eq!(
        of(&record, 2, UncleanOrder::Person),
        take_over(&record, &candidate(2)),
        "without loss where it can be"
    );
    assert!(matches!(of(&record, 3, UncleanOrder::None), Err(Ineligible::NotElectable { .. })));
    let unclean = of(&record, 3, UncleanOrder::Person).unwrap();
    assert_eq!((unclean.leader, unclean.unclean.is_some()), (Some(node(3)), true));
}
