//! Steps double up to the maximum; a bounded row of tries ends.

use super::*;
use crate::test_values::ms;

const CONFIG: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(50), max: Duration::from_secs(5), max_attempts: 3 };

#[test]
fn steps_double_with_jitter_up_to_the_maximum() {
    let mut randomness = Randomness::new(1);
    let mut backoff = Backoff::new(CONFIG);
    for step in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
        let wait = backoff.next_delay(&mut randomness);
        assert!(wait >= ms(step) / 2 && wait <= ms(step), "{wait:?} for a step of {step} ms");
    }
}

#[test]
fn the_step_does_not_overflow_after_many_failures() {
    let mut backoff = Backoff::new(CONFIG);
    let mut randomness = Randomness::new(1);
    assert!((0..200).map(|_| backoff.next_delay(&mut randomness)).all(|wait| wait <= CONFIG.max));
}

#[test]
fn bounded_tries_end_and_progress_starts_them_again() {
    let mut randomness = Randomness::new(1);
    let mut backoff = Backoff::new(CONFIG);
    assert!((0..3).all(|_| backoff.next_bounded_delay(&mut randomness).is_some()));
    assert_eq!(backoff.next_bounded_delay(&mut randomness), None);
    backoff.reset();
    assert!(backoff.next_bounded_delay(&mut randomness).unwrap() <= CONFIG.first);
}

#[test]
fn two_partitions_do_not_wait_in_step() {
    let wait = |seed| Backoff::new(CONFIG).next_delay(&mut Randomness::new(seed));
    assert_eq!(wait(1), wait(1));
    assert_ne!(wait(1), wait(2));
}
