//! What Kafka's DumpLogSegments thinks of directories.

use std::fs;
use std::path::{Path, PathBuf};

use system_tests::kafka_dump::KafkaDump;
use system_tests::log_dump::{self, Segment};
use system_tests::parts;

/// The files of a partition with these extensions, sorted.
pub(crate) fn files(partition: &Path, extensions: &[&str]) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    files.sort();
    files
}

/// Everything that DumpLogSegments said about some files. It exits 0 on most corruption, so its words count.
pub(crate) struct Verdict {
    pub(crate) printed: String,
    /// Complaints; none when all is well.
    pub(crate) complaints: Vec<String>,
    /// Where offsets are missing: the one before and the one after. Normal in what compaction left.
    gaps: Vec<(i64, i64)>,
}

/// Runs Kafka's DumpLogSegments on the files; `None` when Kafka is left out.
pub(crate) fn kafka(files: &[String], options: &[&str]) -> Option<Verdict> {
    let mut command = parts::dump_log_segments()?;
    let output = command.args(options).arg("--files").arg(files.join(",")).output().expect("java starts");
    let mut complaints = Vec::new();
    let mut gaps = Vec::new();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let pair = line.trim_start().split_once(" is followed by ");
        match pair.and_then(|(before, after)| Some((before.parse().ok()?, after.parse().ok()?))) {
            // A segment that does not begin at 0: not a gap.
            Some((-1, _)) => {}
            Some(gap) => gaps.push(gap),
            None if line.starts_with("Non-consecutive offsets in ") => {}
            None => complaints.push(line.to_owned()),
        }
    }
    if !output.status.success() {
        complaints.push(output.status.to_string());
    }
    Some(Verdict { printed: String::from_utf8(output.stdout).unwrap(), complaints, gaps })
}

/// Asserts that Kafka reads these directories as we do, to the last field, and finds nothing wrong with their indexes.
/// One start of Java reads all of them.
pub(crate) fn assert_kafka_agrees(partitions: &[PathBuf]) {
    let logs: Vec<String> = partitions.iter().flat_map(|partition| files(partition, &["log"])).collect();
    let Some(verdict) = kafka(&logs, &["--deep-iteration", "--print-data-log"]) else { return };
    assert_eq!(verdict.complaints, [""; 0]);
    let dump = KafkaDump::parse(&verdict.printed).unwrap();
    let mut gaps = Vec::new();
    let mut segments = 0;
    for partition in partitions {
        let (good, ours) = log_dump::dump(partition);
        let ours = ours.segments;
        assert!(good, "{}", partition.display());
        for segment in &ours {
            assert!(segment.batches.iter().all(|batch| batch.crc_ok), "{}", segment.path.display());
            segment.assert_as_kafka_reads_it(&dump.logs[segment.path.to_str().unwrap()]);
            gaps.append(&mut gaps_of(segment));
        }
        segments += ours.len();
        assert_eq!(log_dump::verify(partition), (true, vec![]), "our own check: {}", partition.display());
    }
    assert_eq!(segments, dump.logs.len(), "every segment was compared");
    gaps.sort_unstable();
    let mut kafkas_gaps = verdict.gaps;
    kafkas_gaps.sort_unstable();
    assert_eq!(kafkas_gaps, gaps);
    assert_kafka_likes_the_indexes(partitions);
}

/// Where records are missing within a segment, as Kafka counts: from record to record.
fn gaps_of(segment: &Segment) -> Vec<(i64, i64)> {
    let offsets: Vec<i64> =
        segment.batches.iter().flat_map(|batch| &batch.records).map(|record| record.offset).collect();
    offsets.windows(2).map(|pair| (pair[0], pair[1])).filter(|(before, after)| before + 1 != *after).collect()
}

fn assert_kafka_likes_the_indexes(partitions: &[PathBuf]) {
    let indexes: Vec<String> =
        partitions.iter().flat_map(|partition| files(partition, &["index", "timeindex"])).collect();
    // Each entry is looked up in the log beside the index: mismatches are complaints.
    let Some(verdict) = kafka(&indexes, &[]) else { return };
    assert_eq!(verdict.complaints, [""; 0]);
    let dump = KafkaDump::parse(&verdict.printed).unwrap();
    for partition in partitions {
        let in_here = |file: &&String| Path::new(file).starts_with(partition);
        let entries: usize =
            dump.offset_indexes.iter().filter(|(file, _)| in_here(file)).map(|(_, found)| found.len()).sum();
        let times: usize =
            dump.time_indexes.iter().filter(|(file, _)| in_here(file)).map(|(_, found)| found.len()).sum();
        assert!(entries > 0 && times > 0, "{}: {entries} and {times} entries", partition.display());
    }
    let Some(verdict) = kafka(&indexes, &["--index-sanity-check"]) else { return };
    assert_eq!(verdict.complaints, [""; 0]);
    let checked = |line: &&str| !line.starts_with("Dumping ");
    let printed: Vec<&str> = verdict.printed.lines().filter(checked).collect();
    // A segment that has only just been begun has nothing indexed.
    let is_empty = |file: &String| fs::metadata(file).unwrap().len() == 0;
    let said = |file| if is_empty(file) { "is empty." } else { "passed sanity check." };
    let expected: Vec<String> = indexes.iter().map(|file| format!("{file} {}", said(file))).collect();
    assert_eq!(printed, expected);
}
