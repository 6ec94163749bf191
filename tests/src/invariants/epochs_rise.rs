//! The epoch cache rises strictly in both fields (S45), agrees with the batches, and their epochs never fall along a log.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let node = replica.node;
        let entries = replica.epochs.entries();
        if !entries.is_sorted_by(|a, b| a.epoch < b.epoch && a.start < b.start) {
            return Err(format!("node {node}: the cache is {entries:?}"));
        }
        if !replica.batches.is_sorted_by_key(|batch| batch.epoch) {
            return Err(format!("node {node}: epochs fall along the log: {:?}", replica.batches));
        }
        for batch in replica.batches {
            let cached = replica.epochs.epoch_at(batch.base);
            if cached != batch.epoch {
                return Err(format!(
                    "node {node}: {batch:?} lies in epoch {cached:?} by the cache {entries:?}"
                ));
            }
        }
    }
    Ok(())
}
