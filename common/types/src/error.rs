//! What can go wrong with one partition, as a value: it travels in the body of an answer, not as a status.
//!
//! Where an error is born it is said whether a retry can help. Deliberately absent: gRPC, which only `wire` knows.

use std::fmt;

use crate::{Endpoint, LeaderEpoch, NodeId};

/// Whether the same request can succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It can, after a back-off, perhaps at another node.
    Retryable,
    /// It cannot; the request, the configuration or the data has to change.
    Terminal,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $retry:ident,)*) => {
        /// The outcome of one partition (semantics.md, "Errors of Fetch"). The names are Kafka's where Kafka has the error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }

        impl ErrorCode {
            /// Every code, for the tables that must not miss one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Whether the same request can succeed later.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)* }
            }
        }
    };
}

error_codes! {
    /// The offset is below the log start, beyond the end, or of an epoch that the leader does not know.
    OffsetOutOfRange = Terminal,
    /// The requester's leader epoch is older than the current one (S19).
    FencedLeaderEpoch = Retryable,
    /// The requester's leader epoch is newer than this node's, or it is not (yet) a replica here (S19, S20).
    UnknownLeaderEpoch = Retryable,
    /// This node does not lead the partition, and does not follow it where following is enough.
    NotLeaderOrFollower = Retryable,
    /// The partition has no leader at present.
    LeaderNotAvailable = Retryable,
    /// No topic or partition of this name or index.
    UnknownTopicOrPartition = Retryable,
    /// No topic of this id.
    UnknownTopicId = Retryable,
    /// The name and the id in one request belong to different topics.
    InconsistentTopicId = Retryable,
    /// The replica is being opened, or has failed.
    ReplicaNotAvailable = Retryable,
    /// A fetch by an incarnation that was replaced (S64, design.md 6.3).
    StaleIncarnation = Terminal,
    /// The disk of the answering node failed.
    StorageError = Retryable,
    /// Records that are needed are damaged on the answering node (design.md 2).
    DataLoss = Terminal,
    /// A batch fails its checks: length, magic, CRC, counts, offsets.
    CorruptMessage = Terminal,
    /// A batch is well-formed, but not one that may be produced (empty, control, transactional …).
    InvalidRecord = Terminal,
    /// A batch is larger than the topic's `max.message.bytes`.
    MessageTooLarge = Terminal,
    /// Fewer in-sync replicas than `min.insync.replicas`; nothing was appended (S61).
    NotEnoughReplicas = Retryable,
    /// The in-sync set shrank after the append; the records are in the log (S61).
    NotEnoughReplicasAfterAppend = Retryable,
    /// Nothing is known of the idempotent producer, and its batch does not begin at sequence 0; nothing was appended.
    UnknownProducer = Terminal,
    /// Not the producer's next batch, nor one of its last five; nothing was appended.
    OutOfOrderSequence = Terminal,
    /// A newer epoch of the producer has been seen; nothing was appended.
    InvalidProducerEpoch = Terminal,
    /// Not confirmed in time; the records may be in the log.
    RequestTimedOut = Retryable,
    /// A field of the request is not valid.
    InvalidRequest = Terminal,
    /// Not a topic name.
    InvalidTopic = Terminal,
    /// A topic of this name exists.
    TopicAlreadyExists = Terminal,
    /// A topic property or its value is not valid.
    InvalidConfig = Terminal,
    /// What was asked for is not offered.
    Unsupported = Terminal,
    /// The coordination store cannot be reached.
    CoordinationUnavailable = Retryable,
    /// The program is stopping.
    ShuttingDown = Retryable,
    /// A fault of the program itself.
    Internal = Retryable,
}

/// An error of one partition, with what helps to go on.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct ReplicationError {
    /// What kind of error it is.
    pub code: ErrorCode,
    /// For people: names the thing and what to do. Not longer than a few hundred characters.
    pub message: String,
    /// Who leads, where the answering node knows; hints of a lower epoch are to be ignored.
    pub leader: Option<LeaderHint>,
}

/// Who leads a partition, as far as the answering node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// The leader; absent when there is none.
    pub leader: Option<NodeId>,
    /// The epoch of its leadership.
    pub epoch: LeaderEpoch,
    /// Where to reach it, where known.
    pub endpoint: Option<Endpoint>,
}

impl ReplicationError {
    /// An error without a hint.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), leader: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_leader(mut self, leader: Option<LeaderHint>) -> Self {
        self.leader = leader;
        self
    }

    /// Whether the same request can succeed later.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        self.code.retry()
    }
}

impl fmt::Debug for ReplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.code, self.message)
    }
}
