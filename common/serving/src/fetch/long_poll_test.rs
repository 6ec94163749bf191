//! When a fetch is answered, with the clock stopped.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use highwater_node::grpc::Deadline;
use highwater_types::{ErrorCode, NodeId};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::*;
use crate::test_replica::{TestHost, TestReplica, asks, fetch, offset};

struct Bench {
    clock: MonotonicClock,
    purgatory: Arc<FetchPurgatory>,
    layer: LongPollLayer,
}

impl Bench {
    fn new(replicas: &[&Arc<TestReplica>]) -> Self {
        let clock = MonotonicClock::starting_now();
        let purgatory = Arc::new(FetchPurgatory::new(clock));
        let host = Arc::new(TestHost { replicas: replicas.iter().map(|r| Arc::clone(r)).collect() });
        let layer = LongPollLayer::new(host, Arc::clone(&purgatory), clock, Duration::from_secs(60));
        Self { clock, purgatory, layer }
    }

    /// Runs the stage alone: what it would hand to the read.
    fn start(&self, mut fetch: Fetch) -> JoinHandle<Planned> {
        fetch.received = self.clock.now();
        let echo = tower::service_fn(|planned: Planned| async move { Ok::<_, Infallible>(planned) });
        let service = self.layer.layer(echo);
        tokio::spawn(async move {
            match service.oneshot(fetch).await {
                Ok(planned) => planned,
                Err(never) => match never {},
            }
        })
    }

