//! A cluster of real processes on loopback: nodes with a leader-svc, a follower-agent, or both, over one `file`
//! coordination store, all in a temporary place.
//!
//! What must hold: a server keeps its address, its data directory and its settings over restarts; waiting for a server
//! that has died fails at once, with what it printed last.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use highwater_types::Program;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::power_loss::{PowerLoss, Unflushed};
use crate::process::{CommandLine, Process};
use crate::{ports, programs, wait};

/// A server that takes longer to answer one health check does not serve.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

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
        let ids: Vec<ServerId> = cluster.servers.keys().copied().collect();
        for id in &ids {
            cluster.start(*id);
        }
        for id in ids {
            cluster.serving(id).await;
        }
        cluster
    }

    /// The cluster with all its servers stopped.
    ///
    /// # Panics
    /// When a data directory cannot be watched for a power loss.
    #[must_use]
    pub fn without_starting(self) -> Cluster {
        let watch = |node: &i32| {
            (*node, PowerLoss::watch(&self.data_dir(*node)).expect("the data directory is ours"))
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

    /// Every leader-svc, by node.
    pub fn leaders(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| server.program == Program::LeaderSvc)
    }

    /// A node's follower-agent.
    #[must_use]
    pub fn agent(&self, node: i32) -> &Server {
        self.server((node, Program::FollowerAgent))
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

    /// Kills a node's programs and takes away what they had not flushed. They can be started again.
    ///
    /// # Panics
    /// When the node was not planned with a power loss.
    pub fn lose_power(&mut self, node: i32, unflushed: Unflushed) {
        for server in self.servers.values_mut().filter(|server| server.node == node) {
            server.kill();
        }
        let power = self.power.get_mut(&node).expect("the node was planned with a power loss");
        power.strike(unflushed).expect("the data directory is ours");
    }
}

/// One program of one node.
#[derive(Debug)]
pub struct Server {
    node: i32,
    program: Program,
    address: SocketAddr,
    data_dir: PathBuf,
    output: PathBuf,
    settings: BTreeMap<String, String>,
    environment: Vec<(OsString, OsString)>,
    process: Option<Process>,
}

impl Server {
    fn new(place: &Path, node: i32, program: Program) -> Self {
        let store = format!("file:{}", coordination_dir(place).display());
        Self {
            node,
            program,
            address: ports::loopback(),
            data_dir: data_dir(place, node),
            output: place.join(format!("{program}-{node}.log")),
            settings: BTreeMap::from([("coordination".to_owned(), store)]),
            environment: Vec::new(),
            process: None,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL, as tonic's clients want it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A connection to it, made at the first call and made anew after a loss.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url()).expect("an address makes a URL").connect_lazy()
    }

    /// Changes a setting from the next start on.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.settings.insert(key.to_owned(), value.to_string());
    }

    /// Sets variables of its environment from the next start on.
    pub fn set_env(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    }

    /// The process of the current life, to signal or to watch it.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.process.as_ref().unwrap_or_else(|| panic!("{self} does not run"))
    }

    /// As [`Server::process`].
    pub fn process_mut(&mut self) -> &mut Process {
        assert!(self.process.is_some(), "{self} does not run");
        self.process.as_mut().expect("just looked")
    }

    /// Kills it with SIGKILL; does nothing when it does not run.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops it with SIGTERM, and says how it ended.
    ///
    /// # Panics
    /// When it does not end within `bound`.
    pub async fn terminate(&mut self, bound: Duration) -> ExitStatus {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{self} does not run"));
        process.terminate(bound).await
    }

    /// Everything that it printed, over all its lives.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// The warnings and errors that it printed, over all its lives.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let output = self.output();
        let loud = output
            .lines()
            .filter(|line| line.split_whitespace().take(3).any(|word| word == "WARN" || word == "ERROR"));
        loud.map(str::to_owned).collect()
    }

    fn start(&mut self, environment: Vec<(OsString, OsString)>) {
        assert!(self.process.is_none(), "{self} runs already");
        let flag = |key: &str| format!("--{}", key.replace('.', "-"));
        let mut line = CommandLine::new(programs::path(&self.program.to_string()))
            .args(["--node-id", &self.node.to_string(), "--listen", &self.address.to_string()])
            .args([OsString::from("--data-dir"), self.data_dir.clone().into()])
            .envs(environment)
            .envs(self.environment.clone());
        for (key, value) in &self.settings {
            line = line.args([&flag(key), value]);
        }
        self.process = Some(Process::start(&self.to_string(), &line, &self.output));
    }

    async fn serving(&mut self) {
        let address = self.address;
        let what = format!("{self} to serve");
        let process = self.process_mut();
        wait::until(&what, wait::SOON, async || {
            if let Some(status) = process.ended() {
                panic!("waited for {what}, but it ended: {status}");
            }
            is_serving(address).await.then_some(())
        })
        .await;
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of node {}", self.program, self.node)
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
