//! What came of an event: work for the log, a question for the leader, news for consumers.

use std::fmt;

use bytes::Bytes;
use highwater_protocol::fetch::{Fetched, LostRange};
use highwater_protocol::follower::{FollowerAction, FollowerEffect, FollowerPartition};
use highwater_types::{LeaderEpoch, Offset, OffsetAndEpoch, UncleanLoss};

/// Records to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendWork {
    pub(super) generation: u64,
    pub(super) leader_epoch: LeaderEpoch,
    pub(super) records: Bytes,
}

impl AppendWork {
    /// How many bytes there are to append.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.records.len()
    }
}

/// Something to do to the log, by [`super::FollowerReplica::execute`], in the order in which it was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerWork {
    /// Append records.
    Append(AppendWork),
    /// Cut to where the leader says that the logs part (S38).
    Truncate {
        /// Voids the work when it is over.
        generation: u64,
        /// The leader's answer.
        at: OffsetAndEpoch,
    },
    /// Drop the log and begin at the leader's log start (S35).
    RestartAt {
        /// Voids the work when it is over.
        generation: u64,
        /// The leader's log start.
        offset: Offset,
    },
    /// Go on behind what the leader has lost.
    PassOver {
        /// Voids the work when it is over.
        generation: u64,
        /// What it has lost.
        lost: LostRange,
    },
    /// Renew the incarnation (design.md 6.3).
    RenewIncarnation {
        /// Voids the work when it is over.
        generation: u64,
    },
    /// Raise the log start (S48, design.md 2).
    RaiseLogStart(Offset),
    /// Forget what was lost beyond the log's end: the leader has nothing there.
    ForgetLostTail {
        /// Voids the work when it is over.
        generation: u64,
    },
    /// Open the failed log again.
    Recover,
}

/// Ask the leader, under this epoch, for its log start and log end; hand the answer to
/// [`super::FollowerReplica::on_leader_offsets`], with `LeaderNotAvailable` where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskOffsets {
    pub(super) generation: u64,
    /// `current_leader_epoch` of the question.
    pub leader_epoch: LeaderEpoch,
}

/// What this replica lost by an unclean election, and where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossReport {
    /// The loss by this cut.
    pub loss: UncleanLoss,
    /// The file beside the log that keeps the bytes.
    pub kept_in: Option<String>,
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept_in, election) = (self.kept_in.as_deref().unwrap_or("no file"), self.loss.election);
        write!(
            f,
            "{}; leader epoch {election} began by an unclean election; the bytes are kept in {kept_in}",
            self.loss
        )
    }
}

/// What came of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the work has to be executed"]
pub struct FollowerStep {
    /// For the log, in this order, behind what is queued already.
    pub work: Vec<FollowerWork>,
    /// For the leader.
    pub ask_offsets: Option<AskOffsets>,
    /// Consumers may read up to here now.
    pub high_watermark: Option<Offset>,
    /// An unclean election took records of this replica.
    pub loss: Option<LossReport>,
    /// Whether the answer moved the partition on: its place in the plan is at the end now (S9).
    pub progress: bool,
}

impl FollowerStep {
    /// The core's answer to an event, with everything it has for the caller.
    pub(super) fn of(
        action: FollowerAction,
        partition: &mut FollowerPartition,
        fetched: Option<&Fetched>,
    ) -> Self {
        let mut step = Self::drained(partition);
        match action {
            FollowerAction::Nothing => {}
            FollowerAction::Append { generation, bytes } => {
                let all = fetched.map_or_else(Bytes::new, |fetched| fetched.records.clone());
                debug_assert!(bytes <= all.len(), "the core takes a prefix of the answer");
                let records = all.slice(..bytes.min(all.len()));
                let leader_epoch = partition.leader_epoch();
                step.work.push(FollowerWork::Append(AppendWork { generation, leader_epoch, records }));
                step.progress = true;
            }
            FollowerAction::Truncate { generation, at } => {
                step.work.push(FollowerWork::Truncate { generation, at })
            }
            FollowerAction::AskOffsets { generation } => {
                step.ask_offsets = Some(AskOffsets { generation, leader_epoch: partition.leader_epoch() });
            }
            FollowerAction::RestartAt { generation, offset } => {
                step.work.push(FollowerWork::RestartAt { generation, offset });
            }
            FollowerAction::PassOver { generation, lost } => {
                step.work.push(FollowerWork::PassOver { generation, lost });
            }
            FollowerAction::RenewIncarnation { generation } => {
                step.work.push(FollowerWork::RenewIncarnation { generation });
            }
        }
        step
    }

    /// What the core has for the caller beside an answer.
    pub(super) fn drained(partition: &mut FollowerPartition) -> Self {
        let mut step = Self::default();
        while let Some(effect) = partition.poll_effect() {
            match effect {
                FollowerEffect::HighWatermarkAdvanced(to) => step.high_watermark = Some(to),
                FollowerEffect::RaiseLogStart(to) => step.work.push(FollowerWork::RaiseLogStart(to)),
                FollowerEffect::ForgetLostTail { generation } => {
                    step.work.push(FollowerWork::ForgetLostTail { generation });
                }
                FollowerEffect::Recover => step.work.push(FollowerWork::Recover),
            }
        }
        step
    }
}
