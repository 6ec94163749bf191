//! A leader's high watermark stands still while its in-sync set is smaller than `min.insync.replicas` (S58, design.md 6.8).

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let (Some(before), Role::Leader { isr, .. }) = (replica.before, &replica.now.role) else { continue };
        let Role::Leader { isr: isr_before, .. } = &before.role else { continue };
        let rose = replica.now.high_watermark > before.high_watermark;
        // In a step the set may have grown first; the larger of the two must suffice.
        if view.one_step && rose && isr.len().max(isr_before.len()) < view.min_isr {
            return Err(format!(
                "node {} commits up to {} with {} in sync, {} are asked for",
                replica.node,
                replica.now.high_watermark,
                isr.len(),
                view.min_isr
            ));
        }
    }
    Ok(())
}
