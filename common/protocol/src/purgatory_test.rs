//! The purgatory's index: who is visited, and that nothing stays behind.

use super::*;

fn visited(purgatory: &mut Purgatory<u32, &'static str>, key: u32) -> Vec<(&'static str, usize)> {
    let mut seen = Vec::new();
    purgatory.wake(&key, |_, slot, item| seen.push((*item, slot)));
    seen
}

#[test]
fn a_wake_visits_only_the_requests_on_that_key_with_their_slot() {
    let mut purgatory = Purgatory::new();
    purgatory.register(vec![1, 2], "a");
    purgatory.register(vec![2, 3], "b");
    assert_eq!(visited(&mut purgatory, 1), [("a", 0)]);
    assert_eq!(visited(&mut purgatory, 2), [("a", 1), ("b", 0)]);
    assert_eq!(visited(&mut purgatory, 4), []);
}

#[test]
fn removal_leaves_nothing_behind_and_can_happen_once() {
    let mut purgatory = Purgatory::new();
    let a = purgatory.register(vec![1, 2, 1], "a");
    let b = purgatory.register(vec![2], "b");
    assert_eq!(purgatory.remove(a), Some("a"));
    assert_eq!(purgatory.remove(a), None);
    assert!(!purgatory.is_watched(&1));
    assert_eq!(visited(&mut purgatory, 2), [("b", 0)]);
    assert_eq!(purgatory.remove(b), Some("b"));
    assert!(purgatory.is_empty());
    assert!(purgatory.by_key.is_empty());
}

#[test]
fn a_request_that_waits_on_nothing_is_parked_all_the_same() {
    let mut purgatory = Purgatory::<u32, _>::new();
    let id = purgatory.register(Vec::new(), "idle");
    assert_eq!(purgatory.len(), 1);
    assert_eq!(purgatory.remove(id), Some("idle"));
}
