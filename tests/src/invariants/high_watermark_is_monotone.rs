//! A leader's high watermark never falls (S59, design.md 6.8). A follower's falls by truncation only.

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let Some(before) = replica.before else { continue };
        let fell = replica.now.high_watermark < before.high_watermark;
        let was_cut = replica.now.log_end < before.high_watermark;
        let may_fall = replica.now.role == Role::Follower && was_cut || replica.now.failed;
        if fell && !may_fall {
            return Err(format!(
                "node {}: from {} to {}",
                replica.node, before.high_watermark, replica.now.high_watermark
            ));
        }
    }
    Ok(())
}
