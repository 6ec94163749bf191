//! The liveness counters of the `file` store, in a database and on a thread of their own.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use highwater_types::{NodeId, Program};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::FileOptions;
use super::database::{self, Schema, Synchronous};
use super::presence::Presence;
use super::queue::{self, Queue, Requests};
use crate::{CoordinationError, Liveness};

const SCHEMA: Schema = Schema {
    version: 1,
    create: "CREATE TABLE heartbeat (
        node INTEGER NOT NULL,
        program TEXT NOT NULL,
        counter INTEGER NOT NULL,
        PRIMARY KEY (node, program)
    ) STRICT, WITHOUT ROWID;",
};

const PREFIX: &str = "heartbeats-";

/// One renewal and where its answer goes.
#[derive(Debug)]
pub(super) struct Renewal {
    node: NodeId,
    program: Program,
    reply: oneshot::Sender<Result<Liveness, CoordinationError>>,
}

/// Opens the database on a thread that serves renewals until the queue is dropped. Without the `records` nobody lives:
/// their files count as much as those of the counters.
pub(super) async fn start(
    directory: &Path,
    options: &FileOptions,
    records: Presence,
) -> Result<Queue<Renewal>, CoordinationError> {
    let (directory, busy_timeout) = (directory.to_owned(), options.busy_timeout);
    let (queue, requests) = queue::channel();
    let (opened, answer) = oneshot::channel();
    let body = move || match open(&directory, busy_timeout) {
        Ok((connection, own)) => {
            if opened.send(Ok(())).is_ok() {
                serve(connection, &records.and(own), &requests);
            }
        }
        Err(error) => drop(opened.send(Err(error))),
    };
    thread::Builder::new()
        .name("heartbeats".to_owned())
        .spawn(body)
        .map_err(|error| CoordinationError::Unavailable(format!("start the heartbeat thread: {error}")))?;
    answer.await.unwrap_or_else(|_| {
        Err(CoordinationError::Unavailable("the heartbeat thread ended at its start".to_owned()))
    })?;
    Ok(queue)
}

/// Raises the counter, then reads all of them.
pub(super) async fn renew(
    queue: &Queue<Renewal>,
    node: NodeId,
    program: Program,
) -> Result<Liveness, CoordinationError> {
    queue.call(|reply| Renewal { node, program, reply }).await
}

fn open(directory: &Path, busy_timeout: Duration) -> Result<(Connection, Presence), CoordinationError> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = format!("{PREFIX}{}.db", boot.trim());
    remove_those_of_other_boots(directory, &name);
    let path = directory.join(name);
    let connection = database::open(&path, Synchronous::Off, busy_timeout, SCHEMA)?;
    Ok((connection, Presence::of(&path)?))
}

/// Best effort: nobody on this machine can have them open, and nobody reads them again.
fn remove_those_of_other_boots(directory: &Path, current: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with(PREFIX)
            && !name.starts_with(current)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::debug!(file = name, %error, "could not remove the heartbeats of an earlier boot");
        }
    }
}

fn serve(mut connection: Connection, files: &Presence, requests: &Requests<Renewal>) {
    while let Some(mut batch) = requests.next_batch(None) {
        let outcome = files.check().and_then(|()| renew_all(&mut connection, &batch));
        let outcome = outcome.and_then(|liveness| {
            let lost = |error| CoordinationError::Unknown(format!("renew liveness: {error}"));
            files.check().map(|()| liveness).map_err(lost)
        });
        if outcome.is_err() {
            batch.extend(requests.drain());
        }
        for renewal in batch {
            // Nobody may be waiting any more; the renewal was made all the same.
            let _ = renewal.reply.send(outcome.clone());
        }
    }
}

fn renew_all(connection: &mut Connection, batch: &[Renewal]) -> Result<Liveness, CoordinationError> {
    let step = |error: rusqlite::Error| database::while_doing("renew liveness", &error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(step)?;
    for renewal in batch {
        transaction
            .prepare_cached(
                "INSERT INTO heartbeat (node, program, counter) VALUES (?1, ?2, 1)
                 ON CONFLICT DO UPDATE SET counter = counter + 1",
            )
            .and_then(|mut statement| statement.execute((renewal.node.get(), renewal.program.to_string())))
            .map_err(step)?;
    }
    let counters = read(&transaction).map_err(step)?;
    transaction
        .commit()
        .map_err(|error| CoordinationError::Unknown(format!("renew liveness: commit: {error}")))?;
    Ok(counters)
}

fn read(connection: &Connection) -> rusqlite::Result<Liveness> {
    let mut statement = connection.prepare_cached("SELECT node, program, counter FROM heartbeat")?;
    let mut rows = statement.query(())?;
    let mut counters = Liveness::new();
    while let Some(row) = rows.next()? {
        let program = match row.get_ref(1)?.as_str()? {
            "leader-svc" => Program::LeaderSvc,
            "follower-agent" => Program::FollowerAgent,
            _ => continue,
        };
        if let Some(node) = NodeId::new(row.get(0)?) {
            counters.insert((node, program), u64::try_from(row.get::<_, i64>(2)?).unwrap_or_default());
        }
    }
    Ok(counters)
}
