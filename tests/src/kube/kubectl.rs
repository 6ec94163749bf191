//! kubectl against one API server, as a person at a shell uses it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::process::Command;

/// kubectl, pointed at an API server.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    configuration: PathBuf,
}

/// What one run said.
#[derive(Debug)]
pub struct Said {
    /// Standard output.
    pub out: String,
    /// Standard error; the API server's warnings are among it.
    pub err: String,
    /// Whether it did what it was asked.
    pub done: bool,
}

impl Kubectl {
    pub(super) fn new(program: PathBuf, configuration: PathBuf) -> Self {
        Self { program, configuration }
    }

    /// The file that says where the API server is and who asks.
    pub(super) fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// Runs kubectl with these arguments.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Said {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.configuration).args(arguments);
        Said::of(&command.kill_on_drop(true).output().await.expect("kubectl starts"))
    }

    /// Runs lines of a shell, from the root of the repository, that say `kubectl`; `programs` are other folders to look in.
    ///
    /// # Panics
    /// When there is no shell.
    pub async fn shell(&self, lines: &str, programs: &[&Path]) -> Said {
        let own = self.program.parent().unwrap_or_else(|| Path::new("."));
        let given = std::env::var_os("PATH").unwrap_or_default();
        let given: Vec<PathBuf> = std::env::split_paths(&given).collect();
        let path =
            [own].into_iter().chain(programs.iter().copied()).chain(given.iter().map(PathBuf::as_path));
        let path = std::env::join_paths(path).expect("no folder has a colon in its name");
        let mut command = Command::new("bash");
        command.args(["-euc", lines]).env("PATH", path).env("KUBECONFIG", &self.configuration);
        command.current_dir(crate::programs::repository()).stdin(std::process::Stdio::null());
        Said::of(&command.kill_on_drop(true).output().await.expect("there is a shell"))
    }

    /// `kubectl apply -k DIRECTORY OPTIONS…`.
    pub async fn apply(&self, directory: &Path, options: &[&str]) -> Said {
        let directory = [OsStr::new("apply"), OsStr::new("-k"), directory.as_os_str()];
        self.run(directory.into_iter().chain(options.iter().map(OsStr::new))).await
    }
}

impl Said {
    fn of(output: &std::process::Output) -> Self {
        Self {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            done: output.status.success(),
        }
    }

    /// The output of a run that did what it was asked, and of which the API server warned of nothing.
    ///
    /// # Panics
    /// When it did not, or the API server warned.
    pub fn quietly(&self) -> &str {
        assert!(self.done && self.err.is_empty(), "{}{}", self.out, self.err);
        &self.out
    }

    /// The same as JSON, as `-o json` prints it.
    ///
    /// # Panics
    /// As [`Said::quietly`], and when it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(self.quietly()).expect("kubectl prints JSON")
    }
}
