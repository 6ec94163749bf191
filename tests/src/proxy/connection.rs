//! One connection through a proxy: bytes in both directions, until either side ends or its fate does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Direction, Shared, lock};

/// The most bytes read at once.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks on their way per direction of a connection: 64 MiB, more than a delay of 100 ms needs at any speed here.
const CHUNKS_ON_THE_WAY: usize = 1024;

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
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
pub(super) struct Lane {
    /// Smallest chunk in which the next byte is flipped; 0: none is.
    pub(super) flip_in: AtomicUsize,
    pub(super) flipped: AtomicU64,
    pub(super) bytes: AtomicU64,
}
/// Makes the kernel answer with a reset, instead of an orderly end, once the socket is dropped.
pub(super) fn reset(stream: &TcpStream) {
    // On a socket that is already gone there is nothing to reset.
    let _ = stream.set_zero_linger();
}

/// One connection, until both directions have ended or it is cut.
pub(super) async fn carry(mut client: TcpStream, mut fate: watch::Receiver<Fate>, shared: Arc<Shared>) {
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
