//! How fast replicas that are catching up may replicate (S66–S70).
//!
//! A quota lets bytes through at its rate and remembers what it owes: after a batch larger than what was left it lets
//! nothing through until that is paid. What holds:
//! - Over any span it lets through at most its rate, plus [`CREDIT_MAX`] of the rate, plus one batch: the first one of an
//!   answer is whole even where it is larger than what is left (S32), so that every batch gets through in the end.
//! - A replica that is in sync, and a consumer, are never held back; what a listed replica in sync reads counts all the
//!   same (S69), but makes the others wait for at most [`COUNTED_DEBT_MAX`].
//! - It pauses when little is left and goes on when there is enough for one good answer, so whoever waits for it does not ask
//!   for every byte (S14, S70), and never saves up for a burst of answers either: an in-sync partition of the same request
//!   would wait for each of them.
//!
//! The reference decides before the read and counts after it, without a reservation, so that every request in flight may
//! overshoot (S69). Here the bytes are reserved when they are about to be read, and what was not used is given back.
//! Deliberately absent: whom a throttle lists, and the wait.

use std::time::Duration;

use highwater_types::{ByteRate, MonotonicTime};

/// The most that is saved up while nobody asks, as a span of the rate: less than 5 % of ten seconds.
pub const CREDIT_MAX: Duration = Duration::from_millis(450);

/// A good answer: after a pause the quota lets something through again when so many bytes may go. The reference's
/// `replica.fetch.max.bytes`.
pub const GOOD_ANSWER_BYTES: u64 = 1 << 20;

/// The longest that a quota without debt saves up for a good answer: a low rate gives four smaller ones a second.
pub const RESUME_MAX: Duration = Duration::from_millis(250);

/// The shortest: a high rate gives a hundred answers a second, each a larger one.
pub const RESUME_MIN: Duration = Duration::from_millis(10);

/// The most that counted bytes of replicas in sync make the others wait; a reference's window forgets as well.
pub const COUNTED_DEBT_MAX: Duration = Duration::from_secs(1);

/// What a quota means for one replica in one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metering {
    /// Nothing: it is not listed, or a consumer asks.
    #[default]
    Free,
    /// It is in sync: it reads what it likes, and that counts.
    Counted,
    /// It is catching up: it shares what is left with the others that are.
    Metered,
    /// It is catching up, and nothing is left: it is left out.
    Withheld,
}

/// A quota of replication. Time is an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationQuota {
    rate: ByteRate,
    /// What was let through is paid for up to this time, in nanoseconds: before now it is credit, after it debt.
    paid_until: i128,
    paused: bool,
}

impl ReplicationQuota {
    /// A quota that has enough for a first answer.
    #[must_use]
    pub fn new(rate: ByteRate, now: MonotonicTime) -> Self {
        Self { rate, paid_until: nanos(now) - span_nanos(resume_at(rate)), paused: false }
    }

    /// The rate.
    #[must_use]
    pub const fn rate(&self) -> ByteRate {
        self.rate
    }

    /// From now on another rate: what is owed stays owed in bytes, and is paid at the new rate.
    pub fn set_rate(&mut self, rate: ByteRate, now: MonotonicTime) {
        let owed = self.rate.bytes_in(self.debt(now));
        self.rate = rate;
        self.paid_until = self.paid_until.min(nanos(now)) + span_nanos(rate.time_for(owed));
        self.paused = self.paused && self.credit(now) < resume_at(rate);
        debug_assert!(owed > 0 || self.debt(now).is_zero(), "a change of the rate makes no debt");
        debug_assert!(self.credit(now) <= CREDIT_MAX, "nor credit");
    }

    /// What the quota means for a replica now.
    pub fn metering(&mut self, listed: bool, in_sync: bool, now: MonotonicTime) -> Metering {
        match (listed, in_sync) {
            (false, _) => Metering::Free,
            (true, true) => Metering::Counted,
            (true, false) if self.room(now) > 0 => Metering::Metered,
            (true, false) => Metering::Withheld,
        }
    }

