//! More than may be in flight at once: some are refused with a time to come back, replication goes on all the while, and
//! nothing that was acknowledged is missing. And whoever leaves an answer unread takes nothing from the others for long.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use highwater_proto::v1;
use highwater_types::Program;
use highwater_wire::{FailureKind, failure};
use system_tests::calls::{Calls, batch, code, from, shape, to};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::wait;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);

/// Of which 1 MiB is for followers.
const IN_FLIGHT_MAX: &str = "3MiB";
/// Two of these are all that clients may have in flight.
const BATCH_BYTES: usize = 900_000;

fn small_program() -> Plan {
    Plan::new()
        .program(1, LEADER.1)
        .program(2, AGENT.1)
        .set(LEADER.1, "in.flight.max.bytes", IN_FLIGHT_MAX)
        .set(LEADER.1, "in.flight.replication.reserve.bytes", "1MiB")
}

/// Calls that were refused because too much was in flight.
#[derive(Debug, Default)]
struct Shed(AtomicU64);

impl Shed {
    /// Checks a refusal, and waits for as long as it asks.
    async fn note(&self, status: &Status) {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let failure = failure::classify(status);
        assert_eq!(failure.kind, FailureKind::Overloaded, "{status}");
        let pause = failure.retry_after.expect("it says when to come back");
        assert!((Duration::from_millis(10)..Duration::from_secs(5)).contains(&pause), "{pause:?}");
        self.0.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Produces `count` batches with acks=all, each until it is acknowledged; their offsets.
async fn produce_all(calls: Calls, count: usize, shed: Arc<Shed>) -> Vec<i64> {
    let mut offsets = Vec::new();
    while offsets.len() < count {
        let request = v1::ProduceRequest {
            acks: v1::Acks::All.into(),
            partitions: vec![to("t", 0, batch(1, BATCH_BYTES))],
            ..Default::default()
        };
        match calls.log.clone().produce(request).await {
            Ok(answer) => {
                let result = answer.into_inner().partitions.remove(0);
                assert_eq!(code(result.error.as_ref()), None, "{result:?}");
                offsets.push(result.base_offset.expect("it was appended"));
            }
            Err(status) => shed.note(&status).await,
        }
    }
    offsets
}

/// Reads from the start again and again until it is told to end.
async fn consume_until(calls: Calls, end: tokio_util::sync::CancellationToken, shed: Arc<Shed>) -> u64 {
    let mut answers = 0;
    while !end.is_cancelled() {
        let request = v1::FetchRequest {
            max_wait_ms: Some(0),
            partitions: vec![from("t", 0, 0)],
            ..Default::default()
        };
        match calls.log.clone().fetch(request).await {
            Ok(_) => answers += 1,
            Err(status) => shed.note(&status).await,
        }
    }
    answers
}

/// The offsets that can be read from a program.
async fn readable(calls: &Calls, until: i64) -> BTreeSet<i64> {
    let mut seen = BTreeSet::new();
    let mut next = 0;
    while next < until {
        let fetched = calls.fetch_one("t", 0, next).await;
        assert_eq!(fetched.error, None, "offset {next}");
        let batches = shape(&fetched.records);
        next = batches.last().expect("there is more").1 + 1;
        seen.extend(batches.into_iter().flat_map(|(first, last, ..)| first..=last));
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_is_refused_in_part_while_replication_goes_on_and_nothing_acknowledged_is_missing() {
    const PRODUCERS: usize = 8;
    const EACH: usize = 12;
    let cluster = small_program().start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[("min.insync.replicas", "2")]).await;
    leader.until_in_sync("t", 1).await;
    leader.append("t", 0, batch(1, BATCH_BYTES)).await;

    let (produces, fetches) = (Arc::<Shed>::default(), Arc::<Shed>::default());
    let end = tokio_util::sync::CancellationToken::new();
    let consumers: Vec<_> = (0..8)
        .map(|_| Calls::of(cluster.leader(1)))
        .map(|calls| tokio::spawn(consume_until(calls, end.clone(), Arc::clone(&fetches))))
        .collect();
    let producers = (0..PRODUCERS)
        .map(|_| tokio::spawn(produce_all(Calls::of(cluster.leader(1)), EACH, Arc::clone(&produces))));
    let acknowledged: Vec<i64> =
        join_all(producers).await.into_iter().flat_map(|offsets| offsets.expect("it ends")).collect();
    end.cancel();
    let answers = join_all(consumers).await.into_iter().map(|answers| answers.expect("it ends"));
    assert!(answers.sum::<u64>() > 0, "consumers are answered too");
    println!("{} produces and {} fetches were refused", produces.count(), fetches.count());
    assert!(produces.count() > 0 && fetches.count() > 0, "{produces:?} {fetches:?}");

    let distinct: BTreeSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!((acknowledged.len(), distinct.len()), (PRODUCERS * EACH, PRODUCERS * EACH));
    let followed = wait::until("the lag to be 0", wait::SOON, async || {
        let row = leader.rows("t").await.into_iter().next()?;
        let follower = row.followers.first()?.clone();
        (follower.lag_records == Some(0)).then_some(follower)
    })
    .await;
    assert_eq!(followed.in_sync, Some(true));
    let agent = Calls::of(cluster.agent(2));
    for fetcher in agent.fetchers().await.fetchers {
        assert_eq!(fetcher.last_error, "", "a follower has a share of its own");
    }
    let said = cluster.agent(2).output();
    assert!(!said.contains("RESOURCE_EXHAUSTED") && !said.contains("in flight"), "{said}");
    let all = i64::try_from(PRODUCERS * EACH).expect("few") + 1;
    agent.until_followed_to("t", 1, all).await;
    for calls in [&leader, &agent] {
        let readable = wait::until("everything to be readable", wait::SOON, async || {
            let end = calls.fetch_one("t", 0, 0).await.high_watermark?;
            if end < all { None } else { Some(readable(calls, all).await) }
        })
        .await;
        assert!(distinct.is_subset(&readable), "{:?} are missing", distinct.difference(&readable));
    }
}

/// A fetch whose answer has begun and is not read: HTTP/2 lets no more through than its window.
async fn unread(cluster: &Cluster) -> ControlFlow<Status, Streaming<v1::FetchResponse>> {
    let endpoint = Endpoint::from_shared(cluster.leader(1).url()).expect("an address");
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut client = tonic::client::Grpc::new(endpoint.connect_lazy());
    client.ready().await.expect("it connects");
    let path = PathAndQuery::from_static("/highwater.v1.LogService/Fetch");
    let codec = ProstCodec::<v1::FetchRequest, v1::FetchResponse>::default();
    let request = v1::FetchRequest { partitions: vec![from("t", 0, 0)], ..Default::default() };
    match client.server_streaming(Request::new(request), path, codec).await {
        Ok(answer) => ControlFlow::Continue(answer.into_inner()),
        Err(status) => ControlFlow::Break(status),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_read_is_in_flight_for_a_bounded_time_and_then_its_connection_is_closed() {
    const UNREAD_MAX: Duration = Duration::from_secs(3);
    let cluster = small_program().set(LEADER.1, "in.flight.unread.max.ms", "3s").start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1], &[]).await;
    leader.append("t", 0, batch(1, BATCH_BYTES)).await;
    let began = Instant::now();
    let mut stalled = Vec::new();
    let refused = loop {
        match unread(&cluster).await {
            ControlFlow::Continue(answer) => stalled.push(answer),
            ControlFlow::Break(status) => break status,
        }
        assert!(stalled.len() <= 3, "what nobody reads is in flight");
    };
    assert_eq!(stalled.len(), 2, "{refused}");
    assert_eq!(failure::classify(&refused).kind, FailureKind::Overloaded, "{refused}");

    let request = v1::FetchRequest { partitions: vec![from("t", 0, 0)], ..Default::default() };
    wait::until("others to be served again", wait::SOON, async || {
        leader.log.clone().fetch(request.clone()).await.ok()
    })
    .await;
    assert!(began.elapsed() >= UNREAD_MAX, "{:?}: not before its time", began.elapsed());
    // One closed connection makes room for the others. Who reads the second before its time is over gets its answer, so
    // each has to be closed before any is read.
    wait::until("both connections to be closed", wait::SOON, async || {
        let said = cluster.leader(1).output();
        (said.matches("an answer was not read within 3s").count() == stalled.len()).then_some(())
    })
    .await;
    for mut answer in stalled {
        let read = answer.message().await;
        assert!(read.is_err(), "its connection is closed");
    }
    // One that reads goes on over the same connection for as long as it likes.
    let began = Instant::now();
    while began.elapsed() < UNREAD_MAX * 2 {
        assert_eq!(leader.fetch_one("t", 0, 0).await.error, None);
    }
}