    /// Lets the spawned fetches run until they are parked.
    async fn until_parked(&self, count: usize) {
        while self.purgatory.parked() < count {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_with_nothing_new_is_answered_at_its_max_wait() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let began = Instant::now();
    let planned = bench.start(fetch(500, vec![asks("t", 0, 0)])).await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::TimeUp);
    assert_eq!((began.elapsed(), planned.parked), (Duration::from_millis(500), Duration::from_millis(500)));
    assert!(planned.partitions[0].plan.is_ok(), "the idle path is no error");
    assert_eq!(bench.purgatory.parked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_callers_deadline_ends_the_wait_before_it_fires() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    for deadline_ms in [1_950, 75, 0] {
        let began = Instant::now();
        let mut asked = fetch(30_000, vec![asks("t", 0, 0)]);
        asked.deadline = Some(Deadline::at(began + Duration::from_millis(deadline_ms)));
        let planned = bench.start(asked).await.unwrap();
        assert!(matches!(planned.completion, FetchCompletion::TimeUp | FetchCompletion::NoWait));
        assert_eq!(began.elapsed(), Duration::from_millis(deadline_ms));
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_wakes_a_parked_fetch_at_once() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let parked = bench.start(fetch(30_000, vec![asks("t", 0, 0)]));
    bench.until_parked(1).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    replica.append(100);
    bench.purgatory.wake(replica.id());
    let planned = parked.await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::EnoughBytes);
    assert_eq!(planned.parked, Duration::from_secs(10));
    let (_, plan) = planned.partitions[0].plan.as_ref().unwrap();
    assert_eq!((plan.from, plan.upper), (offset(0), offset(10)), "planned anew after the wait (S22)");
    assert_eq!(replica.arrivals.load(Ordering::Relaxed), 1, "progress is recorded on arrival only (S25)");
}

#[tokio::test(start_paused = true)]
async fn an_append_between_the_check_and_the_registration_is_not_lost() {
    let replica = TestReplica::new("t", 0);
    replica.append_after_next_plan(50);
    let bench = Bench::new(&[&replica]);
    let began = Instant::now();
    let planned = bench.start(fetch(30_000, vec![asks("t", 0, 0)])).await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::EnoughBytes);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn min_bytes_accumulate_over_appends_and_partitions() {
    let (a, b) = (TestReplica::new("t", 0), TestReplica::new("t", 1));
    let bench = Bench::new(&[&a, &b]);
    let mut asked = fetch(30_000, vec![asks("t", 0, 0), asks("t", 1, 0)]);
    asked.request.min_bytes = 4096;
    let parked = bench.start(asked);
    bench.until_parked(1).await;
    for _ in 0..4 {
        a.append(1000);
        bench.purgatory.wake(a.id());
    }
    tokio::task::yield_now().await;
    assert_eq!(bench.purgatory.parked(), 1, "4000 bytes are not 4096");
    b.append(96);
    bench.purgatory.wake(b.id());
    let planned = parked.await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::EnoughBytes);
}

#[tokio::test(start_paused = true)]
async fn one_partition_with_an_error_ends_the_poll_of_all() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let began = Instant::now();
    let planned = bench.start(fetch(30_000, vec![asks("t", 0, 0), asks("nowhere", 0, 0)])).await.unwrap();
    assert_eq!((planned.completion, began.elapsed()), (FetchCompletion::PartitionError, Duration::ZERO));
    assert!(planned.partitions[0].plan.is_ok());
    let error = planned.partitions[1].plan.as_ref().map(|_| ()).unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownTopicOrPartition);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_fails_while_parked_ends_the_poll_with_its_error() {
    let (a, b) = (TestReplica::new("t", 0), TestReplica::new("t", 1));
    let bench = Bench::new(&[&a, &b]);
    let parked = bench.start(fetch(30_000, vec![asks("t", 0, 0), asks("t", 1, 0)]));
    bench.until_parked(1).await;
    b.fail();
    bench.purgatory.wake(b.id());
    let planned = parked.await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::StorageFailed);
    assert!(planned.partitions[0].plan.is_ok() && planned.partitions[1].plan.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_unregisters_its_fetch() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let parked = bench.start(fetch(30_000, vec![asks("t", 0, 0)]));
    bench.until_parked(1).await;
    parked.abort();
    assert!(parked.await.unwrap_err().is_cancelled());
    assert_eq!(bench.purgatory.parked(), 0);
    replica.append(1);
    let probes = replica.probes.load(Ordering::Relaxed);
    bench.purgatory.wake(replica.id());
    assert_eq!(replica.probes.load(Ordering::Relaxed), probes, "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn an_event_of_one_partition_touches_no_fetch_of_another() {
    let replicas: Vec<_> = (0..1_000).map(|p| TestReplica::new("t", p)).collect();
    let bench = Bench::new(&replicas.iter().collect::<Vec<_>>());
    let mut parked: Vec<_> = (0..1_000).map(|p| bench.start(fetch(30_000, vec![asks("t", p, 0)]))).collect();
    bench.until_parked(1_000).await;
    let before: Vec<_> = replicas.iter().map(|r| r.probes.load(Ordering::Relaxed)).collect();
    replicas[700].append(1);
    bench.purgatory.wake(replicas[700].id());
    assert_eq!(parked.swap_remove(700).await.unwrap().completion, FetchCompletion::EnoughBytes);
    let touched = (0..1_000).filter(|i| replicas[*i].probes.load(Ordering::Relaxed) != before[*i]);
    assert_eq!(touched.collect::<Vec<_>>(), [700]);
    assert_eq!(bench.purgatory.parked(), 999);
    bench.purgatory.drain();
    for poll in parked {
        assert_eq!(poll.await.unwrap().completion, FetchCompletion::Draining);
    }
    assert_eq!(bench.purgatory.parked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_follower_parks_while_its_high_watermark_is_the_leaders_and_is_told_of_news() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    replica.append_uncommitted(100);
    let ask = |known: i64| {
        let mut asked = fetch(500, vec![asks("t", 0, 10)]);
        asked.request.replica = NodeId::new(2);
        asked.request.partitions[0].high_watermark = Some(offset(known));
        asked
    };
    let began = Instant::now();
    let parked = bench.start(ask(0));
    bench.until_parked(1).await;
    replica.commit();
    bench.purgatory.wake(replica.id());
    let planned = parked.await.unwrap();
    assert_eq!((planned.completion, began.elapsed()), (FetchCompletion::HighWatermarkNews, Duration::ZERO));
    let (_, plan) = planned.partitions[0].plan.as_ref().unwrap();
    assert_eq!(plan.snapshot.high_watermark, offset(10));
    let idle = bench.start(ask(10)).await.unwrap();
    assert_eq!((idle.completion, began.elapsed()), (FetchCompletion::TimeUp, Duration::from_millis(500)));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_is_not_woken_by_records_above_the_high_watermark() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let parked = bench.start(fetch(500, vec![asks("t", 0, 0)]));
    bench.until_parked(1).await;
    replica.append_uncommitted(100);
    bench.purgatory.wake(replica.id());
    let planned = parked.await.unwrap();
    assert_eq!(planned.completion, FetchCompletion::TimeUp);
    let (_, plan) = planned.partitions[0].plan.as_ref().unwrap();
    assert!(!plan.has_records());
}

#[tokio::test(start_paused = true)]
async fn a_parked_fetch_of_a_follower_is_told_with_its_deadline() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(&[&replica]);
    let mut follower = fetch(500, vec![asks("t", 0, 0)]);
    follower.request.replica = NodeId::new(2);
    let deadline = bench.clock.now().after(Duration::from_millis(500));
    bench.start(follower.clone()).await.unwrap();
    bench.start(fetch(500, vec![asks("t", 0, 0)])).await.unwrap();
    assert_eq!(*replica.parked.lock(), [(NodeId::new(2).unwrap(), deadline)], "a consumer is told to nobody");
    replica.append(100);
    bench.start(follower).await.unwrap();
    assert_eq!(replica.parked.lock().len(), 1, "what is answered at once is not parked");
}
