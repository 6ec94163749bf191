//! A gRPC server with health and reflection, from a listener to its bounded end.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use http::Request;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tower::Service;
use tower::util::{MapRequestLayer, MapResponseLayer};

use super::connection::Connection;
use super::{deadline, status_text};
use crate::network::Io;

/// HTTP/2 receive window of one stream: what an answer or a Produce of several MiB needs in order not to wait for round
/// trips (measured: peers.md). Both sides use it.
pub const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// HTTP/2 receive window of one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The largest HTTP/2 frame that is taken, in bytes: a Produce of several MiB comes in few pieces, and a
/// small request beside it waits for little (measured: peers.md). Both sides use it.
const FRAME_BYTES_MAX: u32 = 256 << 10;

/// The name under which health says SERVING for as long as the program answers at all, whatever its services wait for. For
/// who restarts a program that hangs, as a kubelet does: to restart one that waits for its cluster helps nobody.
pub const LIVENESS: &str = "liveness";

/// How often a connection is checked by an HTTP/2 ping, idle ones too, so that a frozen peer is found out.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long the answer to such a ping may take.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stopping server waits for calls and connections to end. Parked calls are ended by their services, so only
/// those that are being answered are left, and peers that do not react.
pub const STOP_GRACE: Duration = Duration::from_secs(2);

/// Calls in flight on one connection. Each loop of an agent parks one; clients may park many.
const STREAMS_PER_CONNECTION_MAX: u32 = 1024;

/// Request headers that are accepted, in bytes as HTTP/2 counts them.
const HEADER_LIST_MAX_BYTES: u32 = 64 << 10;

/// The pause after a failed accept: when file handles run out, every attempt fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The descriptor bytes are not a descriptor set.
    #[error("descriptor set for reflection: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("serve: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// A connection that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// Its bytes.
    pub io: Box<dyn Io>,
    /// Who is at the other end, where that is known.
    pub peer: Option<SocketAddr>,
}

/// What listens; nothing is accepted before it is served.
pub struct Listener {
    incoming: Pin<Box<dyn Stream<Item = io::Result<Accepted>> + Send>>,
    address: SocketAddr,
}

impl Listener {
    /// Listens on `address`; port 0 takes any free one.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let incoming = TcpIncoming::from(socket)
            .with_nodelay(Some(true))
            .with_keepalive(Some(KEEPALIVE_INTERVAL))
            .map(|accepted| accepted.map(|io| Accepted { peer: io.peer_addr().ok(), io: Box::new(io) }));
        Ok(Self::new(address, incoming))
    }

    /// A listener at `address` to which `incoming` connections come.
    #[must_use]
    pub fn new(
        address: SocketAddr,
        incoming: impl Stream<Item = io::Result<Accepted>> + Send + 'static,
    ) -> Self {
        Self { incoming: Box::pin(incoming), address }
    }

    /// The address that was bound, with its real port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What `grpc.health.v1.Health` says, for each service and for the whole (""). [`LIVENESS`] is not among them.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    names: Vec<&'static str>,
}

impl Health {
    /// Says SERVING or NOT_SERVING for all.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in self.names.iter().chain([&""]) {
            self.reporter.set_service_status(*name, status).await;
        }
    }
}

/// A server that is being put together: add services, then serve.
#[derive(Debug)]
pub struct GrpcServer {
    routes: Routes,
    health: Health,
}

impl GrpcServer {
    /// A server with health (NOT_SERVING until told otherwise) and reflection (v1 and v1alpha) of the encoded descriptor
    /// sets and of its own services.
    ///
    /// # Errors
    /// [`ServeError::Descriptors`].
    pub async fn new(descriptor_sets: &[&[u8]]) -> Result<Self, ServeError> {
        let reflection = || {
            descriptor_sets.iter().fold(
                tonic_reflection::server::Builder::configure()
                    .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET),
                |builder, set| builder.register_encoded_file_descriptor_set(set),
            )
        };
        let (reporter, service) = health_reporter();
        let routes = Routes::new(service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
        let health = Health { reporter, names: Vec::new() };
        health.set_serving(false).await;
        Ok(Self { routes, health })
    }

    /// Adds a service, NOT_SERVING until told otherwise.
    #[must_use]
    pub async fn add_service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.health.names.push(S::NAME);
        self.health.reporter.set_service_status(S::NAME, ServingStatus::NotServing).await;
        self.routes = self.routes.add_service(service);
        self
    }

    /// The health of the services added so far.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves until `stop`: then health says NOT_SERVING, nothing new is accepted, and calls in flight have
    /// [`STOP_GRACE`] to end. End parked calls on the same token, else they are cut off.
    ///
    /// # Errors
    /// [`ServeError::Transport`].
    pub async fn serve(self, listener: Listener, stop: CancellationToken) -> Result<(), ServeError> {
        let Self { routes, health } = self;
        let Listener { incoming, address } = listener;
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .http2_max_header_list_size(HEADER_LIST_MAX_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .layer(MapResponseLayer::new(status_text::bound::<Body>))
            .layer(MapRequestLayer::new(deadline::stamp::<Body>))
            .add_routes(routes)
            .serve_with_incoming_shutdown(connections(incoming), stop.clone().cancelled_owned());
        let overdue = async {
            stop.cancelled().await;
            health.set_serving(false).await;
            tokio::time::sleep(STOP_GRACE).await;
        };
        tokio::select! {
            served = server => Ok(served?),
            () = overdue => {
                tracing::info!(address = %address, "stopped with connections still open");
                Ok(())
            }
        }
    }
}

fn connections(
    incoming: impl Stream<Item = io::Result<Accepted>>,
) -> impl Stream<Item = io::Result<Connection>> {
    incoming.then(async |accepted| {
        if let Err(error) = &accepted {
            tracing::warn!(%error, "could not accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted.map(Connection::new)
    })
}

#[cfg(test)]
#[path = "server_test.rs"]
mod tests;
