//! Calls of etcd: bounded in time, on one end point until it fails, then on the next.
//!
//! What must hold:
//! - A call that may have been made is told apart from one that was not: only the second is repeated, and only the second
//!   is [`CoordinationError::Unavailable`] (design.md 6.4).
//! - An answer that is older than what was seen before the call is none: the store lost what it had acknowledged.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Txn, TxnOpResponse};
use highwater_types::Endpoint;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::CoordinationError;

/// How many calls may be on their way at once; etcd commits those that arrive together with one flush.
const CALLS_MAX: usize = 256;

/// The least tries of a call that changed nothing: a connection that broke while idle is found out by the first.
const TRIES_MIN: usize = 2;

/// What etcd answers, word by word, when it took no part of a request.
const REFUSALS: [&str; 4] = [
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: request is too large",
    "etcdserver: too many operations in txn request",
    "etcdserver: too many requests",
];

/// What a member answers that cannot reach the others; it looked before it did anything.
const NO_LEADER: &str = "etcdserver: no leader";

/// The way to etcd.
#[derive(Debug)]
pub(super) struct Connection {
    endpoints: Vec<Endpoint>,
    call_timeout: Duration,
    current: Mutex<Current>,
    room: Semaphore,
    /// The highest revision that any answer carried.
    seen: AtomicI64,
}

/// A client of one end point.
#[derive(Default)]
struct Current {
    /// How often there was another one before.
    number: usize,
    client: Option<Client>,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A client, with what names it when it fails.
pub(super) struct Borrowed {
    pub(super) client: Client,
    pub(super) endpoint: Endpoint,
    number: usize,
}

/// Whether a call may be made twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes nothing.
    Reads,
    /// It changes something.
    Writes,
}

/// What etcd answered to a transaction.
#[derive(Debug)]
pub(super) struct Answer {
    /// The revision of the store after it.
    pub(super) revision: i64,
    /// Whether its conditions held.
    pub(super) held: bool,
    /// The answers to its operations.
    pub(super) operations: Vec<TxnOpResponse>,
}

struct Fault {
    text: String,
    changed_nothing: bool,
    /// etcd itself said no; another end point would too.
    refused: bool,
}

impl Connection {
    /// Connects to nothing yet. Without an end point every call fails.
    pub(super) fn new(endpoints: &[Endpoint], call_timeout: Duration) -> Self {
        Self {
            endpoints: endpoints.to_vec(),
            call_timeout,
            current: Mutex::default(),
            room: Semaphore::new(CALLS_MAX),
            seen: AtomicI64::new(0),
        }
    }

    pub(super) const fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// The highest revision that any answer carried.
    pub(super) fn seen(&self) -> i64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// Makes a transaction; conditions and operations as etcd has them.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when nothing was changed, [`CoordinationError::Unknown`] for a write that may
    /// have been made.
    pub(super) async fn call(&self, transaction: &Txn, effect: Effect) -> Result<Answer, CoordinationError> {
        let full = || CoordinationError::Unavailable(format!("{CALLS_MAX} calls of etcd wait already"));
        let begin_until = Instant::now() + self.call_timeout;
        let _room = timeout_at(begin_until, self.room.acquire()).await.map_err(|_| full())?;
        for tries_left in (0..self.endpoints.len().max(TRIES_MIN)).rev() {
            let borrowed = self.client().await?;
            let seen = self.seen();
            let fault = match self.call_once(&borrowed, transaction).await {
                Ok(answer) => return self.accept(answer, seen, effect),
                Err(fault) => fault,
            };
            let text = format!("etcd at {}: {}", borrowed.endpoint, fault.text);
            if !fault.refused {
                self.leave(&borrowed).await;
            }
            if effect == Effect::Writes && !fault.changed_nothing {
                return Err(CoordinationError::Unknown(text));
            }
            if tries_left == 0 || fault.refused {
                return Err(CoordinationError::Unavailable(text));
            }
        }
        Err(CoordinationError::Unavailable("no end point of etcd is given".to_owned()))
    }

    async fn call_once(&self, borrowed: &Borrowed, transaction: &Txn) -> Result<Answer, Fault> {
        let mut client = borrowed.client.kv_client();
        let answered = timeout(self.call_timeout, client.txn(transaction.clone())).await;
        let answer = answered
            .map_err(|_| Fault {
                text: format!("no answer within {:?}", self.call_timeout),
                changed_nothing: false,
                refused: false,
            })?
            .map_err(|error| Fault::from(&error))?;
        Ok(Answer {
            revision: answer.header().map_or(0, |header| header.revision()),
            held: answer.succeeded(),
            operations: answer.op_responses(),
        })
    }

    /// `seen` was the highest revision before the call.
    fn accept(&self, answer: Answer, seen: i64, effect: Effect) -> Result<Answer, CoordinationError> {
        if answer.revision >= seen {
            self.seen.fetch_max(answer.revision, Ordering::SeqCst);
            return Ok(answer);
        }
        let lost = format!(
            "etcd is at revision {}, and was at {seen} before: it came back empty or as an older copy. Restore what it \
             had: a program that is restarted works with it only where its node is known there",
            answer.revision
        );
        if effect == Effect::Writes && answer.held {
            return Err(CoordinationError::Unknown(lost));
        }
        Err(CoordinationError::Unavailable(lost))
    }

    /// The client of the end point that is in use. It connects at its first call.
    pub(super) async fn client(&self) -> Result<Borrowed, CoordinationError> {
        let mut current = self.current.lock().await;
        let number = current.number;
        let endpoint = number.checked_rem(self.endpoints.len()).and_then(|at| self.endpoints.get(at));
        let endpoint = endpoint
            .ok_or_else(|| CoordinationError::Unavailable("no end point of etcd is given".to_owned()))?
            .clone();
        let client = match &current.client {
            Some(client) => client.clone(),
            None => {
                let options = ConnectOptions::new()
                    .with_connect_timeout(self.call_timeout / 2)
                    .with_require_leader(true);
                let made = Client::connect([format!("http://{endpoint}")], Some(options)).await;
                let client = made.map_err(|error| {
                    CoordinationError::Unavailable(format!("etcd at {endpoint}: {error}"))
                })?;
                current.client.insert(client).clone()
            }
        };
        Ok(Borrowed { client, endpoint, number })
    }

    /// Has the next call go to the next end point, over a new connection, unless somebody was faster.
    pub(super) async fn leave(&self, borrowed: &Borrowed) {
        let mut current = self.current.lock().await;
        if current.number == borrowed.number {
            *current = Current { number: borrowed.number.wrapping_add(1), client: None };
        }
    }
}

impl From<&etcd_client::Error> for Fault {
    fn from(error: &etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = error else {
            return Self { text: error.to_string(), changed_nothing: false, refused: false };
        };
        let refused = REFUSALS.iter().any(|refusal| status.message().starts_with(refusal));
        let text = match status.message() {
            "" => error.to_string(),
            message => message.to_owned(),
        };
        let changed_nothing = refused || text == NO_LEADER || never_connected(status);
        Self { text, changed_nothing, refused }
    }
}

/// Whether there was nobody to connect to. Other failures to connect look like those of a connection that had been made.
fn never_connected(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
