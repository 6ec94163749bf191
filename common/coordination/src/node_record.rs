//! Changes of a node's record: registering addresses, and rotating the identity of its disk (design.md 6.3).
//!
//! What must hold: every change is a compare-and-swap on the version that it was derived from; retries are bounded; a
//! disk that is not the node's own is not taken into use while the node runs on its own one.

use std::fmt;
use std::time::Duration;

use highwater_types::{Endpoint, Incarnation, NodeId, NodeRecord, Program};

use crate::{CasOutcome, Coordination, CoordinationError, Liveness};

/// How often a change is derived anew from the record that stood in its way. Only the node's own two programs and, on
/// their behalf, a leader-svc write it, so more conflicts in a row than this mean two nodes of one id.
const ATTEMPTS_MAX: u32 = 16;

/// How long a foreign disk's start watches for a sign of life of its node: several renewals at the default session timeout.
const RUNNING_WATCH: Duration = Duration::from_secs(2);

/// Changes the record of `node` by `change`, creating it if there is none. Writes nothing when `change` leaves it as it
/// is. `change` may be called several times.
///
/// # Errors
/// As [`Coordination::swap_node`]; after an unknown outcome the caller may simply call again, if `change` sets values
/// rather than counts.
pub async fn update_node(
    coordination: &dyn Coordination,
    node: NodeId,
    mut change: impl FnMut(&mut NodeRecord) + Send,
) -> Result<NodeRecord, CoordinationError> {
    let seen = coordination.view().borrow().node(node).cloned();
    let mut current = seen.map_or_else(|| NodeRecord::new(node), |record| NodeRecord::clone(&record));
    for _ in 0..ATTEMPTS_MAX {
        let mut next = current.clone();
        change(&mut next);
        if next == current && current.version > 0 {
            return Ok(current);
        }
        match coordination.swap_node(next, current.version).await? {
            CasOutcome::Committed(record) => return Ok(record),
            CasOutcome::Conflict(record) => current = record,
        }
    }
    Err(CoordinationError::Unavailable(format!(
        "the record of node {node} changed {ATTEMPTS_MAX} times in a row; do two nodes use this id?"
    )))
}

/// Registers where `program` of `node` is reached.
///
/// # Errors
/// As [`update_node`].
pub async fn register_endpoint(
    coordination: &dyn Coordination,
    node: NodeId,
    program: Program,
    endpoint: &Endpoint,
) -> Result<NodeRecord, CoordinationError> {
    update_node(coordination, node, |record| match program {
        Program::LeaderSvc => record.leader_svc = Some(endpoint.clone()),
        Program::FollowerAgent => record.follower_agent = Some(endpoint.clone()),
    })
    .await
}

/// What the disk of a starting node turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskVerdict {
    /// The node never ran on any disk, and the disk carries no identity.
    Fresh,
    /// It is the disk that the node last ran on.
    Known,
    /// It is another disk, or none is left of the one it last ran on, or it was restored from a copy: acknowledged bytes
    /// may be gone, so every incarnation on it must be renewed, durably, before the rotation goes on.
    Foreign,
}

/// A start of a node's program on a disk that was judged and has its new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// What the disk turned out to be.
    pub verdict: DiskVerdict,
    /// The number of this start. It is greater than that of every start before on the same disk, of either program: it is the
    /// version of the node's record, and a store that was set back in time makes the disk foreign.
    pub start: u64,
}

/// Why the identity of a disk was not rotated.
#[derive(Debug)]
pub enum RotationError<E> {
    /// The store failed. Starting again is always safe: whichever steps were done, the verdict will be the same or stricter.
    Coordination(CoordinationError),
    /// The disk failed.
    Disk(E),
    /// Another start of this node rotated at the same time.
    Overtaken,
    /// The disk is not the one that the node last ran on, and the node runs: another process uses its id. Nothing was
    /// changed, neither in the store nor on the disk.
    Running(NodeId),
    /// The disk carries an identity, and the store has no record of the node: it is not the store that the node last ran
    /// with, or it came back empty. Nothing was changed, neither in the store nor on the disk.
    OtherStore(NodeId),
}

