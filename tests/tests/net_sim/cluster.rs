//! Three nodes of two programs each, on turmoil's hosts: the very libraries that the programs are, on real directories.
//!
//! A program has a host of its own, with a supervisor that does not die: a program that was killed refuses connections, as
//! the port of a dead process on a living machine does. A machine that vanished is a program killed behind cut links.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use highwater_client::{Client, ClientConfig};
use highwater_node::DRAIN_BOUND;
use highwater_node::config::{CommonSettings, Settings, Sources, load};
use highwater_serving::Surroundings;
use highwater_types::{Endpoint, PartitionRecord, Program};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use turmoil::Sim;

use super::network::{Links, SimNetwork};
use super::store::{Reach, Store};

/// The nodes.
pub(crate) const NODES: [i32; 3] = [1, 2, 3];

/// One step of the simulation: what happens within it on two hosts has no order.
const TICK: Duration = Duration::from_millis(2);

/// How long a message is on its way.
const LATENCY: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(15)];

/// How often a supervisor looks whether its program is to run, and how long it waits after a failed start.
const SUPERVISION: Duration = Duration::from_millis(5);
const START_PAUSE: Duration = Duration::from_millis(500);

/// `broker.session.timeout.ms`, as by default.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// `replica.socket.timeout.ms`: the deadline of a Fetch between programs.
pub(crate) const FETCH_DEADLINE: Duration = Duration::from_secs(3);

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
struct Switch {
    is_wanted: bool,
    is_running: bool,
    stop: CancellationToken,
    /// What no program may do: fail while it runs, or take too long to stop.
    faults: Vec<String>,
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

/// A simulated cluster. The directories go with it.
pub(crate) struct Cluster {
    // Before the directories: it uses them.
    sim: Sim<'static>,
    root: tempfile::TempDir,
    pub(crate) store: Store,
    links: Arc<Links>,
    /// Links that are not as they should be.
    broken: BTreeSet<(String, String)>,
    programs: BTreeMap<String, Arc<Mutex<Switch>>>,
    clients: u32,
}

impl Cluster {
    /// A cluster in which nothing runs yet.
    pub(crate) fn new(seed: u64) -> Self {
        let [least, most] = LATENCY;
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(TICK)
            .min_message_latency(least)
            .max_message_latency(most)
            .simulation_duration(Duration::from_secs(24 * 3600))
            // Refused connections keep theirs in turmoil.
            .ephemeral_ports(10_000..=65_535)
            .tcp_capacity(1024)
            .enable_tokio_io()
            .enable_random_order()
            .build();
        let mut cluster = Self {
            sim,
            root: tempfile::tempdir().unwrap(),
            store: Store::default(),
            links: Arc::default(),
            broken: BTreeSet::new(),
            programs: BTreeMap::new(),
            clients: 0,
        };
        for node in NODES {
            for host in [leader(node), agent(node)] {
                cluster.add(node, host);
            }
        }
        cluster
    }

    fn add(&mut self, node: i32, host: String) {
        let switch = Arc::<Mutex<Switch>>::default();
        let place = Place {
            node,
            host: host.clone(),
            data_dir: self.data_dir(node),
            store: self.store.clone(),
            links: Arc::clone(&self.links),
        };
        self.programs.insert(host.clone(), Arc::clone(&switch));
        self.sim.host(host, move || supervise(place.clone(), Arc::clone(&switch)));
    }

    pub(crate) fn data_dir(&self, node: i32) -> PathBuf {
        self.root.path().join(format!("data-{node}"))
    }

    fn switch(&self, host: &str) -> parking_lot::MutexGuard<'_, Switch> {
        self.programs[host].lock()
    }

    pub(crate) fn start(&self, host: &str) {
        self.switch(host).is_wanted = true;
    }

    pub(crate) fn start_all(&self) {
        self.programs.keys().for_each(|host| self.start(host));
    }

    pub(crate) fn is_running(&self, host: &str) -> bool {
        self.switch(host).is_running
    }

    /// Tells a program to stop; it ends in its own time.
    pub(crate) fn stop(&self, host: &str) {
        let mut switch = self.switch(host);
        switch.is_wanted = false;
        switch.stop.cancel();
    }

    /// Ends a program as kill -9 does: no task of it runs on, and the kernel closes its connections.
    pub(crate) fn kill(&mut self, host: &str) {
        let mut switch = self.switch(host);
        (switch.is_wanted, switch.is_running) = (false, false);
        drop(switch);
        self.sim.bounce(host);
    }

    /// Nothing passes between two hosts any more.
    pub(crate) fn cut(&mut self, a: &str, b: &str) {
        self.links.set(a, b, true);
        self.links.set(b, a, true);
        self.sim.partition(a, b);
        self.broken.insert((a.to_owned(), b.to_owned()));
    }

    /// Nothing passes from one host to another, and everything the other way.
    pub(crate) fn cut_one_way(&mut self, from: &str, to: &str) {
        self.links.set(from, to, true);
        self.sim.partition_oneway(from, to);
        self.broken.insert((from.to_owned(), to.to_owned()));
    }

