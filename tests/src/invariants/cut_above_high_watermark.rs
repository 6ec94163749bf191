//! A log is never cut below its high watermark without an unclean election (S43, design.md 6.5).

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let Some(before) = replica.before else { continue };
        let is_lost = view.history.lost.iter().any(|range| range.end > replica.now.log_end);
        // A new incarnation has no merits: it was renewed because of what is gone. A failed disk asks nobody.
        let excused = before.incarnation != replica.now.incarnation || before.failed || replica.now.failed;
        if replica.now.log_end < before.high_watermark && !excused && !is_lost {
            return Err(format!(
                "node {}: HW {}, cut to {}",
                replica.node, before.high_watermark, replica.now.log_end
            ));
        }
    }
    Ok(())
}
