//! How throttles live and end, on a real store.

use std::path::Path;

use highwater_coordination::{FileCoordination, FileOptions};
use highwater_types::{ByteRate, NodeThrottles, Throttle, ThrottleSide, ThrottledReplicas};

use super::*;

fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn throttle(id: u64, rate: &str, ttl_ms: Option<u64>) -> Throttle {
    Throttle { id, rate: rate.parse().unwrap(), replicas: ThrottledReplicas::All, ttl_ms }
}

async fn store(dir: &Path) -> Arc<dyn Coordination> {
    Arc::new(FileCoordination::open(dir, FileOptions::default()).await.unwrap())
}

async fn set(store: &dyn Coordination, on: i32, throttles: NodeThrottles) {
    update_node(store, node(on), |record| record.throttles = throttles.clone()).await.unwrap();
}

/// The program of a node, with its keeper at work.
struct Program {
    throttle: Arc<ReplicationThrottle>,
    stop: CancellationToken,
}

impl Program {
    fn start(id: i32, side: ThrottleSide, store: Arc<dyn Coordination>) -> Self {
        let clock = MonotonicClock::starting_now();
        let throttle = Arc::new(ReplicationThrottle::new(side, None, clock));
        let stop = CancellationToken::new();
        let keeper = ThrottleKeeper::new(node(id), Arc::clone(&throttle), store, clock, Arc::default());
        tokio::spawn(keeper.run(stop.clone()));
        Self { throttle, stop }
    }

    async fn until_rate(&self, rate: Option<&str>) {
        let rate: Option<ByteRate> = rate.map(|rate| rate.parse().unwrap());
        let reached = async {
            while self.throttle.rate() != rate {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached)
            .await
            .expect("the throttle follows its record");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn each_side_of_a_node_follows_its_own_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let leader = Program::start(1, ThrottleSide::Leader, Arc::clone(&store));
    let agent = Program::start(1, ThrottleSide::Follower, Arc::clone(&store));
    let other = Program::start(2, ThrottleSide::Leader, Arc::clone(&store));
    let both = NodeThrottles {
        leader: Some(throttle(1, "8MB/s", None)),
        follower: Some(throttle(1, "9MB/s", None)),
    };
    set(&*store, 1, both).await;
    leader.until_rate(Some("8MB/s")).await;
    agent.until_rate(Some("9MB/s")).await;
    assert!(!other.throttle.is_set());
    let changed = NodeThrottles { leader: Some(throttle(2, "200MB/s", None)), follower: None };
    set(&*store, 1, changed).await;
    leader.until_rate(Some("200MB/s")).await;
    agent.until_rate(None).await;
    set(&*store, 1, NodeThrottles::NONE).await;
    leader.until_rate(None).await;
}

#[tokio::test]
async fn a_throttle_ends_with_its_time_to_live_and_leaves_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let own = Program::start(1, ThrottleSide::Leader, Arc::clone(&store));
    let began = std::time::Instant::now();
    set(&*store, 1, NodeThrottles { leader: Some(throttle(7, "8MB/s", Some(300))), follower: None }).await;
    own.until_rate(Some("8MB/s")).await;
    own.until_rate(None).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "not before its time");
    until_throttles(&*store, 1, &NodeThrottles::NONE).await;
}

#[tokio::test]
async fn another_program_removes_the_throttle_of_a_node_that_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    set(&*store, 9, NodeThrottles { leader: None, follower: Some(throttle(7, "8MB/s", Some(50))) }).await;
    let _other = Program::start(1, ThrottleSide::Leader, Arc::clone(&store));
    until_throttles(&*store, 9, &NodeThrottles::NONE).await;
}

async fn until_throttles(store: &dyn Coordination, of: i32, wanted: &NodeThrottles) {
    let mut view = store.view();
    let is_there =
        view.wait_for(|view| view.node(node(of)).is_some_and(|record| record.throttles == *wanted));
    drop(tokio::time::timeout(Duration::from_secs(10), is_there).await.expect("the record changes").unwrap());
}

#[test]
fn a_life_begins_when_the_throttle_is_first_seen_and_a_later_one_has_its_own() {
    let at = MonotonicTime::from_millis;
    let publisher = highwater_coordination::ViewPublisher::default();
    let see = |version, leader| {
        let throttles = NodeThrottles { leader, follower: None };
        let record =
            highwater_types::NodeRecord { version, throttles, ..highwater_types::NodeRecord::new(node(1)) };
        publisher.merge(highwater_coordination::ViewChanges { nodes: vec![record], ..Default::default() });
        publisher.current()
    };
    let lives = ThrottleLives::default();
    lives.observe(&see(1, Some(throttle(7, "8MB/s", Some(1_000)))), at(500));
    lives.observe(&see(2, Some(throttle(7, "8MB/s", Some(1_000)))), at(900));
    assert_eq!(lives.next_end(at(900)), Some(at(1_500)), "other changes of the record do not prolong it");
    let left =
        |id, now| lives.left(node(1), ThrottleSide::Leader, &throttle(id, "8MB/s", Some(1_000)), at(now));
    assert_eq!(left(7, 900), Some(Duration::from_millis(600)));
    assert_eq!(left(7, 1_600), Some(Duration::ZERO));
    assert_eq!(left(8, 900), Some(Duration::from_secs(1)), "not seen yet: its whole life");
    assert!(lives.over(at(1_499)).is_empty());
    assert_eq!(lives.over(at(1_500)), [(node(1), ThrottleSide::Leader, 7)]);
    lives.observe(&see(3, Some(throttle(8, "8MB/s", Some(1_000)))), at(1_500));
    assert!(lives.over(at(1_500)).is_empty(), "set again: another life");
    lives.observe(&see(4, Some(throttle(9, "8MB/s", None))), at(2_000));
    assert_eq!(lives.next_end(at(2_000)), None, "until it is cleared");
    lives.observe(&see(5, None), at(2_100));
    assert!(lives.is_empty());
}

/// A program that replicates at once would go without it for the time until its keeper runs.
#[tokio::test]
async fn what_is_recorded_holds_before_the_keeper_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path()).await;
    let throttles = NodeThrottles { follower: Some(throttle(1, "1MB/s", None)), ..NodeThrottles::default() };
    set(&*store, 1, throttles).await;
    let clock = MonotonicClock::starting_now();
    let own = Arc::new(ReplicationThrottle::new(ThrottleSide::Follower, None, clock));
    let _keeper = ThrottleKeeper::new(node(1), Arc::clone(&own), store, clock, Arc::default());
    assert_eq!(own.rate(), Some("1MB/s".parse().unwrap()));
}
