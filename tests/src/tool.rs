//! Running the command line tool against a cluster.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use system_tests::cluster::Cluster;
use system_tests::programs;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Longer than any command of these tests takes.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("it is text")
    }

    /// Every line of the output as JSON.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    /// Itself, when the exit code is this one.
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}{}", String::from_utf8_lossy(&self.out), self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

pub(crate) fn command(bootstrap: &str, args: &[&str]) -> Command {
    let mut command = Command::new(programs::path("highwater"));
    command.args(args).env("HIGHWATER_BOOTSTRAP", bootstrap).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) async fn run_with(bootstrap: &str, args: &[&str], input: &[u8]) -> Done {
    let mut child = command(bootstrap, args).stdin(Stdio::piped()).spawn().expect("the program is there");
    let mut stdin = child.stdin.take().expect("it is piped");
    let feed = async move {
        // A command that refuses its arguments does not read.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(BOUND, both).await.expect("it ends in time").expect("it is ours");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Done { status: output.status, out: output.stdout, err }
}

pub(crate) async fn run(cluster: &Cluster, args: &[&str]) -> Done {
    run_with(&cluster.bootstrap(), args, b"").await
}
