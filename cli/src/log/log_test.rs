//! The commands on directories that are made here: each damage by itself.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use highwater_log::checkpoint::{CheckpointFile, CheckpointState};
use highwater_log::{OsStorage, PartitionLocks};
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{
    Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition, WallTime,
};
use serde_json::Value;
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct TestCli {
    #[command(subcommand)]
    command: LogCommand,
}

/// Runs a command; returns its verdict and the lines that it printed.
pub(super) fn run(args: &[&str], directories: &[&Path]) -> (Verdict, Vec<String>) {
    let directories = directories.iter().map(|dir| dir.to_str().unwrap());
    let args = ["log"].into_iter().chain(args.iter().copied()).chain(directories);
    let mut out = Vec::new();
    let verdict = TestCli::parse_from(args).command.run(&mut out).unwrap();
    (verdict, String::from_utf8(out).unwrap().lines().map(str::to_owned).collect())
}

/// Runs `verify`; returns the kinds of the problems, and of the notes.
fn verify(directory: &Path) -> (Vec<String>, Vec<String>) {
    let (verdict, lines) = run(&["verify", "--output", "json"], &[directory]);
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds = |severity: &str| -> Vec<String> {
        let of_severity = lines.iter().filter(|line| line["severity"] == severity);
        of_severity.map(|line| line["kind"].as_str().unwrap().to_owned()).collect()
    };
    let (problems, notes) = (kinds("problem"), kinds("note"));
    assert_eq!(verdict == Verdict::Good, problems.is_empty(), "{lines:?}");
    (problems, notes)
}

fn batch(base: i64, epoch: i32, records: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None)
        .base_offset(Offset::new(base).unwrap())
        .leader_epoch(LeaderEpoch::new(epoch).unwrap());
    for index in 0..records {
        let value = format!("value-{}", base + index);
        builder.append(WallTime::from_millis(1000 + base), None, Some(value.as_bytes()), &[]).unwrap();
    }
    builder.build().unwrap().to_vec()
}

/// Two segments: offsets 0..4 of epoch 0, and 4..10 of epochs 0 and 3.
struct Sample {
    root: TempDir,
}

impl Sample {
    fn new() -> Self {
        let sample = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(sample.partition()).unwrap();
        let first = [batch(0, 0, 2), batch(2, 0, 2)];
        let second = [batch(4, 0, 3), batch(7, 3, 3)];
        for (base, batches) in [(0_i64, &first), (4, &second)] {
            // Each batch has its entry but the first, as Kafka writes it: last offset, position; and largest time so far.
            let position = u32::try_from(batches[0].len()).unwrap();
            let (start, last) = if base == 0 { (2, 3) } else { (7, 9) };
            let relative = u32::try_from(last - base).unwrap().to_be_bytes();
            let timestamp: i64 = 1000 + start;
            sample.write(&format!("{base:020}.log"), &batches.concat());
            sample.write(&format!("{base:020}.index"), &[relative, position.to_be_bytes()].concat());
            let time_entry = [timestamp.to_be_bytes().as_slice(), &relative].concat();
            sample.write(&format!("{base:020}.timeindex"), &time_entry);
        }
        sample.write("leader-epoch-checkpoint", b"0\n2\n0 0\n3 7\n");
        sample.write("partition.metadata", format!("version: 0\ntopic_id: {TOPIC_ID}\n").as_bytes());
        sample
    }

    fn partition(&self) -> PathBuf {
        self.root.path().join("sample-0")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.partition().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        edit(&mut bytes);
        self.write(name, &bytes);
    }

    /// Writes our checkpoint; without it, the directory is one of Kafka's.
    fn write_checkpoint(&self, topic_id: &str, recovery_point: i64) {
        let topic_id = TopicId::from_kafka_text(topic_id).unwrap();
        let mut state = CheckpointState::new(topic_id, Incarnation::new(7).unwrap());
        state.recovery_point = Offset::new(recovery_point).unwrap();
        let (mut file, _) = CheckpointFile::open(&OsStorage, &self.partition()).unwrap();
        file.write_durable(&state).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        verify(&self.partition()).0
    }
}

