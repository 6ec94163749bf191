//! One loop under a throttle of what its node fetches, on a stopped clock.

use bytes::{Bytes, BytesMut};
use highwater_protocol::fetch::Fetched;
use highwater_records::{BatchBuilder, Compression, set_base_offset};
use highwater_telemetry::names::{attribute, event, metric};
use highwater_telemetry::test_util::{Kept, KeptSpan};
use highwater_types::WallTime;

use super::*;

const MB: u64 = 1_000_000;

/// Lets what was answered be applied, and the append that it brought end.
async fn append(partition: &TestPartition) {
    while partition.queued() == 0 {
        tokio::task::yield_now().await;
    }
    partition.finish_append();
}

/// `count` batches of one record and about `size` bytes, from `base` on.
fn large_batches(template: &Bytes, base: i64, count: i64) -> Bytes {
    let mut records = BytesMut::new();
    for offset_of_batch in base..base + count {
        let start = records.len();
        records.extend_from_slice(template);
        set_base_offset(&mut records[start..], offset(offset_of_batch)).unwrap();
    }
    records.freeze()
}

fn template(size: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None).leader_epoch(LeaderEpoch::FIRST);
    builder.append(WallTime::from_millis(1000), None, Some(&vec![7; size]), &[]).unwrap();
    builder.build().unwrap().freeze()
}

#[tokio::test(start_paused = true)]
async fn what_no_answer_is_known_of_is_asked_for_without_records_and_then_known() {
    let (p0, p1) = (TestPartition::new(0), TestPartition::new(1));
    let mut rig = Rig::throttled(Some("1kB/s"), &[&p0, &p1]);
    let first = rig.next().await;
    assert_eq!(first.partitions(), [(0, 0, 0, true), (1, 0, 0, false)], "the first has all that is left");
    assert_eq!(first.request.partitions[0].max_bytes, 250, "and no more");
    let told: Vec<_> = first.request.partitions.iter().map(|asked| asked.throttled).collect();
    assert_eq!(told, [false, true], "the leader is told who is held back");
    first.answer(|_| nothing(0));
    let second = rig.next().await;
    assert_eq!(second.partitions(), [(0, 0, 0, true), (1, 0, 0, true)], "neither lags (S68)");
    assert_eq!(second.request.partitions[1].max_bytes, 1 << 20, "so neither is held back");
}

#[tokio::test(start_paused = true)]
async fn a_lagging_partition_is_left_out_while_one_in_sync_goes_on() {
    let (lagging, in_sync) = (TestPartition::new(0), TestPartition::new(1));
    in_sync.in_sync.store(true, Ordering::Relaxed);
    let mut rig = Rig::throttled(Some("1kB/s"), &[&lagging, &in_sync]);
    let first = rig.next().await;
    assert_eq!(first.partitions(), [(0, 0, 0, true), (1, 0, 0, true)]);
    first.answer(|index| if index == 0 { ten_from(0, 1_000) } else { nothing(0) });
    append(&lagging).await;
    let began = Instant::now();
    let mut round = 0;
    while round < 5 {
        let poll = rig.next().await;
        let asked = poll.partitions();
        assert!(asked.iter().all(|(index, .., wants)| *index == 1 || !wants), "round {round}: {asked:?}");
        if poll.is_poll() {
            let reads =
                asked.iter().any(|(index, from, _, wants)| (*index, *from, *wants) == (1, 10 * round, true));
            assert!(reads, "round {round}: {asked:?}");
            poll.answer(|index| if index == 1 { ten_from(10 * round, 100) } else { nothing(1_000) });
            append(&in_sync).await;
            round += 1;
        } else {
            poll.answer(|_| nothing(1_000));
        }
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "it waits for nothing");
}

