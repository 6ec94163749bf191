//! Which nodes get the replicas of a new topic. Pure.
//!
//! What must hold: the replicas of a partition are distinct; the preferred leaders of a topic's partitions are spread
//! evenly over the nodes; nodes whose leader-svc lives come first, because only they can lead (design.md 1).

use highwater_types::{ErrorCode, NodeId, ReplicationError};
use highwater_wire::admin::Placement;

/// A node that could get a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    /// Whether its leader-svc lives; otherwise only its agent does.
    pub(crate) can_lead: bool,
}

/// The replicas of each of `partitions` partitions, the preferred leader first. `candidates` are the live nodes, by id;
/// `known` tells whether a node is registered at all.
///
/// # Errors
/// `InvalidRequest` when a named node is not registered, or there are too few live nodes.
pub(crate) fn place(
    placement: &Placement,
    partitions: i32,
    candidates: &[Candidate],
    known: impl Fn(NodeId) -> bool,
) -> Result<Vec<Vec<NodeId>>, ReplicationError> {
    match placement {
        Placement::Nodes(nodes) => match nodes.iter().find(|node| !known(**node)) {
            Some(node) => Err(invalid(format!("replicas: node {node} never registered"))),
            None => Ok(rotations(nodes, nodes.len(), partitions)),
        },
        Placement::Factor(factor) => {
            let (leading, following): (Vec<_>, Vec<_>) = candidates.iter().partition(|c| c.can_lead);
            if *factor > candidates.len() {
                let have = candidates.len();
                return Err(invalid(format!("replication_factor {factor}: only {have} nodes are live")));
            }
            let Some(_) = leading.first() else {
                return Err(invalid("no node with a live leader-svc, so nobody could lead".to_owned()));
            };
            Ok((0..partitions).map(|partition| choose(&leading, &following, *factor, partition)).collect())
        }
    }
}

/// Those that can lead, from a starting point that moves on with each partition, then the others likewise.
fn choose(leading: &[Candidate], following: &[Candidate], factor: usize, partition: i32) -> Vec<NodeId> {
    let turn = usize::try_from(partition).unwrap_or(0);
    let from = |nodes: &[Candidate]| -> Vec<NodeId> {
        let start = turn.checked_rem(nodes.len()).unwrap_or(0);
        nodes.iter().cycle().skip(start).take(nodes.len()).map(|c| c.node).collect()
    };
    from(leading).into_iter().chain(from(following)).take(factor).collect()
}

fn rotations(nodes: &[NodeId], count: usize, partitions: i32) -> Vec<Vec<NodeId>> {
    (0..partitions)
        .map(|partition| {
            let start = usize::try_from(partition).unwrap_or(0).checked_rem(count).unwrap_or(0);
            nodes.iter().cycle().skip(start).take(count).copied().collect()
        })
        .collect()
}

fn invalid(message: String) -> ReplicationError {
    ReplicationError::new(ErrorCode::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(raw: i32) -> NodeId {
        NodeId::new(raw).unwrap()
    }

    fn candidates(all: &[(i32, bool)]) -> Vec<Candidate> {
        all.iter().map(|&(node, can_lead)| Candidate { node: n(node), can_lead }).collect()
    }

    #[test]
    fn named_nodes_take_turns_at_being_preferred() {
        let placed = place(&Placement::Nodes(vec![n(3), n(1), n(2)]), 4, &[], |_| true).unwrap();
        assert_eq!(
            placed,
            [vec![n(3), n(1), n(2)], vec![n(1), n(2), n(3)], vec![n(2), n(3), n(1)], vec![n(3), n(1), n(2)],]
        );
        let error = place(&Placement::Nodes(vec![n(9)]), 1, &[], |_| false).unwrap_err();
        assert!(error.message.contains("node 9"));
    }

    #[test]
    fn nodes_that_can_lead_come_first_and_share_the_leading() {
        let live = candidates(&[(1, true), (2, false), (3, true)]);
        let placed = place(&Placement::Factor(3), 2, &live, |_| true).unwrap();
        assert_eq!(placed, [vec![n(1), n(3), n(2)], vec![n(3), n(1), n(2)]]);
        let placed = place(&Placement::Factor(1), 2, &live, |_| true).unwrap();
        assert_eq!(placed, [vec![n(1)], vec![n(3)]]);
    }

    #[test]
    fn too_few_nodes_or_none_that_can_lead_are_refused() {
        let live = candidates(&[(1, true), (2, false)]);
        assert!(place(&Placement::Factor(3), 1, &live, |_| true).unwrap_err().message.contains("only 2"));
        let agents = candidates(&[(2, false)]);
        assert_eq!(
            place(&Placement::Factor(1), 1, &agents, |_| true).unwrap_err().code,
            ErrorCode::InvalidRequest
        );
    }
}
