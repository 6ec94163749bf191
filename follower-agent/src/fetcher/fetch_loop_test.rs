//! One loop against a scripted leader, on a stopped clock.

use std::sync::atomic::Ordering;

use highwater_protocol::follower::{FailureReason, PartitionFetchState};
use highwater_types::{LeaderEpoch, Offset};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};

use super::super::status::Trouble;
use super::super::test_support::*;
use super::*;

const WAIT_MAX: Duration = Duration::from_millis(500);

struct Rig {
    clock: MonotonicClock,
    mail: Arc<Mailbox<TestPartition>>,
    status: Arc<LoopStatus>,
    leader: Arc<ScriptedLeader>,
    asked: UnboundedReceiver<Asked>,
    stop: CancellationToken,
    gate: Gate,
    task: tokio::task::JoinHandle<()>,
}

fn key() -> LoopKey {
    LoopKey { leader: node(1), endpoint: "leader:9400".parse().unwrap(), fetcher: 0 }
}

impl Rig {
    fn new(partitions: &[&Arc<TestPartition>]) -> Self {
        Self::throttled(None, partitions)
    }

    /// A loop of a node that fetches at this rate while it is catching up.
    fn throttled(rate: Option<&str>, partitions: &[&Arc<TestPartition>]) -> Self {
        Self::telling(Telemetry::off(), rate, partitions)
    }

    fn telling(telemetry: Telemetry, rate: Option<&str>, partitions: &[&Arc<TestPartition>]) -> Self {
        let (clock, stop) = (MonotonicClock::starting_now(), CancellationToken::new());
        let gate = gate(rate, clock);
        let settings = FetchSettings {
            node: node(2),
            cluster: "test-cluster".parse().unwrap(),
            wait_max: WAIT_MAX,
            min_bytes: 1,
            response_max_bytes: 10 << 20,
            batch_max_bytes: 2 << 20,
            backoff: BACKOFF,
            gate: gate.clone(),
            telemetry,
            numbers: Arc::new(RequestNumbers::new(4)),
        };
        let (leader, asked) = ScriptedLeader::new();
        let (mail, status): (Arc<Mailbox<TestPartition>>, Arc<LoopStatus>) = Default::default();
        for partition in partitions {
            partition.attach(Some(mail.ready()));
            mail.change(Change::Add(Arc::clone(partition)));
        }
        let fetch_loop = FetchLoop::new(
            Arc::new(settings),
            key(),
            Arc::clone(&leader),
            clock,
            Arc::clone(&mail),
            Arc::clone(&status),
            7,
        );
        let task = tokio::spawn(fetch_loop.run(stop.clone()));
        Self { clock, mail, status, leader, asked, stop, gate, task }
    }

    /// The next request, however long it takes.
    async fn next(&mut self) -> Asked {
        timeout(Duration::from_secs(3600), self.asked.recv())
            .await
            .expect("a request comes")
            .expect("the loop lives")
    }

    /// Nothing is sent for this long.
    async fn silence(&mut self, span: Duration) {
        if let Ok(asked) = timeout(span, self.asked.recv()).await {
            panic!("sent {:?}", asked.map(|asked| asked.partitions()));
        }
    }

    fn set_rate(&self, rate: &str) {
        self.gate.throttle().set(Some(&throttle(rate)));
    }

    fn reconnects(&self) -> usize {
        self.leader.reconnects.load(Ordering::SeqCst)
    }
}

fn refused() -> FetchFailure {
    FetchFailure::Call(Failure {
        kind: FailureKind::Retryable,
        retry_after: None,
        status: tonic::Code::Unavailable,
        code: None,
        leader: None,
        reached: Reached::Refused,
        message: "connection refused".to_owned(),
    })
}

