//! Nobody works below the highest epoch that it has worked under (design.md 6.5), and below no epoch of its own log.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let now = &replica.now;
        if let Some(before) = replica.before.filter(|before| before.epoch > now.epoch) {
            return Err(format!("node {}: from epoch {} to {}", replica.node, before.epoch, now.epoch));
        }
        let own = replica.epochs.latest().map(|entry| entry.epoch);
        if let Some(own) = own.filter(|own| *own > now.epoch) {
            return Err(format!("node {} works in epoch {}, its log has {own}", replica.node, now.epoch));
        }
        if now.failed {
            continue;
        }
        if let Some((worked, by)) = view.history.worked.get(&(replica.node, now.incarnation)).copied()
            && worked > now.epoch
        {
            return Err(format!(
                "node {} works in epoch {} (#{}), and has worked in {worked} (#{by})",
                replica.node, now.epoch, now.serial
            ));
        }
    }
    Ok(())
}
