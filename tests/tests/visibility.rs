//! What consumers see while a follower is behind (A5): nothing above the high watermark, on the leader or on a follower,
//! and everything once all have it.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_records::batches;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, code, from, to};
use system_tests::cluster::{Cluster, Plan};
use system_tests::wait;

/// Longer than any test: a follower that is stopped stays in the in-sync set.
const NEVER_TOO_LATE: &str = "10min";

/// Node 1 leads, 2 and 3 follow; all three are in sync with an empty topic.
async fn three() -> (Cluster, [Calls; 3]) {
    let plan = Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::FollowerAgent)
        .program(3, Program::FollowerAgent)
        .set(Program::LeaderSvc, "replica.lag.time.max.ms", NEVER_TOO_LATE)
        .set(Program::FollowerAgent, "replica.lag.time.max.ms", NEVER_TOO_LATE);
    let cluster = plan.start().await;
    let calls = [cluster.leader(1), cluster.agent(2), cluster.agent(3)].map(Calls::of);
    calls[0].until_nodes(3).await;
    calls[0].create_topic("t", 1, &[1, 2, 3], &[]).await;
    calls[0].until_in_sync("t", 2).await;
    (cluster, calls)
}

async fn row(leader: &Calls) -> v1::LedPartition {
    leader.rows("t").await.remove(0)
}

fn acknowledged_by(row: &v1::LedPartition, node: i32) -> Option<i64> {
    let follower = row.followers.iter().find(|follower| follower.replica_id == Some(node));
    follower.expect("a row per follower").acknowledged_offset
}

/// The end of what a consumer is shown, by every way of asking.
async fn visible_ends(server: &Calls) -> [i64; 4] {
    let fetched = server.fetch_one("t", 0, 0).await;
    let fetched_end = batches(&fetched.records).last().map(|batch| batch.expect("whole").next_offset().get());
    let asked = v1::ListOffsetsPartition {
        topic: "t".to_owned(),
        partition: Some(0),
        position: v1::OffsetPosition::Latest.into(),
        ..Default::default()
    };
    let list = v1::ListOffsetsRequest { partitions: vec![asked], ..Default::default() };
    let listed = server.log.clone().list_offsets(list).await.expect("ListOffsets is answered").into_inner();
    let read = v1::ReadRecordsRequest { topic: "t".to_owned(), partition: Some(0), ..Default::default() };
    let read = server.replication.clone().read_records(read).await.expect("it is answered").into_inner();
    let last_read = read.records.last().and_then(|record| record.offset);
    [
        fetched_end.unwrap_or(0),
        fetched.high_watermark.expect("told"),
        listed.partitions[0].offset.expect("told"),
        last_read.map_or(0, |offset| offset + 1),
    ]
}

