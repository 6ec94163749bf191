//! The local hand-over of a log from a node's follower-agent to its leader-svc (design.md 6.6: lock first).
//!
//! follower-agent listens on a unix socket in the data directory; leader-svc asks for one partition per connection. The
//! connection is the loan: as long as it lives the agent leaves the log alone, and when it ends, for whatever reason, the
//! agent looks at the partition's record again.
//!
//! ```text
//!   leader-svc                                  follower-agent
//!     connect ── partition, record's version ──▶  fetches no more; queued work runs; log closed clean; lock freed
//!             ◀─────────── released ────────────
//!     lock, recover, compare-and-swap
//!     close ───────────────────────────────────▶  follows again, unless the record names this node
//! ```
//! What must hold: a request and an answer have a fixed size; connections, their reads and the loan itself are bounded; only
//! the owner of the data directory can connect. The partition's lock, not this dialogue, is what keeps two programs from one
//! log: a hand-over that goes wrong costs time, nothing else.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use highwater_log::AGENT_SOCKET;
use highwater_types::{PartitionEpoch, PartitionIndex, TopicId, TopicIdPartition};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Its name before it has its permissions.
const NEW_SOCKET: &str = "agent.sock.new";

/// Loans at the same time; more wait to be accepted.
const LOANS_MAX: usize = 128;

/// How long a connection may take to say what it wants.
const REQUEST_PATIENCE: Duration = Duration::from_secs(1);

/// How long a loan lasts at most, from its request on. A leader-svc that still holds the log has its lock.
const LOAN_MAX: Duration = Duration::from_secs(60);

/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// First byte of a request: the version of this dialogue.
const VERSION: u8 = 1;
const REQUEST_BYTES: usize = 1 + 16 + 4 + 8;
const RELEASED: u8 = 1;
const OVERTAKEN: u8 = 2;

/// What the agent says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The log is closed and its lock free.
    Released,
    /// A newer record of the partition is known than the one with which leader-svc wants to stand; the log is kept.
    Overtaken,
}

/// A request for a log, as the agent's manager gets it.
#[derive(Debug)]
pub struct Wanted {
    /// The partition.
    pub partition: TopicIdPartition,
    /// The version of the record with which leader-svc wants to stand.
    pub seen: PartitionEpoch,
    /// Where the answer goes. Dropped without one: the request is refused.
    pub answer: oneshot::Sender<Answer>,
    /// Cancelled when the loan is over.
    pub over: CancellationToken,
}

/// The agent's side.
#[derive(Debug)]
pub struct HandoverListener {
    listener: UnixListener,
    path: PathBuf,
}

