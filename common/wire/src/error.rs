//! Errors of one partition, in the body of an answer.

use highwater_proto::v1;
use highwater_types::{ErrorCode, LeaderHint, ReplicationError};

use crate::field::{Decoded, optional_epoch, optional_node, parse, required};
use crate::text::clip;

/// Longest message in a [`v1::PartitionError`], in bytes; an answer may carry one per partition.
pub(crate) const BODY_MESSAGE_LIMIT: usize = 512;

macro_rules! codes {
    ($($name:ident,)*) => {
        /// The code on the wire.
        #[must_use]
        pub const fn encode_code(code: ErrorCode) -> v1::ErrorCode {
            match code { $(ErrorCode::$name => v1::ErrorCode::$name,)* }
        }

        /// The code of the domain; `None` for UNSPECIFIED, which is never sent.
        #[must_use]
        pub const fn decode_code(code: v1::ErrorCode) -> Option<ErrorCode> {
            match code {
                v1::ErrorCode::Unspecified => None,
                $(v1::ErrorCode::$name => Some(ErrorCode::$name),)*
            }
        }
    };
}

codes! {
    OffsetOutOfRange,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    NotLeaderOrFollower,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
    UnknownTopicId,
    InconsistentTopicId,
    ReplicaNotAvailable,
    StaleIncarnation,
    StorageError,
    DataLoss,
    CorruptMessage,
    InvalidRecord,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    UnknownProducer,
    OutOfOrderSequence,
    InvalidProducerEpoch,
    RequestTimedOut,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    InvalidConfig,
    Unsupported,
    CoordinationUnavailable,
    ShuttingDown,
    Internal,
}

/// The error as it stands in a body.
#[must_use]
pub fn encode_error(error: &ReplicationError) -> v1::PartitionError {
    v1::PartitionError {
        code: encode_code(error.code).into(),
        message: clip(&error.message, BODY_MESSAGE_LIMIT),
        leader: error.leader.as_ref().map(encode_hint),
    }
}

/// Reads an error from a body. A code that this program does not know comes from a newer one and counts as
/// [`ErrorCode::Internal`]: worth another try, and the message still says what it was.
///
/// # Errors
/// A field of the hint is not valid.
pub fn decode_error(error: v1::PartitionError) -> Decoded<ReplicationError> {
    let known = v1::ErrorCode::try_from(error.code).ok().and_then(decode_code);
    let message = match known {
        Some(_) => clip(&error.message, BODY_MESSAGE_LIMIT),
        None => clip(&format!("unknown error code {}: {}", error.code, error.message), BODY_MESSAGE_LIMIT),
    };
    let leader = error.leader.map(decode_hint).transpose()?;
    Ok(ReplicationError::new(known.unwrap_or(ErrorCode::Internal), message).with_leader(leader))
}

/// The hint on the wire.
#[must_use]
pub fn encode_hint(hint: &LeaderHint) -> v1::LeaderHint {
    v1::LeaderHint {
        leader_id: hint.leader.map(|node| node.get()),
        leader_epoch: Some(hint.epoch.get()),
        endpoint: hint.endpoint.as_ref().map(ToString::to_string),
    }
}

/// Reads a hint.
///
/// # Errors
/// The epoch is missing, or a field is not valid.
pub fn decode_hint(hint: v1::LeaderHint) -> Decoded<LeaderHint> {
    Ok(LeaderHint {
        leader: optional_node("leader.leader_id", hint.leader_id)?,
        epoch: required("leader.leader_epoch", optional_epoch("leader.leader_epoch", hint.leader_epoch)?)?,
        endpoint: hint.endpoint.map(|text| parse("leader.endpoint", &text)).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire_in_both_directions() {
        for code in ErrorCode::ALL {
            assert_eq!(decode_code(encode_code(*code)), Some(*code));
        }
        let on_wire = (1..).map_while(|n| v1::ErrorCode::try_from(n).ok());
        let back: Vec<_> = on_wire.map(|code| (code, decode_code(code).map(encode_code))).collect();
        assert_eq!(back.len(), ErrorCode::ALL.len(), "no code on the wire is without one in the domain");
        assert!(back.iter().all(|(code, again)| Some(*code) == *again), "{back:?}");
    }

    #[test]
    fn an_error_with_its_hint_survives_the_wire() {
        let hint = LeaderHint {
            leader: highwater_types::NodeId::new(0),
            epoch: highwater_types::LeaderEpoch::FIRST,
            endpoint: Some("n0:9400".parse().unwrap()),
        };
        let error = ReplicationError::new(ErrorCode::NotLeaderOrFollower, "moved").with_leader(Some(hint));
        assert_eq!(decode_error(encode_error(&error)), Ok(error));
    }

    #[test]
    fn a_code_of_a_newer_peer_is_worth_another_try_and_keeps_its_text() {
        let newer = v1::PartitionError { code: 9999, message: "quota of the moon".into(), leader: None };
        let error = decode_error(newer).unwrap();
        assert_eq!(error.retry(), highwater_types::Retry::Retryable);
        assert!(error.message.contains("9999") && error.message.contains("moon"), "{error}");
    }
}