    /// How many bytes may go now; 0 while it pauses.
    pub fn room(&mut self, now: MonotonicTime) -> u64 {
        let credit = self.credit(now);
        if self.paused && credit < resume_at(self.rate) {
            return 0;
        }
        self.paused = false;
        let room = self.rate.bytes_in(credit);
        debug_assert!(room <= self.rate.bytes_in(CREDIT_MAX), "credit is bounded");
        room
    }

    /// Takes up to `wanted` bytes before they are read; 0 = nothing may be read now. [`Self::settle`] it in any case.
    pub fn reserve(&mut self, wanted: u64, now: MonotonicTime) -> u64 {
        let granted = self.room(now).min(wanted);
        self.take(granted, now);
        debug_assert!(granted <= wanted, "no more than was wanted");
        granted
    }

    /// What became of a reservation: what was not used is given back, and what a first batch took more is owed.
    pub fn settle(&mut self, reserved: u64, used: u64, now: MonotonicTime) {
        if used >= reserved {
            self.take(used - reserved, now);
        } else {
            self.paid_until -= span_nanos(self.rate.time_for(reserved - used));
            self.pause_if_low(now);
        }
        debug_assert!(self.credit(now) <= CREDIT_MAX, "credit is bounded");
        debug_assert!(
            self.paused || self.credit(now) >= resume_at(self.rate) / 2,
            "it pauses when little is left"
        );
    }

    /// Counts bytes of replicas that are in sync (S69).
    pub fn count(&mut self, bytes: u64, now: MonotonicTime) {
        let before = self.paid_until;
        self.take(bytes, now);
        self.paid_until = self.paid_until.min(before.max(nanos(now) + span_nanos(COUNTED_DEBT_MAX)));
        debug_assert!(self.paid_until >= before, "counting gives nothing back");
        debug_assert!(
            self.debt(now) <= COUNTED_DEBT_MAX || self.paid_until == before,
            "in-sync replicas do not starve the others"
        );
    }

    /// When a paused quota goes on; `None` = it lets something through now.
    #[must_use]
    pub fn resumes_at(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        let resume_at = resume_at(self.rate);
        if !self.paused || self.credit(now) >= resume_at {
            return None;
        }
        let at = self.paid_until + span_nanos(resume_at);
        Some(MonotonicTime::from_nanos(u64::try_from(at).unwrap_or(u64::MAX)))
    }

    fn take(&mut self, bytes: u64, now: MonotonicTime) {
        let floor = nanos(now) - span_nanos(CREDIT_MAX);
        self.paid_until = self.paid_until.max(floor) + span_nanos(self.rate.time_for(bytes));
        self.pause_if_low(now);
    }

    fn pause_if_low(&mut self, now: MonotonicTime) {
        self.paused |= self.credit(now) < resume_at(self.rate) / 2;
    }

    /// What may go now, as a span of the rate.
    fn credit(&self, now: MonotonicTime) -> Duration {
        span(nanos(now) - self.paid_until).min(CREDIT_MAX)
    }

    /// What is owed, as a span of the rate.
    fn debt(&self, now: MonotonicTime) -> Duration {
        span(self.paid_until - nanos(now))
    }
}

/// So much must be there, as a span of the rate, before a paused quota lets something through again; with less than half of it
/// left it pauses.
fn resume_at(rate: ByteRate) -> Duration {
    rate.time_for(GOOD_ANSWER_BYTES).clamp(RESUME_MIN, RESUME_MAX)
}

/// Whether a follower may take its own replica for in sync (S67, S68): the record says so, or it has read everything that
/// its leader had at the last answer. An unknown lag is none of both.
#[must_use]
pub fn follower_in_sync(recorded: bool, lag: Option<u64>) -> bool {
    recorded || lag == Some(0)
}

fn nanos(time: MonotonicTime) -> i128 {
    i128::from(time.as_nanos())
}

fn span_nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}

/// Nothing for what is negative.
fn span(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "quota_test.rs"]
mod tests;
