//! The bounded way from the runtime to the thread that owns a database. Nothing here knows SQLite.
//!
//! What must hold: at most [`ROOM`] requests wait; a caller waits for room without blocking a worker; a request whose
//! thread died is answered, because its reply channel closes.

use std::sync::Arc;
use std::sync::mpsc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::CoordinationError;

/// How many requests may wait for one database. Enough for a start with a thousand partitions to commit in big batches.
const ROOM: usize = 1024;

/// How many requests are taken together, so that they share one transaction and one flush. Bounds how long a transaction
/// holds the lock: some milliseconds.
const BATCH_MAX: usize = 128;

/// The sending side.
#[derive(Debug)]
pub(super) struct Queue<R> {
    sender: mpsc::Sender<Queued<R>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Queued<R> {
    request: R,
    _room: OwnedSemaphorePermit,
}

/// The receiving side, owned by the thread.
#[derive(Debug)]
pub(super) struct Requests<R> {
    receiver: mpsc::Receiver<Queued<R>>,
}

/// A queue and its receiving side.
pub(super) fn channel<R>() -> (Queue<R>, Requests<R>) {
    let (sender, receiver) = mpsc::channel();
    (Queue { sender, room: Arc::new(Semaphore::new(ROOM)) }, Requests { receiver })
}

impl<R> Queue<R> {
    /// Sends the request that `make` builds around a reply channel, and waits for the reply. A thread that ended without
    /// one leaves the outcome open.
    pub(super) async fn call<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, CoordinationError>>) -> R,
    ) -> Result<T, CoordinationError> {
        let ended = || CoordinationError::Unavailable("the store's thread has ended".to_owned());
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| ended())?;
        let (reply, answer) = oneshot::channel();
        self.sender.send(Queued { request: make(reply), _room: room }).map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| {
            Err(CoordinationError::Unknown("the store's thread ended in the middle of it".to_owned()))
        })
    }

    /// Sends a request that nobody waits for, unless there is no room.
    pub(super) fn offer(&self, request: R) {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            // A thread that has ended wants no more.
            let _ = self.sender.send(Queued { request, _room: room });
        }
    }
}

impl<R> Requests<R> {
    /// Waits for requests, at most `patience` if there is one; empty when none came in time. `None` when every sender is
    /// gone and nothing waits.
    pub(super) fn next_batch(&self, patience: Option<std::time::Duration>) -> Option<Vec<R>> {
        let first = match patience {
            None => self.receiver.recv().ok()?,
            Some(patience) => match self.receiver.recv_timeout(patience) {
                Ok(first) => first,
                Err(mpsc::RecvTimeoutError::Timeout) => return Some(Vec::new()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            },
        };
        let mut batch = vec![first.request];
        batch.extend(self.receiver.try_iter().take(BATCH_MAX - 1).map(|queued| queued.request));
        Some(batch)
    }

    /// What waits right now: an outage answers all of it at once, rather than each after a wait of its own.
    pub(super) fn drain(&self) -> Vec<R> {
        self.receiver.try_iter().take(ROOM).map(|queued| queued.request).collect()
    }
}
