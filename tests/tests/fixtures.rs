//! A2: what `highwater log dump` reads out of directories that Kafka wrote is what Kafka itself reads, field by field, and
//! each damaged one is named as what it is.
//!
//! Kafka's dump has no header values; for these, and once more for everything else about records, crate kafka-protocol is
//! the witness.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]

use std::fs;
use std::path::Path;
use std::str::FromStr;

use bytes::Bytes;
use highwater_types::TopicId;
use kafka_protocol::records::{RecordBatchDecoder, TimestampType};
use system_tests::fixtures::{ALL, Fixture};
use system_tests::log_dump::{self, Batch, Data, Finding};

/// Compares every segment of a fixture with Kafka's dump; returns how many records were compared.
fn compare_with_kafkas_dump(fixture: &Fixture) -> usize {
    let mut seen = Vec::new();
    let mut records = 0;
    for partition in fixture.partitions() {
        for ours in log_dump::dump(&partition).1.segments {
            let name = fixture.name_of(&ours.path);
            let Some(kafka) = fixture.dump.logs.get(&name) else { continue };
            ours.assert_as_kafka_reads_it(kafka);
            records += ours.batches.iter().map(|batch| batch.records.len()).sum::<usize>();
            seen.push(name);
        }
    }
    seen.sort();
    let all: Vec<_> = fixture.dump.logs.keys().cloned().collect();
    assert_eq!(seen, all, "every segment that Kafka dumped is compared");
    records
}

#[test]
fn every_field_is_what_kafka_reads() {
    for name in ALL {
        let fixture = Fixture::unpack(name);
        let records = compare_with_kafkas_dump(&fixture);
        assert!(records > 50, "{name}: only {records} records were compared");
    }
}

#[test]
fn leader_epochs_and_topic_ids_are_what_the_files_say() {
    let (mut epochs, mut ids) = (0, 0);
    for name in ALL {
        let fixture = Fixture::unpack(name);
        for partition in fixture.partitions() {
            let ours = log_dump::dump(&partition).1;
            let name = fixture.name_of(&partition);
            let Some(text) = fixture.dump.texts.get(&format!("{name}/leader-epoch-checkpoint")) else {
                continue;
            };
            let entries: Vec<_> =
                ours.leader_epochs.iter().map(|e| format!("{} {}", e.epoch, e.start_offset)).collect();
            let head = ["0".to_owned(), entries.len().to_string()];
            let file: Vec<_> = head.into_iter().chain(entries).collect();
            assert_eq!(text[..file.len()], file, "{name}");
            assert!(text[file.len()..].iter().all(String::is_empty), "{name}: {text:?}");
            epochs += ours.leader_epochs.len();

            // The dump of "many" has this file for one partition only.
            let Some(text) = fixture.dump.texts.get(&format!("{name}/partition.metadata")) else { continue };
            let id = TopicId::from_str(&ours.topic_id.unwrap()).unwrap();
            assert_eq!(text[1], format!("topic_id: {}", id.to_kafka_text()), "{name}");
            ids += 1;
        }
    }
    assert!(ids > 20, "only {ids} topic ids were compared");
    assert!(epochs > 60, "only {epochs} epochs were compared");
}

/// Compares our reading of one batch with kafka-protocol's, header values included; returns how many header values.
fn compare_batch_with_kafka_protocol(name: &str, ours: &Batch, mut bytes: Bytes) -> usize {
    let theirs = RecordBatchDecoder::decode(&mut bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(ours.records.len(), theirs.records.len(), "{name}, batch at {}", ours.base_offset);
    let mut values = 0;
    for (ours_record, theirs) in ours.records.iter().zip(&theirs.records) {
        let data = |data: Option<&Data>| data.map(|data| Bytes::from(data.bytes()));
        let headers: Vec<_> =
            ours_record.headers.iter().map(|h| (h.key.clone(), data(h.value.as_ref()))).collect();
        let their_headers: Vec<_> =
            theirs.headers.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        assert_eq!(headers, their_headers, "{name}, offset {}", ours_record.offset);
        values += headers.len();
        assert_eq!((ours_record.offset, ours_record.timestamp), (theirs.offset, theirs.timestamp), "{name}");
        // Without a sequence, kafka-protocol counts up from -1; Kafka prints -1.
        assert_eq!(ours_record.sequence, if ours.base_sequence < 0 { -1 } else { theirs.sequence }, "{name}");
        assert_eq!(data(ours_record.key.as_ref()), theirs.key, "{name}");
        assert_eq!(data(ours_record.value.as_ref()), theirs.value, "{name}");
        assert_eq!(
            (ours.leader_epoch, ours.producer_id, ours.producer_epoch, ours.transactional, ours.control),
            (
                theirs.partition_leader_epoch,
                theirs.producer_id,
                theirs.producer_epoch,
                theirs.transactional,
                theirs.control
            ),
            "{name}"
        );
        assert_eq!(theirs.timestamp_type, TimestampType::Creation, "{name}");
    }
    values
}

#[test]
fn header_values_are_what_kafka_protocol_reads() {
    let mut values = 0;
    for name in ALL {
        let fixture = Fixture::unpack(name);
        for partition in fixture.partitions() {
            for segment in log_dump::dump(&partition).1.segments {
                let bytes = Bytes::from(fs::read(&segment.path).unwrap());
                for batch in segment.batches.iter().filter(|batch| batch.crc_ok) {
                    let start = usize::try_from(batch.position).unwrap();
                    let end = start + usize::try_from(batch.size).unwrap();
                    let name = fixture.name_of(&segment.path);
                    values += compare_batch_with_kafka_protocol(&name, batch, bytes.slice(start..end));
                }
            }
        }
    }
    assert!(values > 200, "only {values} header values were compared");
}

fn problems(directory: &Path) -> Vec<Finding> {
    let (good, findings) = log_dump::verify(directory);
    let problems: Vec<Finding> = findings.into_iter().filter(|f| f.severity == "problem").collect();
    assert_eq!(good, problems.is_empty(), "the exit code says whether there is a problem: {problems:?}");
    problems
}

/// What is wrong, and where: kind, position, first offset, end offset.
type Place<'a> = (&'a str, Option<u64>, Option<i64>, Option<i64>);

