//! What fits into an answer.

use std::sync::atomic::Ordering;

use highwater_protocol::delayed_fetch::FetchCompletion;
use highwater_types::NodeId;
use tower::ServiceExt as _;

use super::*;
use crate::fetch::Fetch;
use crate::test_replica::{TestReplica, asks, fetch, offset};

const BOUNDS: ReadBounds = ReadBounds { answer_bytes: 1 << 20, concurrent_reads: 2 };

/// Reads `fetch` from these replicas, which are the partitions that it asks for.
async fn answer(fetch: Fetch, replicas: &[&Arc<TestReplica>], bounds: ReadBounds) -> FetchResponse {
    metered_answer(fetch, replicas, bounds, u64::MAX).await
}

/// The same, where a quota has so many bytes left.
async fn metered_answer(
    fetch: Fetch,
    replicas: &[&Arc<TestReplica>],
    bounds: ReadBounds,
    metered_bytes: u64,
) -> FetchResponse {
    let requester = fetch.request.requester();
    let plan = |(asked, replica): (&_, &&Arc<TestReplica>)| {
        let replica: Arc<dyn HostedReplica> = Arc::clone(replica) as _;
        let plan = replica.plan(requester, asked);
        PlannedPartition {
            topic: Some(replica.topic().clone()),
            topic_id: Some(replica.id().topic_id),
            partition: replica.id().partition,
            plan: plan.map(|plan| (replica, plan)),
        }
    };
    let partitions = fetch.request.partitions.iter().zip(replicas).map(plan).collect();
    let planned = Planned {
        fetch,
        partitions,
        completion: FetchCompletion::EnoughBytes,
        parked: Duration::ZERO,
        metered_bytes,
    };
    Read::new(MonotonicClock::starting_now(), bounds).oneshot(planned).await.unwrap().response
}

fn sizes(response: &FetchResponse) -> Vec<usize> {
    response.partitions.iter().map(|p| p.outcome.as_ref().map_or(0, |f| f.records.len())).collect()
}

fn filled(partition: i32, batches: &[usize]) -> Arc<TestReplica> {
    let replica = TestReplica::new("t", partition);
    batches.iter().for_each(|size| replica.append(*size));
    replica
}

#[tokio::test]
async fn partitions_share_the_answer_in_request_order() {
    let (a, b, c) = (filled(0, &[400, 400]), filled(1, &[400]), filled(2, &[400]));
    let mut asked = fetch(0, vec![asks("t", 0, 0), asks("t", 1, 0), asks("t", 2, 0)]);
    asked.request.max_bytes = 1000;
    let response = answer(asked, &[&a, &b, &c], BOUNDS).await;
    assert_eq!(sizes(&response), [800, 0, 0], "what is left after the first is too small for another batch");
    assert!(response.partitions.iter().all(|p| p.outcome.is_ok()));
}

#[tokio::test]
async fn a_partitions_own_cap_leaves_room_for_the_next() {
    let (a, b) = (filled(0, &[400, 400]), filled(1, &[400]));
    let mut asked = fetch(0, vec![asks("t", 0, 0), asks("t", 1, 0)]);
    asked.request.partitions[0].max_bytes = 500;
    assert_eq!(sizes(&answer(asked, &[&a, &b], BOUNDS).await), [400, 400]);
}

#[tokio::test]
async fn a_first_batch_above_every_cap_passes_once_per_answer() {
    // KAFKA-2338, KIP-74 (S32).
    let (empty, a, b) = (TestReplica::new("t", 9), filled(0, &[3_000, 10]), filled(1, &[3_000]));
    let mut asked = fetch(0, vec![asks("t", 9, 0), asks("t", 0, 0), asks("t", 1, 0)]);
    asked.request.max_bytes = 1000;
    asked.request.partitions.iter_mut().for_each(|p| p.max_bytes = 1000);
    let response = answer(asked, &[&empty, &a, &b], BOUNDS).await;
    assert_eq!(sizes(&response), [0, 3_000, 0], "whole, alone, and not spent on the empty partition");
}

#[tokio::test]
async fn the_programs_own_cap_counts_too() {
    let replica = filled(0, &[400, 400, 400]);
    let bounds = ReadBounds { answer_bytes: 900, ..BOUNDS };
    assert_eq!(sizes(&answer(fetch(0, vec![asks("t", 0, 0)]), &[&replica], bounds).await), [800]);
}

