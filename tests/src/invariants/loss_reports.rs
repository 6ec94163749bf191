//! What a replica says that an unclean election took from it (design.md 6.13) is exact: the election is on record; all that was
//! committed, was given up by one, and is cut from this replica, it tells; and nothing was committed for certain that never was.

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for replica in &view.replicas {
        let loss = replica.now.loss;
        if let Some(loss) = loss.filter(|loss| !view.history.elections.contains(&loss.election)) {
            return Err(format!(
                "node {}: no election of epoch {} is on record: {loss}",
                replica.node, loss.election
            ));
        }
        for gone in replica.removed {
            let is_told = loss.is_some_and(|loss| loss.from <= gone.base && gone.next <= loss.end);
            if view.history.is_given_up(gone) && !is_told {
                return Err(format!("node {} was cut {gone:?}, and reports {loss:?}", replica.node));
            }
            // A report of an earlier cut says nothing of this one.
            let is_new = replica.before.is_none_or(|before| before.loss != loss);
            let is_certain =
                is_new && loss.is_some_and(|loss| loss.from <= gone.base && gone.next <= loss.committed);
            if is_certain && !view.history.was_committed(gone) {
                return Err(format!(
                    "node {} reports {gone:?} as committed, which it never was",
                    replica.node
                ));
            }
        }
    }
    Ok(())
}
