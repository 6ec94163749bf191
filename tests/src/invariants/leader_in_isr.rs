//! LeaderInIsr (Kafka's TLA+ specification): the recorded leader is in the recorded in-sync set.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    match view.record.leader {
        Some(leader) if view.record.isr_member(leader).is_none() => {
            Err(format!("node {leader} leads and is not in {:?}", view.record.isr))
        }
        Some(_) | None => Ok(()),
    }
}
