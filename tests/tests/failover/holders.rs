//! Which program of a node has a log open for writing.
//!
//! What must hold: both programs are frozen while they are looked at, so that what is seen was so at one moment. The kernel's
//! table of open files is asked, not the programs.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_types::Program;
use system_tests::cluster::{Cluster, Server};
use tokio::time::sleep;

use crate::TOPIC;

/// Between two looks; the programs run meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Far longer than a signal takes.
const FROZEN_WITHIN: Duration = Duration::from_secs(10);

/// How often which program was seen with the log.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// The agent alone.
    pub(crate) by_agent: u32,
    /// leader-svc alone.
    pub(crate) by_leader_svc: u32,
    /// Nobody.
    pub(crate) by_nobody: u32,
}

/// Looks at the programs of `nodes` until `end` is ready.
///
/// # Panics
/// When both programs of a node have the log.
pub(crate) async fn watch_holders<T>(
    cluster: &Cluster,
    nodes: &[i32],
    end: impl Future<Output = T>,
    held: &mut Holders,
) -> T {
    let looking = async {
        loop {
            for node in nodes {
                look(cluster, *node, held);
            }
            sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        done = end => done,
        never = looking => never,
    }
}

fn look(cluster: &Cluster, node: i32, held: &mut Holders) {
    let servers =
        [cluster.server((node, Program::FollowerAgent)), cluster.server((node, Program::LeaderSvc))];
    for server in servers {
        server.process().freeze();
    }
    for server in servers {
        until_frozen(server);
    }
    let directory = cluster.data_dir(node).join(format!("{TOPIC}-0"));
    let [agent, leader_svc] = servers.map(|server| writes_in(server, &directory));
    for server in servers {
        server.process().thaw();
    }
    match (agent, leader_svc) {
        (true, true) => panic!("both programs of node {node} have {}", directory.display()),
        (true, false) => held.by_agent += 1,
        (false, true) => held.by_leader_svc += 1,
        (false, false) => held.by_nobody += 1,
    }
}

/// A signal takes a moment to stop every thread. Blocks for that moment.
fn until_frozen(server: &Server) {
    let tasks = Path::new("/proc").join(server.process().id().to_string()).join("task");
    let is_stopped = |task: &Path| {
        // The state follows the name, which stands in parentheses.
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    };
    let began = Instant::now();
    while !fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(|task| is_stopped(&task.path()))) {
        assert!(began.elapsed() < FROZEN_WITHIN, "{server} does not stop");
        std::thread::yield_now();
    }
}

/// Whether a frozen program has a segment in `directory` open for writing.
fn writes_in(server: &Server, directory: &Path) -> bool {
    let process = Path::new("/proc").join(server.process().id().to_string());
    let Ok(open) = fs::read_dir(process.join("fd")) else { return false };
    let is_written = |name: &std::ffi::OsStr| {
        let Ok(file) = fs::read_link(process.join("fd").join(name)) else { return false };
        let info = fs::read_to_string(process.join("fdinfo").join(name)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or_default();
        file.parent() == Some(directory)
            && file.extension().is_some_and(|extension| extension == "log")
            // O_WRONLY and O_RDWR are 1 and 2.
            && flags & 0b11 != 0
    };
    open.flatten().any(|entry| is_written(&entry.file_name()))
}