const TOPIC_ID: &str = "iQRRoaKbSkSH6DP6Go6k4A";
const FIRST_LOG: &str = "00000000000000000000.log";
const LAST_LOG: &str = "00000000000000000004.log";
const LAST_INDEX: &str = "00000000000000000004.index";
const LAST_TIME_INDEX: &str = "00000000000000000004.timeindex";

#[test]
fn a_sound_directory_has_neither_problems_nor_notes() {
    let sample = Sample::new();
    assert_eq!(verify(&sample.partition()), (vec![], vec![]));
    assert_eq!(verify(sample.root.path()), (vec![], vec![]), "as a data directory");
}

#[test]
fn a_data_directory_may_be_called_like_a_partition() {
    let (sample, root) = (Sample::new(), tempfile::tempdir().unwrap());
    let [one, other] = ["node-1", "node-2"].map(|name| root.path().join(name));
    for node in [&one, &other] {
        fs::create_dir_all(node.join("sample-0")).unwrap();
        fs::copy(sample.path(FIRST_LOG), node.join("sample-0").join(FIRST_LOG)).unwrap();
    }
    let (verdict, lines) = run(&["compare"], &[&one, &other]);
    assert_eq!(verdict, Verdict::Good);
    assert!(lines[0].starts_with("sample-0: identical; the same: 2 batches, "), "{lines:?}");
}