#[tokio::test(start_paused = true)]
async fn what_was_left_out_is_asked_for_again_beside_a_parked_poll() {
    let (lagging, in_sync) = (TestPartition::new(0), TestPartition::new(1));
    in_sync.in_sync.store(true, Ordering::Relaxed);
    let mut rig = Rig::throttled(Some("1kB/s"), &[&lagging, &in_sync]);
    rig.next().await.answer(|index| if index == 0 { ten_from(0, 1_000) } else { nothing(0) });
    append(&lagging).await;
    let poll = rig.next().await;
    assert!(poll.is_poll() && poll.partitions().contains(&(1, 0, 0, true)), "{:?}", poll.partitions());
    let began = Instant::now();
    let mut beside = rig.next().await;
    if beside.request.max_bytes == 0 {
        beside.answer(|_| nothing(1_000));
        beside = rig.next().await;
    }
    assert_eq!(beside.partitions(), [(0, 10, 10, true)]);
    assert!(
        (200..=300).contains(&began.elapsed().as_millis()),
        "{:?}: when the quota goes on",
        began.elapsed()
    );
    assert!(!poll.is_given_up());
}

#[tokio::test(start_paused = true)]
async fn a_loop_of_throttled_partitions_waits_and_does_not_spin() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::throttled(Some("1kB/s"), &[&p0]);
    let began = Instant::now();
    let (mut requests, mut from) = (0, 0);
    while began.elapsed() < Duration::from_secs(20) {
        let asked = rig.next().await;
        requests += 1;
        if asked.request.max_bytes == 0 {
            asked.answer(|_| nothing(100_000));
            continue;
        }
        assert_eq!(asked.request.partitions[0].fetch_offset, offset(from));
        asked.answer(|_| ten_from(from, 100_000));
        from += 10;
        append(&p0).await;
    }
    assert!(requests <= 200, "{requests} requests in 20 s, acknowledgements among them");
    let moved = from / 10 * i64::try_from(ten_records(0).len()).unwrap();
    assert!((18_000..=20_700).contains(&moved), "{moved} bytes in 20 s at 1 kB/s");
}

#[tokio::test(start_paused = true)]
async fn a_gibibyte_at_fifty_megabytes_a_second_keeps_the_rate_and_another_holds_within_a_second() {
    let template = template(64 << 10);
    let size = u64::try_from(template.len()).unwrap();
    let p0 = TestPartition::new(0);
    let mut rig = Rig::throttled(Some("50MB/s"), &[&p0]);
    let began = Instant::now();
    let (mut from, mut moved, mut got) = (0_i64, 0_u64, Vec::new());
    let mut changed = None;
    while moved < (2 << 30) {
        let asked = rig.next().await;
        if asked.request.max_bytes == 0 {
            asked.answer(|_| nothing(1 << 40));
            continue;
        }
        let count = i64::from(asked.request.partitions[0].max_bytes) / i64::try_from(size).unwrap();
        let count = count.max(1);
        tokio::time::sleep(Duration::from_millis(2)).await;
        let records = large_batches(&template, from, count);
        moved += size * u64::try_from(count).unwrap();
        got.push((began.elapsed(), size * u64::try_from(count).unwrap()));
        asked.answer(|_| nothing(1 << 40).map(|empty| Fetched { records: records.clone(), ..empty }));
        from += count;
        append(&p0).await;
        if moved >= (1 << 30) && changed.is_none() {
            changed = Some(began.elapsed());
            rig.set_rate("200MB/s");
        }
    }
    let within = |from: Duration, to: Duration| -> u64 {
        got.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, bytes)| bytes).sum()
    };
    let changed = changed.unwrap();
    let per_second = within(Duration::ZERO, changed) as f64 / changed.as_secs_f64();
    assert!((45e6..=52.5e6).contains(&per_second), "{per_second} bytes a second");
    let ten = Duration::from_secs(10);
    let starts = got.iter().map(|(at, _)| *at).filter(|at| *at + ten <= changed);
    let most = starts.map(|at| within(at, at + ten)).max().unwrap();
    assert!(most <= 525 * MB, "{most} bytes in ten seconds");
    let second = within(changed, changed + Duration::from_secs(1));
    assert!(second >= 180 * MB, "{second} bytes in the second after the change");
    let rest = (1_u64 << 30) as f64 / (began.elapsed() - changed).as_secs_f64();
    assert!((180e6..=215e6).contains(&rest), "{rest} bytes a second");
}

/// How long the follower's side held back, by its metric.
fn counted(kept: &Kept) -> Duration {
    Duration::from_secs_f64(kept.counted(metric::THROTTLE, &[(attribute::THROTTLE_SIDE, "follower")]))
}

