//! What the leader knows about one follower, learnt from its fetches only.
//!
//! What holds: within one leadership and one incarnation the acknowledged offset never falls; a refused or diverging fetch
//! changes nothing that counts (S24); an incarnation that was replaced is never accepted again (S64, design.md 6.3).
//!
//! ```text
//!   arrivals:   (t1, LEO 10) (t2, LEO 14) (t3, LEO 20)        acknowledged = 15
//!               `----- passed: last caught up = t2 ---´  `--- still open
//! ```
//! Acknowledgements trail several fetches while a follower reads ahead, so "caught up" (S49) is judged by the newest
//! arrival whose log end of then has been acknowledged by now.

use std::collections::VecDeque;
use std::time::Duration;

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{ErrorCode, Incarnation, MonotonicTime, Offset};

use crate::fetch::RequestOrder;
use crate::lag_cause::Delays;

/// Arrivals that are kept per follower while their log end is not acknowledged. When full, the newest is overwritten:
/// the oldest are the ones that are acknowledged first.
const MAX_OPEN_ARRIVALS: usize = 32;

/// Replaced incarnations that are remembered per follower and leadership. One more is refused until the next leadership.
const MAX_RETIRED_INCARNATIONS: usize = 64;

/// A fetch of a follower that passed every check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub now: MonotonicTime,
    pub incarnation: Incarnation,
    pub acknowledged: Offset,
    pub fetch_offset: Offset,
    pub log_start: Option<Offset>,
    pub high_watermark: Option<Offset>,
    pub paused: bool,
    /// Its own throttle keeps it from asking for records.
    pub throttled: bool,
    /// A person paused it.
    pub suspended: bool,
    /// The leader's log end at this moment, taken before the read (S21).
    pub leader_end: Offset,
}

/// How a follower's fetch of one partition was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// The offset after the records of the answer; `None` = it had none.
    pub end: Option<Offset>,
    /// How long the records were read.
    pub read: Duration,
    /// A quota left records out.
    pub throttled: bool,
    /// Its records could not be read.
    pub refusal: Option<ErrorCode>,
}

/// How long a replica that a quota held back counts as held back: a quota that goes on for a moment and pauses again is
/// the same throttle.
const THROTTLED_FOR: Duration = Duration::from_secs(1);

/// A follower that owes a fetch and sends none for longer than this does not fetch. One that is well fetches again at once,
/// or after the longest wait between two tries, `replica.fetch.backoff.max.ms`: 5 s, unless it is set.
const SILENT_AFTER: Duration = Duration::from_secs(6);

/// Whether a follower's program is there, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Presence {
    /// It is, or nothing else is known.
    #[default]
    There,
    /// Its connection closed and its port refuses; until it fetches again.
    Gone,
    /// It was gone and fetches again: it is not about to join the in-sync set until it has caught up since, whatever it held
    /// before. What it missed can take long to fetch, under a throttle above all, and nobody who writes waits for that.
    Returned,
}

/// A follower whose port refuses, and that sent no fetch for so long, does not live.
const QUIET: Duration = Duration::from_secs(1);

/// What is known about a follower.
#[derive(Clone, Debug, Default)]
pub(super) struct FollowerProgress {
    /// The latest request that was seen, of whatever incarnation.
    latest: Option<RequestOrder>,
    incarnation: Option<Incarnation>,
    retired: Vec<Incarnation>,
    acknowledged: Option<Offset>,
    fetch_offset: Option<Offset>,
    log_start: Option<Offset>,
    high_watermark: Option<Offset>,
    paused: bool,
    last_fetch: Option<MonotonicTime>,
    /// Until when its last fetch is parked, at the latest.
    parked_until: Option<MonotonicTime>,
    /// The last fetch that passed every check, its epoch among them.
    last_counted: Option<MonotonicTime>,
    last_caught_up: Option<MonotonicTime>,
    refusal: Option<ErrorCode>,
    diverging: bool,
    arrivals: VecDeque<(MonotonicTime, Offset)>,
    presence: Presence,
    /// Since when records are read for it.
    reading_since: Option<MonotonicTime>,
    /// The last answer, for the description.
    answered: Answered,
    /// Its last fetch said that its own throttle holds it back: it is, until it fetches again.
    throttles_itself: bool,
    /// Its last fetch said that a person paused it: it is, until it fetches again.
    suspended: bool,
    /// When a quota last left records out of an answer, or of a fetch.
    throttled_at: Option<MonotonicTime>,
    /// When records up to an offset were answered that no fetch has gone beyond yet.
    on_the_way: Option<(MonotonicTime, Offset)>,
    /// How long the last records were on the way: until a fetch went beyond them.
    last_way: Duration,
}

