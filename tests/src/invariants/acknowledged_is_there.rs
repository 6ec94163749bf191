//! No acknowledged record is missing (design.md 6): who leads the newest epoch holds every one that retention has left.

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let leads = matches!(replica.now.role, Role::Leader { over: false, .. });
        if !leads || Some(replica.now.epoch) != view.record.leader_epoch {
            continue;
        }
        let due = view.history.acknowledged.range(replica.now.log_start..).map(|(_, batch)| batch);
        let due = due.filter(|batch| !view.history.is_lost(batch));
        if let Some(missing) = super::missing(due, replica) {
            return Err(format!("node {} leads and lacks {missing:?}", replica.node));
        }
    }
    Ok(())
}
