//! The stage that reads: whole batches within the caps, in request order, on the blocking pool.
//!
//! What must hold: nothing is dispatched when there is nothing to read; the caps are soft for the first batch of the first
//! partition that has one, once per answer, and hard after it (S32, KIP-74); every partition counts against what is left
//! of the answer (S33); how many reads run at once is bounded.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use highwater_log::{LogRead, ReadError, ReadLimits};
use highwater_node::MonotonicClock;
use highwater_protocol::fetch::{self, FetchPartition, FetchResponse, LostRange, PartitionResult, ReadPlan};
use highwater_protocol::leader::Answered;
use highwater_protocol::quota::Metering;
use highwater_types::{ErrorCode, NodeId, Offset, ReplicationError};
use tokio::sync::Semaphore;
use tower::Service;

use super::{Fetched, Planned, PlannedPartition};
use crate::HostedReplica;

/// What reading may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBounds {
    /// The most bytes of records in one answer, whatever was asked for; the first batch may be larger.
    pub answer_bytes: u32,
    /// How many answers are read at the same time; the others wait for their turn.
    pub concurrent_reads: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Read {
    clock: MonotonicClock,
    answer_bytes: u32,
    turns: Arc<Semaphore>,
}

impl Read {
    /// A reader within `bounds`.
    #[must_use]
    pub fn new(clock: MonotonicClock, bounds: ReadBounds) -> Self {
        let turns = bounds.concurrent_reads.clamp(1, Semaphore::MAX_PERMITS);
        Self { clock, answer_bytes: bounds.answer_bytes, turns: Arc::new(Semaphore::new(turns)) }
    }
}

impl Service<Planned> for Read {
    type Response = Fetched;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Fetched, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, planned: Planned) -> Self::Future {
        let reader = self.clone();
        Box::pin(async move { Ok(reader.answer(planned).await) })
    }
}

impl Read {
    async fn answer(self, planned: Planned) -> Fetched {
        let reading = self.clock.now();
        let Planned { fetch, partitions, completion, parked, metered_bytes } = planned;
        let cap = |(slot, asked): (usize, &FetchPartition)| Cap {
            bytes: if fetch.is_withheld(slot) { 0 } else { asked.max_bytes },
            metered: fetch.metering(slot) == Metering::Metered,
            withheld: fetch.metering(slot) == Metering::Withheld,
        };
        let caps = Caps {
            clock: self.clock,
            follower: fetch.request.replica,
            answer: fetch.request.max_bytes.min(self.answer_bytes),
            metered: usize::try_from(metered_bytes).unwrap_or(usize::MAX),
            partitions: fetch.request.partitions.iter().enumerate().map(cap).collect(),
        };
        let partitions = if caps.answer > 0 && partitions.iter().any(has_records) {
            self.read(partitions, caps).await
        } else {
            partitions
                .into_iter()
                .zip(&caps.partitions)
                .map(|(p, cap)| without_records(p, *cap, &caps))
                .collect()
        };
        let response = FetchResponse {
            session_id: 0,
            received: fetch.received,
            answered: self.clock.now(),
            throttle: Duration::ZERO,
            throttle_reason: None,
            partitions,
        };
        Fetched { response, completion, parked, held: Duration::ZERO, reading, admitted: None }
    }

    async fn read(&self, partitions: Vec<PlannedPartition>, caps: Caps) -> Vec<PartitionResult> {
        if let Some(follower) = caps.follower {
            let now = self.clock.now();
            for (replica, _) in
                partitions.iter().filter(|p| has_records(p)).filter_map(|p| p.plan.as_ref().ok())
            {
                replica.on_reading(follower, now);
            }
        }
        // The semaphore is never closed; without a permit the read would only be less bounded.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let asked: Vec<_> = partitions.iter().map(|p| (p.topic.clone(), p.topic_id, p.partition)).collect();
        let read = tokio::task::spawn_blocking(move || {
            let results = read_in_order(partitions, &caps);
            drop(turn);
            results
        });
        read.await.unwrap_or_else(|failed| {
            // The blocking task panicked: the fault of one read must not take the connection with it.
            tracing::error!(error = %failed, "a read failed unexpectedly");
            let outcome = || Err(ReplicationError::new(ErrorCode::Internal, "the read failed; see the log"));
            asked
                .into_iter()
                .map(|(topic, topic_id, partition)| PartitionResult {
                    topic,
                    topic_id,
                    partition,
                    outcome: outcome(),
                    lost: Vec::new(),
                })
                .collect()
        })
    }
}

/// In bytes, and who asks.
struct Caps {
    clock: MonotonicClock,
    follower: Option<NodeId>,
    answer: u32,
    /// Of the metered partitions together.
    metered: usize,
    partitions: Vec<Cap>,
}

/// A partition's; 0 bytes while it is paused or withheld.
#[derive(Clone, Copy)]
struct Cap {
    bytes: u32,
    metered: bool,
    /// By a quota.
    withheld: bool,
}

