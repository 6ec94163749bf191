//! Two logs that hold a batch of one epoch at one offset hold the same one (KIP-101, log matching): a leader of an epoch writes
//! each offset once.

use std::collections::BTreeMap;

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    let mut known = BTreeMap::new();
    for replica in &view.replicas {
        for batch in replica.batches {
            let first = known.entry((batch.base, batch.epoch)).or_insert((replica.node, batch));
            if first.1 != batch {
                return Err(format!(
                    "node {} has {:?}, node {} has {batch:?}",
                    first.0, first.1, replica.node
                ));
            }
        }
    }
    Ok(())
}
