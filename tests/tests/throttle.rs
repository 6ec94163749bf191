//! A throttle of replication in real programs: whom it holds back and whom not (KAFKA-6937, cases.md F), what sets, shows and
//! ends it, and what survives a restart.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_telemetry::names::{attribute, event, metric, span};
use highwater_types::Program;
use serde_json::Value;
use system_tests::calls::{Calls, batch, to};
use system_tests::cluster::{Cluster, Plan};
use system_tests::fake_collector::{FakeCollector, KeyValue, TakenSpan, texts};
use system_tests::throttles::{AGENT, LEADER, Progress, fall_behind, pair, set, until_fetching};
use system_tests::{tool, wait};

const KB: u64 = 1_000;

fn leader_rate(rate: &str) -> v1::SetReplicationThrottleRequest {
    v1::SetReplicationThrottleRequest { leader_rate: rate.into(), ..Default::default() }
}

fn follower_rate(rate: &str) -> v1::SetReplicationThrottleRequest {
    v1::SetReplicationThrottleRequest { follower_rate: rate.into(), ..Default::default() }
}

/// Both sides: what the leader sends, and what the agent fetches.
fn both_sides() -> [(&'static str, v1::SetReplicationThrottleRequest); 2] {
    [("leader", leader_rate("100kB/s")), ("follower", follower_rate("100kB/s"))]
}

/// Both programs record every trace and send metrics often.
fn telling_everything(plan: Plan, collector: &FakeCollector) -> Plan {
    [Program::LeaderSvc, Program::FollowerAgent].into_iter().fold(plan, |plan, program| {
        plan.set(program, "otlp.endpoint", collector.address())
            .set(program, "otlp.traces.sample.ratio", "1")
            .set(program, "otlp.metrics.interval.ms", "200ms")
    })
}

async fn follower(calls: &Calls, topic: &str) -> Option<v1::FollowerProgress> {
    calls.rows(topic).await.into_iter().next()?.followers.into_iter().next()
}

/// Ten times what cases.md F allows a record of a partition in sync, for a machine that is busy with other things. That it waits
/// for nothing is shown on a stopped clock, for the leader's side in common/serving/src/fetch/throttle_test.rs
/// (`a_record_of_a_replica_in_sync_arrives_at_once_while_its_neighbour_moves_at_the_rate`), for the follower's in
/// follower-agent/src/fetcher/throttled_loop_test.rs (`a_lagging_partition_is_left_out_while_one_in_sync_goes_on`).
const IN_SYNC_ARRIVES: Duration = Duration::from_secs(1);

/// KAFKA-6937: the throttle also delayed in-sync replicas. One record every half second to a partition in sync arrives long
/// before its neighbour on the same channel, which moves at the rate and joins in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_holds_back_who_lags_and_never_who_is_in_sync() {
    for (side, throttle) in both_sides() {
        let mut cluster = pair().start().await;
        let calls = Calls::of(cluster.leader(1));
        calls.until_nodes(2).await;
        calls.create_topic("p0", 1, &[1, 2], &[("durability", "page-cache")]).await;
        calls.create_topic("p1", 1, &[1, 2], &[("durability", "page-cache")]).await;
        calls.until_in_sync("p0", 1).await;
        let size = fall_behind(&mut cluster, "p1", 1_500_000, 5_000).await;
        set(&calls, throttle).await;
        cluster.start_and_wait(AGENT).await;
        until_fetching(&calls, "p0").await;
        calls.until_in_sync("p0", 1).await;

        let agent = Calls::of(cluster.agent(2));
        let fetches = async || -> u64 {
            agent.fetchers().await.fetchers.iter().map(|fetcher| fetcher.fetches.unwrap_or(0)).sum()
        };
        let (began, before) = (Instant::now(), fetches().await);
        let (mut causes, mut first) = (Vec::new(), 0);
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        let appending = async {
            for _ in 0..16 {
                tick.tick().await;
                let asked = Instant::now();
                let result = calls.produce(v1::Acks::All, to("p0", 0, batch(1, 100))).await;
                assert!(result.error.is_none(), "{side}: {result:?}");
                let took = asked.elapsed();
                assert!(
                    took < IN_SYNC_ARRIVES,
                    "{side}: acknowledged after {took:?}; usually a few milliseconds"
                );
                let p0 = follower(&calls, "p0").await.expect("it has a follower");
                assert_eq!(p0.in_sync, Some(true), "{side}: it never leaves the in-sync set");
                let p1 = follower(&calls, "p1").await.expect("it has a follower");
                first += usize::from(p1.in_sync == Some(false));
                causes.push(p1.cause());
            }
            (began.elapsed().as_secs_f64(), fetches().await - before)
        };
        let watching = Progress::watch(&calls, "p1", size, Duration::from_secs(60), |has| has == size);
        let (progress, (took, sent)) = tokio::join!(watching, appending);
        // Two polls a second of the idle partition, each record and its acknowledgement, and what the throttle lets through.
        let per_second = sent as f64 / took;
        assert!(per_second <= 20.0, "{side}: {per_second} fetches a second");
        assert!(first >= 12, "{side}: {first} of 16 records arrived before what was there long before them");
        let throttled = causes.iter().filter(|cause| **cause == v1::LagCause::Throttled).count();
        assert!(throttled >= 12, "{side}: {causes:?}");

        let (moved_in, moved) = progress.moving();
        let per_second = moved as f64 / moved_in.as_secs_f64();
        assert!((90_000.0..=110_000.0).contains(&per_second), "{side}: {per_second} bytes a second");
        let most = progress.most_in(Duration::from_secs(5));
        assert!(most <= 5 * 120 * KB, "{side}: {most} bytes in five seconds");
        calls.until_in_sync("p1", 1).await;
    }
}

