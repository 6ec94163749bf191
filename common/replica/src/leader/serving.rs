//! What a leader answers: fetches of followers and consumers, look-ups by time and by epoch.
//!
//! What must hold: the log is looked at while the core is locked, so that no high watermark is seen beside an older log end
//! (S22).

use highwater_log::{LogRead, OffsetRange, ReadError, ReadLimits, Storage, TimestampHit};
use highwater_protocol::delayed_fetch::{FetchCompletion, Probe, ProbeFacts};
use highwater_protocol::fetch::{
    FetchPartition, LostRange, Position, ReadPlan, Requester, check_epoch, check_position, epoch_end_offset,
};
use highwater_protocol::leader::Answered;
use highwater_types::{
    ErrorCode, LeaderEpoch, MonotonicTime, NodeId, Offset, OffsetAndEpoch, ReplicationError, TraceContext,
    WallTime,
};

use super::LeaderReplica;
use crate::log_facts;

impl<S: Storage> LeaderReplica<S> {
    /// A fetch arrived: checks it and counts what a follower acknowledges (S25).
    ///
    /// # Errors
    /// What the checks found (S18–S24).
    pub fn on_fetch(
        &self,
        requester: Requester,
        request: &FetchPartition,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        let mut core = self.core.lock();
        let snapshot = self.log.snapshot();
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        match requester {
            Requester::Follower(node) => core.on_follower_fetch(node, request, &facts, now),
            other @ (Requester::Consumer | Requester::Repair) => core.plan_other_read(other, request, &facts),
        }
    }

    /// The session of `follower` polled at `at` with this partition in it, unchanged. Call it before the append that ends
    /// equality (design.md 4).
    pub fn on_session_poll(&self, follower: NodeId, at: MonotonicTime) {
        self.core.lock().on_session_poll(follower, at);
    }

    /// What this log has on record as lost, in order: for its followers, which get it from nobody else.
    pub fn lost_ranges(&self) -> Vec<LostRange> {
        let damage = self.log.damage();
        if damage.is_empty() {
            return Vec::new();
        }
        let epochs = self.log.epochs();
        let lost = |range: OffsetRange| {
            let began = epochs.entries().iter().filter(|entry| range.contains(entry.start));
            LostRange { start: range.start, end: range.end, epochs: began.copied().collect() }
        };
        // What was lost twice, once more of it than before, is told once.
        OffsetRange::merged(damage.iter().map(|d| d.range)).into_iter().map(lost).collect()
    }

    /// Records are read for a follower from now on, until [`Self::on_follower_answered`]: that time is not its lag.
    pub fn on_follower_reads(&self, follower: NodeId, now: MonotonicTime) {
        self.core.lock().on_follower_reads(follower, now);
    }

    /// A follower's fetch is parked, until `deadline` at the latest: for the description.
    pub fn on_follower_parked(&self, follower: NodeId, deadline: MonotonicTime) {
        self.core.lock().on_follower_parked(follower, deadline);
    }

    /// A follower's fetch was answered: for the description, and what reading took is not its lag.
    pub fn on_follower_answered(&self, follower: NodeId, answered: Answered, now: MonotonicTime) {
        self.core.lock().on_follower_answered(follower, answered, now);
    }

    /// The same checks for a fetch that was parked; counts nothing (S25).
    ///
    /// # Errors
    /// What the checks found.
    pub fn plan(&self, requester: Requester, request: &FetchPartition) -> Result<ReadPlan, ReplicationError> {
        let core = self.core.lock();
        let snapshot = self.log.snapshot();
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        match requester {
            Requester::Follower(node) => core.plan_follower_read(node, request, &facts),
            other @ (Requester::Consumer | Requester::Repair) => core.plan_other_read(other, request, &facts),
        }
    }

    /// What a parked fetch needs to know of the partition now.
    pub fn probe(&self, requester: Requester, request: &FetchPartition) -> Probe {
        let (snapshot, is_over, high_watermark, propagated) = {
            let core = self.core.lock();
            (self.log.snapshot(), core.is_over(), core.high_watermark(), core.propagated_high_watermark())
        };
        if is_over {
            return Probe::Unreadable(FetchCompletion::LeadershipLost);
        }
        let log_end = snapshot.positions.log_end;
        let upper = match requester {
            Requester::Follower(_) | Requester::Repair => log_end,
            Requester::Consumer => high_watermark.min(log_end),
        };
        let facts = log_facts(&snapshot.positions, &snapshot.epochs);
        let position = check_position(request.fetch_offset, request.last_fetched_epoch, &facts);
        Probe::Readable(ProbeFacts {
            leader_epoch: self.epoch,
            upper,
            log_end,
            active_segment: snapshot.active_segment,
            available_bytes: self.bytes_between(request.fetch_offset, upper),
            propagated_high_watermark: propagated,
            diverging: position != Position::Agrees,
        })
    }

    /// When the record at `offset` was appended here; `None` when that is not remembered.
    pub fn appended_at(&self, offset: Offset) -> Option<MonotonicTime> {
        self.history.lock().appended_at(offset)
    }

    /// The traces of recent appends that begin from `from` on and before `to`.
    pub fn traces(&self, from: Offset, to: Offset) -> Vec<(Offset, TraceContext)> {
        self.history.lock().traces(from, to)
    }

    /// Reads whole batches. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::read`](highwater_log::Log::read).
    pub fn read(&self, from: Offset, limits: ReadLimits) -> Result<LogRead, ReadError> {
        self.log.read(from, limits)
    }

    /// The first record below `upper` at or after `timestamp`. *Blocks.*
    ///
    /// # Errors
    /// As [`Log::offset_for_timestamp`](highwater_log::Log::offset_for_timestamp).
    pub fn offset_for_timestamp(
        &self,
        timestamp: WallTime,
        upper: Offset,
    ) -> Result<Option<TimestampHit>, ReadError> {
        self.log.offset_for_timestamp(timestamp, upper)
    }

    /// Where `asked` ends in this log (OffsetsForLeaderEpoch, S37); `None` = undefined.
    ///
    /// # Errors
    /// As [`check_epoch`] for the epoch that the requester believes in; `NotLeaderOrFollower` after the end.
    pub fn epoch_end_offset(
        &self,
        current: Option<LeaderEpoch>,
        asked: Option<LeaderEpoch>,
    ) -> Result<Option<OffsetAndEpoch>, ReplicationError> {
        check_epoch(current, self.epoch)?;
        if self.is_over() {
            return Err(ReplicationError::new(
                ErrorCode::NotLeaderOrFollower,
                "this node leads the partition no more",
            ));
        }
        let snapshot = self.log.snapshot();
        Ok(epoch_end_offset(asked, &log_facts(&snapshot.positions, &snapshot.epochs)))
    }

    /// About how many bytes there are between two offsets; 0 where the second is not the higher one.
    pub fn bytes_between(&self, from: Offset, to: Offset) -> u64 {
        if from >= to {
            return 0;
        }
        let exact = self.history.lock().bytes_between(from, to);
        // The log's estimate can be 0 for a few records: there is at least a byte.
        exact.unwrap_or_else(|| self.log.bytes_between(from, to).max(1))
    }
}
