//! StrongIsr (Kafka's TLA+ specification): every member of the true in-sync set holds every record that was ever committed.
//! Here for running members with the recorded incarnation; a member that is down is looked at when it starts.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    // It is open what an unclean election gives up until somebody leads by it.
    if view.undecided {
        return Ok(());
    }
    for replica in view.electable() {
        if let Some(missing) = super::missing(view.history.due(replica.now.log_start), replica) {
            return Err(format!("node {} is in the set and lacks {missing:?}", replica.node));
        }
    }
    Ok(())
}
