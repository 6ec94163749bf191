//! Ports that accept, refuse, and come back, counters that stand still, and nodes without a leader-svc.

use highwater_coordination::{Coordination, FileCoordination, FileOptions, register_endpoint};
use highwater_node::network::SystemNetwork;
use highwater_types::MonotonicTime;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

const SESSION: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(20);

/// What node 1 knows of node 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Down,
    Up,
    Neither,
}

struct Bench {
    _dir: tempfile::TempDir,
    store: Arc<dyn Coordination>,
    membership: Arc<Membership>,
    peers: watch::Receiver<Peers>,
    stop: CancellationToken,
}

fn node(id: i32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn two(peers: &Peers) -> Known {
    match (peers.is_down(node(2)), peers.is_up(node(2))) {
        (true, false) => Known::Down,
        (false, true) => Known::Up,
        (false, false) => Known::Neither,
        (true, true) => panic!("a node is not both: {peers:?}"),
    }
}

/// Node 1 watches; `program` of node 2 says that it listens at `address`, and has shown a sign of life.
async fn bench(program: Program, address: std::net::SocketAddr) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = FileCoordination::open(dir.path(), FileOptions::default()).await.unwrap();
    let store: Arc<dyn Coordination> = Arc::new(store);
    register_endpoint(&*store, node(2), program, &Endpoint::from(address)).await.unwrap();
    store.renew_liveness(node(2), program).await.unwrap();
    let membership = Membership::new(Arc::clone(&store), node(1), Program::LeaderSvc, SESSION);
    let membership = Arc::new(membership);
    membership.renew(|| MonotonicTime::ZERO).await.unwrap();
    let watch = PeerWatch::new(node(1), Arc::clone(&membership), store.view(), Arc::new(SystemNetwork));
    let (peers, stop) = (watch.peers(), CancellationToken::new());
    tokio::spawn(watch.run(stop.clone()));
    Bench { _dir: dir, store, membership, peers, stop }
}

impl Bench {
    async fn until(&mut self, known: Known) {
        let waited = timeout(SOON, self.peers.wait_for(|peers| two(peers) == known)).await.map(drop);
        assert!(waited.is_ok(), "node 2 never is {known:?}, but {:?}", *self.peers.borrow());
    }
}

impl Bench {
    async fn until_gone(&mut self, gone: bool) {
        let found = self.peers.wait_for(|peers| peers.agents_gone().contains(&node(2)) == gone);
        assert!(
            timeout(SOON, found).await.is_ok(),
            "node 2's agent never is {}",
            if gone { "gone" } else { "back" }
        );
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Accepts connections, tells `accepted` and keeps them, until it is dropped.
fn serve_telling(listener: TcpListener, accepted: Arc<Notify>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut held = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            accepted.notify_one();
            held.spawn(async move {
                std::future::pending::<()>().await;
                drop(connection);
            });
        }
    }))
}

fn serve(listener: TcpListener) -> AbortOnDropHandle<()> {
    serve_telling(listener, Arc::default())
}

#[tokio::test]
async fn a_port_that_refuses_is_down_and_one_that_accepts_again_is_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = serve(listener);
    let mut bench = bench(Program::LeaderSvc, address).await;
    bench.until(Known::Up).await;
    drop(server);
    bench.until(Known::Down).await;
    let _server = serve(TcpListener::bind(address).await.unwrap());
    bench.until(Known::Up).await;
}

#[tokio::test]
async fn a_node_whose_counter_stands_still_is_down_although_its_port_accepts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = serve(listener);
    let mut bench = bench(Program::LeaderSvc, address).await;
    for millis in (100..=400).step_by(100) {
        assert_ne!(two(&bench.peers.borrow()), Known::Down, "before {millis} ms");
        bench.membership.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
    }
    bench.until(Known::Down).await;
    bench.store.renew_liveness(node(2), Program::LeaderSvc).await.unwrap();
    bench.membership.renew(|| MonotonicTime::from_millis(500)).await.unwrap();
    bench.until(Known::Up).await;
}

