//! What tests of the replica manager share: node 1 of a cluster, and a store that loses answers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use highwater_coordination::interposed::{Interposed, Interposer};
use highwater_coordination::{
    CasOutcome, Coordination, CoordinationError, FileCoordination, FileOptions, Membership, UncleanOrder,
};
use highwater_node::Clocks;
use highwater_serving::{DataDir, FetchPurgatory, Registry};
use highwater_types::{
    ErrorCode, Incarnation, IsrMember, LeaderEpoch, NodeId, PartitionEpoch, PartitionIndex, PartitionRecord,
    Program, ReplicationError, TopicId, TopicIdPartition, TopicProperties, TopicRecord,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stand::{Stood, stand};
use super::{Agents, Peers, Shared};
use crate::partition::PartitionContext;

pub(super) const STAGGER: Duration = Duration::from_millis(50);

/// Loses the answers to the next changes of partitions: before they were made, or after.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) lose_before: AtomicUsize,
    pub(super) lose_after: AtomicUsize,
    pub(super) swaps: AtomicUsize,
    /// A file that cannot be written once a change was made: a directory takes its place.
    pub(super) spoils: OnceLock<PathBuf>,
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl Interposer for Losses {
    async fn swap_partition(
        &self,
        store: &dyn Coordination,
        new: PartitionRecord,
        expected: PartitionEpoch,
    ) -> Result<CasOutcome<PartitionRecord>, CoordinationError> {
        self.swaps.fetch_add(1, Ordering::AcqRel);
        if take_one(&self.lose_before) {
            return Err(CoordinationError::Unknown("lost before".to_owned()));
        }
        let outcome = store.swap_partition(new, expected).await;
        if let Some(file) = self.spoils.get() {
            std::fs::create_dir_all(file).unwrap();
        }
        if take_one(&self.lose_after) {
            return Err(CoordinationError::Unknown("lost after".to_owned()));
        }
        outcome
    }
}

pub(super) struct Bench {
    _dir: tempfile::TempDir,
    pub(super) store: Arc<Interposed<FileCoordination, Losses>>,
    pub(super) shared: Arc<Shared>,
    pub(super) peers: watch::Sender<Peers>,
    pub(super) topic: Arc<TopicRecord>,
}

pub(super) fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

pub(super) fn member(id: i32, incarnation: u64) -> IsrMember {
    IsrMember { node: node(id), incarnation: Incarnation::new(incarnation).unwrap() }
}

/// Nobody has led the only partition of the only topic, of which nodes 1, 2 and 3 have replicas; nothing is known of the others.
pub(super) async fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = FileCoordination::open(&dir.path().join("store"), FileOptions::default()).await.unwrap();
    let store = Arc::new(Interposed { store, between: Losses::default() });
    let coordination: Arc<dyn Coordination> = Arc::clone(&store) as _;
    let directory = DataDir::take(&dir.path().join("data"), node(1), Program::LeaderSvc).await.unwrap();
    let volume = directory.join(&*coordination).await.unwrap();
    let topic = TopicRecord {
        id: TopicId::random(),
        name: "t".parse().unwrap(),
        partitions: 1,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let id = TopicIdPartition::new(topic.id, PartitionIndex::new(0).unwrap());
    let records = vec![PartitionRecord::new(id, vec![node(1), node(2), node(3)])];
    coordination.create_topic(topic.clone(), records).await.unwrap();
    let clocks = Clocks::system();
    let (events, _) = mpsc::unbounded_channel();
    let timeout = Duration::from_secs(3);
    let membership =
        Arc::new(Membership::new(Arc::clone(&coordination), node(1), Program::LeaderSvc, timeout));
    let peers = watch::Sender::new(Peers::default());
    let context = PartitionContext {
        purgatory: Arc::new(FetchPurgatory::new(clocks.monotonic)),
        clocks,
        coordination: Arc::clone(&coordination),
        membership: Arc::clone(&membership),
        events,
        queued_appends: 16,
        runtime: Handle::current(),
        telemetry: highwater_telemetry::Telemetry::off(),
        agents: Agents::of(&peers),
    };
    let shared = Shared {
        node: node(1),
        volume,
        registry: Arc::new(Registry::new(node(1), Program::LeaderSvc, coordination.view())),
        context: Arc::new(context),
        membership,
        replica_lag_time_max: Duration::from_secs(30),
        hw_propagation: Duration::ZERO,
        leadership_stagger: STAGGER,
        opening: Semaphore::new(1),
        borrowing: Semaphore::new(1),
        peers: peers.subscribe(),
        leaving: CancellationToken::new(),
        resigning: TaskTracker::new(),
        stop: CancellationToken::new(),
    };
    Bench { _dir: dir, store, shared: Arc::new(shared), peers, topic: Arc::new(topic) }
}

impl Bench {
    pub(super) fn id(&self) -> TopicIdPartition {
        TopicIdPartition::new(self.topic.id, PartitionIndex::new(0).unwrap())
    }

    pub(super) fn record(&self) -> Arc<PartitionRecord> {
        Arc::clone(self.store.view().borrow().partition(self.id()).unwrap())
    }

    /// Records that `leader` leads in epoch `epoch`.
    pub(super) async fn led_by(&self, leader: i32, epoch: i32, isr: Vec<IsrMember>) {
        let seen = self.record();
        let led = PartitionRecord {
            leader: Some(node(leader)),
            leader_epoch: LeaderEpoch::new(epoch),
            isr,
            ..PartitionRecord::clone(&seen)
        };
        let outcome = self.store.store.swap_partition(led, seen.partition_epoch).await;
        assert!(matches!(outcome, Ok(CasOutcome::Committed(_))), "{outcome:?}");
    }

    pub(super) async fn stand(&self) -> Stood {
        self.stand_by(UncleanOrder::None).await
    }

    pub(super) async fn stand_by(&self, order: UncleanOrder) -> Stood {
        stand(Arc::clone(&self.shared), Arc::clone(&self.topic), self.record(), order).await
    }

    /// Node 1 has led, and node `other` with `incarnation` is in sync; its own entry in the set.
    pub(super) async fn led_with(&self, other: i32, incarnation: u64) -> IsrMember {
        let Stood::Leads(partition) = self.stand().await else { panic!("it leads") };
        let own = self.record().isr[0];
        partition.stop_leading(&ReplicationError::new(ErrorCode::NotLeaderOrFollower, "over"));
        partition.close(Duration::from_secs(1)).await;
        self.led_by(1, 0, vec![own, member(other, incarnation)]).await;
        own
    }

    pub(super) fn is_locked(&self) -> bool {
        self.shared.volume.locks.try_lock(self.id()).unwrap().is_none()
    }
}
