//! Three nodes of two programs each, on turmoil's hosts: the very libraries that the programs are, on real directories. A
//! machine that vanished is its programs killed behind cut links.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use highwater_client::{Client, ClientConfig};
use highwater_types::PartitionRecord;
use parking_lot::Mutex;
use turmoil::Sim;

use super::network::{Links, SimNetwork};
use super::program::{Place, Switch, agent, endpoint, leader, supervise};
use super::store::{Reach, Store};

/// The nodes.
pub(crate) const NODES: [i32; 3] = [1, 2, 3];

/// One step of the simulation: what happens within it on two hosts has no order.
const TICK: Duration = Duration::from_millis(2);

/// How long a message is on its way.
const LATENCY: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(15)];
/// The longest, with the turn of the simulation in which it arrives.
pub(crate) const ON_ITS_WAY_MAX: Duration = LATENCY[1].saturating_add(TICK);

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
