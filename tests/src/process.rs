//! One real process: started, watched, stopped in all the ways in which processes end, its output kept.
//!
//! What must hold: it never outlives the test, not even when the test itself is killed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{programs, wait};

/// How many lines of a process's output a failing test shows.
const TAIL_LINES: usize = 40;

/// The unit in which Linux counts processor time for programs, on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// What a process has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, of all its threads, to 10 ms.
    pub cpu: Duration,
    /// Memory that is resident now.
    pub resident_bytes: u64,
    /// How often its threads waited for something: each time something woke them. Threads that ended are not in it.
    pub waits: u64,
}

/// How to start a process: what a shell line would say.
#[derive(Debug, Clone)]
pub struct CommandLine {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl CommandLine {
    /// A program by its path, without arguments.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Adds variables to the environment.
    #[must_use]
    pub fn envs(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environment.extend(variables);
        self
    }
}

/// One life of a process.
#[derive(Debug)]
pub struct Process {
    name: String,
    output: PathBuf,
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts a process. Its standard output and error are appended to the file `output`, its input is empty.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(name: &str, line: &CommandLine, output: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(output).expect("a writable output file");
        Self { name: name.to_owned(), output: output.to_owned(), child: spawn(line, &file), status: None }
    }

    /// The process id; another process may have it once this one has ended.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, when it has.
    ///
    /// # Panics
    /// When the operating system cannot say.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("the process is ours");
        }
        self.status
    }

    /// Ends the process by SIGKILL and waits until it is gone; does nothing when it has ended.
    ///
    /// # Panics
    /// When the operating system refuses.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.child.kill().expect("the process is ours");
            self.status = Some(self.child.wait().expect("the process is ours"));
        }
    }

    /// Freezes the process (SIGSTOP): it holds its connections and locks and does nothing.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks the process to stop (SIGTERM) and returns how it ended.
    ///
    /// # Panics
    /// When it has not ended within `bound`.
    pub async fn terminate(&mut self, bound: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.end_within(bound).await
    }

    /// Waits until the process ends by itself.
    ///
    /// # Panics
    /// When it has not within `bound`.
    pub async fn end_within(&mut self, bound: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait::until(&what, bound, async || self.ended()).await
    }

    /// Waits until it has printed `text`.
    ///
    /// # Panics
    /// When it ends without, or has not within `bound`.
    pub async fn prints(&mut self, text: &str, bound: Duration) {
        let what = format!("{:?} from {}", text, self.name);
        wait::until(&what, bound, async || {
            let ended = self.ended();
            let is_printed = self.output().contains(text);
            assert!(is_printed || ended.is_none(), "{} ended without {text:?}: {ended:?}", self.name);
            is_printed.then_some(())
        })
        .await;
    }

    /// What it has used up to now.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let read =
            |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.id())).expect("it runs");
        // The name, in brackets, may hold anything; the numbers follow it. User and system time are fields 14 and 15.
        let stat = read("stat");
        let (_, numbers) = stat.rsplit_once(')').expect("the name is in brackets");
        let ticks =
            numbers.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
        let status = read("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has not ended");
        let kib: u64 = resident.trim_end_matches("kB").trim().parse().expect("a number");
        Usage {
            cpu: TICK * u32::try_from(ticks.sum::<u64>()).expect("a short life"),
            resident_bytes: kib * 1024,
            waits: self.waits(),
        }
    }

    fn waits(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("it runs");
        let of_thread = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            // A thread may end meanwhile.
            let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            waits.trim().parse().ok()
        };
        threads.filter_map(of_thread).sum()
    }

    /// Everything in the output file, earlier lives of the same program included.
    #[must_use]
    pub fn output(&self) -> String {
        let bytes = std::fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What its threads wait for, or how it ended, for the message of a failing test.
    fn doing(&mut self) -> String {
        if let Some(status) = self.ended() {
            return format!("---- {} ended: {status}\n", self.name);
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).into_iter().flatten().flatten();
        threads.fold(format!("---- {} runs; its threads:\n", self.name), |text, thread| {
            let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let (name, stat, waits) = (read("comm"), read("stat"), read("wchan"));
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
            text + &format!("{} {} {waits}\n", name.trim(), state.unwrap_or_default())
        })
    }

    /// The last lines of the output, for the message of a failing test.
    #[must_use]
    pub fn output_tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
        tail.fold(format!("---- {} printed last:\n", self.name), |text, line| text + line + "\n")
    }

    fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "{} has ended", self.name);
        let id = i32::try_from(self.id()).expect("process ids are small");
        kill(Pid::from_raw(id), signal).expect("the process is ours and was not waited for");
    }
}

impl Drop for Process {
    #[allow(clippy::print_stderr, reason = "a failing test shows what its processes said")]
    fn drop(&mut self) {
        let doing = std::thread::panicking().then(|| self.doing());
        self.kill();
        if let Some(doing) = doing {
            eprintln!("{doing}{}", self.output_tail());
        }
    }
}