fn places(problems: &[Finding]) -> Vec<Place<'_>> {
    problems.iter().map(|p| (p.kind.as_str(), p.position, p.offset, p.end_offset)).collect()
}

#[test]
fn undamaged_directories_pass() {
    for name in ALL.into_iter().filter(|name| !matches!(*name, "damaged" | "divergence")) {
        let fixture = Fixture::unpack(name);
        for partition in fixture.partitions() {
            assert_eq!(problems(&partition), [], "{}", fixture.name_of(&partition));
        }
    }
}

#[test]
fn indexes_that_a_live_kafka_left_stale_after_a_truncation_are_named() {
    let fixture = Fixture::unpack("divergence");
    for partition in fixture.partitions() {
        let name = fixture.name_of(&partition);
        let kinds: Vec<String> = problems(&partition).into_iter().map(|p| p.kind).collect();
        // Node 1 was truncated while it ran: its preallocated indexes keep entries of what is gone. Kafka's own dump
        // ends with an exception on them.
        let stale = name.contains("C-old-leader-after-rejoin") || name.contains("D-node1-later");
        let expected: &[&str] = if stale { &["bad_index", "bad_index"] } else { &[] };
        assert_eq!(kinds, expected, "{name}");
    }
}

#[test]
fn a_torn_tail_is_named_so() {
    let fixture = Fixture::unpack("damaged");
    let partition = fixture.root().join("damaged/torn-before/plain-0");
    assert_eq!(places(&problems(&partition)), [("torn_tail", Some(3663), Some(60), None)]);
    let (good, dumped) = log_dump::dump(&partition);
    assert!(!good);
    let [segment] = dumped.segments.as_slice() else { panic!("{dumped:?}") };
    assert_eq!(segment.batches.len(), 5);
    let damage: Vec<_> = segment.damage.iter().map(|d| (d.position, d.bytes, d.resumes_at)).collect();
    assert_eq!(damage, [(3663, 20038, None)]);
}

#[test]
fn a_flipped_byte_is_damage_in_the_middle() {
    let fixture = Fixture::unpack("damaged");
    let partition = fixture.root().join("damaged/flip-before/plain-0");
    let found = [("damage_in_the_middle", Some(1441), Some(24), Some(36))];
    assert_eq!(places(&problems(&partition)), found);
}

#[test]
fn what_kafka_made_of_the_damaged_directories_passes() {
    let fixture = Fixture::unpack("damaged");
    for after in ["torn-after", "flip-after"] {
        assert_eq!(problems(&fixture.root().join("damaged").join(after).join("plain-0")), [], "{after}");
    }
}

#[test]
fn replicas_of_a_clean_stop_are_identical() {
    for (name, left, right) in [
        ("plain", "plain/node1", "plain/node2"),
        ("txn", "txn/node1/txn-0", "txn/node2/txn-0"),
        ("rolled", "rolled/node1/rolled-0", "rolled/node2/rolled-0"),
        ("epochs", "epochs/node1-cleanstop", "epochs/node2-live"),
        ("divergence", "divergence/B-new-leader", "divergence/C-old-leader-after-rejoin"),
    ] {
        let fixture = Fixture::unpack(name);
        log_dump::assert_identical(&[&fixture.root().join(left), &fixture.root().join(right)]);
    }
}