impl FollowerProgress {
    /// At the start of a leadership: nothing is acknowledged; a member of the in-sync set gets a grace period (S53).
    pub(super) fn at_leader_start(in_sync: bool, now: MonotonicTime) -> Self {
        let in_sync = in_sync && !is_planted(PlantedFault::NoGraceAtLeaderStart);
        Self { last_caught_up: in_sync.then_some(now), ..Self::default() }
    }

    pub(super) const fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    pub(super) const fn acknowledged(&self) -> Option<Offset> {
        self.acknowledged
    }

    /// What this incarnation of the follower acknowledged in this leadership; `None` = nothing, or it is another one.
    pub(super) fn acknowledged_as(&self, incarnation: Incarnation) -> Option<Offset> {
        if self.incarnation == Some(incarnation) { self.acknowledged } else { None }
    }

    pub(super) const fn fetch_offset(&self) -> Option<Offset> {
        self.fetch_offset
    }

    pub(super) const fn log_start(&self) -> Option<Offset> {
        self.log_start
    }

    pub(super) const fn high_watermark(&self) -> Option<Offset> {
        self.high_watermark
    }

    pub(super) const fn last_fetch(&self) -> Option<MonotonicTime> {
        self.last_fetch
    }

    pub(super) const fn last_counted(&self) -> Option<MonotonicTime> {
        self.last_counted
    }

    pub(super) const fn last_caught_up(&self) -> Option<MonotonicTime> {
        self.last_caught_up
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) const fn refusal(&self) -> Option<ErrorCode> {
        self.refusal
    }

    pub(super) const fn is_diverging(&self) -> bool {
        self.diverging
    }

    /// Whether it is known to be dead.
    pub(super) fn is_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// Whether it is known not to replicate, until it fetches otherwise: it is dead, or a person paused it.
    pub(super) fn replicates_no_more(&self) -> bool {
        self.is_gone() || self.suspended
    }

    /// S57: whether it is outside the in-sync set only because a change has not come to pass yet.
    pub(super) fn is_about_to_join(&self, leader_end: Offset, now: MonotonicTime, bound: Duration) -> bool {
        self.presence == Presence::There && !self.suspended && self.is_caught_up(leader_end, now, bound)
    }

    /// Whether a person paused it.
    pub(super) const fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Whether a quota held it back a moment ago, this leader's or its own.
    pub(super) fn is_throttled(&self, now: MonotonicTime) -> bool {
        self.throttles_itself || self.throttled_at.is_some_and(|at| now.since(at) <= THROTTLED_FOR)
    }

    /// Where the time of its records goes, as far as the leader sees it.
    pub(super) fn delays(&self, now: MonotonicTime) -> Delays {
        let so_far = self.on_the_way.map(|(since, _)| now.since(since)).unwrap_or_default();
        Delays { leader: self.answered.read, network: self.last_way.max(so_far), ..Delays::default() }
    }

    /// Whether a request was sent before one that was seen already: it was held back on its way, or it is a copy. Two that are
    /// in flight side by side can arrive in either order, so this is no fault of the follower's.
    pub(super) fn is_overtaken(&self, order: Option<RequestOrder>) -> bool {
        order.zip(self.latest).is_some_and(|(this, latest)| this < latest)
    }