/// Ten fetches a second at most where everything is throttled.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_throttled_partitions_only_waits() {
    for (side, throttle) in both_sides() {
        let mut cluster = pair().start().await;
        let calls = Calls::of(cluster.leader(1));
        calls.until_nodes(2).await;
        calls.create_topic("t", 1, &[1, 2], &[("durability", "page-cache")]).await;
        calls.until_in_sync("t", 1).await;
        let size = fall_behind(&mut cluster, "t", 2_000_000, 1_000).await;
        set(&calls, throttle).await;
        cluster.start_and_wait(AGENT).await;
        Progress::watch(&calls, "t", size, wait::SOON, |has| has > 100_000).await;
        let agent = Calls::of(cluster.agent(2));
        let fetches = async || -> u64 {
            agent.fetchers().await.fetchers.iter().map(|fetcher| fetcher.fetches.unwrap_or(0)).sum()
        };
        let (began, before) = (Instant::now(), fetches().await);
        Progress::watch(&calls, "t", size, wait::SOON, |has| has > 600_000).await;
        let per_second = (fetches().await - before) as f64 / began.elapsed().as_secs_f64();
        assert!(per_second <= 10.0, "{side}: {per_second} fetches a second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_larger_than_the_rate_gets_through() {
    for request in [leader_rate("1MB/s"), follower_rate("1MB/s")] {
        let mut cluster = pair().start().await;
        let calls = Calls::of(cluster.leader(1));
        calls.until_nodes(2).await;
        let properties = [("durability", "page-cache"), ("max.message.bytes", "4MB")];
        calls.create_topic("t", 1, &[1, 2], &properties).await;
        calls.until_in_sync("t", 1).await;
        let size = fall_behind(&mut cluster, "t", 9_000_000, 3_000_000).await;
        set(&calls, request).await;
        // From its start on: the first batch can have arrived before anybody looks.
        let began = Instant::now();
        cluster.start_and_wait(AGENT).await;
        Progress::watch(&calls, "t", size, Duration::from_secs(60), |has| has == size).await;
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(5), "{took:?}: each is paid before the next goes");
        calls.until_in_sync("t", 1).await;
    }
}

