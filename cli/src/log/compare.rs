//! `highwater log compare`: whether partitions hold the same bytes at the same offsets.
//!
//! What holds: what is compared is whole batches, base offset and leader epoch included, whatever segments they lie in. Logs may start at
//! different offsets (a follower cleans up on its own); where they end must be the same, unless a log that ends early is allowed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use highwater_log::{OsFile, OsStorage, ReadOnlyLog, Scanned, SegmentFiles, SegmentScan};
use highwater_records::BatchError;
use highwater_types::{LeaderEpoch, Offset};
use serde::Serialize;

use super::partition::{PartitionDir, select};
use super::{LogCommandError, OutputArgs, OutputFormat, Verdict, json_line};
use crate::figures::counted;

/// Compares directories.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Two or more partition directories, or data directories that hold some.
    #[arg(required = true, num_args = 2.., value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// A log may end before the others, if it is the same up to there.
    #[arg(long)]
    allow_shorter: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The outcome for one partition: a line of the JSON output.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// The partition's name.
    pub(crate) partition: String,
    /// The directories, in the order of the fields below.
    pub(crate) directories: Vec<String>,
    /// The first offset of each log; absent without batches.
    starts: Vec<Option<i64>>,
    /// The offset after the last good batch of each log; absent without batches.
    ends: Vec<Option<i64>>,
    /// How many batches were the same in all.
    pub(crate) same_batches: u64,
    /// How many bytes of each log were the same in all.
    pub(crate) same_bytes: u64,
    /// Where the first of them that differ lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_difference: Option<Difference>,
}

/// Where logs differ, and how.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    /// The offset from which the logs differ.
    pub(crate) offset: i64,
    /// How.
    pub(crate) reason: String,
}

impl CompareArgs {
    /// What compares these directories to their ends.
    pub(crate) const fn of(directories: Vec<PathBuf>) -> Self {
        let output = OutputArgs { output: OutputFormat::Text };
        Self { directories, allow_shorter: false, output }
    }

    /// Compares, and gives the outcome of each partition to `each`.
    ///
    /// # Errors
    /// [`LogCommandError`], of the reading or of `each`.
    pub(crate) fn compare(
        &self,
        mut each: impl FnMut(Comparison) -> Result<(), LogCommandError>,
    ) -> Result<(), LogCommandError> {
        let selections = self.directories.iter().map(|dir| select(dir)).collect::<Result<Vec<_>, _>>()?;
        if !selections.iter().any(|selection| selection.is_data_dir) {
            let partitions: Vec<PartitionDir> = selections.into_iter().flat_map(|s| s.partitions).collect();
            let name = partitions.first().map(|partition| partition.name.clone()).unwrap_or_default();
            return each(compare_partitions(self, &name, &partitions)?);
        }
        let mut by_name: BTreeMap<String, Vec<Option<PartitionDir>>> = BTreeMap::new();
        for (place, selection) in selections.iter().enumerate() {
            for partition in &selection.partitions {
                let places =
                    by_name.entry(partition.name.clone()).or_insert_with(|| vec![None; selections.len()]);
                if let Some(slot) = places.get_mut(place) {
                    *slot = Some(partition.clone());
                }
            }
        }
        let mut compared = false;
        for (name, places) in by_name {
            // A partition need not have a replica on every node.
            let present: Vec<PartitionDir> = places.into_iter().flatten().collect();
            if present.len() > 1 {
                compared = true;
                each(compare_partitions(self, &name, &present)?)?;
            }
        }
        if compared { Ok(()) } else { Err(LogCommandError::NothingInCommon) }
    }
}

/// Carries the command out.
pub(super) fn run(args: &CompareArgs, out: &mut dyn Write) -> Result<Verdict, LogCommandError> {
    let mut verdict = Verdict::Good;
    args.compare(|comparison| {
        if comparison.first_difference.is_some() {
            verdict = Verdict::Wrong;
        }
        match args.output.output {
            OutputFormat::Json => json_line(out, &comparison),
            OutputFormat::Text => print(&comparison, out),
        }
    })?;
    Ok(verdict)
}

fn compare_partitions(
    args: &CompareArgs,
    name: &str,
    partitions: &[PartitionDir],
) -> Result<Comparison, LogCommandError> {
    let mut logs = partitions.iter().map(LogWalk::open).collect::<Result<Vec<_>, _>>()?;
    compare_logs(args, name, &mut logs)
}

fn compare_logs(args: &CompareArgs, name: &str, logs: &mut [LogWalk]) -> Result<Comparison, LogCommandError> {
    let mut comparison = Comparison {
        partition: name.to_owned(),
        directories: logs.iter().map(|log| log.reader.directory().display().to_string()).collect(),
        starts: logs.iter().map(|log| log.start().map(Offset::get)).collect(),
        ends: Vec::new(),
        same_batches: 0,
        same_bytes: 0,
        first_difference: None,
    };
    let common_start = logs.iter().filter_map(LogWalk::start).max().unwrap_or(Offset::ZERO);
    for log in logs.iter_mut() {
        log.skip_before(common_start)?;
    }
    while comparison.first_difference.is_none() {
        let Some(same) = compare_next(args, logs, &mut comparison.first_difference) else { break };
        comparison.same_batches = comparison.same_batches.saturating_add(1);
        comparison.same_bytes = comparison.same_bytes.saturating_add(same);
        for log in logs.iter_mut() {
            log.advance()?;
        }
    }
    // The ends are told even after a difference.
    for log in logs.iter_mut() {
        log.skip_before(Offset::MAX)?;
    }
    comparison.ends = logs.iter().map(|log| log.end.map(Offset::get)).collect();
    Ok(comparison)
}

