//! A real etcd on loopback: one member or several, each a process that can be killed, frozen, started again, or started
//! with nothing of what it had.

#![allow(clippy::indexing_slicing, reason = "a test names the members that it started")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_types::Endpoint;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::process::{CommandLine, Process};
use crate::{parts, ports, wait};

/// How long a member may take to be ready: many times what a busy machine needs.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long a member may take to say whether it is healthy before it counts as not.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// An etcd, alone in a temporary place. It dies when dropped.
#[derive(Debug)]
pub struct Etcd {
    // Members are declared, and so stopped, before the directory that they use.
    members: Vec<Member>,
    _place: TempDir,
}

#[derive(Debug)]
struct Member {
    name: String,
    line: CommandLine,
    data: PathBuf,
    output: PathBuf,
    address: SocketAddr,
    process: Process,
}

impl Etcd {
    /// Starts an etcd of `count` members and waits until they are ready; `None` when the part was left out.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start(count: usize) -> Option<Self> {
        let program = parts::find("etcd")?.join("usr/bin/etcd");
        let place = tempfile::tempdir().expect("a temporary directory");
        let addresses: Vec<_> = (0..count).map(|_| (ports::loopback(), ports::loopback())).collect();
        let cluster: Vec<_> =
            addresses.iter().enumerate().map(|(at, (_, peers))| format!("m{at}=http://{peers}")).collect();
        let cluster = cluster.join(",");
        let members = addresses.into_iter().enumerate().map(|(at, (clients, peers))| {
            Member::start(&program, place.path(), &format!("m{at}"), (clients, peers), &cluster)
        });
        let mut etcd = Self { members: members.collect(), _place: place };
        for at in 0..count {
            etcd.ready(at).await;
        }
        Some(etcd)
    }

    /// Where a member answers clients.
    #[must_use]
    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].address
    }

    /// Where all members answer clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(|member| member.address.into()).collect()
    }

    /// What `coordination` is set to for it.
    #[must_use]
    pub fn target(&self) -> String {
        let endpoints: Vec<_> =
            self.members.iter().map(|member| format!("http://{}", member.address)).collect();
        format!("etcd:{}", endpoints.join(","))
    }

    /// A member's process, to signal or to watch it.
    pub fn process_mut(&mut self, member: usize) -> &mut Process {
        &mut self.members[member].process
    }

    /// Starts a member that was killed, with the data that it had, and waits until it is ready.
    pub async fn start_again(&mut self, member: usize) {
        self.members[member].start_again();
        self.ready(member).await;
    }

    /// Takes away what a member that was killed had, and starts it.
    ///
    /// # Panics
    /// When its directory cannot be removed.
    pub async fn start_empty(&mut self, member: usize) {
        fs::remove_dir_all(&self.members[member].data).expect("the directory is ours");
        self.start_again(member).await;
    }

    async fn ready(&mut self, member: usize) {
        let Member { name, address, process, .. } = &mut self.members[member];
        wait::until(&format!("{name} of etcd to be ready"), READY_WITHIN, async || {
            if let Some(status) = process.ended() {
                panic!("it ended: {status}\n{}", process.output_tail());
            }
            timeout(ANSWERS_WITHIN, is_healthy(*address)).await.ok()?
        })
        .await;
    }
}

impl Member {
    fn start(
        program: &Path,
        place: &Path,
        name: &str,
        (clients, peers): (SocketAddr, SocketAddr),
        cluster: &str,
    ) -> Self {
        let (data, output) = (place.join(name), place.join(format!("{name}.log")));
        let flag = |name: &str, value: &dyn std::fmt::Display| format!("--{name}={value}");
        let line = CommandLine::new(program).args([
            flag("name", &name),
            flag("data-dir", &data.display()),
            // What is killed here is the process; the page cache stays.
            "--unsafe-no-fsync".to_owned(),
            flag("listen-client-urls", &format!("http://{clients}")),
            flag("advertise-client-urls", &format!("http://{clients}")),
            flag("listen-peer-urls", &format!("http://{peers}")),
            flag("initial-advertise-peer-urls", &format!("http://{peers}")),
            flag("initial-cluster", &cluster),
        ]);
        let process = Process::start(name, &line, &output);
        Self { name: name.to_owned(), line, data, output, address: clients, process }
    }

    fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "{} runs", self.name);
        self.process = Process::start(&self.name, &self.line, &self.output);
    }
}

/// Asks a member, by its page for people, whether it is there and has a leader.
async fn is_healthy(address: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.contains("\"health\":\"true\"").then_some(())
}
