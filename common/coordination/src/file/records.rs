//! The thread that owns `records.db`: takes what waits, commits it in one transaction, shows the outcome in the view, and
//! only then answers. Between requests it looks for changes of other processes (`changes` says when).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::FileOptions;
use super::changes::{Pauses, Signs};
use super::database::{self, Synchronous};
use super::presence::{Presence, write_ahead_log};
use super::queue::{self, Queue, Requests};
use super::tables::{Answer, SCHEMA, Tables};
use crate::{CoordinationError, ViewChanges, ViewPublisher};

/// What the thread is asked for.
pub(super) enum RecordsRequest {
    /// A change.
    Write(Box<dyn Write>),
    /// A look at the store, now.
    Refresh(oneshot::Sender<Result<(), CoordinationError>>),
    /// A look at the store, because somebody writes to it.
    Changed,
}

impl std::fmt::Debug for RecordsRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Write(_) => "Write",
            Self::Refresh(_) => "Refresh",
            Self::Changed => "Changed",
        })
    }
}

/// A change that waits for its transaction, with the type of its answer hidden.
pub(super) trait Write: Send {
    /// Makes the change inside the transaction and keeps the answer.
    fn apply(&mut self, tables: Tables<'_>) -> rusqlite::Result<()>;
    /// Answers, once it is known what became of the transaction.
    fn finish(self: Box<Self>, transaction: Result<(), CoordinationError>);
}

struct Pending<T, F> {
    change: Option<F>,
    answer: Option<Result<T, CoordinationError>>,
    reply: oneshot::Sender<Result<T, CoordinationError>>,
}

impl<T: Send, F: FnOnce(Tables<'_>) -> Answer<T> + Send> Write for Pending<T, F> {
    fn apply(&mut self, tables: Tables<'_>) -> rusqlite::Result<()> {
        if let Some(change) = self.change.take() {
            self.answer = Some(change(tables)?);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, transaction: Result<(), CoordinationError>) {
        let never_run = || Err(CoordinationError::Unavailable("not run".to_owned()));
        let answer = match (transaction, self.answer) {
            // A refusal changed nothing, so it stands whatever became of the transaction.
            (_, Some(Err(refusal))) => Err(refusal),
            (Err(error), _) => Err(error),
            (Ok(()), Some(answer)) => answer,
            (Ok(()), None) => never_run(),
        };
        // Whoever asked may be gone; the change stands.
        let _ = self.reply.send(answer);
    }
}

/// The way to the thread, and what is known of the database that it opened.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) queue: Arc<Queue<RecordsRequest>>,
    pub(super) files: Presence,
    /// Absent where the kernel does not tell of changes.
    pub(super) signs: Option<Signs>,
}

/// Opens the database on a thread that serves requests until the queue is dropped. The view holds the store's content
/// once this returns.
pub(super) async fn start(
    directory: &Path,
    options: &FileOptions,
    view: Arc<ViewPublisher>,
) -> Result<Started, CoordinationError> {
    let (directory, busy_timeout) = (directory.to_owned(), options.busy_timeout);
    let poll_interval = options.poll_interval;
    let (queue, requests) = queue::channel();
    let (opened, answer) = oneshot::channel();
    let body = move || match Store::open(&directory, busy_timeout, view) {
        Ok((store, signs)) => {
            let pauses = Pauses::new(poll_interval, signs.is_some());
            if opened.send(Ok((store.files.clone(), signs))).is_ok() {
                store.serve(&requests, pauses);
            }
        }
        Err(error) => drop(opened.send(Err(error))),
    };
    thread::Builder::new()
        .name("coordination".to_owned())
        .spawn(body)
        .map_err(|error| CoordinationError::Unavailable(format!("start the store's thread: {error}")))?;
    let (files, signs) = answer.await.unwrap_or_else(|_| {
        Err(CoordinationError::Unavailable("the store's thread ended at its start".to_owned()))
    })?;
    let queue = Arc::new(queue);
    if let Some(signs) = &signs {
        signs.pass_on(Arc::clone(&queue)).map_err(|error| {
            CoordinationError::Unavailable(format!("start the thread that sees changes: {error}"))
        })?;
    }
    Ok(Started { queue, files, signs })
}

/// Has `change` made in a transaction.
pub(super) async fn write<T: Send + 'static>(
    queue: &Queue<RecordsRequest>,
    change: impl FnOnce(Tables<'_>) -> Answer<T> + Send + 'static,
) -> Result<T, CoordinationError> {
    queue
        .call(|reply| RecordsRequest::Write(Box::new(Pending { change: Some(change), answer: None, reply })))
        .await
}

/// Has the view brought up to date.
pub(super) async fn refresh(queue: &Queue<RecordsRequest>) -> Result<(), CoordinationError> {
    queue.call(RecordsRequest::Refresh).await
}

struct Store {
    connection: Connection,
    files: Presence,
    view: Arc<ViewPublisher>,
    /// The revision up to which the view is complete.
    known: u64,
    /// SQLite's own mark of commits by other connections.
    data_version: Option<i64>,
    /// Whether the last look failed: an outage is reported once.
    blind: bool,
}

impl Store {
    fn open(
        directory: &Path,
        busy_timeout: Duration,
        view: Arc<ViewPublisher>,
    ) -> Result<(Self, Option<Signs>), CoordinationError> {
        fs::create_dir_all(directory).map_err(|error| {
            CoordinationError::Unavailable(format!("create {}: {error}", directory.display()))
        })?;
        let path = directory.join("records.db");
        let connection = database::open(&path, Synchronous::Full, busy_timeout, SCHEMA)?;
        let files = Presence::of(&path)?;
        // Before the first look, so that no change falls between the two.
        let signs = Signs::of(&write_ahead_log(&path))
            .inspect_err(|error| {
                tracing::warn!(%error, "the kernel does not tell of changes of the coordination store; looking often instead");
            })
            .ok();
        let mut store = Self { connection, files, view, known: 0, data_version: None, blind: false };
        store.look()?;
        Ok((store, signs))
    }

