//! What bounds an answer to a real follower (A10; KAFKA-2338, KIP-74 and tonic's 4 MiB default, cases.md E): the wait for
//! enough bytes, the caps, and the first batch that passes although it is larger. A relay between the programs shows
//! every answer.
#![allow(clippy::indexing_slicing, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;
use system_tests::calls::{Calls, batch, shape, to};
use system_tests::cluster::{Cluster, Plan, ServerId};
use system_tests::relay::{Relay, Seen};
use system_tests::{ports, wait};

const LEADER: ServerId = (1, Program::LeaderSvc);
const AGENT: ServerId = (2, Program::FollowerAgent);
const KIB: usize = 1024;
/// Several times as long as a poll may be parked by default.
const PARKED_MAX: Duration = Duration::from_secs(2);

/// One partition of an answer to a poll.
#[derive(Debug, Clone)]
struct Part {
    partition: i32,
    /// Where it was read, and where the leader's log ended then.
    from: i64,
    log_end: i64,
    /// How many bytes of it were wanted; 0 while its appends have to get on first.
    cap: usize,
    records: bytes::Bytes,
}

/// An answer to a poll; requests that only acknowledge are left out.
#[derive(Debug, Clone)]
struct Poll {
    asked: Instant,
    answered: Instant,
    cap: usize,
    parts: Vec<Part>,
}

impl Poll {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.records.len()).sum()
    }
}

/// Every poll that a relay has seen.
#[derive(Debug, Clone, Default)]
struct Polls(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// When each poll that is not answered yet was asked, by where the relay keeps it.
    open: BTreeMap<usize, Instant>,
    done: Vec<Poll>,
}

impl Polls {
    fn note(&self, seen: Seen<'_>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match seen {
            Seen::Request(asked, _) | Seen::Answer(asked, _) => asked,
        };
        let Some(cap) = asked.max_bytes.filter(|bytes| *bytes > 0) else {
            return;
        };
        let place = std::ptr::from_ref(asked).addr();
        let Seen::Answer(_, answer) = seen else {
            kept.open.insert(place, Instant::now());
            return;
        };
        let parts = asked.partitions.iter().zip(&answer.partitions).map(|(asked, answered)| Part {
            partition: answered.partition.expect("told"),
            from: asked.fetch_offset.expect("a follower says where it reads"),
            log_end: answered.log_end_offset.unwrap_or(-1),
            cap: usize::try_from(asked.partition_max_bytes.unwrap_or(cap)).expect("32 bits"),
            records: answered.records.clone(),
        });
        let poll = Poll {
            asked: kept.open.remove(&place).expect("asked before it is answered"),
            answered: Instant::now(),
            cap: usize::try_from(cap).expect("32 bits"),
            parts: parts.collect(),
        };
        kept.done.push(poll);
    }

    fn all(&self) -> Vec<Poll> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).done.clone()
    }

    /// Waits until every poll of a follower that asks no more is answered.
    async fn until_none_is_open(&self) {
        let mut looks = 0;
        wait::until("the last poll's answer", wait::SOON, async || {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // One may have been on its way when the follower stopped.
            // Those of a follower that was killed are never answered.
            let parked = kept.open.values().any(|asked| asked.elapsed() < PARKED_MAX);
            looks = if parked { 0 } else { looks + 1 };
            (looks > 10).then_some(())
        })
        .await;
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).done.clear();
    }
}

/// Starts a planned cluster whose node 1 leads behind a relay.
async fn behind_glass(plan: Plan) -> (Cluster, Relay, Polls) {
    let (polls, address) = (Polls::default(), ports::loopback());
    let noting = polls.clone();
    let relay = Relay::start(address, plan.address(LEADER), move |seen| noting.note(seen)).await;
    let cluster = plan.advertise(LEADER, address).start().await;
    (cluster, relay, polls)
}

fn pair() -> Plan {
    Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent)
}

/// Several equal batches in one request.
fn batches(count: usize, one: &[u8]) -> Vec<u8> {
    one.repeat(count)
}