/// What a command printed and how it ended.
async fn highwater(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String, String) {
    let done = tool::run(cluster, args).await;
    (done.status.code(), done.text().to_owned(), done.err)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_is_set_shown_and_cleared_by_the_command_line_and_survives_a_restart() {
    let mut cluster = Plan::new().node(1).program(2, Program::FollowerAgent).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("a", 1, &[1], &[]).await;
    calls.create_topic("b", 2, &[1], &[]).await;
    for rate in ["8", "8 B/s", "8MB"] {
        let (code, _, error) = highwater(&cluster, &["throttle", "set", "--leader-rate", rate]).await;
        assert!(code == Some(2) && error.contains("8MB/s"), "{rate}: {code:?} {error}");
    }
    let set = [
        "throttle",
        "set",
        "--nodes",
        "1,1",
        "--leader-rate",
        "8MB/s",
        "--replicas",
        "a,b:1",
        "--output",
        "json",
    ];
    let (code, out, error) = highwater(&cluster, &set).await;
    assert_eq!(code, Some(0), "{error}");
    let wanted = serde_json::json!({
        "node": 1, "side": "leader", "bytes_per_second": 8_000_000, "rate": "8MB/s",
        "replicas": ["a", "b:1"], "ttl_ms": null, "left_ms": null,
    });
    assert_eq!(lines(&out), std::slice::from_ref(&wanted));
    let (code, ..) =
        highwater(&cluster, &["throttle", "set", "--nodes", "2", "--follower-rate", "1MB/s"]).await;
    assert_eq!(code, Some(0));

    for id in [LEADER, (1, Program::FollowerAgent), AGENT] {
        cluster.server_mut(id).kill();
    }
    for id in [LEADER, (1, Program::FollowerAgent), AGENT] {
        cluster.start_and_wait(id).await;
    }
    let (_, out, _) = highwater(&cluster, &["throttle", "show", "--output", "json"]).await;
    let shown = lines(&out);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(shown[0], wanted);
    assert_eq!((&shown[1]["node"], &shown[1]["side"]), (&Value::from(2), &Value::from("follower")));

    for (replicas, why) in [
        ("a,nowhere", "there is no topic nowhere"),
        ("b:7", "there is no b:7; the last partition of topic b is 1"),
    ] {
        let (code, _, error) =
            highwater(&cluster, &["throttle", "set", "--leader-rate", "1MB/s", "--replicas", replicas]).await;
        assert!(code == Some(1) && error.contains(why), "{replicas}: {code:?} {error}");
    }
    let again = ["throttle", "set", "--nodes", "1", "--leader-rate", "9MB/s", "--ttl", "1h"];
    let (code, out, error) = highwater(&cluster, &again).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("replaced on node 1, leader: 8MB/s for a,b:1, until cleared"), "{out}");
    wait::until("less than its whole time to be left", wait::SOON, async || {
        let (_, out, _) =
            highwater(&cluster, &["throttle", "show", "--nodes", "1", "--output", "json"]).await;
        let left = lines(&out).first()?["left_ms"].as_u64()?;
        assert!((3_000_000..=3_600_000).contains(&left), "{left}");
        (left < 3_600_000).then_some(())
    })
    .await;
    let (code, out, _) = highwater(&cluster, &["throttle", "clear"]).await;
    assert_eq!((code, out.as_str()), (Some(0), "no throttle is set\n"));
    let (code, _, error) =
        highwater(&cluster, &["throttle", "set", "--nodes", "7", "--leader-rate", "1MB/s"]).await;
    assert!(code == Some(1) && error.contains("node 7 is not registered"), "{code:?} {error}");
    let (code, _, error) = highwater(&cluster, &["throttle", "set"]).await;
    assert_eq!(code, Some(2), "a rate is needed");
    assert!(error.contains("--leader-rate") && error.contains("--follower-rate"), "{error}");
}

/// A replica that missed much while it was down catches up under the throttle, although it had been in sync a moment ago; who
/// writes waits for those in sync only.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_comes_back_under_a_throttle_holds_up_no_writes() {
    let other = (3, Program::FollowerAgent);
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, AGENT.1).program(3, other.1);
    let mut cluster = plan.start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(3).await;
    calls.create_topic("t", 1, &[1, 2, 3], &[]).await;
    calls.append("t", 0, batch(1, 100)).await;
    calls.until_in_sync("t", 2).await;
    cluster.server_mut(other).terminate(wait::SOON).await;
    for _ in 0..30 {
        calls.append("t", 0, batch(1, 100_000)).await;
    }
    set(&calls, follower_rate("10kB/s")).await;
    let starts = Instant::now();
    cluster.start_and_wait(other).await;
    let came_back = async || {
        let rows = calls.rows("t").await.into_iter().next()?.followers;
        let since = u64::try_from(starts.elapsed().as_millis()).ok()?;
        let fetches = |row: &v1::FollowerProgress| row.last_fetch_age_ms.is_some_and(|age| age < since);
        rows.into_iter().find(|row| row.replica_id == Some(3) && fetches(row))
    };
    let before = wait::until("the agent to fetch again", wait::SOON, came_back).await;
    assert_eq!(before.in_sync, Some(false), "it is taken out when it dies");
    let answer = calls.produce(v1::Acks::All, to("t", 0, batch(1, 100))).await;
    assert!(answer.error.is_none(), "{:?}", answer.error);
    let after = came_back().await.expect("it fetched");
    assert!(after.lag_records > Some(0), "acknowledged before it has caught up: {after:?}");
}

