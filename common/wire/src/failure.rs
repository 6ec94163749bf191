//! What a received status means for the caller: whether to try again, when, and where.
//!
//! What holds: an ErrorInfo of our domain decides where there is one, since it says more than the gRPC code; a fired
//! deadline is told apart from other cancellations (S78: tonic says CANCELLED "Timeout expired", other clients
//! DEADLINE_EXCEEDED).

use std::error::Error;
use std::time::Duration;
use std::{io, iter};

use highwater_types::{ErrorCode, LeaderEpoch, LeaderHint, NodeId, Retry};
use tonic::{Code, ConnectError, Status};
use tonic_types::{ErrorInfo, StatusExt as _};

use crate::status::{ERROR_DOMAIN, REASON_OVERLOADED, code_of, hint_key};

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Try again after a back-off, perhaps elsewhere.
    Retryable,
    /// Never unchanged.
    Terminal,
    /// The call's own deadline fired: the peer hangs or is slow. Counts as a network fault, and is counted separately.
    Deadline,
    /// The peer sheds load: try again after at least [`Failure::retry_after`], with jitter.
    Overloaded,
}

/// How far a failed call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The peer's program answered with an error of its own.
    Program,
    /// Perhaps it did, perhaps not: what the call asked for may have been done.
    Unknown,
    /// No connection could be made: nothing was done.
    Nothing,
    /// The port refuses connections: nothing was done, and no process listens there (design.md 6.6).
    Refused,
}

/// A failed call, classified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What to do.
    pub kind: FailureKind,
    /// The least wait that the peer asks for.
    pub retry_after: Option<Duration>,
    /// The gRPC status; a call that was cancelled because its time was over counts as DEADLINE_EXCEEDED.
    pub status: Code,
    /// The code of the domain, when the peer named one.
    pub code: Option<ErrorCode>,
    /// The leader that the peer named. A hint of a lower epoch than a known one is to be ignored.
    pub leader: Option<LeaderHint>,
    /// How far the call came; anything but [`Reached::Program`] puts the connection in doubt.
    pub reached: Reached,
    /// For people.
    pub message: String,
}

/// Classifies a received status.
#[must_use]
pub fn classify(status: &Status) -> Failure {
    let info = status.get_details_error_info().filter(|info| info.domain == ERROR_DOMAIN);
    let code = info.as_ref().and_then(|info| code_of(&info.reason));
    let retry_after = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let shed = info.as_ref().is_some_and(|info| info.reason == REASON_OVERLOADED);
    let kind = match code {
        _ if shed => FailureKind::Overloaded,
        Some(code) if code.retry() == Retry::Retryable => FailureKind::Retryable,
        Some(_) => FailureKind::Terminal,
        None if info.is_some() => FailureKind::Terminal,
        None => kind_of(status),
    };
    Failure {
        kind,
        retry_after,
        status: if kind == FailureKind::Deadline { Code::DeadlineExceeded } else { status.code() },
        code,
        leader: info.as_ref().and_then(hint_of),
        reached: if info.is_some() { Reached::Program } else { reached(status, kind) },
        message: describe(status),
    }
}

/// Whether the answer was larger than the caller's own decode limit (S81): the call was answered and the connection is
/// good. tonic says so only by its text.
#[must_use]
pub fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("decoded message length too large")
}