    fn serve(mut self, requests: &Requests<RecordsRequest>, mut pauses: Pauses) {
        while let Some(batch) = requests.next_batch(Some(pauses.next())) {
            if batch.is_empty() {
                pauses.lengthen();
            } else {
                pauses.shorten();
            }
            let (mut writes, mut refreshes) = sort(batch);
            let outcome = if writes.is_empty() { self.look() } else { self.commit(&mut writes) };
            match &outcome {
                Ok(()) => self.report_reached(),
                Err(error) => {
                    let (more_writes, more_refreshes) = sort(requests.drain());
                    writes.extend(more_writes);
                    refreshes.extend(more_refreshes);
                    self.report_outage(error);
                }
            }
            for write in writes {
                write.finish(outcome.clone());
            }
            for reply in refreshes {
                let _ = reply.send(outcome.clone());
            }
        }
    }

    fn report_outage(&mut self, error: &CoordinationError) {
        if !std::mem::replace(&mut self.blind, true) {
            tracing::warn!(%error, "the coordination store is out of reach");
        }
    }

    fn report_reached(&mut self) {
        if std::mem::take(&mut self.blind) {
            tracing::info!("the coordination store is within reach again");
        }
    }

    /// Makes the changes in one transaction and shows everything up to it in the view.
    fn commit(&mut self, writes: &mut [Box<dyn Write>]) -> Result<(), CoordinationError> {
        let undone = |error: rusqlite::Error| database::while_doing("change records", &error);
        self.files.check()?;
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(undone)?;
        let tables = Tables::new(&transaction);
        for write in writes.iter_mut() {
            // Returning early drops the transaction, which rolls everything back.
            write.apply(tables).map_err(undone)?;
        }
        let changes = tables.changes_since(self.known).map_err(undone)??;
        if let Err(error) = transaction.commit() {
            // SQLite's mark does not move for this connection's own commits, so the next look must not rely on it.
            self.data_version = None;
            return Err(CoordinationError::Unknown(format!("commit a change of records: {error}")));
        }
        if let Err(error) = self.files.check() {
            // Whether the change lasts depends on whether the file comes back.
            self.data_version = None;
            return Err(CoordinationError::Unknown(format!("commit a change of records: {error}")));
        }
        self.show(changes);
        Ok(())
    }

    /// Takes over what other processes committed.
    fn look(&mut self) -> Result<(), CoordinationError> {
        let failed = |error: rusqlite::Error| database::while_doing("read records", &error);
        self.files.check()?;
        let data_version = data_version(&self.connection).map_err(failed)?;
        if self.data_version == Some(data_version) {
            return Ok(());
        }
        let transaction = self.connection.transaction().map_err(failed)?;
        let changes = Tables::new(&transaction).changes_since(self.known).map_err(failed)??;
        drop(transaction);
        self.data_version = Some(data_version);
        self.show(changes);
        Ok(())
    }

    fn show(&mut self, changes: ViewChanges) {
        assert!(changes.version >= self.known, "the store's revision never falls");
        self.known = changes.version;
        self.view.merge(changes);
    }
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row((), |row| row.get(0))
}

type Sorted = (Vec<Box<dyn Write>>, Vec<oneshot::Sender<Result<(), CoordinationError>>>);

fn sort(batch: Vec<RecordsRequest>) -> Sorted {
    let (mut writes, mut refreshes) = (Vec::new(), Vec::new());
    for request in batch {
        match request {
            RecordsRequest::Write(write) => writes.push(write),
            RecordsRequest::Refresh(reply) => refreshes.push(reply),
            // Whatever is done for the others includes a look.
            RecordsRequest::Changed => {}
        }
    }
    (writes, refreshes)
}
