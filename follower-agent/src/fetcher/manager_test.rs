//! Which loops there are (Kafka's AbstractFetcherManagerTest, and A9).

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::RequestNumbers;
use super::super::test_support::*;
use super::*;

type Manager = FetcherManager<TestPartition, Arc<SilentLeaders>>;

fn manager(fetchers: u32) -> (Manager, Arc<SilentLeaders>) {
    let clock = MonotonicClock::starting_now();
    let settings = FetchSettings {
        node: node(2),
        cluster: "test-cluster".parse().unwrap(),
        wait_max: Duration::from_millis(500),
        min_bytes: 1,
        response_max_bytes: 10 << 20,
        batch_max_bytes: 1 << 20,
        backoff: BACKOFF,
        gate: gate(None, clock),
        telemetry: highwater_telemetry::Telemetry::off(),
        numbers: Arc::new(RequestNumbers::new(4)),
    };
    let leaders = Arc::new(SilentLeaders::default());
    let fetchers = NonZeroU32::new(fetchers).unwrap();
    (FetcherManager::new(settings, fetchers, clock, Arc::clone(&leaders)), leaders)
}

fn endpoint(text: &str) -> Endpoint {
    text.parse().unwrap()
}

fn keys(manager: &Manager) -> Vec<(i32, String, u32)> {
    let key = |(report, _): (LoopReport, _)| {
        (report.key.leader.get(), report.key.endpoint.to_string(), report.key.fetcher)
    };
    manager.describe().into_iter().map(key).collect()
}

fn placed(manager: &Manager) -> BTreeMap<i32, (i32, u32)> {
    let of_loop = |(report, partitions): (LoopReport, Vec<Arc<TestPartition>>)| {
        let place = (report.key.leader.get(), report.key.fetcher);
        partitions.into_iter().map(move |p| (p.id().partition.get(), place)).collect::<Vec<_>>()
    };
    manager.describe().into_iter().flat_map(of_loop).collect()
}

#[tokio::test]
async fn twenty_four_partitions_of_two_leaders_with_three_fetchers_are_at_most_six_loops() {
    let place_all = || {
        let (manager, leaders) = manager(3);
        for index in 0..24 {
            let leader = 1 + index % 2;
            let address = endpoint(&format!("n{leader}:9400"));
            manager.place(&TestPartition::new(index), node(leader), &address);
        }
        let connections = leaders.connected.lock().len();
        (placed(&manager), keys(&manager), connections)
    };
    let (first, keys, connections) = place_all();
    assert_eq!(first.len(), 24, "every partition is in one loop");
    assert!(keys.len() <= 6, "{keys:?}");
    assert_eq!(connections, keys.len(), "a connection for each loop");
    assert!(first.iter().all(|(index, (leader, _))| *leader == 1 + index % 2), "grouped by leader");
    let used: BTreeSet<_> = first.values().map(|(_, fetcher)| *fetcher).collect();
    assert_eq!(used, BTreeSet::from([0, 1, 2]), "all fetchers have work");
    assert_eq!(place_all().0, first, "the same mapping after a restart");
}

#[tokio::test]
async fn the_same_place_again_changes_nothing_and_another_address_is_another_loop() {
    let (manager, leaders) = manager(1);
    let p0 = TestPartition::new(0);
    manager.place(&p0, node(1), &endpoint("a:9400"));
    manager.place(&p0, node(1), &endpoint("a:9400"));
    assert_eq!((keys(&manager).len(), leaders.connected.lock().len()), (1, 1));
    manager.place(&p0, node(1), &endpoint("b:9400"));
    assert_eq!(keys(&manager), [(1, "b:9400".to_owned(), 0)], "the old loop is idle and ended (S15, S16)");
    assert_eq!(*leaders.connected.lock(), [endpoint("a:9400"), endpoint("b:9400")]);
    assert!(p0.is_attached());
}

#[tokio::test]
async fn a_loop_ends_with_its_last_partition() {
    let (manager, _leaders) = manager(1);
    let (p0, p1) = (TestPartition::new(0), TestPartition::new(1));
    for partition in [&p0, &p1] {
        manager.place(partition, node(1), &endpoint("a:9400"));
    }
    manager.take_out(p0.id());
    manager.take_out(p0.id());
    assert_eq!((keys(&manager).len(), p0.is_attached(), p1.is_attached()), (1, false, true));
    manager.take_out(p1.id());
    assert_eq!(keys(&manager).len(), 0);
}

#[tokio::test]
async fn a_loop_that_died_is_started_anew_with_its_partitions() {
    let (manager, leaders) = manager(1);
    let p0 = TestPartition::new(0);
    manager.place(&p0, node(1), &endpoint("a:9400"));
    manager.revive();
    assert_eq!(leaders.connected.lock().len(), 1, "a living one is left alone");
    let task = manager.loops.lock().running.values().next().unwrap().task.abort_handle();
    task.abort();
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
    manager.revive();
    assert_eq!((leaders.connected.lock().len(), placed(&manager).len(), p0.is_attached()), (2, 1, true));
}

#[tokio::test]
async fn shutting_down_ends_every_loop() {
    let (manager, _leaders) = manager(3);
    let partitions: Vec<_> = (0..9).map(TestPartition::new).collect();
    for partition in &partitions {
        manager.place(partition, node(1), &endpoint("a:9400"));
    }
    manager.shut_down().await;
    assert_eq!(keys(&manager).len(), 0);
    assert!(partitions.iter().all(|partition| !partition.is_attached()));
}
