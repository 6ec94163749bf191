//! The tables of `records.db` and the statements on them. Everything here runs inside a transaction that the caller began
//! with the write lock, so reading a record and replacing it is one step.
//!
//! What must hold: every write stamps its row with a revision of its own, higher than any before; so "what is newer than
//! the revision that I know" is a complete list of changes, and a snapshot of them is one moment of the store.

use std::fmt::Display;

use highwater_types::{
    ClusterId, NodeRecord, PartitionEpoch, PartitionRecord, TopicId, TopicIdPartition, TopicRecord,
};
use rusqlite::{Connection, OptionalExtension as _, Params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::database::Schema;
use crate::{CasOutcome, CoordinationError, ViewChanges, check_change};

pub(super) const SCHEMA: Schema = Schema {
    version: 1,
    create: "
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        revision INTEGER NOT NULL,
        cluster_id TEXT
    ) STRICT;
    INSERT INTO store (id, revision) VALUES (1, 0);
    CREATE TABLE topic (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        deleted INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        record TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX topic_live_name ON topic (name) WHERE deleted = 0;
    CREATE INDEX topic_revision ON topic (revision);
    CREATE TABLE partition (
        topic_id TEXT NOT NULL,
        partition INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (topic_id, partition)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX partition_revision ON partition (revision);
    CREATE TABLE node (
        id INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL,
        record TEXT NOT NULL
    ) STRICT;
    CREATE INDEX node_revision ON node (revision);
    ",
};

/// What a statement of the store came to: SQLite's own failure (the whole transaction is rolled back), or an answer,
/// which may be a refusal.
pub(super) type Answer<T> = rusqlite::Result<Result<T, CoordinationError>>;

/// Unpacks the refusal of an inner step, so that it becomes the answer.
macro_rules! accepted {
    ($answer:expr) => {
        match $answer {
            Ok(value) => value,
            Err(refusal) => return Ok(Err(refusal)),
        }
    };
}

/// The tables, inside one transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'a> {
    connection: &'a Connection,
}

impl<'a> Tables<'a> {
    /// `connection` is in a transaction.
    pub(super) fn new(connection: &'a Connection) -> Self {
        debug_assert!(!connection.is_autocommit(), "the tables are used inside a transaction only");
        Self { connection }
    }

    pub(super) fn ensure_cluster_id(self, proposed: &ClusterId) -> Answer<ClusterId> {
        if let Some(id) = accepted!(self.cluster_id()?) {
            return Ok(Ok(id));
        }
        let revision = self.next_revision()?;
        self.execute("UPDATE store SET cluster_id = ?1, revision = ?2", (proposed.as_str(), revision))?;
        Ok(Ok(proposed.clone()))
    }

    pub(super) fn create_topic(
        self,
        topic: &TopicRecord,
        partitions: &[PartitionRecord],
    ) -> Answer<CasOutcome<TopicRecord>> {
        let in_the_way: Option<TopicRecord> = accepted!(self.record(
            "SELECT record FROM topic WHERE id = ?1 OR (name = ?2 AND deleted = 0) ORDER BY id = ?1 DESC LIMIT 1",
            (topic.id.to_string(), topic.name.as_str()),
        )?);
        if let Some(other) = in_the_way {
            return Ok(Ok(CasOutcome::Conflict(other)));
        }
        for record in partitions {
            self.write_partition(record)?;
        }
        self.write_topic(topic)?;
        Ok(Ok(CasOutcome::Committed(topic.clone())))
    }

    pub(super) fn delete_topic(self, id: TopicId) -> Answer<TopicRecord> {
        let found: Option<TopicRecord> =
            accepted!(self.record("SELECT record FROM topic WHERE id = ?1", (id.to_string(),))?);
        let Some(mut topic) = found else {
            return Ok(Err(CoordinationError::NotFound(format!("topic {id}"))));
        };
        if !topic.deleted {
            topic.deleted = true;
            self.write_topic(&topic)?;
            self.execute("DELETE FROM partition WHERE topic_id = ?1", (id.to_string(),))?;
        }
        Ok(Ok(topic))
    }

    pub(super) fn swap_partition(
        self,
        new: &PartitionRecord,
        expected: PartitionEpoch,
    ) -> Answer<CasOutcome<PartitionRecord>> {
        let Some(current) = accepted!(self.partition(new.id())?) else {
            return Ok(Err(CoordinationError::NotFound(format!("partition {}", new.id()))));
        };
        if current.partition_epoch != expected {
            return Ok(Ok(CasOutcome::Conflict(current)));
        }
        accepted!(check_change(&current, new).map_err(CoordinationError::Invalid));
        let written = PartitionRecord { partition_epoch: expected.next(), ..new.clone() };
        assert!(written.partition_epoch > current.partition_epoch, "a change raises the partition epoch");
        self.write_partition(&written)?;
        Ok(Ok(CasOutcome::Committed(written)))
    }

    pub(super) fn swap_node(self, new: &NodeRecord, expected: u64) -> Answer<CasOutcome<NodeRecord>> {
        let found: Option<NodeRecord> =
            accepted!(self.record("SELECT record FROM node WHERE id = ?1", (new.node.get(),))?);
        let current = found.unwrap_or_else(|| NodeRecord::new(new.node));
        if current.version != expected {
            return Ok(Ok(CasOutcome::Conflict(current)));
        }
        let written = NodeRecord { version: expected.saturating_add(1), ..new.clone() };
        assert!(written.version > current.version, "a change raises the version");
        let revision = self.next_revision()?;
        self.execute(
            "INSERT INTO node (id, revision, record) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET revision = excluded.revision, record = excluded.record",
            (written.node.get(), revision, text(&written)?),
        )?;
        Ok(Ok(CasOutcome::Committed(written)))
    }

    /// Everything that is newer than `known`, and the revision of this moment.
    pub(super) fn changes_since(self, known: u64) -> Answer<ViewChanges> {
        let version = accepted!(self.revision()?);
        if version == known {
            return Ok(Ok(ViewChanges { version, ..ViewChanges::default() }));
        }
        let known = (signed(known),);
        Ok(Ok(ViewChanges {
            version,
            cluster_id: accepted!(self.cluster_id()?),
            topics: accepted!(self.records("SELECT record FROM topic WHERE revision > ?1", known)?),
            partitions: accepted!(self.records("SELECT record FROM partition WHERE revision > ?1", known)?),
            nodes: accepted!(self.records("SELECT record FROM node WHERE revision > ?1", known)?),
        }))
    }

    fn partition(self, id: TopicIdPartition) -> Answer<Option<PartitionRecord>> {
        self.record(
            "SELECT record FROM partition WHERE topic_id = ?1 AND partition = ?2",
            (id.topic_id.to_string(), id.partition.get()),
        )
    }

    fn write_topic(self, topic: &TopicRecord) -> rusqlite::Result<()> {
        let revision = self.next_revision()?;
        self.execute(
            "INSERT INTO topic (id, name, deleted, revision, record) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET deleted = excluded.deleted, revision = excluded.revision,
                 record = excluded.record",
            (topic.id.to_string(), topic.name.as_str(), topic.deleted, revision, text(topic)?),
        )
    }

    fn write_partition(self, record: &PartitionRecord) -> rusqlite::Result<()> {
        let revision = self.next_revision()?;
        self.execute(
            "INSERT INTO partition (topic_id, partition, revision, record) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET revision = excluded.revision, record = excluded.record",
            (record.topic_id.to_string(), record.partition.get(), revision, text(record)?),
        )
    }

    fn cluster_id(self) -> Answer<Option<ClusterId>> {
        let found: Option<String> =
            self.connection.query_row("SELECT cluster_id FROM store", (), |row| row.get(0))?;
        Ok(found.map(|id| id.parse()).transpose().map_err(CoordinationError::Unreadable))
    }

    fn revision(self) -> Answer<u64> {
        let found: i64 = self.connection.query_row("SELECT revision FROM store", (), |row| row.get(0))?;
        Ok(u64::try_from(found).map_err(|_| unreadable("store", &"a negative revision")))
    }

    fn next_revision(self) -> rusqlite::Result<i64> {
        self.connection
            .query_row("UPDATE store SET revision = revision + 1 RETURNING revision", (), |row| row.get(0))
    }

    fn execute(self, sql: &str, values: impl Params) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute(values).map(|_| ())
    }

    fn record<T: DeserializeOwned>(self, sql: &str, values: impl Params) -> Answer<Option<T>> {
        let found: Option<String> =
            self.connection.prepare_cached(sql)?.query_row(values, |row| row.get(0)).optional()?;
        Ok(found.map(|json| parse(&json)).transpose())
    }

    fn records<T: DeserializeOwned>(self, sql: &str, values: impl Params) -> Answer<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            records.push(accepted!(parse(row.get_ref(0)?.as_str()?)));
        }
        Ok(Ok(records))
    }
}

fn parse<T: DeserializeOwned>(json: &str) -> Result<T, CoordinationError> {
    serde_json::from_str(json).map_err(|error| unreadable(json, &error))
}

fn text<T: Serialize>(record: &T) -> rusqlite::Result<String> {
    serde_json::to_string(record).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn unreadable(what: &str, error: &dyn Display) -> CoordinationError {
    let start: String = what.chars().take(200).collect();
    CoordinationError::Unreadable(format!("record '{start}': {error}"))
}

/// SQLite's integers are signed; a count that began at 0 never gets there.
fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
