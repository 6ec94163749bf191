//! One program of one node, as a child process.
//!
//! What holds: unless it is let go, it does not outlive this process: dropping it kills it, and the kernel does when this
//! process is killed. What it prints goes to a file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::outcome::CommandError;
use crate::tied::TiedArgs;

/// How many lines of its output are shown when something failed.
const TAIL_LINES: usize = 15;
/// How often it is looked whether it has ended.
const POLL: Duration = Duration::from_millis(20);
/// Every variable that is a setting of the programs begins so.
const SETTING_PREFIX: &str = "HIGHWATER_";
/// The only ones of them that are passed on.
const PASSED_ON: [&str; 2] = ["HIGHWATER_LOG_FILTER", "HIGHWATER_LOG_FORMAT"];

/// Whether a process ends with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It does.
    Tied,
    /// It goes on when it is let go.
    OfItsOwn,
}

/// A child process.
#[derive(Debug)]
pub(super) struct Child {
    name: String,
    output: PathBuf,
    process: std::process::Child,
    status: Option<ExitStatus>,
    is_let_go: bool,
}

impl Child {
    /// Starts `program`; what it prints is appended to the file `output`. Must be called on a thread that lives as long as
    /// the process does.
    pub(super) fn start(
        name: &str,
        program: &Path,
        arguments: &[OsString],
        output: &Path,
        life: Life,
    ) -> Result<Self, CommandError> {
        let failed = |e: io::Error| CommandError::Failed(format!("cannot start {name}: {e}"));
        let file = OpenOptions::new().create(true).append(true).open(output).map_err(failed)?;
        let mut command = match life {
            Life::Tied => TiedArgs::command(&std::env::current_exe().map_err(failed)?, program),
            Life::OfItsOwn => Command::new(program),
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign_setting(name)) {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            // So that Ctrl-C reaches only this process, which then stops the others in order.
            .process_group(0);
        let process = command.spawn().map_err(failed)?;
        Ok(Self { name: name.to_owned(), output: output.to_owned(), process, status: None, is_let_go: false })
    }

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, when it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.process.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks it to stop.
    pub(super) fn ask_to_stop(&mut self) {
        if self.ended().is_none()
            && let Ok(id) = i32::try_from(self.id())
        {
            // It was not waited for, so the id is still its own; that it ends just now is what is asked for.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
    }

    /// Waits until it has ended; `None` when that takes longer than `bound`.
    pub(super) async fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        let ended = async {
            loop {
                if let Some(status) = self.ended() {
                    return status;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(bound, ended).await.ok()
    }

    /// The end of what it printed.
    pub(super) fn tail(&self) -> String {
        let output = fs::read(&self.output).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
        tail.fold(format!("---- {} ({}):\n", self.name, self.output.display()), |text, line| {
            text + line + "\n"
        })
    }

    /// Leaves it running.
    pub(super) fn let_go(mut self) {
        self.is_let_go = true;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_let_go && self.ended().is_none() {
            // It may end in this moment; either way it is gone after the wait.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Whether a variable would be taken as a setting, or refused as an unknown one.
fn is_foreign_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with(SETTING_PREFIX) && !PASSED_ON.contains(&name.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, place: &Path) -> Child {
        let arguments = ["-c", script].map(OsString::from);
        Child::start("a shell", Path::new("/bin/sh"), &arguments, &place.join("output"), Life::OfItsOwn)
            .unwrap()
    }

    fn lives(id: u32) -> bool {
        Path::new(&format!("/proc/{id}")).exists()
    }

    #[tokio::test]
    async fn a_child_that_is_dropped_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let child = shell("exec sleep 1000", place.path());
        let id = child.id();
        assert!(lives(id));
        drop(child);
        assert!(!lives(id));
    }

    #[tokio::test]
    async fn its_end_and_the_end_of_its_output_are_told() {
        let place = tempfile::tempdir().unwrap();
        let mut child = shell("seq 1 100; echo last >&2; exit 3", place.path());
        let status = child.wait(Duration::from_secs(10)).await.unwrap();
        assert_eq!(status.code(), Some(3));
        let tail = child.tail();
        assert!(tail.ends_with("100\nlast\n") && !tail.contains("\n50\n"), "{tail}");
    }

    #[tokio::test]
    async fn a_child_that_does_not_stop_is_waited_for_only_so_long() {
        let place = tempfile::tempdir().unwrap();
        let mut child = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done", place.path());
        // Before that it would end by the signal.
        while !child.tail().contains("ready") {
            tokio::time::sleep(POLL).await;
        }
        child.ask_to_stop();
        assert_eq!(child.wait(Duration::from_millis(50)).await, None);
    }

    #[test]
    fn settings_of_this_program_are_not_passed_on() {
        assert!(is_foreign_setting(OsStr::new("HIGHWATER_BOOTSTRAP")));
        assert!(!is_foreign_setting(OsStr::new("HIGHWATER_LOG_FILTER")));
        assert!(!is_foreign_setting(OsStr::new("PATH")));
    }
}