/// Whether the process ended by this signal.
#[must_use]
pub fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal as i32)
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// Starts a child that the kernel kills when this process dies. The kernel means the *thread* that started it, so one
/// thread that lives as long as the process starts them all.
fn spawn(line: &CommandLine, output: &File) -> Child {
    static SPAWNER: OnceLock<std::sync::Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                // Who ordered is waiting; when it is not, its test has ended, and so may the child.
                let _ = answer.send(command.spawn());
            }
        });
        orders.into()
    });
    let duplicate = || output.try_clone().expect("a file handle can be duplicated");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(&line.program).args(&line.arguments);
    programs::forget_settings(&mut command);
    command
        .envs(line.environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(duplicate())
        .stderr(duplicate());
    let (answer, answered) = mpsc::channel();
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .expect("the spawner lives for ever");
    let child = answered.recv().expect("the spawner answers each order");
    child.unwrap_or_else(|error| panic!("setpriv, of util-linux, starts {}: {error}", line.program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let place = tempfile::tempdir().expect("a temporary directory");
        let line = CommandLine::new("sh").args(["-c", script]);
        let process = Process::start("a shell", &line, &place.path().join("output"));
        (place, process)
    }

    #[tokio::test]
    async fn output_of_all_lives_is_kept() {
        let (place, mut process) = shell("echo out; echo err >&2; exit 3");
        assert_eq!(process.end_within(wait::SOON).await.code(), Some(3));
        let line =
            CommandLine::new("sh").args(["-c", "echo $0 $LIFE", "next"]).envs([("LIFE".into(), "2".into())]);
        let mut process = Process::start("a shell", &line, &place.path().join("output"));
        process.end_within(wait::SOON).await;
        assert_eq!(process.output(), "out\nerr\nnext 2\n");
    }

    #[tokio::test]
    async fn a_stop_signal_reaches_the_process_itself() {
        let (_place, mut process) = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        process.prints("ready", wait::SOON).await;
        assert_eq!(process.terminate(wait::SOON).await.code(), Some(7));
    }

    #[tokio::test]
    async fn a_frozen_process_does_nothing_until_thawed() {
        let (place, process) = shell("while :; do echo x; done");
        let size = || std::fs::metadata(place.path().join("output")).map_or(0, |metadata| metadata.len());
        wait::until("output", wait::SOON, async || (size() > 0).then_some(())).await;
        process.freeze();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it lives");
        wait::until("the stop", wait::SOON, async || state().contains(") T ").then_some(())).await;
        let before = size();
        wait::always("no output", Duration::from_millis(100), async || size() == before).await;
        process.thaw();
        wait::until("output", wait::SOON, async || (size() > before).then_some(())).await;
    }

    #[tokio::test]
    async fn a_killed_process_is_gone() {
        let (_place, mut process) = shell("echo ready; exec sleep 1000");
        process.prints("ready", wait::SOON).await;
        process.kill();
        assert!(!Path::new(&format!("/proc/{}", process.id())).exists());
        assert!(ended_by(process.ended().expect("it has ended"), Signal::SIGKILL));
        process.kill();
    }

    #[tokio::test]
    async fn used_processor_time_grows_only_while_it_works() {
        let (_place, process) = shell("while :; do :; done");
        let worked = Duration::from_millis(50);
        wait::until("work", wait::SOON, async || (process.usage().cpu >= worked).then_some(())).await;
        assert!(process.usage().resident_bytes > 100_000);
        process.freeze();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it lives");
        wait::until("the stop", wait::SOON, async || state().contains(") T ").then_some(())).await;
        let before = process.usage().cpu;
        wait::always("no work", Duration::from_millis(100), async || process.usage().cpu == before).await;
    }

    /// Names the file in which the dying half of the next test leaves its child's id.
    const DIES: &str = "HWTEST_DIES";

    #[tokio::test]
    async fn a_process_dies_with_the_test_that_started_it() {
        if let Some(file) = std::env::var_os(DIES) {
            let (_place, mut process) = shell("echo ready; exec sleep 1000");
            // The kernel is told by the child itself, first thing; before that nothing would kill it.
            process.prints("ready", wait::SOON).await;
            std::fs::write(file, process.id().to_string()).expect("the other half made the directory");
            std::process::abort();
        }
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = place.path().join("id");
        let status = Command::new(std::env::current_exe().expect("a running program has a path"))
            .args(["--exact", "process::tests::a_process_dies_with_the_test_that_started_it"])
            .env(DIES, &file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("the test starts itself");
        assert!(ended_by(status, Signal::SIGABRT), "{status}");
        let id = std::fs::read_to_string(&file).expect("the other half wrote it");
        let gone = || !Path::new(&format!("/proc/{id}")).exists();
        wait::until("the death of the child", wait::SOON, async || gone().then_some(())).await;
    }
}
