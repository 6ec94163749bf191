//! What a producer sent is committed at most once, in order and without a hole (design.md 6.10): a client that sends again
//! until it is answered adds nothing to a log by that. Of a producer whose records retention removed nothing is known; and
//! where a range is on record as lost, so are its sequences.

use std::collections::BTreeMap;

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    if !view.keeps_all || !view.history.lost.is_empty() {
        return Ok(());
    }
    let mut next: BTreeMap<i64, i32> = BTreeMap::new();
    for batch in view.history.committed.values() {
        let Some(sequence) = batch.sequence else { continue };
        let expected = next.entry(sequence.producer).or_default();
        if sequence.first != *expected {
            return Err(format!("{batch:?} is committed, {expected} comes next of its producer"));
        }
        *expected = sequence.last + 1;
    }
    Ok(())
}
