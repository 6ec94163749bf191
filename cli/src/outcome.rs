//! How a command ends: what it found, or why it could not be carried out, and the exit code of each.
//!
//! What holds: exit codes are 0 done, 1 failed (or something is wrong with what was looked at), 2 wrong use, 128 and the
//! signal's number where one ended a command that had more to do. An error says
//! what failed and where; a hint after it says what to do, where that is known. Who stops reading the output ends a
//! command quietly.

use std::io;
use std::process::ExitCode;

use highwater_client::{ClientError, Reached};

use crate::interruption::Interruption;
use crate::log::LogCommandError;

/// Whether everything is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is.
    Good,
    /// It is not, and the output says why.
    Wrong,
}

impl Verdict {
    /// The verdict over two things.
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Good, Self::Good) => Self::Good,
            (Self::Good | Self::Wrong, Self::Good | Self::Wrong) => Self::Wrong,
        }
    }
}

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The cluster refused, or could not be reached.
    #[error("cannot {what}: {error}")]
    Cluster {
        /// What was tried, as it follows "cannot".
        what: String,
        /// Why it failed.
        error: Box<ClientError>,
    },
    /// A file cannot be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
    /// A command on log directories failed.
    #[error(transparent)]
    Log(LogCommandError),
    /// A signal asked for the end.
    #[error("ended by {0}")]
    Interrupted(Interruption),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl From<LogCommandError> for CommandError {
    fn from(error: LogCommandError) -> Self {
        match error {
            LogCommandError::Write(error) => Self::Write(error),
            other @ (LogCommandError::Storage(_)
            | LogCommandError::NotALog { .. }
            | LogCommandError::NothingInCommon) => Self::Log(other),
        }
    }
}

impl CommandError {
    /// A failure of the cluster at `what`; an impossible wish is wrong use.
    pub(crate) fn cluster(what: impl Into<String>, error: ClientError) -> Self {
        if let ClientError::Usage(problem) = error {
            return Self::Usage(problem);
        }
        Self::Cluster { what: what.into(), error: Box::new(error) }
    }

    /// Whether whoever read the output has stopped: `| head`.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What the user can do about it, where that is known.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        let Self::Cluster { error, .. } = self else { return None };
        hint(error)
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Interrupted(by) => ExitCode::from(by.exit_code()),
            _ if self.is_closed_output() => ExitCode::SUCCESS,
            Self::Cluster { .. } | Self::Read { .. } | Self::Write(_) | Self::Log(_) | Self::Failed(_) => {
                ExitCode::FAILURE
            }
        }
    }
}

/// What the user can do about a failure of the client.
fn hint(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Call { failure, .. } => match failure.reached {
            Reached::Refused | Reached::Nothing => Some(
                "nobody answers there; name a node that runs, its leader-svc or its agent: --bootstrap HOST:PORT, or HIGHWATER_BOOTSTRAP",
            ),
            Reached::Program | Reached::Unknown => None,
        },
        ClientError::GaveUp { last, .. } => hint(last),
        ClientError::OutcomeUnknown { .. } => Some("see what was done: highwater topics describe"),
        ClientError::Answered { .. }
        | ClientError::Answer { .. }
        | ClientError::Usage(_)
        | ClientError::Corrupt { .. }
        | ClientError::Closed => None,
    }
}

#[cfg(test)]
mod tests {
    use highwater_client::{Failure, FailureKind};

    use super::*;

    fn refused() -> ClientError {
        let failure = Failure {
            kind: FailureKind::Retryable,
            retry_after: None,
            status: tonic::Code::Unavailable,
            code: None,
            leader: None,
            reached: Reached::Refused,
            message: "connection refused".to_owned(),
        };
        let call = ClientError::Call { endpoint: "127.0.0.1:9400".parse().unwrap(), failure };
        ClientError::GaveUp { what: "describing the cluster".to_owned(), last: Box::new(call) }
    }

    #[test]
    fn a_cluster_that_is_not_there_is_told_with_the_address_and_what_to_do() {
        let error = CommandError::cluster("list topics", refused());
        let text = error.to_string();
        assert!(text.starts_with("cannot list topics: ") && text.contains("127.0.0.1:9400"), "{text}");
        assert!(error.hint().unwrap().contains("--bootstrap"));
        assert_eq!(error.exit_code(), ExitCode::FAILURE);
    }

    #[test]
    fn what_cannot_be_is_wrong_use() {
        let error = CommandError::cluster("read", ClientError::Usage("topic x has 1 partition".to_owned()));
        assert_eq!(error.to_string(), "topic x has 1 partition");
        assert_eq!(error.exit_code(), ExitCode::from(2));
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        for error in [CommandError::from(closed()), CommandError::from(LogCommandError::Write(closed()))] {
            assert!(error.is_closed_output());
            assert_eq!(error.exit_code(), ExitCode::SUCCESS);
        }
        assert_eq!(CommandError::from(io::Error::other("full")).exit_code(), ExitCode::FAILURE);
    }
}