    /// A request arrived.
    pub(super) fn note_order(&mut self, order: Option<RequestOrder>) {
        self.latest = self.latest.max(order);
        debug_assert!(self.latest >= order, "the latest one is kept");
        debug_assert!(!self.is_overtaken(self.latest), "which none overtook");
    }

    /// Whether a fetch of this incarnation may be looked at (S64). A new one replaces the old, whose progress is forgotten.
    ///
    /// # Errors
    /// `StaleIncarnation` when it was replaced before.
    pub(super) fn admit(&mut self, incarnation: Incarnation) -> Result<(), ErrorCode> {
        if self.incarnation == Some(incarnation) || is_planted(PlantedFault::OldIncarnationCounts) {
            self.incarnation = Some(incarnation);
            return Ok(());
        }
        if self.retired.contains(&incarnation) || self.retired.len() >= MAX_RETIRED_INCARNATIONS {
            return Err(ErrorCode::StaleIncarnation);
        }
        if self.incarnation.is_some() {
            self.retire();
        }
        self.incarnation = Some(incarnation);
        debug_assert!(!self.retired.contains(&incarnation), "a replaced incarnation is not accepted again");
        debug_assert!(self.acknowledged.is_none(), "a new incarnation's progress starts unknown");
        Ok(())
    }

    /// The current incarnation is not to be accepted again: it lost what it had acknowledged (design.md 6.3).
    pub(super) fn retire(&mut self) {
        let Some(incarnation) = self.incarnation.take() else { return };
        self.retired.push(incarnation);
        *self = Self {
            retired: std::mem::take(&mut self.retired),
            latest: self.latest,
            last_fetch: self.last_fetch,
            ..Self::default()
        };
        debug_assert!(self.retired.len() <= MAX_RETIRED_INCARNATIONS + 1, "the list is bounded");
        debug_assert!(self.acknowledged.is_none(), "its acknowledgements count no more");
    }

    /// A fetch that passed every check.
    pub(super) fn on_fetch(&mut self, arrival: &Arrival) {
        // Two requests of one follower can be timed in one order and counted in the other.
        let now = self.last_fetch.map_or(arrival.now, |last| last.max(arrival.now));
        debug_assert_eq!(self.incarnation, Some(arrival.incarnation), "admitted first");
        debug_assert!(
            arrival.acknowledged <= arrival.leader_end,
            "what it holds is a prefix of the leader's log"
        );
        let acknowledged =
            self.acknowledged.map_or(arrival.acknowledged, |before| before.max(arrival.acknowledged));
        self.acknowledged = Some(acknowledged);
        self.fetch_offset = Some(arrival.fetch_offset);
        self.log_start = arrival.log_start.or(self.log_start);
        self.high_watermark = arrival.high_watermark.or(self.high_watermark);
        self.paused = arrival.paused;
        self.suspended = arrival.suspended;
        if std::mem::replace(&mut self.throttles_itself, arrival.throttled) || arrival.throttled {
            self.throttled_at = Some(now);
        }
        if let Some((since, _)) = self.on_the_way.take_if(|(_, end)| arrival.fetch_offset >= *end) {
            self.last_way = now.since(since);
        }
        self.last_fetch = Some(now);
        self.last_counted = Some(now);
        if self.is_gone() {
            self.presence = Presence::Returned;
        }
        self.reading_since = None;
        self.refusal = None;
        self.diverging = false;
        while let Some((at, end)) = self.arrivals.front().copied()
            && end <= acknowledged
        {
            self.on_caught_up(at);
            self.arrivals.pop_front();
        }
        if acknowledged >= arrival.leader_end {
            self.on_caught_up(now);
        } else {
            self.open_arrival(now, arrival.leader_end);
        }
        debug_assert!(self.arrivals.iter().all(|(_, end)| *end > acknowledged), "passed arrivals are gone");
    }

