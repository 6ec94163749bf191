//! Fetching: loops by leader, and what a loop needs of a partition.
//!
//! Deliberately absent: logs and disks. A loop sees a partition through [`Followed`] and a leader through
//! [`LeaderEndPoint`](crate::leader_endpoint::LeaderEndPoint), so both can be scripted.

mod fetch_loop;
mod gate;
mod held_time;
mod mail;
mod manager;
mod mapping;
mod members;
mod numbers;
mod observe;
mod status;
#[cfg(test)]
mod test_support;

use std::fmt;
use std::sync::Arc;

use highwater_protocol::fetch::{Fetched, LostRange};
use highwater_protocol::follower::{FetchAsk, FetchIntent, FetchPosition, LeaderOffsets};
use highwater_protocol::quota::Metering;
use highwater_serving::ReplicationThrottle;
use highwater_types::{ErrorCode, LeaderEpoch, MonotonicTime, ReplicationError, TopicIdPartition};

pub(crate) use fetch_loop::FetchSettings;
pub(crate) use gate::Gate;
pub(crate) use mail::ReadySet;
pub(crate) use manager::FetcherManager;
pub(crate) use mapping::LoopKey;
pub(crate) use numbers::RequestNumbers;
pub(crate) use observe::Carried;
pub(crate) use status::{LoopReport, Trouble};

/// What a loop needs of a partition. No method waits for a disk.
pub(crate) trait Followed: fmt::Debug + Send + Sync + 'static {
    /// A question for the leader, kept for its answer.
    type Question: Copy + fmt::Debug + Send + 'static;

    /// Which partition it is.
    fn id(&self) -> TopicIdPartition;

    /// The largest batch that its topic allows, in bytes.
    fn largest_batch(&self) -> u32;

    /// What it asks for now.
    fn intent(&self, now: MonotonicTime) -> FetchIntent;

    /// The request with `ask` goes out.
    fn on_sent(&self, ask: &FetchAsk);

    /// Whether it holds something that no request has acknowledged yet.
    fn owes_acknowledgement(&self) -> bool;

    /// Whether the leader had more, as of its last answer, than was asked for so far; also while no answer is known.
    fn has_more_to_fetch(&self) -> bool;

    /// Whether no answer of its leader is known yet.
    fn is_unanswered(&self) -> bool;

    /// What a throttle means for it now.
    fn metering(&self, throttle: &ReplicationThrottle) -> Metering;

    /// The answer to what was asked from `sent`; `lost` is what the leader has lost, as it says beside it.
    fn on_answer(
        &self,
        sent: &FetchPosition,
        outcome: Result<Fetched, ReplicationError>,
        lost: &[LostRange],
        now: MonotonicTime,
    ) -> Applied<Self::Question>;

    /// An answer's records were taken: what they had behind them, for whoever watches.
    fn on_carried(&self, _carried: Carried) {}

    /// The leader's range that [`Applied::AskOffsets`] asked for.
    fn on_leader_offsets(
        &self,
        question: Self::Question,
        range: Result<LeaderOffsets, ErrorCode>,
        now: MonotonicTime,
    );

    /// The time of [`Self::next_deadline`] came.
    fn on_tick(&self, now: MonotonicTime);

    /// When it has something to do again, if it waits for a time.
    fn next_deadline(&self) -> Option<MonotonicTime>;

    /// Where it tells that something happened to it outside of the loop: an append or a flush ended, a cut was made.
    /// `None`: nowhere.
    fn attach(&self, ready: Option<Arc<ReadySet>>);
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied<Q> {
    /// Nothing came of it, or nothing that concerns the loop.
    Nothing,
    /// Records were taken.
    Records,
    /// The leader's range is needed, asked under this epoch: [`Followed::on_leader_offsets`].
    AskOffsets(Q, LeaderEpoch),
}
