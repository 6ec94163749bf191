//! turmoil's TCP as the network of a program, and the state of the links between hosts.
//!
//! What is made truer than turmoil has it: a connection to a host behind a cut link is not refused, which would say that
//! nobody listens there; nothing is said at all. What stays as it is: a segment that was dropped is not sent again, so a
//! connection that lived through a cut is frozen for good, and only a deadline or a keepalive finds out.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use highwater_client::transport::{Dialer, TransportOptions};
use highwater_node::grpc::{Accepted, Listener, ServeError};
use highwater_node::network::{Io, Network, NetworkFuture};
use highwater_types::Endpoint;
use parking_lot::Mutex;
use turmoil::net::{TcpListener, TcpStream};

/// The links that are or were cut, in the direction in which nothing passes.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<BTreeMap<(String, String), Cuts>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cuts {
    is_cut: bool,
    so_far: u32,
}

impl Links {
    /// From now on nothing passes from `from` to `to`, or everything again.
    pub(crate) fn set(&self, from: &str, to: &str, is_cut: bool) {
        let mut links = self.0.lock();
        let cuts = links.entry((from.to_owned(), to.to_owned())).or_default();
        cuts.so_far += u32::from(is_cut);
        cuts.is_cut = is_cut;
    }

    /// Both directions.
    fn between(&self, a: &str, b: &str) -> [Cuts; 2] {
        let links = self.0.lock();
        [(a, b), (b, a)]
            .map(|(from, to)| links.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or_default())
    }
}

/// The network as one host sees it.
#[derive(Clone, Debug)]
pub(crate) struct SimNetwork {
    pub(crate) host: String,
    pub(crate) links: Arc<Links>,
}

impl SimNetwork {
    /// How a client on this host connects.
    pub(crate) fn transport(&self) -> TransportOptions {
        let network = self.clone();
        let dialer = Dialer::new(move |endpoint| network.clone().dial(endpoint));
        TransportOptions { dialer: Some(dialer), ..TransportOptions::default() }
    }

    async fn dial(self, endpoint: Endpoint) -> io::Result<TcpStream> {
        let to = endpoint.as_str().split(':').next().unwrap_or_default();
        let links = || self.links.between(&self.host, to);
        let before = links();
        if before.iter().any(|link| link.is_cut) {
            return pending().await;
        }
        match TcpStream::connect(endpoint.as_str()).await {
            // The link was cut while the first segment was on its way.
            Err(_) if links() != before => pending().await,
            other => other,
        }
    }
}

impl Network for SimNetwork {
    fn listen(&self, address: SocketAddr) -> NetworkFuture<Listener, ServeError> {
        Box::pin(async move {
            let failed = |source| ServeError::Listen { address, source };
            let socket = TcpListener::bind(address).await.map_err(failed)?;
            let incoming = futures::stream::unfold(socket, |socket| async {
                let accepted = socket.accept().await;
                let accepted = accepted.map(|(io, peer)| Accepted { io: Box::new(io), peer: Some(peer) });
                Some((accepted, socket))
            });
            Ok(Listener::new(address, incoming))
        })
    }

    fn connect(&self, endpoint: Endpoint) -> NetworkFuture<Box<dyn Io>, io::Error> {
        let dialling = self.clone().dial(endpoint);
        Box::pin(async move { dialling.await.map(|io| Box::new(io) as Box<dyn Io>) })
    }
}