/// What a span says of the throttle: whose, and how many milliseconds.
fn told(span: &KeptSpan) -> Option<(&str, u128)> {
    let (name, at, about) = span.events.first()?;
    assert_eq!(
        (name.as_str(), *at),
        (event::THROTTLE, span.times.0),
        "it was over when the request went out"
    );
    Some((&about[attribute::THROTTLE_SIDE], about[attribute::THROTTLE_MS].parse().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn what_the_throttle_took_is_counted_and_told_with_the_request_that_it_lets_out() {
    let (telemetry, mut kept) = Telemetry::kept();
    let (lagging, in_sync) = (TestPartition::new(0), TestPartition::new(1));
    in_sync.in_sync.store(true, Ordering::Relaxed);
    let mut rig = Rig::telling(telemetry, Some("1kB/s"), &[&lagging, &in_sync]);
    rig.next().await.answer(|index| if index == 0 { ten_from(0, 1_000) } else { nothing(0) });
    append(&lagging).await;
    let began = Instant::now();
    let wants = |asked: &Asked, which: i32| {
        asked.partitions().iter().any(|(index, .., wants)| *index == which && *wants)
    };
    let mut polls = 0;
    let asked = loop {
        let asked = rig.next().await;
        if wants(&asked, 0) {
            break asked;
        }
        if wants(&asked, 1) && polls < 3 {
            asked.answer(|index| if index == 1 { ten_from(10 * polls, 100) } else { nothing(1_000) });
            append(&in_sync).await;
            polls += 1;
        } else if !asked.is_poll() {
            asked.answer(|_| nothing(1_000));
        } else {
            // Parked: what is kept out goes beside it.
            std::mem::forget(asked);
        }
    };
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
    assert_eq!(counted(&kept), waited);
    asked.answer(|_| ten_from(10, 1_000));
    append(&lagging).await;
    let spans = kept.spans();
    let (let_out, before) = spans.split_last().expect("calls that brought something");
    assert_eq!(
        before.iter().filter_map(told).count(),
        0,
        "neither the first nor those of the one in sync waited"
    );
    assert_eq!(before.len(), 1 + usize::try_from(polls).unwrap());
    assert_eq!(told(let_out), Some(("follower", waited.as_millis())));
}

#[tokio::test(start_paused = true)]
async fn what_the_throttle_takes_is_counted_while_it_lasts() {
    let (telemetry, kept) = Telemetry::kept();
    let p0 = TestPartition::new(0);
    let mut rig = Rig::telling(telemetry, Some("1kB/s"), &[&p0]);
    let batch = large_batches(&template(60_000), 0, 1);
    rig.next().await.answer(|_| nothing(1_000).map(|empty| Fetched { records: batch.clone(), ..empty }));
    append(&p0).await;
    rig.next().await.answer(|_| nothing(1_000));
    rig.silence(Duration::from_secs(10)).await;
    let seconds = counted(&kept).as_secs_f64();
    assert!((10.0 - LOOK_AGAIN.as_secs_f64()..=10.0).contains(&seconds), "{seconds} of 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_gives_back_what_it_was_to_bring() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::throttled(Some("1kB/s"), &[&p0]);
    rig.next().await.fail(refused());
    let began = Instant::now();
    let again = rig.next().await;
    assert!(began.elapsed() <= Duration::from_millis(50), "only the back-off: {:?}", began.elapsed());
    assert!(again.request.partitions[0].max_bytes >= 250, "as much as before");
}

#[tokio::test(start_paused = true)]
async fn agents_that_were_refused_together_do_not_come_back_together() {
    let p0 = TestPartition::new(0);
    let mut rig = Rig::new(&[&p0]);
    let mut waits = Vec::new();
    for _ in 0..5 {
        let mut overloaded = refused();
        if let FetchFailure::Call(failure) = &mut overloaded {
            failure.kind = FailureKind::Overloaded;
            failure.reached = Reached::Program;
            failure.retry_after = Some(Duration::from_secs(1));
        }
        rig.next().await.fail(overloaded);
        let began = Instant::now();
        let asked = rig.next().await;
        waits.push(began.elapsed());
        asked.answer(|_| nothing(0));
    }
    assert!(waits.iter().all(|wait| *wait >= Duration::from_secs(1)), "not before they were told: {waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() >= 3, "at times of their own: {waits:?}"); // The clock has a grain of a millisecond.
    assert_eq!(rig.reconnects(), 0, "the connection is good");
}
