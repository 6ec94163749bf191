//! `log verify` and opening a log judge alike: every kind of damage that opening knows, made here one by one on a directory of
//! ours, is named by the one and reported by the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_log::{
    BufferPool, HighWatermark, Log, LogConfig, OnDamage, OpenOptions, OpenReport, OsStorage, PartitionLocks,
    Renewal,
};
use highwater_records::{BatchBuilder, Compression};
use highwater_types::{
    Incarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition, WallTime,
};
use serde_json::Value;
use tempfile::TempDir;

use super::tests::run;
use crate::outcome::Verdict;

const NOW: WallTime = WallTime::from_millis(1_700_000_000_000);
const TOPIC_ID: &str = "iQRRoaKbSkSH6DP6Go6k4A";
const CHECKPOINT: &str = "checkpoint";
/// Batches of one record of 200 bytes; three fit a segment.
const BATCHES: i64 = 12;
const SEGMENT_BYTES: u32 = 900;

struct Ours {
    root: TempDir,
}

impl Ours {
    /// Four segments of three batches, all committed, closed cleanly.
    fn new() -> Self {
        let ours = Self { root: tempfile::tempdir().unwrap() };
        let (log, _) = ours.open();
        for _ in 0..BATCHES {
            log.append_as_leader(&[batch(0, 0).into()], LeaderEpoch::new(0).unwrap(), NOW).unwrap();
        }
        log.close_clean(HighWatermark { offset: log.log_end(), epoch: LeaderEpoch::new(0) }).unwrap();
        let bases: Vec<_> =
            (0..4).map(|at| ours.path(&segment(at * 3))).filter(|path| path.exists()).collect();
        assert_eq!(bases.len(), 4);
        ours
    }

    fn open(&self) -> (Log<OsStorage>, OpenReport) {
        let topic_id = TopicId::from_kafka_text(TOPIC_ID).unwrap();
        let partition = TopicPartition::new("sample".parse().unwrap(), PartitionIndex::new(0).unwrap());
        let id = TopicIdPartition::new(topic_id, partition.partition);
        let lock = PartitionLocks::open(self.root.path()).unwrap().try_lock(id).unwrap().unwrap();
        let config = LogConfig { segment_bytes: SEGMENT_BYTES, ..LogConfig::default() };
        let options = OpenOptions {
            topic_id,
            config,
            boot_id: topic_id.uuid(),
            new_incarnation: Incarnation::new(5).unwrap(),
            on_damage: OnDamage::RenewIncarnation,
            read_buffers: BufferPool::new(0),
            now: NOW,
        };
        Log::open(OsStorage, self.root.path(), partition, Arc::new(lock), options).unwrap()
    }

    fn partition(&self) -> PathBuf {
        self.root.path().join("sample-0")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.partition().join(name)
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        edit(&mut bytes);
        fs::write(self.path(name), bytes).unwrap();
    }

    fn remove(&self, base: i64, extensions: &[&str]) {
        for extension in extensions {
            fs::remove_file(self.path(&segment(base)).with_extension(extension)).unwrap();
        }
    }
}

fn segment(base: i64) -> String {
    format!("{base:020}.log")
}

fn batch(base: i64, epoch: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None)
        .base_offset(Offset::new(base).unwrap())
        .leader_epoch(LeaderEpoch::new(epoch).unwrap());
    builder.append(NOW, None, Some(&[b'v'; 200]), &[]).unwrap();
    builder.build().unwrap().to_vec()
}

/// The problems that `log verify` names.
fn problems(directory: &Path) -> Vec<Value> {
    let (verdict, lines) = run(&["verify", "--output", "json"], &[directory]);
    let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let problems: Vec<_> = lines.filter(|line| line["severity"] == "problem").collect();
    assert_eq!(verdict == Verdict::Good, problems.is_empty(), "{problems:?}");
    problems
}

/// Whether a finding covers a range; one without an end reaches as far as the next segment.
fn covers(finding: &Value, start: i64, end: i64) -> bool {
    let from = finding["offset"].as_i64();
    from.is_some_and(|from| from <= start) && finding["end_offset"].as_i64().is_none_or(|to| end <= to)
}

const ALL: [&str; 3] = ["log", "index", "timeindex"];
const NOTHING: Option<(i64, i64)> = None;