#[tokio::test]
async fn nothing_is_read_for_a_request_of_zero_bytes_or_a_paused_partition() {
    let (a, b) = (filled(0, &[400]), filled(1, &[400]));
    let mut asked = fetch(0, vec![asks("t", 0, 0)]);
    asked.request.max_bytes = 0;
    assert_eq!(sizes(&answer(asked, &[&a], BOUNDS).await), [0], "0 overrides the first batch (design.md 3)");
    let mut asked = fetch(0, vec![asks("t", 0, 0), asks("t", 1, 0)]);
    asked.request.partitions[0].paused = true;
    assert_eq!(sizes(&answer(asked, &[&a, &b], BOUNDS).await), [0, 400]);
    assert_eq!(a.reads.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nothing_is_dispatched_when_there_is_nothing_to_read() {
    let replica = filled(0, &[400]);
    let response = answer(fetch(0, vec![asks("t", 0, 10)]), &[&replica], BOUNDS).await;
    assert_eq!((sizes(&response), replica.reads.load(Ordering::Relaxed)), (vec![0], 0));
    let snapshot = response.partitions[0].outcome.as_ref().unwrap().snapshot;
    assert_eq!((snapshot.high_watermark, snapshot.log_end), (offset(10), offset(10)));
}

#[tokio::test]
async fn a_consumer_reads_up_to_the_high_watermark_and_a_follower_to_the_end() {
    let replica = filled(0, &[400]);
    replica.append_uncommitted(300);
    let consumer = answer(fetch(0, vec![asks("t", 0, 0)]), &[&replica], BOUNDS).await;
    assert_eq!(sizes(&consumer), [400]);
    let mut asked = fetch(0, vec![asks("t", 0, 0)]);
    asked.request.replica = NodeId::new(2);
    assert_eq!(sizes(&answer(asked, &[&replica], BOUNDS).await), [700]);
    let between = answer(fetch(0, vec![asks("t", 0, 15)]), &[&replica], BOUNDS).await;
    assert!(between.partitions[0].outcome.as_ref().is_ok_and(|f| f.records.is_empty()), "S26: no error");
}

/// A fetch of three partitions that mean this to a quota.
fn metered(metering: [Metering; 3]) -> Fetch {
    let mut asked = fetch(0, vec![asks("t", 0, 0), asks("t", 1, 0), asks("t", 2, 0)]);
    asked.metering = metering.to_vec();
    asked
}

#[tokio::test]
async fn metered_partitions_share_what_the_quota_has_left_and_the_others_do_not_care() {
    use Metering::{Counted, Free, Metered, Withheld};
    let all = || (filled(0, &[400, 400]), filled(1, &[400, 400]), filled(2, &[400, 400]));
    let (a, b, c) = all();
    let response = metered_answer(metered([Metered, Counted, Metered]), &[&a, &b, &c], BOUNDS, 1_200).await;
    assert_eq!(sizes(&response), [800, 800, 400], "1200 bytes for the first and the last together");
    let (a, b, c) = all();
    let response = metered_answer(metered([Withheld, Free, Metered]), &[&a, &b, &c], BOUNDS, 0).await;
    assert_eq!(sizes(&response), [0, 800, 0], "nothing is left");
    assert!(response.partitions.iter().all(|p| p.outcome.is_ok()), "that is no error");
}

#[tokio::test]
async fn the_first_batch_of_a_metered_partition_is_whole_behind_others_too() {
    use Metering::{Counted, Metered};
    let (a, b, c) = (filled(0, &[400]), filled(1, &[3_000, 100]), filled(2, &[10]));
    let asked = metered([Counted, Metered, Metered]);
    let response = metered_answer(asked, &[&a, &b, &c], BOUNDS, 1).await;
    assert_eq!(sizes(&response), [400, 3_000, 0], "one batch, however little is left of the quota");
    let (a, b, c) = (filled(0, &[400]), filled(1, &[3_000]), filled(2, &[10]));
    let mut asked = metered([Counted, Metered, Metered]);
    asked.request.max_bytes = 400;
    let response = metered_answer(asked, &[&a, &b, &c], BOUNDS, 5_000).await;
    assert_eq!(sizes(&response), [400, 0, 0], "a full answer is full");
}
