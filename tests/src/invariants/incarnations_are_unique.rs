//! Two nodes never have one incarnation, and the record names none twice (design.md 6.3).

use crate::core_sim::PartitionView;

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for (at, one) in view.replicas.iter().enumerate() {
        let twin = view
            .replicas
            .iter()
            .skip(at + 1)
            .find(|two| two.now.incarnation == one.now.incarnation && two.node != one.node);
        if let Some(twin) = twin {
            return Err(format!("nodes {} and {} are both {}", one.node, twin.node, one.now.incarnation));
        }
    }
    Ok(())
}
