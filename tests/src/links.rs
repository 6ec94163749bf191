//! A proxy before every program of a cluster, which knows from which node a connection comes: links between nodes can be cut
//! one by one, in one direction or both, while clients of the test reach every program.
//!
//! What must hold: programs know each other by the proxies' addresses only. A program that does not run has a port that
//! refuses, as without a proxy. Who connects is read from the kernel's tables: the socket's number, and whose it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use highwater_types::Program;

use crate::cluster::{Plan, ServerId};
use crate::kernel;
use crate::proxy::{Passage, Proxy, Source};

/// The source of connections that no program of the cluster makes.
const OUTSIDE: Source = 0;

/// From which node to which.
pub type Link = (i32, i32);

/// The node of each process that was started.
type Processes = Arc<Mutex<BTreeMap<u32, i32>>>;

/// The proxies of a cluster, each before one program.
#[derive(Debug)]
pub struct Links {
    proxies: BTreeMap<ServerId, Proxy>,
    processes: Processes,
}

impl Links {
    /// Puts proxies before both programs of these nodes, whose ids are above 0.
    pub async fn before(mut plan: Plan, nodes: &[i32]) -> (Self, Plan) {
        let processes = Processes::default();
        let mut proxies = BTreeMap::new();
        for node in nodes {
            for program in [Program::LeaderSvc, Program::FollowerAgent] {
                let (id, known) = ((*node, program), Arc::clone(&processes));
                let proxy = Proxy::start_telling(plan.address(id), move |from| source(from, &known)).await;
                plan = plan.advertise(id, proxy.address());
                proxies.insert(id, proxy);
            }
        }
        (Self { proxies, processes }, plan)
    }

    /// A program was started, as this process.
    pub async fn on_start(&mut self, id: ServerId, process: u32) {
        self.note_process(id, process);
        self.proxy_mut(id).open_port().await;
    }

    /// The process of a program that runs behind an open port.
    pub fn note_process(&self, id: ServerId, process: u32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(process, id.0);
    }

    /// A program has ended.
    pub async fn on_end(&mut self, id: ServerId) {
        self.proxy_mut(id).close_port().await;
    }

    /// Disturbs these links in this way, and no others.
    pub fn disturb(&self, links: &BTreeMap<Link, Passage>) {
        let nodes: Vec<i32> = self.proxies.keys().map(|(node, _)| *node).collect();
        for ((to, _), proxy) in &self.proxies {
            for from in &nodes {
                let passage = links.get(&(*from, *to)).copied().unwrap_or(Passage::Open);
                proxy.set_passage_of(*from, passage);
            }
        }
    }

    fn proxy_mut(&mut self, id: ServerId) -> &mut Proxy {
        self.proxies.get_mut(&id).expect("every program has a proxy")
    }
}

/// The node whose process has the socket at `address`.
fn source(address: SocketAddr, processes: &Mutex<BTreeMap<u32, i32>>) -> Source {
    let Some(socket) = kernel::socket_at(address) else { return OUTSIDE };
    let processes = processes.lock().unwrap_or_else(PoisonError::into_inner);
    let owner = processes.iter().rev().find(|(process, _)| kernel::has_socket(**process, socket));
    owner.map_or(OUTSIDE, |(_, node)| *node)
}
