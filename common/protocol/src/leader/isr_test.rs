//! Who joins the in-sync set, and when it is asked for (S52, S54, S55, design.md 6.3, 6.4, 6.9).

use std::time::Duration;

use highwater_types::PartitionEpoch;

use super::super::leader_test_support::*;
use super::super::*;
use crate::fetch::FetchPartition;
use crate::test_values::{incarnation, member, millis, node, offset, record};

fn proposals(leader: &mut LeaderPartition) -> Vec<IsrProposal> {
    let effects = drain(leader).into_iter();
    effects.filter_map(|e| if let LeaderEffect::ProposeIsr(p) = e { Some(p) } else { None }).collect()
}

fn proposal(version: u64, isr: &[IsrMember]) -> IsrProposal {
    IsrProposal { expected: PartitionEpoch::new(version), isr: isr.to_vec() }
}

#[test]
fn reaching_an_old_high_watermark_is_not_enough_for_a_new_leadership() {
    // KAFKA-7128: elected at log end 100 with the high watermark 90; C fetches at 95, then at 100.
    let mut leader = leader(&alone());
    assert_eq!(leader.high_watermark(), offset(100), "alone in the set, its own end counts");
    send(&mut leader, 3, &fetch_of(3, 95), 1).unwrap();
    assert_eq!(proposals(&mut leader), []);
    send(&mut leader, 3, &fetch_of(3, 100), 2).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &[member(1, 10), member(3, 30)])]);
}

#[test]
fn a_follower_within_an_older_epoch_stays_out_even_above_the_high_watermark() {
    let mut leader = leader(&[member(1, 10), member(2, 20)]);
    assert_eq!(leader.high_watermark(), offset(90));
    send(&mut leader, 3, &fetch_of(3, 99), 1).unwrap();
    assert_eq!(proposals(&mut leader), [], "99 ≥ HW 90, but the leader's epoch begins at 100");
    send(&mut leader, 3, &fetch_of(3, 100), 2).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &[member(1, 10), member(2, 20), member(3, 30)])]);
}

#[test]
fn one_change_at_a_time_and_the_next_follows_the_record() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    send(&mut leader, 3, &fetch_of(3, 100), 2).unwrap();
    let two = [member(1, 10), member(2, 20)];
    assert_eq!(proposals(&mut leader), [proposal(3, &two)]);
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Committed, millis(3));
    assert_eq!(proposals(&mut leader), [], "the record has not been seen");
    leader.on_record(&record(&[1, 2, 3], &two, 7, 4), millis(4));
    assert_eq!(proposals(&mut leader), [proposal(4, &all())]);
}

#[test]
fn a_renewed_incarnation_replaces_its_old_entry() {
    let mut leader = leader(&[member(1, 10), member(2, 20)]);
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    assert_eq!(proposals(&mut leader), [], "it is in the set already");
    send(&mut leader, 2, &FetchPartition { incarnation: Some(incarnation(21)), ..fetch_of(2, 100) }, 2)
        .unwrap();
    assert_eq!(proposals(&mut leader), [proposal(3, &[member(1, 10), member(2, 21)])]);
}

#[test]
fn an_unknown_outcome_is_proposed_again_until_a_newer_record_is_seen() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    let two = [member(1, 10), member(2, 20)];
    assert_eq!(proposals(&mut leader).len(), 1);
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Unknown, millis(10));
    assert_eq!(leader.next_deadline(), Some(millis(510)));
    leader.on_record(&record(&[1, 2, 3], &alone(), 7, 3), millis(11));
    assert!(leader.is_isr_change_pending(), "a read of the old record decides nothing (UNKNOWN_READ)");
    leader.on_tick(millis(510));
    assert_eq!(proposals(&mut leader), [proposal(3, &two)]);
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Conflict, millis(520));
    leader.on_record(&record(&[1, 2, 3], &two, 7, 4), millis(530));
    assert!(!leader.is_isr_change_pending());
    assert_eq!(leader.isr(), two);
}

#[test]
fn a_newer_leadership_ends_this_one() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    let mut newer = record(&[1, 2, 3], &all(), 8, 4);
    newer.leader = Some(node(2));
    leader.on_record(&newer, millis(2));
    assert!(leader.is_over());
    assert_eq!(drain(&mut leader).last(), Some(&LeaderEffect::Superseded));
    assert_eq!(proposals(&mut leader), [], "a proposal that was not sent is dropped");
    assert_eq!(leader.commit_status(offset(101)), CommitStatus::LeadershipLost);
}

#[test]
fn a_removed_replica_is_forgotten_and_an_added_one_starts_unknown() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 50), 1).unwrap();
    leader.on_record(&record(&[1, 3, 4], &alone(), 7, 4), millis(2));
    let rows = leader.describe(millis(3));
    assert_eq!(
        rows.iter().map(|r| (r.node, r.acknowledged)).collect::<Vec<_>>(),
        [(node(3), None), (node(4), None)]
    );
}

#[test]
fn a_record_of_the_same_leadership_keeps_what_is_known_of_followers_and_where_its_epoch_began() {
    let two = [member(1, 10), member(2, 20)];
    let mut leader = leader(&two);
    send(&mut leader, 2, &fetch_of(2, 95), 1).unwrap();
    send(&mut leader, 3, &fetch_of(3, 99), 1).unwrap();
    leader.on_append(offset(110), millis(2));
    leader.on_record(&record(&[1, 2, 3], &two, 7, 4), millis(3));
    let row = leader.describe(millis(4)).into_iter().find(|row| row.node == node(2)).unwrap();
    assert_eq!((row.acknowledged, row.last_fetch_age), (Some(offset(95)), Some(Duration::from_millis(3))));
    assert_eq!(proposals(&mut leader), [], "99 is before the epoch began");
    send(&mut leader, 3, &fetch_of(3, 100), 5).unwrap();
    assert_eq!(proposals(&mut leader), [proposal(4, &[member(1, 10), member(2, 20), member(3, 30)])]);
}

#[test]
fn a_late_answer_for_a_decided_change_is_ignored() {
    let mut leader = leader(&alone());
    send(&mut leader, 2, &fetch_of(2, 100), 1).unwrap();
    let two = [member(1, 10), member(2, 20)];
    leader.on_record(&record(&[1, 2, 3], &two, 7, 4), millis(2));
    leader.on_isr_outcome(leader.partition_epoch(), &IsrOutcome::Unknown, millis(3));
    assert!(!leader.is_isr_change_pending());
    assert_eq!(leader.next_deadline(), None);
}
