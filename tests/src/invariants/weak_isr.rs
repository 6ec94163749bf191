//! WeakIsr (Kafka's TLA+ specification): whoever believes to lead, and the members of the in-sync set that it believes in,
//! agree on everything below its high watermark.

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for leader in &view.replicas {
        let Role::Leader { isr, over: false, .. } = &leader.now.role else { continue };
        let below = leader.batches.iter().filter(|batch| batch.next <= leader.now.high_watermark);
        for member in &view.replicas {
            let believed =
                isr.iter().any(|m| m.node == member.node && m.incarnation == member.now.incarnation);
            if !believed || member.node == leader.node {
                continue;
            }
            let due = below.clone().filter(|b| b.base >= member.now.log_start && !view.history.is_lost(b));
            if let Some(missing) = super::missing(due, member) {
                return Err(format!(
                    "node {} leads, commits up to {}, and member {} lacks {missing:?}",
                    leader.node, leader.now.high_watermark, member.node
                ));
            }
        }
    }
    Ok(())
}
