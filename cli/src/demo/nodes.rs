//! The demo's nodes: each a leader-svc and a follower-agent, on loopback, over one `file` coordination store.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_types::Endpoint;
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
    /// The leader-svc and the follower-agent of each node, in the nodes' order.
    children: Vec<Child>,
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
        Ok(Self { programs, place: place.to_owned(), plans, children: Vec::new() })
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
    pub(super) async fn start(&mut self, life: Life) -> Result<(), CommandError> {
        for node in self.plans.clone() {
            let dir = self.data_dir(node.id);
            fs::create_dir_all(&dir)
                .map_err(|e| CommandError::Failed(format!("cannot make {}: {e}", dir.display())))?;
            let programs = self.programs.clone();
            self.start_one(&node, "leader-svc", &programs.leader_svc, node.leader_svc, life)?;
            self.start_one(&node, "follower-agent", &programs.follower_agent, node.follower_agent, life)?;
        }
        let all_serve = async {
            let listening: Vec<SocketAddr> =
                self.plans.iter().flat_map(|node| [node.leader_svc, node.follower_agent]).collect();
            for (child, address) in self.children.iter_mut().zip(listening) {
                serves(child, address).await?;
            }
            Ok(())
        };
        let timed_out = |_| CommandError::Failed(format!("not every program serves after {START_BOUND:?}"));
        tokio::time::timeout(START_BOUND, all_serve).await.map_err(timed_out)?
    }

    fn start_one(
        &mut self,
        node: &Node,
        name: &str,
        program: &Path,
        listen: SocketAddr,
        life: Life,
    ) -> Result<(), CommandError> {
        let mut store = OsString::from("file:");
        store.push(self.place.join("coordination"));
        let arguments = [
            "--node-id".into(),
            node.id.to_string().into(),
            "--data-dir".into(),
            self.data_dir(node.id).into(),
            "--listen".into(),
            listen.to_string().into(),
            "--coordination".into(),
            store,
        ];
        let output = self.place.join(format!("{name}-{}.log", node.id));
        let name = format!("{name} of node {}", node.id);
        self.children.push(Child::start(&name, program, &arguments, &output, life)?);
        Ok(())
    }

    /// Waits until one of the programs has ended, which none should; says how.
    pub(super) async fn any_end(&mut self) -> String {
        loop {
            let ended = self.children.iter_mut().find_map(|child| Some((child.ended()?, child.name())));
            if let Some((status, name)) = ended {
                return format!("{name} ended: {status}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops all programs in order; returns what was wrong with the way in which they ended.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        self.children.iter_mut().for_each(Child::ask_to_stop);
        let mut faults = Vec::new();
        for child in &mut self.children {
            match child.wait(STOP_BOUND).await {
                Some(status) if status.success() => {}
                Some(status) => faults.push(format!("{} ended by {status}", child.name())),
                None => faults.push(format!("{} did not stop within {STOP_BOUND:?}", child.name())),
            }
        }
        faults
    }

    /// Forgets the programs, which have ended, so that they can be started again.
    pub(super) fn forget(&mut self) {
        self.children.clear();
    }

    /// Leaves all programs running; returns their process ids.
    pub(super) fn let_go(self) -> Vec<u32> {
        let id = |child: Child| {
            let id = child.id();
            child.let_go();
            id
        };
        self.children.into_iter().map(id).collect()
    }

    /// The end of what each program printed.
    pub(super) fn tails(&self) -> String {
        self.children.iter().map(Child::tail).collect()
    }
}

/// Waits until the program says by the health protocol that it serves.
async fn serves(child: &mut Child, address: SocketAddr) -> Result<(), CommandError> {
    loop {
        if let Some(status) = child.ended() {
            return Err(CommandError::Failed(format!("{} ended: {status}", child.name())));
        }
        if is_serving(address).await {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
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
