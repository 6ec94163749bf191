//! What a quota lets through, and when.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MB: u64 = 1_000_000;

fn rate(text: &str) -> ByteRate {
    text.parse().unwrap()
}

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime::from_millis(millis)
}

/// Reserves and uses all of it; a first batch of `batch` bytes is whole.
fn answer(quota: &mut ReplicationQuota, wanted: u64, batch: u64, now: MonotonicTime) -> u64 {
    let granted = quota.reserve(wanted, now);
    let used = if granted == 0 { 0 } else { (granted / batch * batch).max(batch) };
    quota.settle(granted, used, now);
    used
}

#[test]
fn listed_replicas_that_are_catching_up_are_metered_and_only_they() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    assert_eq!(quota.metering(false, false, at(0)), Metering::Free, "not listed, or a consumer");
    assert_eq!(quota.metering(true, true, at(0)), Metering::Counted);
    assert_eq!(quota.metering(true, false, at(0)), Metering::Metered);
    answer(&mut quota, 10 * MB, MB, at(0));
    assert_eq!(quota.metering(true, false, at(1)), Metering::Withheld);
    assert_eq!(quota.metering(true, true, at(1)), Metering::Counted, "never an in-sync replica (S67)");
    assert_eq!(quota.metering(false, true, at(1)), Metering::Free);
}

#[test]
fn an_answer_is_capped_to_what_is_left() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    assert_eq!(quota.reserve(10 * MB, at(0)), 250_000, "a quarter of a second to begin with");
    quota.settle(250_000, 250_000, at(0));
    assert_eq!(quota.reserve(10 * MB, at(200)), 0, "paused until there is enough for a good answer");
    assert_eq!(quota.resumes_at(at(200)), Some(at(250)));
    assert_eq!(quota.reserve(10 * MB, at(250)), 250_000);
}

#[test]
fn a_high_rate_goes_on_with_one_good_answer_and_not_with_a_burst_of_them() {
    let mut quota = ReplicationQuota::new(rate("50MB/s"), at(0));
    let one = quota.reserve(GOOD_ANSWER_BYTES, at(0));
    assert_eq!(one, GOOD_ANSWER_BYTES);
    quota.settle(one, one, at(0));
    // 1 MiB at 50 MB/s.
    let resumes = MonotonicTime::from_nanos(20_971_520);
    assert_eq!(quota.resumes_at(at(0)), Some(resumes));
    assert_eq!(quota.reserve(10 * MB, resumes), GOOD_ANSWER_BYTES);
    let mut quota = ReplicationQuota::new(rate("10GB/s"), at(0));
    assert_eq!(quota.room(at(0)), 100 * MB, "not more often than a hundred times a second");
}

#[test]
fn idle_time_saves_up_less_than_half_a_second() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    assert_eq!(quota.room(at(3_600_000)), 450_000);
}

#[test]
fn a_batch_larger_than_the_rate_gets_through_and_is_paid_off() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    assert_eq!(answer(&mut quota, 10 * MB, 3 * MB, at(0)), 3 * MB, "at least one batch");
    // 0.25 s were there, so 2.75 s are owed, and a quarter more must be there before it goes on.
    assert_eq!(quota.resumes_at(at(0)), Some(at(3_000)));
    assert_eq!(answer(&mut quota, 10 * MB, 3 * MB, at(2_999)), 0);
    assert_eq!(answer(&mut quota, 10 * MB, 3 * MB, at(3_000)), 3 * MB);
}

#[test]
fn what_was_not_used_is_given_back() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(1_000));
    let granted = quota.reserve(10 * MB, at(1_000));
    assert_eq!(quota.reserve(10 * MB, at(1_000)), 0, "two requests do not take the same bytes");
    quota.settle(0, 0, at(1_000));
    quota.settle(granted, 0, at(1_000));
    assert_eq!(quota.room(at(1_000)), granted);
    assert_eq!(quota.resumes_at(at(1_000)), None);
}

#[test]
fn replicas_in_sync_count_but_do_not_starve_the_others() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    quota.count(200_000, at(0));
    assert_eq!(quota.reserve(MB, at(0)), 0, "their bytes count (S69)");
    quota.count(1_000 * MB, at(0));
    assert_eq!(quota.resumes_at(at(0)), Some(at(1_250)), "a second at most");
    // A debt of the metered replicas is not shortened by it.
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    answer(&mut quota, 10 * MB, 5 * MB, at(0));
    let owed = quota.resumes_at(at(0));
    quota.count(MB, at(0));
    assert_eq!(quota.resumes_at(at(0)), owed);
}

