//! A Fetch that the network held back until its follower had gone on (design.md 6.3): real programs, and a copy that a hand
//! sends.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::sync::{Arc, Mutex, PoisonError};

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::relay::{Relay, Seen};
use system_tests::{ports, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);

/// The agent's fetches, as they went out.
type Fetches = Arc<Mutex<Vec<v1::FetchRequest>>>;

/// A leader in epoch 1, which begins at offset 3, with a follower in sync that holds 5 records.
async fn pair() -> (Cluster, Relay, Fetches) {
    let at = ports::loopback();
    let plan = Plan::new().program(1, LEADER.1).program(2, AGENT.1).advertise(LEADER, at);
    let fetches = Fetches::default();
    let noted = Arc::clone(&fetches);
    let relay = Relay::start(at, plan.address(LEADER), move |seen| {
        if let Seen::Request(request, _) = seen {
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        }
    })
    .await;
    let mut cluster = plan.start().await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;
    for _ in 0..3 {
        leader.append("t", 0, batch(1, 100)).await;
    }
    cluster.server_mut(LEADER).kill();
    cluster.start_and_wait(LEADER).await;
    leader.until_led("t").await;
    leader.until_in_sync("t", 1).await;
    for _ in 0..2 {
        leader.append("t", 0, batch(1, 100)).await;
    }
    leader.until_in_sync("t", 1).await;
    (cluster, relay, fetches)
}

/// The first fetch of epoch 1, as it would have been had the follower come with two records of epoch 0 that the leader does not
/// have: it was told to cut them, and has gone on since.
fn from_before_a_cut(fetches: &Fetches) -> v1::FetchRequest {
    let fetches = fetches.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = |request: &&v1::FetchRequest| {
        request.partitions.iter().any(|asked| asked.current_leader_epoch == Some(1))
    };
    let mut first = fetches.iter().find(is_first).expect("it fetched in epoch 1").clone();
    let asked = &mut first.partitions[0];
    (asked.fetch_offset, asked.last_fetched_epoch, asked.acknowledged_offset) = (Some(5), Some(0), Some(3));
    first.max_wait_ms = Some(0);
    first
}

async fn incarnation(leader: &Calls) -> Option<String> {
    let rows = leader.rows("t").await;
    rows.first()?.followers.first()?.incarnation.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_of_a_fetch_from_before_a_cut_costs_the_follower_nothing() {
    let (cluster, _relay, fetches) = pair().await;
    let leader = Calls::of(cluster.leader(1));
    let before = incarnation(&leader).await.expect("it fetched");
    let late = from_before_a_cut(&fetches);
    let answer = leader.fetch(late.clone()).await.partitions.remove(0);
    let cut = answer.diverging_epoch.unwrap_or_else(|| panic!("{:?}", answer.error));
    assert_eq!((cut.end_offset, cut.leader_epoch), (Some(3), Some(0)), "it is answered");
    assert_eq!(leader.append("t", 0, batch(1, 100)).await, 5, "the in-sync set still acknowledges");
    leader.until_in_sync("t", 1).await;
    assert_eq!(incarnation(&leader).await.as_ref(), Some(&before));
    assert!(!cluster.agent(2).output().contains("incarnation renewed"), "{}", cluster.agent(2).output());

    // Of a client that numbers nothing every request counts: so this one says that the follower lost what it held.
    let unnumbered = v1::FetchRequest { request_start: None, request_number: None, ..late };
    let answer = leader.fetch(unnumbered).await.partitions.remove(0);
    assert_eq!(code(answer.error.as_ref()), Some(v1::ErrorCode::StaleIncarnation), "{answer:?}");
    wait::until("the follower to renew", wait::SOON, async || {
        let renewed = incarnation(&leader).await.is_some_and(|now| now != before);
        (renewed && leader.are_in_sync("t", 1).await).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_of_an_agents_fetches_rise_over_its_restarts() {
    let (mut cluster, _relay, fetches) = pair().await;
    let leader = Calls::of(cluster.leader(1));
    for _ in 0..2 {
        cluster.server_mut(AGENT).kill();
        cluster.start_and_wait(AGENT).await;
        leader.append("t", 0, batch(1, 100)).await;
        leader.until_in_sync("t", 1).await;
    }
    let fetches = fetches.lock().unwrap_or_else(PoisonError::into_inner);
    let mut orders: Vec<_> =
        fetches.iter().map(|r| (r.request_start.expect("told"), r.request_number.expect("told"))).collect();
    let mut starts = Vec::new();
    for (start, _) in &orders {
        // What a dead agent sent may come behind what the next one sends.
        if !starts.contains(start) {
            starts.push(*start);
        }
    }
    assert!(starts.len() == 3 && starts.is_sorted(), "three starts: {starts:?}");
    let all = orders.len();
    orders.sort_unstable();
    orders.dedup();
    assert_eq!(orders.len(), all, "no two requests have one place");
}
