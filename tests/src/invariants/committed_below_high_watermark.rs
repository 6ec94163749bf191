//! Below any replica's high watermark lies what is committed, and nothing else (ARCHITECTURE, protocol invariants): what a
//! consumer can be shown.

use crate::core_sim::{Batch, PartitionView};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let now = &replica.now;
        if now.high_watermark > view.history.highest_end {
            return Err(format!(
                "node {}: HW {}, no leader's was above {}",
                replica.node, now.high_watermark, view.history.highest_end
            ));
        }
        let readable = |batch: &&Batch| now.log_start <= batch.base && batch.next <= now.high_watermark;
        for batch in replica.batches.iter().filter(readable) {
            let committed = view.history.committed.get(&batch.base);
            if committed != Some(batch) && !view.history.is_lost(batch) {
                return Err(format!("node {}: {batch:?} below HW, committed is {committed:?}", replica.node));
            }
        }
    }
    Ok(())
}
