//! The signals that ask a command to end, for commands that have something to say or to take away before they do.

use std::fmt;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::outcome::CommandError;

/// What asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone.
    Hangup,
}

impl Interruption {
    /// As a shell reports a program that the signal ended: 128 and its number.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Hangup => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        })
    }
}

/// Completes at the first signal; from the call on none ends the process by itself.
///
/// # Errors
/// When signals cannot be handled.
pub(crate) fn interruption() -> Result<impl Future<Output = Interruption>, CommandError> {
    let failed = |e: io::Error| CommandError::Failed(format!("cannot handle signals: {e}"));
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = int.recv() => Interruption::Interrupt,
            _ = term.recv() => Interruption::Terminate,
            _ = hangup.recv() => Interruption::Hangup,
        }
    })
}
