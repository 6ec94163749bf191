//! A program as a process: it runs until it ends or is told to, and then ends in bounded time.
//!
//! What must hold: SIGTERM and SIGINT are handled from before the service starts (as process 1 of a container an unhandled
//! SIGTERM would be ignored); the exit code is 0 only when the service ended by itself without an error; nothing that
//! hangs (a silent connection, a stuck disk) holds the process longer than [`DRAIN_BOUND`].

use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a program may take to end once it was told to; after that it is ended by force. Leaves room within the 5 s
/// that design.md 6.11 allows.
pub const DRAIN_BOUND: Duration = Duration::from_millis(4_500);

/// Runs `service` on a runtime of its own until it ends. The token that it is given is cancelled by the first SIGTERM or
/// SIGINT: it then has [`DRAIN_BOUND`] to end. A second signal ends it at once.
///
/// Exit codes: 0 the service ended without an error, 1 it failed or was ended by force.
pub fn run<E: Display>(service: impl AsyncFnOnce(CancellationToken) -> Result<(), E>) -> ExitCode {
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "could not start the runtime");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        let drain = CancellationToken::new();
        let told_twice = match told_to_stop(drain.clone()) {
            Ok(told_twice) => told_twice,
            Err(error) => return Outcome::Failed(format!("handle signals: {error}")),
        };
        supervise(service(drain.clone()), &drain, DRAIN_BOUND, told_twice).await
    });
    // Whatever still runs (a job on a stuck disk, an exporter) is left behind: the process ends now.
    runtime.shutdown_background();
    match outcome {
        Outcome::Ended => ExitCode::SUCCESS,
        Outcome::Failed(error) => {
            tracing::error!(%error, "failed");
            ExitCode::FAILURE
        }
        Outcome::Forced(why) => {
            tracing::error!(why, "ended by force");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ended,
    Failed(String),
    Forced(&'static str),
}

/// Installs the handlers, cancels `drain` at the first signal, and completes at the second.
fn told_to_stop(drain: CancellationToken) -> io::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut next = async move || {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    };
    Ok(async move {
        let name = next().await;
        tracing::info!(signal = name, "stopping");
        drain.cancel();
        next().await;
    })
}

async fn supervise<E: Display>(
    service: impl Future<Output = Result<(), E>>,
    drain: &CancellationToken,
    bound: Duration,
    told_twice: impl Future<Output = ()>,
) -> Outcome {
    let drained_too_long = async {
        drain.cancelled().await;
        tokio::time::sleep(bound).await;
    };
    tokio::select! {
        biased;
        outcome = service => match outcome {
            Ok(()) => Outcome::Ended,
            Err(error) => Outcome::Failed(error.to_string()),
        },
        () = told_twice => Outcome::Forced("a second signal"),
        () = drained_too_long => Outcome::Forced("draining took too long"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    const BOUND: Duration = Duration::from_secs(4);

    #[tokio::test(start_paused = true)]
    async fn a_service_that_drains_in_time_has_ended_well() {
        let drain = CancellationToken::new();
        drain.cancel();
        let service = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok::<_, String>(())
        };
        assert_eq!(supervise(service, &drain, BOUND, pending()).await, Outcome::Ended);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_hangs_is_ended_by_force_after_the_bound() {
        let drain = CancellationToken::new();
        let begun = Instant::now();
        let stop = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drain.cancel();
            pending::<()>().await;
        };
        let outcome = supervise(pending::<Result<(), String>>(), &drain, BOUND, stop).await;
        assert_eq!(outcome, Outcome::Forced("draining took too long"));
        assert_eq!(begun.elapsed(), Duration::from_secs(104));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_at_once() {
        let drain = CancellationToken::new();
        let outcome = supervise(pending::<Result<(), String>>(), &drain, BOUND, ready(())).await;
        assert_eq!(outcome, Outcome::Forced("a second signal"));
    }

    /// Not a test of its own: the process that the next test signals.
    #[test]
    #[ignore = "started by another test, as a process"]
    fn draining_process() {
        let code = run(async |drain: CancellationToken| {
            println!("serving");
            drain.cancelled().await;
            println!("drained");
            Ok::<_, String>(())
        });
        println!("{code:?}");
    }

    #[test]
    fn a_process_that_is_told_to_stop_drains_and_succeeds() {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};

        for name in ["TERM", "INT"] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "process::tests::draining_process", "--ignored", "--nocapture"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains("serving")), "{name}: it starts");
            let signalled = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
            assert!(signalled.unwrap().success());
            let rest: Vec<String> = lines.collect();
            assert!(rest.iter().any(|line| line.contains("drained")), "{name}: {rest:?}");
            let success = format!("{:?}", ExitCode::SUCCESS);
            assert!(rest.iter().any(|line| line.contains(&success)), "{name}: {rest:?}");
            assert!(child.wait().unwrap().success());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told() {
        let drain = CancellationToken::new();
        let outcome = supervise(async { Err("port in use") }, &drain, BOUND, pending()).await;
        assert_eq!(outcome, Outcome::Failed("port in use".to_owned()));
    }
}
