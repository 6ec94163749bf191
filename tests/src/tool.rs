//! The command line tool, run against a cluster.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::programs;

/// Longer than any command of these tests takes.
pub const BOUND: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub struct Done {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub out: Vec<u8>,
    /// What it complained of.
    pub err: String,
}

impl Done {
    /// The output as text.
    ///
    /// # Panics
    /// It is none.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("it is text")
    }

    /// Every line of the output as JSON.
    ///
    /// # Panics
    /// A line is something else.
    #[must_use]
    pub fn json(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    /// The only line of the output as JSON; null where nothing was printed.
    #[must_use]
    pub fn line(&self) -> Value {
        self.json().pop().unwrap_or(Value::Null)
    }

    /// Itself, when the exit code is this one.
    ///
    /// # Panics
    /// It is not, or the program panicked.
    #[expect(clippy::return_self_not_must_use, reason = "often the check is all that is wanted")]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}{}", String::from_utf8_lossy(&self.out), self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

/// `highwater …`, asking these nodes.
#[must_use]
pub fn command(bootstrap: &str, args: &[&str]) -> Command {
    let mut command = Command::new(programs::path("highwater"));
    command.args(args).env("HIGHWATER_BOOTSTRAP", bootstrap).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command, with this on its standard input.
///
/// # Panics
/// It does not end.
pub async fn run_with(bootstrap: &str, args: &[&str], input: &[u8]) -> Done {
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

/// Runs a command.
///
/// # Panics
/// It does not end.
pub async fn run(cluster: &Cluster, args: &[&str]) -> Done {
    run_with(&cluster.bootstrap(), args, b"").await
}

/// Runs a command that prints JSON.
///
/// # Panics
/// It does not end.
pub async fn run_json(cluster: &Cluster, args: &[&str]) -> Done {
    run(cluster, &[args, &["--output", "json"]].concat()).await
}
