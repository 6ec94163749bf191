//! A replica whose log cannot be opened, as in a directory that cannot be written: its leader is told, as it is of one that
//! fails later (`partition/failing.rs`).
//!
//! What must hold: without that the leader could tell it from a slow one only after `replica.lag.time.max.ms`, and acks=all
//! would wait for so long. It is told after each attempt, for as long as the record has the replica in the in-sync set, and by
//! the incarnation that the record names: what is on the disk cannot be read. Nothing is acknowledged by it.

use std::time::Duration;

use highwater_protocol::fetch::{FetchPartition, FetchRequest, NO_SESSION, TopicRef};
use highwater_serving::PartitionHost as _;
use highwater_types::{NodeId, Offset, PartitionRecord, Program};
use tokio::time::timeout;

use super::Shared;
use super::open::other_leader;
use crate::leader_endpoint::{Connector as _, LeaderEndPoint as _};

/// How long it may take; the next attempt to open the log tells it again.
const PATIENCE: Duration = Duration::from_secs(1);

/// At how many leaders at once: a data directory that fails has every partition of it fail.
pub(crate) const CONCURRENT_TELLS: usize = 16;

/// Tells the leader that `record` names, if it counts on this replica.
pub(super) async fn tell_leader(shared: &Shared, record: &PartitionRecord) {
    let view = shared.registry.view();
    let record = view.partition(record.id()).map_or(record, |newest| newest);
    let Some(request) = failed(shared, record) else { return };
    let leader = record.leader.and_then(|leader| view.node(leader)?.endpoint(Program::LeaderSvc));
    let Some(endpoint) = leader else { return };
    let told = async {
        // The semaphore is never closed.
        let _turn = shared.telling.acquire().await.ok();
        // An answer holds no records: the size of a batch bounds nothing.
        shared.calls.connect(endpoint).fetch(request, 0, None).await
    };
    if !matches!(timeout(PATIENCE, told).await, Ok(Ok(_))) {
        tracing::debug!(id = ?record.id(), "could not tell the leader that this replica has failed");
    }
}

/// The request that says so; `None` = the leader does not count on this replica.
fn failed(shared: &Shared, record: &PartitionRecord) -> Option<FetchRequest> {
    let node: NodeId = shared.node;
    let (_, epoch) = other_leader(record, node)?;
    let member = record.isr.iter().find(|member| member.node == node)?;
    let partition = FetchPartition {
        incarnation: Some(member.incarnation),
        current_leader_epoch: Some(epoch),
        acknowledged_offset: Some(Offset::ZERO),
        failed: true,
        ..FetchPartition::reading(TopicRef::Id(record.id().topic_id), record.partition, Offset::ZERO, 0)
    };
    Some(FetchRequest {
        cluster: Some(shared.volume.cluster_id.clone()),
        replica: Some(node),
        repair: false,
        session_id: 0,
        session_epoch: NO_SESSION,
        max_wait: Duration::ZERO,
        min_bytes: 0,
        max_bytes: 0,
        partitions: vec![partition],
        forgotten: Vec::new(),
    })
}