/// What is done to the directory, what `verify` names, and which offsets opening reports as damaged.
type Case = (&'static str, fn(&Ours), &'static [&'static str], Option<(i64, i64)>);

const CASES: [Case; 18] = [
    ("nothing", |_| {}, &[], NOTHING),
    ("no first segment", |ours| ours.remove(0, &ALL), &["records_gone"], Some((0, 3))),
    ("no middle segment", |ours| ours.remove(3, &ALL), &["records_gone"], Some((3, 6))),
    (
        "a middle segment's index only",
        |ours| ours.remove(3, &["log"]),
        &["orphan_index", "orphan_index", "records_gone"],
        Some((3, 6)),
    ),
    (
        "two middle segments gone",
        |ours| [3, 6].into_iter().for_each(|base| ours.remove(base, &ALL)),
        &["records_gone"],
        Some((3, 9)),
    ),
    ("no last segment", |ours| ours.remove(9, &ALL), &["records_gone"], Some((9, 12))),
    (
        "no segments",
        |ours| [0, 3, 6, 9].into_iter().for_each(|base| ours.remove(base, &ALL)),
        &["no_segments", "records_gone"],
        Some((0, 12)),
    ),
    (
        "an empty middle segment",
        |ours| ours.edit(&segment(3), Vec::clear),
        &["bad_index", "records_gone"],
        Some((3, 6)),
    ),
    (
        "a middle segment cut at a batch",
        |ours| ours.edit(&segment(3), |log| log.truncate(log.len() / 3)),
        &["records_gone"],
        Some((4, 6)),
    ),
    (
        "a middle segment cut in a batch",
        |ours| ours.edit(&segment(3), |log| log.truncate(log.len() - 10)),
        &["damage_in_the_middle"],
        Some((5, 6)),
    ),
    (
        "bytes after a middle segment's last batch",
        |ours| ours.edit(&segment(3), |log| log.extend([7; 100])),
        &["damage_in_the_middle"],
        NOTHING,
    ),
    (
        "the last segment cut in a batch",
        |ours| ours.edit(&segment(9), |log| log.truncate(log.len() - 10)),
        &["records_gone", "torn_tail"],
        Some((11, 12)),
    ),
    (
        "an unreadable length in the last segment",
        |ours| ours.edit(&segment(9), |log| log[8..12].fill(0xff)),
        &["damage_in_the_middle"],
        Some((9, 10)),
    ),
    (
        "an epoch that falls",
        |ours| {
            ours.edit(CHECKPOINT, |slots| slots.clear());
            ours.edit("leader-epoch-checkpoint", |text| *text = b"0\n1\n4 0\n".to_vec());
            ours.edit(&segment(0), |log| *log = [batch(0, 4), batch(1, 4), batch(2, 4)].concat());
        },
        &["empty_checkpoint", "wrong_epochs"],
        NOTHING,
    ),
    (
        "a segment within another",
        |ours| ours.edit(&segment(3), |log| log.extend(batch(6, 0))),
        &["offsets_out_of_order"],
        Some((7, 12)),
    ),
    (
        "no checkpoint",
        |ours| fs::remove_file(ours.path(CHECKPOINT)).unwrap(),
        &["missing_checkpoint"],
        NOTHING,
    ),
    (
        "a checkpoint of no use",
        |ours| ours.edit(CHECKPOINT, |slots| slots.fill(0xff)),
        &["garbled_checkpoint"],
        NOTHING,
    ),
    (
        "neither a checkpoint nor a middle segment",
        |ours| {
            fs::remove_file(ours.path(CHECKPOINT)).unwrap();
            ours.remove(3, &ALL);
        },
        &["missing_checkpoint", "offsets_out_of_order"],
        NOTHING,
    ),
];

#[test]
fn every_kind_of_damage_is_named_by_verify_and_reported_by_open() {
    for (what, inflict, named, damaged) in CASES {
        let ours = Ours::new();
        inflict(&ours);
        let before: Vec<_> = fs::read_dir(ours.partition()).unwrap().map(|e| e.unwrap().path()).collect();
        let found = problems(&ours.partition());
        let after: Vec<_> = fs::read_dir(ours.partition()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(before, after, "{what}: verify changes nothing");
        let mut kinds: Vec<_> = found.iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
        kinds.sort_unstable();
        kinds.dedup_by(|next, last| next == last && *next != "orphan_index");
        assert_eq!(kinds, named, "{what}: {found:?}");

        let (log, report) = ours.open();
        let ranges: Vec<_> = report.damage.iter().map(|d| (d.range.start.get(), d.range.end.get())).collect();
        assert_eq!(ranges, damaged.into_iter().collect::<Vec<_>>(), "{what}: {report:?}");
        for (start, end) in ranges {
            assert!(found.iter().any(|f| covers(f, start, end)), "{what}: [{start}, {end}) in {found:?}");
        }
        let renewal = match (damaged, named.iter().any(|kind| kind.ends_with("_checkpoint"))) {
            (Some(_), _) => Some(Renewal::Damage),
            (None, true) => Some(Renewal::NoCheckpoint),
            (None, false) => None,
        };
        assert_eq!(report.renewal, renewal, "{what}");
        drop(log);
        // What was lost stays named as long as it is.
        let again = problems(&ours.partition());
        let has_lost_tail = report.damage.iter().any(|damage| damage.at_end);
        for damage in &report.damage {
            let (start, end) = (damage.range.start.get(), damage.range.end.get());
            assert!(again.iter().any(|f| covers(f, start, end)), "{what}, opened: {again:?}");
        }
        assert!(!again.is_empty() || !has_lost_tail && report.damage.is_empty(), "{what}: {again:?}");
    }
}

#[test]
fn a_missing_checkpoint_says_what_will_happen() {
    let ours = Ours::new();
    fs::remove_file(ours.path(CHECKPOINT)).unwrap();
    let found = problems(&ours.partition());
    assert!(found[0]["detail"].as_str().unwrap().contains("cannot be elected"), "{found:?}");
}
