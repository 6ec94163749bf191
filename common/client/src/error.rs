//! What a client call ends with when it does not succeed.

use highwater_types::{Endpoint, ErrorCode, ReplicationError, TopicPartition};
use highwater_wire::{DecodeError, Failure};

/// A failed call of the client. Retries that could help have been made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A node refused the call, or could not be reached.
    #[error("{endpoint}: {failure}")]
    Call {
        /// The node that was asked.
        endpoint: Endpoint,
        /// Why it failed.
        failure: Failure,
    },
    /// A partition, or a topic, answered with an error.
    #[error("{what}: {error}")]
    Answered {
        /// The partition or topic.
        what: String,
        /// The error.
        error: ReplicationError,
    },
    /// The answer does not follow the protocol.
    #[error("the answer of {endpoint} is not valid: {error}")]
    Answer {
        /// The node that answered.
        endpoint: Endpoint,
        /// The field.
        error: DecodeError,
    },
    /// Every try until the deadline failed.
    #[error("gave up {what}: {last}")]
    GaveUp {
        /// What was tried.
        what: String,
        /// The last failure.
        last: Box<Self>,
    },
    /// What was asked for may have been done, and a second try could do it twice.
    #[error("the outcome of {what} is unknown, look before trying again: {last}")]
    OutcomeUnknown {
        /// What was tried.
        what: String,
        /// The failure.
        last: Box<Self>,
    },
    /// The topic has no such partition, the offset is not in the log, a setting is not possible.
    #[error("{0}")]
    Usage(String),
    /// A batch that was fetched is damaged.
    #[error("{partition}: {problem}")]
    Corrupt {
        /// The partition.
        partition: TopicPartition,
        /// What is wrong with the batch.
        problem: String,
    },
    /// The producer or consumer was closed.
    #[error("closed")]
    Closed,
}

impl ClientError {
    /// The code of the domain, where the failure has one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Call { failure, .. } => failure.code,
            Self::Answered { error, .. } => Some(error.code),
            Self::GaveUp { last, .. } | Self::OutcomeUnknown { last, .. } => last.code(),
            Self::Answer { .. } | Self::Usage(_) | Self::Corrupt { .. } | Self::Closed => None,
        }
    }
}