/// The time to live ends a throttle that holds everything up, also where the agent has no store but its leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_ends_with_its_time_to_live_for_an_agent_without_a_store_too() {
    let plan = pair();
    let through_leader = format!("leader:{}", plan.address(LEADER));
    let mut cluster = plan.set_on(AGENT, "coordination", through_leader).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("t", 1, &[1, 2], &[("durability", "page-cache")]).await;
    calls.until_in_sync("t", 1).await;
    // Five minutes' worth.
    let size = fall_behind(&mut cluster, "t", 30_000_000, 500_000).await;
    set(&calls, follower_rate("100kB/s")).await;
    cluster.start_and_wait(AGENT).await;
    let has = |bytes: u64| move |has: u64| has > bytes;
    Progress::watch(&calls, "t", size, wait::SOON, has(0)).await;
    wait::until("the agent to be throttled", wait::SOON, async || {
        let row = follower(&calls, "t").await?;
        (row.cause() == v1::LagCause::Throttled && row.lag_bytes > Some(20_000_000)).then_some(())
    })
    .await;
    set(&calls, v1::SetReplicationThrottleRequest { ttl_ms: Some(1_000), ..follower_rate("100kB/s") }).await;
    let began = Instant::now();
    Progress::watch(&calls, "t", size, Duration::from_secs(60), move |has| has == size).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900), "{took:?}: not before its time");
    wait::until("the throttle to leave the store", wait::SOON, async || {
        let request = v1::DescribeClusterRequest::default();
        let nodes = calls.cluster.clone().describe_cluster(request).await.ok()?.into_inner().nodes;
        nodes.iter().all(|node| node.follower_throttle.is_none()).then_some(())
    })
    .await;
}

/// The programs' own settings throttle from the start.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_among_the_settings_holds_without_anybody_setting_it() {
    let plan = pair().set(Program::FollowerAgent, "follower.replication.throttled.rate", "200kB/s");
    let mut cluster = plan.start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("t", 1, &[1, 2], &[("durability", "page-cache")]).await;
    calls.until_in_sync("t", 1).await;
    let size = fall_behind(&mut cluster, "t", 1_000_000, 10_000).await;
    cluster.start_and_wait(AGENT).await;
    let progress = Progress::watch(&calls, "t", size, Duration::from_secs(60), |has| has == size).await;
    let (took, moved) = progress.moving();
    let per_second = moved as f64 / took.as_secs_f64();
    assert!(
        per_second <= 1.4 * 200_000.0,
        "{per_second} bytes a second, the first quarter of a second's at once"
    );
}

/// The time and the attributes of a throttle's event in a span.
fn throttle_event(taken: &TakenSpan) -> Option<(u64, &[KeyValue])> {
    let found = taken.span.events.iter().find(|told| told.name == event::THROTTLE)?;
    Some((found.time_unix_nano, &found.attributes))
}

/// What the side that throttles tells of it: seconds by metric, and an event in its span of a Fetch that was held back.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_throttle_took_is_told_by_its_side_and_never_as_a_part_of_a_read() {
    for (side, throttle) in both_sides() {
        let service = if side == "leader" { "leader-svc" } else { "follower-agent" };
        let collector = FakeCollector::start().await;
        let mut cluster = telling_everything(pair(), &collector).start().await;
        let calls = Calls::of(cluster.leader(1));
        calls.until_nodes(2).await;
        calls.create_topic("t", 1, &[1, 2], &[("durability", "page-cache")]).await;
        calls.until_in_sync("t", 1).await;
        let size = fall_behind(&mut cluster, "t", 300_000, 5_000).await;
        set(&calls, throttle).await;
        let began = Instant::now();
        cluster.start_and_wait(AGENT).await;
        calls.until_in_sync("t", 1).await;
        let took = began.elapsed().as_secs_f64();
        let seconds = || -> f64 {
            let told = collector.metric(service, metric::THROTTLE);
            let of_side = |about: &BTreeMap<String, String>| about[attribute::THROTTLE_SIDE] == side;
            told.iter().filter(|(_, about)| of_side(about)).map(|(value, _)| value).sum()
        };
        wait::until("the time of the throttle", wait::SOON, async || (seconds() >= 1.0).then_some(())).await;
        assert!(seconds() <= took, "{side}: {} s of {took} s for {size} bytes", seconds());

        let fetches = || collector.spans_of(service, "highwater.v1.LogService/Fetch");
        let held = wait::until("a Fetch that was held back", wait::SOON, async || {
            let held: Vec<_> = fetches().into_iter().filter(|f| throttle_event(f).is_some()).collect();
            (!held.is_empty()).then_some(held)
        })
        .await;
        for fetch in &held {
            let (at, about) = throttle_event(fetch).expect("it has one");
            let told = |name: &str| texts(about).remove(name).expect("an event says whose and how long");
            assert_eq!(told(attribute::THROTTLE_SIDE), side);
            assert!(told(attribute::THROTTLE_MS).parse::<u64>().is_ok_and(|ms| ms > 0), "{about:?}");
            if side == "leader" {
                the_parts_follow_each_other(&collector, fetch, at);
            } else {
                assert_eq!(at, fetch.span.start_time_unix_nano, "it was over when the request went out");
            }
        }
    }
}

