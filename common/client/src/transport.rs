//! Channels to nodes: one per endpoint, connected when first used.
//!
//! What holds: a channel reconnects by itself, resolving the name afresh; keepalive ends a frozen connection
//! (dfinity/ic#10455); a channel whose calls fail twice in a row is replaced, so that also a connection to an address which
//! still accepts, but is not the peer any more, ends (qdrant#832, S85). Deliberately absent: retries.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_types::{Endpoint, ErrorCode};
use highwater_wire::{Failure, Reached};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Uri};

use crate::ClientError;

/// Failures in a row after which a channel is replaced.
const FAILURES_BEFORE_REPLACEMENT: u32 = 2;
/// The most channels that a pool keeps; endpoints come from peers, so their number is bounded here.
const MAX_CHANNELS: usize = 1024;

/// What makes connections in place of the operating system: for simulations.
#[derive(Clone)]
pub struct Dialer(Arc<dyn Fn(Endpoint) -> Dialling + Send + Sync>);

type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Dialer {
    /// Connects by `dial`, once for each connection.
    #[must_use]
    pub fn new<T, F>(dial: impl Fn(Endpoint) -> F + Send + Sync + 'static) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<T>> + Send + 'static,
    {
        Self(Arc::new(move |endpoint| {
            let connection = dial(endpoint);
            Box::pin(async move { Ok(Box::new(connection.await?) as Box<dyn Io>) })
        }))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

/// How connections are made and kept.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// A ping is sent when nothing was received for this long, also while idle.
    pub keepalive_interval: Duration,
    /// A connection ends when a ping is not answered for this long.
    pub keepalive_timeout: Duration,
    /// The receiver's window of one stream, in bytes (peers.md: the default of 64 KiB bounds throughput by the round trip).
    pub stream_window: u32,
    /// The receiver's window of one connection, in bytes.
    pub connection_window: u32,
    /// The largest frame that the receiver takes, in bytes: records travel in few pieces, and a small answer
    /// beside them waits for little (measured: peers.md).
    pub frame_max: u32,
    /// What makes the connections; absent = the operating system, by the name that it resolves then.
    pub dialer: Option<Dialer>,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            keepalive_interval: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(3),
            stream_window: 8 << 20,
            connection_window: 16 << 20,
            frame_max: 256 << 10,
            dialer: None,
        }
    }
}

/// A channel to `endpoint` that connects when it is first used.
///
/// # Errors
/// [`ClientError::Usage`] when the address cannot be part of a URL.
pub fn connect_lazy(endpoint: &Endpoint, options: &TransportOptions) -> Result<Channel, ClientError> {
    let builder = Channel::from_shared(format!("http://{endpoint}"))
        .map_err(|e| ClientError::Usage(format!("address '{endpoint}': {e}")))?;
    let builder = builder
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(options.stream_window)
        .initial_connection_window_size(options.connection_window)
        .max_frame_size(options.frame_max);
    let Some(dialer) = options.dialer.clone() else { return Ok(builder.connect_lazy()) };
    let endpoint = endpoint.clone();
    Ok(builder.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let connection = (dialer.0)(endpoint.clone());
        async move { connection.await.map(TokioIo::new) }
    })))
}

/// Channels by endpoint, shared by everything that uses a client.
#[derive(Debug)]
pub struct ChannelPool {
    options: TransportOptions,
    channels: Mutex<HashMap<Endpoint, Pooled>>,
}

#[derive(Debug)]
struct Pooled {
    channel: Channel,
    failures: u32,
}

impl ChannelPool {
    /// An empty pool.
    #[must_use]
    pub fn new(options: TransportOptions) -> Self {
        Self { options, channels: Mutex::default() }
    }

    /// The channel to `endpoint`.
    ///
    /// # Errors
    /// As [`connect_lazy`].
    pub fn get(&self, endpoint: &Endpoint) -> Result<Channel, ClientError> {
        let mut channels = self.lock();
        if let Some(pooled) = channels.get(endpoint) {
            return Ok(pooled.channel.clone());
        }
        let channel = connect_lazy(endpoint, &self.options)?;
        if channels.len() >= MAX_CHANNELS {
            // Those in use go on with their calls; they are only not found any more.
            channels.clear();
        }
        channels.insert(endpoint.clone(), Pooled { channel: channel.clone(), failures: 0 });
        Ok(channel)
    }

    /// Notes that a call to `endpoint` succeeded.
    pub fn succeeded(&self, endpoint: &Endpoint) {
        if let Some(pooled) = self.lock().get_mut(endpoint) {
            pooled.failures = 0;
        }
    }

    /// Notes that a call to `endpoint` failed; replaces its channel when that says something about the connection, or
    /// about which program is behind the address, several times in a row.
    pub fn failed(&self, endpoint: &Endpoint, failure: &Failure) {
        let wrong_program = failure.code == Some(ErrorCode::NotLeaderOrFollower);
        if failure.reached == Reached::Program && !wrong_program {
            self.succeeded(endpoint);
            return;
        }
        self.in_doubt(endpoint);
    }

    /// Notes that `endpoint` is perhaps not who it was thought to be; replaces its channel when that repeats.
    pub fn in_doubt(&self, endpoint: &Endpoint) {
        let mut channels = self.lock();
        let Some(pooled) = channels.get_mut(endpoint) else { return };
        pooled.failures = pooled.failures.saturating_add(1);
        if pooled.failures >= FAILURES_BEFORE_REPLACEMENT {
            channels.remove(endpoint);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Endpoint, Pooled>> {
        // A map of channels is whole after any panic.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    fn pool_with(endpoint: &Endpoint) -> ChannelPool {
        let pool = ChannelPool::new(TransportOptions::default());
        pool.get(endpoint).unwrap();
        pool
    }

    fn has(pool: &ChannelPool, endpoint: &Endpoint) -> bool {
        pool.lock().contains_key(endpoint)
    }

    #[tokio::test]
    async fn a_channel_is_replaced_after_repeated_failures_of_the_connection() {
        let endpoint: Endpoint = "127.0.0.1:1".parse().unwrap();
        let pool = pool_with(&endpoint);
        let lost = highwater_wire::failure::classify(&Status::unavailable("reset"));
        pool.failed(&endpoint, &lost);
        assert!(has(&pool, &endpoint), "one failure may be the peer's restart");
        pool.succeeded(&endpoint);
        pool.failed(&endpoint, &lost);
        assert!(has(&pool, &endpoint), "a success in between starts the count again");
        pool.failed(&endpoint, &lost);
        assert!(!has(&pool, &endpoint));
    }

    #[tokio::test]
    async fn an_answer_of_the_program_says_that_the_connection_is_good() {
        let endpoint: Endpoint = "127.0.0.1:1".parse().unwrap();
        let pool = pool_with(&endpoint);
        let refused = highwater_wire::failure::classify(&DecodeErrorStatus::status());
        for _ in 0..10 {
            pool.failed(&endpoint, &refused);
        }
        assert!(has(&pool, &endpoint));
    }

    struct DecodeErrorStatus;

    impl DecodeErrorStatus {
        fn status() -> Status {
            highwater_wire::DecodeError::invalid("topic", "is missing").into()
        }
    }

    #[tokio::test]
    async fn a_pool_does_not_grow_without_bound() {
        let pool = ChannelPool::new(TransportOptions::default());
        for port in 1..=2000 {
            pool.get(&format!("127.0.0.1:{port}").parse().unwrap()).unwrap();
        }
        assert!(pool.lock().len() <= MAX_CHANNELS);
    }
}
