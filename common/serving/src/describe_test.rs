//! What is told of the cluster, when, and when nothing is.

use highwater_coordination::{Coordination, FileCoordination, FileOptions};
use highwater_types::{NodeRecord, PartitionIndex, TopicId, TopicIdPartition, TopicProperties};

use super::*;

const SESSION: Duration = Duration::from_millis(300);

struct Bench {
    _dir: tempfile::TempDir,
    store: Arc<dyn Coordination>,
    membership: Arc<Membership>,
    clock: MonotonicClock,
    draining: CancellationToken,
    describer: ClusterDescriber,
}

async fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
    let store: Arc<dyn Coordination> = Arc::new(store);
    let (node, program) = (NodeId::new(1).unwrap(), Program::LeaderSvc);
    let clock = MonotonicClock::starting_now();
    let membership = Arc::new(Membership::new(Arc::clone(&store), node, program, SESSION));
    let draining = CancellationToken::new();
    let describer = ClusterDescriber::new(
        node,
        program,
        store.view(),
        Arc::clone(&membership),
        clock,
        draining.clone(),
        Arc::default(),
    );
    Bench { _dir: dir, store, membership, clock, draining, describer }
}

impl Bench {
    async fn renew(&self) {
        self.membership.renew(|| self.clock.now()).await.unwrap();
    }

    async fn describe(
        &self,
        known: Option<u64>,
        wait_ms: u64,
    ) -> Result<v1::DescribeClusterResponse, ErrorCode> {
        let wait = Duration::from_millis(wait_ms);
        self.describer.describe_cluster(known, wait, None).await.map_err(|error| error.code)
    }
}

#[tokio::test]
async fn a_node_that_cannot_renew_does_not_answer_for_the_cluster() {
    let bench = bench().await;
    assert_eq!(bench.describe(None, 0).await.unwrap_err(), ErrorCode::CoordinationUnavailable);
    bench.renew().await;
    let version = bench.describe(None, 0).await.unwrap().version;
    // Nobody renews: whoever waits learns of it before the wait is over.
    let began = Instant::now();
    let lost = bench.describe(version, 30_000).await.unwrap_err();
    assert_eq!(lost, ErrorCode::CoordinationUnavailable);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    bench.renew().await;
    assert!(bench.describe(None, 0).await.is_ok());
}

#[tokio::test]
async fn a_wait_ends_unchanged_at_its_deadline_or_when_the_program_drains() {
    let bench = bench().await;
    bench.renew().await;
    let version = bench.describe(None, 0).await.unwrap().version;
    let deadline = Some(Deadline::at(Instant::now() + Duration::from_millis(100)));
    let wait = Duration::from_secs(30);
    let same = bench.describer.describe_cluster(version, wait, deadline).await.unwrap();
    assert!(same.unchanged && same.version == version);
    bench.draining.cancel();
    assert!(bench.describe(version, 30_000).await.unwrap().unchanged);
}

#[tokio::test]
async fn the_programs_that_are_seen_alive_are_told() {
    let bench = bench().await;
    for raw in 1..=3 {
        bench.store.swap_node(NodeRecord::new(NodeId::new(raw).unwrap()), 0).await.unwrap();
    }
    bench.store.renew_liveness(NodeId::new(3).unwrap(), Program::FollowerAgent).await.unwrap();
    bench.renew().await;
    let told = bench.describe(None, 0).await.unwrap();
    assert_eq!((told.nodes.len(), told.live_leader_svcs, told.live_follower_agents), (3, vec![1], vec![3]));
}

#[tokio::test]
async fn topics_are_described_in_the_order_asked_with_an_error_for_the_unknown() {
    let bench = bench().await;
    let id = TopicId::random();
    let name = |text: &str| text.parse::<highwater_types::TopicName>().unwrap();
    let record = TopicRecord {
        id,
        name: name("b"),
        partitions: 1,
        properties: TopicProperties::default(),
        deleted: false,
    };
    let partition = TopicIdPartition::new(id, PartitionIndex::new(0).unwrap());
    let partitions = vec![PartitionRecord::new(partition, vec![NodeId::new(1).unwrap()])];
    bench.store.create_topic(record, partitions).await.unwrap();
    let asked = [TopicRef::Name(name("a")), TopicRef::Id(id)];
    let topics = bench.describer.describe_topics(&asked).topics;
    assert_eq!(topics[0].error.as_ref().unwrap().code(), v1::ErrorCode::UnknownTopicOrPartition);
    assert_eq!(topics[0].topic.as_ref().unwrap().topic, "a", "what was asked for");
    let found = topics[1].topic.as_ref().unwrap();
    assert_eq!((found.topic.as_str(), found.partitions.len()), ("b", 1));
    assert_eq!(bench.describer.describe_topics(&[]).topics.len(), 1, "all, when none is named");
}
