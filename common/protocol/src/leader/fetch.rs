//! Fetches at the leader: the checks that only the leader can make, what an arrival counts, what a reader gets.
//!
//! What holds: a fetch that is refused or diverges acknowledges nothing (S24); only an arrival counts, never the completion
//! of a parked fetch (S25). A request that a later one of its follower overtook reads, and nothing else: what it says was true once,
//! and judged by it a follower that has cut since would have lost what it holds (design.md 6.3).

use highwater_types::planted::{PlantedFault, is_planted};
use highwater_types::{Durability, ErrorCode, Incarnation, MonotonicTime, NodeId, Offset, ReplicationError};

use super::LeaderPartition;
use super::follower_progress::{Answered, Arrival, FollowerProgress};
use crate::fetch::{FetchPartition, LogFacts, ReadPlan, Requester, check_leadership, plan_read};

impl LeaderPartition {
    /// A follower's fetch arrived: checks it in order (S18 from the epoch on), counts what it acknowledges, and says what to
    /// read. `log` is the caller's snapshot, taken before. Call it on arrival only, never for a parked fetch (S25); what a
    /// parked fetch reads is [`Self::plan_follower_read`].
    ///
    /// # Errors
    /// The codes of [`check_leadership`] and [`plan_read`]; `UnknownLeaderEpoch` for a replica that is not assigned (yet)
    /// (S20), `StaleIncarnation` (S64), `InvalidRequest` when a field that a follower must send is missing or false.
    pub fn on_follower_fetch(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        if self.is_overtaken(follower, request) {
            return self.plan_overtaken(follower, request, log);
        }
        if request.failed {
            return Err(self.on_follower_failed(follower, request, log, now));
        }
        let before = self.high_watermark();
        let outcome = self.check_follower_fetch(follower, request, log, now);
        let code = match &outcome {
            Ok(plan) if plan.diverging.is_none() => {
                self.advance_high_watermark(now);
                self.maybe_change_isr(now);
                None
            }
            Ok(_) => Some(None),
            Err(error) => Some(Some(error.code)),
        };
        if let Some(code) = code
            && let Some(progress) = self.followers.get_mut(&follower)
        {
            progress.on_refused(code, now);
        }
        debug_assert!(self.high_watermark() >= before, "a fetch never takes the high watermark back");
        outcome.map(|mut plan| {
            plan.snapshot.high_watermark = self.high_watermark();
            plan
        })
    }

