//! A connection that a handler can close: HTTP/2 lets a peer leave an answer unread for as long as it likes, and a server can
//! take back what it holds for it only together with the connection.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::server::Accepted;
use crate::network::Io;

/// Closes the connection that a request came by; among the request's extensions.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    peer: Option<SocketAddr>,
    closing: CancellationToken,
}

impl ConnectionHandle {
    /// The handle of a connection from `peer` that `closing` closes.
    #[must_use]
    pub const fn new(peer: Option<SocketAddr>, closing: CancellationToken) -> Self {
        Self { peer, closing }
    }

    /// Who is at the other end, where that is known.
    #[must_use]
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Closes it: every call on it ends, and what is held for it is let go.
    pub fn close(&self) {
        self.closing.cancel();
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    io: Box<dyn Io>,
    handle: ConnectionHandle,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    pub(super) fn new(Accepted { io, peer }: Accepted) -> Self {
        let closing = CancellationToken::new();
        let closed = Box::pin(closing.clone().cancelled_owned());
        let handle = ConnectionHandle::new(peer, closing);
        Self { io, handle, closed }
    }

    fn check(&self) -> io::Result<()> {
        if self.handle.closing.is_cancelled() { Err(closed()) } else { Ok(()) }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this program closed the connection")
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A connection is always read from, so this is where it learns that it is to be closed.
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(closed()));
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
