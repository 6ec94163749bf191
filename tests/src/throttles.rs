//! Replicas that lag under a throttle: how they come to be, and how fast they move.
//!
//! What must hold: a replica that is to be throttled is out of the in-sync set before its agent comes back, because one that
//! is in it never is.

use std::time::{Duration, Instant};

use highwater_proto::v1;
use highwater_types::Program;

use crate::calls::{Calls, batch};
use crate::cluster::{Cluster, Plan, ServerId};
use crate::wait;

/// Who leads.
pub const LEADER: ServerId = (1, Program::LeaderSvc);
/// Who follows.
pub const AGENT: ServerId = (2, Program::FollowerAgent);

/// About how large a request to append is.
const REQUEST_BYTES: usize = 1_000_000;

/// How long the agent may be late: short, so that one that is down is soon out of the in-sync set.
const LAG_TIME_MAX: &str = "2s";

/// A leader-svc and an agent that is soon taken out of the in-sync set when it is down.
#[must_use]
pub fn pair() -> Plan {
    Plan::new()
        .program(1, Program::LeaderSvc)
        .program(2, Program::FollowerAgent)
        .set(Program::LeaderSvc, "replica.lag.time.max.ms", LAG_TIME_MAX)
        .set(Program::FollowerAgent, "replica.lag.time.max.ms", LAG_TIME_MAX)
}

/// Stops the agent, appends about `bytes` to partition 0 of `topic` in batches of `batch_bytes`, and waits until the agent's
/// replica is out of the in-sync set. Returns the log's size.
///
/// # Panics
/// When the topic's replicas are not those of the pair.
pub async fn fall_behind(cluster: &mut Cluster, topic: &str, bytes: usize, batch_bytes: usize) -> u64 {
    cluster.server_mut(AGENT).terminate(wait::SOON).await;
    let calls = Calls::of(cluster.leader(1));
    let records = batch(1, batch_bytes);
    let batches = bytes.div_ceil(batch_bytes);
    // Many in one request, as long as that is no large one.
    let together = (REQUEST_BYTES / records.len()).clamp(1, batches);
    for begun in (0..batches).step_by(together) {
        calls.append(topic, 0, records.repeat(together.min(batches - begun))).await;
    }
    wait::until(&format!("{topic} to be without its follower"), wait::SOON, async || {
        let row = calls.rows(topic).await.into_iter().next()?;
        row.followers.iter().all(|follower| follower.in_sync == Some(false)).then_some(row.size_bytes?)
    })
    .await
}

/// Waits until the agent, which came back, fetches `topic`: a replica that had everything is in the in-sync set all the
/// while, and would leave it with the next record.
pub async fn until_fetching(calls: &Calls, topic: &str) {
    /// An idle fetch is parked for half a second.
    const YOUNG_MS: u64 = 1_000;
    wait::until(&format!("{topic} to be fetched"), wait::SOON, async || {
        let row = calls.rows(topic).await.into_iter().next()?;
        row.followers.iter().all(|f| f.last_fetch_age_ms.is_some_and(|age| age < YOUNG_MS)).then_some(())
    })
    .await
}

/// Sets a throttle on every node.
///
/// # Panics
/// When it is refused.
pub async fn set(calls: &Calls, request: v1::SetReplicationThrottleRequest) {
    calls.cluster.clone().set_replication_throttle(request).await.expect("the throttle is set");
}

/// How many bytes a follower had when, as its leader saw it.
#[derive(Debug, Clone, Default)]
pub struct Progress(Vec<(Instant, u64)>);

impl Progress {
    /// Watches the only follower of partition 0 of `topic`, whose log has `size` bytes, until `done` says so.
    ///
    /// # Panics
    /// When it takes longer than `bound`.
    pub async fn watch(
        calls: &Calls,
        topic: &str,
        size: u64,
        bound: Duration,
        mut done: impl FnMut(u64) -> bool,
    ) -> Self {
        let mut seen = Self::default();
        wait::until(&format!("{topic} to be followed"), bound, async || {
            let row = calls.rows(topic).await.into_iter().next()?;
            // All batches are alike, so offsets tell more exactly than the leader's estimate in bytes.
            let acknowledged = u64::try_from(row.followers.first()?.acknowledged_offset?).ok()?;
            let has = size * acknowledged / u64::try_from(row.log_end_offset?).ok()?.max(1);
            seen.0.push((Instant::now(), has));
            done(has).then_some(())
        })
        .await;
        seen
    }

    /// From the first byte that moved to the last.
    #[must_use]
    pub fn moving(&self) -> (Duration, u64) {
        let begin = self.0.windows(2).find(|pair| pair.first().map(|a| a.1) != pair.last().map(|b| b.1));
        let first = begin.and_then(|pair| pair.first()).copied();
        let last = self.0.last().copied();
        first.zip(last).map(|(a, b)| (b.0 - a.0, b.1 - a.1)).unwrap_or_default()
    }

    /// The most bytes that moved in any span of this length.
    #[must_use]
    pub fn most_in(&self, span: Duration) -> u64 {
        let moved = |(at, has): &(Instant, u64)| {
            let until = self.0.iter().take_while(|(later, _)| *later <= *at + span).last();
            until.map_or(0, |(_, then)| then.saturating_sub(*has))
        };
        self.0.iter().map(moved).max().unwrap_or(0)
    }
}