/// Compares the batches at hand; returns their size when they are the same, else sets `difference`, if there is any.
fn compare_next(args: &CompareArgs, logs: &[LogWalk], difference: &mut Option<Difference>) -> Option<u64> {
    let heads: Vec<&Head> = logs.iter().filter_map(|log| log.head.as_ref()).collect();
    let head_offset = heads.iter().map(|head| head.base_offset).min();
    let end_offset = logs.iter().filter_map(|log| log.end).min();
    let offset = head_offset.or(end_offset).map_or(0, Offset::get);
    let mut differs = |reason: String| {
        *difference = Some(Difference { offset, reason });
        None
    };
    if let Some((log, bad)) = logs.iter().find_map(|log| Some((log, log.bad.as_ref()?))) {
        return differs(format!("{} is damaged there: {bad}", log.reader.directory().display()));
    }
    let first = *heads.first()?;
    if heads.len() < logs.len() {
        if args.allow_shorter {
            return None;
        }
        let ended = logs.iter().find(|log| log.head.is_none())?;
        return differs(format!("{} ends there", ended.reader.directory().display()));
    }
    if let Some(other) = heads.iter().find(|head| head.bytes != first.bytes) {
        return differs(describe(first, other));
    }
    Some(first.bytes.len() as u64)
}

/// Says what is not the same about two batches.
fn describe(a: &Head, b: &Head) -> String {
    let epoch = |epoch: Option<LeaderEpoch>| epoch.map_or_else(|| "none".to_owned(), |e| e.to_string());
    if a.base_offset != b.base_offset {
        format!("batches begin at offsets {} and {}", a.base_offset, b.base_offset)
    } else if a.next_offset != b.next_offset {
        format!("the batches end at offsets {} and {}", a.next_offset, b.next_offset)
    } else if a.epoch != b.epoch {
        format!("the batches have leader epochs {} and {}", epoch(a.epoch), epoch(b.epoch))
    } else {
        let at = a.bytes.iter().zip(&b.bytes).take_while(|(a, b)| a == b).count();
        format!("the batches differ from byte {at} on (sizes {} and {})", a.bytes.len(), b.bytes.len())
    }
}

fn print(comparison: &Comparison, out: &mut dyn Write) -> Result<(), LogCommandError> {
    let Comparison { partition, same_batches, same_bytes, .. } = comparison;
    match &comparison.first_difference {
        None => write!(out, "{partition}: identical")?,
        Some(Difference { offset, reason }) => {
            write!(out, "{partition}: DIFFERENT at offset {offset}: {reason}")?
        }
    }
    writeln!(out, "; the same: {}, {}", counted(*same_batches, "batch"), counted(*same_bytes, "byte"))?;
    let ranges = comparison.starts.iter().zip(&comparison.ends);
    for (directory, (start, end)) in comparison.directories.iter().zip(ranges) {
        match (start, end) {
            (Some(start), Some(end)) => writeln!(out, "  {directory}: offsets [{start}, {end})")?,
            (None, _) | (_, None) => writeln!(out, "  {directory}: no batches")?,
        }
    }
    Ok(())
}

/// A batch, copied out of its segment.
#[derive(Debug)]
struct Head {
    base_offset: Offset,
    next_offset: Offset,
    epoch: Option<LeaderEpoch>,
    bytes: Vec<u8>,
}

/// Walks the good batches of all segments of a partition.
#[derive(Debug)]
struct LogWalk {
    reader: ReadOnlyLog<OsStorage>,
    segments: std::vec::IntoIter<SegmentFiles>,
    /// The segment at hand, and its base.
    scan: Option<(Offset, SegmentScan<OsFile>)>,
    /// The batch at hand; `None` at the end.
    head: Option<Head>,
    /// The end of the last batch that was at hand.
    end: Option<Offset>,
    /// What is wrong with the bytes at which the walk ended, when the log goes on after them. A bad end is an end: a torn
    /// tail, or a batch that is being written.
    bad: Option<BatchError>,
}

impl LogWalk {
    fn open(partition: &PartitionDir) -> Result<Self, LogCommandError> {
        let reader = partition.open()?;
        let segments = reader.files().segments.clone().into_iter();
        let mut walk = Self { reader, segments, scan: None, head: None, end: None, bad: None };
        walk.advance()?;
        Ok(walk)
    }

    /// The first offset, as long as nothing was passed over.
    fn start(&self) -> Option<Offset> {
        self.head.as_ref().map(|head| head.base_offset)
    }

    /// Passes over the batches that end at or before `offset`.
    fn skip_before(&mut self, offset: Offset) -> Result<(), LogCommandError> {
        while self.head.as_ref().is_some_and(|head| head.next_offset <= offset) {
            self.advance()?;
        }
        Ok(())
    }

    /// Takes the next batch to hand.
    fn advance(&mut self) -> Result<(), LogCommandError> {
        self.head = None;
        while self.bad.is_none() {
            let Some((base, scan)) = &mut self.scan else {
                let Some(SegmentFiles { base, .. }) = self.segments.next() else { return Ok(()) };
                self.scan = Some((base, self.reader.scan(base)?));
                continue;
            };
            match scan.next_piece()? {
                None => self.scan = None,
                Some(Scanned::Bad(bad)) => {
                    let is_end = self.reader.is_tail(*base, &bad);
                    self.bad = (!is_end).then_some(bad.error);
                }
                Some(Scanned::Batch { batch, .. }) => {
                    self.end = Some(batch.next_offset());
                    self.head = Some(Head {
                        base_offset: batch.base_offset(),
                        next_offset: batch.next_offset(),
                        epoch: batch.leader_epoch(),
                        bytes: batch.bytes().to_vec(),
                    });
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
