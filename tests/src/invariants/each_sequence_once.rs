//! What a producer sent is committed at most once, in order and without a hole (design.md 6.10): a client that sends again
//! until it is answered adds nothing to a log by that. Of a producer whose records retention removed nothing is known; and
//! where records are on record as lost, so are their sequences.

use std::collections::BTreeMap;

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    let loses = !view.history.lost.is_empty() || !view.history.elections.is_empty();
    if !view.keeps_all || loses {
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
