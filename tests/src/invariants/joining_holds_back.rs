//! The high watermark does not pass a replica that is caught up and about to join (S57, design.md 6.8): else under a steady load
//! it would never reach it, and never join.

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in view.replicas.iter().filter(|_| view.one_step) {
        let Role::Leader { joining, over: false, .. } = &replica.now.role else { continue };
        if let Some(held) = joining.iter().find(|held| **held < replica.now.high_watermark) {
            return Err(format!(
                "node {} commits up to {}, a replica that is about to join holds {held}",
                replica.node, replica.now.high_watermark
            ));
        }
    }
    Ok(())
}