#[test]
fn a_torn_tail_is_not_damage_in_the_middle() {
    let torn = Sample::new();
    torn.edit(LAST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    assert_eq!(torn.problems(), ["torn_tail"]);
    let zeros = Sample::new();
    zeros.edit(LAST_LOG, |bytes| bytes.extend_from_slice(&[0; 500]));
    assert_eq!(zeros.problems(), ["torn_tail"]);
    let middle = Sample::new();
    middle.edit(LAST_LOG, |bytes| bytes[70] ^= 1);
    assert_eq!(middle.problems(), ["damage_in_the_middle"]);
    let earlier_segment = Sample::new();
    earlier_segment.edit(FIRST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    assert_eq!(earlier_segment.problems(), ["damage_in_the_middle"]);
}

#[test]
fn a_partial_tail_of_a_log_that_is_held_is_in_use() {
    let sample = Sample::new();
    sample.write_checkpoint(TOPIC_ID, 7);
    sample.edit(LAST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    let topic_id = TopicId::from_kafka_text(TOPIC_ID).unwrap();
    let id = TopicIdPartition::new(topic_id, PartitionIndex::new(0).unwrap());
    let lock = PartitionLocks::open(sample.root.path()).unwrap().try_lock(id).unwrap().unwrap();
    assert_eq!(verify(&sample.partition()), (vec![], vec!["in_use".to_owned()]));
    let (verdict, lines) = run(&["dump"], &[&sample.partition()]);
    assert_eq!(verdict, Verdict::Good);
    assert!(lines.last().unwrap().contains("in use"), "{lines:?}");
    sample.edit(FIRST_LOG, |bytes| bytes[70] ^= 1);
    assert_eq!(sample.problems(), ["damage_in_the_middle"], "damage stays damage");
    drop(lock);
    assert_eq!(sample.problems(), ["damage_in_the_middle", "torn_tail"]);
}

#[test]
fn a_garbled_length_does_not_hide_the_batches_after_it() {
    let sample = Sample::new();
    sample.edit(LAST_LOG, |bytes| bytes[8..12].copy_from_slice(&0x7fff_0000_i32.to_be_bytes()));
    assert_eq!(sample.problems(), ["damage_in_the_middle"]);
    let (verdict, lines) = run(&["dump"], &[&sample.partition()]);
    assert_eq!(verdict, Verdict::Wrong);
    let text = lines.join("\n");
    assert!(text.contains("the log goes on at offset 7") && text.contains("\"value-9\""), "{text}");
}

#[test]
fn offsets_that_go_back_are_named() {
    let sample = Sample::new();
    sample.write(LAST_LOG, &[batch(4, 0, 3), batch(6, 3, 3)].concat());
    assert!(sample.problems().contains(&"offsets_out_of_order".to_owned()));
}

#[test]
fn an_index_that_is_missing_zeroed_or_wrong_is_named() {
    let sample = Sample::new();
    fs::remove_file(sample.path(LAST_INDEX)).unwrap();
    assert_eq!(sample.problems(), ["missing_index"]);
    for (index, byte) in [(LAST_INDEX, 7), (LAST_INDEX, 3), (LAST_TIME_INDEX, 7), (LAST_TIME_INDEX, 11)] {
        let sample = Sample::new();
        sample.edit(index, |bytes| bytes[byte] ^= 0x20);
        assert_eq!(sample.problems(), ["bad_index"], "{index}, byte {byte}");
        let sample = Sample::new();
        sample.edit(index, |bytes| bytes.truncate(bytes.len() - 1));
        assert_eq!(sample.problems(), ["bad_index"], "{index}");
    }
}

#[test]
fn a_zeroed_index_is_bad_unless_a_live_kafka_may_have_preallocated_it() {
    for (index, own, expected) in [
        (LAST_INDEX, false, (vec![], vec!["preallocated_index".to_owned()])),
        (LAST_TIME_INDEX, false, (vec![], vec!["preallocated_index".to_owned()])),
        ("00000000000000000000.index", false, (vec!["bad_index".to_owned()], vec![])),
        (LAST_INDEX, true, (vec!["bad_index".to_owned()], vec![])),
    ] {
        let sample = Sample::new();
        if own {
            sample.write_checkpoint(TOPIC_ID, 10);
        }
        sample.edit(index, |bytes| bytes.fill(0));
        assert_eq!(verify(&sample.partition()), expected, "{index}, own {own}");
    }
}

#[test]
fn an_index_without_a_segment_is_named() {
    let sample = Sample::new();
    sample.write("00000000000000000099.index", &[]);
    assert_eq!(sample.problems(), ["orphan_index"]);
}

#[test]
fn checkpoints_that_are_empty_garbled_missing_or_wrong_are_named() {
    let cases: [(&[u8], &str); 6] = [
        (b"", "empty_checkpoint"),
        (b"0\n", "garbled_checkpoint"),
        (&[0; 16], "garbled_checkpoint"),
        (b"0\n2\n0 0\n3", "garbled_checkpoint"),
        (b"0\n2\n3 0\n0 7\n", "garbled_checkpoint"),
        (b"0\n1\n0 0\n", "wrong_epochs"),
    ];
    for (bytes, kind) in cases {
        let sample = Sample::new();
        sample.write("leader-epoch-checkpoint", bytes);
        assert_eq!(sample.problems(), [kind], "{bytes:?}");
    }
    let sample = Sample::new();
    fs::remove_file(sample.path("leader-epoch-checkpoint")).unwrap();
    assert_eq!(sample.problems(), ["missing_checkpoint"]);
}

#[test]
fn our_checkpoint_is_held_against_the_log() {
    let sample = Sample::new();
    sample.write_checkpoint(TOPIC_ID, 10);
    assert_eq!(sample.problems(), [""; 0]);
    sample.edit("checkpoint", |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff));
    assert_eq!(sample.problems(), ["garbled_checkpoint"]);
    sample.write("checkpoint", &[]);
    assert_eq!(sample.problems(), ["empty_checkpoint"]);
    let sample = Sample::new();
    sample.write_checkpoint("rh4q9Q7oS6eV3fjlSjv7ig", 10);
    assert_eq!(sample.problems(), ["wrong_topic"]);
}

#[test]
fn a_torn_tail_below_the_recovery_point_is_more_than_a_torn_tail() {
    let sample = Sample::new();
    sample.write_checkpoint(TOPIC_ID, 8);
    sample.edit(LAST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    assert_eq!(sample.problems(), ["torn_tail", "records_gone"]);
    let above = Sample::new();
    above.write_checkpoint(TOPIC_ID, 7);
    above.edit(LAST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    assert_eq!(above.problems(), ["torn_tail"]);
}

#[test]
fn kafkas_checkpoints_of_a_node_are_checked() {
    let sample = Sample::new();
    let file = sample.root.path().join("replication-offset-checkpoint");
    fs::write(&file, "0\n1\nsample 0 10\n").unwrap();
    assert_eq!(verify(sample.root.path()), (vec![], vec![]));
    fs::write(&file, "0\n1\nsample 0 1").unwrap();
    assert_eq!(verify(sample.root.path()), (vec!["garbled_checkpoint".to_owned()], vec![]));
}

#[test]
fn foreign_files_and_strays_are_notes() {
    let sample = Sample::new();
    sample.write("notes.txt", b"mine");
    sample.write("00000000000000000002.log.deleted", b"");
    fs::create_dir(sample.root.path().join("lost+found")).unwrap();
    fs::create_dir(sample.root.path().join("photos")).unwrap();
    fs::create_dir(sample.root.path().join("old-1.0123-stray")).unwrap();
    let (problems, notes) = verify(sample.root.path());
    assert_eq!(problems, [""; 0]);
    assert_eq!(notes, ["stray", "foreign_file", "left_over", "foreign_file"]);
}

#[test]
fn a_directory_that_holds_no_log_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    for command in ["dump", "verify"] {
        let cli = TestCli::parse_from(["log", command, empty.path().to_str().unwrap()]);
        let error = cli.command.run(&mut Vec::new()).unwrap_err();
        assert!(matches!(error, LogCommandError::NotALog { .. }), "{error}");
    }
}

#[test]
fn one_thing_is_counted_in_the_singular() {
    let sample = Sample::new();
    fs::remove_file(sample.path(LAST_LOG)).unwrap();
    sample.write(FIRST_LOG, &batch(0, 0, 4));
    let (_, lines) = run(&["verify"], &[&sample.partition()]);
    assert!(lines.last().unwrap().contains("; 1 segment, 1 batch, "), "{lines:?}");
}

#[test]
fn other_segments_and_a_later_start_do_not_make_logs_different() {
    let (one, other) = (Sample::new(), Sample::new());
    for file in [FIRST_LOG, LAST_LOG] {
        fs::remove_file(other.path(file)).unwrap();
    }
    other.write("00000000000000000002.log", &[batch(2, 0, 2), batch(4, 0, 3), batch(7, 3, 3)].concat());
    let (verdict, lines) = run(&["compare"], &[&one.partition(), &other.partition()]);
    assert_eq!(verdict, Verdict::Good, "{lines:?}");
    assert!(lines[0].starts_with("sample-0: identical; the same: 3 batches, "), "{lines:?}");
    let (verdict, _) = run(&["compare"], &[one.root.path(), other.root.path()]);
    assert_eq!(verdict, Verdict::Good, "as data directories");
}

#[test]
fn the_first_difference_is_told() {
    let one = Sample::new();
    let cases: [(Vec<u8>, &str); 4] = [
        ([batch(4, 0, 3), batch(7, 2, 3)].concat(), "DIFFERENT at offset 7: the batches have leader epochs"),
        (
            [batch(4, 0, 2), batch(6, 3, 4)].concat(),
            "DIFFERENT at offset 4: the batches end at offsets 7 and 6",
        ),
        (
            [batch(4, 0, 3), batch(8, 3, 2)].concat(),
            "DIFFERENT at offset 7: batches begin at offsets 7 and 8",
        ),
        (batch(4, 0, 3), "DIFFERENT at offset 7: "),
    ];
    for (bytes, expected) in cases {
        let other = Sample::new();
        other.write(LAST_LOG, &bytes);
        let (verdict, lines) = run(&["compare"], &[&one.partition(), &other.partition()]);
        assert_eq!(verdict, Verdict::Wrong);
        assert!(lines[0].contains(expected), "{expected}: {lines:?}");
    }
}

#[test]
fn a_log_that_ends_early_may_be_allowed_and_a_torn_tail_is_an_end() {
    let (one, other) = (Sample::new(), Sample::new());
    other.edit(LAST_LOG, |bytes| bytes.truncate(bytes.len() - 3));
    let directories: [&Path; 2] = [&one.partition(), &other.partition()];
    assert_eq!(run(&["compare"], &directories).0, Verdict::Wrong);
    assert_eq!(run(&["compare", "--allow-shorter"], &directories).0, Verdict::Good);
}

#[test]
fn damage_in_one_log_is_a_difference_wherever_it_lies() {
    let (one, other) = (Sample::new(), Sample::new());
    for sample in [&one, &other] {
        sample.edit(LAST_LOG, |bytes| bytes[70] ^= 1);
    }
    let (verdict, lines) = run(&["compare"], &[&one.partition(), &other.partition()]);
    assert_eq!(verdict, Verdict::Wrong);
    assert!(lines[0].contains("DIFFERENT at offset 4") && lines[0].contains("damaged"), "{lines:?}");
}