impl<E: fmt::Display> fmt::Display for RotationError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordination(error) => write!(f, "rotate the disk identity: {error}"),
            Self::Disk(error) => write!(f, "rotate the disk identity: {error}"),
            Self::Overtaken => {
                f.write_str("rotate the disk identity: another start of this node did so just now")
            }
            Self::Running(node) => write!(
                f,
                "node {node} runs, and on another data directory than this one: is node.id right, and do both programs of \
                 the node use the same data.dir?"
            ),
            Self::OtherStore(node) => write!(
                f,
                "this data directory was used by a node, and the coordination store has never seen node {node}: is \
                 coordination right? A store that was lost has to be restored; to begin a new cluster, use a new data.dir"
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for RotationError<E> {}

impl<E> From<CoordinationError> for RotationError<E> {
    fn from(error: CoordinationError) -> Self {
        Self::Coordination(error)
    }
}

/// Judges the disk of a starting node and gives it a new identity, so that a copy of it made before this start is found
/// out at its next use (design.md 6.3): next = `fresh` in the store; `persist`; current = next in the store. Only after
/// that may the node fetch or stand. The caller holds the lock of the disk's identity file throughout.
///
/// `on_disk` is what the file holds. `persist` gets the verdict and the new identity: it first renews every incarnation if
/// the verdict is [`DiskVerdict::Foreign`], then writes the identity, both durably. In this order, because a disk that
/// carries the new identity passes as known after a crash.
///
/// A foreign disk is refused while a program of the node shows signs of life: were a mistaken start to take the identity
/// over, the node that runs could not lead after its next restart. A used disk is refused where the store does not know
/// the node, for the same reason.
///
/// # Errors
/// The step that failed; the start is to be tried again from the beginning.
pub async fn rotate_disk_identity<E>(
    coordination: &dyn Coordination,
    node: NodeId,
    program: Program,
    on_disk: Option<Incarnation>,
    fresh: Incarnation,
    persist: impl AsyncFnOnce(DiskVerdict, Incarnation) -> Result<(), E>,
) -> Result<Rotation, RotationError<E>> {
    // The view may be old; an old `current` would make a good disk look foreign, which costs a full copy.
    let view = coordination.refresh().await?;
    if view.node(node).is_none() && on_disk.is_some() {
        return Err(RotationError::OtherStore(node));
    }
    let looks_foreign = view.node(node).is_some_and(|record| judge(record, on_disk) == DiskVerdict::Foreign);
    if looks_foreign && is_running(coordination, node, program).await? {
        return Err(RotationError::Running(node));
    }
    let mut verdict = DiskVerdict::Foreign;
    update_node(coordination, node, |record| {
        verdict = judge(record, on_disk);
        record.disk_next = Some(fresh);
    })
    .await?;
    persist(verdict, fresh).await.map_err(RotationError::Disk)?;
    let record = update_node(coordination, node, |record| {
        if record.disk_next == Some(fresh) {
            record.disk_current = Some(fresh);
            record.disk_next = None;
        }
    })
    .await?;
    if record.disk_current != Some(fresh) {
        return Err(RotationError::Overtaken);
    }
    debug_assert!(
        record.version > view.node(node).map_or(0, |before| before.version),
        "each start is a change"
    );
    Ok(Rotation { verdict, start: record.version })
}

/// Whether anybody but the caller, `program` of `node`, raises the counters of the node.
async fn is_running(
    coordination: &dyn Coordination,
    node: NodeId,
    program: Program,
) -> Result<bool, CoordinationError> {
    let before = coordination.renew_liveness(node, program).await?;
    tokio::time::sleep(RUNNING_WATCH).await;
    let after = coordination.renew_liveness(node, program).await?;
    let raised = |of: Program| {
        let counter = |seen: &Liveness| seen.get(&(node, of)).copied().unwrap_or_default();
        counter(&after).saturating_sub(counter(&before))
    };
    // The caller raised its own counter once in between.
    Ok([Program::LeaderSvc, Program::FollowerAgent]
        .into_iter()
        .any(|of| raised(of) > u64::from(of == program)))
}

fn judge(record: &NodeRecord, on_disk: Option<Incarnation>) -> DiskVerdict {
    match (record.disk_current, on_disk) {
        // Without a current identity no rotation was ever finished, so the node never fetched or stood.
        (None, None) => DiskVerdict::Fresh,
        (_, Some(id)) if [record.disk_current, record.disk_next].contains(&Some(id)) => DiskVerdict::Known,
        (_, _) => DiskVerdict::Foreign,
    }
}

#[cfg(test)]
#[path = "node_record_test.rs"]
mod tests;
