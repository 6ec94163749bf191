//! Whether nothing acknowledged is missing, and whether all replicas are identical.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use highwater_client::{Client, ClientError, Consumer, ConsumerConfig, StartAt};
use highwater_types::{PartitionIndex, TopicName, TopicPartition};

use crate::ledger::{Audited, Ledger, digest};
use crate::log::compare::{CompareArgs, Comparison};
use crate::outcome::CommandError;

/// How long nothing may come while there is something to read.
const READ_BOUND: Duration = Duration::from_secs(60);

/// What reading everything back showed.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    /// What is missing or different, by partition.
    pub(super) faults: Vec<String>,
    /// Records that were read and are acknowledged nowhere: the outcome of their batches stayed unknown.
    pub(super) extra: u64,
}

/// Reads every partition as a consumer does and holds it against what was acknowledged.
pub(super) async fn read_back(
    client: &Client,
    topic: &TopicName,
    ledgers: &[(PartitionIndex, Ledger)],
) -> Result<ReadBack, CommandError> {
    let mut result = ReadBack::default();
    for (partition, ledger) in ledgers {
        let Some(last) = ledger.last() else { continue };
        let failed = |e: ClientError| CommandError::cluster(format!("read {topic}-{partition} back"), e);
        let config = ConsumerConfig::default();
        let consumer = Consumer::start(client, topic, &[*partition], StartAt::Earliest, config).await;
        let mut consumer = consumer.map_err(failed)?;
        let mut audit = ledger.audit();
        loop {
            let Ok(polled) = tokio::time::timeout(READ_BOUND, consumer.poll()).await else {
                result.faults.push(format!("{topic}-{partition}: nothing more can be read"));
                break;
            };
            let polled = polled.map_err(failed)?;
            for record in &polled.records {
                audit.read(record.offset, digest(record.value.as_deref().unwrap_or_default()));
            }
            if polled.next_offset > last {
                break;
            }
        }
        let Audited { faults, extra } = audit.finish();
        result.extra = result.extra.saturating_add(extra);
        result.faults.extend(faults.into_iter().map(|fault| format!("{topic}-{partition}: {fault}")));
    }
    Ok(result)
}

/// What comparing all replicas showed.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Partitions whose replicas are not the same, or not all there.
    pub(super) faults: Vec<String>,
    /// Batches of one replica of each partition.
    pub(super) batches: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl Compared {
    fn take(&mut self, comparison: &Comparison, replicas: usize) {
        let partition = &comparison.partition;
        self.batches = self.batches.saturating_add(comparison.same_batches);
        self.bytes = self.bytes.saturating_add(comparison.same_bytes);
        if let Some(difference) = &comparison.first_difference {
            let reason = &difference.reason;
            self.faults
                .push(format!("{partition}: different from offset {} on: {reason}", difference.offset));
        }
        let present = comparison.directories.len();
        if present != replicas {
            self.faults.push(format!("{partition}: {present} of {replicas} replicas are there"));
        }
    }
}

/// Compares the replicas of every partition, byte for byte, as `highwater log compare` does. Blocks.
pub(super) fn compare(
    directories: Vec<PathBuf>,
    topic: &TopicName,
    partitions: i32,
    replicas: usize,
) -> Result<Compared, CommandError> {
    let expected = (0..partitions).filter_map(PartitionIndex::new);
    let mut missing: BTreeSet<String> =
        expected.map(|index| TopicPartition::new(topic.clone(), index).directory_name()).collect();
    let mut compared = Compared::default();
    if replicas < 2 {
        return Ok(compared);
    }
    CompareArgs::of(directories).compare(|comparison| {
        missing.remove(&comparison.partition);
        compared.take(&comparison, replicas);
        Ok(())
    })?;
    compared
        .faults
        .extend(missing.into_iter().map(|name| format!("{name}: fewer than two replicas are there")));
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use highwater_records::{BatchBuilder, Compression};
    use highwater_types::WallTime;

    use super::*;

    fn write(place: &std::path::Path, node: &str, partition: &str, value: &[u8]) {
        let dir = place.join(node).join(partition);
        std::fs::create_dir_all(&dir).unwrap();
        let mut batch = BatchBuilder::new(Compression::None);
        batch.append(WallTime::from_millis(0), None, Some(value), &[]).unwrap();
        std::fs::write(dir.join("00000000000000000000.log"), batch.build().unwrap()).unwrap();
    }

    fn faults(place: &std::path::Path, partitions: i32) -> Vec<String> {
        let directories = ["a", "b", "c"].map(|node| place.join(node)).to_vec();
        compare(directories, &"demo".parse().unwrap(), partitions, 3).unwrap().faults
    }

    #[test]
    fn replicas_that_differ_or_are_missing_are_named() {
        let place = tempfile::tempdir().unwrap();
        for node in ["a", "b", "c"] {
            write(place.path(), node, "demo-0", b"same");
        }
        assert_eq!(faults(place.path(), 1), Vec::<String>::new());
        assert_eq!(faults(place.path(), 2), ["demo-1: fewer than two replicas are there"]);
        write(place.path(), "c", "demo-0", b"other");
        let different = faults(place.path(), 1);
        assert!(different[0].starts_with("demo-0: different from offset 0 on"), "{different:?}");
        std::fs::remove_dir_all(place.path().join("c/demo-0")).unwrap();
        write(place.path(), "c", "other-0", b"x");
        assert_eq!(faults(place.path(), 1), ["demo-0: 2 of 3 replicas are there"]);
    }
}
