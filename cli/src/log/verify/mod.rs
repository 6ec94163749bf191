//! `highwater log verify`: checks directories byte by byte, and names each damage as what it is.
//!
//! What holds: nothing is repaired. A *problem* makes the command fail; a *note* says what was seen and is no fault, such as a foreign
//! file, which the log leaves alone.

mod checkpoints;
mod finding;
mod reach;
mod segments;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use highwater_log::checkpoint::read_kafka_checkpoints;
use highwater_log::{OsStorage, OtherKind, is_node_file};
use serde::Serialize;

use self::finding::{Finding, FindingKind, Severity};
use self::reach::Reach;
use super::partition::{PartitionDir, Selection, select};
use super::{LogCommandError, OutputArgs, OutputFormat, Verdict, json_line};
use crate::figures::counted;

/// Checks directories and names what is wrong.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Partition directories, or data directories that hold some.
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a partition's directory holds.
#[derive(Debug, Serialize)]
struct Summary {
    directory: String,
    segments: u64,
    batches: u64,
    bytes: u64,
    /// The first offset of the first good batch; absent without any.
    first_offset: Option<i64>,
    /// The offset after the last good batch; absent without any.
    end_offset: Option<i64>,
    problems: u64,
}

/// A line of the JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Finding(&'a Finding),
    Summary(&'a Summary),
}

/// Carries the command out.
pub(super) fn run(args: &VerifyArgs, out: &mut dyn Write) -> Result<Verdict, LogCommandError> {
    let mut reporter = Reporter { format: args.output.output, verdict: Verdict::Good, out };
    for directory in &args.directories {
        let selection = select(directory)?;
        let mut findings = Vec::new();
        check_data_dir(&selection, &mut findings)?;
        reporter.report(&findings)?;
        for partition in &selection.partitions {
            let mut findings = Vec::new();
            let mut summary = check_partition(partition, &mut findings)?;
            summary.problems = findings.iter().filter(|f| f.severity == Severity::Problem).count() as u64;
            reporter.report(&findings)?;
            reporter.summarise(&summary)?;
        }
    }
    Ok(reporter.verdict)
}

/// Checks what stands in a data directory beside the partitions.
fn check_data_dir(selection: &Selection, findings: &mut Vec<Finding>) -> Result<(), LogCommandError> {
    if !selection.is_data_dir {
        return Ok(());
    }
    for (name, is_dir) in &selection.others {
        let path = selection.root.join(name);
        if *is_dir && name.ends_with("-stray") {
            let detail = "a partition that Kafka's cluster did not know; kept for a person to decide";
            findings.push(Finding::note(FindingKind::Stray, &path, detail));
        } else if !is_node_file(name) {
            let detail = "not one of a data directory's; left alone";
            findings.push(Finding::note(FindingKind::ForeignFile, &path, detail));
        }
    }
    for (name, reason) in read_kafka_checkpoints(&OsStorage, &selection.root)?.damaged() {
        findings.push(checkpoints::unreadable(&selection.root.join(name), reason.to_owned()));
    }
    Ok(())
}

fn check_partition(
    partition: &PartitionDir,
    findings: &mut Vec<Finding>,
) -> Result<Summary, LogCommandError> {
    let log = partition.open()?;
    for other in &log.files().others {
        let (kind, detail) = match other.kind {
            // Derived from the log, and not read here.
            OtherKind::KafkaState => continue,
            OtherKind::LeftOver | OtherKind::KafkaLeftOver => {
                (FindingKind::LeftOver, "what a cut, a deletion or a crash left")
            }
            OtherKind::Foreign => (FindingKind::ForeignFile, "not one of a log's; left alone"),
        };
        findings.push(Finding::note(kind, &log.directory().join(&other.name), detail));
    }
    // Read before the log, which only grows while it is in use.
    let state = checkpoints::check_own(&log, findings)?;
    let mut reach = Reach::new(checkpoints::vouched(&log, state.as_ref())?, &log.files().segments);
    let walked = segments::check(&log, &mut reach, findings)?;
    findings.extend(reach.finish(&log));
    checkpoints::check_epochs(&log, &walked, findings)?;
    checkpoints::check_topic_id(&log, state.as_ref(), findings)?;
    Ok(Summary {
        directory: partition.path.display().to_string(),
        segments: log.files().segments.len() as u64,
        batches: walked.batches,
        bytes: walked.bytes,
        first_offset: walked.first.map(|offset| offset.get()),
        end_offset: walked.end.map(|offset| offset.get()),
        problems: 0,
    })
}

struct Reporter<'a> {
    format: OutputFormat,
    verdict: Verdict,
    out: &'a mut dyn Write,
}

impl Reporter<'_> {
    fn report(&mut self, findings: &[Finding]) -> Result<(), LogCommandError> {
        for finding in findings {
            match self.format {
                OutputFormat::Json => json_line(self.out, &Line::Finding(finding))?,
                OutputFormat::Text => writeln!(self.out, "{finding}")?,
            }
            if finding.severity == Severity::Problem {
                self.verdict = Verdict::Wrong;
            }
        }
        Ok(())
    }

    fn summarise(&mut self, summary: &Summary) -> Result<(), LogCommandError> {
        if self.format == OutputFormat::Json {
            return json_line(self.out, &Line::Summary(summary));
        }
        let Summary { directory, segments, batches, bytes, problems, .. } = summary;
        let verdict = if *problems == 0 { "good".to_owned() } else { counted(*problems, "problem") };
        let range = match (summary.first_offset, summary.end_offset) {
            (Some(first), Some(end)) => format!("offsets [{first}, {end})"),
            (None, _) | (_, None) => "no batches".to_owned(),
        };
        Ok(writeln!(
            self.out,
            "{directory}: {verdict}; {}, {}, {}, {range}",
            counted(*segments, "segment"),
            counted(*batches, "batch"),
            counted(*bytes, "byte"),
        )?)
    }
}
