//! Short names for the values of tests about elections.

use highwater_types::{Incarnation, LeaderEpoch, NodeId};

pub(crate) fn node(raw: i32) -> NodeId {
    NodeId::new(raw).unwrap()
}

pub(crate) fn incarnation(raw: u64) -> Incarnation {
    Incarnation::new(raw).unwrap()
}

pub(crate) fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::new(raw).unwrap()
}
