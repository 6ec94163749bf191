//! A mailbox whose jobs run in order on the blocking pool: how disk work of one partition keeps its order without a
//! thread or a task of its own.
//!
//! What must hold:
//!
//! - Jobs run in the order in which they were accepted, never two batches at once.
//! - At most `capacity` jobs wait or run; whoever brings one more waits, without blocking a worker of the runtime.
//! - What gathered while a batch ran is the next batch, so that the runner can merge it into one write.
//! - A panic ends this queue and nothing else: after a write that went wrong no later one may run (KAFKA-10778). Jobs that
//!   had not run are dropped, and with them their reply channels.
//! - An idle queue holds no thread and no timer.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

/// How many batches run before the queue goes to the end of the pool's line, so that a few busy partitions cannot keep
/// every thread of the pool.
const BATCHES_PER_TURN: usize = 16;

/// Why a job was not accepted. It is given back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError<J> {
    /// `capacity` jobs wait or run.
    #[error("the queue is full")]
    Full(J),
    /// The queue was closed, or a job panicked.
    #[error("the queue is closed")]
    Closed(J),
}

impl<J> PushError<J> {
    /// The job.
    pub fn into_job(self) -> J {
        match self {
            Self::Full(job) | Self::Closed(job) => job,
        }
    }
}

impl<J> fmt::Debug for PushError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full",
            Self::Closed(_) => "Closed",
        })
    }
}

/// The queue. Dropping it lets what was accepted run.
pub struct SerialQueue<J> {
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    name: String,
    batch_max: usize,
    runtime: Handle,
    room: Arc<Semaphore>,
    mailbox: Mutex<Mailbox<J>>,
    /// Only ever locked by the one turn that runs.
    runner: Mutex<Runner<J>>,
    /// Whether the queue is closed and nothing runs or waits.
    ended: watch::Sender<bool>,
}

type Runner<J> = Box<dyn FnMut(Vec<J>) + Send>;

struct Mailbox<J> {
    jobs: VecDeque<(J, OwnedSemaphorePermit)>,
    /// Whether a turn is scheduled or runs.
    running: bool,
    closed: bool,
    panicked: bool,
}

impl<J: Send + 'static> SerialQueue<J> {
    /// A queue for at most `capacity` jobs, which hands them to `runner` in batches of at most `batch_max`. `name` is for
    /// the report of a panic.
    ///
    /// # Panics
    /// Outside a tokio runtime, or when `capacity` or `batch_max` is 0.
    pub fn new(
        name: impl Into<String>,
        capacity: usize,
        batch_max: usize,
        runner: impl FnMut(Vec<J>) + Send + 'static,
    ) -> Self {
        assert!(capacity > 0 && batch_max > 0, "a queue has room for a job, and a batch holds one");
        Self {
            shared: Arc::new(Shared {
                name: name.into(),
                batch_max,
                runtime: Handle::current(),
                room: Arc::new(Semaphore::new(capacity)),
                mailbox: Mutex::new(Mailbox {
                    jobs: VecDeque::new(),
                    running: false,
                    closed: false,
                    panicked: false,
                }),
                runner: Mutex::new(Box::new(runner)),
                ended: watch::Sender::new(false),
            }),
        }
    }

    /// Adds a job, once there is room. Dropping the future before it is done adds nothing.
    ///
    /// # Errors
    /// [`PushError::Closed`].
    pub async fn push(&self, job: J) -> Result<(), PushError<J>> {
        match Arc::clone(&self.shared.room).acquire_owned().await {
            Ok(room) => self.shared.accept(job, room),
            Err(_) => Err(PushError::Closed(job)),
        }
    }

    /// Adds a job if there is room now.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn try_push(&self, job: J) -> Result<(), PushError<J>> {
        match Arc::clone(&self.shared.room).try_acquire_owned() {
            Ok(room) => self.shared.accept(job, room),
            Err(TryAcquireError::NoPermits) => Err(PushError::Full(job)),
            Err(TryAcquireError::Closed) => Err(PushError::Closed(job)),
        }
    }

    /// Accepts nothing more, and waits until everything that was accepted has run. Bound the wait: a job can hang on a
    /// disk. The queue is closed from the first poll on, whether or not the wait is finished.
    pub async fn close(&self) {
        self.shared.close();
        let mut ended = self.shared.ended.subscribe();
        // An error would mean that the sender is gone, but `self` holds it.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// For people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether a job panicked; the queue is closed then.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.shared.mailbox().panicked
    }
}

impl<J> fmt::Debug for SerialQueue<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SerialQueue").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl<J> Shared<J> {
    /// A panic of a job never happens under this lock, so a poisoned one is still consistent.
    fn mailbox(&self) -> MutexGuard<'_, Mailbox<J>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.room.close();
        let mut mailbox = self.mailbox();
        mailbox.closed = true;
        if !mailbox.running {
            self.ended.send_replace(true);
        }
    }
}

impl<J: Send + 'static> Shared<J> {
    fn accept(self: &Arc<Self>, job: J, room: OwnedSemaphorePermit) -> Result<(), PushError<J>> {
        let mut mailbox = self.mailbox();
        if mailbox.closed {
            return Err(PushError::Closed(job));
        }
        mailbox.jobs.push_back((job, room));
        if !mailbox.running {
            mailbox.running = true;
            self.schedule();
        }
        Ok(())
    }

    fn schedule(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        self.runtime.spawn_blocking(move || shared.turn());
    }

    /// Runs batches until the mailbox is empty, or it is the others' turn.
    fn turn(self: Arc<Self>) {
        for _ in 0..BATCHES_PER_TURN {
            let Some((jobs, room)) = self.take_batch() else { return };
            let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
            let outcome = catch_unwind(AssertUnwindSafe(|| runner(jobs)));
            drop(runner);
            if let Err(panic) = outcome {
                self.fail(&*panic);
                return;
            }
            // Only now: what runs takes room too, so that a slow disk holds back those who bring more.
            drop(room);
        }
        self.schedule();
    }

    /// The next batch, or nothing: then the turn is over.
    fn take_batch(&self) -> Option<(Vec<J>, Vec<OwnedSemaphorePermit>)> {
        let mut mailbox = self.mailbox();
        debug_assert!(mailbox.running, "only a scheduled turn takes jobs");
        if mailbox.jobs.is_empty() {
            mailbox.running = false;
            if mailbox.closed {
                self.ended.send_replace(true);
            }
            return None;
        }
        let count = mailbox.jobs.len().min(self.batch_max);
        Some(mailbox.jobs.drain(..count).unzip())
    }

    fn fail(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(queue = %self.name, panic = %text, "a job panicked; its queue is closed");
        self.room.close();
        let mut mailbox = self.mailbox();
        mailbox.closed = true;
        mailbox.panicked = true;
        mailbox.running = false;
        let dropped = std::mem::take(&mut mailbox.jobs);
        drop(mailbox);
        drop(dropped);
        self.ended.send_replace(true);
    }
}

#[cfg(test)]
#[path = "serial_queue_test.rs"]
mod tests;
