//! The checks that a fetch passes, in order (S18): leadership epoch, leadership, divergence, range, then the read.
//!
//! Pure functions over a snapshot of facts. What holds: the epoch is checked before the leadership; a fetch offset below
//! the log start is out of range before a divergence is reported (KAFKA-12996); an undefined epoch answer is out of range
//! and never a place to cut. The checks before these (known partition, identity) need the node's tables and are made where
//! the partition is looked up; whether the requester is an assigned replica is the leader's to know.

use highwater_types::{
    ErrorCode, LeaderEpoch, LeaderEpochCache, NodeId, Offset, OffsetAndEpoch, ReplicationError,
};

use super::FetchPartition;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Reads up to the high watermark.
    Consumer,
    /// Reads up to the log end (S26).
    Follower(NodeId),
    /// Reads what its replica lost up to the log end, as a follower does, and is counted for nothing (design.md 2).
    Repair,
}

/// What the log says, all of one moment (S21, S22).
#[derive(Clone, Copy, Debug)]
pub struct LogFacts<'a> {
    /// The first retained offset.
    pub log_start: Offset,
    /// The log end (exclusive).
    pub log_end: Offset,
    /// Where each leadership began.
    pub epochs: &'a LeaderEpochCache,
}

/// What a replica says about itself when somebody wants to read from it.
#[derive(Clone, Copy, Debug)]
pub struct PartitionFacts<'a> {
    /// The newest leadership that it knows.
    pub leader_epoch: LeaderEpoch,
    /// Whether it is the leader of that epoch.
    pub is_leader: bool,
    /// Its high watermark.
    pub high_watermark: Offset,
    /// Its log.
    pub log: LogFacts<'a>,
}

/// The bounds that an answer states; of one moment, taken before the read (S21, S22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The high watermark (exclusive).
    pub high_watermark: Offset,
    /// The first retained offset.
    pub log_start: Offset,
    /// The log end (exclusive); what "caught up" is judged by.
    pub log_end: Offset,
}

/// What the position of a fetch means in this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The requester's log agrees up to its fetch offset.
    Agrees,
    /// It does not: the requester cuts to this and asks again.
    Diverging(OffsetAndEpoch),
    /// Below the log start, beyond the end, or of an epoch that this log does not know.
    OutOfRange,
}

/// What to read for a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// What the answer states, whatever is read.
    pub snapshot: Snapshot,
    /// The result of the check: agrees, or where to cut.
    pub diverging: Option<OffsetAndEpoch>,
    /// Read from here …
    pub from: Offset,
    /// … up to here (exclusive); not above `from` when there is nothing to read.
    pub upper: Offset,
    /// Whether an in-sync follower asks. It reads what was written a moment ago and checks it itself, so nobody else has to.
    pub in_sync: bool,
}

impl ReadPlan {
    /// Whether there is something to read.
    #[must_use]
    pub fn has_records(&self) -> bool {
        self.diverging.is_none() && self.from < self.upper
    }
}

/// Compares the leadership that the requester believes in with the one known here (S19, KIP-320).
///
/// # Errors
/// `FencedLeaderEpoch` when the requester's is older, `UnknownLeaderEpoch` when this node's is.
pub fn check_epoch(requested: Option<LeaderEpoch>, current: LeaderEpoch) -> Result<(), ReplicationError> {
    match requested {
        Some(epoch) if epoch < current => Err(ReplicationError::new(
            ErrorCode::FencedLeaderEpoch,
            format!("leader epoch {} is over; the current one is {}", epoch.get(), current.get()),
        )),
        Some(epoch) if epoch > current => Err(ReplicationError::new(
            ErrorCode::UnknownLeaderEpoch,
            format!(
                "leader epoch {} is not known here yet; the newest known is {}",
                epoch.get(),
                current.get()
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// The leadership part of the ordered check: epoch first, then whether this replica may answer (S18).
///
/// # Errors
/// As [`check_epoch`]; `NotLeaderOrFollower` when a follower asks a replica that does not lead.
pub fn check_leadership(
    requester: Requester,
    request: &FetchPartition,
    facts: &PartitionFacts<'_>,
) -> Result<(), ReplicationError> {
    check_epoch(request.current_leader_epoch, facts.leader_epoch)?;
    match requester {
        Requester::Follower(_) | Requester::Repair if !facts.is_leader => Err(ReplicationError::new(
            ErrorCode::NotLeaderOrFollower,
            "this node does not lead the partition; followers fetch from the leader only",
        )),
        Requester::Follower(_) | Requester::Repair | Requester::Consumer => Ok(()),
    }
}

/// Divergence and range (S23).
#[must_use]
pub fn check_position(
    fetch_offset: Offset,
    last_fetched_epoch: Option<LeaderEpoch>,
    log: &LogFacts<'_>,
) -> Position {
    if fetch_offset < log.log_start {
        return Position::OutOfRange;
    }
    if let Some(asked) = last_fetched_epoch {
        return match log.epochs.end_offset_for(asked, log.log_end) {
            None => Position::OutOfRange,
            Some(end) if end.epoch < asked || end.offset < fetch_offset => Position::Diverging(end),
            Some(_) => Position::Agrees,
        };
    }
    if fetch_offset > log.log_end { Position::OutOfRange } else { Position::Agrees }
}

/// Decides what a fetch reads, after [`check_leadership`] and the caller's own checks.
///
/// # Errors
/// `OffsetOutOfRange`, with the range that there is.
pub fn plan_read(
    requester: Requester,
    request: &FetchPartition,
    facts: &PartitionFacts<'_>,
) -> Result<ReadPlan, ReplicationError> {
    let log = &facts.log;
    let snapshot =
        Snapshot { high_watermark: facts.high_watermark, log_start: log.log_start, log_end: log.log_end };
    let from = request.fetch_offset;
    let upper = match requester {
        Requester::Consumer => facts.high_watermark.min(log.log_end),
        Requester::Follower(_) | Requester::Repair => log.log_end,
    };
    match check_position(from, request.last_fetched_epoch, log) {
        Position::Agrees => Ok(ReadPlan { snapshot, diverging: None, from, upper, in_sync: false }),
        Position::Diverging(at) => {
            Ok(ReadPlan { snapshot, diverging: Some(at), from, upper: from, in_sync: false })
        }
        Position::OutOfRange => Err(ReplicationError::new(
            ErrorCode::OffsetOutOfRange,
            match request.last_fetched_epoch {
                Some(epoch) => format!(
                    "offset {from} (last epoch {epoch}) is outside of {}..{}",
                    log.log_start, log.log_end
                ),
                None => format!("offset {from} is outside of {}..{}", log.log_start, log.log_end),
            },
        )),
    }
}

/// The answer to an epoch query (OffsetsForLeaderEpoch): where `asked` ends in this log (S37). `None` = undefined, also
/// for "no epoch", which never means the log end (KAFKA-6857).
#[must_use]
pub fn epoch_end_offset(asked: Option<LeaderEpoch>, log: &LogFacts<'_>) -> Option<OffsetAndEpoch> {
    log.epochs.end_offset_for(asked?, log.log_end)
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