    /// It holds what the log had at `at`. What arrived before it was gone says nothing of what it missed.
    fn on_caught_up(&mut self, at: MonotonicTime) {
        self.last_caught_up = self.last_caught_up.max(Some(at));
        if self.presence == Presence::Returned {
            self.presence = Presence::There;
        }
        debug_assert!(self.last_caught_up >= Some(at), "nobody is late for having caught up");
    }

    /// It is dead, as far as is known.
    pub(super) fn on_gone(&mut self) {
        let before = self.acknowledged;
        self.presence = Presence::Gone;
        self.arrivals.clear();
        self.reading_since = None;
        debug_assert_eq!(self.acknowledged, before, "what it acknowledged it holds");
        debug_assert!(self.reading_since.is_none(), "nobody reads for the dead");
    }

    /// Its fetch is parked, until `deadline` at the latest: so long it owes no other. For the description only.
    pub(super) fn on_parked(&mut self, deadline: MonotonicTime) {
        self.parked_until = self.parked_until.max(Some(deadline));
    }

    /// Its session polled, and this partition had not changed: if it holds everything, it was caught up then (design.md 4).
    pub(super) fn on_session_poll(&mut self, at: MonotonicTime, leader_end: Offset) {
        if self.acknowledged.is_none_or(|held| held < leader_end) {
            return;
        }
        self.last_fetch = self.last_fetch.max(Some(at));
        self.last_counted = self.last_counted.max(Some(at));
        self.on_caught_up(at);
        debug_assert!(self.last_caught_up >= Some(at), "a poll at the end is being caught up");
        debug_assert!(self.last_fetch >= Some(at), "and it is a fetch");
    }

    /// Records are read for it from now on.
    pub(super) fn on_read_begins(&mut self, now: MonotonicTime) {
        if self.last_fetch.is_none() {
            // A fetch was parked while the replica was taken out and assigned again: nothing is known of the new one.
            return;
        }
        self.reading_since = self.reading_since.or(Some(now));
        debug_assert!(self.reading_since.is_some_and(|since| since <= now), "it began by now");
        debug_assert!(self.reading_since.is_some(), "and it goes on");
    }

    /// `span` of time, until `now`, does not count against it: the leader was slow, not the follower.
    pub(super) fn excuse(&mut self, span: Duration, now: MonotonicTime) {
        let before = self.last_caught_up;
        let later = |at: &mut MonotonicTime| *at = at.after(span).min(now).max(*at);
        self.last_caught_up.as_mut().map(later);
        self.arrivals.iter_mut().for_each(|(at, _)| later(at));
        debug_assert!(self.last_caught_up >= before, "an excuse makes nobody late");
        debug_assert!(self.arrivals.iter().is_sorted(), "arrivals stay in order");
    }

    /// A fetch was answered: for the description, and what the leader's reading took is excused. The oldest answer that is on
    /// its way is the one that is watched.
    pub(super) fn on_answered(&mut self, answered: Answered, now: MonotonicTime) {
        if is_planted(PlantedFault::ParkedFetchCounts) {
            self.acknowledged = self.acknowledged.max(answered.end);
        }
        let before = self.acknowledged;
        self.answered = answered;
        self.parked_until = self.parked_until.min(Some(now));
        self.refusal = answered.refusal.or(self.refusal);
        if answered.throttled {
            self.throttled_at = Some(now);
        }
        let slow = self.reading_since.take().map_or(answered.read, |since| now.since(since));
        self.excuse(slow, now);
        if let Some(end) = answered.end {
            self.on_the_way.get_or_insert((now, end));
        }
        debug_assert_eq!(self.acknowledged, before, "an answer acknowledges nothing");
        debug_assert!(answered.end.is_none() || self.on_the_way.is_some(), "records are on their way");
    }