#[test]
fn another_rate_holds_at_once_and_debts_are_paid_at_it() {
    let mut quota = ReplicationQuota::new(rate("1MB/s"), at(0));
    answer(&mut quota, 100 * MB, 50 * MB, at(0));
    assert_eq!(quota.resumes_at(at(0)), Some(at(50_000)));
    quota.set_rate(rate("200MB/s"), at(0));
    let resumes = quota.resumes_at(at(0)).unwrap();
    assert!(resumes <= at(500), "{resumes:?}");
    assert_eq!(
        quota.room(at(600)),
        rate("200MB/s").bytes_in(Duration::from_millis(600) - rate("200MB/s").time_for(49_750_000))
    );
    quota.set_rate(rate("1MB/s"), at(600));
    assert!(quota.room(at(600)) <= 450_000, "credit is a span, not bytes of the old rate");
}

#[test]
fn an_unknown_lag_is_not_in_sync_and_none_is() {
    assert!(follower_in_sync(true, None) && follower_in_sync(true, Some(9)));
    assert!(follower_in_sync(false, Some(0)), "also after an empty first answer (S68)");
    assert!(!follower_in_sync(false, None) && !follower_in_sync(false, Some(1)));
}

/// Runs followers that ask as often as they may, and keeps when how much went through.
struct Run {
    quota: ReplicationQuota,
    sent: Vec<(u64, u64)>,
}

impl Run {
    fn new(rate: ByteRate) -> Self {
        Self { quota: ReplicationQuota::new(rate, at(0)), sent: Vec::new() }
    }

    /// Each of `latencies` is a follower that takes so many milliseconds between an answer and the next request.
    fn drive(&mut self, span: Range<u64>, wanted: u64, batch: u64, latencies: &[u64]) {
        let mut next: Vec<u64> = latencies.iter().map(|latency| span.start + latency).collect();
        for now in span {
            for (turn, latency) in next.iter_mut().zip(latencies) {
                if *turn > now {
                    continue;
                }
                match answer(&mut self.quota, wanted, batch, at(now)) {
                    0 => {
                        *turn = self.quota.resumes_at(at(now)).map_or(now + 1, |t| t.as_nanos().div_ceil(MB))
                    }
                    used => {
                        self.sent.push((now, used));
                        *turn = now + latency;
                    }
                }
            }
        }
    }

    fn within(&self, from: u64, to: u64) -> u64 {
        self.sent.iter().filter(|(when, _)| (from..to).contains(when)).map(|(_, bytes)| bytes).sum()
    }

    /// The most in any span of this length.
    fn most_in(&self, millis: u64) -> u64 {
        self.sent.iter().map(|(from, _)| self.within(*from, from + millis)).max().unwrap_or(0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ten_seconds_never_hold_more_than_five_percent_above_the_rate(
        bytes_per_second in 10_000_u64..1_000_000_000,
        batch_per_mille in 1_u64..=50,
        wanted_ms in 20_u64..2_000,
        idle in 0_u64..3_000,
        latencies in prop::collection::vec(1_u64..120, 1..6),
    ) {
        let rate = ByteRate::try_from(bytes_per_second).unwrap();
        // Batches of up to a twentieth of a second.
        let batch = (bytes_per_second * batch_per_mille / 1_000).max(1);
        let wanted = rate.bytes_in(Duration::from_millis(wanted_ms)).max(batch);
        let mut run = Run::new(rate);
        run.drive(0..12_000, wanted, batch, &latencies);
        run.drive(12_000 + idle..40_000, wanted, batch, &latencies);
        let allowed = rate.bytes_in(10 * SECOND) * 105 / 100;
        prop_assert!(run.most_in(10_000) <= allowed, "{} > {allowed}", run.most_in(10_000));
        // Whether the demand reaches the rate is the followers' business: what they ask for, and how often.
        let demand: f64 = latencies.iter().map(|l| wanted as f64 / (*l as f64 / 1_000.0)).sum();
        if demand > 4.0 * bytes_per_second as f64 {
            let moved = run.within(15_000, 40_000);
            prop_assert!(moved >= rate.bytes_in(25 * SECOND) * 9 / 10, "{moved} of {}", rate.bytes_in(25 * SECOND));
        }
    }

    #[test]
    fn batches_of_any_size_keep_the_rate_and_one_batch(
        bytes_per_second in 1_000_u64..10_000_000,
        batch in 1_u64..20_000_000,
        latency in 1_u64..100,
    ) {
        let rate = ByteRate::try_from(bytes_per_second).unwrap();
        let mut run = Run::new(rate);
        run.drive(0..30_000, u64::MAX, batch, &[latency]);
        let allowed = rate.bytes_in(10 * SECOND + CREDIT_MAX) + batch;
        prop_assert!(run.most_in(10_000) <= allowed, "{} > {allowed}", run.most_in(10_000));
        prop_assert!(!run.sent.is_empty(), "every batch gets through");
    }
}

#[test]
fn a_throttled_follower_asks_a_few_times_a_second() {
    for batch in [1, 100, 7_000, 25_000, 90_000] {
        let mut run = Run::new(rate("100kB/s"));
        run.drive(0..20_000, MB, batch, &[1]);
        let answers = run.sent.iter().filter(|(when, _)| *when >= 10_000).count();
        assert!(answers <= 50, "{answers} answers in 10 s with batches of {batch} bytes");
    }
}
