//! Answers that a leader seldom gives, by a leader that gives what the test says: each moves the follower on, and none
//! makes it fail or ask the same for ever.

use bytes::Bytes;
use highwater_proto::v1;
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{LeaderEpoch, Offset, Program, TopicProperties, WallTime};
use system_tests::calls::{Calls, code, shape};
use system_tests::cluster::Plan;
use system_tests::fake_leader::Answer;
use system_tests::fake_log::FakeLog;
use system_tests::faked::{AGENT, Faked};
use system_tests::log_files::{base_offset, segments};
use system_tests::{ports, wait};

/// Ten seconds of idle polls and a start need fewer; a follower that spins sends thousands.
const FETCHES_MAX: usize = 200;

async fn row(agent: &Calls, partition: i32) -> v1::FollowedPartition {
    let followed = agent.followed().await;
    followed.get(&("t".to_owned(), partition)).cloned().unwrap_or_else(|| panic!("t-{partition} is followed"))
}

fn assert_unharmed(faked: &mut Faked) {
    assert!(faked.cluster.server_mut(AGENT).process_mut().ended().is_none(), "the program lives");
    let output = faked.cluster.agent(2).output();
    assert!(!output.contains(" ERROR "), "nothing failed: {output}");
    assert!(faked.fake.fetches().len() < FETCHES_MAX, "{} fetches", faked.fake.fetches().len());
}

/// KAFKA-7104: retention ran while the answer was made, so its log start lies beyond its records.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_start_beyond_the_records_of_an_answer_moves_the_follower_there() {
    let mut faked = Faked::new(1, 0, TopicProperties::default()).await;
    let before = FakeLog::starting_at(116_600).batches(0, 17, 10);
    faked.logs.set(0, before.clone());
    let agent = faked.start_agent().await;
    agent.until_followed_to("t", 1, 116_617).await;

    let read = before.batch(0, &[b"116617", b"116618"]);
    let retained = FakeLog::starting_at(116_753).batches(0, 7, 10);
    faked.logs.set(0, retained.clone());
    let (logs, topic, mut torn) = (faked.logs.clone(), faked.topic.to_string(), Some(read));
    faked.fake.on_fetch(move |request, _| {
        let asked = request.partitions.first()?;
        let reads = asked.fetch_offset == Some(116_617) && request.max_bytes != Some(0);
        let Some(read) = torn.take_if(|_| reads) else { return logs.fetch(&topic, request) };
        let result = v1::FetchPartitionResult {
            log_start_offset: Some(116_753),
            high_watermark: Some(116_760),
            log_end_offset: Some(116_760),
            ..read.answer(asked, usize::MAX)
        };
        assert_eq!(shape(&result.records), [(116_617, 116_618, 2, 0)]);
        Some(Answer::Give(v1::FetchResponse {
            partitions: vec![result],
            received_ns: Some(0),
            answered_ns: Some(0),
            session_id: Some(0),
            ..Default::default()
        }))
    });
    agent.until_followed_to("t", 1, 116_760).await;
    let row = row(&agent, 0).await;
    assert_eq!((row.log_start_offset, row.state()), (Some(116_753), v1::FetchState::Fetching));
    assert!(faked.log(0).bytes == retained.bytes());
    assert_unharmed(&mut faked);
}

/// KAFKA-18723: an answer holds batches of a newer epoch than the request's.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_a_newer_epoch_than_the_requests_wait_for_that_epoch() {
    let mut faked = Faked::new(1, 5, TopicProperties::default()).await;
    let log = FakeLog::starting_at(0).batches(5, 11, 10).batches(6, 1, 10);
    faked.logs.set(0, log.clone());
    let agent = faked.start_agent().await;
    wait::until("what is of epoch 5", wait::SOON, async || {
        (row(&agent, 0).await.log_end_offset == Some(11)).then_some(())
    })
    .await;
    let asked_again = faked.fake.fetches().len() + 3;
    wait::until("more fetches", wait::SOON, async || {
        (faked.fake.fetches().len() >= asked_again).then_some(())
    })
    .await;
    assert_eq!(faked.log(0).end, 11);
    assert!(faked.fake.fetches().len() < FETCHES_MAX, "{} fetches", faked.fake.fetches().len());
    faked.lead_again(0).await;
    agent.until_followed_to("t", 1, 12).await;
    assert!(faked.log(0).bytes == log.bytes());
}

