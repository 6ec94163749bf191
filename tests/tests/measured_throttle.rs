//! A catch-up under a throttle in real programs, on either side: it keeps its rate, leaves an in-sync partition on the same
//! channel alone, and goes on at another rate within a second. 176 MB at 16 MB/s; in the tier `long`, by hand and alone on the
//! machine, 1 GiB at 50 MB/s with the bounds of the issue itself: at most 5 % above the rate in any ten seconds.
#![allow(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "figures for people; a panic fails the test"
)]

use std::time::{Duration, Instant};

use highwater_proto::v1;
use system_tests::calls::{Calls, batch, to};
use system_tests::throttles::{AGENT, Progress, fall_behind, pair, set, until_fetching};
use system_tests::tier::{Tier, tier};

/// What is caught up, and within which bounds.
struct Case {
    bytes: usize,
    /// How many appends to the in-sync partition are timed, alone and beside.
    appends: usize,
    rate: u32,
    text: &'static str,
    /// A part of the log that is left for the rate that is set last: several times what the old rate moves in a second.
    last_part: u64,
    /// No span of this length may move more than `above` times the rate.
    span: Duration,
    above: f64,
    /// What stands for noise of the machine in a latency that is usually a few milliseconds.
    noise: Duration,
}

fn case() -> Case {
    match tier() {
        Tier::Long => Case {
            bytes: 1 << 30,
            appends: 750,
            rate: 50_000_000,
            text: "50MB/s",
            last_part: 200_000_000,
            span: Duration::from_secs(10),
            above: 1.05,
            noise: Duration::ZERO,
        },
        // An answer is seen when it is appended: a second more or less of ten is looked at with half a second's tolerance.
        Tier::Quick | Tier::Ci => Case {
            bytes: 176_000_000,
            appends: 250,
            rate: 16_000_000,
            text: "16MB/s",
            last_part: 48_000_000,
            span: Duration::from_secs(5),
            above: 1.1,
            noise: Duration::from_millis(20),
        },
    }
}

/// The rate that is set last.
const LAST_RATE: f64 = 200e6;

/// How long each of so many appends to `quiet` takes until all in-sync replicas have it, one every 20 ms.
async fn append_to_ack(calls: &Calls, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..count {
        tick.tick().await;
        let began = Instant::now();
        let result = calls.produce(v1::Acks::All, to("quiet", 0, batch(1, 100))).await;
        assert!(result.error.is_none(), "{result:?}");
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times
}

fn part(times: &[Duration], per_cent: usize) -> Duration {
    times[times.len() * per_cent / 100]
}

fn p99(times: &[Duration]) -> Duration {
    part(times, 99)
}

async fn catch_up(side: &str, request: impl Fn(&str) -> v1::SetReplicationThrottleRequest) {
    let Case { bytes, appends, rate, text, last_part, span, above, noise } = case();
    let mut cluster = pair().start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("quiet", 1, &[1, 2], &[("durability", "page-cache")]).await;
    calls.create_topic("big", 1, &[1, 2], &[("durability", "page-cache")]).await;
    calls.until_in_sync("quiet", 1).await;
    append_to_ack(&calls, 50).await;
    let alone = append_to_ack(&calls, appends).await;

    let size = fall_behind(&mut cluster, "big", bytes, 500_000).await;
    set(&calls, request(text)).await;
    cluster.start_and_wait(AGENT).await;
    until_fetching(&calls, "quiet").await;
    calls.until_in_sync("quiet", 1).await;
    let throttled = async {
        let bound = Duration::from_secs(120);
        Progress::watch(&calls, "big", size, bound, |has| has + last_part >= size).await
    };
    let (progress, beside) = tokio::join!(throttled, append_to_ack(&calls, appends));

    let (took, moved) = progress.moving();
    let per_second = moved as f64 / took.as_secs_f64();
    let most = progress.most_in(span);
    println!(
        "{side}: {:.1} MB in {took:.1?}: {:.2} MB/s of {text}, at most {:.2} MB in {span:?}; append-to-ack p50 {:?} p90 {:?} p99 {:?}, alone {:?} {:?} {:?}",
        moved as f64 / 1e6,
        per_second / 1e6,
        most as f64 / 1e6,
        part(&beside, 50),
        part(&beside, 90),
        p99(&beside),
        part(&alone, 50),
        part(&alone, 90),
        p99(&alone),
    );
    let rate = f64::from(rate);
    assert!(per_second >= 0.9 * rate && per_second <= 1.05 * rate, "{per_second} bytes a second");
    assert!(most as f64 <= above * span.as_secs_f64() * rate, "{most} bytes in {span:?}");
    assert!(p99(&beside) <= p99(&alone) * 2 + noise, "{:?}, alone {:?}", p99(&beside), p99(&alone));

    set(&calls, request("200MB/s")).await;
    let began = Instant::now();
    Progress::watch(&calls, "big", size, Duration::from_secs(60), |has| has == size).await;
    let rest = began.elapsed();
    println!("{side}: the last {} MB {rest:.2?} after 200MB/s was set", last_part / 1_000_000);
    let at_the_last_rate = Duration::from_secs_f64(last_part as f64 / LAST_RATE);
    assert!(rest <= at_the_last_rate + Duration::from_secs(1), "{rest:?}");
    calls.until_in_sync("big", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_keeps_the_rate_of_its_throttle_and_an_in_sync_partition_its_latency() {
    catch_up("leader", |rate| v1::SetReplicationThrottleRequest {
        leader_rate: rate.into(),
        ..Default::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_keeps_the_rate_of_its_throttle_and_an_in_sync_partition_its_latency() {
    catch_up("follower", |rate| v1::SetReplicationThrottleRequest {
        follower_rate: rate.into(),
        ..Default::default()
    })
    .await;
}