impl HandoverListener {
    /// Listens in `data_dir`, on which this must be the only follower-agent. *Blocks*, briefly.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let (path, new) = (data_dir.join(AGENT_SOCKET), data_dir.join(NEW_SOCKET));
        // Of an earlier process.
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let directory = File::open(data_dir)?;
        let listener = UnixListener::bind(short_path(&directory, NEW_SOCKET))?;
        // Before it has its name: nobody else connects in between.
        fs::set_permissions(&new, Permissions::from_mode(0o600))?;
        fs::rename(&new, &path)?;
        Ok(Self { listener, path })
    }

    /// Hands requests to `wanted` until `stop`; loans end with it.
    pub async fn run(self, wanted: mpsc::Sender<Wanted>, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(LOANS_MAX));
        let mut loans = JoinSet::new();
        loop {
            let accept = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&room).acquire_owned().await.ok();
                (permit, self.listener.accept().await)
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = loans.join_next() => {}
                (permit, accepted) = accept => match accepted {
                    Ok((connection, _)) => {
                        let wanted = wanted.clone();
                        loans.spawn(async move {
                            let _permit = permit;
                            if let Err(error) = lend(connection, wanted).await {
                                tracing::debug!(%error, "a hand-over ended early");
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a local connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }
}

impl Drop for HandoverListener {
    fn drop(&mut self) {
        // It would only refuse connections from now on.
        let _gone = fs::remove_file(&self.path);
    }
}

/// One connection, from its request to the end of the loan.
async fn lend(mut connection: UnixStream, wanted: mpsc::Sender<Wanted>) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    timeout(REQUEST_PATIENCE, connection.read_exact(&mut request)).await??;
    let (partition, seen) =
        decode(&request).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a request"))?;
    let over = CancellationToken::new();
    let _ends_with_this = over.clone().drop_guard();
    let (answer, answered) = oneshot::channel();
    let loan = async {
        if wanted.send(Wanted { partition, seen, answer, over }).await.is_err() {
            return Ok(());
        }
        let Ok(answer) = answered.await else { return Ok(()) };
        connection.write_all(&[answer_byte(answer)]).await?;
        // Nothing more is said: this ends when leader-svc closes, or is gone.
        connection.read(&mut [0]).await.map(drop)
    };
    timeout(LOAN_MAX, loan).await?
}

/// A log that the agent let go; it leaves it alone until this is dropped, or a bound has passed.
#[derive(Debug)]
pub struct Borrowed {
    _connection: UnixStream,
}

/// What became of a request.
#[derive(Debug)]
pub enum Asked {
    /// The agent let the log go.
    Lent(Borrowed),
    /// It knows a newer record: whoever stands with this one loses.
    Overtaken,
    /// No agent runs, or it is stopping.
    NoAgent,
}

/// leader-svc's side: asks the node's agent for a log, for a stand with the record of version `seen`. Bound the wait.
///
/// # Errors
/// What the system says.
pub async fn ask_for(
    data_dir: &Path,
    partition: TopicIdPartition,
    seen: PartitionEpoch,
) -> io::Result<Asked> {
    let directory = File::open(data_dir)?;
    let mut connection = match UnixStream::connect(short_path(&directory, AGENT_SOCKET)).await {
        Ok(connection) => connection,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(Asked::NoAgent);
        }
        Err(error) => return Err(error),
    };
    connection.write_all(&encode(partition, seen)).await?;
    let mut answer = [0];
    if connection.read(&mut answer).await? == 0 {
        return Ok(Asked::NoAgent);
    }
    match answer {
        [RELEASED] => Ok(Asked::Lent(Borrowed { _connection: connection })),
        [OVERTAKEN] => Ok(Asked::Overtaken),
        [other] => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the agent answers {other}"))),
    }
}

/// A path to a file of an open directory that is short enough for a socket's address, however deep the directory lies.
fn short_path(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

const fn answer_byte(answer: Answer) -> u8 {
    match answer {
        Answer::Released => RELEASED,
        Answer::Overtaken => OVERTAKEN,
    }
}

fn encode(partition: TopicIdPartition, seen: PartitionEpoch) -> Vec<u8> {
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.push(VERSION);
    request.extend_from_slice(partition.topic_id.uuid().as_bytes());
    request.extend_from_slice(&partition.partition.get().to_be_bytes());
    request.extend_from_slice(&seen.get().to_be_bytes());
    debug_assert_eq!(request.len(), REQUEST_BYTES, "requests have a fixed size");
    request
}

fn decode(request: &[u8; REQUEST_BYTES]) -> Option<(TopicIdPartition, PartitionEpoch)> {
    let (version, rest) = request.split_first()?;
    let (topic, rest) = rest.split_first_chunk::<16>()?;
    let (index, rest) = rest.split_first_chunk::<4>()?;
    let (seen, _) = rest.split_first_chunk::<8>()?;
    if *version != VERSION {
        return None;
    }
    let topic = TopicId::new(Uuid::from_bytes(*topic))?;
    let index = PartitionIndex::new(i32::from_be_bytes(*index))?;
    Some((TopicIdPartition::new(topic, index), PartitionEpoch::new(u64::from_be_bytes(*seen))))
}

#[cfg(test)]
#[path = "handover_test.rs"]
mod tests;
