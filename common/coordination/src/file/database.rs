//! Opening a database of the store, and what SQLite's errors mean for a caller.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::CoordinationError;

/// How long opening may wait for other programs that open the same database; switching the journal mode does not honour
/// SQLite's own busy timeout.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const OPEN_RETRY: Duration = Duration::from_millis(10);

/// How much a database flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Synchronous {
    /// Each commit.
    Full,
    /// Never.
    Off,
}

/// The layout of the database; another one is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schema {
    pub(super) version: i64,
    pub(super) create: &'static str,
}

/// Opens the database at `path` in write-ahead-log mode, and creates its tables if there are none.
pub(super) fn open(
    path: &Path,
    synchronous: Synchronous,
    busy_timeout: Duration,
    schema: Schema,
) -> Result<Connection, CoordinationError> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        match try_open(path, synchronous, busy_timeout, schema) {
            Ok(connection) => return Ok(connection),
            Err(OpenError::Sqlite(error)) if is_busy(&error) && Instant::now() < deadline => {
                thread::park_timeout(OPEN_RETRY);
            }
            Err(OpenError::Sqlite(error)) => {
                return Err(while_doing(&format!("open {}", path.display()), &error));
            }
            Err(OpenError::Version(found)) => {
                return Err(CoordinationError::Unreadable(format!(
                    "{} has format {found}, this program knows {}",
                    path.display(),
                    schema.version
                )));
            }
        }
    }
}

enum OpenError {
    Sqlite(rusqlite::Error),
    Version(i64),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn try_open(
    path: &Path,
    synchronous: Synchronous,
    busy_timeout: Duration,
    schema: Schema,
) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_timeout)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(
        None,
        "synchronous",
        match synchronous {
            Synchronous::Full => "full",
            Synchronous::Off => "off",
        },
    )?;
    let found = user_version(&connection)?;
    if found == 0 {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another program may have created the tables since.
        if user_version(&transaction)? == 0 {
            transaction.execute_batch(schema.create)?;
            transaction.pragma_update(None, "user_version", schema.version)?;
        }
        transaction.commit()?;
    }
    match user_version(&connection)? {
        version if version == schema.version => Ok(connection),
        other => Err(OpenError::Version(other)),
    }
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Whether another program holds the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The error of a step that has changed nothing.
pub(super) fn while_doing(step: &str, error: &rusqlite::Error) -> CoordinationError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged) => {
            CoordinationError::Unreadable(format!("{step}: {error}"))
        }
        _ => CoordinationError::Unavailable(format!("{step}: {error}")),
    }
}
