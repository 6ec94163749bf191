//! log start ≤ high watermark ≤ log end, flushed ≤ log end, on each replica (ARCHITECTURE, protocol invariants).

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let now = &replica.now;
        // After a failed disk the log has ended before the leadership knows.
        if now.failed {
            continue;
        }
        let is_ordered = now.log_start <= now.high_watermark && now.high_watermark <= now.log_end;
        if !is_ordered || now.flushed > now.log_end {
            return Err(format!(
                "node {}: log start {}, HW {}, flushed {}, log end {}",
                replica.node, now.log_start, now.high_watermark, now.flushed, now.log_end
            ));
        }
    }
    Ok(())
}