#[tokio::test]
async fn an_agent_is_gone_when_its_port_refuses_after_it_accepted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(Notify::new());
    let server = serve_telling(listener, Arc::clone(&accepted));
    let mut bench = bench(Program::FollowerAgent, address).await;
    // Nobody ever listened there: its agent may be reached by others, or not at all.
    let never = "127.0.0.1:1".parse().unwrap();
    register_endpoint(&*bench.store, node(3), Program::FollowerAgent, &never).await.unwrap();
    accepted.notified().await;
    drop(server);
    bench.until_gone(true).await;
    let _server = serve(TcpListener::bind(address).await.unwrap());
    bench.until_gone(false).await;
    assert!(bench.peers.borrow().agents_gone().is_empty(), "{:?}", *bench.peers.borrow());
}

#[tokio::test]
async fn an_agent_is_gone_when_its_counter_stands_still_although_its_port_accepts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = serve(listener);
    let mut bench = bench(Program::FollowerAgent, address).await;
    for millis in (0..=400).step_by(100) {
        assert!(bench.peers.borrow().agents_gone().is_empty(), "after {millis} ms");
        bench.membership.renew(|| MonotonicTime::from_millis(millis)).await.unwrap();
    }
    bench.until_gone(true).await;
    bench.store.renew_liveness(node(2), Program::FollowerAgent).await.unwrap();
    bench.membership.renew(|| MonotonicTime::from_millis(500)).await.unwrap();
    bench.until_gone(false).await;
}

/// Its place in the list of replicas must not hold up those who can lead, and nobody may hand over to it.
#[tokio::test]
async fn a_node_that_runs_an_agent_only_is_neither() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut bench = bench(Program::FollowerAgent, listener.local_addr().unwrap()).await;
    register_endpoint(&*bench.store, node(3), Program::LeaderSvc, &"127.0.0.1:1".parse().unwrap())
        .await
        .unwrap();
    // Node 3 is looked at in the same go.
    let seen = timeout(SOON, bench.peers.wait_for(|peers| peers.is_down(node(3)))).await.map(drop);
    assert!(seen.is_ok(), "nobody listens at node 3's address");
    assert_eq!(two(&bench.peers.borrow()), Known::Neither);
}

/// A network in which nobody listens; it tells when it was tried.
#[derive(Debug)]
struct Nobody {
    tried: tokio::sync::mpsc::UnboundedSender<Instant>,
}

impl Network for Nobody {
    fn listen(
        &self,
        _: std::net::SocketAddr,
    ) -> highwater_node::network::NetworkFuture<
        highwater_node::grpc::Listener,
        highwater_node::grpc::ServeError,
    > {
        unreachable!("nobody listens")
    }

    fn connect(&self, _: Endpoint) -> highwater_node::network::NetworkFuture<Box<dyn Io>, io::Error> {
        self.tried.send(Instant::now()).unwrap();
        Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionRefused.into())))
    }
}

/// An agent that comes back, is in sync, and dies again within a pause: what was missed held up acknowledgements for 2 s.
#[tokio::test(start_paused = true)]
async fn a_port_is_tried_at_once_when_its_agent_is_in_sync_again() {
    let (tried, mut attempts) = tokio::sync::mpsc::unbounded_channel();
    let told = Told { port: watch::Sender::new(Port::Unknown), changed: Arc::default() };
    let gone = Peers { agents_gone: [node(2)].into(), ..Peers::default() };
    let peers = watch::Sender::new(gone);
    let agents = Agents::of(&peers);
    let endpoint = "127.0.0.1:1".parse().unwrap();
    let probing = probe(Arc::new(Nobody { tried }), endpoint, told, agents.retry.subscribe());
    let _probing = AbortOnDropHandle::new(tokio::spawn(probing));
    let mut last = Instant::now();
    for _ in 0..10 {
        last = attempts.recv().await.unwrap();
    }
    assert_eq!(attempts.recv().await.unwrap() - last, PAUSE_MAX, "at rest");
    last += PAUSE_MAX;
    agents.on_in_sync([node(1), node(3)].into_iter());
    assert_eq!(attempts.recv().await.unwrap() - last, PAUSE_MAX, "of others nothing was in doubt");
    last += PAUSE_MAX;
    agents.on_in_sync([node(1), node(2)].into_iter());
    assert_eq!(attempts.recv().await.unwrap() - last, PAUSE_MIN, "what is said while it pauses is not lost");
    last += PAUSE_MIN;
    assert_eq!(attempts.recv().await.unwrap() - last, PAUSE_MAX, "said once, tried once");
}
