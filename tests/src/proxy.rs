//! A TCP proxy between two programs, for what networks do to connections: freeze one without a word, cut, refuse,
//! delay, slow down, flip a byte.
//!
//! What must hold: untouched, bytes pass in order and unchanged, and the end of one side's sending reaches the other.
//! Deliberately absent: lost and reordered packets, which TCP hides.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::ports;

/// The most bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks on their way per direction of a connection: 64 MiB, more than a delay of 100 ms needs at any speed here.
const CHUNKS_ON_THE_WAY: usize = 1024;

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From who connected to who listens.
    ToServer,
    /// From who listens to who connected.
    ToClient,
}

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Flows,
    /// What the server sends arrives so much later, without being slowed down.
    AnswersLate(Duration),
    /// Nothing is read or written any more, and no end is announced.
    Frozen,
    /// Both sides get a reset.
    Cut,
}

/// Settings of one direction.
#[derive(Debug, Default)]
struct Lane {
    /// Smallest chunk in which the next byte is flipped; 0: none is.
    flip_in: AtomicUsize,
    flipped: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    refuses: AtomicBool,
    delay_us: AtomicU64,
    /// Bytes a second per direction of a connection; 0: no limit.
    rate: AtomicU64,
    to_server: Lane,
    to_client: Lane,
    accepted: AtomicU64,
    connections: Mutex<Vec<watch::Sender<Fate>>>,
}

/// A listening proxy. It ends, and cuts its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `target` on a loopback address of its own.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start(target: SocketAddr) -> Self {
        let address = ports::loopback();
        let listener = TcpListener::bind(address).await.expect("the port is ours");
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            refuses: AtomicBool::new(false),
            delay_us: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            to_server: Lane::default(),
            to_client: Lane::default(),
            accepted: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accept }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to another address.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Freezes every open connection: no byte passes, no end is announced. New ones flow.
    pub fn freeze_open(&self) {
        self.decide(Fate::Frozen);
    }

    /// Delays what the server sends on every open connection by this much, without slowing it down. New ones flow.
    pub fn answer_late_on_open(&self, delay: Duration) {
        self.decide(Fate::AnswersLate(delay));
    }

    /// Lets frozen connections flow again, with what was on its way.
    pub fn thaw(&self) {
        self.decide(Fate::Flows);
    }

    /// Resets every open connection. New ones flow.
    pub fn cut_open(&self) {
        self.decide(Fate::Cut);
    }

    /// Whether new connections are reset at once.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Delays every byte by this much in each direction, without slowing the flow down.
    ///
    /// # Panics
    /// When the delay is longer than any test.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("delays are short");
        self.shared.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Lets at most this many bytes a second pass, per connection and direction. `None`: no limit.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.shared.rate.store(bytes_per_second.unwrap_or(0), Ordering::SeqCst);
    }

    /// Inverts the middle byte of the next chunk of at least `chunk_bytes` (at least 1, at most 64 KiB) in a direction,
    /// once.
    pub fn flip_once(&self, direction: Direction, chunk_bytes: usize) {
        self.lane(direction).flip_in.store(chunk_bytes.clamp(1, CHUNK_BYTES), Ordering::SeqCst);
    }

    /// How many bytes were flipped so far.
    #[must_use]
    pub fn flipped(&self, direction: Direction) -> u64 {
        self.lane(direction).flipped.load(Ordering::SeqCst)
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open, frozen ones included.
    #[must_use]
    pub fn open(&self) -> usize {
        lock(&self.shared.connections).iter().filter(|fate| !fate.is_closed()).count()
    }

    /// How many bytes have passed in a direction.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.lane(direction).bytes.load(Ordering::SeqCst)
    }

    fn lane(&self, direction: Direction) -> &Lane {
        self.shared.lane(direction)
    }

    fn decide(&self, fate: Fate) {
        let mut connections = lock(&self.shared.connections);
        connections.retain(|connection| !connection.is_closed());
        for connection in connections.iter() {
            connection.send_replace(fate);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept.abort();
        self.cut_open();
    }
}

