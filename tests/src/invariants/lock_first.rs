//! Whoever stands for election holds the partition's lock from before the record is written (design.md 6.6): else its log, and
//! with it its incarnation, may be another one by the time that it leads.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    match view.record.leader {
        Some(leader) if view.unlocked.contains(&leader) => {
            Err(format!("node {leader} was elected and does not hold its log"))
        }
        Some(_) | None => Ok(()),
    }
}
