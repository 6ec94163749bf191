//! The command line tool: talks to a cluster through the client, reads log directories offline, and runs the demo.
//!
//! What holds: it depends on neither program; the demo starts them as processes. What a command was asked for goes to
//! standard output, everything else to standard error. Exit codes: see [`outcome`].

mod connection;
mod consume;
mod demo;
mod elect;
mod figures;
mod interruption;
mod lag;
mod ledger;
mod lines;
mod load;
mod log;
mod outcome;
mod output;
mod produce;
mod reassign;
mod replica;
mod throttle;
mod tied;
mod topics;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use highwater_telemetry::LogFormat;

use crate::log::LogCommand;
use crate::outcome::{CommandError, Verdict};
use crate::replica::ReplicaCommand;
use crate::throttle::ThrottleCommand;
use crate::topics::TopicsCommand;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Highwater: a replicated, partitioned commit log.
#[derive(Debug, Parser)]
#[command(name = "highwater", version)]
struct Cli {
    /// Which log lines are written to standard error: a level, or levels by module.
    #[arg(long, env = "HIGHWATER_LOG_FILTER", default_value = "warn", global = true, hide = true)]
    log_filter: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a cluster on this machine, replicates an input, and verifies that nothing is missing or different.
    Demo(demo::DemoArgs),
    /// Creates, lists, describes, deletes and adopts topics.
    #[command(subcommand)]
    Topics(TopicsCommand),
    /// Sends the lines of a file or of standard input, one record a line.
    Produce(produce::ProduceArgs),
    /// Prints the records of a topic.
    Consume(consume::ConsumeArgs),
    /// Shows how far every follower is, and why.
    Lag(lag::LagArgs),
    /// Sets, clears and shows how fast replicas that are catching up may replicate.
    #[command(subcommand)]
    Throttle(ThrottleCommand),
    /// Has another replica lead a partition: the preferred one, or one that may lack records.
    Elect(elect::ElectArgs),
    /// Moves partitions to other nodes, to more of them or to fewer; takes that back; shows how far it is.
    Reassign(reassign::ReassignArgs),
    /// Pauses and resumes one replica of a partition.
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// Reads partition directories offline; writes nothing.
    #[command(subcommand)]
    Log(LogCommand),
    /// For the demo's own use.
    #[command(hide = true)]
    Tied(tied::TiedArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let done = run(&cli, &mut out).and_then(|verdict| Ok(out.flush().map(|()| verdict)?));
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::FAILURE,
        Err(error) => {
            if !error.is_closed_output() {
                tell(&error);
            }
            error.exit_code()
        }
    }
}

fn run(cli: &Cli, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    highwater_telemetry::init(LogFormat::Text, &cli.log_filter)
        .map_err(|e| CommandError::Usage(e.to_string()))?;
    match &cli.command {
        Command::Log(command) => Ok(command.run(out)?),
        Command::Tied(args) => Err(tied::run(args)),
        Command::Demo(args) => block_on(demo::run(args, out)),
        Command::Topics(command) => block_on(command.run(out)).map(|()| Verdict::Good),
        Command::Produce(args) => block_on(produce::run(args, out)),
        Command::Consume(args) => block_on(consume::run(args, out)).map(|()| Verdict::Good),
        Command::Lag(args) => block_on(lag::run(args, out)),
        Command::Elect(args) => block_on(elect::run(args, out)).map(|()| Verdict::Good),
        Command::Reassign(args) => block_on(reassign::run(args, out)),
        Command::Replica(command) => block_on(command.run(out)).map(|()| Verdict::Good),
        Command::Throttle(command) => block_on(command.run(out)).map(|()| Verdict::Good),
    }
}

/// Runs a command on this thread, and what it spawns on others.
fn block_on<T>(command: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| CommandError::Failed(format!("cannot start the runtime: {e}")))?;
    let result = runtime.block_on(command);
    // A read of a terminal that nobody ends would hold the process.
    runtime.shutdown_background();
    result
}

/// Says on standard error what failed and what to do. That nobody listens there is no further failure.
fn tell(error: &CommandError) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "highwater: {error}");
    if let Some(hint) = error.hint() {
        let _ = writeln!(err, "hint: {hint}");
    }
}
