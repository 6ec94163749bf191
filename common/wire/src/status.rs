//! Every `tonic::Status` of the product is built here, with `google.rpc` details (semantics.md, "Errors of Fetch").
//!
//! What holds: each has an ErrorInfo of our domain whose reason a program can branch on; RetryInfo where a wait helps,
//! BadRequest where a field is wrong. Statuses travel in headers, of which a peer takes 16 KiB: whatever went into one, it
//! stays below [`HEADER_LIMIT`] (grpc-rust#1834).

use std::collections::HashMap;
use std::time::Duration;

use highwater_proto::v1;
use highwater_types::{ClusterId, ErrorCode, ReplicationError, Retry};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::DecodeError;
use crate::error::encode_code;
use crate::text::clip;

/// The domain in every ErrorInfo.
pub const ERROR_DOMAIN: &str = "highwater.dev";

/// The encoded descriptors of the details, for reflection: without them grpcurl prints bytes in base64.
pub const DETAILS_DESCRIPTOR_SET: &[u8] = tonic_types::pb::FILE_DESCRIPTOR_SET;

/// The most that a status takes of the headers, in bytes; the usual limit for all headers is 16 KiB.
pub const HEADER_LIMIT: usize = 12 * 1024;

/// Longest message of a status, in bytes: percent-encoding can triple it, and the details repeat it in base64.
const MESSAGE_LIMIT: usize = 2048;

/// The least wait before a retry that helps, where nothing better is known.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Reason of a refusal because too much is in flight.
pub const REASON_OVERLOADED: &str = "OVERLOADED";
/// Reason of a refusal because requester and node belong to different clusters.
pub const REASON_WRONG_CLUSTER: &str = "WRONG_CLUSTER";
/// Reason of a refusal while the program stops: a new leader epoch is to be expected.
pub const REASON_DRAINING: &str = "LEADER_DRAINING";

/// Keys of the leader's hint in an ErrorInfo.
pub(crate) mod hint_key {
    pub(crate) const LEADER_ID: &str = "leader_id";
    pub(crate) const LEADER_EPOCH: &str = "leader_epoch";
    pub(crate) const ENDPOINT: &str = "leader_endpoint";
}

/// A request that does not decode: INVALID_ARGUMENT with BadRequest, or UNIMPLEMENTED for what is not offered.
impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Self {
        let mut details = ErrorDetails::new();
        let (code, reason) = if error.is_unsupported() {
            (Code::Unimplemented, reason_of(ErrorCode::Unsupported))
        } else {
            details.add_bad_request_violation(error.path(), error.problem());
            (Code::InvalidArgument, reason_of(ErrorCode::InvalidRequest))
        };
        build(code, &error.to_string(), reason, HashMap::new(), details)
    }
}

/// An error that concerns the whole call, because the call is about one partition or one topic. The leader's id, epoch and
/// address travel in the ErrorInfo.
#[must_use]
pub fn from_error(error: &ReplicationError) -> Status {
    let mut metadata = HashMap::new();
    if let Some(hint) = &error.leader {
        metadata.insert(hint_key::LEADER_EPOCH.to_owned(), hint.epoch.to_string());
        if let Some(leader) = hint.leader {
            metadata.insert(hint_key::LEADER_ID.to_owned(), leader.to_string());
        }
        if let Some(endpoint) = &hint.endpoint {
            metadata.insert(hint_key::ENDPOINT.to_owned(), endpoint.to_string());
        }
    }
    let mut details = ErrorDetails::new();
    if error.retry() == Retry::Retryable {
        details.set_retry_info(Some(RETRY_DELAY));
    }
    build(grpc_code(error.code), &error.message, reason_of(error.code), metadata, details)
}

/// Too much is in flight: RESOURCE_EXHAUSTED; the requester waits at least `retry_after`.
#[must_use]
pub fn overloaded(message: &str, retry_after: Duration) -> Status {
    let details = ErrorDetails::with_retry_info(Some(retry_after));
    build(Code::ResourceExhausted, message, REASON_OVERLOADED, HashMap::new(), details)
}

/// The requester belongs to another cluster.
#[must_use]
pub fn wrong_cluster(asked: &ClusterId, own: &ClusterId) -> Status {
    let message = format!("the request is for cluster {asked}, this node belongs to cluster {own}");
    build(Code::FailedPrecondition, &message, REASON_WRONG_CLUSTER, HashMap::new(), ErrorDetails::new())
}

/// The program is stopping.
#[must_use]
pub fn draining() -> Status {
    from_error(&ReplicationError::new(ErrorCode::ShuttingDown, "this program is stopping"))
}

/// A fault of the program itself.
#[must_use]
pub fn internal(message: &str) -> Status {
    from_error(&ReplicationError::new(ErrorCode::Internal, message))
}

/// The reason in an ErrorInfo that stands for a code.
#[must_use]
pub fn reason_of(code: ErrorCode) -> &'static str {
    if code == ErrorCode::ShuttingDown {
        return REASON_DRAINING;
    }
    let name = encode_code(code).as_str_name();
    name.strip_prefix("ERROR_CODE_").unwrap_or(name)
}

/// The code that a reason stands for.
#[must_use]
pub fn code_of(reason: &str) -> Option<ErrorCode> {
    if reason == REASON_DRAINING {
        return Some(ErrorCode::ShuttingDown);
    }
    v1::ErrorCode::from_str_name(&format!("ERROR_CODE_{reason}")).and_then(crate::error::decode_code)
}

const fn grpc_code(code: ErrorCode) -> Code {
    match code {
        ErrorCode::OffsetOutOfRange => Code::OutOfRange,
        ErrorCode::FencedLeaderEpoch
        | ErrorCode::UnknownLeaderEpoch
        | ErrorCode::NotLeaderOrFollower
        | ErrorCode::InconsistentTopicId
        | ErrorCode::StaleIncarnation
        | ErrorCode::UnknownProducer
        | ErrorCode::OutOfOrderSequence
        | ErrorCode::InvalidProducerEpoch => Code::FailedPrecondition,
        ErrorCode::LeaderNotAvailable
        | ErrorCode::ReplicaNotAvailable
        | ErrorCode::StorageError
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::NotEnoughReplicasAfterAppend
        | ErrorCode::CoordinationUnavailable
        | ErrorCode::ShuttingDown => Code::Unavailable,
        ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => Code::NotFound,
        ErrorCode::DataLoss => Code::DataLoss,
        ErrorCode::CorruptMessage
        | ErrorCode::InvalidRecord
        | ErrorCode::MessageTooLarge
        | ErrorCode::InvalidRequest
        | ErrorCode::InvalidTopic
        | ErrorCode::InvalidConfig => Code::InvalidArgument,
        ErrorCode::RequestTimedOut => Code::DeadlineExceeded,
        ErrorCode::TopicAlreadyExists => Code::AlreadyExists,
        ErrorCode::Unsupported => Code::Unimplemented,
        ErrorCode::Internal => Code::Internal,
    }
}

fn build(
    code: Code,
    message: &str,
    reason: &str,
    metadata: HashMap<String, String>,
    mut details: ErrorDetails,
) -> Status {
    details.set_error_info(reason, ERROR_DOMAIN, metadata);
    Status::with_error_details(code, clip(message, MESSAGE_LIMIT), details)
}

#[cfg(test)]
#[path = "status_test.rs"]
mod tests;
