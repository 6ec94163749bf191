//! Leaderships and in-sync sets over a store that loses answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use highwater_coordination::interposed::{Interposed, Interposer};
use highwater_coordination::{Coordination, FileCoordination, FileOptions, Membership};
use highwater_node::Clocks;
use highwater_protocol::fetch::{FetchPartition, Requester, TopicRef};
use highwater_serving::{DataDir, FetchPurgatory, HostedReplica as _, Registry};
use highwater_types::{
    Incarnation, IsrMember, LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionIndex, Program, TopicId,
    TopicProperties,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Peers;
use super::*;
use crate::partition::PartitionContext;

/// Loses the answers to the next changes of partitions: before they were made, or after.
#[derive(Debug, Default)]
struct Losses {
    lose_before: AtomicUsize,
    lose_after: AtomicUsize,
    swaps: AtomicUsize,
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
        if take_one(&self.lose_after) {
            return Err(CoordinationError::Unknown("lost after".to_owned()));
        }
        outcome
    }
}

struct Bench {
    _dir: tempfile::TempDir,
    store: Arc<Interposed<FileCoordination, Losses>>,
    shared: Arc<Shared>,
    topic: Arc<TopicRecord>,
}

fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

async fn bench() -> Bench {
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
    let records = vec![PartitionRecord::new(id, vec![node(1), node(2)])];
    coordination.create_topic(topic.clone(), records).await.unwrap();
    let clocks = Clocks::system();
    let (events, _) = mpsc::unbounded_channel();
    let context = PartitionContext {
        purgatory: Arc::new(FetchPurgatory::new(clocks.monotonic)),
        clocks,
        coordination: Arc::clone(&coordination),
        events,
        queued_appends: 16,
        runtime: Handle::current(),
        telemetry: highwater_telemetry::Telemetry::off(),
    };
    let timeout = Duration::from_secs(3);
    // Nothing is known of others.
    let (_, peers) = watch::channel(Peers::default());
    let shared = Shared {
        node: node(1),
        volume,
        registry: Arc::new(Registry::new(node(1), Program::LeaderSvc, coordination.view())),
        context: Arc::new(context),
        membership: Arc::new(Membership::new(coordination, node(1), Program::LeaderSvc, timeout)),
        replica_lag_time_max: Duration::from_secs(30),
        hw_propagation: Duration::ZERO,
        leadership_stagger: Duration::ZERO,
        opening: Semaphore::new(1),
        borrowing: Semaphore::new(1),
        peers,
        leaving: CancellationToken::new(),
        resigning: TaskTracker::new(),
        stop: CancellationToken::new(),
    };
    Bench { _dir: dir, store, shared: Arc::new(shared), topic: Arc::new(topic) }
}

impl Bench {
    fn id(&self) -> TopicIdPartition {
        TopicIdPartition::new(self.topic.id, PartitionIndex::new(0).unwrap())
    }

    fn record(&self) -> Arc<PartitionRecord> {
        Arc::clone(self.store.view().borrow().partition(self.id()).unwrap())
    }

    async fn stand(&self) -> Stood {
        stand(Arc::clone(&self.shared), Arc::clone(&self.topic), self.record(), UncleanOrder::None).await
    }

    fn is_locked(&self) -> bool {
        self.shared.volume.locks.try_lock(self.id()).unwrap().is_none()
    }
}

#[tokio::test]
async fn a_leadership_whose_answer_was_lost_is_recognised_and_not_taken_twice() {
    let bench = bench().await;
    bench.store.between.lose_after.store(1, Ordering::Release);
    let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
    assert_eq!(partition.replica().epoch(), LeaderEpoch::FIRST);
    assert_eq!(bench.record().leader_epoch, Some(LeaderEpoch::FIRST), "one leadership, not two");
}

#[tokio::test]
async fn a_write_that_was_lost_on_its_way_is_made_again() {
    let bench = bench().await;
    bench.store.between.lose_before.store(2, Ordering::Release);
    let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
    assert_eq!(partition.replica().epoch(), LeaderEpoch::FIRST);
    assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 3);
}

#[tokio::test]
async fn who_loses_the_leadership_gives_the_log_back() {
    let bench = bench().await;
    let seen = bench.record();
    let member = IsrMember { node: node(2), incarnation: Incarnation::new(7).unwrap() };
    let others = PartitionRecord {
        leader: Some(node(2)),
        leader_epoch: Some(LeaderEpoch::FIRST),
        isr: vec![member],
        ..PartitionRecord::clone(&seen)
    };
    bench.store.store.swap_partition(others, seen.partition_epoch).await.unwrap();
    bench.store.between.lose_before.store(1, Ordering::Release);
    let stood = stand(Arc::clone(&bench.shared), Arc::clone(&bench.topic), seen, UncleanOrder::None).await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    assert!(!bench.is_locked(), "the node's other program can follow now");
}

