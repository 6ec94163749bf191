//! A reassignment lets a replica in use go only once every replica that it adds is in sync (KIP-455, design.md 6.12): at no time
//! are there fewer copies than before.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    let Some(before) = view.record_before else { return Ok(()) };
    let in_use = before.replicas.iter().filter(|node| !before.adding.contains(node));
    let Some(left) = in_use.copied().find(|node| !view.record.has_replica(*node)) else { return Ok(()) };
    let missing = before.adding.iter().find(|node| before.isr_member(**node).is_none());
    missing.map_or(Ok(()), |node| Err(format!("node {left} left before node {node} was in sync")))
}
