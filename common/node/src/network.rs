//! Where a program's connections come from: the operating system, or what a simulation puts in its place.
//!
//! What must hold: a server listens on a [`Listener`], whatever made it, and a program that connects by itself does it by
//! [`Network::connect`]. Deliberately absent: the channels of gRPC clients, which resolve names and connect by tonic
//! (`client::transport`), and the connections to an etcd and to a collector.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use highwater_types::Endpoint;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::grpc::{Listener, ServeError};

/// The bytes of a connection, in both directions.
pub trait Io: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin + 'static> Io for T {}

/// What comes of listening and of connecting. Dropping it gives the attempt up.
pub type NetworkFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A network.
pub trait Network: fmt::Debug + Send + Sync + 'static {
    /// Listens on `address`; port 0 takes any free one.
    fn listen(&self, address: SocketAddr) -> NetworkFuture<Listener, ServeError>;

    /// Connects to `endpoint`, whose name is resolved now. Bound the wait. A port at which nobody listens is an error of
    /// the kind [`io::ErrorKind::ConnectionRefused`].
    fn connect(&self, endpoint: Endpoint) -> NetworkFuture<Box<dyn Io>, io::Error>;
}

/// The operating system's network.
#[derive(Clone, Copy, Debug)]
pub struct SystemNetwork;

impl Network for SystemNetwork {
    fn listen(&self, address: SocketAddr) -> NetworkFuture<Listener, ServeError> {
        Box::pin(Listener::bind(address))
    }

    fn connect(&self, endpoint: Endpoint) -> NetworkFuture<Box<dyn Io>, io::Error> {
        Box::pin(async move {
            let connection = TcpStream::connect(endpoint.as_str()).await?;
            // Nobody listens, and the system chose that very port for this end: a connection to itself.
            if connection.local_addr()? == connection.peer_addr()? {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(connection) as Box<dyn Io>)
        })
    }
}