#[tokio::test]
async fn who_is_not_electable_is_told_what_to_do_and_waits_for_another_record() {
    let bench = bench().await;
    let seen = bench.record();
    let member = IsrMember { node: node(1), incarnation: Incarnation::new(7).unwrap() };
    let others = PartitionRecord {
        leader: Some(node(1)),
        leader_epoch: Some(LeaderEpoch::FIRST),
        isr: vec![member],
        ..PartitionRecord::clone(&seen)
    };
    bench.store.store.swap_partition(others, seen.partition_epoch).await.unwrap();
    let Stood::Ineligible(why) = bench.stand().await else { panic!("another incarnation stood") };
    assert!(why.message.contains("(in the in-sync set: 0000000000000007)"), "{why}");
    assert!(why.message.contains("Start the nodes of the in-sync set"), "{why}");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_topic_that_is_gone_is_not_led() {
    let bench = bench().await;
    let seen = bench.record();
    bench.store.delete_topic(bench.topic.id).await.unwrap();
    let stood = stand(Arc::clone(&bench.shared), Arc::clone(&bench.topic), seen, UncleanOrder::None).await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    assert!(!bench.is_locked());
}

#[tokio::test]
async fn a_log_that_somebody_holds_is_not_stood_with() {
    let bench = bench().await;
    let held = bench.shared.volume.locks.try_lock(bench.id()).unwrap();
    let began = Instant::now();
    let stood = bench.stand().await;
    assert!(matches!(&stood, Stood::Failed(why) if why.code == ErrorCode::ReplicaNotAvailable), "{stood:?}");
    assert!(began.elapsed() >= LOCK_PATIENCE, "it waits a moment for the other program");
    assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 0, "lock first");
    drop(held);
    assert!(matches!(bench.stand().await, Stood::Leads(_)));
}

#[tokio::test]
async fn a_joining_follower_counts_at_once_and_is_proposed_until_the_outcome_is_known() {
    for (before, after) in [(1, 0), (0, 1)] {
        let bench = bench().await;
        let Stood::Leads(partition) = bench.stand().await else { panic!("it leads") };
        bench.store.between.lose_before.store(before, Ordering::Release);
        bench.store.between.lose_after.store(after, Ordering::Release);
        let fetch = FetchPartition {
            topic: TopicRef::Id(bench.topic.id),
            partition: PartitionIndex::new(0).unwrap(),
            incarnation: Incarnation::new(7),
            current_leader_epoch: Some(LeaderEpoch::FIRST),
            fetch_offset: Offset::ZERO,
            acknowledged_offset: Some(Offset::ZERO),
            last_fetched_epoch: None,
            log_start: None,
            high_watermark: None,
            max_bytes: 1 << 20,
            paused: false,
        };
        let now = bench.shared.context.clocks.monotonic.now();
        partition.on_fetch(Requester::Follower(node(2)), &fetch, now).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while partition.replica().isr().len() < 2 {
            assert!(Instant::now() < until, "the core never learns that the follower joined");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(bench.record().isr.len(), 2);
        let epoch = bench.record().partition_epoch;
        assert_eq!(epoch, PartitionEpoch::new(2), "one leadership, one change of the set");
        assert_eq!(bench.store.between.swaps.load(Ordering::Acquire), 3, "the lost one was proposed again");
    }
}

/// As long as it lives the others would wait for it.
#[tokio::test]
async fn a_recorded_leader_that_is_not_electable_gives_the_leadership_to_who_is_in_sync() {
    let bench = bench().await;
    let seen = bench.record();
    let member =
        |id, incarnation| IsrMember { node: node(id), incarnation: Incarnation::new(incarnation).unwrap() };
    let recorded = PartitionRecord {
        leader: Some(node(1)),
        leader_epoch: Some(LeaderEpoch::FIRST),
        isr: vec![member(1, 7), member(2, 8)],
        ..PartitionRecord::clone(&seen)
    };
    bench.store.store.swap_partition(recorded.clone(), seen.partition_epoch).await.unwrap();
    let stood = bench.stand().await;
    assert!(matches!(stood, Stood::Lost), "{stood:?}");
    let record = bench.record();
    assert_eq!((record.leader, record.leader_epoch), (None, Some(LeaderEpoch::FIRST)));
    assert_eq!(record.isr, recorded.isr, "who takes it decides about the set");
    assert!(!bench.is_locked());
}
