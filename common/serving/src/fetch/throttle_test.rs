//! Whom the throttle leaves out, for how long, and how fast what it lets through is; with the clock stopped.

use bytes::Bytes;
use highwater_protocol::fetch::{self, FetchResponse};
use highwater_telemetry::Telemetry;
use highwater_telemetry::names::{attribute, event, metric, span};
use highwater_types::{MonotonicTime, Offset, Throttle as Setting, ThrottleSide};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_test::mock::{self, Handle, Mock};

use super::*;
use crate::FetchPurgatory;
use crate::fetch::{LongPoll, LongPollLayer, Read, ReadBounds};
use crate::observe::{CallSpan, FetchAsked, FetchObserver, throttled};
use crate::test_replica::{BATCH, TestHost, TestReplica, asks, fetch, offset};

const MB: u64 = 1_000_000;

fn follower(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn setting(rate: &str, replicas: &str) -> Setting {
    Setting { id: 1, rate: rate.parse().unwrap(), replicas: replicas.parse().unwrap(), ttl_ms: None }
}

type Stack = Throttle<LongPoll<Charge<Read>>>;

/// A leader's throttle over these replicas.
struct Bench {
    clock: MonotonicClock,
    host: Arc<TestHost>,
    throttle: Arc<ReplicationThrottle>,
}

impl Bench {
    fn new(rate: Option<&str>, replicas: &[&Arc<TestReplica>]) -> Self {
        let clock = MonotonicClock::starting_now();
        let throttle = Arc::new(ReplicationThrottle::new(ThrottleSide::Leader, None, clock));
        throttle.set(rate.map(|rate| setting(rate, "*")).as_ref());
        let host = Arc::new(TestHost { replicas: replicas.iter().map(|r| Arc::clone(r)).collect() });
        Self { clock, host, throttle }
    }

    /// Uses up what the quota has, so that it pauses for so long.
    fn exhaust(&self, pause: Duration) {
        let mut all = self.throttle.reserve(u64::MAX);
        all.used(all.bytes());
        drop(all);
        let owed = pause.saturating_sub(self.throttle.pause());
        let mut more = self.throttle.reserve(0);
        more.used(self.throttle.rate().unwrap().bytes_in(owed));
        drop(more);
        assert_eq!(self.throttle.pause(), pause);
    }

    fn layer(&self) -> ThrottleLayer {
        ThrottleLayer::new(Arc::clone(&self.host) as _, Arc::clone(&self.throttle), self.clock)
    }

    /// The layer over a service that the test plays.
    fn over_mock(&self) -> (Throttle<Mock<Fetch, Fetched>>, Handle<Fetch, Fetched>) {
        let (mock, handle) = mock::pair();
        (self.layer().layer(mock), handle)
    }

    /// All stages of a leader, but for sessions and admission.
    fn stack(&self) -> Stack {
        self.stack_over(&Arc::new(FetchPurgatory::new(self.clock)))
    }

    fn stack_over(&self, purgatory: &Arc<FetchPurgatory>) -> Stack {
        let bounds = ReadBounds { answer_bytes: 64 << 20, concurrent_reads: 4 };
        let max_wait = Duration::from_secs(60);
        ServiceBuilder::new()
            .layer(self.layer())
            .layer(LongPollLayer::new(
                Arc::clone(&self.host) as _,
                Arc::clone(purgatory),
                self.clock,
                max_wait,
            ))
            .layer(ChargeLayer::new(Arc::clone(&self.throttle)))
            .service(Read::new(self.clock, bounds))
    }

    fn asks(&self, by: i32, wait_ms: u64, partitions: Vec<FetchPartition>) -> Fetch {
        let mut asked = fetch(wait_ms, partitions);
        asked.received = self.clock.now();
        asked.request.replica = NodeId::new(by);
        asked
    }
}

fn answered(completion: FetchCompletion, bytes: usize) -> Fetched {
    let at = MonotonicTime::ZERO;
    let snapshot =
        fetch::Snapshot { high_watermark: Offset::ZERO, log_start: Offset::ZERO, log_end: Offset::ZERO };
    let found = fetch::Fetched { records: Bytes::from(vec![0; bytes]), ..fetch::Fetched::empty(snapshot) };
    let partition = highwater_types::PartitionIndex::new(0).unwrap();
    let response = FetchResponse {
        session_id: 0,
        received: at,
        answered: at,
        throttle: Duration::ZERO,
        throttle_reason: None,
        partitions: vec![PartitionResult {
            topic: None,
            topic_id: None,
            partition,
            outcome: Ok(found),
            lost: Vec::new(),
        }],
    };
    let waited = Duration::ZERO;
    Fetched { response, completion, parked: waited, held: waited, reading: at, admitted: None }
}

fn spawn<S>(service: S, fetch: Fetch) -> JoinHandle<Fetched>
where
    S: Service<Fetch, Response = Fetched> + Send + 'static,
    S::Future: Send,
    S::Error: std::fmt::Debug,
{
    tokio::spawn(async move { service.oneshot(fetch).await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn a_lagging_replica_is_left_out_and_one_in_sync_and_one_that_is_not_listed_are_not() {
    let (lagging, in_sync, other) =
        (TestReplica::new("t", 0), TestReplica::new("t", 1), TestReplica::new("o", 0));
    in_sync.join(follower(2));
    let bench = Bench::new(None, &[&lagging, &in_sync, &other]);
    bench.throttle.set(Some(&setting("1MB/s", "t")));
    bench.exhaust(Duration::from_secs(3));
    let (service, mut handle) = bench.over_mock();
    let partitions = vec![asks("t", 0, 0), asks("t", 1, 0), asks("o", 0, 0), asks("nowhere", 0, 0)];
    let call = spawn(service, bench.asks(2, 500, partitions));
    let (asked, reply) = handle.next_request().await.unwrap();
    use Metering::{Counted, Free, Withheld};
    assert_eq!(asked.metering, [Withheld, Counted, Free, Free], "S66, S67");
    reply.send_response(answered(FetchCompletion::EnoughBytes, 10));
    let response = call.await.unwrap().response;
    assert_eq!(response.throttle, Duration::from_secs(3));
    assert_eq!(response.throttle_reason, Some(ThrottleReason::ReplicationQuota));
    assert!(bench.throttle.holds_back(follower(2), crate::HostedReplica::id(&*lagging)));
    assert!(!bench.throttle.holds_back(follower(2), crate::HostedReplica::id(&*in_sync)));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_passes_and_so_does_everybody_without_a_throttle() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_secs(3));
    let consumer = fetch(500, vec![asks("t", 0, 0)]);
    for asked in [consumer, bench.asks(2, 500, vec![asks("t", 0, 0)])] {
        let (service, mut handle) = bench.over_mock();
        let call = spawn(service, asked);
        let (asked, reply) = handle.next_request().await.unwrap();
        assert!(asked.metering.is_empty(), "nothing is decided for it");
        assert_eq!(asked.request.max_wait, Duration::from_millis(500));
        reply.send_response(answered(FetchCompletion::EnoughBytes, 10));
        assert_eq!(call.await.unwrap().response.throttle_reason, None);
        bench.throttle.set(None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_of_throttled_partitions_goes_on_as_soon_as_the_quota_does() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_millis(700));
    let (service, mut handle) = bench.over_mock();
    let began = Instant::now();
    let call = spawn(service, bench.asks(2, 2_000, vec![asks("t", 0, 0)]));
    let mut recorded = Vec::new();
    for (wait_ms, metering) in
        [(500, Metering::Withheld), (200, Metering::Withheld), (1_300, Metering::Metered)]
    {
        let (asked, reply) = handle.next_request().await.unwrap();
        assert_eq!((asked.request.max_wait, asked.metering[0]), (Duration::from_millis(wait_ms), metering));
        recorded.push(asked.recorded);
        if metering == Metering::Withheld {
            tokio::time::advance(asked.request.max_wait).await;
            reply.send_response(answered(FetchCompletion::TimeUp, 0));
        } else {
            reply.send_response(answered(FetchCompletion::EnoughBytes, 100));
        }
    }
    assert_eq!(recorded, [false, true, true], "progress is recorded on arrival only (S25)");
    assert_eq!(call.await.unwrap().completion, FetchCompletion::EnoughBytes);
    assert_eq!(began.elapsed(), Duration::from_millis(700));
}

#[tokio::test(start_paused = true)]
async fn a_fetch_of_throttled_partitions_only_stays_parked_up_to_its_max_wait() {
    let replica = TestReplica::new("t", 0);
    replica.append(1_000);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_secs(60));
    let began = Instant::now();
    let fetched = spawn(bench.stack(), bench.asks(2, 2_000, vec![asks("t", 0, 0)])).await.unwrap();
    assert_eq!((fetched.completion, began.elapsed()), (FetchCompletion::TimeUp, Duration::from_secs(2)));
    assert_eq!((fetched.parked, fetched.held), (Duration::from_secs(2), Duration::from_secs(2)));
    assert_eq!(fetched.response.throttle, Duration::from_secs(58));
    assert_eq!(replica.arrivals.load(std::sync::atomic::Ordering::Relaxed), 1, "S25");
}

/// The parts of a fetch as a trace shows them: what the throttle took belongs to the park and not to the read.
#[tokio::test(start_paused = true)]
async fn the_read_begins_when_the_throttle_lets_go_and_not_before() {
    let replica = TestReplica::new("t", 0);
    replica.append(1_000);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_millis(700));
    let asked = bench.asks(2, 2_000, vec![asks("t", 0, 0)]);
    let received = asked.received;
    let fetched = spawn(bench.stack(), asked).await.unwrap();
    assert_eq!((sizes(&fetched), fetched.completion), (vec![1_000], FetchCompletion::EnoughBytes));
    let let_go = received.after(Duration::from_millis(700));
    assert_eq!((fetched.park(), fetched.read()), (received..let_go, let_go..let_go));
    assert_eq!(fetched.held, Duration::from_millis(700));
    the_trace_shows_one_after_the_other(&bench, &fetched);
}

fn the_trace_shows_one_after_the_other(bench: &Bench, fetched: &Fetched) {
    let (telemetry, mut kept) = Telemetry::kept();
    let asked = FetchAsked::by(&bench.asks(2, 2_000, Vec::new()).request);
    let call = CallSpan(telemetry.tracer().begin(None));
    let notes =
        FetchObserver::new(&telemetry, bench.clock).answered(call, asked, fetched).expect("it is traced");
    let [park, read] = <[_; 2]>::try_from(kept.spans()).expect("two parts");
    assert_eq!((park.name.as_str(), read.name.as_str()), (span::PARK, span::READ));
    assert_eq!(park.times.1.duration_since(park.times.0).unwrap(), Duration::from_millis(700));
    assert_eq!(read.times, (park.times.1, park.times.1), "after the park, and at once");
    let (name, at, about) = notes.event.expect("the throttle is told");
    assert_eq!((name, at), (event::THROTTLE, fetched.park().end));
    assert_eq!(about, throttled(ThrottleSide::Leader, Duration::from_millis(700)));
    let seconds = kept.counted(metric::THROTTLE, &[(attribute::THROTTLE_SIDE, "leader")]);
    assert_eq!(Duration::from_secs_f64(seconds), Duration::from_millis(700));
}

#[tokio::test(start_paused = true)]
async fn what_is_waited_for_after_the_throttle_let_go_is_no_time_of_the_throttle() {
    let replica = TestReplica::new("t", 0);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_millis(300));
    let purgatory = Arc::new(FetchPurgatory::new(bench.clock));
    let service = bench.stack_over(&purgatory);
    let asked = bench.asks(2, 2_000, vec![asks("t", 0, 0)]);
    let received = asked.received;
    let call = spawn(service, asked);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    replica.append(1_000);
    purgatory.wake(crate::HostedReplica::id(&*replica));
    let fetched = call.await.unwrap();
    assert_eq!(fetched.held, Duration::from_millis(300));
    assert_eq!(fetched.park(), received..received.after(Duration::from_secs(1)));
    assert_eq!(fetched.read().start, fetched.park().end);
}

#[tokio::test(start_paused = true)]
async fn a_callers_deadline_ends_a_throttled_wait_with_an_answer() {
    let replica = TestReplica::new("t", 0);
    replica.append(1_000);
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    bench.exhaust(Duration::from_secs(60));
    let began = Instant::now();
    let mut asked = bench.asks(2, 30_000, vec![asks("t", 0, 0)]);
    asked.deadline = Some(highwater_node::grpc::Deadline::at(began + Duration::from_millis(1_234)));
    let fetched = spawn(bench.stack(), asked).await.unwrap();
    assert_eq!(
        (fetched.completion, began.elapsed()),
        (FetchCompletion::TimeUp, Duration::from_millis(1_234))
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_in_sync_reads_on_past_its_throttled_neighbour() {
    let (lagging, in_sync) = (TestReplica::new("t", 0), TestReplica::new("t", 1));
    lagging.append(1_000);
    in_sync.append(70);
    in_sync.join(follower(2));
    let bench = Bench::new(Some("1MB/s"), &[&lagging, &in_sync]);
    bench.exhaust(Duration::from_secs(60));
    let began = Instant::now();
    let asked = bench.asks(2, 2_000, vec![asks("t", 0, 0), asks("t", 1, 0)]);
    let fetched = spawn(bench.stack(), asked).await.unwrap();
    assert_eq!(sizes(&fetched), [0, 70]);
    assert_eq!(began.elapsed(), Duration::ZERO);
    let consumer = spawn(bench.stack(), fetch(0, vec![asks("t", 0, 0)])).await.unwrap();
    assert_eq!(sizes(&consumer), [1_000], "a consumer is never held back");
}

#[tokio::test(start_paused = true)]
async fn who_comes_too_late_for_what_was_left_waits_for_more_instead_of_getting_nothing() {
    let replica = TestReplica::new("t", 0);
    (0..1_000).for_each(|_| replica.append(1_000));
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    let service = bench.stack();
    let both = [2, 3].map(|by| spawn(service.clone(), bench.asks(by, 5_000, vec![asks("t", 0, 0)])));
    let began = Instant::now();
    let mut got = Vec::new();
    for call in both {
        got.push((sizes(&call.await.unwrap())[0], began.elapsed().as_millis()));
    }
    got.sort_unstable_by_key(|(_, at)| *at);
    assert_eq!(got, [(250_000, 0), (250_000, 250)]);
}

fn sizes(fetched: &Fetched) -> Vec<usize> {
    fetched.response.partitions.iter().map(|p| p.outcome.as_ref().map_or(0, |f| f.records.len())).collect()
}

/// A follower that catches up through all stages, and when it got how much.
async fn catch_up<S>(bench: &Bench, by: i32, service: S, until: Offset) -> Vec<(Duration, u64)>
where
    S: Service<Fetch, Response = Fetched, Error = std::convert::Infallible> + Clone,
{
    let began = Instant::now();
    let (mut from, mut got) = (Offset::ZERO, Vec::new());
    while from < until {
        let asked = bench.asks(by, 500, vec![asks("t", 0, from.get())]);
        let Ok(fetched) = service.clone().oneshot(asked).await;
        let bytes = sizes(&fetched)[0];
        from = offset(from.get() + i64::try_from(bytes / BATCH_BYTES).unwrap() * BATCH);
        got.push((began.elapsed(), bytes as u64));
        // A round trip, and what a follower needs before it asks again.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    got
}

const BATCH_BYTES: usize = 64 << 10;

fn most_in(span: Duration, got: &[(Duration, u64)]) -> u64 {
    let within = |from: Duration| got.iter().filter(move |(at, _)| *at >= from && *at < from + span);
    got.iter().map(|(from, _)| within(*from).map(|(_, bytes)| bytes).sum()).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn a_gibibyte_at_fifty_megabytes_a_second_keeps_the_rate_and_another_holds_within_a_second() {
    let replica = TestReplica::new("t", 0);
    let batches = (1 << 30) / BATCH_BYTES;
    (0..batches).for_each(|_| replica.append(BATCH_BYTES));
    let end = offset(i64::try_from(batches).unwrap() * BATCH);
    let bench = Bench::new(Some("50MB/s"), &[&replica]);
    let service = bench.stack();

    let got = catch_up(&bench, 2, service.clone(), end).await;
    let (took, moved) = (got.last().unwrap().0, got.iter().map(|(_, bytes)| bytes).sum::<u64>());
    assert_eq!(moved, 1 << 30);
    let per_second = moved as f64 / took.as_secs_f64();
    assert!((45e6..=52.5e6).contains(&per_second), "{per_second} bytes a second");
    let most = most_in(Duration::from_secs(10), &got);
    assert!(most <= 525 * MB, "{most} bytes in ten seconds");

    // Half a second of it owed, then another rate.
    let changed = Instant::now();
    bench.throttle.set(Some(&setting("200MB/s", "*")));
    let got = catch_up(&bench, 3, service, end).await;
    let first_second = most_in(Duration::from_secs(1), &got[..got.len().min(400)]);
    assert!(
        first_second >= 180 * MB,
        "{first_second} bytes in a second, {:?} after the change",
        changed.elapsed()
    );
    let per_second = (1_u64 << 30) as f64 / got.last().unwrap().0.as_secs_f64();
    assert!((180e6..=215e6).contains(&per_second), "{per_second} bytes a second");
}

/// KAFKA-6937 of cases.md F: a record a second to a partition in sync, while its neighbour on the same channel has 10 MB to
/// catch up at 100,000 bytes a second; both are listed.
#[tokio::test(start_paused = true)]
async fn a_record_of_a_replica_in_sync_arrives_at_once_while_its_neighbour_moves_at_the_rate() {
    const SECONDS: i64 = 60;
    /// What the follower needs before it asks again.
    const BETWEEN: Duration = Duration::from_millis(3);
    let (in_sync, lagging) = (TestReplica::new("p", 0), TestReplica::new("p", 1));
    in_sync.join(follower(2));
    (0..2_000).for_each(|_| lagging.append(5_000));
    let bench = Bench::new(Some("100kB/s"), &[&in_sync, &lagging]);
    let purgatory = Arc::new(FetchPurgatory::new(bench.clock));
    let (service, began) = (bench.stack_over(&purgatory), Instant::now());
    let records = Arc::clone(&in_sync);
    tokio::spawn(async move {
        for second in 1..=SECONDS {
            tokio::time::sleep_until(began + Duration::from_secs(second.unsigned_abs())).await;
            records.append(100);
            purgatory.wake(crate::HostedReplica::id(&*records));
        }
    });
    let (mut from, mut arrived, mut moved) = ([0, 0], Vec::new(), Vec::new());
    while arrived.len() < usize::try_from(SECONDS).unwrap() {
        let asked = bench.asks(2, 500, vec![asks("p", 0, from[0]), asks("p", 1, from[1])]);
        let fetched = service.clone().oneshot(asked).await.unwrap();
        let sizes = sizes(&fetched);
        if sizes[0] > 0 {
            let (appended, now) = (Duration::from_secs(arrived.len() as u64 + 1), began.elapsed());
            arrived.push(now - appended);
        }
        moved.push((began.elapsed(), sizes[1] as u64));
        for (from, (bytes, batch)) in from.iter_mut().zip(sizes.iter().zip([100, 5_000])) {
            *from += i64::try_from(bytes / batch).unwrap() * BATCH;
        }
        tokio::time::sleep(BETWEEN).await;
    }
    let longest = arrived.iter().max().unwrap();
    assert!(*longest <= BETWEEN, "the case allows 100 ms: {arrived:?}");
    for second in 0..=30 {
        let span = Duration::from_secs(second)..Duration::from_secs(second + 30);
        let bytes: u64 = moved.iter().filter(|(at, _)| span.contains(at)).map(|(_, bytes)| bytes).sum();
        assert!((2_700_000..=3_300_000).contains(&bytes), "{bytes} bytes in {span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_three_megabytes_gets_through_under_one_megabyte_a_second() {
    let replica = TestReplica::new("t", 0);
    (0..4).for_each(|_| replica.append(3_000_000));
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    let service = bench.stack();
    let began = Instant::now();
    for (batch, at_ms) in [0, 3_000, 6_000, 9_000].into_iter().enumerate() {
        let from = i64::try_from(batch).unwrap() * BATCH;
        let mut fetched =
            service.clone().oneshot(bench.asks(2, 500, vec![asks("t", 0, from)])).await.unwrap();
        while sizes(&fetched) == [0] {
            fetched = service.clone().oneshot(bench.asks(2, 500, vec![asks("t", 0, from)])).await.unwrap();
        }
        assert_eq!((sizes(&fetched), began.elapsed()), (vec![3_000_000], Duration::from_millis(at_ms)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_follower_asks_at_most_ten_times_a_second() {
    let replica = TestReplica::new("t", 0);
    (0..10_000).for_each(|_| replica.append(BATCH_BYTES));
    let bench = Bench::new(Some("1MB/s"), &[&replica]);
    let got = catch_up(&bench, 2, bench.stack(), offset(300 * BATCH)).await;
    let took = got.last().unwrap().0;
    assert!(took >= Duration::from_secs(19), "{took:?} for 19.7 MB");
    let per_second = got.len() as f64 / took.as_secs_f64();
    assert!(per_second <= 10.0, "{per_second} fetches a second");
}
