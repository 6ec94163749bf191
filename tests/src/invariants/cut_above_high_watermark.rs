//! A log is never cut below its high watermark, unless an unclean election took that, and the replica says so (S43, design.md 6.5,
//! 6.13).

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let Some(before) = replica.before else { continue };
        let is_lost = view.history.lost.iter().any(|range| range.end > replica.now.log_end);
        // A new incarnation has no merits: it was renewed because of what is gone. A failed disk asks nobody.
        let excused = before.incarnation != replica.now.incarnation || before.failed || replica.now.failed;
        let is_told = replica
            .now
            .loss
            .is_some_and(|loss| loss.from <= replica.now.log_end && before.high_watermark <= loss.end);
        let was_empty = before.log_start == before.log_end && !view.history.elections.is_empty();
        // The hole went with what lies behind it: nothing of that was in the log.
        let was_damaged = before.damaged_from.is_some_and(|from| from <= replica.now.log_end);
        let excused = excused || is_lost || is_told || was_empty || was_damaged;
        if replica.now.log_end < before.high_watermark && !excused {
            return Err(format!(
                "node {}: HW {}, cut to {}",
                replica.node, before.high_watermark, replica.now.log_end
            ));
        }
    }
    Ok(())
}
