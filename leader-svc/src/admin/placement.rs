//! Which nodes get the replicas of a new topic. Pure.
//!
//! What must hold: the replicas of a partition are distinct; the preferred leaders of a topic's partitions are spread
//! evenly over the nodes; nodes whose leader-svc lives come first, because only they can lead (design.md 1). What another
//! moment may allow is refused as retryable.

use highwater_types::{ErrorCode, NodeId, ReplicationError};
use highwater_wire::admin::Placement;

/// A registered node, which could get a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    /// Whether its leader-svc lives.
    pub(crate) can_lead: bool,
    /// Whether its agent lives.
    pub(crate) can_follow: bool,
}

/// The replicas of each of `partitions` partitions, the preferred leader first. `registered` are all nodes, by id.
///
/// # Errors
/// `InvalidRequest` when a named node is not registered, or there are fewer nodes than replicas;
/// `CoordinationUnavailable` when there are enough, but some are not seen alive: this node may have started just now.
pub(crate) fn place(
    placement: &Placement,
    partitions: i32,
    registered: &[Candidate],
) -> Result<Vec<Vec<NodeId>>, ReplicationError> {
    match placement {
        Placement::Nodes(nodes) => {
            match nodes.iter().find(|node| registered.iter().all(|known| known.node != **node)) {
                Some(node) => Err(invalid(format!("replicas: node {node} never registered"))),
                None => Ok(rotations(nodes, nodes.len(), partitions)),
            }
        }
        Placement::Factor(factor) => {
            let (leading, following) = living(*factor, registered)?;
            Ok((0..partitions).map(|partition| choose(&leading, &following, *factor, partition)).collect())
        }
    }
}

/// The nodes that can lead, and the other live ones: at least `factor` together.
fn living(
    factor: usize,
    registered: &[Candidate],
) -> Result<(Vec<Candidate>, Vec<Candidate>), ReplicationError> {
    if factor > registered.len() {
        let have = registered.len();
        return Err(invalid(format!(
            "replication_factor {factor} is above the number of registered nodes, {have}"
        )));
    }
    let (live, silent): (Vec<Candidate>, Vec<Candidate>) =
        registered.iter().partition(|c| c.can_lead || c.can_follow);
    if factor > live.len() {
        let silent: Vec<String> = silent.iter().map(|c| c.node.to_string()).collect();
        let (have, silent) = (live.len(), silent.join(", "));
        return Err(ReplicationError::new(
            ErrorCode::CoordinationUnavailable,
            format!(
                "replication_factor {factor} is above the number of live nodes, {have}; not seen alive: node {silent}"
            ),
        ));
    }
    let (leading, following): (Vec<_>, Vec<_>) = live.into_iter().partition(|c| c.can_lead);
    if leading.is_empty() {
        return Err(ReplicationError::new(
            ErrorCode::CoordinationUnavailable,
            "no node with a live leader-svc is seen, so nobody could lead",
        ));
    }
    Ok((leading, following))
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

    /// Of each node: its id, whether its leader-svc and its agent live.
    fn registered(all: &[(i32, bool, bool)]) -> Vec<Candidate> {
        let candidate = |&(node, can_lead, can_follow)| Candidate { node: n(node), can_lead, can_follow };
        all.iter().map(candidate).collect()
    }

    #[test]
    fn named_nodes_take_turns_at_being_preferred() {
        let silent = registered(&[(1, false, false), (2, false, false), (3, false, false)]);
        let placed = place(&Placement::Nodes(vec![n(3), n(1), n(2)]), 4, &silent).unwrap();
        assert_eq!(
            placed,
            [vec![n(3), n(1), n(2)], vec![n(1), n(2), n(3)], vec![n(2), n(3), n(1)], vec![n(3), n(1), n(2)],]
        );
        let error = place(&Placement::Nodes(vec![n(9)]), 1, &silent).unwrap_err();
        assert!(error.message.contains("node 9"));
    }

    #[test]
    fn nodes_that_can_lead_come_first_and_share_the_leading() {
        let live = registered(&[(1, true, true), (2, false, true), (3, true, false), (4, false, false)]);
        let placed = place(&Placement::Factor(3), 2, &live).unwrap();
        assert_eq!(placed, [vec![n(1), n(3), n(2)], vec![n(3), n(1), n(2)]]);
        let placed = place(&Placement::Factor(1), 2, &live).unwrap();
        assert_eq!(placed, [vec![n(1)], vec![n(3)]]);
    }

    #[test]
    fn more_replicas_than_nodes_are_refused_for_good_and_more_than_live_ones_for_now() {
        let some = registered(&[(1, true, true), (2, false, true), (3, false, false), (4, false, false)]);
        let refusal = |factor, nodes: &[Candidate]| {
            let error = place(&Placement::Factor(factor), 1, nodes).unwrap_err();
            (error.code, error.message)
        };
        let (code, message) = refusal(5, &some);
        assert_eq!(code, ErrorCode::InvalidRequest);
        assert!(message.contains("registered nodes, 4"), "{message}");
        let (code, message) = refusal(3, &some);
        assert_eq!(code, ErrorCode::CoordinationUnavailable);
        assert!(message.contains("live nodes, 2; not seen alive: node 3, 4"), "{message}");
        assert_eq!(refusal(1, &registered(&[(2, false, true)])).0, ErrorCode::CoordinationUnavailable);
    }
}
