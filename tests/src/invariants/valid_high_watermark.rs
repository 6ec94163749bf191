//! ValidHighWatermark (AsyncIsr of Kafka's TLA+ specification): every member of the recorded in-sync set has at least what is
//! below the leader's high watermark, and under `fsync` has it flushed.

use highwater_types::Durability;

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    // It is open what an unclean election gives up until somebody leads by it.
    if view.undecided {
        return Ok(());
    }
    let end = view.history.committed_end;
    let due = view.history.due(highwater_types::Offset::ZERO).next_back().map(|batch| batch.next);
    let Some(due) = due else { return Ok(()) };
    for replica in view.electable() {
        let held = match view.durability {
            Durability::Fsync => replica.now.flushed,
            Durability::PageCache => replica.now.log_end,
        };
        if held < due {
            return Err(format!("HW was {end}, node {} in the set holds {held}", replica.node));
        }
    }
    Ok(())
}