#[tokio::test(start_paused = true)]
async fn the_next_fetch_reads_ahead_while_the_append_runs() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let first = rig.next().await;
    assert_eq!((first.is_poll(), first.partitions()), (true, vec![(0, 0, 0, true)]));
    assert_eq!(first.largest_batch, 2 << 20, "the setting, where the topic allows less");
    first.answer(|_| ten_from(0, 20));
    let second = rig.next().await;
    assert_eq!(second.partitions(), [(0, 10, 0, true)], "what is not appended is not acknowledged");
    assert!(second.is_poll());
    assert_eq!((p0.queued(), p0.log_end()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_append_that_ends_while_the_poll_is_parked_is_acknowledged_at_once() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    rig.next().await.answer(|index| if index == 0 { ten_from(0, 10) } else { nothing(0) });
    let poll = rig.next().await;
    assert_eq!(poll.partitions(), [(1, 0, 0, true), (0, 10, 0, true)]);
    let before = Instant::now();
    p0.finish_append();
    let acknowledgement = rig.next().await;
    assert_eq!(Instant::now(), before, "at once");
    assert_eq!(acknowledgement.partitions(), [(0, 10, 10, false)], "for just that partition");
    assert_eq!(acknowledgement.request.max_wait, Duration::ZERO);
    assert_eq!(acknowledgement.request.max_bytes, 0, "it only acknowledges");
    assert!(!poll.is_given_up(), "the poll stays parked");
    acknowledgement.answer(|_| nothing(10));
    rig.silence(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn one_acknowledgement_is_in_flight_and_the_next_carries_what_gathered() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    rig.next().await.answer(|_| ten_from(0, 20));
    rig.next().await.answer(|_| ten_from(10, 20));
    let _poll = rig.next().await;
    p0.finish_append();
    let first = rig.next().await;
    assert_eq!(first.partitions(), [(0, 20, 10, false)]);
    p0.finish_append();
    rig.silence(Duration::from_millis(100)).await;
    first.answer(|_| nothing(20));
    assert_eq!(rig.next().await.partitions(), [(0, 20, 20, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_appends_slowly_pauses_and_delays_no_other() {
    let (slow, quick) = (TestPartition::new(0), TestPartition::new(1));
    let mut rig = Rig::new(&[&slow, &quick]);
    let mut base = 0;
    let parked = loop {
        let poll = rig.next().await;
        let slow_asks = poll.partitions().into_iter().find(|asked| asked.0 == 0).unwrap();
        if !slow_asks.3 {
            break poll;
        }
        poll.answer(|index| if index == 0 { ten_from(base, 1000) } else { nothing(0) });
        base += 10;
    };
    let asked = parked.request.partitions.iter().find(|p| p.partition.get() == 0).unwrap();
    assert_eq!((asked.paused, asked.max_bytes), (true, 0), "it stays in the request, wanting nothing");
    assert!(parked.partitions().contains(&(1, 0, 0, true)), "the other one fetches on");
    // Room is made while the poll is parked on behalf of the other: the slow one does not wait for it to end.
    let before = Instant::now();
    slow.finish_append();
    let beside = rig.next().await;
    assert_eq!(Instant::now(), before);
    assert_eq!(beside.partitions(), [(0, base, 10, true)], "acknowledges and fetches on");
    assert_eq!(beside.request.max_wait, Duration::ZERO);
    assert!(!parked.is_given_up());
}

#[tokio::test(start_paused = true)]
async fn a_loop_whose_partitions_are_all_paused_sends_nothing_until_an_append_ends() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let mut base = 0;
    while p0.intent(rig.clock.now()) != highwater_protocol::follower::FetchIntent::Not {
        let highwater_protocol::follower::FetchIntent::Ask(ask) = p0.intent(rig.clock.now()) else {
            panic!()
        };
        if ask.paused {
            break;
        }
        rig.next().await.answer(|_| ten_from(base, 1000));
        base += 10;
        tokio::task::yield_now().await;
    }
    rig.silence(Duration::from_secs(10)).await;
    p0.finish_append();
    let poll = rig.next().await;
    assert_eq!(poll.partitions(), [(0, base, 10, true)]);
    assert!(poll.is_poll());
}

#[tokio::test(start_paused = true)]
async fn an_idle_loop_has_one_parked_poll_and_fetches_twice_a_second() {
    let partitions: Vec<_> = (0..100).map(TestPartition::new).collect();
    let mut rig = Rig::new(&partitions.iter().collect::<Vec<_>>());
    let begun = Instant::now();
    let mut fetches = 0;
    while begun.elapsed() < Duration::from_secs(10) {
        let poll = rig.next().await;
        assert!(poll.is_poll());
        assert_eq!(poll.request.partitions.len(), 100);
        fetches += 1;
        tokio::time::sleep(poll.request.max_wait).await;
        assert!(rig.asked.try_recv().is_err(), "nothing beside it");
        poll.answer(|_| nothing(0));
    }
    assert_eq!(fetches, 20);
    assert_eq!(rig.status.report(key()).fetches, 20);
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_delays_every_partition_longer_each_time_and_replaces_the_connection() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    let mut asked = rig.next().await;
    for (failures, ceiling) in (1_u32..).zip([50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]) {
        asked.fail(refused());
        let failed = Instant::now();
        asked = rig.next().await;
        let (waited, ceiling) = (failed.elapsed(), Duration::from_millis(ceiling));
        // A timer of the runtime is as exact as a millisecond.
        assert!(
            (ceiling / 2..=ceiling + Duration::from_millis(1)).contains(&waited),
            "{waited:?} of {ceiling:?}"
        );
        assert_eq!(asked.indexes(), [0, 1], "all come back together");
        let trouble = rig.status.report(key()).trouble;
        assert_eq!((trouble.failures, trouble.is_unanswered()), (failures, true), "also while it asks again");
        assert_eq!(u32::try_from(rig.reconnects()), Ok(failures), "each time a fresh connection");
    }
    asked.answer(|_| nothing(0));
    asked = rig.next().await;
    assert_eq!(rig.status.report(key()).trouble, Trouble::default(), "an answer ends the row");
    asked.fail(refused());
    let failed = Instant::now();
    rig.next().await;
    assert!(failed.elapsed() <= Duration::from_millis(51), "and the waits begin anew");
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_gives_the_other_one_up() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    rig.next().await.answer(|_| ten_from(0, 10));
    let poll = rig.next().await;
    p0.finish_append();
    rig.next().await.fail(refused());
    let again = rig.next().await;
    assert!(poll.is_given_up(), "both run over the connection that is in doubt");
    assert_eq!(again.partitions(), [(0, 10, 10, true)], "what is held is acknowledged by the next one");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sheds_load_is_not_asked_before_the_time_it_names_and_keeps_its_connection() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let FetchFailure::Call(failure) = refused() else { panic!() };
    let asked_for = Duration::from_secs(2);
    let shed = Failure {
        kind: FailureKind::Overloaded,
        retry_after: Some(asked_for),
        reached: Reached::Program,
        ..failure
    };
    rig.next().await.fail(FetchFailure::Call(shed));
    let failed = Instant::now();
    rig.next().await;
    assert!(failed.elapsed() >= asked_for, "{:?}", failed.elapsed());
    let trouble = rig.status.report(key()).trouble;
    assert_eq!((trouble.failures, trouble.is_unanswered()), (1, false), "a refusal is an answer");
    assert_eq!(rig.reconnects(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_one_partition_delays_that_one_only() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    rig.next().await.answer(|index| match index {
        0 => error(ErrorCode::UnknownLeaderEpoch),
        _ => nothing(0),
    });
    let answered = Instant::now();
    let poll = rig.next().await;
    assert_eq!(
        (answered.elapsed(), poll.indexes()),
        (Duration::ZERO, vec![1]),
        "the other one goes on at once"
    );
    let reason = FailureReason::Leader(ErrorCode::UnknownLeaderEpoch);
    assert!(
        matches!(p0.state(rig.clock.now()), PartitionFetchState::Delayed { reason: why, .. } if why == reason)
    );
    let retry = rig.next().await;
    assert!((25..=51).contains(&answered.elapsed().as_millis()), "{:?}", answered.elapsed());
    assert_eq!((retry.indexes(), retry.is_poll()), (vec![0], false), "beside the parked poll");
    retry.answer(|_| nothing(0));
    let both = rig.next().await;
    assert_eq!((both.indexes().len(), both.is_poll(), poll.is_given_up()), (2, true, true));
    rig.silence(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_disk_takes_only_its_partition_out_until_it_is_tried_again() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    rig.next().await.answer(|_| nothing(0));
    let poll = rig.next().await;
    p0.fail_disk(rig.clock.now());
    poll.answer(|_| ten_from(0, 10));
    assert_eq!((p0.queued(), p1.queued()), (0, 0), "the loop has not seen the answer yet");
    let next = rig.next().await;
    assert_eq!(next.indexes(), [1]);
    assert_eq!((p0.queued(), p1.queued()), (0, 1), "an answer to a failed partition is void (KAFKA-8346)");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_new_epoch_is_void_and_the_new_position_is_asked_for_at_once() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let old = rig.next().await;
    let before = Instant::now();
    p0.lead_anew(1);
    let new = rig.next().await;
    assert_eq!(
        (before.elapsed(), new.is_poll()),
        (Duration::ZERO, false),
        "it does not wait for the old one to end"
    );
    assert_eq!(new.request.partitions[0].current_leader_epoch, LeaderEpoch::new(1));
    old.answer(|_| ten_from(0, 10));
    rig.silence(Duration::from_millis(1)).await;
    assert_eq!(p0.queued(), 0, "void");
    // The next poll would read what the request beside is reading: it goes out after that one.
    new.answer(|_| ten_from(0, 10));
    let next = rig.next().await;
    assert_eq!((next.is_poll(), p0.queued()), (true, 1), "read once");
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_partition_that_left_the_loop_is_dropped() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    let asked = rig.next().await;
    rig.mail.change(Change::Remove(id(0)));
    tokio::task::yield_now().await;
    asked.answer(|_| ten_from(0, 10));
    assert_eq!(rig.next().await.indexes(), [1]);
    assert_eq!((p0.queued(), p1.queued()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_was_not_asked_for_is_left_out_of_an_answer() {
    let p0 = TestPartition::new(0);
    let stranger = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0]);
    rig.next().await.answer_for(&[1, 0], |_| ten_from(0, 10));
    assert_eq!(rig.next().await.partitions(), [(0, 10, 0, true)], "the loop goes on");
    assert_eq!((p0.queued(), stranger.queued()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_made_progress_goes_to_the_end_of_the_order() {
    let partitions: Vec<_> = (0..3).map(TestPartition::new).collect();
    let mut rig = Rig::new(&partitions.iter().collect::<Vec<_>>());
    rig.next().await.answer(|index| if index == 0 { ten_from(0, 10) } else { nothing(0) });
    let asked = rig.next().await;
    assert_eq!(asked.indexes(), [1, 2, 0]);
    asked.answer(|index| if index == 2 { ten_from(0, 10) } else { nothing(10) });
    assert_eq!(rig.next().await.indexes(), [1, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_fails_its_partition_and_no_other() {
    let partitions: Vec<_> = (0..3).map(TestPartition::new).collect();
    let mut rig = Rig::new(&partitions.iter().collect::<Vec<_>>());
    let too_large = || FetchFailure::TooLarge("found 300 bytes, the limit is 200".to_owned());
    rig.next().await.fail(too_large());
    // Whose batch it is, is found out one by one; no partition waits meanwhile.
    let begun = Instant::now();
    for index in 0..3 {
        let asked = rig.next().await;
        let asked = if asked.is_poll() { rig.next().await } else { asked };
        assert_eq!((asked.indexes(), asked.is_poll()), (vec![index], false));
        if index == 1 { asked.fail(too_large()) } else { asked.answer(|_| ten_from(0, 10)) }
    }
    while partitions[0].queued() + partitions[2].queued() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!((begun.elapsed(), rig.reconnects()), (Duration::ZERO, 0), "the connection is good");
    let state = partitions[1].state(rig.clock.now());
    let reason = FailureReason::BatchTooLarge;
    assert!(
        matches!(&state, PartitionFetchState::Delayed { reason: why, .. } if *why == reason),
        "{state:?}"
    );
    // It is tried again alone, and fails for good after a bounded number of times.
    let mut tries = 0;
    while !matches!(partitions[1].state(rig.clock.now()), PartitionFetchState::Failed { .. }) {
        let asked = rig.next().await;
        if asked.indexes() == [1] {
            tries += 1;
            asked.fail(too_large());
        } else {
            assert!(!asked.indexes().contains(&1), "never together with others again");
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(tries, BACKOFF.max_attempts);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_has_everything_is_polled_on_when_anothers_batch_was_too_large() {
    let partitions: Vec<_> = (0..2).map(TestPartition::new).collect();
    let mut rig = Rig::new(&partitions.iter().collect::<Vec<_>>());
    rig.next().await.answer(|_| nothing(0));
    rig.next().await.fail(FetchFailure::TooLarge("found 300 bytes, the limit is 200".to_owned()));
    let alone = rig.next().await;
    assert_eq!((alone.indexes(), alone.is_poll()), (vec![0], false));
    alone.answer(|_| nothing(0));
    let poll = rig.next().await;
    assert_eq!((poll.indexes(), poll.is_poll()), (vec![0], true));
}

#[tokio::test(start_paused = true)]
async fn an_offset_out_of_range_asks_for_the_leaders_range_and_goes_on() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    *rig.leader.range.lock() = Ok(LeaderOffsets { log_start: Offset::ZERO, log_end: offset(5) });
    rig.next().await.answer(|_| error(ErrorCode::OffsetOutOfRange));
    let again = rig.next().await;
    assert_eq!(rig.leader.ranges_asked.load(Ordering::SeqCst), 1);
    assert_eq!(again.partitions(), [(0, 0, 0, true)], "inside the leader's range the log stays (KAFKA-2143)");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_knows_none_of_the_partitions_is_connected_to_anew() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    rig.next().await.answer(|_| error(ErrorCode::UnknownTopicId));
    rig.next().await.answer(|_| error(ErrorCode::NotLeaderOrFollower));
    rig.next().await;
    assert_eq!(rig.reconnects(), 1, "the name may lead elsewhere by now (qdrant#832)");
}

/// A loop whose poll is parked for partition 0 when partition 1 joins: the poll, and what is asked beside it.
async fn joined_beside_a_parked_poll(p1: &Arc<TestPartition>) -> (Rig, Asked, Asked) {
    let mut rig = Rig::new(&[&TestPartition::new(0)]);
    let poll = rig.next().await;
    p1.attach(Some(rig.mail.ready()));
    rig.mail.change(Change::Add(Arc::clone(p1)));
    let beside = rig.next().await;
    let asked = (beside.indexes(), beside.is_poll());
    assert_eq!(asked, (vec![1], false), "a newcomer does not wait for the poll to end");
    assert!(!poll.is_given_up(), "what it brings is not known yet");
    (rig, poll, beside)
}

#[tokio::test(start_paused = true)]
async fn a_request_beside_the_poll_that_brings_nothing_is_not_repeated() {
    let (mut rig, poll, beside) = joined_beside_a_parked_poll(&TestPartition::new(1)).await;
    // The leader has more and gives nothing: it is throttled. Nothing spins.
    beside.answer(|_| nothing(1000));
    let both = rig.next().await;
    assert_eq!((both.indexes(), both.is_poll(), poll.is_given_up()), (vec![0, 1], true, true));
    rig.silence(Duration::from_secs(60)).await;
    assert!(!both.is_given_up());
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_that_has_everything_is_soon_in_a_poll() {
    let p1 = TestPartition::new(1);
    let (mut rig, poll, beside) = joined_beside_a_parked_poll(&p1).await;
    let before = Instant::now();
    beside.answer(|_| ten_from(0, 20));
    let more = rig.next().await;
    assert_eq!((more.partitions(), more.is_poll()), (vec![(1, 10, 0, true)], false));
    assert!(!poll.is_given_up(), "it fetches beside the poll while there is more");
    more.answer(|_| ten_from(10, 20));
    let both = rig.next().await;
    assert_eq!((both.partitions(), both.is_poll()), (vec![(0, 0, 0, true), (1, 20, 0, true)], true));
    assert!(poll.is_given_up(), "one poll is parked");
    assert_eq!(before.elapsed(), POLL_AT_LEAST, "else the next record would come when the poll ends");
    p1.finish_append();
    let acknowledgement = rig.next().await;
    assert_eq!(acknowledgement.partitions(), [(1, 20, 10, false)]);
    acknowledgement.answer(|_| nothing(20));
    rig.silence(Duration::from_secs(60)).await;
    assert!(!both.is_given_up(), "it stays parked");
}

#[tokio::test(start_paused = true)]
async fn stopping_gives_up_a_parked_poll() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let poll = rig.next().await;
    rig.stop.cancel();
    timeout(Duration::from_secs(1), rig.task).await.expect("the loop ends").unwrap();
    assert!(poll.is_given_up());
}

#[tokio::test(start_paused = true)]
async fn a_diverging_partition_takes_no_records_and_leaves_the_poll_until_it_is_cut() {
    let p0 = TestPartition::new(0);
    let p1 = TestPartition::new(1);
    let mut rig = Rig::new(&[&p0, &p1]);
    let at = highwater_types::OffsetAndEpoch { offset: Offset::ZERO, epoch: LeaderEpoch::FIRST };
    rig.next().await.answer(|index| match index {
        0 => nothing(10).map(|fetched| highwater_protocol::fetch::Fetched::diverging(fetched.snapshot, at)),
        _ => nothing(0),
    });
    assert_eq!(rig.next().await.indexes(), [1]);
    assert_eq!(p0.state(rig.clock.now()), PartitionFetchState::Truncating);
}

#[path = "throttled_loop_test.rs"]
mod throttled;