async fn next_poll(polls: &Polls) {
    let asked = |polls: &Polls| polls.0.lock().unwrap_or_else(PoisonError::into_inner).done.len();
    let before = asked(polls);
    wait::until("the next poll", wait::SOON, async || (asked(polls) > before).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn min_bytes_are_waited_for_until_they_are_there_or_the_wait_is_over() {
    const MAX_WAIT: Duration = Duration::from_secs(3);
    let plan = pair().set_on(AGENT, "replica.fetch.min.bytes", 4096).set_on(
        AGENT,
        "replica.fetch.wait.max.ms",
        MAX_WAIT.as_millis(),
    );
    let (cluster, _relay, polls) = behind_glass(plan).await;
    let (leader, agent) = (Calls::of(cluster.leader(1)), Calls::of(cluster.agent(2)));
    leader.until_nodes(2).await;
    leader.create_topic("t", 1, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;

    let one = batch(1, 900);
    assert!(4 * one.len() < 4096 && 5 * one.len() > 4096);
    next_poll(&polls).await;
    for _ in 0..4 {
        leader.append("t", 0, one.clone()).await;
    }
    wait::always("too little is not sent", Duration::from_millis(300), async || {
        agent.followed().await[&("t".to_owned(), 0)].log_end_offset == Some(0)
    })
    .await;
    leader.append("t", 0, one.clone()).await;
    agent.until_followed_to("t", 1, 5).await;
    let answers: Vec<Poll> = polls.all().into_iter().filter(|poll| poll.bytes() > 0).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[0].bytes() >= 4096 && answers[0].answered - answers[0].asked < MAX_WAIT, "{answers:?}");

    next_poll(&polls).await;
    polls.forget();
    leader.append("t", 0, one.clone()).await;
    agent.until_followed_to("t", 1, 6).await;
    let late: Vec<Poll> = polls.all().into_iter().filter(|poll| poll.bytes() > 0).collect();
    assert_eq!(late.iter().map(Poll::bytes).collect::<Vec<_>>(), [one.len()]);
    let waited = late[0].answered - late[0].asked;
    assert!(waited >= MAX_WAIT - Duration::from_millis(50), "what there is comes at the end: {waited:?}");
}

/// What an answer could have held: within the caps, as far as the log went.
fn possible(poll: &Poll, batch_bytes: usize) -> usize {
    let there = poll.parts.iter().map(|part| {
        let behind = usize::try_from(part.log_end - part.from).expect("the follower is behind");
        (behind * batch_bytes).min(part.cap)
    });
    there.sum::<usize>().min(poll.cap)
}

#[tokio::test(flavor = "multi_thread")]
async fn caps_hold_and_a_lagging_followers_answers_are_nearly_full() {
    const PARTITION_CAP: usize = 256 * KIB;
    const CAP: usize = 640 * KIB;
    const BATCHES: usize = 300;
    let plan = pair().set_on(AGENT, "replica.fetch.max.bytes", PARTITION_CAP).set_on(
        AGENT,
        "replica.fetch.response.max.bytes",
        CAP,
    );
    let (mut cluster, _relay, polls) = behind_glass(plan).await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 4, &[1, 2], &[]).await;
    leader.until_in_sync("t", 1).await;
    cluster.server_mut(AGENT).kill();
    let one = batch(1, 10_000);
    assert!(one.len() * 20 <= PARTITION_CAP, "a batch is at most 5 % of each cap");
    for partition in 0..4 {
        for _ in 0..BATCHES / 30 {
            leader.append("t", partition, batches(30, &one)).await;
        }
    }
    polls.forget();
    cluster.start_and_wait(AGENT).await;
    let end = i64::try_from(BATCHES).expect("few");
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 4, end).await;

    let (mut full, mut carried) = (0, 0);
    for poll in polls.all() {
        assert_eq!(poll.cap, CAP);
        assert!(poll.bytes() <= CAP, "{} bytes", poll.bytes());
        for part in &poll.parts {
            assert!([0, PARTITION_CAP].contains(&part.cap), "{}", part.cap);
            assert!(
                part.records.len() <= PARTITION_CAP,
                "{} bytes of {}",
                part.records.len(),
                part.partition
            );
        }
        let possible = possible(&poll, one.len());
        assert!(poll.bytes() * 10 >= possible * 9, "{} of {possible} bytes", poll.bytes());
        full += usize::from(possible == CAP);
        carried += poll.bytes();
    }
    assert!(full >= 10, "most answers could be full: {full}");
    assert_eq!(carried, 4 * BATCHES * one.len(), "everything came, and nothing twice");

    polls.forget();
    for _ in 0..3 {
        next_poll(&polls).await;
    }
    assert!(polls.all().iter().all(|poll| poll.bytes() == 0), "a caught-up follower's answers are empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_batch_above_every_cap_passes_whole_once_per_answer_and_stops_nobody() {
    const CAP: usize = 1 << 20;
    let plan = pair().set_on(AGENT, "replica.fetch.max.bytes", CAP).set_on(
        AGENT,
        "replica.fetch.response.max.bytes",
        CAP,
    );
    let (mut cluster, _relay, polls) = behind_glass(plan).await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    leader.create_topic("t", 3, &[1, 2], &[("max.message.bytes", "4MiB")]).await;
    leader.until_in_sync("t", 1).await;
    cluster.server_mut(AGENT).kill();
    let (small, huge) = (batch(1, 1000), batch(1, 3_000_000));
    for partition in [0, 1] {
        leader.append("t", partition, batches(10, &small)).await;
        assert_eq!(leader.append("t", partition, huge.clone()).await, 10);
        leader.append("t", partition, batches(9, &small)).await;
    }
    leader.append("t", 2, batches(20, &batch(1, 100_000))).await;
    polls.forget();
    cluster.start_and_wait(AGENT).await;
    let agent = Calls::of(cluster.agent(2));
    agent.until_followed_to("t", 3, 20).await;

    let mut whole = Vec::new();
    for poll in polls.all() {
        let large: Vec<&Part> = poll.parts.iter().filter(|part| part.records.len() > CAP).collect();
        assert!(large.len() <= 1, "one exception per answer: {:?}", poll.parts);
        for part in large {
            assert_eq!(part.from, 10);
            assert_eq!(shape(&part.records), [(10, 10, 1, 0)], "whole, and nothing behind it");
            assert_eq!(poll.bytes(), part.records.len(), "it takes the whole answer");
            whole.push(part.partition);
        }
    }
    whole.sort_unstable();
    assert_eq!(whole, [0, 1], "each passed once");
    assert_eq!(cluster.agent(2).warnings(), Vec::<String>::new());
}

/// Appends so many batches of 60 kB to each partition, in requests of some MB.
async fn fill(leader: &Calls, topic: &str, partitions: i32, batches_each: usize) {
    let one = batch(1, 60_000);
    let parts: Vec<_> =
        (0..partitions).map(|index| to(topic, index, batches(batches_each.min(50), &one))).collect();
    for _ in 0..batches_each.div_ceil(50) {
        for some in parts.chunks(50) {
            let request = v1::ProduceRequest {
                acks: v1::Acks::Leader.into(),
                partitions: some.to_vec(),
                ..Default::default()
            };
            let answer = leader.log.clone().produce(request).await.expect("Produce is answered").into_inner();
            assert!(answer.partitions.iter().all(|result| result.error.is_none()), "{answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_around_tonics_default_limit_are_decoded_in_one_and_in_many_partitions() {
    const CAPS: [usize; 5] = [4_194_303, 4_194_304, 4_194_305, 8_388_608, 10_485_760];
    // Either way some 12 MB at a time: more than any of the caps.
    const TOPICS: [(&str, i32, usize); 2] = [("one", 1, 200), ("many", 200, 1)];
    let (mut cluster, _relay, polls) = behind_glass(pair()).await;
    let leader = Calls::of(cluster.leader(1));
    leader.until_nodes(2).await;
    for (topic, partitions, _) in TOPICS {
        leader.create_topic(topic, partitions, &[1, 2], &[("durability", "page-cache")]).await;
    }
    let held = |count: usize| i64::try_from(count).expect("few");
    let mut rounds = 0;
    for cap in CAPS {
        cluster.server_mut(AGENT).kill();
        for key in ["replica.fetch.max.bytes", "replica.fetch.response.max.bytes"] {
            cluster.server_mut(AGENT).set(key, cap);
        }
        cluster.start_and_wait(AGENT).await;
        let agent = Calls::of(cluster.agent(2));
        for (topic, partitions, batches_each) in TOPICS {
            agent.until_followed_to(topic, partitions, held(rounds * batches_each)).await;
        }
        rounds += 1;
        for (topic, partitions, batches_each) in TOPICS {
            cluster.agent(2).process().freeze();
            // A poll that is parked still would take the first of the records.
            polls.until_none_is_open().await;
            fill(&leader, topic, partitions, batches_each).await;
            polls.forget();
            cluster.agent(2).process().thaw();
            agent.until_followed_to(topic, partitions, held(rounds * batches_each)).await;
            let largest = polls.all().iter().map(Poll::bytes).max();
            assert!(
                largest >= Some(cap * 9 / 10),
                "{topic}, {cap}: the largest answer had {largest:?} bytes"
            );
            assert!(largest <= Some(cap), "{topic}, {cap}: the largest answer had {largest:?} bytes");
        }
    }
    let output = cluster.agent(2).output();
    assert!(!output.contains("a fetch failed") && !output.contains("ERROR"), "{output}");
}
