//! A cluster of real processes on loopback: nodes with a leader-svc, a follower-agent, or both, over one `file`
//! coordination store, all in a temporary place.
//!
//! What must hold: a server keeps its address, its data directory and its settings over restarts; waiting for a server
//! that has died fails at once, with what it printed last.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_types::Program;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::power_loss::{PowerLoss, Unflushed};

mod server;

pub use server::Server;

/// A server that takes longer to answer one health check does not serve.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// How long a flush takes at node 1 over the power-loss shim; at node 2 twice as long, and so on: what one acknowledges before
/// it is flushed there has no flush of another in its stead.
const FLUSH: Duration = Duration::from_millis(20);

/// One program of one node.
pub type ServerId = (i32, Program);

/// A cluster before it starts: everything can be changed, and every address is known.
#[derive(Debug)]
pub struct Plan {
    place: TempDir,
    servers: BTreeMap<ServerId, Server>,
    powered: Vec<i32>,
}

impl Plan {
    /// A cluster without nodes.
    #[must_use]
    pub fn new() -> Self {
        let place =
            tempfile::Builder::new().prefix("highwater-test-").tempdir().expect("a temporary directory");
        Self { place, servers: BTreeMap::new(), powered: Vec::new() }
    }

    /// Adds a node with both programs.
    #[must_use]
    pub fn node(self, id: i32) -> Self {
        self.program(id, Program::LeaderSvc).program(id, Program::FollowerAgent)
    }

    /// Adds one program of a node.
    #[must_use]
    pub fn program(mut self, node: i32, program: Program) -> Self {
        let server = Server::new(self.place.path(), node, program);
        fs::create_dir_all(&server.data_dir).expect("the temporary place is writable");
        assert!(
            self.servers.insert((node, program), server).is_none(),
            "{program} of node {node} is there twice"
        );
        self
    }

    /// Sets a configuration key for every server of one kind.
    #[must_use]
    pub fn set(mut self, program: Program, key: &str, value: impl ToString) -> Self {
        for server in self.servers.values_mut().filter(|server| server.program == program) {
            server.settings.insert(key.to_owned(), value.to_string());
        }
        self
    }

    /// Sets a configuration key for one server.
    #[must_use]
    pub fn set_on(mut self, id: ServerId, key: &str, value: impl ToString) -> Self {
        self.server_mut(id).settings.insert(key.to_owned(), value.to_string());
        self
    }

    /// Lets others reach a server at another address than its own: a proxy's.
    #[must_use]
    pub fn advertise(self, id: ServerId, address: SocketAddr) -> Self {
        self.set_on(id, "advertise", address)
    }

    /// Runs the programs of a node over the power-loss shim; see [`Cluster::lose_power`].
    #[must_use]
    pub fn with_power_loss(mut self, node: i32) -> Self {
        self.powered.push(node);
        self
    }

    /// Where a server will listen.
    #[must_use]
    pub fn address(&self, id: ServerId) -> SocketAddr {
        self.servers.get(&id).expect("the server is planned").address
    }

    /// The data directory of a node, which exists: a place for a small disk, or for files found there at the start.
    #[must_use]
    pub fn data_dir(&self, node: i32) -> PathBuf {
        data_dir(self.place.path(), node)
    }

    /// Starts every server and waits until all of them serve.
    ///
    /// # Panics
    /// When one does not serve.
    pub async fn start(self) -> Cluster {
        let mut cluster = self.without_starting();
        let nodes: Vec<i32> = cluster.servers.keys().map(|(node, _)| *node).collect();
        cluster.start_all(&nodes).await;
        cluster
    }

    /// The cluster with all its servers stopped.
    ///
    /// # Panics
    /// When a data directory cannot be watched for a power loss.
    #[must_use]
    pub fn without_starting(self) -> Cluster {
        let watch = |node: &i32| {
            let power = PowerLoss::watch(&self.data_dir(*node)).expect("the data directory is ours");
            (*node, power.flushing_in(FLUSH * node.unsigned_abs()))
        };
        let power = self.powered.iter().map(watch).collect();
        Cluster { servers: self.servers, power, place: self.place }
    }

