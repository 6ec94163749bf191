//! The demo's nodes: each a leader-svc and a follower-agent, on loopback, over one `file` coordination store.
//!
//! What holds: a program that ended is a fault, but for those that [`Nodes::kill`] ended. No borrow of the programs is held
//! across a wait, so one task may watch them while it kills and starts some.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_types::{Endpoint, NodeId};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::child::{Child, Life};
use super::ports;
use super::programs::Programs;
use crate::outcome::CommandError;

/// How long all programs may take until they serve.
const START_BOUND: Duration = Duration::from_secs(60);
/// How long one answer to a health check may take.
const HEALTH_BOUND: Duration = Duration::from_secs(2);
/// How long a program may take to stop; it gives itself 5 s (design.md 6.11).
const STOP_BOUND: Duration = Duration::from_secs(10);
/// How often it is looked whether a program serves.
const POLL: Duration = Duration::from_millis(50);

/// The nodes, in one directory.
#[derive(Debug)]
pub(super) struct Nodes {
    programs: Programs,
    place: PathBuf,
    plans: Vec<Node>,
    /// The programs that were started, the leader-svc of a node before its follower-agent.
    children: RefCell<Vec<Program>>,
}

/// A program that was started.
#[derive(Debug)]
struct Program {
    node: u8,
    listen: SocketAddr,
    child: Child,
}

/// A node as it is planned.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its id.
    pub(super) id: u8,
    /// Where its leader-svc listens.
    pub(super) leader_svc: SocketAddr,
    /// Where its follower-agent listens.
    pub(super) follower_agent: SocketAddr,
}

impl Nodes {
    /// Plans `count` nodes in `place`; none is started.
    pub(super) fn plan(programs: Programs, place: &Path, count: u8) -> Result<Self, CommandError> {
        let addresses = ports::free(usize::from(count) * 2)
            .ok_or_else(|| CommandError::Failed("there are not enough free ports on loopback".to_owned()))?;
        let (pairs, _) = addresses.as_chunks();
        let node = |(id, [leader_svc, follower_agent]): (u8, &[SocketAddr; 2])| Node {
            id,
            leader_svc: *leader_svc,
            follower_agent: *follower_agent,
        };
        let plans = (1..=count).zip(pairs).map(node).collect();
        Ok(Self { programs, place: place.to_owned(), plans, children: RefCell::default() })
    }

    /// The nodes' plans.
    pub(super) fn plans(&self) -> &[Node] {
        &self.plans
    }

    /// Where every leader-svc is reached.
    pub(super) fn bootstrap(&self) -> Vec<Endpoint> {
        self.plans.iter().map(|node| node.leader_svc.into()).collect()
    }

    /// A node's data directory.
    fn data_dir(&self, id: u8) -> PathBuf {
        self.place.join(format!("node-{id}"))
    }

    /// Every data directory.
    pub(super) fn data_dirs(&self) -> Vec<PathBuf> {
        self.plans.iter().map(|node| self.data_dir(node.id)).collect()
    }

    /// Starts all programs and waits until each serves. Must be called on a thread that lives as long as the process.
    pub(super) async fn start(&self, life: Life) -> Result<(), CommandError> {
        self.plans.iter().try_for_each(|node| self.start_programs(node, life))?;
        self.all_serve().await
    }

    /// Starts the programs of a node again that was killed, and waits until they serve; the thread as for
    /// [`start`](Self::start).
    pub(super) async fn start_again(&self, id: NodeId) -> Result<(), CommandError> {
        let node = self.plans.iter().find(|node| i32::from(node.id) == id.get());
        node.map_or(Ok(()), |node| self.start_programs(node, Life::Tied))?;
        self.all_serve().await
    }

    fn start_programs(&self, node: &Node, life: Life) -> Result<(), CommandError> {
        let dir = self.data_dir(node.id);
        fs::create_dir_all(&dir)
            .map_err(|e| CommandError::Failed(format!("cannot make {}: {e}", dir.display())))?;
        self.start_one(node.id, "leader-svc", &self.programs.leader_svc, node.leader_svc, life)?;
        self.start_one(node.id, "follower-agent", &self.programs.follower_agent, node.follower_agent, life)
    }