    /// A follower says that its replica has failed: it leaves the in-sync set as one that is dead does. The answer to it.
    fn on_follower_failed(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
        now: MonotonicTime,
    ) -> ReplicationError {
        if let Err(error) = check_leadership(Requester::Follower(follower), request, &self.facts(*log)) {
            return error;
        }
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.note_order(request.order);
        }
        self.on_follower_gone(follower, now);
        ReplicationError::new(
            ErrorCode::StorageError,
            format!("node {follower} says that its replica has failed"),
        )
    }

    /// A follower's fetch is parked, until `deadline` at the latest: for the description only.
    pub fn on_follower_parked(&mut self, follower: NodeId, deadline: MonotonicTime) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.on_parked(deadline);
        }
    }

    /// A follower's fetch was answered: for the description only (S25).
    pub fn on_follower_answered(&mut self, follower: NodeId, answered: Answered, now: MonotonicTime) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.on_answered(answered, now);
        }
    }

    /// What a parked follower fetch reads when it is answered: the same checks, nothing is counted (S25).
    ///
    /// # Errors
    /// As [`Self::on_follower_fetch`].
    pub fn plan_follower_read(
        &self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
    ) -> Result<ReadPlan, ReplicationError> {
        let requester = Requester::Follower(follower);
        let facts = self.facts(*log);
        check_leadership(requester, request, &facts)?;
        if !self.replicas.contains(&follower) {
            return Err(not_assigned(follower));
        }
        let in_sync = self.isr.committed().iter().any(|member| member.node == follower);
        plan_read(requester, request, &facts).map(|plan| ReadPlan { in_sync, ..plan })
    }

    /// What the fetch of somebody reads who follows nothing: a consumer (S26), or a replica that repairs damage.
    ///
    /// # Errors
    /// The codes of [`check_leadership`] and [`plan_read`].
    pub fn plan_other_read(
        &self,
        requester: Requester,
        request: &FetchPartition,
        log: &LogFacts<'_>,
    ) -> Result<ReadPlan, ReplicationError> {
        let facts = self.facts(*log);
        check_leadership(requester, request, &facts)?;
        if self.is_over {
            return Err(ReplicationError::new(
                ErrorCode::NotLeaderOrFollower,
                "this node leads the partition no more",
            ));
        }
        plan_read(requester, request, &facts)
    }

    /// Whether a later request of this follower was seen.
    fn is_overtaken(&self, follower: NodeId, request: &FetchPartition) -> bool {
        let progress = self.followers.get(&follower);
        progress.is_some_and(|progress| progress.is_overtaken(request.order))
            && !is_planted(PlantedFault::OvertakenFetchCounts)
    }

    /// What a request that was overtaken reads. Its incarnation has to be the follower's: one that is not was replaced, seen here
    /// or not.
    fn plan_overtaken(
        &self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
    ) -> Result<ReadPlan, ReplicationError> {
        let plan = self.plan_follower_read(follower, request, log)?;
        let known = self.followers.get(&follower).and_then(FollowerProgress::incarnation);
        match request.incarnation {
            Some(incarnation) if known != Some(incarnation) => {
                Err(replaced(ErrorCode::StaleIncarnation, follower, incarnation))
            }
            Some(_) => Ok(plan),
            None => Err(invalid("a follower's fetch needs its incarnation")),
        }
    }

    fn check_follower_fetch(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        log: &LogFacts<'_>,
        now: MonotonicTime,
    ) -> Result<ReadPlan, ReplicationError> {
        if follower == self.node {
            return Err(invalid("replica_id is the leader's own: a node does not follow itself"));
        }
        let Some(incarnation) = request.incarnation else {
            return Err(invalid("a follower's fetch needs its incarnation"));
        };
        if request.current_leader_epoch.is_none() {
            return Err(invalid("a follower's fetch needs current_leader_epoch"));
        }
        if request.acknowledged_offset.is_none() && self.config.durability == Durability::Fsync {
            return Err(invalid("acknowledged_offset is mandatory where durability is fsync"));
        }
        let acknowledged = if is_planted(PlantedFault::FetchOffsetAcknowledges) {
            request.fetch_offset
        } else {
            request.acknowledged()
        };
        if acknowledged > request.fetch_offset {
            return Err(invalid("acknowledged_offset is above fetch_offset"));
        }
        if let Err(error) = check_leadership(Requester::Follower(follower), request, &self.facts(*log)) {
            if is_planted(PlantedFault::CountOlderEpoch)
                && error.code == ErrorCode::FencedLeaderEpoch
                && self
                    .followers
                    .get_mut(&follower)
                    .is_some_and(|progress| progress.admit(incarnation).is_ok())
            {
                self.count(follower, request, incarnation, acknowledged, log.log_end, now);
            }
            return Err(error);
        }
        let Some(progress) = self.followers.get_mut(&follower) else { return Err(not_assigned(follower)) };
        progress.note_order(request.order);
        progress.admit(incarnation).map_err(|code| replaced(code, follower, incarnation))?;
        let plan = self.plan_follower_read(follower, request, log)?;
        let Some(progress) = self.followers.get_mut(&follower) else { return Err(not_assigned(follower)) };
        if let Some(at) = plan.diverging {
            if is_planted(PlantedFault::DivergingFetchCounts) {
                self.count(follower, request, incarnation, acknowledged, plan.snapshot.log_end, now);
                return Ok(plan);
            }
            // The follower would cut what it acknowledged in this leadership: it has to renew first (design.md 6.3).
            let loses = progress.acknowledged().is_some_and(|held| at.offset < held);
            if loses && !is_planted(PlantedFault::CutKeepsIncarnation) {
                progress.retire();
                return Err(ReplicationError::new(
                    ErrorCode::StaleIncarnation,
                    format!(
                        "cutting to {} loses what incarnation {incarnation} acknowledged; renew it",
                        at.offset
                    ),
                ));
            }
            return Ok(plan);
        }
        self.count(follower, request, incarnation, acknowledged, plan.snapshot.log_end, now);
        Ok(plan)
    }

    /// The fetch passed every check: what it says counts.
    fn count(
        &mut self,
        follower: NodeId,
        request: &FetchPartition,
        incarnation: Incarnation,
        acknowledged: Offset,
        leader_end: Offset,
        now: MonotonicTime,
    ) {
        let Some(progress) = self.followers.get_mut(&follower) else { return };
        progress.on_fetch(&Arrival {
            now,
            incarnation,
            acknowledged,
            fetch_offset: request.fetch_offset,
            log_start: request.log_start,
            high_watermark: request.high_watermark,
            paused: request.paused,
            throttled: request.throttled,
            suspended: request.suspended,
            leader_end,
        });
    }
}

fn invalid(message: &str) -> ReplicationError {
    ReplicationError::new(ErrorCode::InvalidRequest, message)
}

fn replaced(code: ErrorCode, follower: NodeId, incarnation: Incarnation) -> ReplicationError {
    ReplicationError::new(code, format!("incarnation {incarnation} of node {follower} was replaced"))
}

fn not_assigned(follower: NodeId) -> ReplicationError {
    ReplicationError::new(
        ErrorCode::UnknownLeaderEpoch,
        format!("node {follower} is not an assigned replica as far as this leader knows"),
    )
}

#[cfg(test)]
#[path = "fetch_test.rs"]
mod tests;
