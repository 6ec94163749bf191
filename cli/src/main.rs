//! The command line tool.

mod log;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::log::{LogCommand, LogCommandError, Verdict};

/// Highwater: a replicated, partitioned commit log.
#[derive(Debug, Parser)]
#[command(name = "highwater", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads partition directories offline; writes nothing.
    #[command(subcommand)]
    Log(LogCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let result = match cli.command {
        Command::Log(command) => command.run(&mut out),
    };
    let result = result.and_then(|verdict| Ok(out.flush().map(|()| verdict)?));
    match result {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::FAILURE,
        // Who reads the output may stop reading: `| head`.
        Err(LogCommandError::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "highwater: {e}");
            ExitCode::FAILURE
        }
    }
}
