//! What is said of a partition that does not fetch: once per reason, as loud as it deserves.
//!
//! What must hold: what every start, new topic and change of leadership brings with it is no warning; what lasts is.

use highwater_protocol::follower::{FailureReason, PartitionFetchState};
use highwater_types::{ErrorCode, TopicIdPartition, TopicName};
use parking_lot::Mutex;

/// How many answers in a row may say that the leader is not ready before it is a warning: with the waits between them, some
/// seconds.
const PATIENT_ANSWERS: u32 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// What was last said of a partition.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Option<(String, Level)>>);

impl Trouble {
    /// Says why the partition waits or has failed, if that is news.
    pub(super) fn note(
        &self,
        partition: &str,
        id: TopicIdPartition,
        state: &PartitionFetchState,
        failures: u32,
    ) {
        let Some((reason, level)) = judge(state, failures) else { return };
        let mut said = self.0.lock();
        if said.as_ref().is_some_and(|(before, loud)| *before == reason && *loud >= level) {
            return;
        }
        let topic_id = id.topic_id;
        match level {
            Level::Debug => tracing::debug!(partition, %topic_id, reason, "the leader is not ready"),
            Level::Info => tracing::info!(partition, %topic_id, reason, "waits for the next leadership"),
            Level::Warn => tracing::warn!(partition, %topic_id, reason, "delayed"),
            Level::Error => tracing::error!(partition, %topic_id, reason, "failed"),
        }
        *said = Some((reason, level));
    }

    /// It fetches: whatever was said is over.
    pub(super) fn over(&self, topic: &TopicName, id: TopicIdPartition) {
        match self.0.lock().take() {
            None | Some((_, Level::Debug)) => {}
            Some(_) => tracing::info!(partition = %format_args!("{topic}-{}", id.partition), "fetches again"),
        }
    }
}

fn judge(state: &PartitionFetchState, failures: u32) -> Option<(String, Level)> {
    match state {
        PartitionFetchState::Delayed { reason, .. } => {
            let is_early = failures <= PATIENT_ANSWERS && says_not_ready(reason);
            Some((reason.to_string(), if is_early { Level::Debug } else { Level::Warn }))
        }
        PartitionFetchState::Failed { reason: reason @ FailureReason::Fenced, .. } => {
            Some((reason.to_string(), Level::Info))
        }
        PartitionFetchState::Failed { reason, .. } => Some((reason.to_string(), Level::Error)),
        PartitionFetchState::Truncating | PartitionFetchState::Fetching => None,
    }
}

/// The record names a leader that has not heard of it, or has not begun.
const fn says_not_ready(reason: &FailureReason) -> bool {
    matches!(
        reason,
        FailureReason::Leader(
            ErrorCode::ReplicaNotAvailable
                | ErrorCode::LeaderNotAvailable
                | ErrorCode::NotLeaderOrFollower
                | ErrorCode::UnknownLeaderEpoch
                | ErrorCode::UnknownTopicId
                | ErrorCode::UnknownTopicOrPartition
        )
    )
}

#[cfg(test)]
mod tests {
    use highwater_types::MonotonicTime;

    use super::*;

    fn level(reason: FailureReason, failures: u32) -> Option<Level> {
        let until = MonotonicTime::ZERO;
        judge(&PartitionFetchState::Delayed { until, reason }, failures).map(|(_, level)| level)
    }

    #[test]
    fn a_leader_that_is_not_ready_is_no_warning_until_it_lasts() {
        let not_ready = || FailureReason::Leader(ErrorCode::ReplicaNotAvailable);
        assert_eq!(level(not_ready(), 1), Some(Level::Debug));
        assert_eq!(level(not_ready(), PATIENT_ANSWERS), Some(Level::Debug));
        assert_eq!(level(not_ready(), PATIENT_ANSWERS + 1), Some(Level::Warn));
        assert_eq!(level(FailureReason::Leader(ErrorCode::DataLoss), 1), Some(Level::Warn));
    }

    #[test]
    fn the_end_of_a_leadership_is_news_and_a_failure_is_an_error() {
        let failed = |reason| PartitionFetchState::Failed { reason, retry_at: None };
        let level = |reason| judge(&failed(reason), 1).map(|(_, level)| level);
        assert_eq!(level(FailureReason::Fenced), Some(Level::Info));
        assert_eq!(level(FailureReason::Storage("full".to_owned())), Some(Level::Error));
        assert_eq!(judge(&PartitionFetchState::Fetching, 9), None);
    }
}
