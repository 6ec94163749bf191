//! A new leader takes no member out of the in-sync set before `replica.lag.time.max.ms` have passed (S53): until then it cannot
//! know that a member lags. Here for members that run with the incarnation in the set and were not told to renew it, and of
//! which no news came: a dead, failed or paused one leaves at once (design.md 6.6).

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for leader in &view.replicas {
        let (Some(before), Role::Leader { isr, retired, absent, young: true, .. }) =
            (leader.before, &leader.now.role)
        else {
            continue;
        };
        let Role::Leader { isr: isr_before, .. } = &before.role else { continue };
        let out = isr_before.iter().find(|member| {
            let is_itself = |r: &&crate::core_sim::ReplicaView<'_>| {
                r.node == member.node && r.now.incarnation == member.incarnation
            };
            view.record.has_replica(member.node)
                // Removed by a move and added by the next one, which the leader saw at once.
                && !view.record.adding.contains(&member.node)
                && !absent.contains(&member.node)
                && retired.iter().all(|(node, _)| *node != member.node)
                && isr.iter().all(|m| m.node != member.node)
                && view.replicas.iter().any(|replica| is_itself(&replica))
        });
        if let Some(out) = out {
            return Err(format!("node {} has just begun to lead and takes {out:?} out", leader.node));
        }
    }
    Ok(())
}
