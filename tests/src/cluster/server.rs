//! One program of one node: its address, its settings and its process, over restarts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use highwater_types::Program;
use tonic::transport::{Channel, Endpoint};

use super::{ServerId, coordination_dir, data_dir, is_serving};
use crate::process::{CommandLine, Process};
use crate::{ports, programs, wait};

/// One program of one node.
#[derive(Debug)]
pub struct Server {
    pub(super) node: i32,
    pub(super) program: Program,
    pub(super) address: SocketAddr,
    pub(super) data_dir: PathBuf,
    output: PathBuf,
    pub(super) settings: BTreeMap<String, String>,
    environment: Vec<(OsString, OsString)>,
    process: Option<Process>,
}

impl Server {
    pub(super) fn new(place: &Path, node: i32, program: Program) -> Self {
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

    /// Which program of which node it is.
    #[must_use]
    pub fn id(&self) -> ServerId {
        (self.node, self.program)
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

    pub(super) fn start(&mut self, environment: Vec<(OsString, OsString)>) {
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

    pub(super) async fn serving(&mut self) {
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