impl Caps {
    /// What the leader of a partition has lost, where a follower asks.
    fn lost(&self, asked: &PlannedPartition) -> Vec<LostRange> {
        let replica = asked.plan.as_ref().ok().filter(|_| self.follower.is_some());
        replica.map(|(replica, _)| replica.lost_ranges()).unwrap_or_default()
    }

    /// A follower's partition was answered.
    fn answered(&self, replica: &dyn HostedReplica, answered: Answered) {
        let Some(follower) = self.follower else { return };
        replica.on_answered(follower, answered, self.clock.now());
    }
}

/// What is left of an answer's room.
struct Budget {
    left: usize,
    /// Whether the answer still has no records, so that a batch larger than the caps may open it (S32).
    empty: bool,
    /// What is left for metered partitions.
    metered: usize,
    /// Whether it still has no records of a metered partition: a batch larger than what a quota has left gets through in the
    /// end, also behind others. So an answer can exceed its caps by one batch in all.
    metered_empty: bool,
}

impl Budget {
    /// What a partition may have, and whether its first batch may be larger; `None` = nothing.
    fn limits(&self, cap: Cap, plan: &ReadPlan) -> Option<ReadLimits> {
        let room = self.left.min(to_usize(cap.bytes));
        if cap.bytes == 0 || (room == 0 && !self.empty) || (cap.metered && self.metered == 0) {
            return None;
        }
        let min_one_batch = self.empty || (cap.metered && self.metered_empty);
        let max_bytes = if cap.metered { room.min(self.metered) } else { room };
        Some(ReadLimits { max_bytes, min_one_batch, upper: plan.upper, checked: !plan.in_sync })
    }

    fn took(&mut self, bytes: usize, cap: Cap) {
        self.left = self.left.saturating_sub(bytes);
        self.empty &= bytes == 0;
        if cap.metered {
            self.metered = self.metered.saturating_sub(bytes);
            self.metered_empty &= bytes == 0;
        }
    }
}

fn has_records(partition: &PlannedPartition) -> bool {
    partition.plan.as_ref().is_ok_and(|(_, plan)| plan.has_records())
}

fn without_records(partition: PlannedPartition, cap: Cap, caps: &Caps) -> PartitionResult {
    let lost = caps.lost(&partition);
    let PlannedPartition { topic, topic_id, partition, plan } = partition;
    let outcome = plan.map(|(replica, plan)| {
        // Of what is only idle nothing is told: that would cost each poll something for each partition.
        if cap.withheld {
            caps.answered(&*replica, Answered { throttled: true, ..Answered::default() });
        }
        nothing_of(&plan)
    });
    PartitionResult { topic, topic_id, partition, outcome, lost }
}

fn nothing_of(plan: &ReadPlan) -> fetch::Fetched {
    match plan.diverging {
        Some(at) => fetch::Fetched::diverging(plan.snapshot, at),
        None => fetch::Fetched::empty(plan.snapshot),
    }
}

fn read_in_order(partitions: Vec<PlannedPartition>, caps: &Caps) -> Vec<PartitionResult> {
    let mut budget =
        Budget { left: to_usize(caps.answer), empty: true, metered: caps.metered, metered_empty: true };
    partitions
        .into_iter()
        .zip(&caps.partitions)
        .map(|(planned, cap)| {
            let lost = caps.lost(&planned);
            let PlannedPartition { topic, topic_id, partition, plan } = planned;
            let outcome = plan.and_then(|(replica, plan)| {
                let begun = caps.clock.now();
                let answer = read_one(&*replica, &plan, *cap, &mut budget);
                let answered = Answered {
                    end: answer.as_ref().ok().and_then(|(_, end)| *end),
                    read: caps.clock.now().since(begun),
                    throttled: cap.withheld,
                    refusal: answer.as_ref().err().map(|error| error.code),
                };
                if answered.end.is_some() || answered.throttled || answered.refusal.is_some() {
                    caps.answered(&*replica, answered);
                }
                answer.map(|(fetched, _)| fetched)
            });
            PartitionResult { topic, topic_id, partition, outcome, lost }
        })
        .collect()
}

/// What was read, and the offset after it where it is something.
fn read_one(
    replica: &dyn HostedReplica,
    plan: &ReadPlan,
    cap: Cap,
    budget: &mut Budget,
) -> Result<(fetch::Fetched, Option<Offset>), ReplicationError> {
    let limits = budget.limits(cap, plan).filter(|_| plan.has_records());
    let Some(limits) = limits else { return Ok((nothing_of(plan), None)) };
    let LogRead { records, first, next, .. } =
        replica.read(plan.from, limits).map_err(|e| read_failed(&e))?;
    budget.took(records.len(), cap);
    if records.is_empty() {
        return Ok((fetch::Fetched::empty(plan.snapshot), None));
    }
    let (appended, traces) = (replica.appended_at(first), replica.traces(first, next));
    Ok((fetch::Fetched { records, appended, traces, ..fetch::Fetched::empty(plan.snapshot) }, Some(next)))
}

/// An error of the log as it travels.
pub(crate) fn read_failed(error: &ReadError) -> ReplicationError {
    ReplicationError::new(error.code(), error.to_string())
}

pub(crate) fn to_usize(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "read_test.rs"]
mod tests;
