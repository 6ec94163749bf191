//! What this node knows of the other nodes' programs (design.md 6.6, 6.7). Of leader-svc: who is *down*, because its liveness
//! expired or its port refuses connections repeatedly, and who is *up*, because it shows signs of life and refuses nobody.
//! Of agents: who is *gone*, because the connection to it ended and its port refuses, or its liveness expired: it hangs, or
//! its host is silent.
//!
//! What must hold: being wrong costs a leadership, never a record, because who takes over was in sync (design.md 6.6). A node
//! can be neither up nor down: it runs an agent only, or nothing is known of it yet; then nobody takes from it, and nobody
//! waits for it. One connection without calls is kept to each program; it ends with the process, so a death is seen at once
//! and quiet costs nothing. Only a refusal is a sign: an address that is silent, or that no name stands for, is judged by its
//! liveness; and an agent that this node never reached, by its fetches.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use highwater_coordination::{ClusterView, Membership, ProgramState};
use highwater_node::network::{Io, Network};
use highwater_types::{Endpoint, NodeId, Program};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How many refusals in a row are a sign: one may fall into a restart.
const REFUSALS: u32 = 3;

/// Between two attempts to connect; it grows while they fail, or what they made ends at once.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Within this time a port that accepts again is known to: the longest pause, and the same again for a machine that is busy.
pub(super) const KNOWN_AGAIN_WITHIN: Duration = Duration::from_millis(200);

/// How long an attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// How long a connection is held before another one takes its place: of a host that vanished nobody says that it ended.
const HELD_MAX: Duration = Duration::from_secs(60);

/// The others, as far as this node can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    down: BTreeSet<NodeId>,
    up: BTreeSet<NodeId>,
    agents_gone: BTreeSet<NodeId>,
}

impl Peers {
    /// These are down, those are up.
    #[cfg(test)]
    pub(super) fn of(down: impl IntoIterator<Item = NodeId>, up: impl IntoIterator<Item = NodeId>) -> Self {
        Self { down: down.into_iter().collect(), up: up.into_iter().collect(), agents_gone: BTreeSet::new() }
    }

    /// Whether a leadership of this node's may be taken over.
    pub(super) fn is_down(&self, node: NodeId) -> bool {
        self.down.contains(&node)
    }

    /// Whether this node could take a leadership over.
    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.up.contains(&node)
    }

    /// The nodes whose agent is dead: it fetches no more.
    pub(super) const fn agents_gone(&self) -> &BTreeSet<NodeId> {
        &self.agents_gone
    }
}

/// Watches the others.
#[derive(Debug)]
pub(crate) struct PeerWatch {
    node: NodeId,
    membership: Arc<Membership>,
    view: watch::Receiver<Arc<ClusterView>>,
    network: Arc<dyn Network>,
    peers: watch::Sender<Peers>,
    probes: BTreeMap<(NodeId, Program), Probe>,
    changed: Arc<Notify>,
    retry: watch::Sender<()>,
}

/// What is known of agents, for those who may know better.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    peers: watch::Receiver<Peers>,
    retry: watch::Sender<()>,
}

impl Agents {
    /// What `peers` says.
    #[cfg(test)]
    pub(super) fn of(peers: &watch::Sender<Peers>) -> Self {
        Self { peers: peers.subscribe(), retry: watch::Sender::default() }
    }

    /// These are in sync: who is thought to be gone has come back, and its port is tried without the usual pause. Else an agent
    /// that died again within it would not be missed.
    pub(crate) fn on_in_sync(&self, mut members: impl Iterator<Item = NodeId>) {
        let peers = self.peers.borrow();
        if members.any(|member| peers.agents_gone.contains(&member)) {
            self.retry.send_replace(());
        }
    }
}

/// What a port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Unknown,
    Accepts,
    Refuses {
        /// Whether it accepted before.
        accepted: bool,
    },
}

/// What tries a program's port.
#[derive(Debug)]
struct Probe {
    endpoint: Endpoint,
    port: watch::Receiver<Port>,
    _task: AbortOnDropHandle<()>,
}

impl PeerWatch {
    /// Watches nobody yet.
    pub(crate) fn new(
        node: NodeId,
        membership: Arc<Membership>,
        view: watch::Receiver<Arc<ClusterView>>,
        network: Arc<dyn Network>,
    ) -> Self {
        let (peers, retry) = (watch::Sender::default(), watch::Sender::default());
        let (probes, changed) = (BTreeMap::new(), Arc::default());
        Self { node, membership, view, network, peers, probes, changed, retry }
    }

    /// What is known.
    pub(crate) fn peers(&self) -> watch::Receiver<Peers> {
        self.peers.subscribe()
    }