    fn start_one(
        &self,
        node: u8,
        name: &str,
        program: &Path,
        listen: SocketAddr,
        life: Life,
    ) -> Result<(), CommandError> {
        let mut store = OsString::from("file:");
        store.push(self.place.join("coordination"));
        let arguments = [
            "--node-id".into(),
            node.to_string().into(),
            "--data-dir".into(),
            self.data_dir(node).into(),
            "--listen".into(),
            listen.to_string().into(),
            "--coordination".into(),
            store,
        ];
        let output = self.place.join(format!("{name}-{node}.log"));
        let name = format!("{name} of node {node}");
        let child = Child::start(&name, program, &arguments, &output, life)?;
        self.children.borrow_mut().push(Program { node, listen, child });
        Ok(())
    }

    /// Waits until every program says by the health protocol that it serves.
    async fn all_serve(&self) -> Result<(), CommandError> {
        let listening: Vec<SocketAddr> =
            self.children.borrow().iter().map(|program| program.listen).collect();
        let all_serve = async {
            for address in listening {
                while !is_serving(address).await {
                    if let Some(problem) = self.ended() {
                        return Err(CommandError::Failed(problem));
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
            Ok(())
        };
        let timed_out = |_| CommandError::Failed(format!("not every program serves after {START_BOUND:?}"));
        tokio::time::timeout(START_BOUND, all_serve).await.map_err(timed_out)?
    }

    /// Which program has ended, and how, if any has.
    fn ended(&self) -> Option<String> {
        let mut programs = self.children.borrow_mut();
        let ended =
            programs.iter_mut().find_map(|Program { child, .. }| Some((child.ended()?, child.name())));
        ended.map(|(status, name)| format!("{name} ended: {status}"))
    }

    /// Waits until one of the programs has ended, which none should; says how.
    pub(super) async fn any_end(&self) -> String {
        loop {
            if let Some(problem) = self.ended() {
                return problem;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills both programs of a node, as `kill -9` does.
    pub(super) fn kill(&self, id: NodeId) {
        // What is dropped is killed.
        self.children.borrow_mut().retain(|program| i32::from(program.node) != id.get());
    }

    /// Stops all programs in order; returns what was wrong with the way in which they ended.
    pub(super) async fn stop(&self) -> Vec<String> {
        let mut programs = self.children.take();
        programs.iter_mut().for_each(|program| program.child.ask_to_stop());
        let mut faults = Vec::new();
        for Program { child, .. } in &mut programs {
            match child.wait(STOP_BOUND).await {
                Some(status) if status.success() => {}
                Some(status) => faults.push(format!("{} ended by {status}", child.name())),
                None => faults.push(format!("{} did not stop within {STOP_BOUND:?}", child.name())),
            }
        }
        // Their output is of interest once something is wrong with what they wrote.
        self.children.replace(programs);
        faults
    }

    /// Forgets the programs, which have ended, so that they can be started again.
    pub(super) fn forget(&self) {
        self.children.borrow_mut().clear();
    }

    /// Leaves all programs running; returns their process ids.
    pub(super) fn let_go(self) -> Vec<u32> {
        let id = |Program { child, .. }: Program| {
            let id = child.id();
            child.let_go();
            id
        };
        self.children.into_inner().into_iter().map(id).collect()
    }

    /// The end of what each program printed.
    pub(super) fn tails(&self) -> String {
        self.children.borrow().iter().map(|program| program.child.tail()).collect()
    }
}

async fn is_serving(address: SocketAddr) -> bool {
    let Ok(endpoint) = tonic::transport::Endpoint::from_shared(format!("http://{address}")) else {
        return false;
    };
    let Ok(channel) = endpoint.connect_timeout(HEALTH_BOUND).timeout(HEALTH_BOUND).connect().await else {
        return false;
    };
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
}
