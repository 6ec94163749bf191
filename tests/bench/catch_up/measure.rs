//! One catch-up, seen from outside: the follower's log files grow, both processes use CPU. The same instrument for every
//! system, so that none is asked about itself.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::figures::cpu_seconds;

/// How often the follower's files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A catch-up that has not ended after this long has failed.
const GIVE_UP: Duration = Duration::from_secs(600);
const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// The two processes and the follower's files.
pub(crate) struct Subject<'a> {
    pub(crate) leader: u32,
    pub(crate) follower: u32,
    /// The follower's partition directory; need not exist yet.
    pub(crate) directory: &'a Path,
    /// How large its log files are once it has caught up, in bytes.
    pub(crate) target: u64,
}

/// What one catch-up took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) mb_per_s: f64,
    /// CPU seconds per GB of log.
    pub(crate) leader_cpu: f64,
    /// CPU seconds per GB of log.
    pub(crate) follower_cpu: f64,
    /// The largest resident size of the follower's life so far, in MB.
    pub(crate) follower_peak_mb: f64,
}

/// Watches a catch-up from the first byte in the follower's files to the last one, and on until `is_done`.
pub(crate) async fn watch(subject: &Subject<'_>, mut is_done: impl AsyncFnMut() -> bool) -> Measured {
    let give_up = Instant::now() + GIVE_UP;
    let first = loop {
        match log_bytes(subject.directory) {
            0 => look_again(give_up).await,
            bytes => break bytes,
        }
    };
    let start = Instant::now();
    let (leader, follower) = (cpu_seconds(subject.leader), cpu_seconds(subject.follower));
    while log_bytes(subject.directory) < subject.target || !is_done().await {
        look_again(give_up).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = as_float(subject.target - first.min(subject.target));
    let per_gb = |before: f64, process| (cpu_seconds(process) - before) / (bytes / GB);
    Measured {
        seconds,
        mb_per_s: bytes / MB / seconds,
        leader_cpu: per_gb(leader, subject.leader),
        follower_cpu: per_gb(follower, subject.follower),
        follower_peak_mb: peak_mb(subject.follower),
    }
}

async fn look_again(give_up: Instant) {
    assert!(Instant::now() < give_up, "the follower has not caught up within {GIVE_UP:?}");
    sleep(LOOK_EVERY).await;
}

/// The size of all segments in a partition directory, in bytes; 0 when it does not exist.
pub(crate) fn log_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let logs = entries.flatten().filter(|entry| entry.path().extension().is_some_and(|e| e == "log"));
    logs.filter_map(|log| log.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn peak_mb(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has a peak");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib * 1024.0 / MB
}

#[allow(clippy::cast_precision_loss, reason = "sizes of files are far below 2^53")]
pub(crate) fn as_float(number: u64) -> f64 {
    number as f64
}
