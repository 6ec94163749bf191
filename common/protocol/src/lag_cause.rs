//! Why a replica lags: one word, the same wherever lag is shown (descriptions, spans, metrics).
//!
//! Leader and follower each see a part of the facts, and name the cause by the same rule; what one of them cannot see is
//! not set. What holds: the first that applies, from what keeps a replica from fetching at all to what slows it; a
//! replica that lacks nothing has no cause.

use std::time::Duration;

/// A part of the way of a record that takes at least this is slow.
const SLOW: Duration = Duration::from_millis(100);

/// Why a replica lags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LagCause {
    /// It does not.
    None,
    /// It knows no leader, or not where the leader is.
    LeaderUnknown,
    /// A person paused it.
    Paused,
    /// It waits after an error.
    BackOff,
    /// It finds out where its log differs, and cuts.
    Truncating,
    /// It has not fetched in this leadership, or owed a fetch and sent none for long.
    NotFetching,
    /// A quota holds it back.
    Throttled,
    /// The leader takes long to answer what it has.
    LeaderSlow,
    /// Answers take long to arrive, or none comes.
    Network,
    /// Its disk failed or lost records, or it takes long to append or to flush.
    FollowerDisk,
    /// It reads records that are not the newest ones, and nothing is slow.
    CatchingUp,
}

impl LagCause {
    /// Every cause, for tables.
    pub const ALL: [Self; 11] = [
        Self::None,
        Self::LeaderUnknown,
        Self::Paused,
        Self::BackOff,
        Self::Truncating,
        Self::NotFetching,
        Self::Throttled,
        Self::LeaderSlow,
        Self::Network,
        Self::FollowerDisk,
        Self::CatchingUp,
    ];

    /// The cause where whoever asks knows besides whether a quota holds the replica back: by the same order.
    #[must_use]
    pub fn if_throttled(self, held: bool) -> Self {
        if held { self.min(Self::Throttled) } else { self }
    }

    /// The word for people, spans and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::LeaderUnknown => "leader-unknown",
            Self::Paused => "paused",
            Self::BackOff => "back-off",
            Self::Truncating => "truncating",
            Self::NotFetching => "not-fetching",
            Self::Throttled => "throttled",
            Self::LeaderSlow => "leader-slow",
            Self::Network => "network",
            Self::FollowerDisk => "follower-disk",
            Self::CatchingUp => "catching-up",
        }
    }
}

/// Where the time of a record went, from the leader's append until the follower held it (design.md 7). The parts add up to
/// the replication lag; each is a difference of one clock, so no skew enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// It lay in the leader's log before the follower asked for it.
    pub behind: Duration,
    /// The leader had it, was asked for it, and had not answered.
    pub leader: Duration,
    /// The round trip, without the time that the leader held the request.
    pub network: Duration,
    /// From the answer's arrival until append, or flush, was done.
    pub disk: Duration,
}

impl Delays {
    /// The replication lag.
    #[must_use]
    pub fn lag(&self) -> Duration {
        let parts = [self.behind, self.leader, self.network, self.disk];
        parts.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The slowest part, where one is slow. That a record lay there is a consequence.
    fn slow(&self) -> Option<LagCause> {
        let parts = [
            (self.leader, LagCause::LeaderSlow),
            (self.network, LagCause::Network),
            (self.disk, LagCause::FollowerDisk),
        ];
        parts.into_iter().filter(|(time, _)| *time >= SLOW).max_by_key(|(time, _)| *time).map(|(_, why)| why)
    }
}

/// What is known of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LagFacts {
    /// Records that it lacks, up to the leader's log end from what it acknowledges; `None` = not known.
    pub lag_records: Option<u64>,
    /// No leader is known, or not where it is.
    pub leader_unknown: bool,
    /// A person paused it.
    pub paused: bool,
    /// Its disk failed or lost records, and it waits for that to end.
    pub disk_failed: bool,
    /// The last call of its leader had no answer, and none has had one since.
    pub unanswered: bool,
    /// It waits after an error, or its last fetch was refused.
    pub backing_off: bool,
    /// It finds out where its log differs, or cuts.
    pub truncating: bool,
    /// It has not fetched, or owed a fetch and sent none for long.
    pub silent: bool,
    /// A quota holds it back.
    pub throttled: bool,
    /// It has read everything, or may read no more, until appends or flushes are done.
    pub awaits_disk: bool,
    /// Where the time of the last records went.
    pub delays: Option<Delays>,
}

impl LagFacts {
    /// The cause.
    #[must_use]
    pub fn cause(&self) -> LagCause {
        if self.leader_unknown {
            LagCause::LeaderUnknown
        } else if self.lag_records == Some(0) {
            LagCause::None
        } else if self.paused {
            LagCause::Paused
        } else if self.disk_failed {
            LagCause::FollowerDisk
        } else if self.unanswered {
            LagCause::Network
        } else if self.backing_off {
            LagCause::BackOff
        } else if self.truncating {
            LagCause::Truncating
        } else if self.silent {
            LagCause::NotFetching
        } else if self.throttled {
            LagCause::Throttled
        } else if let Some(slow) = self.delays.and_then(|delays| delays.slow()) {
            slow
        } else if self.awaits_disk {
            LagCause::FollowerDisk
        } else {
            LagCause::CatchingUp
        }
    }
}

/// Why records that are now held took as long as `delays` say; `left` are the records that are still lacking.
#[must_use]
pub fn cause_of_answer(delays: &Delays, left: u64, throttled: bool) -> LagCause {
    let was_behind = left > 0 || delays.lag() >= SLOW;
    let lacked = if was_behind { left.max(1) } else { 0 };
    LagFacts { lag_records: Some(lacked), throttled, delays: Some(*delays), ..LagFacts::default() }.cause()
}

#[cfg(test)]
#[path = "lag_cause_test.rs"]
mod tests;
