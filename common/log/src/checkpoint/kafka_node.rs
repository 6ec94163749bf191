//! Kafka's node-level files in a log directory, read when its partitions are adopted. Never written: in our layout two
//! programs share the directory, and a file of both would need a lock (design.md 2).

use std::collections::BTreeMap;
use std::path::Path;

use highwater_types::{Offset, PartitionIndex, TopicName, TopicPartition};

use super::text::{self, TEXT_BYTES_MAX};
use crate::storage::{Storage, StorageResult};

const HIGH_WATERMARK_FILE: &str = "replication-offset-checkpoint";
const RECOVERY_POINT_FILE: &str = "recovery-point-offset-checkpoint";
const LOG_START_FILE: &str = "log-start-offset-checkpoint";
const CLEAN_SHUTDOWN_FILE: &str = ".kafka_cleanshutdown";

/// One of Kafka's node-level offset files: what could be read of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KafkaOffsets {
    /// The offset per partition. A damaged or absent file gives fewer, or none.
    pub offsets: BTreeMap<TopicPartition, Offset>,
    /// What is wrong with the file; `None` when it is whole or absent.
    pub damage: Option<String>,
}

/// What Kafka left in a log directory beside the partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KafkaCheckpoints {
    /// `replication-offset-checkpoint`
    pub high_watermarks: KafkaOffsets,
    /// `recovery-point-offset-checkpoint`
    pub recovery_points: KafkaOffsets,
    /// `log-start-offset-checkpoint`
    pub log_starts: KafkaOffsets,
    /// Whether `.kafka_cleanshutdown` is there: Kafka flushed and closed every log.
    pub clean_shutdown: bool,
}

impl KafkaCheckpoints {
    /// The files that are damaged, with what is wrong with each.
    pub fn damaged(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let files = [
            (HIGH_WATERMARK_FILE, &self.high_watermarks),
            (RECOVERY_POINT_FILE, &self.recovery_points),
            (LOG_START_FILE, &self.log_starts),
        ];
        files.into_iter().filter_map(|(name, offsets)| Some((name, offsets.damage.as_deref()?)))
    }
}

/// Names of files that Kafka keeps in a log directory beside the partitions; more than are read here.
pub(crate) const KAFKA_NODE_FILES: [&str; 7] = [
    HIGH_WATERMARK_FILE,
    RECOVERY_POINT_FILE,
    LOG_START_FILE,
    CLEAN_SHUTDOWN_FILE,
    "cleaner-offset-checkpoint",
    "bootstrap.checkpoint",
    ".lock",
];

/// Reads Kafka's node-level files in `dir`; each may be absent.
///
/// # Errors
/// What the disk says. Damage is not an error.
pub fn read_kafka_checkpoints<S: Storage>(storage: &S, dir: &Path) -> StorageResult<KafkaCheckpoints> {
    Ok(KafkaCheckpoints {
        high_watermarks: read_offsets(storage, &dir.join(HIGH_WATERMARK_FILE))?,
        recovery_points: read_offsets(storage, &dir.join(RECOVERY_POINT_FILE))?,
        log_starts: read_offsets(storage, &dir.join(LOG_START_FILE))?,
        clean_shutdown: storage.exists(&dir.join(CLEAN_SHUTDOWN_FILE))?,
    })
}

fn read_offsets<S: Storage>(storage: &S, path: &Path) -> StorageResult<KafkaOffsets> {
    match storage.read_small(path, TEXT_BYTES_MAX) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(e) if e.is_not_found() => Ok(KafkaOffsets::default()),
        Err(e) => Err(e),
    }
}

fn parse(bytes: &[u8]) -> KafkaOffsets {
    let parsed = text::parse(bytes, entry);
    KafkaOffsets { offsets: parsed.entries.into_iter().collect(), damage: parsed.damage }
}

/// `topic partition offset`; a topic's name has no space.
fn entry(line: &str) -> Option<(TopicPartition, Offset)> {
    let mut words = line.split(' ');
    let topic: TopicName = words.next()?.parse().ok()?;
    let partition = PartitionIndex::new(words.next()?.parse().ok()?)?;
    let offset = Offset::new(words.next()?.parse().ok()?)?;
    words.next().is_none().then(|| (TopicPartition::new(topic, partition), offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OsStorage;

    fn partition(topic: &str, index: i32) -> TopicPartition {
        TopicPartition::new(topic.parse().unwrap(), PartitionIndex::new(index).unwrap())
    }

    #[test]
    fn kafkas_files_are_read_and_absent_ones_are_empty() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_kafka_checkpoints(&OsStorage, dir.path()).unwrap(), KafkaCheckpoints::default());
        std::fs::write(dir.path().join(HIGH_WATERMARK_FILE), "0\n2\norders 0 17\norders 1 9000000000\n")
            .unwrap();
        std::fs::write(dir.path().join(CLEAN_SHUTDOWN_FILE), "{\"version\":0,\"brokerEpoch\":5}").unwrap();
        let read = read_kafka_checkpoints(&OsStorage, dir.path()).unwrap();
        assert_eq!(read.high_watermarks.damage, None);
        assert_eq!(read.high_watermarks.offsets[&partition("orders", 0)], Offset::new(17).unwrap());
        assert_eq!(
            read.high_watermarks.offsets[&partition("orders", 1)],
            Offset::new(9_000_000_000).unwrap()
        );
        assert_eq!(read.recovery_points, KafkaOffsets::default());
        assert!(read.clean_shutdown);
        assert_eq!(read.damaged().count(), 0);
        std::fs::write(dir.path().join(LOG_START_FILE), "0\n1\norders 0 1").unwrap();
        let read = read_kafka_checkpoints(&OsStorage, dir.path()).unwrap();
        assert_eq!(read.damaged().map(|(name, _)| name).collect::<Vec<_>>(), [LOG_START_FILE]);
    }

    #[test]
    fn a_damaged_file_gives_what_came_before_the_damage() {
        for bytes in
            [&b"0\n2\norders 0 17\n"[..], b"0\n2\norders 0 17\norders 1", b"0\n2\norders 0 17\na b 1 5\n"]
        {
            let parsed = parse(bytes);
            assert_eq!(parsed.offsets.len(), 1, "{bytes:?}");
            assert!(parsed.damage.is_some(), "{bytes:?}");
        }
        assert!(parse(b"").damage.is_some());
    }
}