async fn produce_one(leader: &Calls, acks: v1::Acks, timeout_ms: u32) -> v1::ProducePartitionResult {
    let partitions = vec![to("t", 0, batch(1, 100))];
    let request = v1::ProduceRequest {
        acks: acks.into(),
        timeout_ms: Some(timeout_ms),
        partitions,
        ..Default::default()
    };
    leader.log.clone().produce(request).await.expect("it is answered").into_inner().partitions.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_of_two_followers_is_stopped_nothing_commits_and_nobody_sees_more() {
    let (cluster, [leader, second, third]) = three().await;
    for _ in 0..10 {
        assert_eq!(produce_one(&leader, v1::Acks::All, 20_000).await.error, None);
    }
    second.until_followed_to("t", 1, 10).await;
    third.until_followed_to("t", 1, 10).await;
    cluster.agent(3).process().freeze();

    let late = produce_one(&leader, v1::Acks::All, 500).await;
    assert_eq!(code(late.error.as_ref()), Some(v1::ErrorCode::RequestTimedOut), "acks=all stands still");
    for offset in 11..16 {
        let produced = produce_one(&leader, v1::Acks::Leader, 20_000).await;
        assert_eq!((produced.error, produced.base_offset), (None, Some(offset)), "acks=1 goes on");
    }
    wait::until("node 2 to hold everything", wait::SOON, async || {
        (acknowledged_by(&row(&leader).await, 2) == Some(16)).then_some(())
    })
    .await;

    // A poll at the high watermark is parked, and one above it is told of nothing either.
    let polls = [10, 12].map(|offset| {
        let (leader, second) = (leader.clone(), second.clone());
        tokio::spawn(async move {
            let request = v1::FetchRequest {
                max_wait_ms: Some(2_000),
                partitions: vec![from("t", 0, offset)],
                ..Default::default()
            };
            tokio::join!(leader.fetch(request.clone()), second.fetch(request))
        })
    });
    wait::always("nobody sees more", Duration::from_secs(2), async || {
        visible_ends(&leader).await == [10; 4] && visible_ends(&second).await == [10; 4]
    })
    .await;
    for poll in polls {
        let (from_leader, from_follower) = poll.await.expect("the polls end");
        for answer in [from_leader, from_follower] {
            let partition = &answer.partitions[0];
            assert!(partition.error.is_none() && partition.records.is_empty(), "{partition:?}");
            assert_eq!(partition.high_watermark, Some(10));
        }
    }
    let held = row(&leader).await;
    assert_eq!((held.high_watermark, held.log_end_offset), (Some(10), Some(16)));
    assert_eq!((acknowledged_by(&held, 2), acknowledged_by(&held, 3)), (Some(16), Some(10)));
    assert!(held.followers.iter().all(|follower| follower.in_sync == Some(true)), "{held:?}");

    cluster.agent(3).process().thaw();
    for server in [&leader, &second, &third] {
        wait::until("everybody to see everything", wait::SOON, async || {
            (visible_ends(server).await == [16; 4]).then_some(())
        })
        .await;
    }
    assert_eq!(produce_one(&leader, v1::Acks::All, 20_000).await.error, None, "acks=all goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_consumer_is_shown_what_an_in_sync_replica_lacks() {
    const LOAD: Duration = Duration::from_secs(4);
    let (cluster, [leader, second, _]) = three().await;
    let until = Instant::now() + LOAD;
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let leader = leader.clone();
            tokio::spawn(async move {
                let mut count = 0;
                while Instant::now() < until {
                    let produced = produce_one(&leader, v1::Acks::Leader, 20_000).await;
                    assert_eq!(produced.error, None);
                    count += 1;
                }
                count
            })
        })
        .collect();
    let (mut looks, mut held_back, mut seen) = (0, 0, 0);
    while Instant::now() < until {
        // One of the followers stops and goes on all the time, so that it is often behind.
        let process = cluster.agent(3).process();
        if looks % 10 == 0 {
            process.freeze()
        } else if looks % 10 == 5 {
            process.thaw()
        }
        for server in [&leader, &second] {
            let fetched = server.fetch_one("t", 0, seen).await;
            // What the leader shows, the follower may not show yet.
            let Some(last) = batches(&fetched.records).last() else { continue };
            let end = last.expect("whole").next_offset().get();
            assert!(end <= fetched.high_watermark.expect("told"), "{fetched:?}");
            // Acknowledged offsets only grow, so what is asked for now is at least what it was then.
            let row = row(&leader).await;
            for node in [2, 3] {
                let acknowledged = acknowledged_by(&row, node);
                assert!(acknowledged >= Some(end), "{end} was shown, node {node} holds {acknowledged:?}");
            }
            held_back += usize::from(row.log_end_offset > row.high_watermark);
            seen = end;
        }
        looks += 1;
    }
    cluster.agent(3).process().thaw();
    let mut produced = 0;
    for producer in producers {
        produced += producer.await.expect("every append succeeds");
    }
    assert!(looks > 20 && held_back > 10 && seen > 100, "{looks} looks, {held_back} held back, {seen} seen");
    leader.until_in_sync("t", 2).await;
    second.until_followed_to("t", 1, produced).await;
    assert_eq!(visible_ends(&leader).await[1..3], [produced; 2], "in the end everything is seen");
}