impl Shared {
    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // An error here is one connection's: it ended before it was accepted.
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        if shared.refuses.load(Ordering::SeqCst) {
            reset(&client);
            continue;
        }
        let fate = watch::Sender::new(Fate::Flows);
        let watched = fate.subscribe();
        lock(&shared.connections).push(fate);
        tokio::spawn(carry(client, watched, Arc::clone(&shared)));
    }
}

/// Makes the kernel answer with a reset, instead of an orderly end, once the socket is dropped.
fn reset(stream: &TcpStream) {
    // On a socket that is already gone there is nothing to reset.
    let _ = stream.set_zero_linger();
}

/// One connection, until both directions have ended or it is cut.
async fn carry(mut client: TcpStream, mut fate: watch::Receiver<Fate>, shared: Arc<Shared>) {
    let target = *lock(&shared.target);
    let Ok(mut server) = TcpStream::connect(target).await else {
        reset(&client);
        return;
    };
    // Small messages are not held back; a socket that has ended meanwhile does not care.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let there = pump(from_client, to_server, Direction::ToServer, fate.clone(), &shared);
    let back = pump(from_server, to_client, Direction::ToClient, fate.clone(), &shared);
    let cut = tokio::select! {
        ((), ()) = async { tokio::join!(there, back) } => false,
        _ = fate.wait_for(|fate| *fate == Fate::Cut) => true,
    };
    if cut {
        reset(&client);
        reset(&server);
    }
}

/// A chunk on its way, and when it is due.
type Chunk = (Instant, Vec<u8>);

/// One direction of a connection, until who sends has finished.
async fn pump(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    fate: watch::Receiver<Fate>,
    shared: &Shared,
) {
    let (chunks, arriving) = mpsc::channel(CHUNKS_ON_THE_WAY);
    tokio::join!(
        receive(from, chunks, direction, fate.clone(), shared),
        deliver(to, arriving, shared.lane(direction), fate, shared),
    );
}

async fn receive(
    mut from: ReadHalf<'_>,
    chunks: mpsc::Sender<Chunk>,
    direction: Direction,
    mut fate: watch::Receiver<Fate>,
    shared: &Shared,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        flowing(&mut fate).await;
        let read = from.read(&mut buffer).await.unwrap_or(0);
        flowing(&mut fate).await;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return };
        let mut bytes = bytes.to_vec();
        shared.lane(direction).flip_if_asked(&mut bytes);
        let late = match *fate.borrow() {
            Fate::AnswersLate(late) if direction == Direction::ToClient => late,
            Fate::AnswersLate(_) | Fate::Flows | Fate::Frozen | Fate::Cut => Duration::ZERO,
        };
        let delay = late + Duration::from_micros(shared.delay_us.load(Ordering::SeqCst));
        if chunks.send((Instant::now() + delay, bytes)).await.is_err() {
            return;
        }
    }
}

async fn deliver(
    mut to: WriteHalf<'_>,
    mut arriving: mpsc::Receiver<Chunk>,
    lane: &Lane,
    mut fate: watch::Receiver<Fate>,
    shared: &Shared,
) {
    while let Some((due, bytes)) = arriving.recv().await {
        sleep_until(due).await;
        flowing(&mut fate).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        let sent = bytes.len() as u64;
        lane.bytes.fetch_add(sent, Ordering::SeqCst);
        if let Some(micros) = (sent * 1_000_000).checked_div(shared.rate.load(Ordering::SeqCst)) {
            sleep(Duration::from_micros(micros)).await;
        }
    }
    flowing(&mut fate).await;
    // The other side may be gone already; then it needs no end.
    let _ = to.shutdown().await;
}

/// Waits while the connection is frozen.
async fn flowing(fate: &mut watch::Receiver<Fate>) {
    // An error means that the proxy is gone, which cuts the connection anyway.
    let _ = fate.wait_for(|fate| *fate != Fate::Frozen).await;
}

impl Lane {
    fn flip_if_asked(&self, bytes: &mut [u8]) {
        let smallest = self.flip_in.load(Ordering::SeqCst);
        if smallest == 0 || bytes.len() < smallest {
            return;
        }
        // Several connections may get here at once; only one of them flips.
        if self.flip_in.compare_exchange(smallest, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte = !*byte;
                self.flipped.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
#[path = "proxy_test.rs"]
mod tests;
