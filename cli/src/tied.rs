//! `highwater tied`, for the demo's own use: becomes another program that the kernel kills when the one that started it
//! dies, however that happens.
//!
//! What must hold: the kernel means the *thread* that started it, so that has to be one that lives as long as the process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use crate::outcome::CommandError;

/// What to become.
#[derive(Args, Debug)]
pub(crate) struct TiedArgs {
    /// The process id of the one that starts it.
    #[arg(long)]
    parent: u32,
    /// The program.
    program: PathBuf,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl TiedArgs {
    /// The command line for a program that is tied to this process.
    pub(crate) fn command(own: &Path, program: &Path) -> Command {
        let mut command = Command::new(own);
        command.args(["tied", "--parent", &std::process::id().to_string()]).arg(program);
        command
    }
}

/// Becomes the program; returns only why it could not.
pub(crate) fn run(args: &TiedArgs) -> CommandError {
    let failed = |problem: String| CommandError::Failed(format!("{}: {problem}", args.program.display()));
    if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
        return failed(format!("cannot be tied to its parent: {error}"));
    }
    // Had the parent died before, nothing would kill this process any more.
    if u32::try_from(getppid().as_raw()) != Ok(args.parent) {
        return failed("whoever started it has ended".to_owned());
    }
    failed(Command::new(&args.program).args(&args.arguments).exec().to_string())
}
