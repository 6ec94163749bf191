//! The demo as a process: it verifies what it shows, and whatever happens to it, no node outlives it unless it was asked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use system_tests::log_files::LogBytes;
use system_tests::process::{CommandLine, Process};
use system_tests::{programs, wait};
use tempfile::TempDir;

/// Several times what it takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

struct Demo {
    /// Dropped before the place, from which a failing test shows what it printed.
    process: Process,
    place: TempDir,
}

impl Demo {
    fn start(args: &[&str], input: &[u8]) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = place.path().join("input");
        fs::write(&file, input).expect("the place is ours");
        let line = CommandLine::new(programs::path("highwater"))
            .args(["demo", "--dir"])
            .args([place.path().join("nodes"), "--input".into(), file])
            .args(args);
        let process = Process::start("the demo", &line, &place.path().join("output"));
        Self { process, place }
    }

    fn nodes(&self) -> PathBuf {
        self.place.path().join("nodes")
    }

    /// With a temporary directory, in the place.
    fn start_temporary(args: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let (file, temporary) = (place.path().join("input"), place.path().join("temporary"));
        fs::write(&file, large_input()).expect("the place is ours");
        fs::create_dir(&temporary).expect("the place is ours");
        let line = CommandLine::new(programs::path("highwater"))
            .args(["demo", "--input"])
            .args([file])
            .args(args)
            .envs([("TMPDIR".into(), temporary.into())]);
        let process = Process::start("the demo", &line, &place.path().join("output"));
        Self { process, place }
    }

    /// What the demo left in the directory for temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.place.path().join("temporary")).expect("it is there").flatten();
        entries.map(|entry| entry.path()).collect()
    }

    async fn ends_with(&mut self, code: i32) -> String {
        let status = self.process.end_within(BOUND).await;
        let output = self.process.output();
        assert_eq!(status.code(), Some(code), "{output}");
        output
    }

    async fn prints(&mut self, text: &str) {
        self.process.prints(text, BOUND).await;
    }

    /// Waits until none of the nodes' programs is left.
    async fn is_gone(&self) {
        let nodes = self.nodes();
        wait::until("the end of the nodes", wait::SOON, async || running(&nodes).is_empty().then_some(()))
            .await;
    }
}

/// The ids of the processes that have `place` in their command line, but for the demo itself.
fn running(place: &Path) -> Vec<i32> {
    let place = place.to_str().expect("it is text");
    let works_there = |id: &i32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(place) && line.contains("--data-dir")
    };
    let entries = fs::read_dir("/proc").expect("Linux has it").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(works_there).collect()
}

/// Enough that it is not over at once.
fn large_input() -> Vec<u8> {
    "a line of a large input\n".repeat(4_000_000).into_bytes()
}

#[tokio::test]
async fn an_input_with_all_kinds_of_lines_is_replicated_and_verified() {
    let mut input = b"first\n\n\n\xff\xfe\x00\r\n".to_vec();
    // Longer than the default max.message.bytes.
    input.extend(std::iter::repeat_n(b'x', 3 << 20));
    // So many batches that each partition has some in each part of the input.
    (0..50_000).for_each(|n| input.extend_from_slice(format!("\nline {n:0>300}").as_bytes()));
    let mut demo = Demo::start(&["--partitions", "3"], &input);
    let output = demo.ends_with(0).await;
    for line in [
        "acknowledged 50,005 records",
        "read back 50,005 records, each as it was sent",
        "compared 3 replicas: identical",
        "verified: ",
        "highwater.v1.LogService/Fetch",
    ] {
        assert!(output.contains(line), "{line}\n{output}");
    }
    takes_over(&demo.nodes(), &output, 50_005);
    demo.is_gone().await;
    assert!(demo.nodes().join("node-3/demo-2/00000000000000000000.log").exists(), "a named directory stays");
}

/// The first number after `text`.
fn number_after(output: &str, text: &str) -> u64 {
    let (_, rest) = output.split_once(text).unwrap_or_else(|| panic!("{text}\n{output}"));
    let digits = rest.chars().filter(|char| *char != ',').take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap_or_else(|_| panic!("{text}: no number\n{output}"))
}

/// The demo of so many records told that a node was killed in their middle and who leads instead, and that is what happened:
/// the log has records of the leaderships before and after.
fn takes_over(nodes: &Path, output: &str, records: u64) {
    let (before, _) = output.split_once(" records acknowledged; kill -9").expect("it is told");
    let before: String =
        before.lines().last().into_iter().flat_map(str::chars).filter(|c| *c != ',').collect();
    let before: u64 = before.parse().expect("a number");
    let meanwhile = number_after(output, "  meanwhile ");
    assert!((records / 4..records).contains(&before) && meanwhile > 0, "{output}");
    let killed = number_after(output, "kill -9 of both programs of node ");
    let (led, _) = output.split_once(" leads demo-0 in epoch ").expect("it is told");
    let leader = number_after(led.lines().last().expect("a line"), "  node ");
    assert_ne!(killed, leader, "{output}");
    assert!(
        output.contains(&format!("longest wait without an acknowledgement where node {killed} led: ")),
        "{output}"
    );
    assert!(output.contains(&format!("node {killed} is started again")), "{output}");

    let epoch = number_after(output, " leads demo-0 in epoch ");
    let dir = nodes.join(format!("node-{leader}/demo-0"));
    let epochs = fs::read_to_string(dir.join("leader-epoch-checkpoint")).expect("it is there");
    let start = epochs.lines().find_map(|line| line.strip_prefix(&format!("{epoch} ")));
    let start: i64 =
        start.and_then(|start| start.parse().ok()).unwrap_or_else(|| panic!("{epoch}: {epochs}"));
    let end = LogBytes::read(&dir).end;
    assert!((1..end).contains(&start), "{start} {end}\n{output}");
}

