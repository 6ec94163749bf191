//! One program on a host of its own, under a supervisor that does not die: a program that was killed refuses connections, as
//! the port of a dead process on a living machine does.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use highwater_node::DRAIN_BOUND;
use highwater_node::config::{CommonSettings, Settings, Sources, load};
use highwater_serving::Surroundings;
use highwater_types::{Endpoint, Program};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::network::{Links, SimNetwork};
use super::store::Store;

/// How often a supervisor looks whether its program is to run, and how long it waits after a failed start.
const SUPERVISION: Duration = Duration::from_millis(5);
const START_PAUSE: Duration = Duration::from_millis(500);

/// `broker.session.timeout.ms`, as by default.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// `replica.socket.timeout.ms`: the deadline of a Fetch between programs.
pub(crate) const FETCH_DEADLINE: Duration = Duration::from_secs(3);

/// `replica.lag.time.max.ms`.
pub(crate) const LAG_MAX: Duration = Duration::from_secs(5);

/// What is not as by default.
const LEADER_SETTINGS: [(&str, &str); 2] =
    [("leader.stagger.ms", "100ms"), ("replica.lag.time.max.ms", "5s")];
const AGENT_SETTINGS: [(&str, &str); 3] = [
    ("replica.socket.timeout.ms", "3s"),
    ("replica.fetch.backoff.max.ms", "1s"),
    ("replica.lag.time.max.ms", "5s"),
];

/// The host of a node's leader-svc, and of its follower-agent.
pub(crate) fn leader(node: i32) -> String {
    format!("leader-{node}")
}

pub(crate) fn agent(node: i32) -> String {
    format!("agent-{node}")
}

fn program_of(host: &str) -> Program {
    if host.starts_with("leader") { Program::LeaderSvc } else { Program::FollowerAgent }
}

fn port(program: Program) -> u16 {
    match program {
        Program::LeaderSvc => 9400,
        Program::FollowerAgent => 9401,
    }
}

pub(crate) fn endpoint(host: &str) -> Endpoint {
    format!("{host}:{}", port(program_of(host))).parse().unwrap()
}

/// What a supervisor is told, and what it tells.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    pub(crate) is_wanted: bool,
    pub(crate) is_running: bool,
    pub(crate) stop: CancellationToken,
    /// What no program may do: fail while it runs, or take too long to stop.
    pub(crate) faults: Vec<String>,
}

impl Switch {
    /// Whether a life of the program begins, which `stop` ends.
    fn begins(&mut self, stop: &CancellationToken) -> bool {
        if self.is_wanted {
            self.is_running = true;
            self.stop = stop.clone();
        }
        self.is_wanted
    }

    fn ended(&mut self, fault: Option<String>) {
        self.is_running = false;
        self.faults.extend(fault);
    }
}

/// Where a program runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) node: i32,
    pub(crate) host: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) store: Store,
    pub(crate) links: Arc<Links>,
}

/// Runs a program whenever it is wanted. It goes on until its host's tasks are dropped, which is a kill.
pub(crate) async fn supervise(place: Place, switch: Arc<Mutex<Switch>>) -> turmoil::Result {
    loop {
        let stop = CancellationToken::new();
        while !switch.lock().begins(&stop) {
            sleep(SUPERVISION).await;
        }
        let overdue = async {
            stop.cancelled().await;
            sleep(DRAIN_BOUND).await;
        };
        let fault = tokio::select! {
            fault = place.run(stop.clone()) => fault,
            () = overdue => Some("does not stop".to_owned()),
        };
        switch.lock().ended(fault.map(|fault| format!("{}: {fault}", place.host)));
        sleep(START_PAUSE).await;
    }
}

impl Place {
    /// One life of the program; what it may not do.
    async fn run(&self, stop: CancellationToken) -> Option<String> {
        let network = SimNetwork { host: self.host.clone(), links: Arc::clone(&self.links) };
        let surroundings = Surroundings {
            coordination: Some(self.store.open(&self.host)),
            network: Some(Arc::new(network)),
        };
        // A program that cannot be built (the store is away) fails, and is started again.
        let ended = match program_of(&self.host) {
            Program::LeaderSvc => {
                let (common, own) = self.settings(&LEADER_SETTINGS);
                let built = leader_svc::build_in(surroundings, leader_svc::Config { common, own }).await;
                built.ok()?.run(stop).await.map_err(|error| error.to_string())
            }
            Program::FollowerAgent => {
                let (common, own) = self.settings(&AGENT_SETTINGS);
                let built =
                    follower_agent::build_in(surroundings, follower_agent::Config { common, own }).await;
                built.ok()?.run(stop).await.map_err(|error| error.to_string())
            }
        };
        ended.err()
    }

    fn settings<S: Settings>(&self, own: &[(&'static str, &str)]) -> (CommonSettings, S) {
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(program_of(&self.host))));
        let keys = [CommonSettings::KEYS, S::KEYS].concat();
        let mut flags: Vec<(&'static str, String)> = vec![
            ("node.id", self.node.to_string()),
            ("data.dir", self.data_dir.display().to_string()),
            // Not opened: the store is given.
            ("coordination", "file:store".to_owned()),
            ("listen", listen.to_string()),
            ("advertise", endpoint(&self.host).to_string()),
        ];
        flags.extend(own.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let values = load(&keys, &Sources { flags, ..Sources::default() }).unwrap();
        (CommonSettings::from_values(&values).unwrap(), S::from_values(&values).unwrap())
    }
}