fn batch_at(offset: i64) -> Bytes {
    let mut batch = BatchBuilder::new(Compression::None)
        .base_offset(Offset::new(offset).expect("an offset"))
        .leader_epoch(LeaderEpoch::new(0).expect("an epoch"));
    batch.append(WallTime::from_millis(1000), None, Some(b"far"), &[]).expect("a small batch");
    batch.build().expect("it has a record").freeze()
}

/// redpanda#2316, KAFKA-4451: offsets relative to a segment have 31 bits.
#[tokio::test(flavor = "multi_thread")]
async fn a_hole_of_three_milliards_of_offsets_begins_a_segment() {
    const FAR: i64 = 3_000_000_010;
    let properties = TopicProperties { index_interval_bytes: 0, ..TopicProperties::default() };
    let mut faked = Faked::new(1, 0, properties).await;
    let log = FakeLog::starting_at(0).batches(0, 11, 10).raw(batch_at(FAR)).batches(0, 5, 10);
    faked.logs.set(0, log.clone());
    let mut agent = faked.start_agent().await;
    for life in 0..2 {
        agent.until_followed_to("t", 1, FAR + 6).await;
        let bases: Vec<i64> = segments(&faked.directory(0)).iter().map(|path| base_offset(path)).collect();
        assert_eq!(bases, [0, FAR], "in life {life}");
        assert!(faked.log(0).bytes == log.bytes());
        let read = agent.fetch_one("t", 0, FAR + 3).await;
        assert_eq!(shape(&read.records).first(), Some(&(FAR + 3, FAR + 3, 1, 0)));
        let read = agent.fetch_one("t", 0, 11).await;
        assert_eq!(shape(&read.records).first(), Some(&(FAR, FAR, 1, 0)), "a hole is read over");
        faked.cluster.server_mut(AGENT).kill();
        agent = faked.start_agent().await;
    }
    assert_unharmed(&mut faked);
}

/// KIP-74: a batch that is larger than the program takes at all stops its own partition, with a reason, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_above_the_grpc_limit_stops_its_own_partition_with_a_reason() {
    let plan = Plan::new()
        .program(2, Program::FollowerAgent)
        .set(Program::FollowerAgent, "replica.fetch.response.max.bytes", "64KiB")
        .set(Program::FollowerAgent, "replica.fetch.batch.max.bytes", "64KiB");
    let properties = TopicProperties { max_message_bytes: 65_536, ..TopicProperties::default() };
    let mut faked = Faked::planned(plan, ports::loopback(), 3, 0, properties).await;
    for partition in [0, 2] {
        faked.logs.set(partition, FakeLog::starting_at(0).batches(0, 100, 5_000));
    }
    let large = FakeLog::starting_at(0).batches(0, 10, 5_000).batches(0, 1, 40 << 20).batches(0, 5, 5_000);
    faked.logs.set(1, large);
    let agent = faked.start_agent().await;
    for partition in [0, 2] {
        wait::until("the others", wait::SOON, async || {
            (row(&agent, partition).await.high_watermark == Some(100)).then_some(())
        })
        .await;
    }
    let stopped = wait::until("partition 1 to stop", wait::SOON, async || {
        let row = row(&agent, 1).await;
        (row.log_end_offset == Some(10) && !row.reason.is_empty()).then_some(row)
    })
    .await;
    assert!(stopped.reason.contains("larger than this node takes"), "{}", stopped.reason);
    let output = faked.cluster.agent(2).output();
    assert!(output.contains("replica.fetch.batch.max.bytes"), "it is said what to do: {output}");
    assert!(faked.fake.fetches().len() < FETCHES_MAX, "it backs off: {} fetches", faked.fake.fetches().len());
    for partition in [0, 2] {
        faked.logs.set(partition, faked.logs.get(partition).batches(0, 10, 5_000));
        wait::until("the others still", wait::SOON, async || {
            (row(&agent, partition).await.high_watermark == Some(110)).then_some(())
        })
        .await;
    }
    let refused = agent.fetch_one("t", 1, 99).await;
    assert_eq!(code(refused.error.as_ref()), Some(v1::ErrorCode::OffsetOutOfRange), "it serves what it has");
}
