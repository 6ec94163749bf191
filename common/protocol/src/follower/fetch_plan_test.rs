//! The order of a loop's partitions.

use super::*;

fn order(plan: &FetchPlan<char>) -> String {
    plan.iter().collect()
}

#[test]
fn progress_moves_a_partition_to_the_end() {
    let mut plan = FetchPlan::new();
    for key in "abc".chars() {
        assert!(plan.add(key));
    }
    plan.move_to_end(&'a');
    assert_eq!(order(&plan), "bca");
    plan.move_to_end(&'c');
    assert_eq!(order(&plan), "bac");
}

#[test]
fn adding_a_known_partition_keeps_its_place() {
    let mut plan = FetchPlan::new();
    plan.add('a');
    plan.add('b');
    assert!(!plan.add('a'));
    assert_eq!(order(&plan), "ab");
}

#[test]
fn a_removed_partition_does_not_come_back_by_progress() {
    let mut plan = FetchPlan::new();
    plan.add('a');
    plan.add('b');
    assert!(plan.remove(&'a'));
    assert!(!plan.remove(&'a'));
    plan.move_to_end(&'a');
    assert_eq!(order(&plan), "b");
    assert_eq!((plan.len(), plan.is_empty(), plan.contains(&'a')), (1, false, false));
}

#[test]
fn every_partition_leads_the_order_once_when_the_first_always_progresses() {
    let mut plan: FetchPlan<u32> = FetchPlan::new();
    for key in 0..5 {
        plan.add(key);
    }
    let mut led = Vec::new();
    for _ in 0..10 {
        let first = *plan.iter().next().unwrap();
        led.push(first);
        plan.move_to_end(&first);
    }
    assert_eq!(led, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
}
