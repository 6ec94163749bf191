//! A TCP proxy between two programs, for what networks do to connections: freeze one without a word, cut, refuse,
//! delay, slow down, flip a byte. It can treat those who connect differently, by who they are.
//!
//! What must hold: untouched, bytes pass in order and unchanged, and the end of one side's sending reaches the other.
//! Deliberately absent: lost and reordered packets, which TCP hides.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::connection::{CHUNK_BYTES, Fate, Lane, carry, reset};
use crate::ports;

mod connection;

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From who connected to who listens.
    ToServer,
    /// From who listens to who connected.
    ToClient,
}

/// Who connects, where a proxy tells them apart; see [`Proxy::start_telling`].
pub type Source = i32;

/// The source of every connection to a proxy that does not tell them apart.
const ANYBODY: Source = 0;

/// What becomes of the connections of a source, of open ones and of new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// They flow.
    Open,
    /// Nothing passes, and no end is announced, as if every packet were lost. What was on its way passes later.
    Silent,
    /// They get a reset.
    Refused,
}

struct Shared {
    target: Mutex<SocketAddr>,
    who: Box<dyn Fn(SocketAddr) -> Source + Send + Sync>,
    /// Of whom something else than [`Passage::Open`] is known.
    passages: Mutex<BTreeMap<Source, Passage>>,
    refuses: AtomicBool,
    delay_us: AtomicU64,
    /// Bytes a second per direction of a connection; 0: no limit.
    rate: AtomicU64,
    to_server: Lane,
    to_client: Lane,
    accepted: AtomicU64,
    connections: Mutex<Vec<(Source, watch::Sender<Fate>)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("target", &self.target)
            .field("passages", &self.passages)
            .finish_non_exhaustive()
    }
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
        Self::start_telling(target, |_| ANYBODY).await
    }

    /// The same; `who` tells by its address who connects.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start_telling(
        target: SocketAddr,
        who: impl Fn(SocketAddr) -> Source + Send + Sync + 'static,
    ) -> Self {
        let address = ports::loopback();
        let listener = TcpListener::bind(address).await.expect("the port is ours");
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            who: Box::new(who),
            passages: Mutex::default(),
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

    /// Stops listening, as the port of a program that does not run; open connections stay.
    pub async fn close_port(&mut self) {
        self.accept.abort();
        // It ends by the abort, or has ended.
        let _ = (&mut self.accept).await;
    }

    /// Listens again after [`Proxy::close_port`].
    ///
    /// # Panics
    /// When it cannot.
    pub async fn open_port(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is ours");
        self.accept = tokio::spawn(accept(listener, Arc::clone(&self.shared)));
    }

    /// Decides what becomes of everybody's connections, from now on.
    pub fn set_passage(&self, passage: Passage) {
        self.set_passage_of(ANYBODY, passage);
    }

    /// Decides what becomes of the connections of one source, from now on.
    pub fn set_passage_of(&self, source: Source, passage: Passage) {
        let before = lock(&self.shared.passages).insert(source, passage).unwrap_or(Passage::Open);
        if before == passage {
            return;
        }
        let fate = match passage {
            Passage::Open => Fate::Flows,
            Passage::Silent => Fate::Frozen,
            Passage::Refused => Fate::Cut,
        };
        self.decide(|of| (of == source).then_some(fate));
    }

    /// Freezes every open connection: no byte passes, no end is announced. New ones flow.
    pub fn freeze_open(&self) {
        self.decide(|_| Some(Fate::Frozen));
    }

    /// Delays what the server sends on every open connection by this much, without slowing it down. New ones flow.
    pub fn answer_late_on_open(&self, delay: Duration) {
        self.decide(|_| Some(Fate::AnswersLate(delay)));
    }

    /// Lets frozen connections flow again, with what was on its way.
    pub fn thaw(&self) {
        self.decide(|_| Some(Fate::Flows));
    }

    /// Resets every open connection. New ones flow.
    pub fn cut_open(&self) {
        self.decide(|_| Some(Fate::Cut));
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
        lock(&self.shared.connections).iter().filter(|(_, fate)| !fate.is_closed()).count()
    }

    /// How many bytes have passed in a direction.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.lane(direction).bytes.load(Ordering::SeqCst)
    }

    fn lane(&self, direction: Direction) -> &Lane {
        self.shared.lane(direction)
    }

    fn decide(&self, fate_of: impl Fn(Source) -> Option<Fate>) {
        let mut connections = lock(&self.shared.connections);
        connections.retain(|(_, connection)| !connection.is_closed());
        for (source, connection) in connections.iter() {
            if let Some(fate) = fate_of(*source) {
                connection.send_replace(fate);
            }
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
        let Ok((client, from)) = listener.accept().await else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let source = (shared.who)(from);
        // Held until the connection is listed: a decision meets it as a new one or as an open one.
        let passages = lock(&shared.passages);
        let passage = passages.get(&source).copied().unwrap_or(Passage::Open);
        if shared.refuses.load(Ordering::SeqCst) || passage == Passage::Refused {
            reset(&client);
            continue;
        }
        let fate = watch::Sender::new(if passage == Passage::Silent { Fate::Frozen } else { Fate::Flows });
        let watched = fate.subscribe();
        lock(&shared.connections).push((source, fate));
        drop(passages);
        tokio::spawn(carry(client, watched, Arc::clone(&shared)));
    }
}

#[cfg(test)]
#[path = "proxy_test.rs"]
mod tests;
