//! `partition.metadata`: the topic id of a partition's directory, in Kafka's format (`version: 0`, `topic_id: BASE64`).

use std::path::Path;

use highwater_types::TopicId;

use super::text::clip;
use crate::storage::{Storage, StorageResult};

/// The file's name in a partition's directory.
pub const PARTITION_METADATA_FILE: &str = "partition.metadata";

const BYTES_MAX: u64 = 4096;

/// What the file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedPartitionMetadata {
    /// There is no file (Kafka wrote none before 2.8).
    Absent,
    /// The topic id.
    Found(TopicId),
    /// The file cannot be used; why not.
    Damaged(String),
}

/// Reads the file in `dir`.
///
/// # Errors
/// What the disk says. Damage is not an error.
pub fn read_partition_metadata<S: Storage>(
    storage: &S,
    dir: &Path,
) -> StorageResult<LoadedPartitionMetadata> {
    let bytes = match storage.read_small(&dir.join(PARTITION_METADATA_FILE), BYTES_MAX) {
        Err(e) if e.is_not_found() => return Ok(LoadedPartitionMetadata::Absent),
        read => read?,
    };
    Ok(match parse(&bytes) {
        Ok(id) => LoadedPartitionMetadata::Found(id),
        Err(reason) => LoadedPartitionMetadata::Damaged(reason),
    })
}

/// Replaces the file in `dir`, durably.
///
/// # Errors
/// What the disk says; the old file is then still there.
pub fn write_partition_metadata<S: Storage>(storage: &S, dir: &Path, topic_id: TopicId) -> StorageResult<()> {
    let text = format!("version: 0\ntopic_id: {}\n", topic_id.to_kafka_text());
    debug_assert_eq!(parse(text.as_bytes()), Ok(topic_id), "what is written can be read");
    storage.write_atomically(&dir.join(PARTITION_METADATA_FILE), text.as_bytes())
}

/// The last line may lack its newline: an id that is cut short does not decode.
fn parse(bytes: &[u8]) -> Result<TopicId, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the file is not text".to_owned())?;
    let value =
        |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    match value("version") {
        Some("0") => {}
        Some(other) => return Err(format!("version '{}', this program reads 0", clip(other))),
        None => return Err("the version is missing".to_owned()),
    }
    let id = value("topic_id").ok_or("the topic id is missing")?;
    TopicId::from_kafka_text(id).ok_or_else(|| format!("'{}' is not a topic id", clip(id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OsStorage;

    #[test]
    fn the_file_has_kafkas_bytes_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_partition_metadata(&OsStorage, dir.path()).unwrap(), LoadedPartitionMetadata::Absent);
        let id: TopicId = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c".parse().unwrap();
        write_partition_metadata(&OsStorage, dir.path(), id).unwrap();
        let text = std::fs::read_to_string(dir.path().join("partition.metadata")).unwrap();
        assert_eq!(text, "version: 0\ntopic_id: s8Hwol1OT2qbjH1uX0o7LA\n");
        assert_eq!(
            read_partition_metadata(&OsStorage, dir.path()).unwrap(),
            LoadedPartitionMetadata::Found(id)
        );
    }

    #[test]
    fn a_damaged_file_is_reported_and_never_taken_for_another_topic() {
        let whole = b"version: 0\ntopic_id: s8Hwol1OT2qbjH1uX0o7LA\n";
        for end in 0..whole.len() - 1 {
            assert!(parse(&whole[..end]).is_err(), "{end} bytes");
        }
        for bytes in [&[0; 16][..], b"\xff", b"version: 1\ntopic_id: s8Hwol1OT2qbjH1uX0o7LA\n"] {
            assert!(parse(bytes).is_err());
        }
        assert!(parse(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n").is_err(), "the nil id is none");
    }
}
