//! The follower-agent program: settings → logging → build → serve → drain.

use std::process::ExitCode;

use follower_agent::config::{AgentSettings, check};
use follower_agent::{AgentError, Config, build};
use highwater_node::config::{ProgramInfo, from_command_line};

/// Records pass through many short-lived buffers; the system's allocator costs a third of the throughput.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROGRAM: ProgramInfo = ProgramInfo {
    name: "follower-agent",
    version: env!("CARGO_PKG_VERSION"),
    about: "Follows partitions of a replicated log: pulls, checks, appends, and acknowledges by its next fetch",
};

fn main() -> ExitCode {
    let (common, own) = match from_command_line::<AgentSettings>(&PROGRAM, check) {
        Ok(settings) => settings,
        Err(exit) => return exit,
    };
    if let Err(error) = highwater_telemetry::init(common.log_format, &common.log_filter.0) {
        tracing::error!(%error, "could not set up logging");
        return ExitCode::FAILURE;
    }
    highwater_node::run(async |stop| -> Result<(), AgentError> {
        // Until it serves there is nothing to end in order.
        match stop.run_until_cancelled(Box::pin(build(Config { common, own }))).await {
            Some(built) => built?.run(stop).await,
            None => Ok(()),
        }
    })
}