/// Park, throttle, read.
fn the_parts_follow_each_other(collector: &FakeCollector, fetch: &TakenSpan, throttled_at: u64) {
    /// Each span and its events are placed on the wall clock by a reading of its own.
    const PLACED_WITHIN: u64 = 5_000_000;
    let part = |name: &str| {
        let below = collector.spans_of("leader-svc", name);
        below.into_iter().find(|part| part.span.parent_span_id == fetch.span.span_id)
    };
    let (Some(park), Some(read)) = (part(span::PARK), part(span::READ)) else { return };
    assert!(park.span.end_time_unix_nano <= read.span.start_time_unix_nano, "{park:?} {read:?}");
    assert!(park.span.end_time_unix_nano.abs_diff(throttled_at) <= PLACED_WITHIN, "{park:?} {throttled_at}");
    assert!(read.millis() < 100, "a read of a few kilobytes does not wait for a quota: {read:?}");
}

/// The causes that a program's metric tells of the agent's replica of `topic` now.
fn told_causes(collector: &FakeCollector, service: &str, topic: &str) -> Vec<String> {
    let mut told = collector.metric(service, metric::LAGGING);
    told.retain(|(value, about)| {
        *value > 0.0 && about.get(attribute::TOPIC).is_some_and(|name| name == topic)
    });
    told.into_iter().filter_map(|(_, mut about)| about.remove(attribute::LAG_CAUSE)).collect()
}

/// Every place names the cause: the leader's and the agent's description, the tool, both metrics, the lag spans.
async fn every_word(
    cluster: &Cluster,
    calls: &Calls,
    collector: &FakeCollector,
) -> Option<Vec<(&'static str, String)>> {
    let name = |cause| highwater_wire::lag::cause_name(cause);
    let fetchers = Calls::of(cluster.agent(2)).fetchers().await.fetchers;
    let row = fetchers.iter().flat_map(|fetcher| &fetcher.partitions).find(|row| row.topic == "t")?;
    let (_, out, _) = highwater(cluster, &["lag", "--output", "json"]).await;
    let spans = collector.spans_of("follower-agent", &format!("{} t", span::REPLICATE));
    Some(vec![
        ("DescribeReplication", name(follower(calls, "t").await?.cause())),
        ("DescribeFetchers", name(row.cause())),
        ("lag", lines(&out).iter().find(|line| line["topic"] == "t")?["cause"].as_str()?.to_owned()),
        ("span", spans.last()?.attribute(attribute::LAG_CAUSE).to_owned()),
        ("leader-svc", told_causes(collector, "leader-svc", "t").join(" ")),
        ("follower-agent", told_causes(collector, "follower-agent", "t").join(" ")),
    ])
}

/// Set at run time, and among the agent's settings, which no leader is told of but by the fetches.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_followers_own_throttle_holds_back_is_throttled_in_every_place_and_in_none_when_it_is_over()
{
    for among_settings in [false, true] {
        let collector = FakeCollector::start().await;
        let mut plan = telling_everything(pair(), &collector);
        if among_settings {
            plan = plan.set(Program::FollowerAgent, "follower.replication.throttled.rate", "100kB/s");
        }
        let mut cluster = plan.start().await;
        let calls = Calls::of(cluster.leader(1));
        calls.until_nodes(2).await;
        calls.create_topic("t", 1, &[1, 2], &[("durability", "page-cache")]).await;
        calls.until_in_sync("t", 1).await;
        let size = fall_behind(&mut cluster, "t", 1_500_000, 5_000).await;
        if !among_settings {
            set(&calls, follower_rate("100kB/s")).await;
        }
        cluster.start_and_wait(AGENT).await;
        Progress::watch(&calls, "t", size, wait::SOON, |has| has > size / 10).await;
        for _ in 0..3 {
            let words = wait::until("every place to know the replica", wait::SOON, async || {
                every_word(&cluster, &calls, &collector).await
            })
            .await;
            assert!(words.iter().all(|(_, word)| word == "throttled"), "{among_settings}: {words:?}");
        }
        set(&calls, follower_rate("100GB/s")).await;
        calls.until_in_sync("t", 1).await;
        wait::until("every cause to be over", wait::SOON, async || {
            let told = |service| told_causes(&collector, service, "t");
            (told("leader-svc").is_empty() && told("follower-agent").is_empty()).then_some(())
        })
        .await;
    }
}