    /// What passes between two hosts is held, and arrives when they are mended.
    pub(crate) fn hold(&mut self, a: &str, b: &str) {
        self.sim.hold(a, b);
        self.broken.insert((a.to_owned(), b.to_owned()));
    }

    /// A machine is gone, and with it what would have said so; `clients` are what is not of the cluster.
    pub(crate) fn vanish(&mut self, node: i32, clients: &[&str]) {
        let gone = [leader(node), agent(node)];
        let mut others = self.hosts();
        others.extend(clients.iter().map(|client| (*client).to_owned()));
        others.retain(|host| !gone.contains(host));
        for (host, other) in gone.iter().flat_map(|host| others.iter().map(move |other| (host, other))) {
            if self.is_whole(host, other) {
                self.cut(host, other);
            }
        }
        gone.iter().for_each(|host| self.kill(host));
    }

    /// Whether the link between two hosts is as it should be.
    pub(crate) fn is_whole(&self, a: &str, b: &str) -> bool {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        !self.broken.contains(&pair(a, b)) && !self.broken.contains(&pair(b, a))
    }

    /// The links that are not as they should be.
    pub(crate) fn broken(&self) -> Vec<(String, String)> {
        self.broken.iter().cloned().collect()
    }

    /// Everything passes again; what was held arrives now.
    pub(crate) fn mend(&mut self, a: &str, b: &str) {
        self.links.set(a, b, false);
        self.links.set(b, a, false);
        self.sim.release(a, b);
        self.broken.remove(&(a.to_owned(), b.to_owned()));
        self.broken.remove(&(b.to_owned(), a.to_owned()));
    }

    /// Everything works again, and every program runs.
    pub(crate) fn heal(&mut self) {
        for (a, b) in self.broken() {
            self.mend(&a, &b);
        }
        for host in self.hosts() {
            self.store.set_reach(&host, Reach::Good);
        }
        self.start_all();
    }

    /// The programs' hosts.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.programs.keys().cloned().collect()
    }

    /// A partition's record as it stands.
    pub(crate) fn record(&self, partition: i32) -> PartitionRecord {
        let is_it = |record: &PartitionRecord| record.partition.get() == partition;
        self.store.partitions().into_iter().find(is_it).unwrap()
    }

    /// The node that leads a partition.
    pub(crate) fn leader_of(&self, partition: i32) -> Option<i32> {
        self.record(partition).leader.map(|node| node.get())
    }

    /// Virtual time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.elapsed() + time;
        while self.elapsed() < until {
            self.step();
        }
    }

    /// Runs until something is so; how long that took.
    pub(crate) fn until(
        &mut self,
        what: &str,
        bound: Duration,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Duration {
        let began = self.elapsed();
        while !is_so(self) {
            let took = self.elapsed() - began;
            assert!(took < bound, "at {:?}: not within {bound:?}: {what}", self.elapsed());
            self.step();
        }
        self.elapsed() - began
    }

    fn step(&mut self) {
        if let Err(error) = self.sim.step() {
            panic!("at {:?}: {error}", self.elapsed());
        }
    }

    /// What no program may do, and one did.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.programs.values().flat_map(|switch| switch.lock().faults.clone()).collect()
    }

    /// Runs something on a host of its own, which has this name.
    pub(crate) fn on_host<F: Future<Output = ()> + 'static>(
        &mut self,
        host: &str,
        run: impl FnOnce(SimNetwork) -> F,
    ) {
        let running = run(SimNetwork { host: host.to_owned(), links: Arc::clone(&self.links) });
        self.sim.client(host, async {
            running.await;
            Ok(())
        });
    }

    /// Asks on a host of its own, and runs until the answer is there.
    pub(crate) fn ask<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        what: &str,
        bound: Duration,
        question: impl FnOnce(SimNetwork) -> F + 'static,
    ) -> T {
        self.clients += 1;
        let answer = Rc::new(RefCell::new(None));
        let answered = Rc::clone(&answer);
        self.on_host(&format!("asker-{}", self.clients), |network| async move {
            let answer = question(network).await;
            *answered.borrow_mut() = Some(answer);
        });
        self.until(what, bound, |_| answer.borrow().is_some());
        answer.take().unwrap()
    }
}

/// The product's client on a host.
pub(crate) fn client(network: &SimNetwork) -> Client {
    let bootstrap = NODES.map(|node| endpoint(&leader(node))).to_vec();
    Client::new(ClientConfig { transport: network.transport(), ..ClientConfig::new(bootstrap) }).unwrap()
}

/// Where a program runs.
#[derive(Clone, Debug)]
struct Place {
    node: i32,
    host: String,
    data_dir: PathBuf,
    store: Store,
    links: Arc<Links>,
}

/// Runs a program whenever it is wanted. It goes on until its host's tasks are dropped, which is a kill.
async fn supervise(place: Place, switch: Arc<Mutex<Switch>>) -> turmoil::Result {
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
