//! Facts about the time index (the scenarios of Kafka's TimeIndexTest that apply without a memory map).

use super::*;

fn index(entries: &[(i64, u32)]) -> TimeIndex {
    let mut index = TimeIndex::default();
    for (timestamp, relative) in entries {
        index.push_if_later(TimeEntry { timestamp: *timestamp, relative: *relative });
    }
    index
}

#[test]
fn only_later_timestamps_are_kept() {
    let index = index(&[(-1, 0), (100, 4), (90, 9), (100, 12), (i64::MAX, 20), (200, 30)]);
    let kept: Vec<_> = index.entries().iter().map(|e| (e.timestamp, e.relative)).collect();
    assert_eq!(kept, [(100, 4), (i64::MAX, 20)]);
}

#[test]
fn before_is_strict_in_the_timestamp() {
    let index = index(&[(100, 4), (200, 9)]);
    assert_eq!(index.before(100), None);
    assert_eq!(index.before(101).unwrap().relative, 4);
    assert_eq!(index.before(i64::MAX).unwrap().relative, 9);
}

#[test]
fn truncation_drops_offsets_from_the_given_one() {
    let mut index = index(&[(100, 4), (200, 9)]);
    index.truncate_to(9);
    assert_eq!(index.len(), 1);
    index.truncate_to(0);
    assert_eq!(index.last(), None);
}

#[test]
fn what_was_written_is_read_back() {
    let index = index(&[(0, 0), (100, 4), (i64::MAX, 2_147_483_647)]);
    assert_eq!(TimeIndex::decode(&index.encode()), Ok(index));
}

#[test]
fn zeroed_preallocated_and_torn_files_are_refused() {
    let mut bytes = index(&[(100, 4), (200, 9)]).encode();
    assert!(TimeIndex::decode(&bytes[..23]).unwrap_err().contains("whole number"));
    bytes.resize(120, 0);
    assert!(TimeIndex::decode(&bytes).unwrap_err().contains("does not rise"));
    assert!(TimeIndex::decode(&[0; 24]).unwrap_err().contains("does not rise"));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_an_index_in_order_or_an_error(bytes: Vec<u8>) {
        if let Ok(index) = TimeIndex::decode(&bytes) {
            proptest::prop_assert!(index.entries().is_sorted_by(|a, b| a.timestamp < b.timestamp && a.relative <= b.relative));
            proptest::prop_assert_eq!(index.encode(), bytes);
        }
    }

    #[test]
    fn any_timestamps_leave_an_index_in_order(timestamps in proptest::collection::vec(proptest::num::i64::ANY, 0..200)) {
        let mut index = TimeIndex::default();
        for (relative, timestamp) in (0..).zip(timestamps) {
            index.push_if_later(TimeEntry { timestamp, relative });
        }
        proptest::prop_assert_eq!(TimeIndex::decode(&index.encode()), Ok(index));
    }
}
