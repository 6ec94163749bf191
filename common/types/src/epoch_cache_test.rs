//! The scenarios of Kafka's LeaderEpochFileCacheTest, and rule 1 of the list of cases.

use proptest::prelude::*;

use super::*;

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::new(raw).unwrap()
}

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn cache(entries: &[(i32, i64)]) -> LeaderEpochCache {
    entries.iter().map(|&(e, s)| EpochEntry { epoch: epoch(e), start: offset(s) }).collect()
}

fn end(cache: &LeaderEpochCache, asked: i32, log_end: i64) -> Option<(i32, i64)> {
    cache.end_offset_for(epoch(asked), offset(log_end)).map(|a| (a.epoch.get(), a.offset.get()))
}

#[test]
fn the_latest_epoch_ends_at_the_log_end() {
    assert_eq!(end(&cache(&[(2, 0)]), 2, 10), Some((2, 10)));
}

#[test]
fn an_epoch_ends_where_the_next_larger_one_starts() {
    let c = cache(&[(1, 11), (2, 12), (4, 13)]);
    assert_eq!(end(&c, 1, 20), Some((1, 12)));
    assert_eq!(
        end(&c, 3, 20),
        Some((2, 13)),
        "an unknown epoch in between is answered with the largest below"
    );
}

#[test]
fn an_epoch_below_the_first_ends_at_the_first_start() {
    assert_eq!(end(&cache(&[(5, 11), (6, 12)]), 4, 20), Some((4, 11)));
}

#[test]
fn an_epoch_above_all_and_an_empty_cache_are_undefined() {
    assert_eq!(end(&cache(&[(5, 11)]), 6, 20), None);
    assert_eq!(end(&cache(&[]), 0, 20), None, "never the log end (KAFKA-6857)");
}

#[test]
fn a_known_latest_epoch_keeps_its_start() {
    let mut c = cache(&[(2, 6)]);
    assert!(!c.assign(epoch(2), offset(10)));
    assert_eq!(c, cache(&[(2, 6)]));
    assert!(c.assign(epoch(2), offset(4)), "an earlier start replaces it");
    assert_eq!(c, cache(&[(2, 4)]));
}

#[test]
fn a_contradicting_entry_drops_the_tail() {
    let mut c = cache(&[(1, 5), (2, 10), (4, 20)]);
    c.assign(epoch(3), offset(12));
    assert_eq!(c, cache(&[(1, 5), (2, 10), (3, 12)]));
    c.assign(epoch(4), offset(10));
    assert_eq!(c, cache(&[(1, 5), (4, 10)]), "an equal start is a contradiction too");
}

#[test]
fn truncation_drops_entries_at_or_beyond_the_end() {
    let mut c = cache(&[(2, 6), (3, 8), (4, 11)]);
    assert!(
        c.truncate_from_end(offset(11)),
        "a leadership without records goes even if nothing is cut (S42)"
    );
    assert_eq!(c, cache(&[(2, 6), (3, 8)]));
    assert!(!c.truncate_from_end(offset(9)));
    c.truncate_from_end(offset(6));
    assert_eq!(c, cache(&[]));
}

#[test]
fn raising_the_start_keeps_the_covering_epoch() {
    let mut c = cache(&[(2, 6), (3, 8), (4, 11)]);
    assert!(!c.truncate_from_start(offset(1)), "nothing lies below");
    assert!(!c.truncate_from_start(offset(6)));
    assert!(c.truncate_from_start(offset(7)));
    assert_eq!(c, cache(&[(2, 7), (3, 8), (4, 11)]));
    c.truncate_from_start(offset(8));
    assert_eq!(c, cache(&[(3, 8), (4, 11)]));
    c.truncate_from_start(offset(100));
    assert_eq!(c, cache(&[(4, 100)]));
}

#[test]
fn the_epoch_of_a_record_is_the_newest_that_began_at_or_before_it() {
    let c = cache(&[(2, 6), (5, 8)]);
    assert_eq!(c.epoch_at(offset(5)), None);
    assert_eq!(c.epoch_at(offset(7)), Some(epoch(2)));
    assert_eq!(c.epoch_at(offset(8)), Some(epoch(5)));
    assert_eq!(c.previous(epoch(5)).map(|e| e.epoch.get()), Some(2));
    assert_eq!(c.previous(epoch(2)), None);
}

proptest! {
    #[test]
    fn entries_rise_strictly_whatever_is_done(steps in prop::collection::vec((0..3u8, 0..20i32, 0..40i64), 0..60)) {
        let mut c = LeaderEpochCache::new();
        for (what, e, o) in steps {
            match what {
                0 => { c.assign(epoch(e), offset(o)); }
                1 => { c.truncate_from_end(offset(o)); }
                _ => { c.truncate_from_start(offset(o)); }
            }
            prop_assert!(c.is_strictly_rising());
        }
    }
}
