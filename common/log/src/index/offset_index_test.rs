//! Facts about the offset index (the scenarios of Kafka's OffsetIndexTest that apply without a memory map).

use super::*;

fn index(entries: &[(u32, u32)]) -> OffsetIndex {
    let mut index = OffsetIndex::default();
    for (relative, position) in entries {
        index.push(OffsetEntry { relative: *relative, position: *position });
    }
    index
}

#[test]
fn floor_is_the_last_entry_at_or_before_the_offset() {
    let index = index(&[(4, 100), (9, 250), (20, 700)]);
    assert_eq!(index.floor(3), None);
    assert_eq!(index.floor(4).unwrap().position, 100);
    assert_eq!(index.floor(19).unwrap().position, 250);
    assert_eq!(index.floor(u32::MAX).unwrap().position, 700);
}

#[test]
fn truncation_drops_batches_that_begin_at_the_position_or_later() {
    let mut index = index(&[(4, 100), (9, 250), (20, 700)]);
    index.truncate_to_position(250);
    assert_eq!(index.entries(), &[OffsetEntry { relative: 4, position: 100 }]);
    index.truncate_to_position(0);
    assert_eq!(index.len(), 0);
}

#[test]
fn what_was_written_is_read_back() {
    let index = index(&[(0, 1), (9, 250), (2_147_483_647, 700)]);
    let bytes = index.encode();
    assert_eq!(bytes.len(), 3 * OFFSET_ENTRY_BYTES);
    assert_eq!(OffsetIndex::decode(&bytes, 701), Ok(index));
    assert_eq!(OffsetIndex::decode(&[], 0), Ok(OffsetIndex::default()));
}

#[test]
fn zeroed_preallocated_torn_and_foreign_files_are_refused() {
    let good = index(&[(4, 100), (9, 250)]).encode();
    let mut preallocated = good.clone();
    preallocated.resize(1024, 0);
    assert!(OffsetIndex::decode(&preallocated, 1000).unwrap_err().contains("does not rise"));
    assert!(OffsetIndex::decode(&[0; 64], 1000).unwrap_err().contains("does not rise"));
    assert!(OffsetIndex::decode(&good[..15], 1000).unwrap_err().contains("whole number"));
    assert!(OffsetIndex::decode(&good, 250).unwrap_err().contains("beyond"));
    assert!(OffsetIndex::decode(&index(&[(u32::MAX, 1)]).encode(), 1000).is_err(), "no i32");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_an_index_in_order_or_an_error(bytes: Vec<u8>, log_len in 0_u64..10_000) {
        if let Ok(index) = OffsetIndex::decode(&bytes, log_len) {
            proptest::prop_assert!(index.entries().is_sorted_by(|a, b| a.relative < b.relative && a.position < b.position));
            proptest::prop_assert_eq!(index.encode(), bytes);
        }
    }

    #[test]
    fn floor_agrees_with_a_plain_search(steps in proptest::collection::vec((1_u32..50, 1_u32..500), 0..60), asked in 0_u32..3000) {
        let mut at = (0, 0);
        let index = index(&steps.iter().map(|step| { at = (at.0 + step.0, at.1 + step.1); at }).collect::<Vec<_>>());
        let plain = index.entries().iter().copied().rfind(|entry| entry.relative <= asked);
        proptest::prop_assert_eq!(index.floor(asked), plain);
    }
}
