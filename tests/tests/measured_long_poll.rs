//! How long a parked Fetch takes, to its deadline and after an append (A4, and liftbridge#102: a record that is appended
//! while a poll waits is delivered at once).
#![allow(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "figures for people; a panic fails the test"
)]

use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use serde_json::Value;
use system_tests::calls::{Calls, batch, from, shape, to};
use system_tests::cluster::Plan;
use system_tests::grpcurl::Grpcurl;
use system_tests::wait;

/// How often each time is measured.
const TRIES: i32 = 10;
/// How long a poll is parked before the append.
const PARKED: Duration = Duration::from_secs(10);
/// The wait that polls ask for: longer than any test waits.
const MAX_WAIT_MS: u32 = 30_000;

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

fn nanoseconds(field: &Value) -> u64 {
    field.as_str().and_then(|text| text.parse().ok()).expect("64-bit numbers are text in JSON")
}

#[tokio::test]
async fn a_poll_that_grpcurl_gives_two_seconds_is_answered_before_they_are_over() {
    let cluster = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("t", 1, &[1, 2], &[]).await;
    calls.until_in_sync("t", 1).await;
    let asked = r#"{"max_wait_ms":30000,"partitions":[{"topic":"t","partition":0,"fetch_offset":0}]}"#;
    for server in [cluster.leader(1), cluster.agent(2)] {
        let Some(grpcurl) = Grpcurl::at(server.address()) else { return };
        for _ in 0..2 {
            let said =
                grpcurl.run(&["-max-time", "2", "-d", asked], &["highwater.v1.LogService/Fetch"]).await;
            let answer = said.json();
            let partition = &answer["partitions"][0];
            assert!(partition["error"].is_null() && partition["records"].is_null(), "{server}: {answer:#}");
            assert_eq!(partition["highWatermark"], "0", "{server}: an answer like any other");
            // Had the answer come later than that, grpcurl would have ended with DeadlineExceeded; and it was parked.
            let parked = nanoseconds(&answer["answeredNs"]) - nanoseconds(&answer["receivedNs"]);
            assert!((1_500_000_000..2_000_000_000).contains(&parked), "{server}: {answer:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_parked_for_ten_seconds_is_answered_at_once_after_an_append() {
    let cluster = Plan::new().program(1, Program::LeaderSvc).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.create_topic("t", TRIES, &[1], &[]).await;
    for partition in 0..TRIES {
        assert_eq!(calls.append("t", partition, batch(1, 100)).await, 0, "led, and connected");
    }
    let parked: Vec<_> = (0..TRIES)
        .map(|partition| {
            let calls = calls.clone();
            tokio::spawn(async move {
                let request = v1::FetchRequest {
                    max_wait_ms: Some(MAX_WAIT_MS),
                    partitions: vec![from("t", partition, 1)],
                    ..Default::default()
                };
                let answer = calls.fetch(request).await;
                (Instant::now(), answer)
            })
        })
        .collect();
    wait::always("all are parked", PARKED, async || parked.iter().all(|poll| !poll.is_finished())).await;
    let mut times = Vec::new();
    for (partition, poll) in (0..).zip(parked) {
        // Both at once: the poll may be answered before the append is.
        let appended = to("t", partition, batch(1, 100));
        let began = Instant::now();
        let (produced, polled) = tokio::join!(calls.produce(v1::Acks::Leader, appended), poll);
        assert_eq!(produced.base_offset, Some(1), "{produced:?}");
        let (answered, answer) = polled.expect("the poll ends");
        assert_eq!(shape(&answer.partitions[0].records), [(1, 1, 1, 0)]);
        times.push(answered - began);
    }
    println!("from an append to the answer of a parked poll: median {:?} of {times:?}", median(&times));
    assert!(median(&times) < Duration::from_millis(20), "{times:?}");
    assert!(times.iter().all(|time| *time <= Duration::from_millis(500)), "{times:?}");
}

#[tokio::test]
async fn a_record_appended_while_a_follower_waits_reaches_it_at_once() {
    let cluster = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent).start().await;
    let calls = Calls::of(cluster.leader(1));
    calls.until_nodes(2).await;
    calls.create_topic("t", 1, &[1, 2], &[("min.insync.replicas", "2")]).await;
    calls.until_in_sync("t", 1).await;
    let agent = Calls::of(cluster.agent(2));
    let mut times = Vec::new();
    for offset in 0..i64::from(TRIES) {
        // Nothing is left to be told: the follower's poll waits.
        agent.until_followed_to("t", 1, offset).await;
        let began = Instant::now();
        // Acknowledged by all: the follower has it, and has flushed it.
        let produced = calls.produce(v1::Acks::All, to("t", 0, batch(1, 100))).await;
        assert_eq!(produced.base_offset, Some(offset), "{produced:?}");
        times.push(began.elapsed());
    }
    println!(
        "from an append to its acknowledgement by the follower: median {:?} of {times:?}",
        median(&times)
    );
    assert!(median(&times) < Duration::from_millis(50), "{times:?}");
}
