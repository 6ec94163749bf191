//! One change in flight, both sets count meanwhile, unknown stays pending (S54–S56, design.md 6.4).

use super::*;
use crate::test_values::{member, millis, ms};

fn version(raw: u64) -> PartitionEpoch {
    PartitionEpoch::new(raw)
}

fn set() -> InSyncReplicas {
    InSyncReplicas::new(vec![member(1, 10)], version(3))
}

fn maximal(isr: &InSyncReplicas) -> Vec<IsrMember> {
    isr.maximal().collect()
}

#[test]
fn while_an_expansion_is_pending_the_new_member_counts_and_the_size_does_not() {
    let mut isr = set();
    let proposal = isr.propose(vec![member(1, 10), member(2, 20)]);
    assert_eq!(proposal, IsrProposal { expected: version(3), isr: vec![member(1, 10), member(2, 20)] });
    assert_eq!(maximal(&isr), [member(1, 10), member(2, 20)]);
    assert_eq!(isr.certain_size(), 1);
    assert_eq!(isr.committed(), [member(1, 10)]);
}

#[test]
fn while_a_shrink_is_pending_the_old_member_counts_and_the_size_is_the_smaller_one() {
    let mut isr = InSyncReplicas::new(vec![member(1, 10), member(2, 20)], version(3));
    isr.propose(vec![member(1, 10)]);
    assert_eq!(maximal(&isr), [member(1, 10), member(2, 20)]);
    assert_eq!(isr.certain_size(), 1);
}

#[test]
fn while_an_incarnation_is_replaced_both_count() {
    let mut isr = InSyncReplicas::new(vec![member(1, 10), member(2, 20)], version(3));
    isr.propose(vec![member(1, 10), member(2, 21)]);
    assert_eq!(maximal(&isr), [member(1, 10), member(2, 20), member(2, 21)]);
}

#[test]
fn an_unknown_outcome_stays_pending_and_is_proposed_again_against_the_same_version() {
    let mut isr = set();
    let first = isr.propose(vec![member(1, 10), member(2, 20)]);
    isr.on_outcome(version(3), &IsrOutcome::Unknown, millis(100), ms(50));
    assert_eq!(isr.repropose(millis(149)), None);
    assert_eq!(isr.repropose(millis(150)), Some(first));
    assert_eq!(isr.repropose(millis(151)), None, "it is under way again");
    assert_eq!(maximal(&isr), [member(1, 10), member(2, 20)]);
}

#[test]
fn only_a_record_of_a_higher_version_decides() {
    let mut isr = set();
    isr.propose(vec![member(1, 10), member(2, 20)]);
    isr.on_outcome(version(3), &IsrOutcome::Unknown, millis(0), ms(50));
    assert!(!isr.on_record(&[member(1, 10)], version(3)), "a read of the old record (UNKNOWN_READ)");
    assert!(isr.is_change_pending());
    assert!(isr.on_record(&[member(1, 10)], version(4)));
    assert_eq!((maximal(&isr), isr.is_change_pending()), (vec![member(1, 10)], false));
}

#[test]
fn a_conflict_waits_for_the_record_because_it_may_be_an_earlier_try() {
    let mut isr = set();
    isr.propose(vec![member(1, 10), member(2, 20)]);
    isr.on_outcome(version(3), &IsrOutcome::Conflict, millis(0), ms(50));
    assert_eq!((isr.retry_at(), isr.repropose(millis(1000))), (None, None));
    assert_eq!(isr.maximal().count(), 2);
    assert!(isr.on_record(&[member(1, 10), member(2, 20)], version(4)));
    assert_eq!(isr.committed().len(), 2);
}

#[test]
fn a_late_outcome_of_a_decided_change_is_ignored() {
    let mut isr = set();
    isr.propose(vec![member(1, 10), member(2, 20)]);
    isr.on_record(&[member(1, 10), member(2, 20)], version(4));
    let before = isr.clone();
    isr.on_outcome(version(3), &IsrOutcome::Unknown, millis(0), ms(50));
    assert_eq!(isr, before);
}

#[test]
fn a_late_answer_to_an_earlier_proposal_leaves_the_one_under_way_as_it_is() {
    let mut isr = set();
    isr.propose(vec![member(1, 10), member(2, 20)]);
    // The view shows that it was made, before its answer arrives; the next proposal times out meanwhile.
    assert!(isr.on_record(&[member(1, 10), member(2, 20)], version(4)));
    let second = isr.propose(vec![member(1, 10), member(2, 20), member(3, 30)]);
    isr.on_outcome(version(4), &IsrOutcome::Unknown, millis(0), ms(50));
    isr.on_outcome(version(3), &IsrOutcome::Committed, millis(1), ms(50));
    assert_eq!(isr.repropose(millis(50)), Some(second), "nobody has decided it");
}