#[tokio::test]
async fn an_input_of_two_lines_is_replicated_with_a_takeover_too() {
    let mut demo = Demo::start(&["--nodes", "2", "--partitions", "2"], b"one\ntwo\n");
    let output = demo.ends_with(0).await;
    for line in [
        "acknowledged; kill -9 of both",
        " leads demo-0 in epoch ",
        "read back 2 records",
        "compared 2 replicas: identical",
    ] {
        assert!(output.contains(line), "{line}\n{output}");
    }
    demo.is_gone().await;
}

#[tokio::test]
async fn nodes_that_are_kept_serve_on() {
    let mut demo = Demo::start(&["--keep", "--nodes", "1", "--partitions", "1"], b"one\ntwo\n");
    let output = demo.ends_with(0).await;
    let ids = running(&demo.nodes());
    let stop = output.lines().find_map(|line| line.trim_start().strip_prefix("to stop them:"));
    let told: Vec<i32> =
        stop.into_iter().flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect();
    assert_eq!((ids.len(), &told), (2, &ids), "{output}");
    assert!(!output.contains("kill -9"), "one node cannot be replaced: {output}");
    let consume = output.lines().find_map(|line| line.trim_start().strip_prefix("highwater consume "));
    let args = consume.expect("it is shown").split_whitespace();
    let line = CommandLine::new(programs::path("highwater")).args(["consume"]).args(args);
    let mut consume = Process::start("consume", &line, &demo.place.path().join("consumed"));
    assert!(consume.end_within(BOUND).await.success());
    assert_eq!(consume.output(), "one\ntwo\n");
    for id in ids {
        kill(Pid::from_raw(id), Signal::SIGTERM).expect("it is a node's");
    }
    demo.is_gone().await;
}

#[tokio::test]
async fn no_node_outlives_a_demo_that_is_killed() {
    let mut demo = Demo::start(&[], &large_input());
    demo.prints("replicating").await;
    assert_eq!(running(&demo.nodes()).len(), 6);
    demo.process.kill();
    demo.is_gone().await;
}

#[tokio::test]
async fn no_node_outlives_a_demo_that_is_interrupted() {
    let mut demo = Demo::start(&["--keep"], &large_input());
    demo.prints("replicating").await;
    let id = i32::try_from(demo.process.id()).expect("process ids are small");
    kill(Pid::from_raw(id), Signal::SIGINT).expect("it runs");
    let output = demo.ends_with(130).await;
    assert!(output.contains("highwater: ended by SIGINT"), "{output}");
    demo.is_gone().await;
}

#[tokio::test]
async fn the_temporary_directory_goes_at_an_interruption_and_is_named_where_it_stays_after_a_failure() {
    let mut demo = Demo::start_temporary(&["--nodes", "1"]);
    demo.prints("replicating").await;
    assert_eq!(demo.left().len(), 1);
    let id = i32::try_from(demo.process.id()).expect("process ids are small");
    kill(Pid::from_raw(id), Signal::SIGTERM).expect("it runs");
    demo.ends_with(143).await;
    assert_eq!(demo.left(), Vec::<PathBuf>::new());

    let mut demo = Demo::start_temporary(&["--nodes", "1"]);
    demo.prints("replicating").await;
    let left = demo.left();
    kill(Pid::from_raw(running(&left[0])[0]), Signal::SIGKILL).expect("it is a node's");
    let output = demo.ends_with(1).await;
    let told = format!("what they wrote stays in {}, to see why", left[0].display());
    assert!(output.contains(&told), "{output}");
    assert_eq!(demo.left(), left);
}

#[tokio::test]
async fn a_node_that_dies_fails_the_demo_and_what_it_printed_is_shown() {
    let mut demo = Demo::start(&[], &large_input());
    demo.prints("replicating").await;
    let id = running(&demo.nodes())[0];
    kill(Pid::from_raw(id), Signal::SIGKILL).expect("it is a node's");
    let output = demo.ends_with(1).await;
    assert!(output.contains("ended: signal: 9") && output.contains("serving address="), "{output}");
    demo.is_gone().await;
}

#[tokio::test]
async fn programs_that_are_not_there_are_told() {
    let mut demo = Demo::start(&["--bin-dir", "nowhere"], b"one\n");
    let output = demo.ends_with(1).await;
    assert!(output.contains("there is no leader-svc in nowhere") && output.contains("--bin-dir"), "{output}");
}