    /// A fetch was refused or found to differ: for the description only (S24).
    pub(super) fn on_refused(&mut self, code: Option<ErrorCode>, now: MonotonicTime) {
        let before = self.acknowledged;
        self.last_fetch = self.last_fetch.max(Some(now));
        self.refusal = code;
        self.diverging = code.is_none();
        debug_assert_eq!(self.acknowledged, before, "a refused fetch acknowledges nothing");
    }

    /// S50: equal to the leader's log end, or caught up within `bound`, not counting a read for it that is under way. Such a
    /// read excuses `bound` at most: its end may never be told, when the follower died meanwhile.
    pub(super) fn is_caught_up(&self, leader_end: Offset, now: MonotonicTime, bound: Duration) -> bool {
        let reading = self.reading_since.map(|since| now.since(since).min(bound)).unwrap_or_default();
        self.acknowledged.is_some_and(|offset| offset >= leader_end)
            || self.last_caught_up.is_some_and(|at| now.since(at) <= bound.saturating_add(reading))
    }

    /// What of it decides about the in-sync set and the high watermark, of `node` at `now`.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn essence(
        &self,
        node: highwater_types::NodeId,
        now: MonotonicTime,
        bound: Duration,
    ) -> super::FollowerOfLeader {
        let recent = |at: MonotonicTime| now.since(at) <= bound;
        let mut retired = self.retired.clone();
        retired.sort_unstable();
        super::FollowerOfLeader {
            node,
            incarnation: self.incarnation,
            retired,
            acknowledged: self.acknowledged,
            is_fetching: self.is_fetching(now, bound),
            caught_up: self.last_caught_up.map(recent),
            arrivals: self.arrivals.iter().map(|(at, end)| (recent(*at), *end)).collect(),
            presence: self.presence,
            is_read_for: self.reading_since.is_some(),
            latest: self.latest,
        }
    }

    /// Whether it fetched within `bound`.
    pub(super) fn is_fetching(&self, now: MonotonicTime, bound: Duration) -> bool {
        self.last_fetch.is_some_and(|at| now.since(at) <= bound)
    }

    /// Whether it is dead, or has sent no fetch for longer than one that is well would: `bound` where it has said that it will
    /// send none for a while, or is not known to have what it was answered, else [`SILENT_AFTER`] if that is shorter.
    pub(super) fn is_silent(&self, now: MonotonicTime, bound: Duration) -> bool {
        let owes_none =
            self.paused || self.throttles_itself || self.reading_since.is_some() || self.on_the_way.is_some();
        let bound = if owes_none { bound } else { bound.min(SILENT_AFTER) };
        let parked = self.parked_until.map(|until| until.min(now));
        self.is_gone() || self.last_fetch.is_none_or(|at| now.since(at.max(parked.unwrap_or(at))) > bound)
    }

    /// Whether it is not known to be dead, but has sent no fetch for [`QUIET`], and has none that is parked.
    pub(super) fn is_quiet(&self, now: MonotonicTime) -> bool {
        let heard = self.last_fetch.max(self.parked_until.map(|until| until.min(now)));
        !self.is_gone() && heard.is_none_or(|at| now.since(at) > QUIET)
    }

    fn open_arrival(&mut self, now: MonotonicTime, leader_end: Offset) {
        let is_full = self.arrivals.len() >= MAX_OPEN_ARRIVALS;
        // An excuse can have moved an earlier one beyond the time at which this one was taken.
        let now = self.arrivals.back().map_or(now, |(at, _)| now.max(*at));
        match self.arrivals.back_mut() {
            Some(newest) if is_full || newest.1 == leader_end => *newest = (now, leader_end),
            Some(_) | None => self.arrivals.push_back((now, leader_end)),
        }
        debug_assert!(self.arrivals.len() <= MAX_OPEN_ARRIVALS, "the list is bounded");
        debug_assert!(self.arrivals.iter().is_sorted(), "arrivals and log ends rise");
    }
}

#[cfg(test)]
#[path = "follower_progress_test.rs"]
mod tests;