    fn server_mut(&mut self, id: ServerId) -> &mut Server {
        self.servers.get_mut(&id).expect("the server is planned")
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

/// Servers that run, or ran and can be started again. All of them die when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // Servers are declared, and so dropped, before the directories they use.
    servers: BTreeMap<ServerId, Server>,
    power: BTreeMap<i32, PowerLoss>,
    place: TempDir,
}

impl Cluster {
    /// The temporary directory that holds everything, for what else a test needs.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// The directory of the `file` coordination store.
    #[must_use]
    pub fn coordination_dir(&self) -> PathBuf {
        coordination_dir(self.place.path())
    }

    /// A node's data directory.
    #[must_use]
    pub fn data_dir(&self, node: i32) -> PathBuf {
        data_dir(self.place.path(), node)
    }

    /// One server.
    #[must_use]
    pub fn server(&self, id: ServerId) -> &Server {
        self.servers.get(&id).expect("the server was planned")
    }

    /// One server, to do something to it.
    pub fn server_mut(&mut self, id: ServerId) -> &mut Server {
        self.servers.get_mut(&id).expect("the server was planned")
    }

    /// A node's leader-svc.
    #[must_use]
    pub fn leader(&self, node: i32) -> &Server {
        self.server((node, Program::LeaderSvc))
    }

    /// Every server, by node and program.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values()
    }

    /// Every leader-svc, by node.
    pub fn leaders(&self) -> impl Iterator<Item = &Server> {
        self.servers().filter(|server| server.program == Program::LeaderSvc)
    }

    /// A node's follower-agent.
    #[must_use]
    pub fn agent(&self, node: i32) -> &Server {
        self.server((node, Program::FollowerAgent))
    }

    /// Leaves everything there when the test has ended, and says where.
    pub fn keep(&mut self) -> PathBuf {
        self.place.disable_cleanup(true);
        self.place.path().to_owned()
    }

    /// The addresses of every leader-svc, as `--bootstrap` takes them.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        self.leaders().map(|server| server.address.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Starts a server that does not run, and does not wait for it.
    pub fn start(&mut self, id: ServerId) {
        let environment = self.power.get(&id.0).map(PowerLoss::environment).unwrap_or_default();
        self.server_mut(id).start(environment);
    }

    /// Starts a server that does not run, and waits until it serves.
    pub async fn start_and_wait(&mut self, id: ServerId) {
        self.start(id);
        self.serving(id).await;
    }

    /// Waits until a server serves.
    pub async fn serving(&mut self, id: ServerId) {
        self.server_mut(id).serving().await;
        if let Some(power) = self.power.get(&id.0) {
            assert!(power.is_loaded_in(self.server(id).process().id()), "the shim works in the server");
        }
    }

    /// Kills all programs of these nodes, as far as they run.
    pub fn kill_all(&mut self, nodes: &[i32]) {
        for server in self.servers.values_mut().filter(|server| nodes.contains(&server.node)) {
            server.kill();
        }
    }

    /// Starts all programs of these nodes, and waits until they serve.
    pub async fn start_all(&mut self, nodes: &[i32]) {
        let ids: Vec<ServerId> =
            self.servers.keys().copied().filter(|(node, _)| nodes.contains(node)).collect();
        ids.iter().for_each(|id| self.start(*id));
        for id in ids {
            self.serving(id).await;
        }
    }

    /// Kills a node's programs and takes away what they had not flushed. They can be started again.
    ///
    /// # Panics
    /// When the node was not planned with a power loss.
    pub fn lose_power(&mut self, node: i32, unflushed: Unflushed) {
        self.kill_all(&[node]);
        let power = self.power.get_mut(&node).expect("the node was planned with a power loss");
        power.strike(unflushed).expect("the data directory is ours");
    }
}

/// Whether the server at `address` says by the health protocol that it serves. A server that says nothing does not.
pub async fn is_serving(address: SocketAddr) -> bool {
    says_serving(address, "").await
}

/// Whether it says so of a service by this name.
pub async fn says_serving(address: SocketAddr, service: &str) -> bool {
    let Ok(endpoint) = Endpoint::from_shared(format!("http://{address}")) else { return false };
    let Ok(channel) = endpoint.connect_timeout(ANSWERS_WITHIN).timeout(ANSWERS_WITHIN).connect().await else {
        return false;
    };
    let answer = HealthClient::new(channel).check(HealthCheckRequest { service: service.to_owned() }).await;
    answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
}

fn data_dir(place: &Path, node: i32) -> PathBuf {
    place.join(format!("node-{node}"))
}

fn coordination_dir(place: &Path) -> PathBuf {
    place.join("coordination")
}