fn kind_of(status: &Status) -> FailureKind {
    match status.code() {
        Code::DeadlineExceeded => FailureKind::Deadline,
        Code::Cancelled if status.message().contains("Timeout expired") => FailureKind::Deadline,
        Code::ResourceExhausted => FailureKind::Overloaded,
        Code::Ok | Code::Cancelled | Code::Unknown | Code::Aborted | Code::Internal | Code::Unavailable => {
            FailureKind::Retryable
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => FailureKind::Terminal,
    }
}

fn reached(status: &Status, kind: FailureKind) -> Reached {
    let is_refused = |cause: &(dyn Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    };
    match kind {
        FailureKind::Terminal | FailureKind::Overloaded => Reached::Program,
        FailureKind::Retryable | FailureKind::Deadline if causes(status).any(is_refused) => Reached::Refused,
        FailureKind::Retryable | FailureKind::Deadline
            if causes(status).any(|cause| cause.is::<ConnectError>()) =>
        {
            Reached::Nothing
        }
        FailureKind::Retryable | FailureKind::Deadline => Reached::Unknown,
    }
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(status.source(), |cause| (*cause).source())
}

fn hint_of(info: &ErrorInfo) -> Option<LeaderHint> {
    let number = |key| info.metadata.get(key).and_then(|text| text.parse().ok());
    Some(LeaderHint {
        leader: number(hint_key::LEADER_ID).and_then(NodeId::new),
        epoch: number(hint_key::LEADER_EPOCH).and_then(LeaderEpoch::new)?,
        endpoint: info.metadata.get(hint_key::ENDPOINT).and_then(|text| text.parse().ok()),
    })
}

/// The status and its causes in one line: a refused connection says so only in its source.
fn describe(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    for cause in causes(status) {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
    }
    crate::text::clip(&text, MESSAGE_LIMIT)
}

/// Longest description of a failure, in bytes.
const MESSAGE_LIMIT: usize = 1024;

/// A status code's name, as OpenTelemetry's conventions and gRPC's documents write it.
#[must_use]
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DecodeError;
    use crate::status;
    use highwater_types::ReplicationError;

    #[test]
    fn both_forms_of_a_fired_deadline_are_deadlines() {
        for status in [Status::cancelled("Timeout expired"), Status::deadline_exceeded("late")] {
            assert_eq!(classify(&status).kind, FailureKind::Deadline);
        }
        assert_eq!(classify(&Status::cancelled("h2: CANCEL")).kind, FailureKind::Retryable);
    }

    #[test]
    fn shed_load_tells_how_long_to_wait() {
        let failure = classify(&status::overloaded("full", Duration::from_millis(250)));
        assert_eq!(failure.kind, FailureKind::Overloaded);
        assert_eq!(failure.retry_after, Some(Duration::from_millis(250)));
        assert_eq!(failure.reached, Reached::Program);
    }

    #[test]
    fn the_code_of_the_domain_decides_over_the_grpc_code() {
        for code in ErrorCode::ALL {
            let failure = classify(&status::from_error(&ReplicationError::new(*code, "x")));
            assert_eq!(failure.code, Some(*code));
            assert_eq!(failure.kind == FailureKind::Retryable, code.retry() == Retry::Retryable, "{code:?}");
            assert_eq!(failure.reached, Reached::Program, "{code:?}");
        }
    }

    #[test]
    fn a_leader_hint_comes_back_from_a_status() {
        let hint = LeaderHint {
            leader: NodeId::new(0),
            epoch: LeaderEpoch::new(7).unwrap(),
            endpoint: Some("127.0.0.1:9400".parse().unwrap()),
        };
        let error =
            ReplicationError::new(ErrorCode::NotLeaderOrFollower, "x").with_leader(Some(hint.clone()));
        let status = status::from_error(&error);
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(classify(&status).leader, Some(hint));
    }

    #[test]
    fn a_refused_port_is_told_apart_from_an_address_that_cannot_be_reached() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert_eq!(classify(&status).reached, Reached::Refused);
        let unknown_name = io::Error::other("failed to lookup address information");
        let status = Status::from_error(Box::new(ConnectError(Box::new(unknown_name))));
        let failure = classify(&status);
        assert_eq!((failure.kind, failure.reached), (FailureKind::Retryable, Reached::Nothing));
        assert!(failure.message.contains("lookup address"), "{failure}");
    }

    #[test]
    fn a_refused_field_is_terminal_and_a_lost_connection_leaves_the_outcome_open() {
        assert_eq!(classify(&DecodeError::invalid("a", "b").into()).kind, FailureKind::Terminal);
        let lost = classify(&Status::unavailable("tcp connect error"));
        assert_eq!((lost.kind, lost.reached), (FailureKind::Retryable, Reached::Unknown));
        assert_eq!(lost.status, Code::Unavailable);
        let late = classify(&Status::cancelled("Timeout expired"));
        assert_eq!((late.kind, late.status), (FailureKind::Deadline, Code::DeadlineExceeded));
    }
}