    /// For those who see agents come back.
    pub(crate) fn agents(&self) -> Agents {
        Agents { peers: self.peers(), retry: self.retry.clone() }
    }

    /// Watches until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // Nobody expires but by a renewal.
        let mut renewals = self.membership.renewals();
        loop {
            let view = Arc::clone(&self.view.borrow_and_update());
            self.probe_nodes(&view);
            self.tell();
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.view.changed() => if changed.is_err() { return },
                () = self.changed.notified() => {}
                // The membership lives as long as this.
                Ok(()) = renewals.changed() => {}
            }
        }
    }

    /// Has a probe for each program of each other node, at its newest address.
    fn probe_nodes(&mut self, view: &ClusterView) {
        let endpoint = |id: NodeId, program| view.node(id).and_then(|node| node.endpoint(program));
        self.probes.retain(|(id, program), probe| endpoint(*id, *program) == Some(&probe.endpoint));
        let others = view.nodes().filter(|node| node.node != self.node);
        let programs = [Program::LeaderSvc, Program::FollowerAgent];
        for (node, program) in others.flat_map(|node| programs.map(|program| (node, program))) {
            let Some(endpoint) = node.endpoint(program) else { continue };
            self.probes.entry((node.node, program)).or_insert_with(|| {
                let (sender, port) = watch::channel(Port::Unknown);
                let told = Told { port: sender, changed: Arc::clone(&self.changed) };
                let probing =
                    probe(Arc::clone(&self.network), endpoint.clone(), told, self.retry.subscribe());
                let task = AbortOnDropHandle::new(tokio::spawn(probing));
                Probe { endpoint: endpoint.clone(), port, _task: task }
            });
        }
    }

    fn tell(&self) {
        let mut peers = Peers::default();
        for ((node, program), probe) in &self.probes {
            let port = *probe.port.borrow();
            if *program == Program::FollowerAgent {
                let is_silent = self.membership.state(*node, *program) == ProgramState::Expired;
                if is_silent || port == (Port::Refuses { accepted: true }) {
                    peers.agents_gone.insert(*node);
                }
                continue;
            }
            match (port, self.membership.state(*node, *program)) {
                (Port::Refuses { .. }, _)
                | (Port::Unknown | Port::Accepts, ProgramState::Expired)
                // Its sign of life went with a store that was lost.
                | (Port::Unknown, ProgramState::NeverSeen) => _ = peers.down.insert(*node),
                (Port::Unknown | Port::Accepts, ProgramState::Alive)
                // It has just registered.
                | (Port::Accepts, ProgramState::NeverSeen) => _ = peers.up.insert(*node),
            }
        }
        self.peers.send_if_modified(|known| {
            let news = *known != peers;
            *known = peers;
            news
        });
    }
}

/// Who hears of a port.
#[derive(Debug)]
struct Told {
    port: watch::Sender<Port>,
    changed: Arc<Notify>,
}

impl Told {
    fn say(&self, now: Port) {
        if self.port.send_replace(now) != now {
            self.changed.notify_one();
        }
    }
}

/// Keeps a connection to a port, and says when it refuses and when it accepts again. `retry` ends a pause early.
async fn probe(network: Arc<dyn Network>, endpoint: Endpoint, told: Told, mut retry: watch::Receiver<()>) {
    let (mut accepted, mut refusals, mut pause) = (false, 0, PAUSE_MIN);
    loop {
        retry.mark_unchanged();
        match timeout(CONNECT_PATIENCE, network.connect(endpoint.clone())).await {
            Ok(Ok(connection)) => {
                (accepted, refusals) = (true, 0);
                told.say(Port::Accepts);
                let since = Instant::now();
                hold(connection).await;
                if since.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refusals += 1;
                if refusals >= REFUSALS {
                    told.say(Port::Refuses { accepted });
                }
            }
            Ok(Err(_)) | Err(_) => {
                refusals = 0;
                told.say(Port::Unknown);
            }
        }
        let is_undecided = (1..REFUSALS).contains(&refusals);
        tokio::time::sleep(PAUSE_MIN).await;
        if !is_undecided {
            // Whether it ended early or not, and even if nobody can ask for that any more, the next attempt is due.
            _ = timeout(pause.saturating_sub(PAUSE_MIN), retry.changed()).await;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Holds a connection on which nothing is called until it ends, because the server is gone or says that it goes.
async fn hold(connection: Box<dyn Io>) {
    // As HTTP/2, so that the server need not guess: it pings, and says goodbye.
    let held = async {
        let (_calls, connection) = h2::client::handshake(connection).await?;
        connection.await
    };
    // How it ended says no more than that it did.
    _ = timeout(HELD_MAX, held).await;
}

#[cfg(test)]
#[path = "peers_test.rs"]
mod tests;
