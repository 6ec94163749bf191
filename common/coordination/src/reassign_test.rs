//! Moving replicas, step by step (design.md 6.12).

use highwater_types::{Incarnation, IsrMember, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition};

use super::*;
use crate::check_change;
use crate::test_values::node;

fn nodes(raw: &[i32]) -> Vec<NodeId> {
    raw.iter().copied().map(node).collect()
}

fn member(raw: i32) -> IsrMember {
    IsrMember { node: node(raw), incarnation: Incarnation::new(u64::from(raw.unsigned_abs())).unwrap() }
}

fn led(leader: i32, replicas: &[i32], isr: &[i32]) -> PartitionRecord {
    let id = TopicIdPartition::new(TopicId::random(), PartitionIndex::new(0).unwrap());
    PartitionRecord {
        leader: Some(node(leader)),
        leader_epoch: LeaderEpoch::new(4),
        isr: isr.iter().copied().map(member).collect(),
        ..PartitionRecord::new(id, nodes(replicas))
    }
}

fn joined(record: &PartitionRecord, raw: i32) -> PartitionRecord {
    let mut next = record.clone();
    next.isr.push(member(raw));
    next
}

#[test]
fn added_replicas_come_in_the_wanted_order_and_removed_ones_stay_at_the_end() {
    let record = led(1, &[1, 2, 3], &[1, 2, 3]);
    let moving = begin(&record, &nodes(&[2, 3, 4])).unwrap();
    assert_eq!(moving.replicas, nodes(&[2, 3, 4, 1]));
    assert_eq!((moving.adding.clone(), moving.removing.clone()), (nodes(&[4]), nodes(&[1])));
    assert_eq!(moving.isr, record.isr, "nobody leaves before the added ones are in sync");
    assert_eq!(check_change(&record, &moving), Ok(()));
}

#[test]
fn added_replicas_do_not_raise_what_acks_all_needs() {
    let moving = begin(&led(1, &[1, 2], &[1, 2]), &nodes(&[1, 2, 3, 4])).unwrap();
    assert_eq!(moving.effective_min_isr(3), 2);
    assert_eq!(moving.effective_min_isr(0), 1);
}

#[test]
fn it_waits_for_every_added_replica() {
    let moving = begin(&led(1, &[1, 2], &[1, 2]), &nodes(&[1, 3, 4])).unwrap();
    assert_eq!(next_step(&moving, 1, |_| true), ReassignmentStep::Wait);
    let one = joined(&moving, 3);
    assert_eq!(next_step(&one, 1, |_| true), ReassignmentStep::Wait);
    let both = joined(&one, 4);
    let ReassignmentStep::Finish(done) = next_step(&both, 1, |_| true) else { panic!("all are in sync") };
    assert_eq!(done.replicas, nodes(&[1, 3, 4]));
    assert_eq!(done.isr.iter().map(|m| m.node).collect::<Vec<_>>(), nodes(&[1, 3, 4]), "in one change");
    assert!(done.adding.is_empty() && done.removing.is_empty());
    assert_eq!(check_change(&both, &done), Ok(()));
}

#[test]
fn it_waits_until_enough_of_those_that_stay_are_in_sync() {
    // 2 is wanted, but has fallen behind: without 1 the set would be too small.
    let moving = begin(&led(3, &[1, 2, 3], &[1, 3]), &nodes(&[2, 3])).unwrap();
    assert_eq!(next_step(&moving, 2, |_| true), ReassignmentStep::Wait);
    assert!(matches!(next_step(&joined(&moving, 2), 2, |_| true), ReassignmentStep::Finish(_)));
}

#[test]
fn a_leader_that_is_removed_hands_over_first() {
    let moving = joined(&begin(&led(1, &[1, 2], &[1, 2]), &nodes(&[2, 3])).unwrap(), 3);
    assert_eq!(next_step(&moving, 1, |_| true), ReassignmentStep::HandOver { successor: node(2) });
    assert_eq!(next_step(&moving, 1, |n| n == node(3)), ReassignmentStep::HandOver { successor: node(3) });
    assert_eq!(next_step(&moving, 1, |_| false), ReassignmentStep::Wait, "nobody to hand over to");
    let after = PartitionRecord { leader: Some(node(2)), leader_epoch: LeaderEpoch::new(5), ..moving };
    let ReassignmentStep::Finish(done) = next_step(&after, 1, |_| true) else {
        panic!("its successor finishes")
    };
    assert_eq!(done.replicas, nodes(&[2, 3]));
    assert_eq!(done.isr.iter().map(|m| m.node).collect::<Vec<_>>(), nodes(&[2, 3]));
}

#[test]
fn cancelling_goes_back_and_takes_added_ones_out_of_the_set() {
    let record = led(1, &[1, 2, 3], &[1, 2, 3]);
    let moving = joined(&begin(&record, &nodes(&[2, 3, 4])).unwrap(), 4);
    let back = cancel(&moving).unwrap();
    assert_eq!(back.replicas, nodes(&[2, 3, 1]));
    assert_eq!(back.isr, record.isr);
    assert!(back.adding.is_empty() && back.removing.is_empty());
    assert_eq!(cancel(&record), Err(ReassignmentRefused::NoneUnderWay));
}

#[test]
fn an_added_replica_that_leads_keeps_the_reassignment_until_it_handed_over() {
    let mut moving = joined(&begin(&led(1, &[1, 2], &[1, 2]), &nodes(&[3, 2])).unwrap(), 3);
    moving.leader = Some(node(3));
    assert_eq!(cancel(&moving), Err(ReassignmentRefused::LeaderWouldLeave { leader: node(3) }));
}

#[test]
fn a_second_reassignment_replaces_the_first() {
    let first = begin(&led(1, &[1, 2], &[1, 2]), &nodes(&[1, 3])).unwrap();
    let second = begin(&joined(&first, 3), &nodes(&[1, 4])).unwrap();
    assert_eq!(second.replicas, nodes(&[1, 4, 2]));
    assert_eq!((second.adding.clone(), second.removing.clone()), (nodes(&[4]), nodes(&[2])));
    assert!(second.isr_member(node(3)).is_none(), "what is no longer wanted leaves at once");
}

#[test]
fn impossible_targets_are_refused() {
    let record = led(1, &[1, 2], &[1, 2]);
    assert_eq!(begin(&record, &[]), Err(ReassignmentRefused::BadReplicas));
    assert_eq!(begin(&record, &nodes(&[1, 1])), Err(ReassignmentRefused::BadReplicas));
    assert_eq!(begin(&record, &nodes(&[1, 2])), Err(ReassignmentRefused::Unchanged));
}
