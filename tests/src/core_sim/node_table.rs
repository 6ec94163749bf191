//! The records of nodes, behind the real trait, so that the real rotation of a disk's identity runs on them
//! (`highwater_coordination::rotate_disk_identity`). Partitions and topics are not here: their writes have fates of their
//! own, in `store`.

use std::sync::Arc;

use async_trait::async_trait;
use highwater_coordination::{
    CasOutcome, ClusterView, Coordination, CoordinationError, DiskVerdict, Liveness, ViewChanges,
    ViewPublisher, rotate_disk_identity,
};
use highwater_log::checkpoint::CheckpointFile;
use highwater_log::storage::sim::SimStorage;
use highwater_log::{DiskIdFile, StorageError, scan_data_dir};
use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{
    ClusterId, Incarnation, NodeId, NodeRecord, PartitionEpoch, PartitionRecord, Program, TopicId,
    TopicRecord,
};
use tokio::sync::watch;

use super::node::{Program as Process, Which, data_dir};

/// The records of nodes.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    view: ViewPublisher,
}

#[async_trait]
impl Coordination for NodeTable {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.subscribe()
    }

    async fn ensure_cluster_id(&self, proposed: ClusterId) -> Result<ClusterId, CoordinationError> {
        Ok(proposed)
    }

    async fn create_topic(
        &self,
        _: TopicRecord,
        _: Vec<PartitionRecord>,
    ) -> Result<CasOutcome<TopicRecord>, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    async fn delete_topic(&self, _: TopicId) -> Result<TopicRecord, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    async fn swap_partition(
        &self,
        _: PartitionRecord,
        _: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        Err(CoordinationError::ReadOnly)
    }

    async fn swap_node(
        &self,
        new: NodeRecord,
        expected: u64,
    ) -> Result<CasOutcome<NodeRecord>, CoordinationError> {
        let found = self.view.current().node(new.node).map(|record| NodeRecord::clone(record));
        let current = found.unwrap_or_else(|| NodeRecord::new(new.node));
        if current.version != expected {
            return Ok(CasOutcome::Conflict(current));
        }
        let new = NodeRecord { version: expected + 1, ..new };
        self.view.merge(ViewChanges { nodes: vec![new.clone()], ..ViewChanges::default() });
        Ok(CasOutcome::Committed(new))
    }

    async fn renew_liveness(&self, _: NodeId, _: Program) -> Result<Liveness, CoordinationError> {
        Ok(Liveness::new())
    }

    async fn refresh(&self) -> Result<Arc<ClusterView>, CoordinationError> {
        Ok(self.view.current())
    }
}

/// A start looks at its disk first, as `serving::volume` does: one that is not the disk that the node last ran on gets new
/// incarnations (design.md 6.3). Answers whether the program may go on.
pub(super) fn take_disk(
    table: &NodeTable,
    node: NodeId,
    which: Which,
    process: &Process,
    fresh: &dyn Fn() -> Incarnation,
) -> bool {
    let program = match which {
        Which::LeaderSvc => Program::LeaderSvc,
        Which::Agent => Program::FollowerAgent,
    };
    let Ok(Some(disk)) = DiskIdFile::try_lock(&process.storage, data_dir(), &process.locks) else {
        return false;
    };
    let Ok(identity) = disk.read() else { return false };
    let persist = async |verdict: DiskVerdict, identity: Incarnation| {
        if verdict == DiskVerdict::Foreign && !is_planted(PlantedFault::RestoredDiskStands) {
            renew_incarnations(&process.storage, fresh)?;
        }
        disk.write(identity)
    };
    // Its timer waits for signs of life; here time passes by itself, because nothing else runs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { return false };
    runtime.block_on(rotate_disk_identity(table, node, program, identity, fresh(), persist)).is_ok()
}

fn renew_incarnations(storage: &SimStorage, fresh: &dyn Fn() -> Incarnation) -> Result<(), StorageError> {
    for found in scan_data_dir(storage, data_dir())?.partitions {
        let (mut file, loaded) = CheckpointFile::open(storage, &found.path)?;
        if let Some(mut state) = loaded.into_state() {
            state.incarnation = fresh();
            file.write_durable(&state)?;
        }
    }
    Ok(())
}
