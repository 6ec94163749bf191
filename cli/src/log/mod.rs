//! `highwater log`: reads partition directories offline: of this program, and of Kafka.
//!
//! What holds: no file is written and no lock is taken, so a directory may be in use meanwhile. Exit codes: 0 done,
//! 1 something is wrong with what was read, or it could not be read, 2 wrong use.

mod about;
pub(crate) mod compare;
mod dump;
mod partition;
mod verify;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Subcommand;

use crate::outcome::Verdict;
use crate::output::{OutputArgs, OutputFormat};

/// Reads partition directories offline.
#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Prints every batch and record of partition directories.
    Dump(dump::DumpArgs),
    /// Checks a partition directory, or every one of a data directory, and names what is wrong.
    Verify(verify::VerifyArgs),
    /// Compares the bytes of partition directories, or of data directories partition by partition.
    Compare(compare::CompareArgs),
}

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogCommandError {
    /// A file or directory cannot be read.
    #[error(transparent)]
    Storage(#[from] highwater_log::StorageError),
    /// A directory that holds no partition.
    #[error("{} is no partition directory, and holds none", path.display())]
    NotALog {
        /// Which.
        path: PathBuf,
    },
    /// Data directories without a partition that is in two of them.
    #[error("no partition is in more than one of the directories")]
    NothingInCommon,
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl LogCommand {
    /// Carries the command out.
    ///
    /// # Errors
    /// [`LogCommandError`].
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Verdict, LogCommandError> {
        match self {
            Self::Dump(args) => dump::run(args, out),
            Self::Verify(args) => verify::run(args, out),
            Self::Compare(args) => compare::run(args, out),
        }
    }
}

/// Writes one JSON object as a line.
fn json_line(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<(), LogCommandError> {
    Ok(crate::output::json_line(out, value)?)
}

#[cfg(test)]
#[path = "log_test.rs"]
mod tests;
#[cfg(test)]
mod verify_open_test;
